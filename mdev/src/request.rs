//! What can be asked of the engine, and what it answers.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use uuid::Uuid;

use crate::{
    config::PoolName,
    model::{GpuId, PciAddress, VgpuName},
    placement::Policy,
    room::Shape,
};

/// A vGPU to be made.
#[derive(Debug, Clone, Default)]
pub struct CreateRequest {
    /// The profile: its id, full name or short name.
    pub profile: String,
    /// On this GPU; otherwise on one that is chosen.
    pub gpu: Option<GpuId>,
    /// Under this UUID; otherwise under a new one.
    pub uuid: Option<Uuid>,
    /// With this name.
    pub name: Option<VgpuName>,
    /// For this user; VFIO nodes become theirs when not root.
    pub owner_uid: u32,
    /// On this function alone.
    pub function: Option<PciAddress>,
    /// On a GPU of this NUMA node.
    pub numa_node: Option<u32>,
    /// On a GPU of this pool.
    pub pool: Option<PoolName>,
    /// Chosen by this rule; otherwise by that of `host.toml`.
    pub placement: Option<Policy>,
    /// Enable all VFs of a GPU where none is enabled.
    pub enable_vfs: bool,
}

/// Many vGPUs that are to be placed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlanRequest {
    /// The profiles, each with how many of it.
    pub wishes: Vec<(String, u32)>,
    /// On this GPU.
    pub gpu: Option<GpuId>,
    /// On GPUs of this NUMA node.
    pub numa_node: Option<u32>,
    /// On GPUs of this pool.
    pub pool: Option<PoolName>,
    /// Chosen by this rule; otherwise by that of `host.toml`.
    pub placement: Option<Policy>,
}

/// Where vGPUs would be placed; nothing is reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// One for each vGPU, in the order in which they are to be made: that of the
    /// wishes, or the largest first where otherwise they would not all fit.
    pub choices: Vec<Choice>,
    /// What the GPUs would have available of each profile afterwards: GPU, short
    /// name, now, afterwards; only where it is less.
    pub remaining: Vec<(GpuId, String, u32, u32)>,
}

/// Where one vGPU would be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Its profile's short name.
    pub profile: String,
    /// The GPU.
    pub gpu: GpuId,
    /// The VF that would carry it; the kernel's answer may be another by then.
    pub function: Option<PciAddress>,
    /// What would be done, in words, in order.
    pub steps: Vec<String>,
}

/// How a GPU is to be divided; `None` leaves it as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Configure {
    /// How many VFs it has; with NVIDIA's driver all or none.
    pub functions: Option<u32>,
    /// MIG mode.
    pub mig: Option<bool>,
    /// The MIG GPU instances.
    pub instances: Option<Vec<Shape>>,
    /// Whether vGPUs of several sizes may lie side by side.
    pub heterogeneous: Option<bool>,
}

/// A vGPU that was made, or was there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Its UUID.
    pub uuid: Uuid,
    /// Whether it was made now; `false` when the same one existed.
    pub created: bool,
}

/// How a vGPU is to be removed.
#[derive(Debug, Clone, Copy, Default)]
pub struct RemoveOptions {
    /// Remove it although it is held: the kernel asks its holder to let go and
    /// waits, which can take for ever.
    pub force: bool,
}

/// A vGPU's device, opened for a VMM.
#[derive(Debug)]
pub struct OpenedDevice {
    /// The descriptors by name: `device` and `iommu`, or `group`.
    pub fds: Vec<(&'static str, OwnedFd)>,
    /// The device's own node or group node, below `/dev`.
    pub node: String,
}

/// Follows and cancels work that takes long.
#[derive(Debug, Clone, Default)]
pub struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    cancelled: AtomicBool,
    done: AtomicU32,
    steps: AtomicU32,
}

impl Control {
    /// Asks the work to stop before its next step and to undo what it did.
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether that was asked.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Relaxed)
    }

    /// How much is done, 0 to 1.
    pub fn progress(&self) -> f64 {
        let steps = self.shared.steps.load(Ordering::Relaxed);
        if steps == 0 {
            0.0
        } else {
            f64::from(self.shared.done.load(Ordering::Relaxed)) / f64::from(steps)
        }
    }

    pub(crate) fn set_progress(&self, done: usize, steps: usize) {
        self.shared.done.store(u32::try_from(done).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.shared.steps.store(u32::try_from(steps).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}
