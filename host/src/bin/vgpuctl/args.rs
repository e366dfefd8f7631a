//! What people type.

use std::str::FromStr;

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
    /// All or none with NVIDIA's driver. Refused while one of them is used by the
    /// host or by a vGPU.
    SetVfs {
        /// The GPU
        gpu: String,
        /// How many, 0 for none
        #[arg(allow_negative_numbers = true)]
        count: u32,
        #[command(flatten)]
        wait: Wait,
    },

    /// Make a GPU ready: its virtual functions, MIG, heterogeneous mode
    ///
    /// What is so already is left alone; what is not named stays as it is. The
    /// steps are done in the vendor's order, and undone when one fails. Refused
    /// where it would end vGPUs.
    Configure(Configure),

    /// Set the parameters of a vGPU of NVIDIA's vendor-specific VFIO
    ///
    /// They take effect when a virtual machine next starts with it, and replace
    /// those that it has; without any, it has none.
    SetParams {
        /// The vGPU
        vgpu: String,
        /// The parameters, as frame_rate_limiter=0
        #[arg(value_name = "NAME=VALUE")]
        params: Vec<String>,
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

#[derive(Debug, clap::Args)]
pub(crate) struct Configure {
    /// The GPU
    pub(crate) gpu: String,
    #[command(flatten)]
    pub(crate) wish: Wish,
    /// Print the steps, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// How a GPU is to be.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Wish {
    /// With so many virtual functions; all or none with NVIDIA's driver
    #[arg(long, value_name = "N|all|none")]
    pub(crate) vfs: Option<Vfs>,
    /// With MIG mode on or off
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    pub(crate) mig: Option<Switch>,
    /// With these MIG GPU instances, by shape: 3g.20gb,3g.20gb
    #[arg(long, value_name = "SHAPE,...|none", value_delimiter = ',')]
    pub(crate) instances: Option<Vec<String>>,
    /// With heterogeneous mode, vGPUs of several sizes side by side, on or off
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    pub(crate) heterogeneous: Option<Switch>,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// How many virtual functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vfs {
    All,
    Count(u32),
}

impl FromStr for Vfs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "none" => Ok(Self::Count(0)),
            number => number.parse().map(Self::Count).map_err(|_| {
                "it is neither a number of virtual functions, nor all, nor none".to_owned()
            }),
        }
    }
}

/// Whether to wait for work that outlives its call.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Wait {
    /// Where the work takes long, print its job and leave it running
    #[arg(long = "no-wait", action = ArgAction::SetFalse)]
    pub(crate) wait: bool,
}
