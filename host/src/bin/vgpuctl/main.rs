//! `vgpuctl`: the command line of vgpu-hostd. It is a D-Bus client and knows
//! nothing that the bus does not tell; only `doctor` looks at the host itself.

mod args;
mod change;
mod configure;
mod doctor;
mod failure;
mod generate;
mod job;
mod json;
mod list;
mod monitor;
mod output;
mod plan;
mod probe;
mod service;
mod show;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use failure::{Failure, Result};
use output::Output;
use service::Service;

fn main() -> ExitCode {
    let args = Args::try_parse().unwrap_or_else(|error| args::without_hidden(error).exit());
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(args: Args) -> Result<()> {
    if let Command::Completions { shell } = args.command {
        return generate::completions(shell);
    }
    if let Command::Man = args.command {
        return generate::man();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime
        .map_err(|error| Failure::other(format!("cannot start: {error}")))?
        .block_on(dispatch(args))
}

async fn dispatch(args: Args) -> Result<()> {
    let output = Output::new(args.json);
    // An empty variable of the environment says nothing.
    let bus = args.bus.as_deref().filter(|address| !address.is_empty());
    if let Command::Doctor = args.command {
        return doctor::run(&output, bus).await;
    }
    let service = Service::connect(bus).await?;
    match args.command {
        Command::Gpus => list::gpus(&service, &output).await,
        Command::Profiles { gpu } => list::profiles(&service, &output, gpu.as_deref()).await,
        Command::Explain { gpu, profile } => show::explain(&service, &output, &gpu, &profile).await,
        Command::List(filter) => list::vgpus(&service, &output, &filter).await,
        Command::Show { name } => show::run(&service, &output, &name).await,
        Command::Create(create) => change::create(&service, &output, &create).await,
        Command::Plan(wanted) => plan::run(&service, &output, &wanted).await,
        Command::Remove { vgpu, force, wait } => {
            change::remove(&service, &output, &vgpu, force, wait).await
        }
        Command::SetVfs { gpu, count, wait } => {
            change::set_vfs(&service, &output, &gpu, count, wait).await
        }
        Command::Configure(wanted) => configure::run(&service, &output, &wanted).await,
        Command::SetParams { vgpu, params, wait } => {
            change::set_params(&service, &output, &vgpu, &params, wait).await
        }
        Command::Probe { vgpu } => probe::run(&service, &output, &vgpu).await,
        Command::Monitor => monitor::run(&service, &output).await,
        Command::Doctor | Command::Completions { .. } | Command::Man => Ok(()),
    }
}
