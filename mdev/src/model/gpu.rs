//! GPUs and their functions.

use std::fmt;

use uuid::Uuid;

use super::{Framework, GpuId, PciAddress, Profile};
use crate::room::Room;

/// A physical device that can be divided, or a virtual mdev parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its PCI address or parent name.
    pub id: GpuId,
    /// The maker in words; the vendor id in hexadecimal when unknown.
    pub vendor: String,
    /// The model in words; `vvvv:dddd` when unknown.
    pub model: String,
    /// PCI vendor and device ids, `None` for a virtual parent.
    pub pci_ids: Option<(u16, u16)>,
    /// The bound driver.
    pub driver: Option<String>,
    /// The NUMA node, `None` when the kernel does not know (`-1`).
    pub numa_node: Option<u32>,
    /// The IOMMU group, `None` without an IOMMU.
    pub iommu_group: Option<u32>,
    /// How it is divided.
    pub framework: Framework,
    /// Whether its facts are fresh and it can be used.
    pub state: GpuState,
    /// The most VFs that the hardware has (`sriov_totalvfs`).
    pub vf_total: u32,
    /// The VFs that exist now (counted from their links).
    pub vf_count: u32,
    /// What it offers, sorted by id.
    pub profiles: Vec<Profile>,
    /// What it still takes, its kinds in the order of the profiles.
    pub room: Room,
    /// Its VFs, by number.
    pub functions: Vec<Function>,
    /// What is wrong with it.
    pub problems: Vec<Problem>,
    /// Its MIG mode and GPU instances, where it has MIG and that is known.
    pub mig: Option<MigState>,
    /// Whether vGPUs of several sizes may lie side by side, where that can be
    /// chosen and is known.
    pub heterogeneous: Option<bool>,
}

/// NVIDIA's MIG on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigState {
    /// Whether it is on.
    pub current: bool,
    /// Whether it is to be on after the GPU's next reset.
    pub pending: bool,
    /// The GPU instances: number and shape (`3g.20gb`).
    pub instances: Vec<(u32, String)>,
}

impl Gpu {
    /// The profile that people call `text`; several can share a name.
    pub fn profiles_called<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a Profile> {
        self.profiles.iter().filter(move |profile| profile.is_called(text))
    }
}

/// Whether a GPU's facts can be trusted and it can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GpuState {
    /// Its facts are fresh.
    Ready,
    /// The kernel hangs on it: its facts are the last ones known.
    Stale,
}

impl GpuState {
    /// The word used on the bus.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Stale => "stale",
        }
    }
}

/// A virtual function of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its PCI address.
    pub address: PciAddress,
    /// The bound driver.
    pub driver: Option<String>,
    /// What it is used for.
    pub state: FunctionState,
    /// The vGPU that it carries.
    pub vgpu: Option<Uuid>,
}

/// What a function is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FunctionState {
    /// Unbound: it can carry a vGPU.
    Free,
    /// It carries a vGPU, ours or someone else's.
    Vgpu,
    /// Bound to a driver of the host: never taken.
    UsedByHost,
    /// The kernel has not linked it yet, or not any more.
    Changing,
}

impl FunctionState {
    /// The word used on the bus.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Vgpu => "vgpu",
            Self::UsedByHost => "used-by-host",
            Self::Changing => "changing",
        }
    }
}

/// Something that is wrong with a GPU, with its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// A stable code for programs.
    pub code: &'static str,
    /// The finding and the remedy, for people.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.text)
    }
}
