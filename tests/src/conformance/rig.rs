//! What a case works with.

use std::{
    any::Any,
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Instant,
};

use nix::errno::Errno;
use tempfile::TempDir;
use uuid::Uuid;
use vgpu_mdev::{
    config::Config,
    engine::{Engine, Setup, Timing},
    error::Error,
    model::{GpuId, NodeKind, Profile, Snapshot, Vgpu},
    request::{Control, CreateRequest, RemoveOptions},
    sys::{Kernel, NodePath, ProbeTarget, ReadKind, SysPath, Value},
};

use super::{Held, Host, Recorder, picture};
use crate::watch;

/// The network card with 7 VFs.
pub const IGB: &str = "0000:01:00.0";
/// The disk controller with 4 VFs, which may be given away whole.
pub const NVME: &str = "0000:02:00.0";

/// How the engine is configured: the lab's devices are no GPUs by class.
pub const CONFIG: &str = r#"
[discovery]
add = ["8086:10c9", "class:0108"]

[passthrough]
allow = ["0000:02:00.0"]
"#;

/// What a case works with.
pub struct Rig {
    /// The kernel, spoken to directly.
    pub kernel: Arc<dyn Kernel>,
    /// The events.
    pub events: Recorder,
    host: Box<dyn Host>,
    run_dir: TempDir,
    listening: Mutex<Vec<Box<dyn Any + Send>>>,
    engines: Mutex<Vec<Weak<Engine>>>,
}

impl Rig {
    pub(super) fn new(host: Box<dyn Host>) -> Self {
        let events = Recorder::default();
        let recorder = events.clone();
        let listening = host.record(Box::new(move |event| recorder.record(event)));
        Self {
            kernel: host.kernel(),
            events,
            host,
            run_dir: tempfile::tempdir().unwrap(),
            listening: Mutex::new(vec![listening]),
            engines: Mutex::default(),
        }
    }

    /// Ends listening, so that nothing of the case is left, and gives the host
    /// back.
    pub(super) fn end(self) -> Box<dyn Host> {
        drop(self.listening);
        for engine in self.engines.into_inner().unwrap_or_else(PoisonError::into_inner) {
            // A worker may have it for a moment longer.
            let end = Instant::now() + watch::LIMIT;
            while engine.strong_count() > 0 {
                assert!(Instant::now() < end, "an engine lives on");
                std::thread::yield_now();
            }
        }
        self.host.settle();
        self.host
    }

    /// Starts an engine. Those of one case share their claims, one after the
    /// other, as a service that is started again.
    pub fn engine(&self) -> Arc<Engine> {
        let engine = Engine::start(Setup {
            executor: self.host.executor(),
            config: Config::parse(CONFIG, "host.toml").unwrap(),
            run_dir: self.run_dir.path().to_owned(),
            module_aliases: self.host.module_aliases(),
            boot_id: self.host.boot_id(),
            timing: Timing::default(),
        })
        .unwrap();
        let weak = Arc::downgrade(&engine);
        self.engines.lock().unwrap().push(weak.clone());
        let listening = self.host.listen(Box::new(move |event| {
            if let Some(engine) = weak.upgrade() {
                engine.observe(event);
            }
        }));
        self.listening.lock().unwrap().push(listening);
        engine
    }

    /// Whether VFIO devices have nodes of their own.
    pub fn has_cdevs(&self) -> bool {
        self.host.has_cdevs()
    }

    /// Makes another process hold a vGPU as a VMM does.
    pub fn hold(&self, vgpu: &Vgpu) -> Held {
        self.host.hold(&target(vgpu))
    }

    /// Makes another process open a node, and no more.
    pub fn hold_node(&self, path: &str) -> Held {
        self.host.hold_node(&NodePath::new(path).unwrap())
    }

    /// The user who owns a node.
    pub fn owner(&self, path: &str) -> Option<u32> {
        self.host.owner(&NodePath::new(path).unwrap())
    }

    /// Opens a node and closes it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(&self, path: &str) -> Result<(), Errno> {
        self.kernel.open_node(&NodePath::new(path).unwrap()).map(drop)
    }

    /// Writes an attribute.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self, path: impl Into<String>, value: &str) -> Result<(), Errno> {
        self.kernel.write(&SysPath::new(path).unwrap(), value)
    }

    /// The text of an attribute, without the new line.
    ///
    /// # Errors
    /// The kernel's.
    pub fn text(&self, path: impl AsRef<str>) -> Result<String, Errno> {
        match picture::read(&*self.kernel, path.as_ref(), ReadKind::Text)? {
            Value::Text(text) => Ok(text.trim_end_matches('\n').to_owned()),
            other => panic!("{other:?} is no text"),
        }
    }

    /// The last element of a link's target, where there is such a link.
    pub fn link(&self, path: impl AsRef<str>) -> Option<String> {
        match picture::read(&*self.kernel, path.as_ref(), ReadKind::Link) {
            Ok(Value::Link(name)) => Some(name),
            Err(Errno::ENOENT) => None,
            other => panic!("{other:?} is no link"),
        }
    }

    /// The names in a directory; none where there is no such directory.
    pub fn names(&self, path: impl AsRef<str>) -> BTreeSet<String> {
        match picture::read(&*self.kernel, path.as_ref(), ReadKind::Names) {
            Ok(Value::Names(names)) => names.into_iter().collect(),
            Err(Errno::ENOENT) => BTreeSet::new(),
            other => panic!("{other:?} are no names"),
        }
    }

    /// Whether a directory or link is there.
    pub fn exists(&self, path: impl AsRef<str>) -> bool {
        match picture::read(&*self.kernel, path.as_ref(), ReadKind::Inode) {
            Ok(_) => true,
            Err(Errno::ENOENT) => false,
            Err(errno) => panic!("{errno:?}"),
        }
    }

    /// Waits until the engine's picture is as `wanted`.
    ///
    /// # Panics
    /// When it does not come to that.
    pub fn wait_for(&self, engine: &Engine, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        watch::until(engine, wanted)
    }

    /// Returns when all events of what was done so far have been recorded.
    pub fn settle(&self) {
        self.host.settle();
        // One more event, behind all others.
        let mark = self.events.mark();
        self.write(format!("bus/pci/devices/{IGB}/uevent"), "change").unwrap();
        let is_ours = |devpath: &str| devpath.ends_with(IGB);
        self.events.wait(mark, |event| event.action == "change" && is_ours(&event.devpath));
    }
}

/// A GPU's id.
pub(super) fn gpu(text: &str) -> GpuId {
    text.parse().unwrap()
}

/// Makes a vGPU of a profile on a GPU.
///
/// # Panics
/// When it cannot be made.
pub(super) fn create(engine: &Engine, on: &str, profile: &str) -> Arc<Vgpu> {
    let request = request(on, profile);
    let created = engine.create(&request, &Control::default()).unwrap();
    assert!(created.created);
    vgpu(engine, created.uuid)
}

/// A request for a vGPU of a profile on a GPU.
pub(super) fn request(on: &str, profile: &str) -> CreateRequest {
    CreateRequest { profile: profile.into(), gpu: Some(gpu(on)), ..CreateRequest::default() }
}

/// Why a vGPU cannot be made.
///
/// # Panics
/// When it can.
pub(super) fn refused(engine: &Engine, request: &CreateRequest) -> Error {
    engine.create(request, &Control::default()).expect_err("it was made")
}

/// Removes a vGPU.
///
/// # Errors
/// The engine's.
pub(super) fn remove(engine: &Engine, uuid: Uuid) -> Result<(), Error> {
    engine.remove(uuid, RemoveOptions::default(), &Control::default())
}

/// Sets a GPU's VF count.
///
/// # Errors
/// The engine's.
pub(super) fn set_count(engine: &Engine, on: &str, count: u32) -> Result<(), Error> {
    engine.set_vf_count(&gpu(on), count, &Control::default())
}

/// A vGPU as the engine shows it.
///
/// # Panics
/// When it shows none.
pub(super) fn vgpu(engine: &Engine, uuid: Uuid) -> Arc<Vgpu> {
    engine.snapshot().vgpu(uuid).expect("the vGPU is in the picture").clone()
}

/// A profile of a GPU as the engine shows it.
///
/// # Panics
/// When it shows none.
pub(super) fn profile(engine: &Engine, on: &str, called: &str) -> Profile {
    let snapshot = engine.snapshot();
    let gpu = snapshot.gpu(&gpu(on)).expect("the GPU is in the picture");
    let found = gpu.profiles_called(called).next().cloned();
    found.unwrap_or_else(|| panic!("no {called} among {:#?}", gpu.profiles))
}

/// The node of a kind, where the vGPU has one.
pub(super) fn node(vgpu: &Vgpu, kind: NodeKind) -> Option<&str> {
    vgpu.nodes.iter().find(|node| node.kind == kind).map(|node| &*node.path)
}

/// What a VMM opens of a vGPU.
fn target(vgpu: &Vgpu) -> ProbeTarget {
    let device = match vgpu.addresses.first() {
        Some(address) => format!("bus/pci/devices/{address}"),
        None => format!("class/mdev_bus/{}/{}", vgpu.parent, vgpu.uuid),
    };
    let path = |kind| node(vgpu, kind).map(|path| NodePath::new(path).unwrap());
    ProbeTarget {
        device: SysPath::new(device).unwrap(),
        group: path(NodeKind::Group),
        cdev: path(NodeKind::Cdev),
    }
}
