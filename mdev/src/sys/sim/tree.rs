//! The tree of sysfs, as a view of the state: nothing is stored twice, and what
//! exists at a moment follows from how far the kernel is.

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash, Hasher},
};

use nix::errno::Errno;
use uuid::Uuid;

use crate::model::PciAddress;

use super::{
    attr::Attr,
    intel::Place,
    spec::{MdevKind, MdevType},
    state::{Member, ParentKey, Role, Stage, State},
};

/// The driver of NVIDIA's mdevs, each of which has a folder of its own.
const NVIDIA_MDEV_DRIVER: &str = "nvidia-vgpu-vfio";

/// A directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Dir {
    Root,
    Bus,
    PciBus,
    PciDevices,
    PciDrivers,
    PciDriver(usize),
    MdevBus,
    MdevDevices,
    MdevDrivers,
    MdevDriver(usize),
    Class,
    MdevBusClass,
    VfioClass,
    VfioDevClass,
    IommuClass,
    Devices,
    PciRoot(u32),
    Pci(PciAddress),
    /// A VF's folder `nvidia/`.
    Vendor(PciAddress),
    /// The same of an mdev.
    MdevVendor(Uuid),
    /// A GPU's folder `xgmi_hive_info/`.
    Hive(PciAddress),
    /// Below a PF's `prelim_iov/` or `sriov_admin/`.
    Intel(PciAddress, Place),
    Drm(PciAddress),
    Card(PciAddress),
    Virtual,
    VirtualBus(u16),
    VirtualParent(u16),
    Types(ParentKey),
    Type(ParentKey, u16),
    TypeDevices(ParentKey, u16),
    Mdev(Uuid),
    VfioDevices(Member),
    VfioDevice(Member),
    VirtualVfio,
    VfioGroup(u32),
    VirtualIommu,
    Iommu,
    Kernel,
    IommuGroups,
    IommuGroup(u32),
    GroupDevices(u32),
    Modules,
    Module(usize),
    /// `parameters/` of AMD's GIM.
    Parameters(usize),
}

/// Something in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Dir(Dir),
    Attr(Dir, Attr),
    /// A link that lies in the first directory and leads to the second.
    Link(Dir, Dir),
}

type Named = (Cow<'static, str>, Entry);

impl State {
    /// Finds what a path names; a link at its end is followed only if asked.
    pub(super) fn resolve(&self, path: &str, follow: bool) -> Result<Entry, Errno> {
        self.resolve_from(Dir::Root, path, follow)
    }

    pub(super) fn resolve_from(&self, base: Dir, path: &str, follow: bool) -> Result<Entry, Errno> {
        let mut at = Entry::Dir(base);
        for element in path.split('/').filter(|element| !element.is_empty()) {
            let dir = match at {
                Entry::Dir(dir) | Entry::Link(_, dir) => dir,
                Entry::Attr(..) => return Err(Errno::ENOTDIR),
            };
            at = self.child(dir, element).ok_or(Errno::ENOENT)?;
        }
        match at {
            Entry::Link(_, target) if follow => Ok(Entry::Dir(target)),
            found => Ok(found),
        }
    }

    /// One entry of a directory.
    pub(super) fn child(&self, dir: Dir, name: &str) -> Option<Entry> {
        if let Some(attr) = self.attrs(dir).into_iter().find(|attr| attr.name() == name) {
            return Some(Entry::Attr(dir, attr));
        }
        let fixed = self.fixed(dir).into_iter().find(|(known, _)| known == name);
        fixed.map(|(_, entry)| entry).or_else(|| self.member(dir, name))
    }

    /// The names in a directory.
    pub(super) fn names(&self, dir: Dir) -> Vec<String> {
        let mut names: Vec<String> =
            self.attrs(dir).into_iter().map(|attr| attr.name().to_owned()).collect();
        names.extend(self.fixed(dir).into_iter().map(|(name, _)| name.into_owned()));
        self.members(dir, &mut names);
        names
    }

    /// The directories and links whose names do not depend on a key.
    fn fixed(&self, dir: Dir) -> Vec<Named> {
        let sub = |name: &'static str, to: Dir| (Cow::Borrowed(name), Entry::Dir(to));
        let link = |name: &'static str, to: Dir| (Cow::Borrowed(name), Entry::Link(dir, to));
        match dir {
            Dir::Root => vec![
                sub("bus", Dir::Bus),
                sub("class", Dir::Class),
                sub("devices", Dir::Devices),
                sub("kernel", Dir::Kernel),
                sub("module", Dir::Modules),
            ],
            Dir::Bus => {
                let has_mdev = self.mdev_bus || self.mdev_class;
                let mdev = has_mdev.then(|| sub("mdev", Dir::MdevBus));
                [sub("pci", Dir::PciBus)].into_iter().chain(mdev).collect()
            }
            Dir::PciBus => vec![sub("devices", Dir::PciDevices), sub("drivers", Dir::PciDrivers)],
            Dir::MdevBus => {
                vec![sub("devices", Dir::MdevDevices), sub("drivers", Dir::MdevDrivers)]
            }
            Dir::Class => {
                let mut found = vec![sub("iommu", Dir::IommuClass)];
                found.extend(self.mdev_class.then(|| sub("mdev_bus", Dir::MdevBusClass)));
                if self.mdev_class || self.drivers.iter().any(|d| d.loaded && d.vfio) {
                    found.extend(self.vfio.groups.then(|| sub("vfio", Dir::VfioClass)));
                    found.push(sub("vfio-dev", Dir::VfioDevClass));
                }
                found
            }
            Dir::IommuClass if self.iommu => vec![link("dmar0", Dir::Iommu)],
            Dir::Devices => vec![sub("virtual", Dir::Virtual)],
            Dir::Virtual => {
                let iommu = self.iommu.then(|| sub("iommu", Dir::VirtualIommu));
                [sub("vfio", Dir::VirtualVfio)].into_iter().chain(iommu).collect()
            }
            Dir::VirtualIommu => vec![sub("dmar0", Dir::Iommu)],
            Dir::VirtualBus(index) => {
                let parent = self.virtual_parents.get(usize::from(index));
                let entry = Entry::Dir(Dir::VirtualParent(index));
                parent.map(|p| (Cow::Owned(p.name.to_string()), entry)).into_iter().collect()
            }
            Dir::VirtualParent(index) => {
                vec![sub("mdev_supported_types", Dir::Types(ParentKey::Virtual(index)))]
            }
            Dir::Kernel => vec![sub("iommu_groups", Dir::IommuGroups)],
            Dir::IommuGroup(number) => vec![sub("devices", Dir::GroupDevices(number))],
            Dir::Type(key, index) => vec![sub("devices", Dir::TypeDevices(key, index))],
            Dir::Pci(address) => self.function_entries(address),
            Dir::Mdev(uuid) => self.mdev_entries(uuid),
            Dir::VfioDevices(member) => self
                .live_vfio_of(member)
                .map(|number| {
                    (Cow::Owned(format!("vfio{number}")), Entry::Dir(Dir::VfioDevice(member)))
                })
                .into_iter()
                .collect(),
            Dir::VfioDevice(member) => vec![link("device", member.dir())],
            Dir::Drm(address) => self
                .pci
                .get(&address)
                .and_then(|device| device.card)
                .map(|card| (Cow::Owned(format!("card{card}")), Entry::Dir(Dir::Card(address))))
                .into_iter()
                .collect(),
            Dir::Card(address) => {
                let mut found = self.intel_home(address, dir);
                found.push(link("device", Dir::Pci(address)));
                found
            }
            Dir::Intel(pf, place) => self.intel_entries(pf, place),
            Dir::Module(n) if self.is_gim(n) => vec![sub("parameters", Dir::Parameters(n))],
            _ => Vec::new(),
        }
    }

    fn function_entries(&self, address: PciAddress) -> Vec<Named> {
        let Some(device) = self.pci.get(&address) else { return Vec::new() };
        let dir = Dir::Pci(address);
        let sub = |name, to| (Cow::Borrowed(name), Entry::Dir(to));
        let link = |name, to| (Cow::Borrowed(name), Entry::Link(dir, to));
        let mut found = vec![link("subsystem", Dir::PciBus)];
        found.extend(device.driver.map(|driver| link("driver", Dir::PciDriver(driver))));
        found.extend(device.group.map(|group| link("iommu_group", Dir::IommuGroup(group))));
        if let Role::Vf { pf, linked: true, .. } = device.role {
            found.push(link("physfn", Dir::Pci(pf)));
        }
        if self.live_vfio_of(Member::Pci(address)).is_some() {
            found.push(sub("vfio-dev", Dir::VfioDevices(Member::Pci(address))));
        }
        found.extend(device.card.map(|_| sub("drm", Dir::Drm(address))));
        found.extend(device.vendor.as_ref().map(|_| sub("nvidia", Dir::Vendor(address))));
        if self.gim.tells_hive(address) {
            found.push(sub("xgmi_hive_info", Dir::Hive(address)));
        }
        found.extend(self.intel_home(address, dir));
        if device.parent.is_some() {
            found.push(sub("mdev_supported_types", Dir::Types(ParentKey::Pci(address))));
        }
        found
    }

    fn mdev_entries(&self, uuid: Uuid) -> Vec<Named> {
        let Some(mdev) = self.mdevs.get(&uuid) else { return Vec::new() };
        let dir = Dir::Mdev(uuid);
        let link = |name, to| (Cow::Borrowed(name), Entry::Link(dir, to));
        let mut found = Vec::new();
        if mdev.stage != Stage::Removing {
            found.push(link("subsystem", Dir::MdevBus));
        }
        if mdev.stage == Stage::Active {
            found.push(link("mdev_type", Dir::Type(mdev.parent, mdev.type_index)));
        }
        let driver = self.mdev_driver(uuid).and_then(|name| self.mdev_driver_index(name));
        found.extend(driver.map(|driver| link("driver", Dir::MdevDriver(driver))));
        found.extend(mdev.group.map(|group| link("iommu_group", Dir::IommuGroup(group))));
        if self.live_vfio_of(Member::Mdev(uuid)).is_some() {
            let devices = Dir::VfioDevices(Member::Mdev(uuid));
            found.push((Cow::Borrowed("vfio-dev"), Entry::Dir(devices)));
        }
        if mdev.stage == Stage::Active && self.mdev_driver(uuid) == Some(NVIDIA_MDEV_DRIVER) {
            found.push((Cow::Borrowed("nvidia"), Entry::Dir(Dir::MdevVendor(uuid))));
        }
        found
    }

    /// The directory above, and the name there.
    fn above(&self, dir: Dir) -> Option<(Dir, Cow<'static, str>)> {
        let fixed = |up, name| Some((up, Cow::Borrowed(name)));
        let keyed = |up, name: String| Some((up, Cow::Owned(name)));
        match dir {
            Dir::Root => None,
            Dir::Bus => fixed(Dir::Root, "bus"),
            Dir::Class => fixed(Dir::Root, "class"),
            Dir::Devices => fixed(Dir::Root, "devices"),
            Dir::Kernel => fixed(Dir::Root, "kernel"),
            Dir::Modules => fixed(Dir::Root, "module"),
            Dir::PciBus => fixed(Dir::Bus, "pci"),
            Dir::MdevBus => fixed(Dir::Bus, "mdev"),
            Dir::PciDevices => fixed(Dir::PciBus, "devices"),
            Dir::PciDrivers => fixed(Dir::PciBus, "drivers"),
            Dir::MdevDevices => fixed(Dir::MdevBus, "devices"),
            Dir::MdevDrivers => fixed(Dir::MdevBus, "drivers"),
            Dir::MdevBusClass => fixed(Dir::Class, "mdev_bus"),
            Dir::VfioClass => fixed(Dir::Class, "vfio"),
            Dir::VfioDevClass => fixed(Dir::Class, "vfio-dev"),
            Dir::IommuClass => fixed(Dir::Class, "iommu"),
            Dir::Virtual => fixed(Dir::Devices, "virtual"),
            Dir::VirtualVfio => fixed(Dir::Virtual, "vfio"),
            Dir::VirtualIommu => fixed(Dir::Virtual, "iommu"),
            Dir::Iommu => fixed(Dir::VirtualIommu, "dmar0"),
            Dir::IommuGroups => fixed(Dir::Kernel, "iommu_groups"),
            Dir::PciRoot(domain) => keyed(Dir::Devices, root_name(domain)),
            Dir::PciDriver(n) => keyed(Dir::PciDrivers, self.drivers.get(n)?.name.to_string()),
            Dir::Module(n) => keyed(Dir::Modules, module_name(&self.drivers.get(n)?.name)),
            Dir::Parameters(n) => fixed(Dir::Module(n), "parameters"),
            Dir::MdevDriver(n) => keyed(Dir::MdevDrivers, self.mdev_drivers.iter().nth(n)?.clone()),
            Dir::Pci(address) => {
                let upstream = self.pci.get(&address)?.upstream;
                keyed(
                    upstream.map_or(Dir::PciRoot(address.domain()), Dir::Pci),
                    address.to_string(),
                )
            }
            Dir::Drm(address) => fixed(Dir::Pci(address), "drm"),
            Dir::Vendor(vf) => fixed(Dir::Pci(vf), "nvidia"),
            Dir::MdevVendor(uuid) => fixed(Dir::Mdev(uuid), "nvidia"),
            Dir::Hive(pf) => fixed(Dir::Pci(pf), "xgmi_hive_info"),
            Dir::Intel(pf, place) => self.intel_above(pf, place),
            Dir::Card(address) => {
                keyed(Dir::Drm(address), format!("card{}", self.pci.get(&address)?.card?))
            }
            Dir::VirtualBus(index) => {
                keyed(Dir::Virtual, self.parent_name(ParentKey::Virtual(index)))
            }
            Dir::VirtualParent(index) => {
                keyed(Dir::VirtualBus(index), self.parent_name(ParentKey::Virtual(index)))
            }
            Dir::Types(key) => fixed(key.dir(), "mdev_supported_types"),
            Dir::Type(key, index) => {
                keyed(Dir::Types(key), self.mdev_type(key, index)?.1.id.clone())
            }
            Dir::TypeDevices(key, index) => fixed(Dir::Type(key, index), "devices"),
            Dir::Mdev(uuid) => keyed(self.mdevs.get(&uuid)?.parent.dir(), uuid.to_string()),
            Dir::VfioDevices(member) => fixed(member.dir(), "vfio-dev"),
            Dir::VfioDevice(member) => {
                keyed(Dir::VfioDevices(member), format!("vfio{}", self.vfio_of(member)?.number))
            }
            Dir::VfioGroup(number) => keyed(Dir::VirtualVfio, number.to_string()),
            Dir::IommuGroup(number) => keyed(Dir::IommuGroups, number.to_string()),
            Dir::GroupDevices(number) => fixed(Dir::IommuGroup(number), "devices"),
        }
    }

    /// A directory's own path, without links.
    pub(super) fn path(&self, dir: Dir) -> String {
        let mut elements = Vec::new();
        let mut at = dir;
        while let Some((up, name)) = self.above(at) {
            elements.push(name);
            at = up;
        }
        elements.reverse();
        elements.join("/")
    }

    /// The text of a link: relative, as the kernel's are.
    pub(super) fn link_text(&self, from: Dir, to: Dir) -> String {
        let (from, to) = (self.path(from), self.path(to));
        let (from, to): (Vec<_>, Vec<_>) = (from.split('/').collect(), to.split('/').collect());
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let up = std::iter::repeat_n("..", from.len() - shared);
        up.chain(to.into_iter().skip(shared)).collect::<Vec<_>>().join("/")
    }

    /// A directory's inode: a device's is new at each creation.
    pub(super) fn inode(&self, dir: Dir) -> u64 {
        let device = match dir {
            Dir::Pci(address)
            | Dir::Drm(address)
            | Dir::Vendor(address)
            | Dir::Hive(address)
            | Dir::Intel(address, _)
            | Dir::Card(address) => self.pci.get(&address).map(|device| device.inode),
            Dir::Mdev(uuid) => self.mdevs.get(&uuid).map(|mdev| mdev.inode),
            Dir::VfioDevices(member) | Dir::VfioDevice(member) => Some(self.inode(member.dir())),
            _ => None,
        };
        match (dir, device) {
            (Dir::Pci(_) | Dir::Mdev(_), Some(inode)) => inode,
            _ => {
                let mut hasher = DefaultHasher::new();
                (dir, device).hash(&mut hasher);
                hasher.finish() | 1 << 63
            }
        }
    }

    pub(super) fn parent_name(&self, key: ParentKey) -> String {
        match key {
            ParentKey::Pci(address) => address.to_string(),
            ParentKey::Virtual(index) => self
                .virtual_parents
                .get(usize::from(index))
                .map_or_else(String::new, |parent| parent.name.to_string()),
        }
    }

    pub(super) fn mdev_type(&self, key: ParentKey, index: u16) -> Option<(&MdevKind, &MdevType)> {
        let kind = &*self.parent(key)?.kind;
        Some((kind, kind.types.get(usize::from(index))?))
    }

    /// The driver that an mdev is bound to.
    pub(super) fn mdev_driver(&self, uuid: Uuid) -> Option<&str> {
        let mdev = self.mdevs.get(&uuid)?;
        let bound = matches!(mdev.stage, Stage::Bound | Stage::Active);
        bound.then(|| self.parent(mdev.parent).map(|parent| &*parent.kind.driver))?
    }

    pub(super) fn mdev_driver_index(&self, name: &str) -> Option<usize> {
        self.mdev_drivers.iter().position(|driver| driver == name)
    }

    pub(super) fn is_removing(&self, uuid: Uuid) -> bool {
        self.mdevs.get(&uuid).is_none_or(|mdev| mdev.stage == Stage::Removing)
    }
}

impl ParentKey {
    pub(super) fn dir(self) -> Dir {
        match self {
            Self::Pci(address) => Dir::Pci(address),
            Self::Virtual(index) => Dir::VirtualParent(index),
        }
    }
}

impl Member {
    pub(super) fn dir(self) -> Dir {
        match self {
            Self::Pci(address) => Dir::Pci(address),
            Self::Mdev(uuid) => Dir::Mdev(uuid),
        }
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Pci(address) => address.to_string(),
            Self::Mdev(uuid) => uuid.to_string(),
        }
    }
}

/// The name of a domain's root bus.
pub(super) fn root_name(domain: u32) -> String {
    format!("pci{domain:04x}:00")
}

/// A module is named with underscores.
pub(super) fn module_name(driver: &str) -> String {
    driver.replace('-', "_")
}
