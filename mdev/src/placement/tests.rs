use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::room::{Kind, Rule, Shape, Slot};

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
    let chosen = plan(&demands, &sites, Policy::Pack).unwrap();
    let on = |gib: u64| {
        let of = [4, 8, 4, 8, 4, 4].iter().zip(&chosen).filter(move |(g, _)| **g == gib);
        of.map(|(_, site)| *site).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!((on(4).len(), on(8).len()), (1, 1), "{chosen:?}");
    let one_more: Vec<Demand> = [4, 8, 2].iter().map(|gib| demand(&sites, *gib)).collect();
    let short = plan(&one_more, &sites, Policy::Pack).unwrap_err();
    assert_eq!(short, Shortfall { placed: vec![true, true, false], searched_all: true });
}

#[test]
fn spreading_uses_all_gpus() {
    let sites = [t4("a", 0, 0), t4("b", 0, 0), t4("c", 0, 0)];
    let demands = vec![demand(&sites, 4); 6];
    let chosen = plan(&demands, &sites, Policy::Spread).unwrap();
    let mut on = [0; 3];
    chosen.iter().for_each(|site| on[*site] += 1);
    assert_eq!(on, [2, 2, 2]);
}

#[test]
fn policies_are_words() {
    for policy in [Policy::Pack, Policy::Spread] {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert!("tight".parse::<Policy>().unwrap_err().to_string().contains("pack or spread"));
}

/// Every way there is: the most that the sites can take afterwards, `None` when
/// not all demands fit.
fn exhaustive(demands: &[Demand], sites: &mut Vec<Site>) -> Option<u128> {
    let Some((demand, rest)) = demands.split_first() else {
        return Some(sites.iter().map(|site| site.room.future()).sum());
    };
    let mut best = None;
    for n in 0..sites.len() {
        let Some(place) = demand[n] else { continue };
        let before = sites[n].clone();
        if sites[n].room.take(place) {
            best = best.max(exhaustive(rest, sites));
        }
        sites[n] = before;
    }
    best
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
        let slots = std::iter::repeat_n(slot(1, 4), small)
            .chain(std::iter::repeat_n(slot(2, 8), large))
            .collect();
        let kinds = vec![of(2, 8, 1), of(4, 4, 1), of(8, 2, 2)];
        let room = Room::ruled(kinds, Rule::Instances(slots), Some(5));
        Site { gpu: id.parse().unwrap(), room, vgpus: 0 }
    });
    prop_oneof![2 => one_size, 1 => shared, 1 => mig]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// There is a way exactly if some way exists, and packing leaves as much as
    /// the best of all ways.
    #[test]
    fn the_search_is_as_good_as_trying_everything(
        sites in (any_site(0), any_site(1), any_site(2)),
        count in 1usize..4,
        sizes in prop::collection::vec(prop::sample::select(vec![1u64, 2, 4, 8, 16]), 1..6),
    ) {
        let mut sites = vec![sites.0, sites.1, sites.2];
        sites.truncate(count);
        let demands: Vec<Demand> = sizes.iter().map(|gib| demand(&sites, *gib)).collect();
        let best = exhaustive(&demands, &mut sites.clone());
        let found = plan(&demands, &sites, Policy::Pack);
        let spread = plan(&demands, &sites, Policy::Spread);
        prop_assert_eq!(found.is_ok(), best.is_some());
        prop_assert_eq!(spread.is_ok(), best.is_some());
        match found {
            Ok(chosen) => {
                let mut after = sites.clone();
                for (demand, n) in demands.iter().zip(&chosen) {
                    prop_assert!(after[*n].room.take(demand[*n].unwrap()));
                }
                let left: u128 = after.iter().map(|site| site.room.future()).sum();
                prop_assert_eq!(Some(left), best);
            }
            Err(short) => prop_assert!(short.searched_all && short.placed.contains(&false)),
        }
    }
}
