use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{
    framebuffer::{Framebuffer, Generation, Run},
    room::{Kind, Rule, Shape, Slot},
};

use super::*;

const GIB: u64 = 1 << 30;

fn kind(gib: u64, total: u32, offered: u32) -> Kind {
    let id = format!("nvidia-{gib}").parse().unwrap();
    Kind { id, size: gib * GIB, total, offered, whole: false, instance: None }
}

/// A T4 that carries so many vGPUs of one size: 16 GiB, one size at a time.
fn t4(id: &str, size: u64, count: u32) -> Site {
    let sizes = [1, 2, 4, 8, 16];
    let left = |gib: u64| match count {
        0 => (16 / gib) as u32,
        _ if gib == size => (16 / gib) as u32 - count,
        _ => 0,
    };
    let kinds = sizes.iter().map(|gib| kind(*gib, (16 / gib) as u32, left(*gib))).collect();
    let placed = if count == 0 { BTreeMap::new() } else { [(size * GIB, count)].into() };
    let rule = Rule::OneSize { nominal: 16 * GIB, placed };
    Site { gpu: id.parse().unwrap(), room: Room::ruled(kinds, rule, None), vgpus: count as usize }
}

fn demand(sites: &[Site], gib: u64) -> Demand {
    let id = format!("nvidia-{gib}").parse().unwrap();
    sites.iter().map(|site| site.room.position(&id)).collect()
}

/// The site of each demand, once all were made in the plan's order.
fn made(way: &Way, demands: &[Demand], sites: &[Site]) -> (Vec<usize>, Vec<Site>) {
    let mut after = sites.to_vec();
    let mut on = vec![usize::MAX; demands.len()];
    for (demand, site) in &way.steps {
        assert!(after[*site].room.take(demands[*demand][*site].unwrap()), "{way:?}");
        on[*demand] = *site;
    }
    assert!(!on.contains(&usize::MAX), "{way:?}");
    (on, after)
}

fn gpus(sites: &[Site], order: &[usize]) -> Vec<String> {
    order.iter().map(|n| sites[*n].gpu.to_string()).collect()
}

#[test]
fn packing_fills_what_is_begun_and_spreading_does_not() {
    let sites = [t4("a", 0, 0), t4("b", 4, 1), t4("c", 4, 3), t4("d", 8, 1)];
    let of_4 = demand(&sites, 4);
    assert_eq!(gpus(&sites, &order(&of_4, &sites, Policy::Pack)), ["c", "b", "a"]);
    assert_eq!(gpus(&sites, &order(&of_4, &sites, Policy::Spread)), ["a", "b", "c"]);
    let of_16 = demand(&sites, 16);
    assert_eq!(gpus(&sites, &order(&of_16, &sites, Policy::Pack)), ["a"]);
    let none = demand(&sites, 32);
    assert_eq!(order(&none, &sites, Policy::Pack), [0usize; 0]);
}

#[test]
fn sizes_go_to_gpus_of_their_own() {
    let sites = [t4("a", 0, 0), t4("b", 0, 0)];
    let demands: Vec<Demand> = [4, 8, 4, 8, 4, 4].iter().map(|gib| demand(&sites, *gib)).collect();
    let (chosen, _) = made(&plan(&demands, &sites, Policy::Pack).unwrap(), &demands, &sites);
    let on = |gib: u64| {
        let of = [4, 8, 4, 8, 4, 4].iter().zip(&chosen).filter(move |(g, _)| **g == gib);
        of.map(|(_, site)| *site).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!((on(4).len(), on(8).len()), (1, 1), "{chosen:?}");
    let one_more: Vec<Demand> = [4, 8, 2].iter().map(|gib| demand(&sites, *gib)).collect();
    let short = plan(&one_more, &sites, Policy::Pack).unwrap_err();
    assert_eq!(short.placed, [true, true, false]);
    assert!(short.certain && short.most, "{short:?}");
}

#[test]
fn what_does_not_fit_hides_nothing_that_does() {
    let sites = [t4("a", 4, 1), t4("b", 4, 1)];
    let demands: Vec<Demand> = [16, 4, 4].iter().map(|gib| demand(&sites, *gib)).collect();
    for policy in [Policy::Pack, Policy::Spread] {
        let short = plan(&demands, &sites, policy).unwrap_err();
        assert_eq!(short.placed, [false, true, true], "{policy}");
        assert!(short.certain && short.most, "{short:?}");
    }
}

#[test]
fn spreading_uses_all_gpus() {
    let sites = [t4("a", 0, 0), t4("b", 0, 0), t4("c", 0, 0)];
    let demands = vec![demand(&sites, 4); 6];
    let (chosen, _) = made(&plan(&demands, &sites, Policy::Spread).unwrap(), &demands, &sites);
    let mut on = [0; 3];
    chosen.iter().for_each(|site| on[*site] += 1);
    assert_eq!(on, [2, 2, 2]);
}

#[test]
fn spreading_finds_a_way_where_packing_does() {
    // Five sizes that fill eight A40s of one size each: two with 12 GiB, one with
    // 8, two with 4, one with 2 and two with 6. Spreading the first uses up all.
    let a40 = |n: usize| {
        let kinds = [2, 4, 6, 8, 12].map(|gib| kind(gib, (48 / gib) as u32, 32)).to_vec();
        let rule = Rule::OneSize { nominal: 48 * GIB, placed: BTreeMap::new() };
        let room = Room::ruled(kinds, rule, Some(32));
        Site { gpu: format!("gpu{n}").parse().unwrap(), room, vgpus: 0 }
    };
    let sites: Vec<Site> = (0..8).map(a40).collect();
    let wishes = [(12, 8), (8, 6), (4, 20), (2, 20), (6, 10)];
    let demands: Vec<Demand> = wishes
        .iter()
        .flat_map(|(gib, count)| std::iter::repeat_n(demand(&sites, *gib), *count))
        .collect();
    for policy in [Policy::Pack, Policy::Spread] {
        made(&plan(&demands, &sites, policy).unwrap(), &demands, &sites);
    }
}

#[test]
fn gpus_are_not_alike_where_a_demand_may_have_one_alone() {
    let sites = [t4("a", 0, 0), t4("b", 0, 0)];
    let either = demand(&sites, 16);
    let first = vec![either[0], None];
    let demands = [either, first];
    let (on, _) = made(&plan(&demands, &sites, Policy::Pack).unwrap(), &demands, &sites);
    assert_eq!(on, [1, 0]);
}

/// An A40 in heterogeneous mode.
fn mixed_a40(id: &str) -> Site {
    let kinds =
        [1, 2, 3, 4, 6, 8, 12, 16, 24, 48].map(|gib| kind(gib, (48 / gib).min(32) as u32, 32));
    let framebuffer = Framebuffer { gib: 48, generation: Generation::Ampere };
    let rule = Rule::Placed { framebuffer, taken: Vec::new() };
    Site { gpu: id.parse().unwrap(), room: Room::ruled(kinds.to_vec(), rule, Some(32)), vgpus: 0 }
}

#[test]
fn a_plan_is_in_the_order_in_which_it_fits() {
    // The driver puts 8 GiB at 0 if they come first: then 16 GiB fit at 32 alone.
    let sites = [mixed_a40("a")];
    let demands: Vec<Demand> = [8, 16, 16].iter().map(|gib| demand(&sites, *gib)).collect();
    let mut as_asked = sites[0].room.clone();
    let fits: Vec<bool> = demands.iter().map(|d| as_asked.take(d[0].unwrap())).collect();
    assert_eq!(fits, [true, true, false]);
    for policy in [Policy::Pack, Policy::Spread] {
        let way = plan(&demands, &sites, policy).unwrap();
        assert_eq!(way.steps, [(1, 0), (2, 0), (0, 0)]);
    }
    // Of one kind there is one order.
    let short = plan(&vec![demand(&sites, 24); 3], &sites, Policy::Pack).unwrap_err();
    assert!(short.certain && short.most && short.placed == [true, true, false], "{short:?}");
    let mixed: Vec<Demand> = [24, 16, 16].iter().map(|gib| demand(&sites, *gib)).collect();
    let short = plan(&mixed, &sites, Policy::Pack).unwrap_err();
    assert!(!short.certain && !short.most, "{short:?}");
}

#[test]
fn what_was_not_searched_to_the_end_is_not_certain() {
    // 425 GiB on 24 GPUs of 16, of which no two are alike. 30 of 3 GiB fill six
    // of them and 40 of 4 GiB ten: the other eight take two of 7 GiB each.
    let sites: Vec<Site> = (0..24)
        .map(|n| {
            let kinds = vec![kind(3, 5, 5), kind(4, 4, 4), kind(7, 2, 2), kind(100 + n, 1, 1)];
            let rule = Rule::Mixed { left: 16 * GIB };
            let gpu = format!("gpu{n:02}").parse().unwrap();
            Site { gpu, room: Room::ruled(kinds, rule, None), vgpus: 0 }
        })
        .collect();
    let demands: Vec<Demand> = [(7, 25), (4, 40), (3, 30)]
        .iter()
        .flat_map(|(gib, count)| std::iter::repeat_n(demand(&sites, *gib), *count))
        .collect();
    let short = plan(&demands, &sites, Policy::Pack).unwrap_err();
    assert!(!short.certain && !short.most, "{short:?}");
    assert!(short.states <= 2 * MOST_STATES, "{}", short.states);
    assert!(short.placed.iter().filter(|placed| **placed).count() >= 30 + 40 + 16);
}

#[test]
fn a_plan_of_the_most_vgpus_ends() {
    let sites: Vec<Site> = (0..128).map(|n| t4(&format!("gpu{n:03}"), 0, 0)).collect();
    let demands = vec![demand(&sites, 2); 1024];
    for policy in [Policy::Pack, Policy::Spread] {
        let way = plan(&demands, &sites, policy).unwrap();
        let mut on = [0; 128];
        way.steps.iter().for_each(|(_, n)| on[*n] += 1);
        assert_eq!(on, [8; 128]);
    }
}

#[test]
fn policies_are_words() {
    for policy in [Policy::Pack, Policy::Spread] {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert!("tight".parse::<Policy>().unwrap_err().to_string().contains("pack or spread"));
}

/// All that can come of some demands on some sites, by every way in every order.
#[derive(Default)]
struct Exhaustive {
    /// The most that the sites can take after all are placed; `None` when they
    /// never are.
    best: Option<u128>,
    /// The most that are placed together.
    most: usize,
    seen: std::collections::BTreeSet<(u32, Vec<Room>)>,
}

impl Exhaustive {
    fn of(demands: &[Demand], sites: &[Site]) -> Self {
        let mut all = Self::default();
        all.go(demands, 0, &mut sites.to_vec());
        all
    }

    fn go(&mut self, demands: &[Demand], placed: u32, sites: &mut Vec<Site>) {
        let rooms: Vec<Room> = sites.iter().map(|site| site.room.clone()).collect();
        if !self.seen.insert((placed, rooms)) {
            return;
        }
        self.most = self.most.max(placed.count_ones() as usize);
        if placed.count_ones() as usize == demands.len() {
            self.best = self.best.max(Some(sites.iter().map(|site| site.room.future()).sum()));
        }
        for (n, demand) in demands.iter().enumerate().filter(|(n, _)| placed & (1 << n) == 0) {
            for at in 0..sites.len() {
                let before = sites[at].clone();
                if demand[at].is_some_and(|place| sites[at].room.take(place)) {
                    self.go(demands, placed | (1 << n), sites);
                }
                sites[at] = before;
            }
        }
    }
}

fn any_site(n: usize) -> impl Strategy<Value = Site> {
    let id = format!("gpu{n}");
    let one_size = (prop::sample::select(vec![1u64, 2, 4, 8, 16]), 0u32..4).prop_map({
        let id = id.clone();
        move |(size, count)| t4(&id, size, count.min((16 / size) as u32))
    });
    let shared = (1u32..5).prop_map({
        let id = id.clone();
        move |left| {
            let kinds =
                vec![kind(1, 8, left * 2), kind(2, 4, left), kind(8, 1, u32::from(left >= 4))];
            Site { gpu: id.parse().unwrap(), room: Room::shared(kinds, None), vgpus: 0 }
        }
    });
    let mig = (0usize..3, 0usize..3, any::<bool>()).prop_map(move |(small, large, shared)| {
        let shape = |slices, gib| Shape { slices, gib, extra: String::new() };
        let of = |gib, total, slices| Kind {
            instance: Some(shape(slices, gib as u32)),
            ..kind(gib, total, 9)
        };
        let slot = |slices, gib| Slot { shape: shape(slices, gib), carries: None, shared };
        // One that is begun, behind those that are empty.
        let begun = Slot { carries: Some(("nvidia-2".parse().unwrap(), 1)), ..slot(1, 4) };
        let slots = std::iter::repeat_n(slot(1, 4), small)
            .chain(std::iter::repeat_n(slot(2, 8), large))
            .chain((shared && small > 0).then_some(begun))
            .collect();
        let kinds = vec![of(2, 8, 1), of(4, 4, 1), of(8, 2, 2)];
        let room = Room::ruled(kinds, Rule::Instances(slots), Some(5));
        Site { gpu: id.parse().unwrap(), room, vgpus: 0 }
    });
    let mixed = prop::sample::subsequence(vec![0u32, 4, 8, 12], 0..3).prop_map(move |starts| {
        let kinds = [1, 2, 4, 8, 16].map(|gib| kind(gib, (16 / gib) as u32, 16)).to_vec();
        let taken = starts.iter().map(|start| Run { start: *start, size: 4 }).collect();
        let framebuffer = Framebuffer { gib: 16, generation: Generation::Ampere };
        let room = Room::ruled(kinds, Rule::Placed { framebuffer, taken }, Some(16));
        Site { gpu: format!("gpu{n}").parse().unwrap(), room, vgpus: starts.len() }
    });
    prop_oneof![2 => one_size, 1 => shared, 1 => mig, 1 => mixed]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// There is a way exactly if some way exists, packing leaves as much as the
    /// best of all ways, and what falls short is placed as far as can be; where the
    /// order matters, what is said to be certain is.
    #[test]
    fn the_search_is_as_good_as_trying_everything(
        sites in (any_site(0), any_site(1), any_site(2)),
        count in 1usize..4,
        sizes in prop::collection::vec(prop::sample::select(vec![1u64, 2, 4, 8, 16]), 1..6),
    ) {
        let mut sites = vec![sites.0, sites.1, sites.2];
        sites.truncate(count);
        let demands: Vec<Demand> = sizes.iter().map(|gib| demand(&sites, *gib)).collect();
        let all = Exhaustive::of(&demands, &sites);
        let depends = |site: &Site| match site.room.rule() {
            Rule::Placed { .. } => true,
            Rule::Instances(slots) => slots.iter().any(|slot| slot.shared),
            _ => false,
        };
        let one_order = !sites.iter().any(depends);
        for policy in [Policy::Pack, Policy::Spread] {
            match plan(&demands, &sites, policy) {
                Ok(way) => {
                    let (_, after) = made(&way, &demands, &sites);
                    let left: u128 = after.iter().map(|site| site.room.future()).sum();
                    prop_assert!(Some(left) <= all.best);
                    if one_order && policy == Policy::Pack {
                        prop_assert_eq!(Some(left), all.best);
                    }
                }
                Err(short) => {
                    let placed = short.placed.iter().filter(|placed| **placed).count();
                    prop_assert!(placed < demands.len() && placed <= all.most);
                    prop_assert!(!one_order || (short.certain && short.most));
                    prop_assert!(!short.certain || all.best.is_none());
                    prop_assert!(!short.most || placed == all.most);
                }
            }
        }
    }
    /// Feasibility goes first, also where a host is too large to try everything.
    #[test]
    fn spreading_finds_a_way_wherever_packing_does(
        sizes in prop::collection::vec(prop::sample::select(vec![3u64, 4, 5, 6, 7]), 20..45),
    ) {
        let sites: Vec<Site> = (0..12)
            .map(|n| {
                let kinds = [3, 4, 5, 6, 7].map(|gib| kind(gib, (16 / gib) as u32, 16)).to_vec();
                let room = Room::ruled(kinds, Rule::Mixed { left: 16 * GIB }, None);
                Site { gpu: format!("gpu{n:02}").parse().unwrap(), room, vgpus: 0 }
            })
            .collect();
        let demands: Vec<Demand> = sizes.iter().map(|gib| demand(&sites, *gib)).collect();
        if let Ok(way) = plan(&demands, &sites, Policy::Pack) {
            made(&way, &demands, &sites);
            let spread = plan(&demands, &sites, Policy::Spread);
            prop_assert!(spread.is_ok(), "{:?}", spread);
            made(&spread.unwrap(), &demands, &sites);
        }
    }
}
