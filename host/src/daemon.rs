//! From start to stop: the kernel, the engine's first scan, the bus, and READY.

use std::{future::poll_fn, path::PathBuf, task::Poll, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use vgpu_mdev::engine::{Engine, Hint, Setup, Timing};
use vgpu_polkit::Polkit;
use zbus::{Connection, connection};

use crate::{
    bus::{Host, Server},
    files,
    kernel::{self, KernelChoice},
};

/// How long a caller is kept waiting before its work goes on as a job: a
/// client's default timeout is 25 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long stopping waits for what runs: longer than a change whose kernel
/// hangs, and less than the unit's TimeoutStopSec.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// How the daemon is to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The bus to serve on; the system bus when not given.
    pub bus: Option<String>,
    /// The kernel below.
    pub kernel: KernelChoice,
    /// `host.toml`.
    pub config: PathBuf,
    /// Where the claims are kept.
    pub run_dir: PathBuf,
}

/// Runs the daemon until SIGTERM or SIGINT. SIGHUP makes it look at the whole
/// host again; the configuration is read at start only.
///
/// # Errors
/// When it cannot start, or loses the bus.
pub fn run(options: &Options) -> Result<()> {
    // One for the loop, one for the lanes: they allocate little.
    vgpu_mdev::sys::raw::limit_malloc_arenas(2);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(crate::bus::MOST_AT_WORK)
        .build()
        .context("the runtime cannot start")?;
    let served = runtime.block_on(serve(options));
    // A thread that the kernel does not let go must not keep the process.
    runtime.shutdown_background();
    served
}

async fn serve(options: &Options) -> Result<()> {
    // First of all, so that no signal ends us half started.
    let mut stop = StopSignals::new()?;
    let mut rescan = signal(SignalKind::hangup()).context("SIGHUP cannot be followed")?;

    let _run_dir = files::take_run_dir(&options.run_dir)?;
    let config = files::config(&options.config)?;
    let kernel = kernel::open(&options.kernel, &config.tools)?;
    let engine = Engine::start(Setup {
        executor: kernel.executor.clone(),
        config,
        run_dir: options.run_dir.clone(),
        module_aliases: kernel.module_aliases.clone(),
        boot_id: kernel.boot_id.clone(),
        timing: Timing::default(),
    })
    .context("the host cannot be scanned")?;
    kernel.events.follow(&engine);

    let connection = connect(options.bus.as_deref()).await?;
    let authority = Box::new(Polkit::new(connection.clone()));
    let host = Host {
        simulated: options.kernel != KernelChoice::Real,
        machine_id: files::machine_id(),
        patience: PATIENCE,
        stop_patience: STOP_PATIENCE,
    };
    let server = Server::new(connection, engine.clone(), authority, host).await?;
    server.take_name().await?;
    let gpus = engine.snapshot().gpu_count();
    tell_systemd(&[NotifyState::Ready, NotifyState::Status(&format!("{gpus} GPUs"))]);
    tracing::info!(gpus, vgpus = engine.snapshot().vgpu_count(), "ready");

    let rescanner = engine.clone();
    let rescans = async move {
        while rescan.recv().await.is_some() {
            tracing::info!("SIGHUP: looking at the whole host again");
            rescanner.hint(Hint::All);
        }
    };
    let stopping = async move {
        tokio::select! {
            () = stop.received() => {}
            () = rescans => {}
        }
        tracing::info!("stopping: what runs is finished first");
        tell_systemd(&[NotifyState::Stopping]);
    };
    server.run(stopping).await?;
    tracing::info!("stopped; vGPUs stay as they are");
    Ok(())
}

async fn connect(address: Option<&str>) -> Result<Connection> {
    let (builder, name) = match address {
        Some(address) => (connection::Builder::address(address), address),
        None => (connection::Builder::system(), "the system bus"),
    };
    // Its text has that of its source already.
    builder.build().await.map_err(|error| {
        anyhow!("no connection to {name}: {error}; start that bus, or name another with --bus")
    })
}

/// SIGTERM and SIGINT.
struct StopSignals([Signal; 2]);

impl StopSignals {
    fn new() -> Result<Self> {
        let follow = |kind| signal(kind).context("signals cannot be followed");
        Ok(Self([follow(SignalKind::terminate())?, follow(SignalKind::interrupt())?]))
    }

    async fn received(&mut self) {
        poll_fn(|context| {
            let came = self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if came { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

fn tell_systemd(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("systemd cannot be told: {error}");
    }
}
