//! The folders by which Intel's drivers divide a PF among its VFs: `prelim_iov/`
//! of [i915](super::i915) below the card, `sriov_admin/` of [xe](super::xe) below
//! the function. Both have one folder for the PF and one for each VF that there
//! can be, enabled or not.

use std::borrow::Cow;

use nix::errno::Errno;

use crate::model::PciAddress;

use super::{
    core::Core,
    i915::{I915, Resource},
    spec::SriovSpec,
    state::{Role, State},
    tree::{Dir, Entry},
    xe::Xe,
};

/// What a PF's driver has given to its VFs.
pub(super) enum Intel {
    I915(I915),
    Xe(Xe),
}

/// A folder. Functions are numbered as the drivers do: the PF is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// `prelim_iov/`, `sriov_admin/`
    Home,
    /// `.bulk_profile/` (xe)
    Bulk,
    /// `pf/`, `vf1/`
    Function(u16),
    /// `gt/` (i915), `profile/` (xe) of a function
    Settings(u16),
    /// `pf/gt/available/` (i915)
    Available,
    /// `pf/gt/policies/` (i915)
    Policies,
}

/// An attribute, with the permissions that it has in its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Setting {
    pub(super) item: Item,
    pub(super) mode: u16,
}

/// What an attribute is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Item {
    // Both drivers.
    ExecQuantum,
    PreemptTimeout,
    SchedPriority,
    // i915.
    Mode,
    AutoProvisioning,
    Id,
    Control,
    Quota(Resource),
    Spare(Resource),
    Free(Resource),
    MaxQuota(Resource),
    SchedIfIdle,
    EngineReset,
    SamplePeriod,
    // xe.
    VramQuota,
    Stop,
}

impl Item {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ExecQuantum => "exec_quantum_ms",
            Self::PreemptTimeout => "preempt_timeout_us",
            Self::SchedPriority => "sched_priority",
            Self::Mode => "mode",
            Self::AutoProvisioning => "auto_provisioning",
            Self::Id => "id",
            Self::Control => "control",
            Self::Quota(resource) => resource.names().quota,
            Self::Spare(resource) => resource.names().spare,
            Self::Free(resource) => resource.names().free,
            Self::MaxQuota(resource) => resource.names().max_quota,
            Self::SchedIfIdle => "sched_if_idle",
            Self::EngineReset => "engine_reset",
            Self::SamplePeriod => "sample_period_ms",
            Self::VramQuota => "vram_quota",
            Self::Stop => "stop",
        }
    }

    pub(super) const fn with(self, mode: u16) -> Setting {
        Setting { item: self, mode }
    }
}

impl Intel {
    /// What the driver begins with.
    pub(super) fn new(sriov: &SriovSpec) -> Option<Self> {
        let i915 = sriov.i915.map(|spec| Self::I915(I915::new(spec, sriov.total_vfs)));
        i915.or(sriov.xe.map(|spec| Self::Xe(Xe::new(spec, sriov.total_vfs))))
    }

    /// Its folder's name, and where that lies.
    pub(super) fn home(&self, pf: PciAddress) -> (Dir, &'static str) {
        match self {
            Self::I915(_) => (Dir::Card(pf), "prelim_iov"),
            Self::Xe(_) => (Dir::Pci(pf), "sriov_admin"),
        }
    }

    fn settings_name(&self) -> &'static str {
        match self {
            // `gt0/`, `gt1/` on GPUs with several tiles only.
            Self::I915(_) => "gt",
            Self::Xe(_) => "profile",
        }
    }

    /// Gives to the VFs that are to be enabled what they lack.
    fn provision(&mut self, count: u16) -> Result<(), Errno> {
        match self {
            Self::I915(driver) => driver.provision(count),
            Self::Xe(driver) => driver.provision(count),
        }
    }

    /// Takes back what disabled VFs do not keep.
    fn release(&mut self) {
        match self {
            Self::I915(driver) => driver.release(),
            Self::Xe(driver) => driver.release(),
        }
    }
}

impl State {
    fn intel(&self, pf: PciAddress) -> Option<&Intel> {
        self.pci.get(&pf)?.intel.as_deref()
    }

    /// The attributes of a folder.
    pub(super) fn intel_attrs(&self, pf: PciAddress, place: Place) -> Vec<Setting> {
        match self.intel(pf) {
            Some(Intel::I915(_)) => I915::attrs(place),
            Some(Intel::Xe(_)) => Xe::attrs(place),
            None => Vec::new(),
        }
    }

    pub(super) fn show_intel(
        &self,
        pf: PciAddress,
        place: Place,
        item: Item,
    ) -> Result<String, Errno> {
        match self.intel(pf).ok_or(Errno::ENODEV)? {
            Intel::I915(driver) => driver.show(place.function(), item),
            Intel::Xe(driver) => driver.show(place.function(), item),
        }
    }

    /// The folder itself, where it lies in `dir`.
    pub(super) fn intel_home(&self, pf: PciAddress, dir: Dir) -> Vec<(Cow<'static, str>, Entry)> {
        let Some(intel) = self.intel(pf).filter(|intel| intel.home(pf).0 == dir) else {
            return Vec::new();
        };
        let home = Dir::Intel(pf, Place::Home);
        let mut found = vec![(Cow::Borrowed(intel.home(pf).1), Entry::Dir(home))];
        if matches!(intel, Intel::I915(_)) {
            found.push((Cow::Borrowed("iov"), Entry::Link(dir, home)));
        }
        found
    }

    /// What lies in a folder besides attributes.
    pub(super) fn intel_entries(
        &self,
        pf: PciAddress,
        place: Place,
    ) -> Vec<(Cow<'static, str>, Entry)> {
        let Some(intel) = self.intel(pf) else { return Vec::new() };
        let is_xe = matches!(intel, Intel::Xe(_));
        let below: Vec<Place> = match place {
            Place::Home => {
                let functions = (0..=self.total_vfs(pf)).map(Place::Function);
                functions.chain(is_xe.then_some(Place::Bulk)).collect()
            }
            Place::Function(id) => vec![Place::Settings(id)],
            Place::Settings(0) if !is_xe => vec![Place::Available, Place::Policies],
            _ => Vec::new(),
        };
        let mut found: Vec<_> = below
            .into_iter()
            .filter_map(|below| {
                let (_, name) = self.intel_above(pf, below)?;
                Some((name, Entry::Dir(Dir::Intel(pf, below))))
            })
            .collect();
        let from = Dir::Intel(pf, place);
        let device = match place {
            Place::Function(0) => Some(pf),
            Place::Function(id) => self.enabled_vf(pf, id),
            _ => None,
        };
        found.extend(device.map(|to| ("device".into(), Entry::Link(from, Dir::Pci(to)))));
        found
    }

    /// The folder above, and the name there.
    pub(super) fn intel_above(
        &self,
        pf: PciAddress,
        place: Place,
    ) -> Option<(Dir, Cow<'static, str>)> {
        let intel = self.intel(pf)?;
        let (up, name) = match place {
            Place::Home => {
                let (up, name) = intel.home(pf);
                return Some((up, name.into()));
            }
            Place::Bulk => (Place::Home, ".bulk_profile".into()),
            Place::Function(0) => (Place::Home, "pf".into()),
            Place::Function(id) => (Place::Home, format!("vf{id}").into()),
            Place::Settings(id) => (Place::Function(id), intel.settings_name().into()),
            Place::Available => (Place::Settings(0), "available".into()),
            Place::Policies => (Place::Settings(0), "policies".into()),
        };
        Some((Dir::Intel(pf, up), name))
    }

    fn total_vfs(&self, pf: PciAddress) -> u16 {
        match self.pci.get(&pf).map(|device| &device.role) {
            Some(Role::Pf(sriov)) => sriov.spec.total_vfs,
            _ => 0,
        }
    }

    /// A VF by its number, while it is enabled.
    fn enabled_vf(&self, pf: PciAddress, id: u16) -> Option<PciAddress> {
        let Role::Pf(sriov) = &self.pci.get(&pf)?.role else { return None };
        let index = id.checked_sub(1).filter(|index| *index < sriov.count)?;
        let vf = sriov.vf_address(pf, index)?;
        matches!(self.pci.get(&vf)?.role, Role::Vf { linked: true, .. }).then_some(vf)
    }

    /// Before a PF enables VFs.
    pub(super) fn provision(&mut self, pf: PciAddress, count: u16) -> Result<(), Errno> {
        match self.function_mut(pf)?.intel.as_deref_mut() {
            Some(intel) => intel.provision(count),
            None => Ok(()),
        }
    }

    /// After a PF has disabled its VFs.
    pub(super) fn unprovision(&mut self, pf: PciAddress) {
        if let Some(intel) = self.pci.get_mut(&pf).and_then(|device| device.intel.as_deref_mut()) {
            intel.release();
        }
    }
}

/// A write below the folder.
pub(super) fn store(
    core: &Core,
    pf: PciAddress,
    place: Place,
    item: Item,
    value: &str,
) -> Result<(), Errno> {
    let mut state = core.state();
    match state.function_mut(pf)?.intel.as_deref_mut().ok_or(Errno::ENODEV)? {
        Intel::I915(driver) => driver.store(place.function().unwrap_or(0), item, value),
        Intel::Xe(driver) => driver.store(place.function(), item, value),
    }
}

impl Place {
    /// The function that a folder is about.
    fn function(self) -> Option<u16> {
        match self {
            Self::Function(id) | Self::Settings(id) => Some(id),
            _ => None,
        }
    }
}
