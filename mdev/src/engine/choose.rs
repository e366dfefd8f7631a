//! Which GPU carries a new vGPU: those that are asked for, in the order of the
//! placement's rule.

use std::sync::Arc;

use crate::{
    config::{Pool, PoolName},
    error::{Error, ErrorKind, Result},
    model::{Gpu, GpuId, Profile, ReasonCode, Snapshot},
    placement::{self, Demand, Policy, Site},
    request::{Control, CreateRequest},
};

use super::{Engine, failure};

/// Which GPUs may be chosen.
#[derive(Clone, Copy, Default)]
pub(super) struct Filter<'a> {
    pub(super) gpu: Option<&'a GpuId>,
    pub(super) numa_node: Option<u32>,
    pub(super) pool: Option<&'a PoolName>,
    pub(super) function: Option<crate::model::PciAddress>,
}

impl<'a> Filter<'a> {
    fn of(request: &'a CreateRequest) -> Self {
        Self {
            gpu: request.gpu.as_ref(),
            numa_node: request.numa_node,
            pool: request.pool.as_ref(),
            function: request.function,
        }
    }

    /// What of it excludes a GPU, in words; `None` where it may be chosen.
    fn excludes(&self, gpu: &Gpu, pool: Option<&Pool>) -> Option<String> {
        let has = |address| gpu.functions.iter().any(|function| function.address == address);
        let node = self.numa_node.filter(|node| gpu.numa_node != Some(*node));
        let pool = self.pool.filter(|_| pool.is_some_and(|pool| !pool.holds(gpu)));
        let function = self.function.filter(|address| !has(*address));
        let words: Vec<String> = (node.map(|node| format!("not on NUMA node {node}")).into_iter())
            .chain(pool.map(|pool| format!("not in the pool {pool}")))
            .chain(function.map(|address| format!("without the VF {address}")))
            .collect();
        (!words.is_empty()).then(|| format!("GPU {} is {}", gpu.id, words.join(" and ")))
    }
}

/// A profile as a GPU offers it.
pub(super) type Offered = (Arc<Gpu>, Profile);

impl Engine {
    /// The GPUs that can carry it, the best first.
    pub(super) fn candidates(
        &self,
        request: &CreateRequest,
        control: &Control,
    ) -> Result<Vec<(GpuId, Profile)>> {
        let tried = tried(request);
        let filter = Filter::of(request);
        let mut snapshot = self.snapshot();
        let mut matching = self.matching(&snapshot, &request.profile, filter, &tried)?;
        if request.enable_vfs {
            let enabled = matching.iter().any(|(_, profile)| profile.available > 0);
            let empty = matching.iter().find(|(_, profile)| {
                profile.reason.as_ref().is_some_and(|r| r.code == ReasonCode::NoFunctionsEnabled)
            });
            if let (false, Some((gpu, _))) = (enabled, empty) {
                self.set_vf_count(&gpu.id, gpu.vf_total, control)?;
                snapshot = self.snapshot();
                matching = self.matching(&snapshot, &request.profile, filter, &tried)?;
            }
        }
        let policy = self.policy(request.placement);
        let (sites, demand) = sites(&snapshot, &matching);
        let order = placement::order(&demand, &sites, policy);
        if order.is_empty() {
            return Err(nothing_left(tried, &matching));
        }
        Ok(order
            .into_iter()
            .filter_map(|n| matching.get(n))
            .map(|(gpu, profile)| (gpu.id.clone(), profile.clone()))
            .collect())
    }

    /// The GPUs that offer the profile, each once.
    pub(super) fn matching(
        &self,
        snapshot: &Snapshot,
        wanted: &str,
        filter: Filter<'_>,
        tried: &str,
    ) -> Result<Vec<Offered>> {
        let gpus: Vec<&Arc<Gpu>> = match filter.gpu {
            Some(id) => match snapshot.gpu(id) {
                Some(gpu) => vec![gpu],
                None => return Err(failure::no_such_gpu(tried, id)),
            },
            None => snapshot.gpus().collect(),
        };
        let pool = match filter.pool {
            None => None,
            Some(name) => {
                Some(self.config.pools.get(name).ok_or_else(|| self.no_such_pool(tried, name))?)
            }
        };
        let mut found: Vec<Offered> = Vec::new();
        for gpu in gpus.iter().filter(|gpu| filter.excludes(gpu, pool).is_none()) {
            found.extend(gpu.profiles_called(wanted).map(|p| ((*gpu).clone(), p.clone())));
        }
        let mut names: Vec<&str> = found.iter().map(|(_, p)| p.short_name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        if names.len() > 1 {
            let ids: Vec<String> = found
                .iter()
                .map(|(gpu, p)| format!("{} ({}) on {}", p.id, p.short_name, gpu.id))
                .collect();
            return Err(Error::new(
                ErrorKind::NoSuchProfile,
                "ambiguous-profile",
                tried,
                format!("the name means several profiles: {}", ids.join(", ")),
            )
            .remedy("write the type id"));
        }
        if !found.is_empty() {
            return Ok(found);
        }
        let offering = gpus.iter().filter(|gpu| gpu.profiles_called(wanted).next().is_some());
        let excluded: Vec<String> = offering.filter_map(|gpu| filter.excludes(gpu, pool)).collect();
        if !excluded.is_empty() {
            return Err(Error::new(
                ErrorKind::NoCapacity,
                "filtered-out",
                tried,
                format!("the profile is offered, but {}", excluded.join("; ")),
            )
            .remedy("see vgpuctl show GPU"));
        }
        let mut offered: Vec<Profile> =
            gpus.iter().flat_map(|gpu| gpu.profiles.iter().cloned()).collect();
        offered.sort_by(|a, b| a.short_name.cmp(&b.short_name));
        offered.dedup_by(|a, b| a.short_name == b.short_name);
        Err(failure::no_such_profile(tried, &offered))
    }

    fn no_such_pool(&self, tried: &str, name: &PoolName) -> Error {
        let known: Vec<String> = self.config.pools.keys().map(ToString::to_string).collect();
        let cause = match known.as_slice() {
            [] => format!("there is no pool {name}, nor any other"),
            known => format!("there is no pool {name}; there are {}", known.join(", ")),
        };
        Error::new(ErrorKind::InvalidArgument, "no-such-pool", tried, cause)
            .remedy("pools are under [pools] in host.toml")
    }

    /// The rule by which to choose.
    pub(super) fn policy(&self, asked: Option<Policy>) -> Policy {
        asked.unwrap_or(self.config.placement.policy)
    }
}

/// The GPUs as sites, and the places of the profile on them.
pub(super) fn sites(snapshot: &Snapshot, offered: &[Offered]) -> (Vec<Site>, Demand) {
    offered
        .iter()
        .map(|(gpu, profile)| {
            let site = Site {
                gpu: gpu.id.clone(),
                room: gpu.room.clone(),
                vgpus: snapshot.vgpu_count_of(&gpu.id),
            };
            (site, gpu.room.position(&profile.id))
        })
        .unzip()
}

/// Why no GPU takes one: what each says.
pub(super) fn nothing_left(tried: impl Into<String>, offered: &[Offered]) -> Error {
    let reasons: Vec<String> = offered
        .iter()
        .filter_map(|(gpu, p)| Some(format!("GPU {}: {}", gpu.id, p.reason.as_ref()?.text)))
        .collect();
    let code = offered
        .iter()
        .find_map(|(_, profile)| profile.reason.as_ref().map(|reason| reason.code.as_str()))
        .unwrap_or("no-capacity");
    Error::new(ErrorKind::NoCapacity, code, tried, reasons.join("; "))
}

pub(super) fn tried(request: &CreateRequest) -> String {
    let profile: String = request.profile.chars().take(64).collect();
    match &request.gpu {
        Some(gpu) => format!("creating a vGPU of {profile:?} on GPU {gpu}"),
        None => format!("creating a vGPU of {profile:?}"),
    }
}
