//! What planning takes: 64 vGPUs of mixed profiles on eight A40s of 32 VFs each,
//! with one size on a GPU and with sizes side by side; a plan that cannot be, which
//! is searched for what fits at most; and the most vGPUs of one plan on 128 GPUs.
//! There is no peer: the second figure is an upper bound.

mod report;

use std::{
    collections::BTreeMap,
    hint::black_box,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use vgpu_mdev::{
    catalog,
    placement::{self, Demand, Policy, Site, Way},
    room::{Kind, Room, Rule},
};

use report::{figure, median};

const ROUNDS: usize = 21;
const GPUS: usize = 8;
const VFS: u32 = 32;
/// Milliseconds.
const GOAL: f64 = 10.0;
/// For the most that one call may ask for: anybody may.
const MOST_GOAL: f64 = 200.0;

/// 64 that eight GPUs of one size each take: 2 + 1 + 2 + 1 + 2 of them.
const FIT: &[(&str, usize)] = &[
    ("NVIDIA A40-12Q", 8),
    ("NVIDIA A40-8Q", 6),
    ("NVIDIA A40-4Q", 20),
    ("NVIDIA A40-2Q", 20),
    ("NVIDIA A40-6C", 10),
];

/// As many, of more than the eight have: 240 + 72 + 128 + 80 + 40 GiB of 384.
const SHORT: &[(&str, usize)] = &[
    ("NVIDIA A40-48Q", 5),
    ("NVIDIA A40-24Q", 3),
    ("NVIDIA A40-8Q", 16),
    ("NVIDIA A40-4Q", 20),
    ("NVIDIA A40-2Q", 20),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plan: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    for (mode, mixed) in [("one-size", false), ("mixed", true)] {
        let sites = host(mixed, GPUS)?;
        for policy in [Policy::Pack, Policy::Spread] {
            fits(&format!("plan/{mode}-{policy}-64x{GPUS}"), &sites, 1, policy, GOAL)?;
        }
        let demands = demands(&sites, SHORT, 1)?;
        let Err(short) = placement::plan(&demands, &sites, Policy::Pack) else {
            bail!("all of SHORT fit");
        };
        let name = format!("plan/{mode}-short-64x{GPUS}");
        let time = time(&demands, &sites, Policy::Pack);
        told(&name, time, GOAL, short.states);
    }
    let sites = host(false, 16 * GPUS)?;
    fits(&format!("plan/one-size-pack-1024x{}", 16 * GPUS), &sites, 16, Policy::Pack, MOST_GOAL)
}

fn fits(name: &str, sites: &[Site], times: usize, policy: Policy, goal: f64) -> Result<()> {
    let demands = demands(sites, FIT, times)?;
    let way = placement::plan(&demands, sites, policy).ok();
    let way = way.with_context(|| format!("{name}: no way was found"))?;
    ensure!(holds(&way, &demands, sites), "{name}: the plan does not fit");
    told(name, time(&demands, sites, policy), goal, way.states);
    Ok(())
}

fn told(name: &str, time: f64, goal: f64, states: usize) {
    figure(name, time, goal, "ms", 1.0);
    println!("{name} states={states}");
}

fn time(demands: &[Demand], sites: &[Site], policy: Policy) -> f64 {
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let _ = black_box(placement::plan(black_box(demands), black_box(sites), policy));
        times.push(begin.elapsed());
    }
    median(&times)
}

/// Whether all demands can be taken where the plan puts them.
fn holds(way: &Way, demands: &[Demand], sites: &[Site]) -> bool {
    let mut sites = sites.to_vec();
    let mut take = |(demand, n): &(usize, usize)| {
        let place = demands.get(*demand).and_then(|demand| demand.get(*n).copied().flatten());
        place.is_some_and(|place| sites.get_mut(*n).is_some_and(|site| site.room.take(place)))
    };
    way.steps.len() == demands.len() && way.steps.iter().all(&mut take)
}

fn host(mixed: bool, gpus: usize) -> Result<Vec<Site>> {
    let model = catalog::model("A40").context("the catalog has no A40")?;
    let mut kinds = Vec::new();
    for ty in model.types() {
        let id = format!("nvidia-{}", ty.number).parse()?;
        let size = u64::from(ty.gib) << 30;
        let offered = ty.max;
        kinds.push(Kind { id, size, total: ty.max, offered, whole: false, instance: None });
    }
    let rule = if mixed {
        Rule::Placed { framebuffer: model.framebuffer(), taken: Vec::new() }
    } else {
        let nominal = u64::from(model.framebuffer_gib) << 30;
        Rule::OneSize { nominal, placed: BTreeMap::new() }
    };
    let room = Room::ruled(kinds, rule, Some(VFS));
    (0..gpus)
        .map(|n| {
            let gpu = format!("0000:{:02x}:00.0", n + 1).parse()?;
            Ok(Site { gpu, room: room.clone(), vgpus: 0 })
        })
        .collect()
}

fn demands(sites: &[Site], wishes: &[(&str, usize)], times: usize) -> Result<Vec<Demand>> {
    let model = catalog::model("A40").context("the catalog has no A40")?;
    let mut demands = Vec::new();
    for (name, count) in wishes {
        let ty = model.types().find(|ty| ty.name == *name);
        let ty = ty.with_context(|| format!("the catalog has no {name}"))?;
        let id = format!("nvidia-{}", ty.number).parse()?;
        let demand: Demand = sites.iter().map(|site| site.room.position(&id)).collect();
        demands.extend(std::iter::repeat_n(demand, times * *count));
    }
    Ok(demands)
}
