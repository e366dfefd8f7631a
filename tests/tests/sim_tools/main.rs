//! Other people's tools on the mounted simulation, with an engine beside them
//! that goes through the same mount: each must see what the other does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod driverctl;
mod mdevctl;
mod udevadm;

use std::sync::Arc;

use tempfile::TempDir;
use uuid::Uuid;
use vgpu_mdev::{
    config::Config,
    engine::{Engine, Timing},
    error::Error,
    model::{Gpu, Profile},
    request::{Control, CreateRequest, RemoveOptions},
    sys::sim::HostSpec,
};
use vgpu_tests::{
    namespace::Namespace,
    simulated::{Mounted, engine_on},
};

struct Host {
    mounted: Mounted,
    engine: Arc<Engine>,
    tools: Namespace,
    _run_dir: TempDir,
}

impl Host {
    fn new(spec: &HostSpec) -> Self {
        let mounted = Mounted::new(spec);
        let run_dir = TempDir::new().unwrap();
        let engine = engine_on(
            mounted.kernel.clone(),
            &mounted.simulation,
            &Config::default(),
            run_dir.path(),
            Timing::default(),
        );
        mounted.simulation.record_writes();
        let tools = Namespace::new(&mounted.sys(), &["vfio-pci"]);
        Self { mounted, engine, tools, _run_dir: run_dir }
    }

    fn gpu(&self, id: &str) -> Arc<Gpu> {
        self.engine.snapshot().gpu(&id.parse().unwrap()).unwrap().clone()
    }

    fn profile(&self, gpu: &str, called: &str) -> Profile {
        self.gpu(gpu).profiles_called(called).next().unwrap().clone()
    }

    fn create(&self, gpu: &str, profile: &str) -> Result<Uuid, Error> {
        let request = CreateRequest {
            profile: profile.into(),
            gpu: Some(gpu.parse().unwrap()),
            ..CreateRequest::default()
        };
        self.engine.create(&request, &Control::default()).map(|created| created.uuid)
    }

    fn remove(&self, uuid: Uuid) -> Result<(), Error> {
        self.engine.remove(uuid, RemoveOptions::default(), &Control::default())
    }

    /// An attribute as anybody reads it, without the new line.
    fn read(&self, path: &str) -> String {
        let text = std::fs::read_to_string(self.mounted.sys().join(path)).unwrap();
        text.trim_end_matches('\n').to_owned()
    }

    /// All that was written through the mount, in its order, with the kernel's
    /// own path of each.
    fn writes(&self) -> Vec<(String, String)> {
        let writes = self.mounted.simulation.writes();
        assert!(writes.iter().all(|write| write.result == Some(Ok(()))), "{writes:#?}");
        writes.into_iter().map(|write| (write.path, write.value)).collect()
    }
}
