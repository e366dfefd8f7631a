//! Which GPU carries a new vGPU.
//!
//! **pack** (the default): the choice after which the host can still take the
//! most. What a GPU can still take is [`Room::future`]: the sum over its profiles
//! of what is available, each weighted by the part of the GPU that one takes. The
//! best choice loses the least of it; of equal ones that GPU which has the least
//! left afterwards, then one that carries vGPUs before an empty one, then the
//! lowest id.
//!
//! **spread**: the GPU of which the greatest part of the profile is still
//! available, then the one with the fewest vGPUs, then the lowest id.

mod search;

use std::{cmp::Reverse, fmt, str::FromStr};

use serde::Deserialize;

use crate::{model::GpuId, room::Room};

pub use search::{MOST_STATES, Shortfall, making, plan};

/// How a GPU is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Leave the most room for what comes.
    #[default]
    Pack,
    /// Use all GPUs evenly.
    Spread,
}

/// A text that is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no placement: write pack or spread")]
pub struct InvalidPolicy(String);

impl FromStr for Policy {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        match text {
            "pack" => Ok(Self::Pack),
            "spread" => Ok(Self::Spread),
            other => Err(InvalidPolicy(other.chars().take(64).collect())),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pack => "pack",
            Self::Spread => "spread",
        })
    }
}

/// A GPU that may carry vGPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The GPU.
    pub gpu: GpuId,
    /// What it still takes.
    pub room: Room,
    /// How many vGPUs it carries.
    pub vgpus: usize,
}

/// What is asked for: for each site the place of the profile among its kinds,
/// `None` where it does not offer it.
pub type Demand = Vec<Option<usize>>;

/// The sites that take one vGPU now, the best first.
pub fn order(demand: &[Option<usize>], sites: &[Site], policy: Policy) -> Vec<usize> {
    let mut ranked: Vec<(Rank, usize)> = sites
        .iter()
        .zip(demand)
        .enumerate()
        .filter_map(|(n, (site, place))| Some((rank(site, (*place)?, policy)?, n)))
        .collect();
    ranked.sort_by(|(a, m), (b, n)| {
        let id = |n: &usize| sites.get(*n).map(|site| &site.gpu);
        a.cmp(b).then_with(|| id(m).cmp(&id(n)))
    });
    ranked.into_iter().map(|(_, n)| n).collect()
}

/// How good a choice is; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u128, u128, Reverse<bool>);

fn rank(site: &Site, place: usize, policy: Policy) -> Option<Rank> {
    match policy {
        Policy::Pack => {
            let mut after = site.room.clone();
            if !after.take(place) {
                return None;
            }
            let left = after.future();
            let lost = site.room.future().saturating_sub(left);
            Some(Rank(lost, left, Reverse(site.vgpus > 0)))
        }
        Policy::Spread => {
            let available = site.room.available(place);
            let total = site.room.kinds().get(place).map_or(0, |kind| kind.total).max(available);
            // In parts of a million: the part that is taken.
            let taken = u128::from(total - available) * 1_000_000;
            let part = taken.checked_div(u128::from(total))?;
            (available > 0).then_some(Rank(part, site.vgpus as u128, Reverse(false)))
        }
    }
}

#[cfg(test)]
mod tests;
