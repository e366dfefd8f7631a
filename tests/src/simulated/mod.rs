//! An engine on a simulated host.

mod host;
mod mounted;

use std::{sync::Arc, time::Duration};

use nix::errno::Errno;
use vgpu_mdev::{
    config::Config,
    engine::{Engine, Setup, Timing},
    error::Error,
    model::Vgpu,
    request::{Control, CreateRequest, RemoveOptions},
    sys::{
        Kernel, Lanes, SysPath,
        sim::{HostSpec, SimKernel},
    },
};

pub use host::{lab, lab_with_cdevs, mounted_lab, mounted_lab_with_cdevs};
pub use mounted::{Mounted, MountedKernel};

/// The host described in `tests/hosts`.
///
/// # Panics
/// When there is none of that name, or it makes no sense.
pub fn described(name: &str) -> HostSpec {
    let path = format!("{}/hosts/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    HostSpec::parse(&std::fs::read_to_string(&path).unwrap(), path).unwrap()
}

/// An engine, the simulated kernel below it, and the folder of its claims.
pub struct Simulated {
    /// The kernel.
    pub kernel: SimKernel,
    /// The engine.
    pub engine: Arc<Engine>,
    /// What the engine was configured with.
    pub config: Config,
    /// How long the engines to come wait for the kernel.
    pub timing: Timing,
    run_dir: tempfile::TempDir,
}

/// Quick enough for tests that wait for a deadline, slow enough for a machine
/// that does much else.
pub const TIMING: Timing = Timing {
    read: Duration::from_millis(900),
    write: Duration::from_millis(900),
    show: Duration::from_millis(200),
    probe: Duration::from_secs(2),
    turn: Duration::from_secs(20),
    tool: Duration::from_secs(20),
    late: Duration::from_millis(200),
};

impl Simulated {
    /// The built-in host; its Radeon may be given away whole.
    pub fn builtin() -> Self {
        Self::builtin_with(TIMING)
    }

    /// The same, with an engine that waits that long for the kernel.
    pub fn builtin_with(timing: Timing) -> Self {
        let config = "[passthrough]\nallow = ['0000:81:00.0', '0000:02:00.0']\n";
        Self::start(&HostSpec::builtin().unwrap(), config, timing)
    }

    /// A host with the text of a `host.toml`.
    pub fn on(spec: &HostSpec, config: &str) -> Self {
        Self::start(spec, config, TIMING)
    }

    /// A described host with the text of a `host.toml`.
    pub fn described(host: &str, config: &str) -> Self {
        Self::start(&HostSpec::parse(host, "host.toml").unwrap(), config, TIMING)
    }

    fn start(spec: &HostSpec, config: &str, timing: Timing) -> Self {
        let kernel = SimKernel::new(spec).unwrap();
        let config = Config::parse(config, "host.toml").unwrap();
        let run_dir = tempfile::tempdir().unwrap();
        let engine = engine_on(Arc::new(kernel.clone()), &kernel, &config, run_dir.path(), timing);
        Self { kernel, engine, config, timing, run_dir }
    }

    /// Another engine on the same kernel and claims, as after a restart.
    pub fn restart(&mut self) {
        let kernel = Arc::new(self.kernel.clone());
        self.engine =
            engine_on(kernel, &self.kernel, &self.config, self.run_dir.path(), self.timing);
    }

    /// The folder of the engine's claims.
    pub fn run_dir(&self) -> &std::path::Path {
        self.run_dir.path()
    }

    /// Creates a vGPU.
    ///
    /// # Errors
    /// The engine's.
    pub fn create(&self, profile: &str) -> Result<uuid::Uuid, Error> {
        let request = CreateRequest { profile: profile.into(), ..CreateRequest::default() };
        self.engine.create(&request, &Control::default()).map(|created| created.uuid)
    }

    /// Removes a vGPU.
    ///
    /// # Errors
    /// The engine's.
    pub fn remove(&self, uuid: uuid::Uuid) -> Result<(), Error> {
        self.engine.remove(uuid, RemoveOptions::default(), &Control::default())
    }

    /// Sets a GPU's VF count.
    ///
    /// # Errors
    /// The engine's.
    pub fn set_vfs(&self, gpu: &str, count: u32) -> Result<(), Error> {
        self.engine.set_vf_count(&gpu.parse().unwrap(), count, &Control::default())
    }

    /// Writes an attribute, as somebody else.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self, path: &str, value: &str) -> Result<(), Errno> {
        self.kernel.write(&SysPath::new(path).unwrap(), value)
    }

    /// The vGPU of that UUID in the latest picture.
    pub fn vgpu(&self, uuid: uuid::Uuid) -> Option<Vgpu> {
        self.engine.snapshot().vgpu(uuid).map(|vgpu| (**vgpu).clone())
    }

    /// The picture in words, which two engines can be compared by.
    pub fn picture(&self) -> String {
        let snapshot = self.engine.snapshot();
        let gpus = snapshot.gpus().map(|gpu| format!("{gpu:?}\n"));
        gpus.chain(snapshot.vgpus().map(|vgpu| format!("{vgpu:?}\n"))).collect()
    }
}

impl Drop for Simulated {
    /// Nothing that the engine does may read what does harm.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.kernel.harm_done(), [""; 0], "harmful attributes were read");
        }
    }
}

/// An engine on a simulated host, through whichever kernel it is spoken to.
///
/// # Panics
/// When it does not start.
pub fn engine_on<K: Kernel>(
    kernel: Arc<K>,
    simulation: &SimKernel,
    config: &Config,
    run_dir: &std::path::Path,
    timing: Timing,
) -> Arc<Engine> {
    let engine = Engine::start(Setup {
        executor: Arc::new(Lanes::new(kernel)),
        config: config.clone(),
        run_dir: run_dir.into(),
        module_aliases: simulation.module_aliases().into(),
        boot_id: simulation.boot_id().into(),
        timing,
    })
    .unwrap();
    let listener = Arc::downgrade(&engine);
    simulation.on_settled_event(Box::new(move |event| {
        if let Some(engine) = listener.upgrade() {
            engine.observe(event);
        }
    }));
    engine
}
