//! The service with 4,096 vGPUs: its memory at rest and after large replies,
//! and how long a list takes against `mdevctl list` on the same host.

mod report;
mod service;

use std::{
    collections::HashSet,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use vgpu_host_api::{
    path::{self, Object},
    proxy::{ManagerProxy, Options},
};
use vgpu_tests::generated::BigHost;

use report::{fast_dir, figure, median};
use service::{Service, program};

const VGPUS: usize = 4096;
const ROUNDS: usize = 20;
/// The user `nobody`: everybody may read.
const ORDINARY_USER: &str = "65534";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("daemon: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    if env::var_os("VGPU_BENCH_ON_SYS").is_some() {
        return lists(&PathBuf::from(env::var_os("VGPU_BENCH_WORK").context("VGPU_BENCH_WORK")?));
    }
    for (name, gpus, each) in [("128x32", 128, 32), ("1x4096", 1, 4096)] {
        let work = open_dir()?;
        memory(work.path(), name, gpus, each)?;
    }
    let work = open_dir()?;
    let sys = work.path().join("sys");
    fs::create_dir(&sys)?;
    let host = BigHost { gpus: 8, functions: 32, types: 20, mdevs: VGPUS as u32 };
    host.tree().map_err(anyhow::Error::msg)?.lay_out(&sys)?;
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec"])
        .arg("mount --bind \"$0\" /sys && exec \"$@\"")
        .arg(&sys)
        .arg(env::current_exe()?)
        .env("VGPU_BENCH_ON_SYS", "1")
        .env("VGPU_BENCH_WORK", work.path())
        .status()
        .context("unshare")?;
    ensure!(status.success(), "lists: {status}");
    Ok(())
}

/// A directory that every user can enter.
fn open_dir() -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir_in(fast_dir())?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    Ok(dir)
}

fn memory(work: &Path, name: &str, gpus: usize, each: usize) -> Result<()> {
    let mut spec = format!(
        "[mdev-kind.k]\ndriver = 'vfio_k'\nunits = {each}\ntypes = [{{ id = 'k-1', size = 1 }}]\n"
    );
    for n in 0..gpus {
        spec += &format!("[[virtual-parent]]\nname = 'k{n}'\nmdev = 'k'\n");
    }
    let file = work.join("host.toml");
    fs::write(&file, spec)?;
    let simulate = format!("--simulate={}", file.display());
    let service = Service::start(work, &[&simulate])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let connection = zbus::connection::Builder::address(&*service.address).build().await?;
        let manager = ManagerProxy::new(&connection).await?;
        for _ in 0..gpus * each {
            manager.create_vgpu("k-1", &Options::new()).await?;
        }
        let listed = manager.list_vgpus(&Options::new()).await?.len();
        ensure!(listed == VGPUS, "the service lists {listed} vGPUs");
        Ok(())
    })?;
    resident(&service, &format!("memory/rest-{name}"), 24.0)?;
    let manager = "/org/vgpu/Host1";
    let objects = [
        "call",
        "org.vgpu.Host1",
        manager,
        "org.freedesktop.DBus.ObjectManager",
        "GetManagedObjects",
    ];
    let introspect =
        ["call", "org.vgpu.Host1", manager, "org.freedesktop.DBus.Introspectable", "Introspect"];
    let tree = ["tree", "org.vgpu.Host1"];
    for (what, arguments) in
        [("objects", &objects[..]), ("introspection", &introspect[..]), ("tree", &tree[..])]
    {
        for _ in 0..10 {
            let said = busctl(&service, arguments)?;
            if what == "objects" {
                let vgpus = vgpu_paths(&said);
                ensure!(vgpus == VGPUS, "{what}: {vgpus} vGPUs in the reply, not {VGPUS}");
            } else {
                // Introspection does not name the children of so large a node.
                let whole = ["gpus", "vgpus", "jobs"].iter().all(|node| said.contains(node));
                ensure!(whole, "{what}: {said:?}");
            }
        }
        resident(&service, &format!("memory/ten-{what}-{name}"), 64.0)?;
    }
    Ok(())
}

fn resident(service: &Service, name: &str, goal: f64) -> Result<()> {
    figure(name, service.resident()?, goal, "MiB", 1.0);
    Ok(())
}

/// How many vGPUs have their path in what busctl says.
fn vgpu_paths(said: &str) -> usize {
    let paths = said.split(|c: char| !(c.is_ascii_alphanumeric() || "/_".contains(c)));
    let vgpus = paths.filter_map(|path| match path::parse(path)? {
        Object::Vgpu(uuid) => Some(uuid),
        _ => None,
    });
    vgpus.collect::<HashSet<_>>().len()
}

/// What busctl says when an ordinary user asks.
fn busctl(service: &Service, arguments: &[&str]) -> Result<String> {
    let user = [format!("--reuid={ORDINARY_USER}"), format!("--regid={ORDINARY_USER}")];
    let output = Command::new("setpriv")
        .args(user)
        .args(["--clear-groups", "busctl", "--timeout=120"])
        .arg(format!("--address={}", service.address))
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .context("setpriv")?;
    ensure!(output.status.success(), "busctl {arguments:?}: {}", output.status);
    String::from_utf8(output.stdout).context("what busctl says")
}

fn lists(work: &Path) -> Result<()> {
    let service = Service::start(work, &[])?;
    let ctl = program("vgpuctl")?;
    let ctl = ctl.to_str().context("a path in UTF-8")?;
    let (mut ours, mut theirs) = (vec![], vec![]);
    for round in 0..=ROUNDS {
        let mine = timed(&service, &[ctl, "list"])?;
        let other = timed(&service, &["mdevctl", "list"])?;
        if round > 0 {
            ours.push(mine);
            theirs.push(other);
        }
    }
    figure("list-4096/mdevctl", median(&ours), median(&theirs), "ms", 0.1);
    Ok(())
}

fn timed(service: &Service, command: &[&str]) -> Result<Duration> {
    let (program, arguments) = command.split_first().context("a program")?;
    let started = Instant::now();
    let output = Command::new(program)
        .args(arguments)
        .env("VGPU_BUS", &service.address)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| (*program).to_owned())?;
    let time = started.elapsed();
    let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    ensure!(output.status.success() && lines >= VGPUS, "{command:?} lists {lines} lines");
    Ok(time)
}
