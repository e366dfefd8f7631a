//! Cold discovery: from exec to the published picture of a host of 8 GPUs with
//! 32 VFs of 20 types each, against a C program that reads the same files, and
//! against mdevctl. The page cache is warm; the runs take turns.

mod report;

use std::{
    env, fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use report::{fast_dir, figure, median};
use vgpu_tests::generated::BigHost;

const ROUNDS: usize = 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("discovery: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    if let Some(mdevs) = env::var_os("VGPU_BENCH_ON_SYS") {
        return measure(mdevs.to_str().context("a number")?.parse()?);
    }
    let work = tempfile::tempdir_in(fast_dir())?;
    let reader = work.path().join("reader");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/reader.c");
    let built = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .args([&reader, &source])
        .status()
        .context("cc")?;
    ensure!(built.success(), "cc: {built}");
    for mdevs in [0, 4096] {
        let sys = work.path().join(mdevs.to_string());
        fs::create_dir(&sys)?;
        let host = BigHost { gpus: 8, functions: 32, types: 20, mdevs };
        host.tree().map_err(anyhow::Error::msg)?.lay_out(&sys)?;
        // In a mount name space of its own, where the tree is /sys: mdevctl
        // looks nowhere else. Everybody else looks there as well.
        let status = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-ec"])
            .arg("mount --bind \"$0\" /sys && exec \"$@\"")
            .arg(&sys)
            .arg(env::current_exe()?)
            .env("VGPU_BENCH_ON_SYS", mdevs.to_string())
            .env("VGPU_BENCH_WORK", work.path())
            .status()
            .context("unshare")?;
        ensure!(status.success(), "with {mdevs} mdevs: {status}");
    }
    Ok(())
}

fn measure(mdevs: u32) -> Result<()> {
    let work = PathBuf::from(env::var_os("VGPU_BENCH_WORK").context("VGPU_BENCH_WORK")?);
    let reader = work.join("reader");
    let reader = reader.to_str().context("a path in UTF-8")?;
    let mdevctl: &[&str] = if mdevs == 0 { &["mdevctl", "types"] } else { &["mdevctl", "list"] };
    let (mut ours, mut serial, mut two, mut theirs) = (vec![], vec![], vec![], vec![]);
    let golden = golden(mdevs);
    for round in 0..=ROUNDS {
        let scratch = tempfile::tempdir_in(&work)?;
        let path = scratch.path().to_str().context("a path in UTF-8")?;
        let (time, line) = until_first_line(&[env!("CARGO_BIN_EXE_discover"), "/sys", path])?;
        ensure!(line == format!("8 GPUs, {mdevs} vGPUs"), "discover says {line:?}");
        let picture = fs::read_to_string(scratch.path().join("picture"))?;
        ensure!(
            picture == golden,
            "the picture differs from the golden one: {}",
            differs(&picture, &golden)
        );
        let mut times = vec![(&mut ours, time)];
        times.push((&mut serial, until_first_line(&[reader, "/sys", "1"])?.0));
        times.push((&mut two, until_first_line(&[reader, "/sys", "2"])?.0));
        times.push((&mut theirs, until_the_end(mdevctl)?));
        // The first round warms the cache.
        for (times, time) in times.into_iter().filter(|_| round > 0) {
            times.push(time);
        }
    }
    let ours = median(&ours);
    figure(&format!("discovery-{mdevs}/c-serial"), ours, median(&serial), "ms", 0.8);
    // No goal was set against these two: 1 is to be no slower.
    figure(&format!("discovery-{mdevs}/c-two-threads"), ours, median(&two), "ms", 1.0);
    figure(&format!("discovery-{mdevs}/{}", mdevctl.join("-")), ours, median(&theirs), "ms", 1.0);
    Ok(())
}

fn until_first_line(command: &[&str]) -> Result<(Duration, String)> {
    let (program, args) = command.split_first().context("a program")?;
    let started = Instant::now();
    let mut child = Command::new(program).args(args).stdout(Stdio::piped()).spawn()?;
    let mut line = [0; 256];
    let length = child.stdout.take().context("its output")?.read(&mut line)?;
    let time = started.elapsed();
    let status = child.wait()?;
    ensure!(status.success(), "{program}: {status}");
    let line = line.get(..length).unwrap_or_default();
    Ok((time, String::from_utf8_lossy(line).trim().to_owned()))
}

fn until_the_end(command: &[&str]) -> Result<Duration> {
    let (program, args) = command.split_first().context("a program")?;
    let started = Instant::now();
    let output =
        Command::new(program).args(args).output().with_context(|| (*program).to_owned())?;
    let time = started.elapsed();
    if !output.status.success() || output.stdout.is_empty() {
        bail!("{command:?} gave nothing: {}", output.status);
    }
    Ok(time)
}

fn differs(picture: &str, golden: &str) -> String {
    let mut pairs = picture.lines().zip(golden.lines());
    match pairs.find(|(is, should)| is != should) {
        Some((is, should)) => format!("{is:?} instead of {should:?}"),
        None => format!("{} bytes instead of {}", picture.len(), golden.len()),
    }
}

/// The picture as it must be, written down without the engine.
fn golden(mdevs: u32) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let per_vf = mdevs / 256;
    let vgpu = |gpu: u32, vf: u32, nth: u32| nth * 256 + vf * 8 + gpu;
    for gpu in 0..8 {
        let _ = writeln!(
            text,
            "GPU {gpu:04x}:01:00.0: NVIDIA A40 [10de:2235], mdev, ready\n  driver nvidia, NUMA \
             node 0, IOMMU group {}, VFs 32 of 32",
            gpu * 34 + 2
        );
        let types = (0..20).map(|n| {
            // What the VFs offer, less the vGPUs of one size.
            let taken = (0..mdevs).filter(|m| m % 8 == gpu && m % 20 == n).count() as u32;
            (n, 32_u32.saturating_sub(taken))
        });
        for (n, available) in types {
            let why = if available > 0 {
                ""
            } else {
                ", full: the driver has no instance of this type left: vGPUs on the same GPU \
                 take its place, possibly of other types; remove one of them"
            };
            let _ = writeln!(
                text,
                "  profile nvidia-{} = a40-{n}q (\"NVIDIA A40-{n}Q\", mdev, vfio-pci), {} MiB: \
                 {available} of 32{why}",
                500 + n,
                1024 * (n + 1)
            );
        }
        let address = |vf: u32| format!("{gpu:04x}:01:{:02x}.{}", (4 + vf) >> 3, (4 + vf) & 7);
        let uuid = |n: u32| format!("0f5c1a52-7d20-4b5e-9a00-{n:012x}");
        for vf in 0..32 {
            let _ = match per_vf {
                0 => writeln!(text, "  function {}: free, driver nvidia", address(vf)),
                _ => writeln!(
                    text,
                    "  function {}: vgpu, driver nvidia, vGPU {}",
                    address(vf),
                    uuid(vgpu(gpu, vf, 0))
                ),
            };
        }
        let mut all: Vec<(u32, u32)> =
            (0..32).flat_map(|vf| (0..per_vf).map(move |n| (vgpu(gpu, vf, n), vf))).collect();
        all.sort_unstable();
        for (n, vf) in all {
            let group = 8 * 34 + 1 + n;
            let _ = writeln!(
                text,
                "  vGPU {}: nvidia-{} on {}, mdev, active, foreign, group {group}, group node \
                 vfio/{group}",
                uuid(n),
                500 + n % 20,
                address(vf)
            );
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}
