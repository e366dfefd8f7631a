//! The daemon that finds the GPUs of a host, creates and binds vGPUs on them,
//! and serves them on D-Bus.

use std::{io, path::PathBuf, process::ExitCode};

use clap::Parser;
use tracing_subscriber::EnvFilter;
use vgpu_host::{
    daemon::{Options, run},
    kernel::KernelChoice,
};

/// Finds the GPUs of this host, creates and binds vGPUs on them, and serves them
/// on D-Bus as org.vgpu.Host1.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Work on a simulated kernel: of the host that FILE describes, or of a
    /// small built-in one
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    simulate: Option<Option<PathBuf>>,
    /// Serve on the bus at this address [default: the system bus]
    #[arg(long, value_name = "ADDRESS")]
    bus: Option<String>,
    /// The administrator's decisions; a missing file means defaults
    #[arg(long, value_name = "FILE", default_value = "/etc/vgpu-host/host.toml")]
    config: PathBuf,
    /// Where the claims on vGPUs are kept
    #[arg(long, value_name = "DIRECTORY", default_value = "/run/vgpu-host")]
    run_dir: PathBuf,
    /// What to log: error, warn, info, debug, trace, or more exactly as in
    /// vgpu_mdev=debug
    #[arg(long, value_name = "FILTER", env = "VGPU_HOSTD_LOG", default_value = "info")]
    log: EnvFilter,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // The journal has the time already.
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let log = tracing_subscriber::fmt()
        .with_env_filter(arguments.log)
        .with_writer(io::stderr)
        .with_ansi(false);
    if journal {
        log.without_time().init();
    } else {
        log.init();
    }
    let options = Options {
        bus: arguments.bus,
        kernel: arguments.simulate.map_or(KernelChoice::Real, KernelChoice::Simulated),
        config: arguments.config,
        run_dir: arguments.run_dir,
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
