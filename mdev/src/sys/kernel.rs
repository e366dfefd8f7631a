//! What the lanes need of a kernel.

use std::{os::fd::OwnedFd, time::Duration};

use nix::errno::Errno;

use crate::model::Holder;

use super::{
    HolderQuery, NodePath, ProbeReport, ProbeTarget, ReadBatch, Reading, SysPath, ToolId,
    ToolOutput,
};

/// A kernel: the real one below injected roots, or a simulated one. Every call
/// may block for as long as the kernel likes.
pub trait Kernel: Send + Sync + 'static {
    /// Reads each of a batch.
    fn read_batch(&self, batch: &ReadBatch) -> Vec<Reading>;

    /// Writes one attribute with one `write`.
    ///
    /// # Errors
    /// The errno of `open` or `write`.
    fn write(&self, path: &SysPath, value: &str) -> Result<(), Errno>;

    /// Opens a node read-write, close-on-exec.
    ///
    /// # Errors
    /// The errno of `open`.
    fn open_node(&self, node: &NodePath) -> Result<OwnedFd, Errno>;

    /// Makes `uid` the owner of a node, mode 0600.
    ///
    /// # Errors
    /// The errno of `fchown` or `fchmod`.
    fn chown(&self, node: &NodePath, uid: u32) -> Result<(), Errno>;

    /// Finds the processes that have one of the nodes open, by device number;
    /// a node that does not exist has none.
    ///
    /// # Errors
    /// When `/proc` cannot be read at all.
    fn holders(&self, query: &HolderQuery) -> Result<Vec<Holder>, Errno>;

    /// Opens the device through VFIO in a child process, looks, resets if it
    /// can, and closes.
    ///
    /// # Errors
    /// What failed, in words, and the errno where it was the kernel.
    fn probe(&self, target: &ProbeTarget, limit: Duration) -> Result<ProbeReport, ProbeFailure>;

    /// The path of a program.
    fn program(&self, tool: ToolId) -> String;

    /// Runs a program without a shell, its output kept.
    ///
    /// # Errors
    /// The errno of starting it, ETIMEDOUT when it took longer than `limit`.
    fn run_tool(&self, tool: ToolId, args: &[String], limit: Duration)
    -> Result<ToolOutput, Errno>;
}

/// Why a probe failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProbeFailure {
    /// What failed, in words.
    pub message: String,
    /// The kernel's answer, where it was the kernel.
    pub errno: Option<Errno>,
}

/// A uevent, of the real kernel or of a simulated one: a hint to look again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelEvent {
    /// `add`, `remove`, `change`, `bind`, `unbind`, `move`.
    pub action: String,
    /// The subsystem: `pci`, `mdev`, `vfio`, `vfio-dev`, …
    pub subsystem: String,
    /// The device's path without `/sys`: `/devices/pci0000:00/0000:00:02.0`.
    pub devpath: String,
    /// The other variables, such as `MDEV_STATE`, in the kernel's order.
    pub properties: Vec<(String, String)>,
}
