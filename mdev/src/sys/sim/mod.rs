//! A kernel that behaves as Linux 6.12 does, without any device: PCI functions,
//! SR-IOV, binding, IOMMU groups, VFIO nodes and mediated devices, with the same
//! errnos in the same order, blocking calls that block, and the same states in
//! between.
//!
//! Deterministic: nothing happens by itself or by chance. Faults are scripted,
//! see [`SimKernel::fail`].

mod attr;
mod boot;
mod check;
mod core;
mod events;
mod fault;
mod gim;
mod gvt;
mod i915;
mod intel;
mod keyed;
mod kind;
mod mdev;
mod number;
mod nvidia;
mod pci;
mod spec;
mod sriov;
mod state;
mod tool;
mod tree;
mod vendor;
mod vfio;
mod xe;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use nix::errno::Errno;

use crate::{config::Tools, model::Holder};

use super::{
    HolderQuery, Kernel, KernelEvent, NodePath, ProbeFailure, ProbeReport, ProbeTarget, Read,
    ReadBatch, ReadKind, Reading, SysPath, ToolId, ToolOutput, Value,
};

pub use fault::{BlockGuard, Calls, FaultOn, RecordedWrite};
pub use gim::GimSpec;
pub use gvt::Aperture;
pub use i915::I915Spec;
pub use nvidia::{Geometry, GpuGeneration, ListOrder, NvidiaSpec};
pub use spec::{
    ErrnoName, HeldNode, HolderSpec, Homogeneous, HostSpec, MdevKind, MdevSpec, MdevType, PciSpec,
    SpecError, SriovSpec, VfSpec, VfioDriverSpec, VfioSpec, VirtualParentSpec,
};
pub use vfio::HoldGuard;
pub use xe::XeSpec;

use self::{
    attr::Attr,
    core::Core,
    fault::{Call, Verdict, nothing},
    state::{NodeKey, State},
    tree::{Dir, Entry},
};

/// Modules that are always there to be loaded, besides the described drivers.
const MODULES: [&str; 5] = ["vfio", "vfio_iommu_type1", "vfio_pci_core", "iommufd", "mdev"];

/// A simulated kernel; clones are handles of the same one.
#[derive(Clone)]
pub struct SimKernel {
    core: Arc<Core>,
    host: Arc<HostFacts>,
}

struct HostFacts {
    spec: HostSpec,
    boot_id: String,
    module_aliases: String,
}

/// What a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// An attribute with these permissions.
    Attribute(u16),
    /// A link.
    Link,
}

impl SimKernel {
    /// Boots a described host.
    ///
    /// # Errors
    /// Says what in the description makes no sense.
    pub fn new(spec: &HostSpec) -> Result<Self, SpecError> {
        let core = Arc::new(boot::boot(spec)?);
        let aliases = spec.vfio_drivers.iter().flat_map(|driver| {
            driver.ids.iter().filter_map(|ids| {
                let (vendor, device) = ids.split_once(':')?;
                let (vendor, device) = (vendor.to_uppercase(), device.to_uppercase());
                let module = tree::module_name(&driver.name);
                Some(format!("alias vfio_pci:v0000{vendor}d0000{device}sv*sd*bc*sc*i* {module}\n"))
            })
        });
        let host = HostFacts {
            spec: spec.clone(),
            boot_id: spec.boot_id.to_string(),
            module_aliases: aliases.collect(),
        };
        Ok(Self { core, host: Arc::new(host) })
    }

    /// The host as the next boot finds it: of what was made since, and of VFs,
    /// nothing is left but what the hardware keeps. Functions that were plugged
    /// in later are not in it.
    pub fn next_boot(&self) -> HostSpec {
        boot::next(&self.host.spec, &self.core.state())
    }

    /// The lines that drivers have written to the kernel's log.
    pub fn log(&self) -> Vec<String> {
        self.core.state().log.clone()
    }

    /// The command lines of the programs that were run, in order, also of those
    /// that a scripted fault met.
    pub fn commands(&self) -> Vec<String> {
        self.core.state().commands.clone()
    }

    /// Lets the VFs appear that NVIDIA's GPUs were described to be late with.
    pub fn deliver_late_vfs(&self) {
        nvidia::deliver_late(&self.core);
    }

    /// The kernel's boot id.
    pub fn boot_id(&self) -> &str {
        &self.host.boot_id
    }

    /// What `modules.alias` says of the VFIO drivers.
    pub fn module_aliases(&self) -> &str {
        &self.host.module_aliases
    }

    /// Calls `listener` with each uevent at the very moment at which the kernel
    /// sends it: the tree is in the state in between, and the call that caused
    /// it waits. A read that would wait for that call gives EDEADLK.
    pub fn on_event(&self, listener: Box<dyn Fn(&KernelEvent) + Send + Sync>) {
        self.core.events.listen(Arc::from(listener));
    }

    /// Calls `listener` with each uevent once the call that caused it has
    /// returned, or blocks: the time at which those who listen to udevd hear it.
    pub fn on_settled_event(&self, listener: Box<dyn Fn(&KernelEvent) + Send + Sync>) {
        self.core.events.listen_settled(Arc::from(listener));
    }

    /// Calls `listener` when events were lost.
    pub fn on_overrun(&self, listener: Box<dyn Fn() + Send + Sync>) {
        self.core.events.listen_overrun(Arc::from(listener));
    }

    /// Keeps events back until [`SimKernel::release_events`].
    pub fn hold_events(&self) {
        self.core.events.hold();
    }

    /// Delivers the events that were kept back, after `edit` has dropped,
    /// reordered or doubled some.
    pub fn release_events(&self, edit: impl FnOnce(&mut Vec<KernelEvent>)) {
        self.core.events.release(edit);
    }

    /// Loses the events that were kept back and says so, as a full socket does
    /// (ENOBUFS).
    pub fn lose_events(&self) {
        self.core.events.release(Vec::clear);
        self.core.events.overrun();
    }

    /// Opens a node as the process `pid` would: a group, or a cdev and binds it
    /// to an iommufd.
    ///
    /// # Errors
    /// As `open` and the bind: EBUSY, EINVAL, ENOENT.
    pub fn hold(&self, node: &NodePath, pid: u32, command: &str) -> Result<HoldGuard, Errno> {
        self.hold_node(node, (pid, command), true)
    }

    /// Opens a cdev without binding it: not exclusive, and unseen by the group.
    ///
    /// # Errors
    /// As `open`.
    pub fn hold_unbound(
        &self,
        node: &NodePath,
        pid: u32,
        command: &str,
    ) -> Result<HoldGuard, Errno> {
        self.hold_node(node, (pid, command), false)
    }

    fn hold_node(&self, node: &NodePath, by: (u32, &str), bind: bool) -> Result<HoldGuard, Errno> {
        let key = NodeKey::parse(node.as_str()).ok_or(Errno::ENOENT)?;
        let bind = bind && matches!(key, NodeKey::Cdev(_));
        self.core.hold(key, by, bind)
    }

    /// The user who owns a node; `None` when it does not exist.
    pub fn owner(&self, node: &NodePath) -> Option<u32> {
        self.core.owner(node)
    }

    /// Lets calls whose path matches fail; `*` in the pattern stands for any
    /// text. A path is the one asked for, below `/sys` or `/dev`;
    /// `proc` is the search for holders, and a program's is its command line:
    /// `nvidia-smi -i 0000:41:00.0 -mig 1`.
    pub fn fail(&self, pattern: &str, on: FaultOn, errno: Errno) {
        self.core.faults.fail(pattern, on, errno);
    }

    /// Lets matching calls say success and do nothing.
    pub fn lie(&self, pattern: &str, on: FaultOn) {
        self.core.faults.lie(pattern, on);
    }

    /// Lets matching calls block until the guard is dropped.
    pub fn block(&self, pattern: &str, on: FaultOn) -> BlockGuard {
        self.core.faults.block(pattern, on)
    }

    /// How many of the scripted faults have met a call.
    pub fn faults_met(&self) -> usize {
        self.core.faults.met()
    }

    /// Takes back all faults that were scripted.
    pub fn clear_faults(&self) {
        self.core.faults.clear();
    }

    /// Watches for reads that must not happen.
    pub fn forbid_reading(&self, pattern: &str) {
        self.core.faults.forbid(pattern);
    }

    /// The forbidden reads that happened all the same.
    pub fn forbidden_reads(&self) -> Vec<String> {
        self.core.faults.forbidden_reads()
    }

    /// The reads that did harm, by path: each one of AMD's `reset_gpu` reset a GPU.
    pub fn harm_done(&self) -> Vec<String> {
        self.core.faults.harm_done()
    }

    /// Counts reads from now on.
    pub fn record_reads(&self) {
        self.core.faults.record_reads();
    }

    /// How often each path below `/sys` was read, as it was asked for.
    pub fn reads(&self) -> BTreeMap<String, u64> {
        self.core.faults.reads()
    }

    /// Records writes and programs from now on.
    pub fn record_writes(&self) {
        self.core.faults.record();
    }

    /// The writes recorded.
    pub fn writes(&self) -> Vec<RecordedWrite> {
        self.core.faults.writes()
    }

    /// The writes and the programs recorded, in words, in the order in which they
    /// began.
    pub fn changes(&self) -> Vec<String> {
        self.core.faults.changes()
    }

    /// Adds a function, as a hot plug does. Its kinds of mdev are those of
    /// `spec`.
    ///
    /// # Errors
    /// When its address is taken or its description makes no sense.
    pub fn plug(&self, spec: &HostSpec, function: &PciSpec) -> Result<(), SpecError> {
        if self.core.state().pci.contains_key(&function.address) {
            return Err(SpecError::new(format!("{} is taken", function.address)));
        }
        let plugged = boot::plug(&self.core, spec, function);
        self.core.events.settle();
        plugged
    }

    /// What a path below `/sys` names, a link at its end not followed.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn entry(&self, path: &str) -> Result<EntryKind, Errno> {
        Ok(match self.core.state().resolve(path, false)? {
            Entry::Dir(_) => EntryKind::Directory,
            Entry::Attr(_, attr) => EntryKind::Attribute(attr.mode()),
            Entry::Link(..) => EntryKind::Link,
        })
    }

    /// The text of a link: relative, as the kernel's are.
    ///
    /// # Errors
    /// ENOENT, and EINVAL where it is no link.
    pub fn link_text(&self, path: &str) -> Result<String, Errno> {
        let state = self.core.state();
        match state.resolve(path, false)? {
            Entry::Link(from, to) => Ok(state.link_text(from, to)),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Reads one thing.
    ///
    /// # Errors
    /// The errno of `open` or `read`.
    pub fn read(&self, path: &str, kind: ReadKind) -> Reading {
        self.core.faults.note_read(path, kind);
        match self.core.faults.meet(Call::Read, path)? {
            Verdict::Proceed => {}
            Verdict::Pretend => return Ok(nothing(kind)),
        }
        self.core.wait(|state| match state.resolve(path, kind == ReadKind::Inode) {
            Err(errno) => Some(Err(errno)),
            Ok(Entry::Attr(dir, attr)) if state.is_locked(dir, attr) && kind == ReadKind::Text => {
                None
            }
            Ok(entry) => {
                if let (ReadKind::Text, Entry::Attr(Dir::Pci(address), attr)) = (kind, entry) {
                    state.gim.note_read(address, attr);
                }
                Some(state.value(entry, kind))
            }
        })?
    }

    fn store(&self, path: &str, value: &str) -> Result<(), Errno> {
        match self.core.faults.meet(Call::Write, path)? {
            Verdict::Proceed => {}
            Verdict::Pretend => return Ok(()),
        }
        let entry = self.core.state().resolve(path, true)?;
        let Entry::Attr(dir, attr) = entry else { return Err(Errno::EISDIR) };
        if attr.mode() & 0o222 == 0 {
            return Err(Errno::EACCES);
        }
        // sysfs passes no empty write on (sysfs_kf_write, fs/sysfs/file.c).
        if value.is_empty() {
            return Ok(());
        }
        dispatch(&self.core, dir, attr, value)
    }
}

/// Hands a write to what it is about.
fn dispatch(core: &Core, dir: Dir, attr: Attr, value: &str) -> Result<(), Errno> {
    match (dir, attr) {
        (Dir::Pci(pf), Attr::SriovNumvfs) => sriov::set_count(core, pf, value),
        (Dir::Pci(pf), Attr::SriovAutoprobe) => sriov::set_autoprobe(core, pf, value),
        (Dir::Pci(address), Attr::DriverOverride) => pci::set_override(core, address, value),
        (Dir::Pci(address), Attr::Reset) => pci::reset(core, address, value),
        (Dir::Pci(address), Attr::RemoveFunction) => pci::remove(core, address, value),
        // No driver here changes its VFs' interrupts (sriov_set_msix_vec_count).
        (Dir::Pci(_), Attr::SriovVfMsixCount) => Err(Errno::EOPNOTSUPP),
        (Dir::PciBus, Attr::DriversProbe) => pci::drivers_probe(core, value),
        (Dir::PciDriver(driver), Attr::Bind) => pci::bind(core, driver, value),
        (Dir::PciDriver(driver), Attr::Unbind) => pci::unbind(core, driver, value),
        (Dir::Type(parent, index), Attr::Create) => mdev::create(core, parent, index, value),
        (Dir::Intel(pf, place), Attr::Intel(setting)) => {
            intel::store(core, pf, place, setting.item, value)
        }
        (Dir::Vendor(vf), attr) => vendor::store(core, vf, attr, value),
        (Dir::MdevVendor(uuid), _) => mdev::set_params(core, uuid, value),
        (Dir::Pci(pf), Attr::AcceleratorPartitionProfile) => gim::set_profile(core, pf, value),
        (Dir::Pci(pf), Attr::MemoryPartitionMode) => gim::set_memory(core, pf, value),
        (Dir::Mdev(uuid), Attr::RemoveMdev) => mdev::remove(core, uuid, value),
        (_, Attr::Uevent) => {
            let event = core.state().synthetic_event(dir, value)?;
            core.emit(event);
            Ok(())
        }
        // A group's domain type cannot be changed while it is in use.
        (Dir::IommuGroup(_), Attr::GroupType) => Err(Errno::EBUSY),
        _ => Err(Errno::EIO),
    }
}

impl State {
    /// Whether reading an attribute waits for a lock that is held. Measured on
    /// Linux 6.12: `sriov_numvfs` also hangs behind another PF's stuck store.
    fn is_locked(&self, dir: Dir, attr: Attr) -> bool {
        match (dir, attr) {
            (Dir::Pci(address), Attr::SriovNumvfs) => {
                self.host_locked || self.locked.contains(&address)
            }
            (Dir::Pci(address), Attr::DriverOverride) => self.locked.contains(&address),
            _ => false,
        }
    }

    fn value(&self, entry: Entry, kind: ReadKind) -> Reading {
        match (kind, entry) {
            (ReadKind::Text, Entry::Attr(dir, attr)) => self.show(dir, attr).map(Value::Text),
            (ReadKind::Text, _) => Err(Errno::EISDIR),
            (ReadKind::Link, Entry::Link(_, to)) => {
                let path = self.path(to);
                let last = path.rsplit('/').next().unwrap_or_default();
                Ok(Value::Link(last.to_owned()))
            }
            (ReadKind::Link, _) => Err(Errno::EINVAL),
            (ReadKind::Names, Entry::Dir(dir) | Entry::Link(_, dir)) => {
                Ok(Value::Names(self.names(dir)))
            }
            (ReadKind::Names, Entry::Attr(..)) => Err(Errno::ENOTDIR),
            (ReadKind::Inode, Entry::Dir(dir) | Entry::Link(_, dir)) => {
                Ok(Value::Inode(self.inode(dir)))
            }
            (ReadKind::Inode, Entry::Attr(dir, attr)) => {
                let mut hasher = DefaultHasher::new();
                attr.hash(&mut hasher);
                Ok(Value::Inode(self.inode(dir).rotate_left(8) ^ hasher.finish()))
            }
        }
    }
}

impl Kernel for SimKernel {
    fn read_batch(&self, batch: &ReadBatch) -> Vec<Reading> {
        let read = |Read { path, kind }: &Read| match &**path {
            "" => self.read(batch.base.as_str(), *kind),
            path => self.read(&format!("{}/{path}", batch.base.as_str()), *kind),
        };
        batch.reads.iter().map(read).collect()
    }

    fn write(&self, path: &SysPath, value: &str) -> Result<(), Errno> {
        let place = self.core.faults.begin_write(path.as_str(), value);
        let result = self.store(path.as_str(), value);
        self.core.faults.end_write(place, result);
        self.core.events.settle();
        result
    }

    fn open_node(&self, node: &NodePath) -> Result<OwnedFd, Errno> {
        self.core.faults.meet(Call::Open, node.as_str())?;
        self.core.open(node)
    }

    fn chown(&self, node: &NodePath, uid: u32) -> Result<(), Errno> {
        self.core.faults.meet(Call::Write, node.as_str())?;
        self.core.chown(node, uid)
    }

    fn holders(&self, query: &HolderQuery) -> Result<Vec<Holder>, Errno> {
        // The one read that is not of sysfs.
        self.core.faults.meet(Call::Read, "proc")?;
        Ok(self.core.holders(query))
    }

    fn probe(&self, target: &ProbeTarget, _limit: Duration) -> Result<ProbeReport, ProbeFailure> {
        self.core.probe(target)
    }

    fn program(&self, tool: ToolId) -> String {
        Tools::default().path(tool).display().to_string()
    }

    fn run_tool(
        &self,
        tool: ToolId,
        args: &[String],
        _limit: Duration,
    ) -> Result<ToolOutput, Errno> {
        self.run(tool, args)
    }
}
