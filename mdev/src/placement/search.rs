//! Many vGPUs at once: a way to place all of them, if there is one.
//!
//! The demands are placed the largest first, each on the best site. Where that
//! places all, it is the first answer; the search then goes on from it, over the
//! other choices in order, to a better answer or, where not all were placed, to
//! one at all. Sites that are alike are tried once, states that were seen are not
//! searched again, and what cannot become better than the best so far is left.
//! It ends after [`MOST_STATES`].
//!
//! Where no way is found, a search of its own looks for the most that fit together,
//! the smallest first.
//!
//! NVIDIA's driver puts sizes that lie side by side at the first free start, and
//! what shares instances into the lowest: there what fits depends on the order, and
//! a way is one in its order. Other orders are not tried, so that there nothing is
//! certain of what was not found.
//!
//! Spreading begins sizes on all sites, which can use up the empty ones that
//! others need: where it finds no way in time, packing looks for one.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::room::{Room, Rule};

use super::{Demand, Policy, Rank, Site, rooms::Rooms};

/// The most states that one search looks at: small hosts are searched to the end.
pub const MOST_STATES: usize = 4000;

/// A way to place all demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Each demand with its site, in the order in which they are to be made: their
    /// own where they fit in it.
    pub steps: Vec<(usize, usize)>,
    /// How many states were looked at.
    pub states: usize,
}

/// Why not all demands could be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// For each demand, whether it is among the most that were placed together.
    pub placed: Vec<bool>,
    /// Whether it is certain that not all fit: otherwise there may be a way.
    pub certain: bool,
    /// Whether it is certain that no more fit together than were placed.
    pub most: bool,
    /// How many states were looked at.
    pub states: usize,
}

/// Places all demands.
///
/// # Errors
/// When no way was found: with the most that were placed together.
pub fn plan(demands: &[Demand], sites: &[Site], policy: Policy) -> Result<Way, Shortfall> {
    let passes: &[(Policy, Goal)] = match policy {
        Policy::Pack => &[(Policy::Pack, Goal::Best)],
        Policy::Spread => &[(Policy::Spread, Goal::First), (Policy::Pack, Goal::First)],
    };
    let mut search = Search::new(demands, sites);
    let mut certain = false;
    for (policy, goal) in passes {
        certain = search.run(*policy, *goal);
        if certain || search.best.is_some() {
            break;
        }
    }
    let mut most = false;
    if search.best.is_none() {
        most = search.run(Policy::Pack, Goal::Most);
    }
    let (mut steps, states) = (search.steps(), search.states);
    if steps.len() == demands.len() {
        let mut own = steps.clone();
        own.sort_unstable();
        if fits(&own, demands, sites) {
            steps = own;
        }
        return Ok(Way { steps, states });
    }
    let mut placed = vec![false; demands.len()];
    for (n, _) in steps {
        if let Some(placed) = placed.get_mut(n) {
            *placed = true;
        }
    }
    let any_order = !order_matters(demands, sites);
    let certain = any_order && (certain || most);
    Err(Shortfall { placed, certain, most: any_order && most, states })
}

/// Whether what fits depends on which is made first.
fn order_matters(demands: &[Demand], sites: &[Site]) -> bool {
    let depends = |site: &Site| match site.room.rule() {
        Rule::Placed { .. } => true,
        Rule::Instances(slots) => slots.iter().any(|slot| slot.shared),
        Rule::Shared { .. } | Rule::OneSize { .. } | Rule::Mixed { .. } => false,
    };
    let differ = demands.windows(2).any(|pair| pair.first() != pair.last());
    differ && sites.iter().any(depends)
}

/// Whether all can be taken one after the other.
fn fits(steps: &[(usize, usize)], demands: &[Demand], sites: &[Site]) -> bool {
    let mut after: Vec<Room> = sites.iter().map(|site| site.room.clone()).collect();
    steps.iter().all(|(n, site)| {
        let place = demands.get(*n).and_then(|demand| demand.get(*site).copied().flatten());
        place.is_some_and(|place| after.get_mut(*site).is_some_and(|room| room.take(place)))
    })
}

/// What a search looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// A way to place all.
    First,
    /// The way to place all after which the sites can take the most.
    Best,
    /// A way to place as many as can be, of as many the larger ones; others are
    /// left out.
    Most,
}

/// How good a way is: what the sites can take after it or, where some are left
/// out, [`ONE`] and its size for each that is placed.
type Worth = u128;

/// More than the sizes of all demands together.
const ONE: Worth = 1 << 80;

struct Search<'a> {
    demands: &'a [Demand],
    /// The demands in the order in which they are placed, each with the part of a
    /// site that it takes.
    turns: Vec<(usize, u64)>,
    policy: Policy,
    goal: Goal,
    sites: &'a [Site],
    rooms: Rooms,
    /// Of each site: the number of its room, and how many vGPUs it carries.
    now: Vec<(usize, usize)>,
    /// The site for each turn so far, `None` where it is left out.
    chosen: Vec<Option<usize>>,
    /// What those that are placed are worth.
    placed: Worth,
    best: Option<(Worth, Vec<Option<usize>>)>,
    seen: BTreeSet<(usize, Worth, Vec<usize>)>,
    states: usize,
    /// The number of states at which the pass ends.
    end: usize,
}

impl<'a> Search<'a> {
    fn new(demands: &'a [Demand], sites: &'a [Site]) -> Self {
        let turns = demands.iter().map(|demand| part(demand, sites)).enumerate().collect();
        let mut rooms = Rooms::default();
        let classes = classes(demands, sites);
        let number = |(site, class): (&Site, usize)| (rooms.number(class, &site.room), site.vgpus);
        let now = sites.iter().zip(classes).map(number).collect();
        Self {
            demands,
            turns,
            policy: Policy::Pack,
            goal: Goal::First,
            sites,
            rooms,
            now,
            chosen: Vec::with_capacity(demands.len()),
            placed: 0,
            best: None,
            seen: BTreeSet::new(),
            states: 0,
            end: 0,
        }
    }

    /// Searches anew; whether all ways were tried that could be better.
    fn run(&mut self, policy: Policy, goal: Goal) -> bool {
        (self.policy, self.goal) = (policy, goal);
        self.turns.sort_by_key(|(n, part)| (Reverse(*part), *n));
        if goal == Goal::Most {
            // More of the small ones fit.
            self.turns.sort_by_key(|(_, part)| *part);
        }
        self.seen.clear();
        self.end = self.states + MOST_STATES;
        self.go();
        self.states < self.end
    }

    fn go(&mut self) {
        self.states += 1;
        if self.is_hopeless() {
            return;
        }
        let Some(demand) = self.demand_at(self.chosen.len()) else {
            self.best = Some((self.worth(), self.chosen.clone()));
            return;
        };
        let mut rooms: Vec<usize> = self.now.iter().map(|(room, _)| *room).collect();
        rooms.sort_unstable();
        if !self.seen.insert((self.chosen.len(), self.placed, rooms)) {
            return;
        }
        // Of two demands that are the same, the first is not left out for the other.
        let left_out_already = self.chosen.last() == Some(&None)
            && self.demand_at(self.chosen.len() - 1) == Some(demand);
        if !left_out_already {
            for (n, room) in self.choices(demand) {
                if self.is_over() {
                    return;
                }
                self.place(n, room);
            }
        }
        if self.goal == Goal::Most && !self.is_over() {
            self.chosen.push(None);
            self.go();
            self.chosen.pop();
        }
    }

    /// Goes on with one on a site, which has another room then.
    fn place(&mut self, n: usize, room: usize) {
        let Some(site) = self.now.get_mut(n) else { return };
        let before = *site;
        *site = (room, before.1 + 1);
        self.chosen.push(Some(n));
        let placed = self.placed;
        self.placed += self.turns.get(self.chosen.len() - 1).map_or(0, worth);
        self.go();
        self.placed = placed;
        self.chosen.pop();
        if let Some(site) = self.now.get_mut(n) {
            *site = before;
        }
    }

    /// The sites that take one, each with its room afterwards, the best first; of
    /// those that are alike the best alone.
    fn choices(&mut self, demand: &[Option<usize>]) -> Vec<(usize, usize)> {
        let mut alike: BTreeMap<usize, (Rank, usize, usize)> = BTreeMap::new();
        let by_id = |n: usize| self.sites.get(n).map(|site| &site.gpu);
        for (n, ((room, vgpus), place)) in self.now.iter().zip(demand).enumerate() {
            let Some((after, effect)) = place.and_then(|p| self.rooms.take(*room, p)) else {
                continue;
            };
            let rank = effect.rank(self.policy, *vgpus);
            let entry = alike.entry(*room).or_insert((rank, n, after));
            if (rank, by_id(n)) < (entry.0, by_id(entry.1)) {
                *entry = (rank, n, after);
            }
        }
        let mut choices: Vec<_> = alike.into_values().collect();
        choices.sort_by(|a, b| (a.0, by_id(a.1)).cmp(&(b.0, by_id(b.1))));
        choices.into_iter().map(|(_, n, after)| (n, after)).collect()
    }

    fn demand_at(&self, turn: usize) -> Option<&'a Demand> {
        self.turns.get(turn).and_then(|(n, _)| self.demands.get(*n))
    }

    /// Whether nothing better than the best so far can come of this: what sites can
    /// take only becomes less, and no more can be placed than there are.
    fn is_hopeless(&self) -> bool {
        let Some((best, _)) = &self.best else { return false };
        let at_most = match self.goal {
            Goal::Most => {
                self.placed + self.turns.iter().skip(self.chosen.len()).map(worth).sum::<Worth>()
            }
            Goal::First | Goal::Best => self.worth(),
        };
        at_most <= *best
    }

    fn is_over(&self) -> bool {
        let is_done = self.goal == Goal::First && self.best.is_some();
        is_done || self.states >= self.end
    }

    fn worth(&self) -> Worth {
        match self.goal {
            Goal::First | Goal::Best => {
                self.now.iter().map(|(room, _)| self.rooms.future(*room)).sum()
            }
            Goal::Most => self.placed,
        }
    }

    /// The best way: demands and their sites, in order.
    fn steps(&self) -> Vec<(usize, usize)> {
        let best = self.best.iter().flat_map(|(_, chosen)| chosen);
        self.turns.iter().zip(best).filter_map(|((n, _), site)| Some((*n, (*site)?))).collect()
    }
}

/// What it is worth that one is placed.
fn worth((_, part): &(usize, u64)) -> Worth {
    ONE + Worth::from(*part)
}

/// The greatest part of a site that a demand takes.
fn part(demand: &Demand, sites: &[Site]) -> u64 {
    let part = |(site, place): (&Site, &Option<usize>)| {
        let kind = site.room.kinds().get((*place)?)?;
        Some(crate::room::WHOLE.checked_div(u64::from(kind.total)).unwrap_or(0))
    };
    sites.iter().zip(demand).filter_map(part).max().unwrap_or(0)
}

/// Sites of one class offer the same to every demand.
fn classes(demands: &[Demand], sites: &[Site]) -> Vec<usize> {
    let mut different: Vec<&Demand> = demands.iter().collect();
    different.dedup();
    let mut known = BTreeMap::new();
    (0..sites.len())
        .map(|n| {
            let places: Vec<Option<usize>> =
                different.iter().map(|demand| demand.get(n).copied().flatten()).collect();
            let next = known.len();
            *known.entry(places).or_insert(next)
        })
        .collect()
}
