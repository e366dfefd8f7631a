//! Profiles: the kinds of vGPU that a GPU offers.

use std::fmt;

use super::{Framework, TypeId};

/// A kind of vGPU that a GPU offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The kernel's type id, such as `nvidia-558`; `<model>-vf` for a plain VF
    /// and `<model>-full` for a whole GPU.
    pub id: TypeId,
    /// The driver's full name, such as `NVIDIA A40-2Q`; the id where a driver
    /// gives none.
    pub name: String,
    /// What people write: `a40-2q`, `mtty-1`, `mi300x-vf`.
    pub short_name: String,
    /// The framework that makes vGPUs of this profile.
    pub framework: Framework,
    /// The driver's description, empty where there is none.
    pub description: String,
    /// The kind of device that the guest sees (`device_api`): `vfio-pci`.
    pub device_api: String,
    /// Framebuffer in bytes, 0 where the driver does not say.
    pub framebuffer: u64,
    /// How many fit an empty GPU, 0 where nobody says.
    pub total: u32,
    /// How many can be created now, as the kernel last said.
    pub available: u32,
    /// Why `available` is 0; `None` when it is not.
    pub reason: Option<Reason>,
}

impl Profile {
    /// Whether people mean this profile by `text`: its id, full name or short
    /// name.
    pub fn is_called(&self, text: &str) -> bool {
        self.id.as_str() == text || self.name == text || self.short_name.eq_ignore_ascii_case(text)
    }

    /// The stable reason code, `ok` when some are available.
    pub fn reason_code(&self) -> &'static str {
        self.reason.as_ref().map_or("ok", |reason| reason.code.as_str())
    }
}

/// Why a profile has nothing available: a stable code and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// For programs.
    pub code: ReasonCode,
    /// For people: the cause and the remedy.
    pub text: String,
}

/// The stable codes of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReasonCode {
    /// Every instance is taken.
    Full,
    /// vGPUs of another size are on the GPU.
    LockedToSize,
    /// Every virtual function is taken.
    NoFreeFunction,
    /// No virtual functions are enabled.
    NoFunctionsEnabled,
    /// The host's own drivers use the functions or the device.
    UsedByHost,
    /// The host has no IOMMU, or it is off.
    IommuOff,
    /// The VFIO driver is not loaded.
    VfioDriverMissing,
    /// The IOMMU group has a member that is not ours.
    GroupNotViable,
    /// A whole GPU is not on offer while it is divided.
    Divided,
    /// A function is not on offer while the whole GPU is passed through.
    PassedThrough,
    /// The GPU's driver is missing.
    DriverMissing,
    /// The kernel hangs on this GPU; its facts are old.
    Stuck,
    /// MIG is on, and the type is time-sliced.
    MigOn,
    /// MIG is off, and the type is MIG-backed.
    MigOff,
    /// No GPU instance of the shape that the type needs.
    NoGpuInstance,
    /// The driver lists no type at all.
    NoTypes,
    /// Too little of the graphics aperture is left.
    Aperture,
}

impl ReasonCode {
    /// The code used on the bus.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::LockedToSize => "locked-to-size",
            Self::NoFreeFunction => "no-free-function",
            Self::NoFunctionsEnabled => "no-functions-enabled",
            Self::UsedByHost => "used-by-host",
            Self::IommuOff => "iommu-off",
            Self::VfioDriverMissing => "vfio-driver-missing",
            Self::GroupNotViable => "group-not-viable",
            Self::Divided => "divided",
            Self::PassedThrough => "passed-through",
            Self::DriverMissing => "driver-missing",
            Self::Stuck => "stuck",
            Self::MigOn => "mig-on",
            Self::MigOff => "mig-off",
            Self::NoGpuInstance => "no-gpu-instance",
            Self::NoTypes => "no-types",
            Self::Aperture => "aperture",
        }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
