//! What a GPU still takes: one arithmetic, from which follow what is available,
//! where a new vGPU is placed, and what would remain afterwards.
//!
//! The kernel says what fits *now*. What would fit after the next vGPU it does
//! not say: that follows from the rule by which the GPU's driver divides it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    framebuffer::{Framebuffer, Run, free_starts},
    model::TypeId,
};

/// What a GPU still takes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Room {
    /// Shared by the copies in which a plan tries things.
    kinds: Arc<[Kind]>,
    /// How many of each kind the kernel offers at most.
    offered: Vec<u32>,
    rule: Rule,
    /// The functions that are free, where each vGPU takes one.
    functions: Option<u32>,
}

/// A kind of vGPU that a GPU offers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Its type.
    pub id: TypeId,
    /// Its framebuffer in bytes, 0 where nobody says.
    pub size: u64,
    /// How many an empty GPU takes, 0 where nobody says.
    pub total: u32,
    /// How many the kernel offers now at most; 0 also where something else
    /// stands against it.
    pub offered: u32,
    /// Whether one is the whole GPU.
    pub whole: bool,
    /// The GPU instance that it needs, where it is MIG-backed.
    pub instance: Option<Shape>,
}

/// The shape of a MIG GPU instance: `3g.20gb`, `1g.5gb+me`, `2g.48gb-me`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Compute slices.
    pub slices: u32,
    /// Memory in GiB, as the name has it.
    pub gib: u32,
    /// What it has beyond that, `me`, `gfx`, or lacks, `-me`; empty for none.
    pub extra: String,
}

/// How the driver divides a GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Kinds take of one whole, each the part that its total says.
    Shared {
        /// What is left, in parts of [`WHOLE`].
        left: u64,
    },
    /// One size at a time: NVIDIA's time-sliced types, unless told otherwise.
    OneSize {
        /// The framebuffer that they divide, in bytes.
        nominal: u64,
        /// What is there: how many of each size.
        placed: BTreeMap<u64, u32>,
    },
    /// Sizes side by side: NVIDIA's heterogeneous mode.
    Mixed {
        /// What is left of the framebuffer, in bytes.
        left: u64,
    },
    /// The same, where it is known how the driver places them.
    Placed {
        /// The framebuffer that they divide.
        framebuffer: Framebuffer,
        /// What is taken of it.
        taken: Vec<Run>,
    },
    /// MIG: a vGPU takes its place in a GPU instance of its shape; ascending by
    /// their numbers.
    Instances(Vec<Slot>),
}

/// A MIG GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// Its shape.
    pub shape: Shape,
    /// What it carries: the kind, and how many.
    pub carries: Option<(TypeId, u32)>,
    /// Whether several vGPUs may share it (Blackwell and later).
    pub shared: bool,
}

/// The whole of which [`Rule::Shared`] counts parts: drivers' counts divide it
/// (2⁷·3³·5²·7·11·13·17·19·23·29·31), so that parts of two kinds are never a
/// little too large for each other.
pub const WHOLE: u64 = 577_614_211_574_400;

impl Room {
    /// The room of a GPU on which each vGPU takes a part of one whole: what is
    /// left follows from what is offered.
    pub fn shared(kinds: Vec<Kind>, functions: Option<u32>) -> Self {
        let left =
            kinds.iter().map(|kind| part(kind).saturating_mul(u64::from(kind.offered))).max();
        let rule = Rule::Shared { left: left.unwrap_or(0).min(WHOLE) };
        Self::ruled(kinds, rule, functions)
    }

    /// The room of a GPU that is divided by a rule of its own.
    pub fn ruled(kinds: Vec<Kind>, rule: Rule, functions: Option<u32>) -> Self {
        let offered = kinds.iter().map(|kind| kind.offered).collect();
        Self { kinds: kinds.into(), offered, rule, functions }
    }

    /// The same with one more kind, which takes the whole GPU.
    pub fn with_whole(mut self, kind: Kind) -> Self {
        self.offered.push(kind.offered);
        self.kinds = self.kinds.iter().cloned().chain([kind]).collect();
        self
    }

    /// The kinds, in the order of the GPU's profiles.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// The rule by which it is divided.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The place of a type among the kinds.
    pub fn position(&self, id: &TypeId) -> Option<usize> {
        self.kinds.iter().position(|kind| kind.id == *id)
    }

    /// How many more of a kind fit.
    pub fn available(&self, place: usize) -> u32 {
        let (Some(kind), Some(offered)) = (self.kinds.get(place), self.offered.get(place)) else {
            return 0;
        };
        if kind.whole || *offered == 0 {
            return (*offered).min(1);
        }
        let by_rule = match &self.rule {
            Rule::Shared { left } => fit(*left, part(kind)),
            Rule::OneSize { nominal, placed } => one_size(kind, *nominal, placed),
            Rule::Mixed { left } => fit(*left, kind.size),
            Rule::Placed { framebuffer, taken } => places(framebuffer, taken, kind).count() as u32,
            Rule::Instances(slots) => slots.iter().map(|slot| slot.takes(kind)).sum(),
        };
        by_rule.min(*offered).min(self.functions.unwrap_or(u32::MAX))
    }

    /// Takes one of a kind; `false` when none fits.
    pub fn take(&mut self, place: usize) -> bool {
        if self.available(place) == 0 {
            return false;
        }
        let kinds = self.kinds.clone();
        let Some(taken) = kinds.get(place) else { return false };
        self.functions = self.functions.map(|free| free.saturating_sub(1));
        let one_size = matches!(self.rule, Rule::OneSize { .. });
        for (at, (kind, offered)) in kinds.iter().zip(&mut self.offered).enumerate() {
            let same = at == place || (one_size && kind.size == taken.size);
            if kind.whole || taken.whole {
                *offered = 0;
            } else if same {
                *offered = offered.saturating_sub(1);
            }
        }
        match &mut self.rule {
            Rule::Shared { left } => *left = left.saturating_sub(part(taken)),
            Rule::OneSize { placed, .. } => *placed.entry(taken.size).or_default() += 1,
            Rule::Mixed { left } => *left = left.saturating_sub(taken.size),
            Rule::Placed { framebuffer, taken: runs } => {
                // The driver takes the first.
                let first = places(framebuffer, runs, taken).next();
                runs.extend(first);
            }
            Rule::Instances(slots) => {
                // The driver takes the lowest (`kvgpumgrGetSwizzId`).
                if let Some(slot) = slots.iter_mut().find(|slot| slot.takes(taken) > 0) {
                    slot.add(taken);
                }
            }
        }
        true
    }

    /// What it could still take, whichever kind is asked for next: the sum over
    /// the kinds of what is available, each weighted by the part of the GPU that
    /// one takes, in parts of [`WHOLE`].
    pub fn future(&self) -> u128 {
        let weighted = |(place, kind): (usize, &Kind)| {
            u128::from(self.available(place)) * u128::from(part(kind))
        };
        self.kinds.iter().enumerate().map(weighted).sum()
    }
}

impl Slot {
    /// Puts one of a kind in.
    pub fn add(&mut self, kind: &Kind) {
        let count = self.carries.take().map_or(0, |(_, count)| count);
        self.carries = Some((kind.id.clone(), count + 1));
    }

    /// How many more of a kind it takes.
    pub fn takes(&self, kind: &Kind) -> u32 {
        let Some(wanted) = &kind.instance else { return 0 };
        if wanted.slices != self.shape.slices || wanted.extra != self.shape.extra {
            return 0;
        }
        let most = if self.shared {
            self.shape.gib.checked_div(wanted.gib).unwrap_or(0)
        } else {
            u32::from(wanted.gib == self.shape.gib)
        };
        match &self.carries {
            None => most,
            Some((id, count)) if *id == kind.id => most.saturating_sub(*count),
            Some(_) => 0,
        }
    }
}

/// Where one of a kind can lie; it takes GiB of its framebuffer.
pub fn places(
    framebuffer: &Framebuffer,
    taken: &[Run],
    kind: &Kind,
) -> impl Iterator<Item = Run> + use<> {
    let gib = u32::try_from(kind.size >> 30).unwrap_or(u32::MAX);
    let size = framebuffer.size(gib);
    let starts = framebuffer.mixed_starts(gib, kind.total);
    let free: Vec<u32> = free_starts(&starts, size, taken).collect();
    free.into_iter().map(move |start| Run { start, size })
}

/// The part of a GPU that one of a kind takes.
fn part(kind: &Kind) -> u64 {
    WHOLE.checked_div(u64::from(kind.total)).unwrap_or(0)
}

/// How many of a size fit into what is left; any number where a size is unknown.
fn fit(left: u64, size: u64) -> u32 {
    left.checked_div(size).map_or(u32::MAX, |fit| u32::try_from(fit).unwrap_or(u32::MAX))
}

fn one_size(kind: &Kind, nominal: u64, placed: &BTreeMap<u64, u32>) -> u32 {
    if placed.keys().any(|size| *size != kind.size) {
        return 0;
    }
    let there = placed.get(&kind.size).copied().unwrap_or(0);
    match kind.total {
        0 => fit(nominal.saturating_sub(kind.size.saturating_mul(u64::from(there))), kind.size),
        total => total.saturating_sub(there),
    }
}

#[cfg(test)]
mod tests {
    use crate::framebuffer::Generation;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn kind(id: &str, gib: u64, total: u32, offered: u32) -> Kind {
        let id = id.parse().unwrap();
        Kind { id, size: gib * GIB, total, offered, whole: false, instance: None }
    }

    fn all(room: &Room) -> Vec<u32> {
        (0..room.kinds().len()).map(|place| room.available(place)).collect()
    }

    #[test]
    fn kinds_of_one_whole_take_their_part() {
        // mtty has 24 ports: single and dual ones.
        let mut room =
            Room::shared(vec![kind("mtty-1", 0, 24, 24), kind("mtty-2", 0, 12, 12)], None);
        assert!(room.take(0));
        assert_eq!(all(&room), [23, 11]);
        assert!(room.take(1));
        assert_eq!(all(&room), [21, 10]);
        (0..10).for_each(|_| assert!(room.take(1)));
        assert_eq!(all(&room), [1, 0]);
        assert!(!room.take(1));
        assert!(room.take(0));
        assert_eq!(all(&room), [0, 0]);
    }

    #[test]
    fn one_size_locks_the_others_out() {
        let kinds = vec![
            kind("nvidia-232", 4, 4, 4),
            kind("nvidia-319", 4, 4, 4),
            kind("nvidia-233", 8, 2, 2),
        ];
        let rule = Rule::OneSize { nominal: 16 * GIB, placed: BTreeMap::new() };
        let mut room = Room::ruled(kinds, rule, Some(16));
        assert!(room.take(0));
        assert_eq!(all(&room), [3, 3, 0]);
        assert!(room.take(1));
        assert_eq!(all(&room), [2, 2, 0]);
    }

    #[test]
    fn sizes_side_by_side_lie_where_the_driver_puts_them() {
        // An A40: 16 GiB at 0 leave 16 at 32 alone, and 24 nowhere once 8 are there.
        let kinds = vec![
            kind("nvidia-564", 16, 3, 9),
            kind("nvidia-565", 24, 2, 9),
            kind("nvidia-562", 8, 6, 9),
        ];
        let framebuffer = Framebuffer { gib: 48, generation: Generation::Ampere };
        let rule = Rule::Placed { framebuffer, taken: Vec::new() };
        let mut room = Room::ruled(kinds, rule, Some(32));
        assert_eq!(all(&room), [2, 2, 4]);
        assert!(room.take(0));
        assert_eq!(all(&room), [1, 1, 3]);
        assert!(room.take(2));
        assert_eq!(all(&room), [1, 1, 2], "8 GiB lie at 16, the first that is free");
        assert!(room.take(2));
        assert_eq!(all(&room), [1, 0, 1], "and at 24");
    }

    #[test]
    fn an_instance_takes_its_shape_and_only_blackwell_more_than_one() {
        let shape = |slices, gib| Shape { slices, gib, extra: String::new() };
        let mut kinds = vec![kind("nvidia-1546", 2, 48, 48), kind("nvidia-1561", 24, 4, 4)];
        kinds[0].instance = Some(shape(1, 2));
        kinds[1].instance = Some(shape(1, 24));
        let slots = |shared| {
            let slot = Slot { shape: shape(1, 24), carries: None, shared };
            Rule::Instances(vec![slot.clone(), slot])
        };
        let mut room = Room::ruled(kinds.clone(), slots(true), Some(48));
        assert_eq!(all(&room), [24, 2]);
        assert!(room.take(0));
        assert_eq!(all(&room), [23, 1]);
        // The instance that is begun is filled first.
        assert!(room.take(0));
        assert_eq!(all(&room), [22, 1]);
        assert!(room.take(1));
        assert_eq!(all(&room), [10, 0]);
        assert_eq!(all(&Room::ruled(kinds, slots(false), Some(48))), [0, 2]);
    }

    #[test]
    fn the_whole_gpu_excludes_all_else() {
        let mut whole = kind("flex-170-full", 0, 1, 1);
        whole.whole = true;
        let room = Room::shared(vec![kind("flex-170-vf", 0, 31, 4)], Some(4));
        let mut room = room.with_whole(whole);
        let mut divided = room.clone();
        assert!(divided.take(0));
        assert_eq!(all(&divided), [3, 0]);
        assert!(room.take(1));
        assert_eq!(all(&room), [0, 0]);
    }
}
