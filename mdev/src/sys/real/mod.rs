//! The real kernel, below injected roots.
#![allow(clippy::disallowed_methods, reason = "this is the layer that touches the system")]

mod child;
#[cfg(test)]
mod child_tests;
mod dir;
mod holders;
mod monitor;
mod nodes;
mod probe;
mod read;
mod root;
#[cfg(test)]
mod tests;
mod tool;

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{errno::Errno, fcntl::OFlag, unistd};

use crate::{config::Tools, model::Holder};

use self::root::Root;
use super::{
    HolderQuery, Kernel, NodePath, ProbeFailure, ProbeReport, ProbeTarget, ReadBatch, Reading,
    SysPath, ToolId, ToolOutput,
};

pub use self::{
    monitor::{MonitorHandle, MonitorItem, monitor},
    root::RootError,
};

/// Where the kernel's file systems are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// sysfs: `/sys`.
    pub sys: PathBuf,
    /// Device nodes: `/dev`.
    pub dev: PathBuf,
    /// Processes: `/proc`.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), dev: "/dev".into(), proc: "/proc".into() }
    }
}

/// The programs that may be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// The system's and the vendors'.
    pub tools: Tools,
    /// `vgpu-vfio-probe`.
    pub probe: PathBuf,
}

impl Default for Programs {
    /// Where they are unless configured, and the probe beside the running program.
    fn default() -> Self {
        Self { tools: Tools::default(), probe: beside_us("vgpu-vfio-probe") }
    }
}

/// A program in the directory of the running one, or one directory up, where
/// cargo puts it from a test's point of view.
fn beside_us(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let dirs = own.ancestors().skip(1).take(2);
    let mut candidates = dirs.map(|dir: &Path| dir.join(name));
    let first = candidates.next().unwrap_or_else(|| name.into());
    if first.exists() { first } else { candidates.find(|path| path.exists()).unwrap_or(first) }
}

/// The kernel that runs us. Every path stays below its root, also through
/// links.
pub struct RealKernel {
    sys: Root,
    dev: Root,
    proc: Root,
    programs: Programs,
}

impl RealKernel {
    /// Opens the roots.
    ///
    /// # Errors
    /// Names the root that cannot be opened.
    pub fn new(roots: &Roots, programs: Programs) -> Result<Self, RootError> {
        Ok(Self {
            sys: Root::open(&roots.sys)?,
            dev: Root::open(&roots.dev)?,
            proc: Root::open(&roots.proc)?,
            programs,
        })
    }
}

impl Kernel for RealKernel {
    fn read_batch(&self, batch: &ReadBatch) -> Vec<Reading> {
        read::read_batch(&self.sys, batch)
    }

    fn write(&self, path: &SysPath, value: &str) -> Result<(), Errno> {
        let file = self.sys.open_at(path.as_str(), OFlag::O_WRONLY)?;
        // Never again after EINTR: a store that was interrupted may have begun.
        match unistd::write(file, value.as_bytes())? {
            written if written == value.len() => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    fn open_node(&self, node: &NodePath) -> Result<OwnedFd, Errno> {
        nodes::open_node(&self.dev, node)
    }

    fn chown(&self, node: &NodePath, uid: u32) -> Result<(), Errno> {
        nodes::chown(&self.dev, &self.proc, node, uid)
    }

    fn holders(&self, query: &HolderQuery) -> Result<Vec<Holder>, Errno> {
        holders::holders(&self.dev, &self.proc, query)
    }

    fn probe(&self, target: &ProbeTarget, limit: Duration) -> Result<ProbeReport, ProbeFailure> {
        probe::probe(&self.programs.probe, target, limit)
    }

    fn program(&self, tool: ToolId) -> String {
        self.programs.tools.path(tool).display().to_string()
    }

    fn run_tool(
        &self,
        tool: ToolId,
        args: &[String],
        limit: Duration,
    ) -> Result<ToolOutput, Errno> {
        tool::run_tool(self.programs.tools.path(tool), args, limit)
    }
}
