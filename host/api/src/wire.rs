//! The structures that travel over the bus, in the order of their fields.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use zbus::Type;

/// One GPU of `ListGpus`: `(ssssssuuu)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct GpuEntry<'a> {
    /// Address or parent name.
    pub id: Cow<'a, str>,
    /// The maker.
    pub vendor: Cow<'a, str>,
    /// The model.
    pub model: Cow<'a, str>,
    /// `mdev`, `sriov` or `passthrough`.
    pub framework: Cow<'a, str>,
    /// The bound driver, empty without one.
    pub driver: Cow<'a, str>,
    /// `ready` or `stale`.
    pub state: Cow<'a, str>,
    /// VFs enabled.
    pub vf_count: u32,
    /// VFs at most.
    pub vf_total: u32,
    /// How many vGPUs it has.
    pub vgpus: u32,
}

/// One profile of `ListProfiles`: `(ssssstuus)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct ProfileEntry<'a> {
    /// The GPU that offers it.
    pub gpu: Cow<'a, str>,
    /// The kernel's type id.
    pub id: Cow<'a, str>,
    /// Full name.
    pub name: Cow<'a, str>,
    /// Short name.
    pub short_name: Cow<'a, str>,
    /// `mdev`, `sriov` or `passthrough`.
    pub framework: Cow<'a, str>,
    /// Framebuffer in bytes, 0 when nobody says.
    pub framebuffer: u64,
    /// How many fit an empty GPU, 0 when nobody says.
    pub total: u32,
    /// How many can be created now.
    pub available: u32,
    /// Why none can be; `ok` when some can.
    pub reason: Cow<'a, str>,
}

/// Where `PlanVgpus` would place one vGPU: `(sssas)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct ChoiceEntry<'a> {
    /// Its profile's short name.
    pub profile: Cow<'a, str>,
    /// The GPU.
    pub gpu: Cow<'a, str>,
    /// The VF that would carry it, empty where it takes none.
    pub function: Cow<'a, str>,
    /// What making it would do, in words.
    pub steps: Vec<Cow<'a, str>>,
}

/// What a GPU would have left after a plan: `(ssuu)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct RemainingEntry<'a> {
    /// The GPU.
    pub gpu: Cow<'a, str>,
    /// A profile's short name.
    pub profile: Cow<'a, str>,
    /// How many are available now.
    pub now: u32,
    /// How many would be afterwards.
    pub afterwards: u32,
}

/// One vGPU of `ListVgpus`: `(sssssuu)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct VgpuEntry<'a> {
    /// UUID.
    pub uuid: Cow<'a, str>,
    /// Name, empty without one.
    pub name: Cow<'a, str>,
    /// Short name of its profile, empty while the kernel does not say.
    pub profile: Cow<'a, str>,
    /// `creating`, `active`, `removing` or `broken`.
    pub state: Cow<'a, str>,
    /// The GPU.
    pub gpu: Cow<'a, str>,
    /// The owner's uid.
    pub owner_uid: u32,
    /// [`flag`]s.
    pub flags: u32,
}

/// Flags of a [`VgpuEntry`].
pub mod flag {
    /// Made or adopted by us.
    pub const MANAGED: u32 = 1;
}

/// A process that has a vGPU's node open, of `GetHolders`: `(uss)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct HolderEntry {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub command: String,
    /// The node as the process sees it.
    pub node: String,
}

/// One profile of the property `Profiles`, below its type id: `(sstu)`.
pub type ProfileFacts = (String, String, u64, u32);

/// One region of a `Probe`: index, size, 1 when readable, flags.
pub type RegionFacts = (u32, u64, u64, u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_the_contract() {
        assert_eq!(GpuEntry::SIGNATURE, "(ssssssuuu)");
        assert_eq!(ProfileEntry::SIGNATURE, "(ssssstuus)");
        assert_eq!(VgpuEntry::SIGNATURE, "(sssssuu)");
        assert_eq!(HolderEntry::SIGNATURE, "(uss)");
        assert_eq!(ProfileFacts::SIGNATURE, "(sstu)");
        assert_eq!(RegionFacts::SIGNATURE, "(uttu)");
    }
}
