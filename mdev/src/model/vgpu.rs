//! vGPUs, their nodes and holders.

use uuid::Uuid;

use super::{Framework, GpuId, PciAddress, TypeId, VgpuName};

/// One vGPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vgpu {
    /// Its identity: the mdev's own UUID, ours for a VF, or one derived from
    /// GPU, VF and type for a foreign VF.
    pub uuid: Uuid,
    /// The name that its creator gave it.
    pub name: Option<VgpuName>,
    /// The GPU that it is part of.
    pub gpu: GpuId,
    /// The id of its profile; `None` while the kernel no longer says.
    pub profile: Option<TypeId>,
    /// The framework that made it.
    pub framework: Framework,
    /// What it is doing.
    pub state: VgpuState,
    /// The PCI functions that it consists of: one VF, or a whole GPU's
    /// functions; empty for an mdev.
    pub addresses: Vec<PciAddress>,
    /// The device name below its parent: the UUID of an mdev, else the first
    /// address.
    pub parent: String,
    /// The IOMMU group, `None` while there is none.
    pub iommu_group: Option<u32>,
    /// The VFIO nodes by which a VMM opens it.
    pub nodes: Vec<Node>,
    /// The user who owns it; root (0) for foreign ones.
    pub owner_uid: u32,
    /// Made or adopted by us; foreign ones are never touched.
    pub managed: bool,
    /// The inode of its directory: new at each re-creation.
    pub inode: u64,
    /// What NVIDIA's driver tells of it beyond that.
    pub nvidia: Option<NvidiaVgpu>,
}

/// What NVIDIA's driver tells of a vGPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NvidiaVgpu {
    /// The MIG GPU instance that it is in (`gpu_instance_id`).
    pub gpu_instance: Option<u32>,
    /// Where in the GPU's framebuffer it lies, in the driver's count
    /// (`placement_id`).
    pub placement: Option<u32>,
    /// Its parameters (`vgpu_params`), empty for none.
    pub params: String,
}

/// What a vGPU is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VgpuState {
    /// Being made: the kernel has not finished, or we have not.
    Creating,
    /// Usable.
    Active,
    /// Being removed; it still takes its place.
    Removing,
    /// It exists but cannot be used: no VFIO driver is bound to it.
    Broken,
}

impl VgpuState {
    /// The word used on the bus.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Active => "active",
            Self::Removing => "removing",
            Self::Broken => "broken",
        }
    }
}

/// A VFIO node, relative to `/dev`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Which of VFIO's two interfaces it belongs to.
    pub kind: NodeKind,
    /// Its path below `/dev`: `vfio/12` or `vfio/devices/vfio3`.
    pub path: String,
}

/// VFIO's two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// The legacy group node: opens once.
    Group,
    /// The device's own node, for iommufd.
    Cdev,
}

/// A process that has a vGPU's node open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id in our namespace.
    pub pid: u32,
    /// Its short command name (`/proc/<pid>/comm`).
    pub command: String,
    /// The node that was asked for, below `/dev`.
    pub device: String,
    /// The node as that process sees it: a hint, since guests have a /dev of
    /// their own.
    pub node: String,
}

/// Whether a vGPU is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InUse {
    /// A process holds it.
    Yes,
    /// Nobody holds it.
    No,
    /// Nobody has looked since it may have changed.
    Unknown,
}

impl InUse {
    /// The word used on the bus.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}
