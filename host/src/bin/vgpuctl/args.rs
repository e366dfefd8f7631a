//! What people type.

use clap::{
    ArgAction, CommandFactory, Parser, Subcommand,
    error::{ContextKind, ContextValue},
};
use clap_complete::Shell;

/// See and manage vGPUs through vgpu-hostd.
///
/// A GPU is named by its PCI address, with or without the domain
/// (0000:41:00.0, 41:00.0), or by the name of its mdev parent (mtty). A vGPU is
/// named by its UUID or by the name that its creator gave it. A profile is
/// named by its type id (nvidia-558), full name (NVIDIA A40-2Q) or short name
/// (a40-2q).
#[derive(Debug, Parser)]
#[command(name = "vgpuctl", version, propagate_version = false, disable_help_subcommand = true)]
pub(crate) struct Args {
    /// Print JSON: one value, or for monitor one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// The D-Bus address of the bus that vgpu-hostd is on; the system bus
    /// otherwise
    #[arg(long, global = true, value_name = "ADDRESS", env = "VGPU_BUS")]
    pub(crate) bus: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The error without the subcommands that the help hides: clap lists them all
/// where one is missing.
pub(crate) fn without_hidden(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(names)) = error.get(ContextKind::ValidSubcommand) {
        let command = Args::command();
        let hidden =
            |name: &String| command.find_subcommand(name).is_some_and(clap::Command::is_hide_set);
        let shown = names.iter().filter(|name| !hidden(name)).cloned().collect();
        error.insert(ContextKind::ValidSubcommand, ContextValue::Strings(shown));
    }
    error
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check whether this host can run vGPUs, and say what to do about it
    ///
    /// Looks at the IOMMU, VFIO, the memory lock limit of the caller, the
    /// service and what the service finds wrong. Changes nothing. Succeeds when
    /// no line says fail.
    Doctor,

    /// List the GPUs
    Gpus,

    /// List the profiles that the GPUs offer
    Profiles {
        /// Only this GPU's
        gpu: Option<String>,
    },

    /// Say in words why a profile of a GPU is available or not
    Explain {
        /// The GPU
        gpu: String,
        /// The profile
        profile: String,
    },

    /// List the vGPUs
    List(Filter),

    /// Show all about a vGPU or a GPU
    Show {
        /// The vGPU or GPU
        #[arg(value_name = "VGPU|GPU")]
        name: String,
    },

    /// Create a vGPU and print its UUID
    ///
    /// The same UUID and profile again is no error: the vGPU that is there is
    /// printed.
    Create(Create),

    /// Show where vGPUs would be placed, and change nothing
    ///
    /// Prints for each the GPU, the virtual function where it takes one, and
    /// what creating it would do, and then what would remain. Fails when not all
    /// of them fit.
    Plan(Plan),

    /// Remove a vGPU
    Remove {
        /// The vGPU
        vgpu: String,
        /// Although it is held; the kernel then waits for its holder, which can
        /// take for ever
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: Wait,
    },

    /// Set how many virtual functions a GPU has
    ///
    /// Refused while one of them is used by the host or by a vGPU.
    SetVfs {
        /// The GPU
        gpu: String,
        /// How many, 0 for none
        #[arg(allow_negative_numbers = true)]
        count: u32,
        #[command(flatten)]
        wait: Wait,
    },

    /// Open a vGPU through VFIO, look, reset it if it can, and close it
    Probe {
        /// The vGPU
        vgpu: String,
    },

    /// Print what happens, as it happens, until interrupted
    Monitor,

    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },

    /// Print this program's manual page
    #[command(hide = true)]
    Man,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Filter {
    /// Only those on this GPU
    #[arg(long)]
    pub(crate) gpu: Option<String>,
    /// Only this user's
    #[arg(long, value_name = "UID", allow_negative_numbers = true)]
    pub(crate) owner_uid: Option<u32>,
    /// Only those that vgpu-hostd made
    #[arg(long, conflicts_with = "foreign")]
    pub(crate) managed: bool,
    /// Only those that someone else made
    #[arg(long)]
    pub(crate) foreign: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// The profile
    pub(crate) profile: String,
    /// On this GPU; on one that is chosen otherwise
    #[arg(long)]
    pub(crate) gpu: Option<String>,
    /// Under this UUID; under a new one otherwise
    #[arg(long)]
    pub(crate) uuid: Option<String>,
    /// With this name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// For this user; for the caller otherwise
    #[arg(long, value_name = "UID", allow_negative_numbers = true)]
    pub(crate) owner_uid: Option<u32>,
    /// On this virtual function
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) function: Option<String>,
    #[command(flatten)]
    pub(crate) among: Among,
    /// Let it enable the virtual functions of a GPU that has none enabled
    #[arg(long)]
    pub(crate) enable_vfs: bool,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// Among which GPUs one is chosen, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Among {
    /// On a GPU of this NUMA node
    #[arg(long, value_name = "NODE", allow_negative_numbers = true)]
    pub(crate) numa_node: Option<u32>,
    /// On a GPU of this pool, as host.toml names it
    #[arg(long)]
    pub(crate) pool: Option<String>,
    /// Choose the GPU that leaves the most room for others (pack), or use all
    /// evenly (spread); as host.toml says otherwise
    #[arg(long, value_name = "pack|spread")]
    pub(crate) placement: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// The profiles, each with how many of it: a40-4q, a40-8qx2
    #[arg(required = true, value_name = "PROFILE[xN]")]
    pub(crate) wishes: Vec<String>,
    /// On this GPU
    #[arg(long)]
    pub(crate) gpu: Option<String>,
    #[command(flatten)]
    pub(crate) among: Among,
}

/// Whether to wait for work that outlives its call.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Wait {
    /// Where the work takes long, print its job and leave it running
    #[arg(long = "no-wait", action = ArgAction::SetFalse)]
    pub(crate) wait: bool,
}
