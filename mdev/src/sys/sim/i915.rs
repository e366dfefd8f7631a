//! i915's SR-IOV as a PF: quotas by `prelim_iov/`, as the driver for Intel's data
//! center GPUs has it (`gt/iov/intel_iov_provisioning.c` and `i915_sriov.c` of
//! intel-gpu-i915-backports). Left out are `threshold/`, `state` and how ranges
//! that are given back fall apart.

use nix::errno::Errno;
use serde::Deserialize;

use super::{
    intel::{Item, Place, Setting},
    number::{boolean, limited, unsigned},
};

/// What i915 has for VFs.
///
/// ```toml
/// [pci.sriov.i915]
/// ggtt-mb = 4000
/// lmem-mb = 14848
/// ```
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct I915Spec {
    /// The global GTT that the PF does not use, in MB.
    pub ggtt_mb: u32,
    /// The local memory that the PF does not use, in MB.
    pub lmem_mb: u32,
}

/// What is divided among VFs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Resource {
    Ggtt,
    Contexts,
    Doorbells,
    Lmem,
}

const RESOURCES: [Resource; 4] =
    [Resource::Ggtt, Resource::Contexts, Resource::Doorbells, Resource::Lmem];

const MB: u64 = 1 << 20;
/// The size of the global GTT, whatever the PF uses of it.
const GGTT: u64 = 4 << 30;
/// GUC_MAX_CONTEXT_ID, which is one less than what is divided.
const CONTEXTS: u64 = 65_536;
/// GUC_NUM_DOORBELLS
const DOORBELLS: u64 = 256;

/// A PF and its VFs.
pub(super) struct I915 {
    /// What there is for VFs.
    total: Amounts,
    /// What the administrator keeps for the PF.
    spare: Amounts,
    /// The PF, and each VF that there can be.
    functions: Vec<Config>,
    /// What `auto_provisioning` reads.
    auto: bool,
    /// Whether the driver itself has given the quotas that are there.
    automatic: bool,
    sched_if_idle: bool,
    engine_reset: bool,
    sample_period: u32,
}

#[derive(Default, Clone)]
struct Config {
    quotas: Amounts,
    exec_quantum: u32,
    preempt_timeout: u32,
    sched_priority: u8,
}

/// How much of each resource.
#[derive(Default, Clone)]
struct Amounts {
    ggtt: u64,
    contexts: u64,
    doorbells: u64,
    lmem: u64,
}

/// What VFs have been given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Given {
    Nothing,
    /// Some VFs have all that they need, the others nothing.
    Enough,
    /// A VF has something, and lacks something else.
    Part,
}

/// The names of a resource's attributes.
pub(super) struct Names {
    pub(super) quota: &'static str,
    pub(super) spare: &'static str,
    pub(super) free: &'static str,
    pub(super) max_quota: &'static str,
}

impl Resource {
    pub(super) const fn names(self) -> Names {
        macro_rules! names {
            ($resource:literal) => {
                Names {
                    quota: concat!($resource, "_quota"),
                    spare: concat!($resource, "_spare"),
                    free: concat!($resource, "_free"),
                    max_quota: concat!($resource, "_max_quota"),
                }
            };
        }
        match self {
            Self::Ggtt => names!("ggtt"),
            Self::Contexts => names!("contexts"),
            Self::Doorbells => names!("doorbells"),
            Self::Lmem => names!("lmem"),
        }
    }

    /// Quotas are rounded up to it.
    const fn unit(self) -> u64 {
        match self {
            Self::Ggtt => 64 << 10,
            Self::Contexts => 128,
            Self::Doorbells => 1,
            Self::Lmem => 2 * MB,
        }
    }

    /// The least that the PF keeps.
    const fn least_spare(self) -> u64 {
        match self {
            Self::Ggtt => 64 * MB,
            Self::Contexts => 256,
            Self::Doorbells => 0,
            Self::Lmem => 128 * MB,
        }
    }

    fn parse(self, value: &str) -> Result<u64, Errno> {
        match self {
            Self::Ggtt | Self::Lmem => unsigned(value),
            Self::Contexts | Self::Doorbells => limited::<u16>(value).map(u64::from),
        }
    }

    /// An amount in whole units.
    const fn round_down(self, amount: u64) -> u64 {
        amount - amount % self.unit()
    }

    fn round_up(self, amount: u64) -> Result<u64, Errno> {
        amount.checked_next_multiple_of(self.unit()).ok_or(Errno::EOVERFLOW)
    }
}

impl Amounts {
    fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Ggtt => self.ggtt,
            Resource::Contexts => self.contexts,
            Resource::Doorbells => self.doorbells,
            Resource::Lmem => self.lmem,
        }
    }

    fn set(&mut self, resource: Resource, amount: u64) {
        match resource {
            Resource::Ggtt => self.ggtt = amount,
            Resource::Contexts => self.contexts = amount,
            Resource::Doorbells => self.doorbells = amount,
            Resource::Lmem => self.lmem = amount,
        }
    }

    /// As pf_validate_config finds it: doorbells are not needed.
    fn given(&self) -> Given {
        match (self.ggtt > 0, self.contexts > 0, self.lmem > 0, self.doorbells > 0) {
            (true, true, true, _) => Given::Enough,
            (false, false, false, false) => Given::Nothing,
            _ => Given::Part,
        }
    }
}

impl I915 {
    pub(super) fn new(spec: I915Spec, vfs: u16) -> Self {
        // pf_assign_ctxs_for_pf: the PF takes its share and what is left over.
        let shares = CONTEXTS / Resource::Contexts.unit();
        let vfs_shares = shares / (1 + u64::from(vfs)) * u64::from(vfs);
        let total = Amounts {
            ggtt: u64::from(spec.ggtt_mb) * MB,
            contexts: vfs_shares * Resource::Contexts.unit(),
            doorbells: DOORBELLS,
            lmem: u64::from(spec.lmem_mb) * MB,
        };
        Self {
            total,
            spare: Amounts::default(),
            functions: vec![Config::default(); usize::from(vfs) + 1],
            auto: true,
            automatic: false,
            sched_if_idle: false,
            engine_reset: false,
            sample_period: 0,
        }
    }

    pub(super) fn attrs(place: Place) -> Vec<Setting> {
        let each = |item: fn(Resource) -> Item| RESOURCES.map(item);
        match place {
            Place::Home => vec![Item::Mode.with(0o444)],
            Place::Function(0) => vec![Item::AutoProvisioning.with(0o644)],
            Place::Function(_) => vec![Item::Id.with(0o444), Item::Control.with(0o200)],
            Place::Settings(id) => {
                let mut items = vec![Item::ExecQuantum, Item::PreemptTimeout];
                items.extend((id == 0).then_some(Item::SchedPriority));
                items.extend(each(if id == 0 { Item::Spare } else { Item::Quota }));
                items.into_iter().map(|item| item.with(0o644)).collect()
            }
            Place::Available => {
                let items = each(Item::Free).into_iter().chain(each(Item::MaxQuota));
                items.map(|item| item.with(0o444)).collect()
            }
            Place::Policies => [Item::SchedIfIdle, Item::EngineReset, Item::SamplePeriod]
                .map(|item| item.with(0o644))
                .to_vec(),
            Place::Bulk => Vec::new(),
        }
    }

    pub(super) fn show(&self, function: Option<u16>, item: Item) -> Result<String, Errno> {
        let id = function.unwrap_or(0);
        let config = self.functions.get(usize::from(id)).ok_or(Errno::ENODEV)?;
        let number = match item {
            Item::Mode => return Ok("SR-IOV PF\n".into()),
            Item::AutoProvisioning => self.auto.into(),
            Item::Id => id.into(),
            Item::ExecQuantum => config.exec_quantum.into(),
            Item::PreemptTimeout => config.preempt_timeout.into(),
            Item::SchedPriority => config.sched_priority.into(),
            Item::Quota(resource) => config.quotas.of(resource),
            Item::Spare(resource) => self.spare(resource),
            Item::Free(resource) => self.free(resource),
            Item::MaxQuota(resource) => self.max_quota(resource),
            Item::SchedIfIdle => self.sched_if_idle.into(),
            Item::EngineReset => self.engine_reset.into(),
            Item::SamplePeriod => self.sample_period.into(),
            Item::Control | Item::VramQuota | Item::Stop => return Err(Errno::EIO),
        };
        Ok(format!("{number}\n"))
    }

    pub(super) fn store(&mut self, id: u16, item: Item, value: &str) -> Result<(), Errno> {
        match item {
            Item::AutoProvisioning => self.set_auto(boolean(value)?)?,
            Item::Quota(resource) => self.set_quota(id, resource, resource.parse(value)?)?,
            Item::Spare(resource) => self.set_spare(resource, resource.parse(value)?)?,
            Item::ExecQuantum => {
                let value = limited(value)?;
                self.config(id)?.exec_quantum = value;
                self.auto &= value == 0 || id == 0;
            }
            Item::PreemptTimeout => {
                let value = limited(value)?;
                self.config(id)?.preempt_timeout = value;
                self.auto &= value == 0 || id == 0;
            }
            Item::SchedPriority => self.set_priority(id, limited(value)?)?,
            Item::SchedIfIdle => self.set_sched_if_idle(boolean(value)?)?,
            Item::EngineReset => self.engine_reset = boolean(value)?,
            Item::SamplePeriod => self.sample_period = limited(value)?,
            Item::Control => match value.strip_suffix('\n').unwrap_or(value) {
                "clear" => *self.config(id)? = Config::default(),
                "stop" | "pause" | "resume" => {}
                _ => return Err(Errno::EINVAL),
            },
            _ => return Err(Errno::EIO),
        }
        Ok(())
    }

    fn config(&mut self, id: u16) -> Result<&mut Config, Errno> {
        self.functions.get_mut(usize::from(id)).ok_or(Errno::ENODEV)
    }

    /// Excludes the policy `sched_if_idle`, and the other way round.
    fn set_priority(&mut self, id: u16, priority: u8) -> Result<(), Errno> {
        if self.sched_if_idle {
            return Err(Errno::EIO);
        }
        // Low, normal and high.
        if priority > 2 {
            return Err(Errno::EINVAL);
        }
        self.config(id)?.sched_priority = priority;
        Ok(())
    }

    fn set_sched_if_idle(&mut self, on: bool) -> Result<(), Errno> {
        if self.functions.iter().any(|config| config.sched_priority != 0) {
            return Err(Errno::EIO);
        }
        self.sched_if_idle = on;
        Ok(())
    }

    fn used(&self, resource: Resource) -> u64 {
        self.functions.iter().map(|config| config.quotas.of(resource)).sum()
    }

    fn spare(&self, resource: Resource) -> u64 {
        self.spare.of(resource).max(resource.least_spare())
    }

    /// What `available/<resource>_free` reads.
    fn free(&self, resource: Resource) -> u64 {
        let unused = self.total.of(resource).saturating_sub(self.used(resource));
        match resource {
            Resource::Ggtt => unused.saturating_sub(self.spare(resource)),
            Resource::Contexts => {
                // Those that the PF keeps come from its own share first.
                let own = CONTEXTS - 1 - self.total.contexts;
                let beyond = self.spare(resource).saturating_sub(own);
                unused.saturating_sub(beyond.next_multiple_of(resource.unit()))
            }
            // The spare ones count only when a quota is given.
            Resource::Doorbells | Resource::Lmem => unused,
        }
    }

    /// What `available/<resource>_max_quota` reads.
    fn max_quota(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Lmem => {
                resource.round_down(self.free(resource).saturating_sub(self.spare(resource)))
            }
            _ => self.free(resource),
        }
    }

    /// The old quota is given back before the new one is looked at, so a refusal
    /// leaves none.
    fn set_quota(&mut self, id: u16, resource: Resource, wanted: u64) -> Result<(), Errno> {
        let size = resource.round_up(wanted)?;
        let quotas = &mut self.config(id)?.quotas;
        let had = quotas.of(resource);
        if size != had {
            quotas.set(resource, 0);
            self.give(id, resource, size)?;
        }
        // pf_mark_manual_provisioning
        self.auto &= had == 0 && size == 0;
        Ok(())
    }

    fn give(&mut self, id: u16, resource: Resource, size: u64) -> Result<(), Errno> {
        if resource == Resource::Ggtt && size > GGTT {
            return Err(Errno::E2BIG);
        }
        let most = match resource {
            Resource::Doorbells => self.free(resource).saturating_sub(self.spare(resource)),
            _ => self.max_quota(resource),
        };
        if size > most {
            return Err(Errno::EDQUOT);
        }
        self.config(id)?.quotas.set(resource, size);
        Ok(())
    }

    fn set_spare(&mut self, resource: Resource, wanted: u64) -> Result<(), Errno> {
        let too_many = resource == Resource::Doorbells && wanted > DOORBELLS;
        if too_many || (wanted != 0 && wanted < resource.least_spare()) {
            return Err(Errno::EINVAL);
        }
        let amount = match resource {
            Resource::Ggtt => resource.round_up(wanted).unwrap_or(u64::MAX),
            _ => wanted,
        };
        self.spare.set(resource, amount);
        Ok(())
    }

    /// i915_sriov_pf_set_auto_provisioning
    fn set_auto(&mut self, on: bool) -> Result<(), Errno> {
        if on && !self.auto && self.given(self.functions.len()) != Given::Nothing {
            return Err(Errno::ESTALE);
        }
        self.auto = on;
        Ok(())
    }

    /// intel_iov_provisioning_verify
    fn given(&self, count: usize) -> Given {
        let mut enough = false;
        for config in self.functions.iter().skip(1).take(count) {
            match config.quotas.given() {
                Given::Part => return Given::Part,
                given => enough |= given == Given::Enough,
            }
        }
        if enough { Given::Enough } else { Given::Nothing }
    }

    /// i915_sriov_pf_enable_vfs. Without quotas and without auto-provisioning the
    /// VFs are enabled all the same: "trust late provisioning".
    pub(super) fn provision(&mut self, count: u16) -> Result<(), Errno> {
        let result = match self.given(count.into()) {
            Given::Part => Err(Errno::ENOKEY),
            Given::Nothing if self.auto => self.divide(count),
            _ => Ok(()),
        };
        if result.is_err() {
            self.release();
        }
        result
    }

    /// Fair shares (pf_auto_provision), from which the tables for the memory of
    /// many VFs are not taken here.
    fn divide(&mut self, count: u16) -> Result<(), Errno> {
        self.automatic = true;
        for resource in RESOURCES {
            let available = match resource {
                Resource::Doorbells => DOORBELLS,
                _ => self.max_quota(resource),
            };
            let fair = available.checked_div(count.into()).map(|share| resource.round_down(share));
            let fair = fair.filter(|share| *share > 0).ok_or(Errno::ENOSPC)?;
            for id in 1..=count {
                self.give(id, resource, fair)?;
            }
        }
        Ok(())
    }

    /// pf_auto_unprovision: what the administrator gave stays.
    pub(super) fn release(&mut self) {
        if std::mem::take(&mut self.automatic) {
            self.functions.iter_mut().skip(1).for_each(|config| *config = Config::default());
        }
    }
}
