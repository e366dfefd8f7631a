//! What planning 64 vGPUs on eight A40s with 32 VFs each costs, against choosing
//! a GPU for each of them one by one, as creating them does: CPU time of the
//! process, so that other work on the machine does not count. One mix is placed
//! at once, one does not fit and is searched to the bound.

mod report;

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use vgpu_mdev::{
    config::Config,
    engine::{Engine, Setup, Timing},
    placement::{Demand, Policy, Site, order, plan},
    sys::{
        Lanes,
        sim::{HostSpec, SimKernel},
    },
};

use report::{fast_dir, figure, median};

const ROUNDS: usize = 20;

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
    let sites = a40s()?;
    // 4 GiB on three GPUs, 6 on two, 8 on two; one stays empty.
    let fits = demands(&sites, &[("a40-4q", 36), ("a40-6q", 16), ("a40-8q", 12)]);
    ensure!(fits.len() == 64, "{} demands", fits.len());
    let too_many = demands(&sites, &[("a40-4q", 30), ("a40-8q", 20), ("a40-24q", 14)]);
    ensure!(too_many.len() == 64, "{} demands", too_many.len());
    ensure!(plan(&fits, &sites, Policy::Pack).is_ok(), "the mix that fits does not");
    ensure!(plan(&too_many, &sites, Policy::Pack).is_err(), "the mix that does not fit does");
    let (mut ours, mut peer, mut searched) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let planned = cost(|| plan(&fits, &sites, Policy::Pack).is_ok())?;
        let one_by_one = cost(|| choose(&fits, &sites))?;
        let refused = cost(|| plan(&too_many, &sites, Policy::Pack).is_err())?;
        if round > 0 {
            ours.push(planned);
            peer.push(one_by_one);
            searched.push(refused);
        }
    }
    let (ours, peer, searched) = (median(&ours), median(&peer), median(&searched));
    let states = |demands: &[Demand], policy| match plan(demands, &sites, policy) {
        Ok(way) => way.states,
        Err(short) => short.states,
    };
    let (found, missed) = (states(&fits, Policy::Pack), states(&too_many, Policy::Pack));
    println!("plan: {found} states; 64 vGPUs that do not fit: {missed} states, {searched:.2} ms");
    figure("plan/64-on-8x32", ours, peer, "ms", 40.0);
    Ok(())
}

/// Places each on the best GPU, as if it were created.
fn choose(demands: &[Demand], sites: &[Site]) -> bool {
    let mut sites = sites.to_vec();
    demands.iter().all(|demand| {
        let best = order(demand, &sites, Policy::Pack).into_iter().next();
        let place = best.and_then(|n| Some((n, (*demand.get(n)?)?)));
        place.is_some_and(|(n, place)| sites.get_mut(n).is_some_and(|site| site.room.take(place)))
    })
}

fn demands(sites: &[Site], wishes: &[(&str, usize)]) -> Vec<Demand> {
    let place = |site: &Site, name: &str| {
        // Kinds are by type id: those of the A40 in the catalog.
        let model = vgpu_mdev::catalog::model("A40")?;
        let ty = model.types().find(|ty| ty.name.to_lowercase().ends_with(name))?;
        site.room.position(&format!("nvidia-{}", ty.number).parse().ok()?)
    };
    wishes
        .iter()
        .flat_map(|(name, count)| {
            let demand: Demand = sites.iter().map(|site| place(site, name)).collect();
            std::iter::repeat_n(demand, *count)
        })
        .collect()
}

/// The rooms of the eight GPUs, as the engine has them.
fn a40s() -> Result<Vec<Site>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts/a40.toml");
    let spec = HostSpec::parse(&std::fs::read_to_string(&path)?, path)?;
    let kernel = SimKernel::new(&spec)?;
    let run_dir = tempfile::tempdir_in(fast_dir())?;
    let engine = Engine::start(Setup {
        executor: Arc::new(Lanes::new(Arc::new(kernel.clone()))),
        config: Config::default(),
        run_dir: run_dir.path().into(),
        module_aliases: String::new(),
        boot_id: kernel.boot_id().into(),
        timing: Timing::default(),
    })
    .map_err(|error| anyhow::anyhow!("{error}"))?;
    let snapshot = engine.snapshot();
    let sites: Vec<Site> = snapshot
        .gpus()
        .map(|gpu| Site { gpu: gpu.id.clone(), room: gpu.room.clone(), vgpus: 0 })
        .collect();
    ensure!(sites.len() == 8, "{} GPUs", sites.len());
    Ok(sites)
}

/// The CPU time that something takes.
fn cost(work: impl FnOnce() -> bool) -> Result<Duration> {
    let used = || -> Result<Duration> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).context("reading the CPU time")?;
        let of = |time: nix::sys::time::TimeVal| {
            Duration::from_secs(time.tv_sec() as u64) + Duration::from_micros(time.tv_usec() as u64)
        };
        Ok(of(usage.user_time()) + of(usage.system_time()))
    };
    let before = used()?;
    ensure!(work(), "the answer is another");
    Ok(used()?.saturating_sub(before))
}
