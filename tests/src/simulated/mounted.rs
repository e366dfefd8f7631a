//! A simulated kernel whose sysfs is mounted.

use std::{fs, os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Duration};

use nix::errno::Errno;
use tempfile::TempDir;
use vgpu_mdev::{
    model::Holder,
    sys::{
        HolderQuery, Kernel, NodePath, ProbeFailure, ProbeReport, ProbeTarget, ReadBatch, Reading,
        SysPath, ToolId, ToolOutput,
        real::{Programs, RealKernel, Roots},
        sim::{HostSpec, SimKernel},
    },
};

use crate::simfs::SimFs;

/// A simulated kernel, its sysfs mounted until this is dropped, and the kernel as
/// it is found through the mount.
pub struct Mounted {
    /// The kernel behind the tree.
    pub simulation: SimKernel,
    /// The kernel as the tree shows it.
    pub kernel: Arc<MountedKernel>,
    _mount: SimFs,
    scratch: TempDir,
}

/// Sysfs is read and written by the layer for the real kernel, with system calls
/// on the mounted tree. Device nodes, who holds them, VFIO and modules are no part
/// of that tree: those are the simulation's own.
pub struct MountedKernel {
    sysfs: RealKernel,
    simulation: SimKernel,
}

impl Mounted {
    /// Boots a described host and mounts its sysfs.
    ///
    /// # Panics
    /// When the description makes no sense, or `/dev/fuse` or `fusermount3` is
    /// missing.
    pub fn new(spec: &HostSpec) -> Self {
        let simulation = SimKernel::new(spec).unwrap();
        let scratch = TempDir::new().unwrap();
        let [sys, dev, proc] = ["sys", "dev", "proc"].map(|name| scratch.path().join(name));
        for dir in [&sys, &dev, &proc] {
            fs::create_dir(dir).unwrap();
        }
        let mount = SimFs::mount(simulation.clone(), &sys).expect("this needs /dev/fuse and fuse3");
        let sysfs = RealKernel::new(&Roots { sys, dev, proc }, Programs::default()).unwrap();
        let kernel = Arc::new(MountedKernel { sysfs, simulation: simulation.clone() });
        Self { simulation, kernel, _mount: mount, scratch }
    }

    /// Where the tree is mounted.
    pub fn sys(&self) -> PathBuf {
        self.scratch.path().join("sys")
    }
}

impl Kernel for MountedKernel {
    fn read_batch(&self, batch: &ReadBatch) -> Vec<Reading> {
        self.sysfs.read_batch(batch)
    }

    fn write(&self, path: &SysPath, value: &str) -> Result<(), Errno> {
        self.sysfs.write(path, value)
    }

    fn open_node(&self, node: &NodePath) -> Result<OwnedFd, Errno> {
        self.simulation.open_node(node)
    }

    fn chown(&self, node: &NodePath, uid: u32) -> Result<(), Errno> {
        self.simulation.chown(node, uid)
    }

    fn holders(&self, query: &HolderQuery) -> Result<Vec<Holder>, Errno> {
        self.simulation.holders(query)
    }

    fn probe(&self, target: &ProbeTarget, limit: Duration) -> Result<ProbeReport, ProbeFailure> {
        self.simulation.probe(target, limit)
    }

    fn run_tool(
        &self,
        tool: ToolId,
        args: &[String],
        limit: Duration,
    ) -> Result<ToolOutput, Errno> {
        self.simulation.run_tool(tool, args, limit)
    }

    fn program(&self, tool: ToolId) -> String {
        self.simulation.program(tool)
    }
}
