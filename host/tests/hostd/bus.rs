//! A private bus, and calls on it.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde::Serialize;
use zbus::{
    Connection, DynamicType, Message, OwnedVariant,
    connection::Builder,
    message::{Flags, Type},
};

/// The manager's path and interface.
pub(crate) const ROOT: &str = "/org/vgpu/Host1";
pub(crate) const MANAGER: &str = "org.vgpu.Host1.Manager";
pub(crate) const GPU: &str = "org.vgpu.Host1.Gpu";
pub(crate) const MIG: &str = "org.vgpu.Host1.Mig1";
pub(crate) const HETEROGENEOUS: &str = "org.vgpu.Host1.Heterogeneous1";
pub(crate) const VGPU: &str = "org.vgpu.Host1.Vgpu";
pub(crate) const NVIDIA_VGPU: &str = "org.vgpu.Host1.NvidiaVgpu1";
pub(crate) const JOB: &str = "org.vgpu.Host1.Job";

/// Options by name.
pub(crate) type Options = HashMap<String, OwnedVariant>;

/// A dbus-daemon of the system bus's type with our bus policy; it ends with
/// this.
pub(crate) struct Bus {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) address: String,
    daemon: Child,
}

impl Bus {
    pub(crate) fn start() -> Self {
        let me = nix::unistd::geteuid();
        assert!(me.is_root(), "these tests act as several users: run them as root");
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let socket = dir.path().join("bus");
        let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/org.vgpu.Host1.conf");
        let config = CONFIG
            .replace("@SOCKET@", socket.to_str().unwrap())
            .replace("@POLICY@", policy.to_str().unwrap());
        let config_file = dir.path().join("bus.conf");
        fs::write(&config_file, config).unwrap();
        let mut daemon = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config_file.display()))
            .args(["--nofork", "--nopidfile", "--nosyslog", "--print-address=1"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("dbus-daemon is installed");
        let mut address = String::new();
        // It prints the address once it listens.
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut address).unwrap();
        assert!(!address.is_empty(), "dbus-daemon did not start");
        Self { dir, address: address.trim().to_owned(), daemon }
    }

    /// A connection as root.
    pub(crate) async fn connect(&self) -> Connection {
        Builder::address(self.address.as_str()).build().await.unwrap()
    }

    /// What `busctl` says of a call as another user: its output, or its error.
    pub(crate) fn call_as(&self, uid: u32, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("busctl")
            .arg(format!("--address={}", self.address))
            .args(["call", "org.vgpu.Host1"])
            .args(arguments)
            .uid(uid)
            .gid(uid)
            .output()
            .expect("busctl is installed");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

const CONFIG: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=@SOCKET@</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus"/>
    <allow send_destination="org.freedesktop.PolicyKit1"/>
  </policy>
  <policy user="root">
    <allow own="org.freedesktop.PolicyKit1"/>
  </policy>
  <include>@POLICY@</include>
</busconfig>
"#;

/// An error reply: name, text and details.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) details: Options,
}

impl Failed {
    pub(crate) fn detail(&self, key: &str) -> Option<String> {
        self.details.get(key).map(|value| value.try_clone().unwrap().try_into().unwrap())
    }
}

/// Calls a method of ours; the error reply as data.
pub(crate) async fn call<B: Serialize + DynamicType>(
    connection: &Connection,
    path: &str,
    interface: &str,
    member: &str,
    body: &B,
) -> Result<Message, Failed> {
    let message = Message::method_call(path, member)
        .destination("org.vgpu.Host1")
        .interface(interface)
        .build(body)
        .unwrap();
    send(connection, &message).await
}

/// Sends a call and waits for its reply.
pub(crate) async fn send(connection: &Connection, message: &Message) -> Result<Message, Failed> {
    use futures_util::StreamExt as _;
    assert!(!message.primary_header().flags().contains(Flags::NO_REPLY_EXPECTED));
    let mut stream = zbus::MessageStream::from(connection);
    connection.send(message).await.unwrap();
    let serial = message.primary_header().serial_num();
    loop {
        let reply = stream.next().await.expect("the bus is there").unwrap();
        if reply.header().reply_serial() != Some(serial) {
            continue;
        }
        match reply.message_type() {
            Type::MethodReturn => return Ok(reply),
            Type::Error => return Err(failed(&reply)),
            other => panic!("a reply of the type {other:?}"),
        }
    }
}

fn failed(reply: &Message) -> Failed {
    let name = reply.header().error_name().unwrap().to_string();
    let body = reply.body();
    // The bus's own errors have no details.
    let (text, details) = match body.deserialize::<(String, Options)>() {
        Ok(both) => both,
        Err(_) => (body.deserialize::<String>().unwrap(), Options::new()),
    };
    Failed { name, text, details }
}

/// Options from pairs.
pub(crate) fn options<const N: usize>(pairs: [(&str, zbus::Variant<'_>); N]) -> Options {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.try_into_owned().unwrap()))
        .collect()
}

/// Creates a vGPU as root; its path.
pub(crate) async fn create(connection: &Connection, profile: &str, options: Options) -> String {
    let reply = call(connection, ROOT, MANAGER, "CreateVgpu", &(profile, options)).await.unwrap();
    let (vgpu, created, job): (zbus::OwnedObjectPath, bool, zbus::OwnedObjectPath) =
        reply.body().deserialize().unwrap();
    assert!(created);
    assert_eq!(job.as_str(), "/");
    vgpu.to_string()
}

/// Removes a vGPU as root.
pub(crate) async fn remove(connection: &Connection, path: &str) {
    call(connection, path, VGPU, "Remove", &(Options::new(),)).await.unwrap();
}

/// A property.
pub(crate) async fn property<T: TryFrom<OwnedVariant>>(
    connection: &Connection,
    path: &str,
    interface: &str,
    name: &str,
) -> T
where
    T::Error: std::fmt::Debug,
{
    let properties = "org.freedesktop.DBus.Properties";
    let reply = call(connection, path, properties, "Get", &(interface, name)).await.unwrap();
    reply.body().deserialize::<OwnedVariant>().unwrap().try_into().unwrap()
}
