//! The engine: the one object that the daemon and the tests talk to.

use std::{path::PathBuf, sync::Arc};

use uuid::Uuid;

use crate::{
    config::Config,
    error::{Error, ErrorKind, Result},
    model::{Change, GpuId, Holder, InUse, Snapshot},
    request::{Control, Created, CreateRequest, OpenedDevice, RemoveOptions},
    sys::{Executor, KernelEvent, ProbeReport},
};

/// What the engine needs to start.
pub struct Setup {
    /// Runs its operations.
    pub executor: Arc<dyn Executor>,
    /// What the administrator decided.
    pub config: Config,
    /// Where the claims are kept: `/run/vgpu-host`.
    pub run_dir: PathBuf,
    /// The text of `/lib/modules/<release>/modules.alias`, empty when there is
    /// none: names the VFIO variant drivers.
    pub module_aliases: String,
    /// The kernel's boot id: the claims of another boot are void.
    pub boot_id: String,
}

/// What to look at again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hint {
    /// Everything.
    All,
    /// One GPU.
    Gpu(GpuId),
    /// One mdev of a GPU.
    Mdev(GpuId, Uuid),
}

/// Discovers, plans, creates and removes. All methods may block; reading the
/// snapshot never does.
pub struct Engine {
    _setup: Setup,
}

impl Engine {
    /// Scans the host and starts.
    ///
    /// # Errors
    /// When the host cannot be enumerated or the claims cannot be read.
    pub fn start(setup: Setup) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { _setup: setup }))
    }

    /// The latest picture.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::default()
    }

    /// Calls `listener` with every change from now on, in order, on the thread
    /// that published it: it must be quick and must not call the engine.
    pub fn subscribe(&self, listener: impl Fn(&Change) + Send + Sync + 'static) {
        let _ = listener;
    }

    /// Takes note of a uevent; the rescan follows on a thread of the engine.
    pub fn observe(&self, event: &KernelEvent) {
        let _ = event;
    }

    /// Looks again at what the hint names, on a thread of the engine.
    pub fn hint(&self, hint: Hint) {
        let _ = hint;
    }

    /// Looks at everything again and returns when the picture is published.
    ///
    /// # Errors
    /// When the host cannot be enumerated.
    pub fn rescan(&self) -> Result<()> {
        todo_error()
    }

    /// Makes a vGPU. The same UUID and profile again is no error.
    ///
    /// # Errors
    /// Says what was tried, the cause and the remedy; all is undone.
    pub fn create(&self, request: &CreateRequest, control: &Control) -> Result<Created> {
        let _ = (request, control);
        todo_error()
    }

    /// Removes a vGPU of ours.
    ///
    /// # Errors
    /// When it is foreign, held or the kernel refuses.
    pub fn remove(&self, uuid: Uuid, options: RemoveOptions, control: &Control) -> Result<()> {
        let _ = (uuid, options, control);
        todo_error()
    }

    /// Sets how many VFs a GPU has.
    ///
    /// # Errors
    /// When VFs are in use, the GPU has none, or the kernel refuses or does less.
    pub fn set_vf_count(&self, gpu: &GpuId, count: u32, control: &Control) -> Result<()> {
        let _ = (gpu, count, control);
        todo_error()
    }

    /// Opens a vGPU through VFIO, looks, resets if it can, and closes.
    ///
    /// # Errors
    /// When it is held or VFIO refuses.
    pub fn probe(&self, uuid: Uuid) -> Result<ProbeReport> {
        let _ = uuid;
        todo_error()
    }

    /// Opens a vGPU for a VMM: its cdev with `/dev/iommu`, or, only where
    /// `allow_group`, its group.
    ///
    /// # Errors
    /// NotSupported where there are only groups and they were not asked for.
    pub fn open_device(&self, uuid: Uuid, allow_group: bool) -> Result<OpenedDevice> {
        let _ = (uuid, allow_group);
        todo_error()
    }

    /// The processes that hold a vGPU.
    ///
    /// # Errors
    /// When there is no such vGPU or `/proc` cannot be read.
    pub fn holders(&self, uuid: Uuid) -> Result<Vec<Holder>> {
        let _ = uuid;
        todo_error()
    }

    /// Whether a vGPU was in use when somebody last looked.
    pub fn in_use(&self, uuid: Uuid) -> InUse {
        let _ = uuid;
        InUse::Unknown
    }

    /// The vGPUs that a process holds.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn held_by(&self, pid: u32) -> Result<Vec<Uuid>> {
        let _ = pid;
        todo_error()
    }

    /// Why a profile of a GPU is available or not, in words.
    ///
    /// # Errors
    /// When there is no such GPU or profile.
    pub fn explain(&self, gpu: &GpuId, profile: &str) -> Result<String> {
        let _ = (gpu, profile);
        todo_error()
    }
}

fn todo_error<T>() -> Result<T> {
    Err(Error::new(ErrorKind::NotSupported, "not-yet", "doing this", "the engine is being written"))
}
