//! The daemon as a process: start, stop, signals, and what systemd is told.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::bus::{Bus, MANAGER, Options, ROOT, call, create, options, property};

/// The daemon's process; it is killed with this.
pub(crate) struct Daemon {
    child: Child,
    notify: UnixDatagram,
}

impl Daemon {
    /// Starts it on the built-in host and waits until it is ready.
    pub(crate) fn start(bus: &Bus) -> Self {
        let daemon = Self::spawn(bus, &["--simulate"]);
        assert_eq!(daemon.told(), "READY=1\nSTATUS=7 GPUs\n");
        daemon
    }

    /// Starts it on a described host and waits until it is ready.
    pub(crate) fn of_host(bus: &Bus, file: &Path) -> Self {
        let daemon = Self::spawn(bus, &["--simulate", file.to_str().unwrap()]);
        assert!(daemon.told().starts_with("READY=1\n"));
        daemon
    }

    /// How much memory it has.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn spawn(bus: &Bus, arguments: &[&str]) -> Self {
        Self::spawn_in(bus, "run", arguments)
    }

    fn spawn_in(bus: &Bus, run_dir: &str, arguments: &[&str]) -> Self {
        let socket = bus.dir.path().join(format!("notify-{}", uuid::Uuid::new_v4()));
        let notify = UnixDatagram::bind(&socket).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_vgpu-hostd"))
            .args(["--bus", &bus.address, "--config", "/nonexistent/host.toml"])
            .args(["--run-dir", bus.dir.path().join(run_dir).to_str().unwrap()])
            .args(arguments)
            .env("NOTIFY_SOCKET", &socket)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, notify }
    }

    /// The next message to systemd.
    fn told(&self) -> String {
        let mut buffer = [0; 256];
        let length = self.notify.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its end: its status and log.
    fn end(mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut stderr, &mut log).unwrap();
        (self.child.wait().unwrap(), log)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn it_is_ready_with_its_name_and_stops_when_told() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let bus = Bus::start();
        let daemon = Daemon::start(&bus);
        let connection = bus.connect().await;
        assert!(property::<bool>(&connection, ROOT, MANAGER, "Simulated").await);
        daemon.signal(signal);
        assert_eq!(daemon.told(), "STOPPING=1\n");
        let (status, log) = daemon.end();
        assert!(status.success(), "{status}: {log}");
    }
}

#[tokio::test]
async fn its_name_is_taken_once() {
    let bus = Bus::start();
    let _first = Daemon::start(&bus);
    let (status, log) = Daemon::spawn_in(&bus, "another", &["--simulate"]).end();
    assert_eq!(status.code(), Some(1));
    assert!(
        log.contains("another process owns org.vgpu.Host1 on this bus; stop it first"),
        "{log}"
    );
}

#[tokio::test]
async fn sighup_does_not_end_it() {
    let bus = Bus::start();
    let daemon = Daemon::start(&bus);
    daemon.signal(Signal::SIGHUP);
    let connection = bus.connect().await;
    let vgpu = create(&connection, "mtty-1", Options::new()).await;
    assert!(vgpu.starts_with("/org/vgpu/Host1/vgpus/"), "{vgpu}");
    daemon.signal(Signal::SIGTERM);
    let (status, log) = daemon.end();
    assert!(status.success());
    assert!(log.contains("SIGHUP: looking at the whole host again"), "{log}");
}

#[test]
fn a_broken_configuration_is_named() {
    let bus = Bus::start();
    let config = bus.dir.path().join("broken.toml");
    fs::write(&config, "[discovery]\nadd = [\"nonsense\"]\n").unwrap();
    let config = config.to_str().unwrap();
    let run_dir = bus.dir.path().join("run");
    let output = Command::new(env!("CARGO_BIN_EXE_vgpu-hostd"))
        .args(["--simulate", "--bus", &bus.address, "--config", config])
        .args(["--run-dir", run_dir.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains(config) && log.contains("line 2") && log.contains("nonsense"), "{log}");
}

#[test]
fn a_bus_that_is_not_there_is_named() {
    let run_dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vgpu-hostd"))
        .args(["--simulate", "--bus", "unix:path=/nonexistent/bus"])
        .args(["--run-dir", run_dir.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("no connection to unix:path=/nonexistent/bus"), "{log}");
    assert_eq!(log.matches("No such file").count(), 1, "{log}");
    assert!(log.contains("; start that bus, or name another with --bus"), "{log}");
}

#[tokio::test]
async fn the_end_of_the_bus_is_its_end() {
    let bus = Bus::start();
    let daemon = Daemon::start(&bus);
    drop(bus);
    let (status, log) = daemon.end();
    assert_eq!(status.code(), Some(1), "{log}");
}

#[tokio::test]
async fn a_call_that_wants_no_reply_gets_none() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    let uuid = "11111111-2222-4333-8444-555555555555";
    let message = zbus::Message::method_call(ROOT, "CreateVgpu")
        .destination("org.vgpu.Host1")
        .interface(MANAGER)
        .with_flags(zbus::message::Flags::NO_REPLY_EXPECTED)
        .build(&("mtty-1", options([("uuid", uuid.into())])))
        .unwrap();
    let mut added = crate::signals::watch(&connection, "InterfacesAdded").await;
    let mut all = zbus::MessageStream::from(&connection);
    connection.send(&message).await.unwrap();
    crate::signals::next(&mut added).await;
    // It is there: a reply would have come before this one.
    call(&connection, ROOT, MANAGER, "GetVgpu", &(uuid,)).await.unwrap();
    use futures_util::{FutureExt as _, StreamExt as _};
    let serial = Some(message.primary_header().serial_num());
    while let Some(Some(Ok(other))) = all.next().now_or_never() {
        assert_ne!(other.header().reply_serial(), serial, "{other:?}");
    }
}

#[test]
fn a_second_one_leaves_the_claims_of_the_first_alone() {
    let bus = Bus::start();
    let _first = Daemon::start(&bus);
    let (status, log) = Daemon::spawn(&bus, &["--simulate"]).end();
    assert_eq!(status.code(), Some(1));
    assert!(log.contains("another vgpu-hostd keeps its claims here"), "{log}");
}
