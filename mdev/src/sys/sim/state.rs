//! What the simulated kernel knows. The tree is a view of it, see
//! [`tree`](super::tree).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use nix::errno::Errno;
use uuid::Uuid;

use crate::model::PciAddress;

use super::{
    check::vf_address,
    gim::Gim,
    gvt,
    intel::Intel,
    nvidia::Nvidia,
    spec::{Homogeneous, MdevKind, MdevType, SriovSpec, VfioSpec},
    vendor::Vendor,
};

/// All of it, under one lock that nobody keeps while blocked.
#[derive(Default)]
pub(super) struct State {
    pub(super) iommu: bool,
    /// How many uevents have been sent.
    pub(super) uevents: u64,
    pub(super) vfio: VfioSpec,
    /// The drivers known; an index into them never changes.
    pub(super) drivers: Vec<Driver>,
    pub(super) pci: BTreeMap<PciAddress, PciDevice>,
    /// The functions directly below each domain's root bus.
    pub(super) roots: BTreeMap<u32, BTreeSet<PciAddress>>,
    pub(super) virtual_parents: Vec<VirtualParent>,
    pub(super) pools: Vec<Pool>,
    pub(super) mdevs: BTreeMap<Uuid, Mdev>,
    pub(super) mdev_drivers: BTreeSet<String>,
    /// Whether the module `mdev` is there, with a driver that needs it.
    pub(super) mdev_bus: bool,
    /// Whether a parent has ever registered: the class stays.
    pub(super) mdev_class: bool,
    pub(super) groups: BTreeMap<u32, Group>,
    pub(super) group_numbers: Numbers,
    /// `vfio<n>` to its device.
    pub(super) vfio_devices: BTreeMap<u32, Member>,
    pub(super) vfio_numbers: Numbers,
    pub(super) card_numbers: Numbers,
    pub(super) holds: BTreeMap<NodeKey, Vec<Hold>>,
    pub(super) last_hold: u64,
    /// Who owns a node, where that is not root.
    pub(super) owners: BTreeMap<NodeKey, u32>,
    pub(super) last_inode: u64,
    /// Devices whose lock is held.
    pub(super) locked: BTreeSet<PciAddress>,
    /// Whether the PCI rescan-remove lock is held.
    pub(super) host_locked: bool,
    /// AMD's GIM and its GPUs.
    pub(super) gim: Gim,
    /// NVIDIA's GPUs, as their driver knows them.
    pub(super) nvidia: BTreeMap<PciAddress, Nvidia>,
    /// What drivers have written to the kernel's log.
    pub(super) log: Vec<String>,
    /// The command lines that were run.
    pub(super) commands: Vec<String>,
}

/// A driver for PCI functions.
pub(super) struct Driver {
    pub(super) name: Arc<str>,
    pub(super) loaded: bool,
    pub(super) vfio: bool,
    pub(super) enable_sriov: bool,
    pub(super) devices: BTreeSet<PciAddress>,
}

/// What never changes about a function; VFs of one PF share theirs.
pub(super) struct Facts {
    pub(super) vendor: u16,
    pub(super) device: u16,
    pub(super) subsystem: (u16, u16),
    pub(super) class: u32,
    pub(super) revision: u8,
    pub(super) numa_node: i32,
    pub(super) boot_vga: bool,
    pub(super) reset_methods: Vec<String>,
    /// The driver that matches without an override.
    pub(super) native: Option<usize>,
    /// What it offers while bound to that driver, and from which pool.
    pub(super) mdev: Option<(Arc<MdevKind>, usize)>,
    /// The same, where it offers them without mdev.
    pub(super) carries: Option<(Arc<MdevKind>, usize)>,
}

pub(super) struct PciDevice {
    pub(super) facts: Arc<Facts>,
    pub(super) inode: u64,
    pub(super) upstream: Option<PciAddress>,
    pub(super) children: BTreeSet<PciAddress>,
    pub(super) role: Role,
    pub(super) driver: Option<usize>,
    pub(super) driver_override: Option<Box<str>>,
    pub(super) group: Option<u32>,
    pub(super) vfio: Option<VfioDevice>,
    pub(super) card: Option<u32>,
    pub(super) parent: Option<Box<Parent>>,
    pub(super) vendor: Option<Box<Vendor>>,
    pub(super) intel: Option<Box<Intel>>,
}

pub(super) enum Role {
    Plain,
    Pf(Box<Sriov>),
    Vf {
        pf: PciAddress,
        /// Whether `physfn` and `virtfn` exist.
        linked: bool,
    },
}

pub(super) struct Sriov {
    pub(super) spec: SriovSpec,
    pub(super) vf_facts: Arc<Facts>,
    pub(super) autoprobe: bool,
    /// What `sriov_numvfs` reads.
    pub(super) count: u16,
}

/// A device that VFIO has registered.
#[derive(Clone, Copy)]
pub(super) struct VfioDevice {
    pub(super) number: u32,
    /// False from when it is unregistered until its last user lets go.
    pub(super) live: bool,
}

/// An mdev parent that is registered.
pub(super) struct Parent {
    pub(super) kind: Arc<MdevKind>,
    pub(super) pool: usize,
    /// Its mdevs by type.
    pub(super) members: BTreeSet<(u16, Uuid)>,
    /// Unregistering: nothing can be created or removed any more.
    pub(super) going: bool,
}

pub(super) struct VirtualParent {
    pub(super) name: Arc<str>,
    pub(super) parent: Parent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ParentKey {
    Pci(PciAddress),
    Virtual(u16),
}

/// What the types of one GPU share.
#[derive(Default)]
pub(super) struct Pool {
    pub(super) used: u64,
    /// How many there are of each type.
    pub(super) counts: BTreeMap<u16, u32>,
    /// The GPU whose driver has rules of its own for what fits, see
    /// [`nvidia`](super::nvidia).
    pub(super) ruled_by: Option<PciAddress>,
}

pub(super) struct Mdev {
    pub(super) parent: ParentKey,
    pub(super) type_index: u16,
    pub(super) inode: u64,
    pub(super) stage: Stage,
    pub(super) group: Option<u32>,
    pub(super) vfio: Option<VfioDevice>,
    /// Whether it takes its place in the pool.
    pub(super) counted: bool,
    /// What stands in NVIDIA's `vgpu_params`.
    pub(super) params: String,
}

/// How far an mdev's creation or removal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// On the bus, without a driver.
    Added,
    /// Bound, without `mdev_type`.
    Bound,
    Active,
    /// Off the bus, without driver and `mdev_type`.
    Removing,
}

/// A device that can be in an IOMMU group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Member {
    Pci(PciAddress),
    Mdev(Uuid),
}

#[derive(Default)]
pub(super) struct Group {
    pub(super) members: Vec<Member>,
}

/// A node below `/dev`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeKey {
    /// `vfio/<n>`
    Group(u32),
    /// `vfio/devices/vfio<n>`
    Cdev(u32),
    /// `dri/card<n>`
    Card(u32),
    /// `vfio/vfio`
    Container,
    /// `iommu`
    Iommu,
}

/// A process that has a node open.
pub(super) struct Hold {
    pub(super) id: u64,
    pub(super) pid: u32,
    pub(super) command: Box<str>,
    /// Of a cdev: bound to an iommufd, which makes it exclusive.
    pub(super) bound: bool,
}

/// Numbers handed out lowest first, as the kernel's `ida` does.
#[derive(Default)]
pub(super) struct Numbers {
    next: u32,
    free: BTreeSet<u32>,
}

impl Numbers {
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Keeps a number from being handed out.
    pub(super) fn reserve(&mut self, number: u32) {
        self.free.extend(self.next..=number);
        self.next = self.next.max(number + 1);
        self.free.remove(&number);
    }

    pub(super) fn give_back(&mut self, number: u32) {
        self.free.insert(number);
    }
}

impl State {
    pub(super) fn next_inode(&mut self) -> u64 {
        self.last_inode += 1;
        self.last_inode
    }

    pub(super) fn function(&self, address: PciAddress) -> Result<&PciDevice, Errno> {
        self.pci.get(&address).ok_or(Errno::ENODEV)
    }

    pub(super) fn function_mut(&mut self, address: PciAddress) -> Result<&mut PciDevice, Errno> {
        self.pci.get_mut(&address).ok_or(Errno::ENODEV)
    }

    pub(super) fn driver_named(&self, name: &str) -> Option<usize> {
        self.drivers.iter().position(|driver| driver.loaded && *driver.name == *name)
    }

    pub(super) fn driver_of(&self, device: &PciDevice) -> Option<&Driver> {
        self.drivers.get(device.driver?)
    }

    pub(super) fn parent(&self, key: ParentKey) -> Option<&Parent> {
        match key {
            ParentKey::Pci(address) => self.pci.get(&address)?.parent.as_deref(),
            ParentKey::Virtual(index) => {
                Some(&self.virtual_parents.get(usize::from(index))?.parent)
            }
        }
    }

    pub(super) fn parent_mut(&mut self, key: ParentKey) -> Option<&mut Parent> {
        match key {
            ParentKey::Pci(address) => self.pci.get_mut(&address)?.parent.as_deref_mut(),
            ParentKey::Virtual(index) => {
                Some(&mut self.virtual_parents.get_mut(usize::from(index))?.parent)
            }
        }
    }

    /// The parents registered.
    pub(super) fn parents(&self) -> impl Iterator<Item = ParentKey> + '_ {
        let functions = self.pci.iter().filter(|(_, device)| device.parent.is_some());
        functions
            .map(|(address, _)| ParentKey::Pci(*address))
            .chain((0..self.virtual_parents.len() as u16).map(ParentKey::Virtual))
    }

    pub(super) fn vfio_of(&self, member: Member) -> Option<VfioDevice> {
        match member {
            Member::Pci(address) => self.pci.get(&address)?.vfio,
            Member::Mdev(uuid) => self.mdevs.get(&uuid)?.vfio,
        }
    }

    pub(super) fn group_of(&self, member: Member) -> Option<u32> {
        match member {
            Member::Pci(address) => self.pci.get(&address)?.group,
            Member::Mdev(uuid) => self.mdevs.get(&uuid)?.group,
        }
    }

    /// Puts a device into a group, a new one by default.
    pub(super) fn join_group(&mut self, member: Member, group: Option<u32>) -> u32 {
        let number = group.unwrap_or_else(|| self.group_numbers.take());
        self.groups.entry(number).or_default().members.push(member);
        number
    }

    /// Takes a device out of its group, which goes with its last member.
    pub(super) fn leave_group(&mut self, member: Member) {
        let Some(number) = self.group_of(member) else { return };
        if let Some(group) = self.groups.get_mut(&number) {
            group.members.retain(|other| *other != member);
            if group.members.is_empty() {
                self.groups.remove(&number);
                self.group_numbers.give_back(number);
            }
        }
    }
}

impl Sriov {
    /// What `sriov_totalvfs` reads: the driver's limit, where it set one.
    pub(super) fn total(&self) -> u16 {
        self.spec.driver_limit.unwrap_or(u16::MAX).min(self.spec.total_vfs)
    }

    pub(super) fn vf_address(&self, pf: PciAddress, index: u16) -> Option<PciAddress> {
        vf_address(pf, &self.spec, index)
    }
}

impl Parent {
    pub(super) fn new(kind: Arc<MdevKind>, pool: usize) -> Self {
        Self { kind, pool, members: BTreeSet::new(), going: false }
    }

    /// The mdevs of one type.
    pub(super) fn members_of(&self, type_index: u16) -> impl Iterator<Item = Uuid> + '_ {
        self.members
            .range((type_index, Uuid::nil())..=(type_index, Uuid::max()))
            .map(|(_, uuid)| *uuid)
    }
}

impl Pool {
    /// Whether a type can follow those that are there.
    pub(super) fn admits(&self, kind: &MdevKind, index: u16, wanted: &MdevType) -> bool {
        let mut there = self.counts.keys();
        match kind.homogeneous {
            None => true,
            Some(Homogeneous::Id) => there.all(|other| *other == index),
            Some(Homogeneous::Size) => there.all(|other| size(kind, *other) == wanted.size),
        }
    }

    /// How many more of a type fit.
    pub(super) fn left(&self, kind: &MdevKind, index: u16, wanted: &MdevType) -> u64 {
        if !self.admits(kind, index, wanted) {
            return 0;
        }
        let fit = kind.units.saturating_sub(self.used).checked_div(wanted.size).unwrap_or(0);
        let fit = fit.min(gvt::left(kind, &self.counts, wanted));
        let same = self.counts.iter().filter(|(other, _)| size(kind, **other) == wanted.size);
        let same: u64 = same.map(|(_, count)| u64::from(*count)).sum();
        fit.min(wanted.max.map_or(u64::MAX, u64::from).saturating_sub(same))
    }

    pub(super) fn take(&mut self, index: u16, wanted: &MdevType) {
        self.used += wanted.size;
        *self.counts.entry(index).or_default() += 1;
    }

    pub(super) fn give_back(&mut self, index: u16, size: u64) {
        self.used = self.used.saturating_sub(size);
        if let Some(count) = self.counts.get_mut(&index) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&index);
            }
        }
    }
}

fn size(kind: &MdevKind, index: u16) -> u64 {
    kind.types.get(usize::from(index)).map_or(0, |ty| ty.size)
}
