//! The closed set of operations on the system, and the trait that runs them.

use std::{
    borrow::Cow,
    fmt,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::{GpuId, Holder, PciAddress};

use super::{NodePath, SysPath};

/// Runs operations, each on a lane, until a deadline.
pub trait Executor: Send + Sync {
    /// Runs one operation. Operations of one lane run in order, those of
    /// different lanes in parallel.
    ///
    /// # Errors
    /// What the kernel refused, or [`OpError::Deadline`] when it did not answer
    /// in time: the operation may still be running, and its lane answers
    /// [`OpError::Stuck`] at once until it has come back.
    fn run(&self, lane: &LaneKey, op: Op, deadline: Deadline) -> Result<Observed, OpError>;

    /// Calls `listener` with each lane that hung and has come back, on a thread
    /// that it must not keep: no kernel event tells of that.
    fn on_recovery(&self, listener: Box<dyn Fn(&LaneKey) + Send + Sync>);
}

/// What hangs together: an operation that the kernel never finishes takes its
/// lane with it and nothing else.
///
/// Measured on Linux 6.12: VF counts share one lock over the host; an unbind
/// takes its VF; an mdev's removal takes that mdev alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LaneKey {
    /// VF counts and the enumeration of the host.
    Host,
    /// Reads and writes of one GPU.
    Gpu(GpuId),
    /// The binding of one function.
    Function(PciAddress),
    /// The removal of one mdev.
    Mdev(Uuid),
    /// NVIDIA's `nvidia-smi`, which waits for its driver on all GPUs.
    NvidiaSmi,
    /// Programs that take GPUs from their drivers and give them back
    /// (`sriov-manage`, `modprobe`): one at a time, and for half a minute.
    Programs,
}

impl fmt::Display for LaneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("the host"),
            Self::Gpu(gpu) => write!(f, "GPU {gpu}"),
            Self::Function(address) => write!(f, "function {address}"),
            Self::Mdev(uuid) => write!(f, "mdev {uuid}"),
            Self::NvidiaSmi => f.write_str("nvidia-smi"),
            Self::Programs => f.write_str("drivers' programs"),
        }
    }
}

/// When an operation has taken too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    pub fn after(duration: Duration) -> Self {
        let now = Instant::now();
        Self(now.checked_add(duration).unwrap_or_else(|| now + Duration::from_secs(86_400)))
    }

    /// The time that is left, zero when it has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn passed(self) -> bool {
        self.left().is_zero()
    }
}

/// One operation on the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Reads many things below some directories; a missing one is no error, but
    /// a full table of descriptors is.
    ReadBatch(Vec<ReadBatch>),
    /// Writes one attribute, and reads what shows the outcome in the same turn.
    WriteAttr {
        /// The write.
        write: WriteAttr,
        /// Not if this group cannot be opened: a group opens once, so EBUSY
        /// says that the device is held. It is closed before the write.
        unless_held: Option<NodePath>,
        /// What to read afterwards.
        reads: Vec<ReadBatch>,
    },
    /// Opens nodes below `/dev`, all or none.
    OpenVfio {
        /// The nodes, opened in this order.
        nodes: Vec<NodePath>,
    },
    /// Opens a device through VFIO in a child process, looks at it and closes.
    Probe(ProbeTarget),
    /// Gives a node to a user, mode 0600.
    Chown {
        /// The node.
        node: NodePath,
        /// Its new owner.
        uid: u32,
    },
    /// Finds the processes that have a node open.
    Holders(HolderQuery),
    /// Runs one of the configured programs, without a shell.
    RunTool {
        /// Which one.
        tool: ToolId,
        /// Its arguments.
        args: Vec<String>,
    },
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadBatch(batches) => match batches.first() {
                Some(first) => write!(f, "reading {}", first.base),
                None => f.write_str("reading nothing"),
            },
            Self::WriteAttr { write, .. } => {
                write!(f, "writing {:?} to {}", write.value.trim_end(), write.path)
            }
            Self::OpenVfio { nodes } => {
                f.write_str("opening ")?;
                for (n, node) in nodes.iter().enumerate() {
                    write!(f, "{}{node}", if n == 0 { "" } else { " and " })?;
                }
                Ok(())
            }
            Self::Probe(target) => write!(f, "probing {}", target.device),
            Self::Chown { node, uid } => write!(f, "giving {node} to uid {uid}"),
            Self::Holders(_) => f.write_str("looking for holders in /proc/*/fd"),
            Self::RunTool { tool, args } => write!(f, "running {tool} {}", args.join(" ")),
        }
    }
}

/// Many reads below one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadBatch {
    /// The directory.
    pub base: SysPath,
    /// What to read, each relative to it.
    pub reads: Vec<Read>,
}

/// One thing to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Its path relative to the batch's directory; empty for the directory
    /// itself ([`ReadKind::Names`] and [`ReadKind::Inode`] only).
    pub path: Cow<'static, str>,
    /// What is read of it.
    pub kind: ReadKind,
}

impl Read {
    /// The text of an attribute.
    pub fn text(path: impl Into<Cow<'static, str>>) -> Self {
        Self { path: path.into(), kind: ReadKind::Text }
    }

    /// The last element of a link's target.
    pub fn link(path: impl Into<Cow<'static, str>>) -> Self {
        Self { path: path.into(), kind: ReadKind::Link }
    }

    /// The names in a directory.
    pub fn names(path: impl Into<Cow<'static, str>>) -> Self {
        Self { path: path.into(), kind: ReadKind::Names }
    }

    /// The inode of a directory.
    pub fn inode(path: impl Into<Cow<'static, str>>) -> Self {
        Self { path: path.into(), kind: ReadKind::Inode }
    }
}

/// What is read of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadKind {
    /// The content of an attribute, as the kernel gives it, at most 64 KiB.
    Text,
    /// The last element of a link's target (`driver` gives the driver's name).
    Link,
    /// The names in a directory, unsorted.
    Names,
    /// The inode number, links followed.
    Inode,
}

/// What one [`Read`] gave.
pub type Reading = Result<Value, Errno>;

/// A value that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Of [`ReadKind::Text`].
    Text(String),
    /// Of [`ReadKind::Link`].
    Link(String),
    /// Of [`ReadKind::Names`].
    Names(Vec<String>),
    /// Of [`ReadKind::Inode`].
    Inode(u64),
}

/// One attribute to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteAttr {
    /// The attribute.
    #[serde(with = "path_text")]
    pub path: SysPath,
    /// The text, written with one system call.
    pub value: String,
}

pub(crate) mod path_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::SysPath;

    pub(crate) fn serialize<S: Serializer>(path: &SysPath, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(path.as_str())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SysPath, D::Error> {
        SysPath::new(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Whose holders are wanted: nodes by path (their device numbers are looked up
/// when the scan starts) and, at will, one process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HolderQuery {
    /// The nodes.
    pub nodes: Vec<NodePath>,
    /// Look at this process alone.
    pub pid: Option<u32>,
}

/// What is to be probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    /// The device's directory, for example `bus/pci/devices/0000:41:00.4`.
    pub device: SysPath,
    /// Its group node, where groups exist.
    pub group: Option<NodePath>,
    /// Its own node, where cdevs exist: preferred.
    pub cdev: Option<NodePath>,
}

/// What a probe saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ProbeReport {
    /// `group` or `cdev`.
    pub interface: String,
    /// Whether the device can be reset (`VFIO_DEVICE_FLAGS_RESET`).
    pub can_reset: bool,
    /// Whether the probe's reset worked; `None` when the device has none.
    pub reset: Option<bool>,
    /// The kernel's errno where the reset did not work.
    #[serde(default)]
    pub reset_errno: Option<i32>,
    /// Regions of nonzero size.
    pub regions: Vec<Region>,
    /// Interrupts: (index, count).
    pub interrupts: Vec<(u32, u32)>,
    /// Migration features (`VFIO_DEVICE_FEATURE_MIGRATION`), empty when none:
    /// `stop-copy`, `p2p`, `pre-copy`.
    pub migration: Vec<String>,
    /// Whether a page of memory could be mapped for DMA and unmapped.
    pub dma_map: bool,
    /// PCI vendor and device id read from the config region, where there is one.
    pub pci_ids: Option<(u16, u16)>,
}

/// A region of a VFIO device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its index (`VFIO_PCI_*_REGION_INDEX`).
    pub index: u32,
    /// Its size in bytes.
    pub size: u64,
    /// `VFIO_REGION_INFO_FLAG_*`: 1 read, 2 write, 4 mmap.
    pub flags: u32,
    /// Whether its first four bytes could be read; `None` where not tried.
    pub readable: Option<bool>,
}

/// The programs that may be run; their paths are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToolId {
    /// `modprobe`.
    Modprobe,
    /// `nvidia-smi`, of NVIDIA's driver.
    NvidiaSmi,
    /// `sriov-manage`, of NVIDIA's vGPU driver.
    SriovManage,
}

impl fmt::Display for ToolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Modprobe => f.write_str("modprobe"),
            Self::NvidiaSmi => f.write_str("nvidia-smi"),
            Self::SriovManage => f.write_str("sriov-manage"),
        }
    }
}

/// What a program said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    /// Its exit status, `None` when a signal ended it.
    pub status: Option<i32>,
    /// What it printed, both streams, at most 64 KiB.
    pub output: String,
}

/// Nodes that were opened.
#[derive(Debug)]
pub struct Opened {
    /// One descriptor for each node asked for.
    pub fds: Vec<OwnedFd>,
}

/// What an operation gave.
#[derive(Debug)]
pub enum Observed {
    /// Of [`Op::ReadBatch`] and [`Op::WriteAttr`]: one for each read, in order,
    /// batch after batch.
    Read(Vec<Reading>),
    /// Of [`Op::Chown`].
    Done,
    /// Of [`Op::OpenVfio`].
    Opened(Opened),
    /// Of [`Op::Probe`].
    Probed(ProbeReport),
    /// Of [`Op::Holders`].
    Holders(Vec<Holder>),
    /// Of [`Op::RunTool`].
    Tool(ToolOutput),
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The kernel refused.
    #[error("{what}: {errno:?}")]
    Kernel {
        /// The operation.
        what: String,
        /// The path that it was about.
        path: String,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
    /// The kernel did not answer in time.
    #[error("{what}: no answer from the kernel within {waited:?}")]
    Deadline {
        /// The operation.
        what: String,
        /// How long was waited.
        waited: Duration,
    },
    /// An earlier operation on the lane still hangs.
    #[error("{what}: not tried, since {lane} still hangs in {hung}")]
    Stuck {
        /// The operation.
        what: String,
        /// The lane.
        lane: LaneKey,
        /// The operation that hangs.
        hung: String,
    },
    /// Too many operations wait on the lane already.
    #[error("{what}: not tried, since too many operations wait for {lane}")]
    Overloaded {
        /// The operation.
        what: String,
        /// The lane.
        lane: LaneKey,
    },
    /// A program did not run to its end.
    #[error("{what}: {}", unfinished(program, *errno))]
    Tool {
        /// The operation.
        what: String,
        /// The program's path.
        program: String,
        /// ENOENT when it is missing, ETIMEDOUT when it was killed.
        errno: Errno,
    },
    /// The probe's child failed.
    #[error("{what}: {message}")]
    Probe {
        /// The operation.
        what: String,
        /// What failed, in words.
        message: String,
        /// The kernel's answer, where it was the kernel.
        errno: Option<Errno>,
    },
}

impl OpError {
    /// The kernel's answer, where it gave one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } | Self::Tool { errno, .. } => Some(*errno),
            Self::Probe { errno, .. } => *errno,
            _ => None,
        }
    }

    /// Whether the kernel hangs.
    pub fn is_stuck(&self) -> bool {
        matches!(self, Self::Deadline { .. } | Self::Stuck { .. } | Self::Overloaded { .. })
    }
}

/// What became of a program, in words.
fn unfinished(program: &str, errno: Errno) -> String {
    match errno {
        Errno::ENOENT => format!("{program} is missing (ENOENT)"),
        Errno::ETIMEDOUT => format!("{program} took too long and was killed (ETIMEDOUT)"),
        errno => format!("{program} cannot be run: {errno:?}"),
    }
}
