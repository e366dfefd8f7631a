//! The service, and calls of it.

use std::{
    collections::HashMap,
    fs,
    process::{Child, Command},
    time::Duration,
};

use futures_util::StreamExt as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::timeout;
use vgpu_host_api::{
    names,
    proxy::{Facts, GpuProxy, ManagerProxy, Options, VgpuProxy},
};
use vgpu_tests::{
    conformance::{CONFIG, Picture},
    lab,
};
use zbus::{
    Connection, DBusError as _, OwnedObjectPath, Variant,
    fdo::{DBusProxy, NameOwnerChangedStream},
};

/// Several times what anything here takes in the guest.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A running `vgpu-hostd`, and a connection as root.
pub(crate) struct Service {
    pub(crate) bus: Connection,
    child: Child,
    files: tempfile::TempDir,
    owner_changes: NameOwnerChangedStream,
    before: Picture,
}

impl Service {
    pub(crate) async fn start() -> Self {
        lab::require();
        let before = lab::picture();
        let files = tempfile::tempdir().unwrap();
        fs::write(files.path().join("host.toml"), CONFIG).unwrap();
        let bus = Connection::system().await.unwrap();
        let dbus = DBusProxy::new(&bus).await.unwrap();
        let mut owner_changes =
            dbus.receive_name_owner_changed_with_args(&[(0, names::SERVICE)]).await.unwrap();
        let child = spawn(&files);
        has_owner(&mut owner_changes, true).await;
        Self { bus, child, files, owner_changes, before }
    }

    /// Kills it, and starts another one on the same claims.
    pub(crate) async fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        has_owner(&mut self.owner_changes, false).await;
        self.child = spawn(&self.files);
        has_owner(&mut self.owner_changes, true).await;
    }

    /// Stops it as systemd does, and checks that the host is as it was.
    pub(crate) async fn stop(mut self) {
        kill(Pid::from_raw(i32::try_from(self.pid()).unwrap()), Signal::SIGTERM).unwrap();
        has_owner(&mut self.owner_changes, false).await;
        assert!(self.child.wait().unwrap().success(), "it does not end well");
        assert_eq!(self.before.difference(&lab::picture()), Vec::<String>::new());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) async fn manager(&self) -> ManagerProxy<'_> {
        ManagerProxy::new(&self.bus).await.unwrap()
    }

    pub(crate) async fn vgpu(&self, path: &OwnedObjectPath) -> VgpuProxy<'_> {
        VgpuProxy::builder(&self.bus).path(path.clone()).build().await.unwrap()
    }

    pub(crate) async fn gpu(&self, id: &str) -> GpuProxy<'_> {
        let path = self.manager().await.get_gpu(id).await.unwrap();
        GpuProxy::builder(&self.bus).path(path).build().await.unwrap()
    }

    /// Makes a vGPU.
    pub(crate) async fn create(&self, gpu: &str, profile: &str) -> OwnedObjectPath {
        self.create_with(profile, [("gpu", gpu.into())]).await
    }

    pub(crate) async fn create_with<const N: usize>(
        &self,
        profile: &str,
        options: [(&str, Variant<'_>); N],
    ) -> OwnedObjectPath {
        let options: Options<'_> = HashMap::from(options);
        let made = self.manager().await.create_vgpu(profile, &options).await;
        let (vgpu, created, job) = made.unwrap_or_else(|error| panic!("{profile}: {error}"));
        assert!(created);
        assert_eq!(job.as_str(), "/");
        vgpu
    }

    pub(crate) async fn remove(&self, vgpu: &OwnedObjectPath) {
        let job = self.vgpu(vgpu).await.remove(&Options::new()).await.unwrap();
        assert_eq!(job.as_str(), "/");
    }

    pub(crate) async fn set_count(&self, gpu: &str, count: u32) {
        let job = self.gpu(gpu).await.set_vf_count(count, &Options::new()).await.unwrap();
        assert_eq!(job.as_str(), "/", "it takes longer than a call may");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Where a test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(files: &tempfile::TempDir) -> Child {
    let path = |name: &str| files.path().join(name);
    Command::new(lab::bin_dir().join("vgpu-hostd"))
        .arg("--config")
        .arg(path("host.toml"))
        .arg("--run-dir")
        .arg(path("run"))
        .args(["--log", "warn"])
        .spawn()
        .unwrap()
}

async fn has_owner(changes: &mut NameOwnerChangedStream, wanted: bool) {
    let next = async {
        while let Some(change) = changes.next().await {
            if change.args().unwrap().new_owner().is_some() == wanted {
                return;
            }
        }
        panic!("the bus is gone");
    };
    timeout(LIMIT, next).await.expect("the name has an owner or has none");
}

/// A fact of a report.
pub(crate) fn fact<T: TryFrom<zbus::OwnedVariant>>(facts: &Facts, key: &str) -> T
where
    T::Error: std::fmt::Debug,
{
    facts.get(key).unwrap_or_else(|| panic!("no {key}")).try_clone().unwrap().try_into().unwrap()
}

/// The name of an error reply.
pub(crate) fn error_name<T: std::fmt::Debug>(result: zbus::Result<T>) -> String {
    match result {
        Err(zbus::Error::MethodError(name, ..)) => name.to_string(),
        // A standard one.
        Err(zbus::Error::FDO(error)) => error.name().to_string(),
        other => panic!("{other:?} is no error reply"),
    }
}
