//! What one event costs on a host of 8 GPUs with 32 VFs of 20 types each: its
//! system calls, as strace counts them, and its time, against a look at the whole
//! host. Fails when it reads anything of another GPU.

mod report;

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, ExitCode, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use report::{fast_dir, figure, median};
use vgpu_mdev::{config::Config, sys::KernelEvent};
use vgpu_tests::{generated::BigHost, start::engine_on};

const ROUNDS: usize = 20;
/// What takes longer is stuck.
const LIMIT: Duration = Duration::from_secs(60);

/// The GPU, of eight, that the events are of, and its fifth VF with its mdev.
const BRIDGE: &str = "devices/pci0003:00/0003:00:01.0";
const PF: &str = "0003:01:00.0";
const VF: &str = "0003:01:01.0";
const MDEV: &str = "0f5c1a52-7d20-4b5e-9a00-000000000023";
/// The GPU's IOMMU group.
const GROUP: &str = "kernel/iommu_groups/104/";

fn main() -> ExitCode {
    let child = env::args().nth(1).filter(|arg| arg == "child");
    match if child.is_some() { follow() } else { run() } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rescan: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let work = tempfile::tempdir_in(fast_dir())?;
    let sys = work.path().join("sys");
    fs::create_dir(&sys)?;
    let host = BigHost { gpus: 8, functions: 32, types: 20, mdevs: 256 };
    host.tree().map_err(anyhow::Error::msg)?.lay_out(&sys)?;
    let timed = times(work.path(), &[])?;
    let log = work.path().join("log");
    let log = log.to_str().context("a path in UTF-8")?;
    times(work.path(), &["strace", "-f", "-y", "-s", "16", "-o", log])?;
    let calls = calls(&fs::read_to_string(log)?, &sys)?;
    let whole = &calls[ALL];
    for kind in [MDEV_EVENT, GPU_EVENT] {
        let foreign = calls[kind].files.iter().find(|path| !is_of_the_gpu(path));
        ensure!(foreign.is_none(), "{} reads {foreign:?}", NAMES[kind]);
    }
    // One GPU of eight; of it, for an mdev, what its VFs still offer, which changes
    // with each.
    for (kind, goal) in [(MDEV_EVENT, 0.08), (GPU_EVENT, 0.13)] {
        let name = format!("rescan/{}", NAMES[kind]);
        figure(&format!("{name}-calls"), calls[kind].number, whole.number, "", goal);
        figure(&format!("{name}-time"), median(&timed[kind]), median(&timed[ALL]), "ms", 0.5);
    }
    Ok(())
}

const MDEV_EVENT: usize = 0;
const GPU_EVENT: usize = 1;
const ALL: usize = 2;
const NAMES: [&str; 3] = ["mdev-event", "gpu-event", "all"];

/// The rounds' times, of each kind, of an engine in a process of its own.
fn times(work: &Path, below: &[&str]) -> Result<[Vec<Duration>; 3]> {
    let own = env::current_exe()?;
    let own = own.to_str().context("a path in UTF-8")?;
    let work = work.to_str().context("a path in UTF-8")?;
    let line = [below, &[own, "child", work]].concat();
    let (program, args) = line.split_first().context("a program")?;
    let mut child = Command::new(program)
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .context(program.to_string())?;
    let mut times = [vec![], vec![], vec![]];
    for line in BufReader::new(child.stdout.take().context("its output")?).lines() {
        let line = line?;
        if let Some((name, nanos)) = line.strip_prefix("done ").and_then(|l| l.split_once(' ')) {
            let kind = NAMES.iter().position(|known| *known == name).context("a kind")?;
            times[kind].push(Duration::from_nanos(nanos.parse()?));
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{program}: {status}");
    Ok(times)
}

/// In the child: makes a change, tells the engine, and waits until it is seen.
fn follow() -> Result<()> {
    let work = env::args().nth(2).context("a directory")?;
    let work = Path::new(&work);
    let sys = work.join("sys");
    let left = format!("{BRIDGE}/{VF}/mdev_supported_types/nvidia-500/available_instances");
    fs::write(sys.join(&left), "1\n")?;
    let engine = engine_on(&sys, &work.join("scratch"), Config::default())?;
    let (say, heard) = mpsc::channel();
    engine.subscribe(move |change| {
        let _ = say.send(change.after.revision());
    });
    let event = |subsystem: &str, device: &str| KernelEvent {
        action: "change".into(),
        subsystem: subsystem.into(),
        devpath: format!("/{BRIDGE}/{device}"),
        properties: Vec::new(),
    };
    let mut out = std::io::stdout();
    for round in 0..=ROUNDS {
        for (kind, name) in NAMES.iter().enumerate() {
            fs::write(sys.join(&left), format!("{}\n", (round * NAMES.len() + kind) % 2))?;
            while heard.try_recv().is_ok() {}
            out.write_all(format!("begin {name}\n").as_bytes())?;
            let started = Instant::now();
            match kind {
                MDEV_EVENT => engine.observe(&event("mdev", &format!("{VF}/{MDEV}"))),
                GPU_EVENT => engine.observe(&event("pci", PF)),
                _ => engine.rescan()?,
            }
            heard.recv_timeout(LIMIT).with_context(|| format!("{name} changes nothing"))?;
            // The first round starts the lanes.
            let name = if round > 0 { name } else { "first" };
            let nanos = started.elapsed().as_nanos();
            match name {
                "first" => out.write_all(b"warm\n")?,
                name => out.write_all(format!("done {name} {nanos}\n").as_bytes())?,
            }
        }
    }
    Ok(())
}

/// What one kind of look asks of the kernel.
#[derive(Default)]
struct Asked {
    /// System calls a round.
    number: f64,
    /// The files below the tree that were named.
    files: Vec<String>,
}

/// What strace saw between the marks.
fn calls(log: &str, sys: &Path) -> Result<[Asked; 3]> {
    let below = format!("{}/", sys.display());
    let mut asked: [Asked; 3] = Default::default();
    let mut current = None;
    for line in log.lines() {
        if let Some((_, name)) = line.split_once("\"begin ") {
            current = NAMES.iter().position(|known| name.starts_with(known));
            continue;
        }
        if line.contains("\"done ") || line.contains("\"warm") {
            current = None;
        }
        let Some(asked) = current.and_then(|kind| asked.get_mut(kind)) else { continue };
        // A call that another thread interrupts has two lines.
        asked.number += f64::from(u8::from(!line.contains("<... ")));
        let opened = line.contains("open").then(|| line.rsplit_once(&below)).flatten();
        let path = opened.and_then(|(_, path)| path.split('>').next());
        asked.files.extend(path.map(str::to_owned));
    }
    for asked in &mut asked {
        asked.number /= (ROUNDS + 1) as f64;
    }
    ensure!(asked.iter().all(|asked| !asked.files.is_empty()), "strace saw no file");
    Ok(asked)
}

/// Whether a path is of the GPU, its group, or what no GPU has for itself: which
/// classes there are, and the count of uevents.
fn is_of_the_gpu(path: &str) -> bool {
    let shared = ["class", "kernel", "kernel/uevent_seqnum"];
    path.starts_with(BRIDGE) || path.starts_with(GROUP) || shared.contains(&path)
}
