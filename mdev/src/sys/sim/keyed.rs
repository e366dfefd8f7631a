//! The directories that can hold thousands: their entries are found by key, and
//! listed only when asked for.

use uuid::Uuid;

use crate::model::PciAddress;

use super::{
    state::{Driver, ParentKey, Role, Stage, State},
    tree::{Dir, Entry, module_name, root_name},
};

impl State {
    /// An entry found by its key: what a directory can hold thousands of.
    pub(super) fn member(&self, dir: Dir, name: &str) -> Option<Entry> {
        let link = |to| Some(Entry::Link(dir, to));
        match dir {
            Dir::PciDevices => link(Dir::Pci(self.function_named(name)?)),
            Dir::PciDrivers => Some(Entry::Dir(Dir::PciDriver(self.driver_named(name)?))),
            Dir::PciDriver(driver) => {
                let address = self.function_named(name)?;
                let bound = self.drivers.get(driver)?.devices.contains(&address);
                if bound { link(Dir::Pci(address)) } else { None }
            }
            Dir::MdevDevices => {
                let (uuid, mdev) = self.mdev_named(name)?;
                if mdev == Stage::Removing { None } else { link(Dir::Mdev(uuid)) }
            }
            Dir::MdevDrivers => Some(Entry::Dir(Dir::MdevDriver(self.mdev_driver_index(name)?))),
            Dir::MdevDriver(driver) => {
                let (uuid, _) = self.mdev_named(name)?;
                let bound = self.mdev_driver(uuid).and_then(|name| self.mdev_driver_index(name));
                if bound == Some(driver) { link(Dir::Mdev(uuid)) } else { None }
            }
            Dir::MdevBusClass => match self.function_named(name) {
                Some(address) => {
                    let parent = self.parent(ParentKey::Pci(address))?;
                    if parent.going { None } else { link(Dir::Pci(address)) }
                }
                None => link(Dir::VirtualParent(self.virtual_named(name)?)),
            },
            Dir::VfioClass => link(Dir::VfioGroup(self.group_node_named(name)?)),
            Dir::VirtualVfio => Some(Entry::Dir(Dir::VfioGroup(self.group_node_named(name)?))),
            Dir::VfioDevClass => {
                let number = name.strip_prefix("vfio").and_then(plain_number)?;
                link(Dir::VfioDevice(self.live_vfio(number)?))
            }
            Dir::Devices => {
                let domain = name.strip_prefix("pci")?.strip_suffix(":00")?;
                let domain = u32::from_str_radix(domain, 16).ok()?;
                (self.roots.contains_key(&domain) && root_name(domain) == name)
                    .then_some(Entry::Dir(Dir::PciRoot(domain)))
            }
            Dir::PciRoot(domain) => {
                let address = self.function_named(name)?;
                let here = self.roots.get(&domain)?.contains(&address);
                here.then_some(Entry::Dir(Dir::Pci(address)))
            }
            Dir::Pci(address) => self.function_member(address, name),
            Dir::Virtual => Some(Entry::Dir(Dir::VirtualBus(self.virtual_named(name)?))),
            Dir::VirtualParent(index) => self.child_mdev(ParentKey::Virtual(index), name),
            Dir::Types(key) => {
                let types = &self.parent(key)?.kind.types;
                let index = types.iter().position(|ty| ty.id == name)?;
                Some(Entry::Dir(Dir::Type(key, u16::try_from(index).ok()?)))
            }
            Dir::TypeDevices(key, index) => {
                let (uuid, stage) = self.mdev_named(name)?;
                let here = self.parent(key)?.members.contains(&(index, uuid));
                if here && stage == Stage::Active { link(Dir::Mdev(uuid)) } else { None }
            }
            Dir::IommuGroups => {
                let number = plain_number(name)?;
                self.groups.contains_key(&number).then_some(Entry::Dir(Dir::IommuGroup(number)))
            }
            Dir::GroupDevices(number) => {
                let members = &self.groups.get(&number)?.members;
                link(members.iter().find(|member| member.name() == name)?.dir())
            }
            Dir::Modules => {
                let module = |driver: &Driver| module_name(&driver.name) == name;
                let found = self.drivers.iter().position(|driver| driver.loaded && module(driver));
                Some(Entry::Dir(Dir::Module(found?)))
            }
            _ => None,
        }
    }

    fn function_member(&self, address: PciAddress, name: &str) -> Option<Entry> {
        let device = self.pci.get(&address)?;
        if let (Role::Pf(sriov), Some(index)) = (&device.role, name.strip_prefix("virtfn")) {
            let index = u16::try_from(plain_number(index)?).ok()?;
            let vf = sriov.vf_address(address, index)?;
            let linked = self.is_linked_vf(vf, address);
            return linked.then_some(Entry::Link(Dir::Pci(address), Dir::Pci(vf)));
        }
        if let Some(below) = self.function_named(name) {
            return device.children.contains(&below).then_some(Entry::Dir(Dir::Pci(below)));
        }
        self.child_mdev(ParentKey::Pci(address), name)
    }

    pub(super) fn members(&self, dir: Dir, names: &mut Vec<String>) {
        match dir {
            Dir::PciDevices => names.extend(self.pci.keys().map(ToString::to_string)),
            Dir::PciDrivers => {
                let loaded = self.drivers.iter().filter(|driver| driver.loaded);
                names.extend(loaded.map(|driver| driver.name.to_string()));
            }
            Dir::PciDriver(driver) => {
                let devices = self.drivers.get(driver).into_iter().flat_map(|d| &d.devices);
                names.extend(devices.map(ToString::to_string));
            }
            Dir::MdevDevices => {
                let there = self.mdevs.iter().filter(|(_, mdev)| mdev.stage != Stage::Removing);
                names.extend(there.map(|(uuid, _)| uuid.to_string()));
            }
            Dir::MdevDrivers => names.extend(self.mdev_drivers.iter().cloned()),
            Dir::MdevDriver(driver) => {
                let name = self.mdev_drivers.iter().nth(driver);
                let bound = |uuid: &&Uuid| self.mdev_driver(**uuid) == name.map(String::as_str);
                names.extend(self.mdevs.keys().filter(bound).map(ToString::to_string));
            }
            Dir::MdevBusClass => {
                let parents =
                    self.parents().filter(|key| self.parent(*key).is_some_and(|p| !p.going));
                names.extend(parents.map(|key| self.parent_name(key)));
            }
            Dir::VfioClass | Dir::VirtualVfio => {
                let nodes = self.groups.keys().filter(|number| self.has_group_node(**number));
                names.extend(nodes.map(ToString::to_string));
            }
            Dir::VfioDevClass => {
                let live = self.vfio_devices.keys().filter(|n| self.live_vfio(**n).is_some());
                names.extend(live.map(|number| format!("vfio{number}")));
            }
            Dir::Devices => names.extend(self.roots.keys().map(|domain| root_name(*domain))),
            Dir::PciRoot(domain) => {
                names
                    .extend(self.roots.get(&domain).into_iter().flatten().map(ToString::to_string));
            }
            Dir::Pci(address) => self.function_members(address, names),
            Dir::Virtual => {
                names.extend(self.virtual_parents.iter().map(|parent| parent.name.to_string()));
            }
            Dir::VirtualParent(index) => self.child_mdevs(ParentKey::Virtual(index), names),
            Dir::Types(key) => {
                let types = self.parent(key).into_iter().flat_map(|parent| &parent.kind.types);
                names.extend(types.map(|ty| ty.id.clone()));
            }
            Dir::TypeDevices(key, index) => {
                let there =
                    self.parent(key).into_iter().flat_map(|parent| parent.members_of(index));
                let active = |uuid: &Uuid| {
                    self.mdevs.get(uuid).is_some_and(|mdev| mdev.stage == Stage::Active)
                };
                names.extend(there.filter(active).map(|uuid| uuid.to_string()));
            }
            Dir::IommuGroups => names.extend(self.groups.keys().map(ToString::to_string)),
            Dir::GroupDevices(number) => {
                let members = self.groups.get(&number).into_iter().flat_map(|group| &group.members);
                names.extend(members.map(|member| member.name()));
            }
            Dir::Modules => {
                let loaded = self.drivers.iter().filter(|driver| driver.loaded);
                names.extend(loaded.map(|driver| module_name(&driver.name)));
            }
            _ => {}
        }
    }

    fn function_members(&self, address: PciAddress, names: &mut Vec<String>) {
        let Some(device) = self.pci.get(&address) else { return };
        if let Role::Pf(sriov) = &device.role {
            for index in 0..sriov.spec.total_vfs {
                let vf = sriov.vf_address(address, index);
                if vf.is_some_and(|vf| self.is_linked_vf(vf, address)) {
                    names.push(format!("virtfn{index}"));
                }
            }
        }
        names.extend(device.children.iter().map(ToString::to_string));
        self.child_mdevs(ParentKey::Pci(address), names);
    }

    fn child_mdev(&self, key: ParentKey, name: &str) -> Option<Entry> {
        let (uuid, _) = self.mdev_named(name)?;
        let here = self.mdevs.get(&uuid)?.parent == key;
        here.then_some(Entry::Dir(Dir::Mdev(uuid)))
    }

    fn child_mdevs(&self, key: ParentKey, names: &mut Vec<String>) {
        let there = self.parent(key).into_iter().flat_map(|parent| &parent.members);
        names.extend(there.map(|(_, uuid)| uuid.to_string()));
    }

    fn is_linked_vf(&self, vf: PciAddress, of: PciAddress) -> bool {
        let role = self.pci.get(&vf).map(|device| &device.role);
        matches!(role, Some(Role::Vf { pf, linked: true, .. }) if *pf == of)
    }

    pub(super) fn function_named(&self, name: &str) -> Option<PciAddress> {
        let address = name.parse::<PciAddress>().ok()?;
        (self.pci.contains_key(&address) && address.to_string() == name).then_some(address)
    }

    fn mdev_named(&self, name: &str) -> Option<(Uuid, Stage)> {
        let uuid = Uuid::try_parse(name).ok()?;
        let stage = self.mdevs.get(&uuid)?.stage;
        (uuid.to_string() == name).then_some((uuid, stage))
    }

    fn virtual_named(&self, name: &str) -> Option<u16> {
        let index = self.virtual_parents.iter().position(|parent| *parent.name == *name)?;
        u16::try_from(index).ok()
    }

    fn group_node_named(&self, name: &str) -> Option<u32> {
        plain_number(name).filter(|number| self.has_group_node(*number))
    }
}

/// A number as the kernel writes it.
fn plain_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}
