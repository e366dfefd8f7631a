//! Where many vGPUs would be placed, and what that would take; nothing changes.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::{
    claims::ClaimedFunction,
    error::{Error, ErrorKind, Result},
    framework::{mdev, nvidia_vf, passthrough, sriov},
    model::{Framework, Function, FunctionState, Gpu, GpuId, PciAddress, Profile},
    placement::{self, Demand, Site},
    plan::Step,
    request::{Choice, PlanRequest, Planned},
    scan::GpuFacts,
    sys::InvalidPath,
};

use super::{
    Engine,
    choose::{Filter, Offered},
    failure,
};

/// The most vGPUs of one plan.
const MOST: u32 = 1024;

impl Engine {
    /// Places many vGPUs on the GPUs as they are now. Nothing is changed and
    /// nothing reserved.
    ///
    /// # Errors
    /// When a profile does not exist, or not all of them fit: with how many would.
    pub fn plan_vgpus(&self, request: &PlanRequest) -> Result<Planned> {
        let tried = tried(request);
        let total: u64 = request.wishes.iter().map(|(_, count)| u64::from(*count)).sum();
        if total > u64::from(MOST) {
            let cause = format!("{total} vGPUs are more than {MOST}");
            return Err(Error::new(ErrorKind::InvalidArgument, "too-many", tried, cause)
                .remedy("plan fewer at a time"));
        }
        let filter = Filter {
            gpu: request.gpu.as_ref(),
            numa_node: request.numa_node,
            pool: request.pool.as_ref(),
            function: None,
        };
        let snapshot = self.snapshot();
        let mut sites: BTreeMap<GpuId, (Site, Offered)> = BTreeMap::new();
        let mut wishes: Vec<(BTreeMap<GpuId, Profile>, u32)> = Vec::new();
        for (wanted, count) in &request.wishes {
            let offered = self.matching(&snapshot, wanted, filter, &tried)?;
            let mut on = BTreeMap::new();
            for (gpu, profile) in offered {
                on.insert(gpu.id.clone(), profile.clone());
                sites.entry(gpu.id.clone()).or_insert_with(|| {
                    let site = Site {
                        gpu: gpu.id.clone(),
                        room: gpu.room.clone(),
                        vgpus: snapshot.vgpu_count_of(&gpu.id),
                    };
                    (site, (gpu, profile))
                });
            }
            wishes.push((on, *count));
        }
        let gpus: Vec<std::sync::Arc<Gpu>> =
            sites.values().map(|(_, (gpu, _))| gpu.clone()).collect();
        let sites: Vec<Site> = sites.into_values().map(|(site, _)| site).collect();
        let mut demands: Vec<Demand> = Vec::new();
        let mut profiles: Vec<&BTreeMap<GpuId, Profile>> = Vec::new();
        for (on, count) in &wishes {
            let demand: Demand =
                sites.iter().map(|site| site.room.position(&on.get(&site.gpu)?.id)).collect();
            for _ in 0..*count {
                demands.push(demand.clone());
                profiles.push(on);
            }
        }
        let chosen = placement::plan(&demands, &sites, self.policy(request.placement))
            .map_err(|short| shortfall(tried.clone(), request, &short))?;
        let mut after: Vec<Site> = sites.clone();
        let mut used: BTreeSet<PciAddress> = BTreeSet::new();
        let mut choices = Vec::with_capacity(chosen.len());
        for turn in placement::making(&demands, &sites, &chosen) {
            let (Some(n), Some(demand), Some(on)) =
                (chosen.get(turn), demands.get(turn), profiles.get(turn))
            else {
                continue;
            };
            let (Some(site), Some(gpu), Some(Some(place))) =
                (after.get_mut(*n), gpus.get(*n), demand.get(*n))
            else {
                continue;
            };
            site.room.take(*place);
            let Some(profile) = on.get(&gpu.id) else { continue };
            choices.push(self.choice(gpu, profile, &mut used, &tried)?);
        }
        let mut remaining = Vec::new();
        for ((before, after), gpu) in sites.iter().zip(&after).zip(&gpus) {
            for (place, profile) in gpu.profiles.iter().enumerate() {
                let (now, then) = (before.room.available(place), after.room.available(place));
                if then < now {
                    remaining.push((gpu.id.clone(), profile.short_name.clone(), now, then));
                }
            }
        }
        Ok(Planned { choices, remaining })
    }

    /// What making one would take; `used` are the functions of those before it.
    fn choice(
        &self,
        gpu: &Gpu,
        profile: &Profile,
        used: &mut BTreeSet<PciAddress>,
        tried: &str,
    ) -> Result<Choice> {
        let facts =
            self.publisher.facts(&gpu.id).ok_or_else(|| failure::no_such_gpu(tried, &gpu.id))?;
        let (function, steps) = self
            .steps_for(&facts, gpu, profile, used)
            .map_err(|error| failure::of_scan(tried, error.into()))?;
        used.extend(function);
        let nil = Uuid::nil().to_string();
        let words = |step: &Step| step.op.to_string().replace(&nil, "<new UUID>");
        Ok(Choice {
            profile: profile.short_name.clone(),
            gpu: gpu.id.clone(),
            function,
            steps: steps.iter().map(words).collect(),
        })
    }

    fn steps_for(
        &self,
        facts: &GpuFacts,
        gpu: &Gpu,
        profile: &Profile,
        used: &BTreeSet<PciAddress>,
    ) -> std::result::Result<(Option<PciAddress>, Vec<Step>), InvalidPath> {
        let left: Vec<Function> =
            gpu.functions.iter().filter(|f| !used.contains(&f.address)).cloned().collect();
        let bind = |address: PciAddress, driver: Option<String>| {
            let function = ClaimedFunction { address, driver, driver_override: None };
            sriov::plan_bind(&function, super::super::framework::VFIO_PCI)
        };
        Ok(match profile.framework {
            Framework::Mdev => {
                let free = |name: &str| {
                    let address = name.parse::<PciAddress>().ok();
                    let is_function = |a: &PciAddress| Some(*a) != gpu.id.pci();
                    address.filter(is_function).is_none_or(|a| !used.contains(&a))
                };
                let parents = facts.parents.iter().filter(|parent| free(&parent.name)).cloned();
                let left = GpuFacts { parents: parents.collect(), ..facts.clone() };
                match mdev::choose_parent(&left, &profile.id) {
                    None => (None, Vec::new()),
                    Some(parent) => {
                        let steps = mdev::plan_create(&gpu.id, parent, &profile.id, Uuid::nil())?;
                        let function = parent.parse().ok().filter(|a| Some(*a) != gpu.id.pci());
                        (function, steps)
                    }
                }
            }
            Framework::NvidiaVf => {
                match nvidia_vf::choose_function(facts, &left, &profile.id, None) {
                    None => (None, Vec::new()),
                    Some(function) => {
                        let steps = nvidia_vf::plan_create(function.address, &profile.id)?;
                        (Some(function.address), steps)
                    }
                }
            }
            Framework::Sriov => match left.iter().find(|f| f.state == FunctionState::Free) {
                None => (None, Vec::new()),
                Some(free) => (Some(free.address), bind(free.address, None)?),
            },
            Framework::Passthrough => {
                let mut steps = Vec::new();
                for member in facts.pci.iter().flat_map(passthrough::members) {
                    let own = gpu.id.pci() == Some(member);
                    steps.extend(bind(member, gpu.driver.clone().filter(|_| own))?);
                }
                (None, steps)
            }
        })
    }
}

fn shortfall(tried: String, request: &PlanRequest, short: &placement::Shortfall) -> Error {
    let mut from = 0;
    let mut words = Vec::new();
    for (profile, count) in &request.wishes {
        let to = from + *count as usize;
        let placed = short.placed.get(from..to).unwrap_or_default();
        let placed = placed.iter().filter(|placed| **placed).count();
        words.push(format!("{placed} of {count} {profile}"));
        from = to;
    }
    let cause = format!("the GPUs do not take all: {} would fit together", words.join(", "));
    let (code, cause) = match short.searched_all {
        true => ("no-room", cause),
        false => ("no-room-found", format!("{cause}, of the ways that were tried: not all were")),
    };
    Error::new(ErrorKind::NoCapacity, code, tried, cause)
        .remedy("ask for fewer, or see vgpuctl profiles for what is available and why not")
}

fn tried(request: &PlanRequest) -> String {
    let shown = |(profile, count): &(String, u32)| {
        format!("{count} {}", profile.chars().take(64).collect::<String>())
    };
    let wishes: Vec<String> = request.wishes.iter().take(8).map(shown).collect();
    format!("planning {}", wishes.join(", "))
}
