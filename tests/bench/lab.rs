//! Creating and removing an mtty in the lab: the engine in this process and
//! over the bus, against raw writes and mdevctl, in turns. Outside the lab it
//! boots the guest and runs itself there.

mod report;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use uuid::Uuid;
use vgpu_host_api::proxy::{ManagerProxy, Options, VgpuProxy};
use vgpu_mdev::{
    config::Config,
    engine::{Engine, Setup, Timing},
    request::{Control, CreateRequest, RemoveOptions},
    sys::{
        Lanes,
        real::{MonitorItem, Programs, RealKernel, Roots, monitor},
    },
};

use report::{figure, median};

const ROUNDS: usize = 60;
/// mdevctl takes long.
const THEIR_ROUNDS: usize = 12;
const TYPE: &str = "/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1";

fn main() -> ExitCode {
    let done = match env::var_os("VGPU_LAB") {
        Some(_) => in_the_guest(),
        None => boot(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn boot() -> Result<()> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checkout = tests.parent().context("the checkout")?;
    let own = env::current_exe()?;
    let bins = own.parent().and_then(Path::parent).context("target/release")?;
    let status = Command::new(tests.join("lab/boot.sh"))
        .args(["--env", "LAB_MODULES=vfio-pci vfio_iommu_type1 mtty", "--keep"])
        .arg(checkout)
        .arg("--keep")
        .arg(bins)
        .arg("--setup")
        .arg(format!("'{}' '{}'", tests.join("lab/setup.sh").display(), checkout.display()))
        .arg("--env")
        .arg(format!("VGPU_BIN_DIR={}", bins.display()))
        .arg("--")
        .arg(own)
        .status()
        .context("boot.sh")?;
    ensure!(status.success(), "the guest: {status}");
    Ok(())
}

fn in_the_guest() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    in_process()?;
    runtime.block_on(over_the_bus())
}

fn in_process() -> Result<()> {
    let kernel = RealKernel::new(&Roots::default(), Programs::default())?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let aliases = format!("/lib/modules/{}/modules.alias", release.trim());
    let engine = Engine::start(Setup {
        executor: Arc::new(Lanes::new(Arc::new(kernel))),
        config: Config::default(),
        run_dir: PathBuf::from("/run/bench"),
        module_aliases: fs::read_to_string(aliases)?,
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
        timing: Timing::default(),
    })?;
    let listener = engine.clone();
    let _monitor = monitor(move |item| {
        if let MonitorItem::Event(event) = item {
            listener.observe(&event);
        }
    })?;
    let control = Control::default();
    let request = CreateRequest { profile: "mtty-1".into(), ..CreateRequest::default() };
    let (mut raw, mut ours, mut create) = (vec![], vec![], vec![]);
    for round in 0..=ROUNDS {
        settle()?;
        let raw_time = timed(raw_pair)?;
        settle()?;
        let started = Instant::now();
        let made = engine.create(&request, &control)?;
        let created = started.elapsed();
        engine.remove(made.uuid, RemoveOptions::default(), &control)?;
        let our_time = started.elapsed();
        if round > 0 {
            raw.push(raw_time);
            ours.push(our_time);
            create.push(created);
        }
    }
    eprintln!("lab: the engine's create alone takes {:.2} ms", median(&create));
    figure("lab/engine-raw", median(&ours), median(&raw), "ms", 1.2);
    Ok(())
}

async fn over_the_bus() -> Result<()> {
    let bins = PathBuf::from(env::var_os("VGPU_BIN_DIR").context("VGPU_BIN_DIR")?);
    let _service = Ended(
        Command::new(bins.join("vgpu-hostd"))
            .args(["--log", "warn"])
            .spawn()
            .context("vgpu-hostd")?,
    );
    let waited = Command::new("gdbus")
        .args(["wait", "--system", "--timeout", "120", "org.vgpu.Host1"])
        .status()?;
    ensure!(waited.success(), "the service did not start");
    let connection = zbus::Connection::system().await?;
    let manager = ManagerProxy::new(&connection).await?;
    let peer = zbus::fdo::PeerProxy::builder(&connection)
        .destination("org.vgpu.Host1")
        .path("/org/vgpu/Host1")
        .build()
        .await?;
    let (mut raw, mut null, mut ours, mut theirs) = (vec![], vec![], vec![], vec![]);
    for round in 0..=ROUNDS {
        settle()?;
        let raw_time = timed(raw_pair)?;
        settle()?;
        let started = Instant::now();
        peer.ping().await?;
        peer.ping().await?;
        let null_time = started.elapsed();
        let started = Instant::now();
        let (path, created, _) = manager.create_vgpu("mtty-1", &Options::new()).await?;
        ensure!(created, "{path} was there");
        let vgpu = VgpuProxy::builder(&connection).path(path).build().await?;
        vgpu.remove(&Options::new()).await?;
        let our_time = started.elapsed();
        if round > 0 {
            raw.push(raw_time);
            null.push(null_time);
            ours.push(our_time);
        }
        if round > 0 && round <= THEIR_ROUNDS {
            settle()?;
            theirs.push(timed(mdevctl_pair)?);
        }
    }
    let allowed = median(&raw) + 1.5 * median(&null);
    eprintln!("lab: raw {:.2} ms, two null calls {:.2} ms", median(&raw), median(&null));
    figure("lab/bus-raw-and-null", median(&ours), allowed, "ms", 1.0);
    figure("lab/bus-mdevctl", median(&ours), median(&theirs), "ms", 1.0 / 3.0);
    Ok(())
}

fn raw_pair() -> Result<()> {
    let uuid = Uuid::new_v4();
    write(&format!("{TYPE}/create"), &uuid.to_string())?;
    write(&format!("/sys/bus/mdev/devices/{uuid}/remove"), "1")
}

/// One `write`, into what is there.
fn write(path: &str, value: &str) -> Result<()> {
    use std::io::Write;
    let mut file =
        fs::OpenOptions::new().write(true).open(path).with_context(|| path.to_owned())?;
    Ok(file.write_all(value.as_bytes())?)
}

fn mdevctl_pair() -> Result<()> {
    let uuid = Uuid::new_v4().to_string();
    let run = |arguments: &[&str]| -> Result<()> {
        let status = Command::new("mdevctl").args(arguments).status().context("mdevctl")?;
        ensure!(status.success(), "mdevctl {arguments:?}: {status}");
        Ok(())
    };
    run(&["start", "-u", &uuid, "-p", "mtty", "-t", "mtty-1"])?;
    run(&["stop", "-u", &uuid])
}

/// What came before must not count.
fn settle() -> Result<()> {
    let status = Command::new("udevadm").args(["settle", "--timeout=60"]).status()?;
    ensure!(status.success(), "udevadm settle: {status}");
    Ok(())
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
