//! xe's SR-IOV as a PF: profiles by `sriov_admin/`, as Linux 7.0 has it
//! (`drivers/gpu/drm/xe/xe_sriov_pf_sysfs.c` and
//! `Documentation/ABI/testing/sysfs-driver-intel-xe-sriov`).

use nix::errno::Errno;
use serde::Deserialize;

use super::{
    intel::{Item, Place, Setting},
    number::{boolean, limited, unsigned},
};

/// What xe has for VFs.
///
/// ```toml
/// [pci.sriov.xe]
/// vram-mb = 24064
/// ```
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct XeSpec {
    /// The VRAM that the PF does not use, in MB.
    pub vram_mb: u32,
}

/// GUC_KLV_VF_CFG_EXEC_QUANTUM_MAX_VALUE, to which larger ones are cut.
const LONGEST_QUANTUM: u32 = 100_000;
/// GUC_KLV_VF_CFG_PREEMPT_TIMEOUT_MAX_VALUE, likewise.
const LONGEST_TIMEOUT: u32 = 100_000_000;
/// What a quota of VRAM is rounded up to (pf_get_lmem_alignment).
const VRAM_UNIT: u64 = 2 << 20;
/// What the PF keeps when it divides its VRAM (pf_get_min_spare_lmem).
const VRAM_SPARE: u64 = 128 << 20;
/// By their numbers.
const PRIORITIES: [&str; 3] = ["low", "normal", "high"];

/// A PF and its VFs.
pub(super) struct Xe {
    vram: u64,
    /// The PF, and each VF that there can be.
    functions: Vec<Profile>,
    enabled: u16,
}

#[derive(Default, Clone)]
struct Profile {
    exec_quantum: u32,
    preempt_timeout: u32,
    priority: usize,
    vram: u64,
}

/// The priorities that a function can have: the highest is the PF's alone
/// (sched_priority_high_allowed).
fn priorities(function: Option<u16>) -> impl Iterator<Item = &'static str> {
    PRIORITIES.into_iter().take(if function == Some(0) { 3 } else { 2 })
}

impl Xe {
    pub(super) fn new(spec: XeSpec, vfs: u16) -> Self {
        Self {
            vram: u64::from(spec.vram_mb) << 20,
            functions: vec![Profile::default(); usize::from(vfs) + 1],
            enabled: 0,
        }
    }

    pub(super) fn attrs(place: Place) -> Vec<Setting> {
        let times = |mode| [Item::ExecQuantum.with(mode), Item::PreemptTimeout.with(mode)];
        let with = |mode, more: &[Setting]| times(mode).into_iter().chain(more.to_vec()).collect();
        match place {
            Place::Bulk => {
                with(0o200, &[Item::SchedPriority.with(0o200), Item::VramQuota.with(0o200)])
            }
            Place::Settings(0) => with(0o644, &[Item::SchedPriority.with(0o644)]),
            // The firmware changes the priority of all VFs together.
            Place::Settings(_) => {
                with(0o644, &[Item::SchedPriority.with(0o444), Item::VramQuota.with(0o644)])
            }
            Place::Function(id) if id > 0 => vec![Item::Stop.with(0o200)],
            _ => Vec::new(),
        }
    }

    pub(super) fn show(&self, function: Option<u16>, item: Item) -> Result<String, Errno> {
        let id = usize::from(function.ok_or(Errno::EPERM)?);
        let profile = self.functions.get(id).ok_or(Errno::ENODEV)?;
        Ok(match item {
            Item::ExecQuantum => format!("{}\n", profile.exec_quantum),
            Item::PreemptTimeout => format!("{}\n", profile.preempt_timeout),
            Item::VramQuota => format!("{}\n", profile.vram),
            Item::SchedPriority => {
                let shown = priorities(function).enumerate().map(|(number, name)| {
                    if number == profile.priority { format!("[{name}]") } else { name.into() }
                });
                format!("{}\n", shown.collect::<Vec<_>>().join(" "))
            }
            _ => return Err(Errno::EPERM),
        })
    }

    /// A write for one function, or for all in `.bulk_profile`.
    pub(super) fn store(
        &mut self,
        function: Option<u16>,
        item: Item,
        value: &str,
    ) -> Result<(), Errno> {
        match item {
            Item::ExecQuantum => {
                let value = limited::<u32>(value)?.min(LONGEST_QUANTUM);
                self.of(function).for_each(|profile| profile.exec_quantum = value);
            }
            Item::PreemptTimeout => {
                let value = limited::<u32>(value)?.min(LONGEST_TIMEOUT);
                self.of(function).for_each(|profile| profile.preempt_timeout = value);
            }
            Item::SchedPriority => {
                let name = value.strip_suffix('\n').unwrap_or(value);
                let found = priorities(function).position(|known| known == name);
                let value = found.ok_or(Errno::EINVAL)?;
                self.of(function).for_each(|profile| profile.priority = value);
            }
            Item::VramQuota => {
                let wanted = unsigned(value)?;
                let vfs = match function {
                    Some(id) => usize::from(id)..usize::from(id) + 1,
                    None => 1..self.functions.len(),
                };
                for id in vfs {
                    self.set_vram(id, wanted)?;
                }
            }
            Item::Stop => {
                if boolean(value)? && function.is_none_or(|id| id > self.enabled) {
                    return Err(Errno::EIO);
                }
            }
            _ => return Err(Errno::EPERM),
        }
        Ok(())
    }

    /// One function, or all.
    fn of(&mut self, function: Option<u16>) -> impl Iterator<Item = &mut Profile> {
        let all = self.functions.iter_mut().enumerate();
        all.filter(move |(at, _)| function.is_none_or(|id| usize::from(id) == *at))
            .map(|(_, profile)| profile)
    }

    fn free(&self) -> u64 {
        let used: u64 = self.functions.iter().map(|profile| profile.vram).sum();
        self.vram.saturating_sub(used)
    }

    /// The old quota is given back first (pf_provision_vf_lmem), so a refusal
    /// leaves none; it is ENOMEM, as ttm_bo_validate says.
    fn set_vram(&mut self, id: usize, wanted: u64) -> Result<(), Errno> {
        let size = wanted.checked_next_multiple_of(VRAM_UNIT).ok_or(Errno::ENOMEM)?;
        self.functions.get_mut(id).ok_or(Errno::ENODEV)?.vram = 0;
        if size > self.free() {
            return Err(Errno::ENOMEM);
        }
        self.functions.get_mut(id).ok_or(Errno::ENODEV)?.vram = size;
        Ok(())
    }

    /// pf_estimate_fair_lmem, unless the administrator gave VRAM.
    pub(super) fn provision(&mut self, count: u16) -> Result<(), Errno> {
        if self.functions.iter().all(|profile| profile.vram == 0) {
            let available = self.free().saturating_sub(VRAM_SPARE);
            let fair = available.checked_div(count.into()).unwrap_or(0);
            let power = fair.checked_ilog2().map_or(0, |exponent| 1 << exponent);
            if power < VRAM_UNIT {
                return Err(Errno::ENOSPC);
            }
            for id in 1..=usize::from(count) {
                self.set_vram(id, power)?;
            }
        }
        self.enabled = count;
        Ok(())
    }

    /// xe_gt_sriov_pf_config_release of each VF; a priority belongs to all and
    /// stays.
    pub(super) fn release(&mut self) {
        self.enabled = 0;
        for profile in self.functions.iter_mut().skip(1) {
            *profile = Profile { priority: profile.priority, ..Profile::default() };
        }
    }
}
