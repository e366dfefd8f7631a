//! Many vGPUs at once: a way to place all of them, if there is one.
//!
//! The demands are placed the largest first, each on the best site. Where that
//! places all, it is the first answer; the search then goes on from it, over the
//! other choices in order, to a better answer or, where not all were placed, to
//! one at all. Sites that are alike are tried once, states that were seen are not
//! searched again, and what cannot become better than the best so far is left.
//! It ends after [`MOST_STATES`].

use std::collections::{BTreeMap, BTreeSet};

use crate::room::{Kind, Room};

use super::{Demand, Policy, Site, order};

/// The most states that are looked at: small hosts are searched to the end.
pub const MOST_STATES: usize = 4000;

/// Why not all demands could be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// For each demand, whether it was placed in the best attempt.
    pub placed: Vec<bool>,
    /// Whether all ways were tried: otherwise there may be one.
    pub searched_all: bool,
}

/// The site of each demand, in their order.
///
/// # Errors
/// When no way was found.
pub fn plan(demands: &[Demand], sites: &[Site], policy: Policy) -> Result<Vec<usize>, Shortfall> {
    let mut search = Search {
        demands,
        turns: turns(demands, sites),
        policy,
        classes: classes(sites),
        sites: sites.to_vec(),
        chosen: Vec::with_capacity(demands.len()),
        best: None,
        deepest: Vec::new(),
        seen: BTreeSet::new(),
        states: 0,
    };
    search.go();
    let in_order = |chosen: &[usize]| {
        let mut by_demand: Vec<Option<usize>> = vec![None; demands.len()];
        for (turn, site) in search.turns.iter().zip(chosen) {
            if let Some(slot) = by_demand.get_mut(*turn) {
                *slot = Some(*site);
            }
        }
        by_demand
    };
    match &search.best {
        Some((_, chosen)) => Ok(in_order(chosen).into_iter().flatten().collect()),
        None => Err(Shortfall {
            placed: in_order(&search.deepest).iter().map(Option::is_some).collect(),
            searched_all: search.states < MOST_STATES,
        }),
    }
}

/// The order in which the demands are placed: the largest first.
fn turns(demands: &[Demand], sites: &[Site]) -> Vec<usize> {
    let mut turns: Vec<usize> = (0..demands.len()).collect();
    turns.sort_by_key(|n| (std::cmp::Reverse(demands.get(*n).map_or(0, |d| part(d, sites))), *n));
    turns
}

/// The order in which demands come to be on the sites that were chosen: their own
/// where the drivers place them well in it, else the largest first.
pub fn making(demands: &[Demand], sites: &[Site], chosen: &[usize]) -> Vec<usize> {
    let own: Vec<usize> = (0..demands.len()).collect();
    let mut after = sites.to_vec();
    let fits = |n: &usize| {
        let site = chosen.get(*n)?;
        let place = (*demands.get(*n)?.get(*site)?)?;
        after.get_mut(*site)?.room.take(place).then_some(())
    };
    if own.iter().map(fits).all(|fits| fits.is_some()) { own } else { turns(demands, sites) }
}

/// The greatest part of a site that a demand takes.
fn part(demand: &Demand, sites: &[Site]) -> u64 {
    let part = |(site, place): (&Site, &Option<usize>)| {
        let kind = site.room.kinds().get((*place)?)?;
        Some(crate::room::WHOLE.checked_div(u64::from(kind.total)).unwrap_or(0))
    };
    sites.iter().zip(demand).filter_map(part).max().unwrap_or(0)
}

/// Sites of one class offer the same kinds.
fn classes(sites: &[Site]) -> Vec<usize> {
    let mut known: BTreeMap<&[Kind], usize> = BTreeMap::new();
    sites
        .iter()
        .map(|site| {
            let next = known.len();
            *known.entry(site.room.kinds()).or_insert(next)
        })
        .collect()
}

struct Search<'a> {
    demands: &'a [Demand],
    /// The demands in the order in which they are placed.
    turns: Vec<usize>,
    policy: Policy,
    classes: Vec<usize>,
    sites: Vec<Site>,
    chosen: Vec<usize>,
    /// The best way so far, with what the sites can take after it.
    best: Option<(u128, Vec<usize>)>,
    /// The attempt that placed the most.
    deepest: Vec<usize>,
    seen: BTreeSet<(usize, Vec<(usize, Room)>)>,
    states: usize,
}

impl Search<'_> {
    fn go(&mut self) {
        self.states += 1;
        if self.chosen.len() > self.deepest.len() {
            self.deepest = self.chosen.clone();
        }
        let future = self.future();
        // What sites can take only becomes less.
        let is_hopeless = self.best.as_ref().is_some_and(|(best, _)| future <= *best);
        if is_hopeless {
            return;
        }
        let Some(demand) = self.turns.get(self.chosen.len()).and_then(|n| self.demands.get(*n))
        else {
            self.best = Some((future, self.chosen.clone()));
            return;
        };
        if !self.seen.insert((self.chosen.len(), self.state())) {
            return;
        }
        let mut tried: Vec<usize> = Vec::new();
        for n in order(demand, &self.sites, self.policy) {
            if self.is_over() {
                return;
            }
            if tried.iter().any(|other| self.are_alike(n, *other)) {
                continue;
            }
            tried.push(n);
            let (Some(site), Some(Some(place))) = (self.sites.get_mut(n), demand.get(n)) else {
                continue;
            };
            let before = site.clone();
            if !site.room.take(*place) {
                continue;
            }
            site.vgpus += 1;
            self.chosen.push(n);
            self.go();
            self.chosen.pop();
            if let Some(site) = self.sites.get_mut(n) {
                *site = before;
            }
        }
    }

    /// Spreading asks for no best way: the first is it.
    fn is_over(&self) -> bool {
        let is_done = self.policy == Policy::Spread && self.best.is_some();
        is_done || self.states >= MOST_STATES
    }

    fn future(&self) -> u128 {
        self.sites.iter().map(|site| site.room.future()).sum()
    }

    fn are_alike(&self, a: usize, b: usize) -> bool {
        let room = |n: usize| self.sites.get(n).map(|site| &site.room);
        self.classes.get(a) == self.classes.get(b) && room(a) == room(b)
    }

    /// The sites as they are, less which is which.
    fn state(&self) -> Vec<(usize, Room)> {
        let rooms = self.sites.iter().map(|site| site.room.clone());
        let mut state: Vec<_> = self.classes.iter().copied().zip(rooms).collect();
        state.sort_unstable();
        state
    }
}
