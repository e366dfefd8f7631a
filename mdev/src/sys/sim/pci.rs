//! Functions and their drivers: drivers/base/{bus,dd}.c and
//! drivers/pci/{pci-driver,pci-sysfs,remove}.c of Linux 6.12.

use std::{collections::BTreeSet, sync::Arc};

use nix::errno::Errno;

use crate::model::PciAddress;

use super::{
    core::Core,
    gim,
    intel::Intel,
    mdev,
    number::unsigned,
    nvidia, sriov,
    state::{Facts, Member, Parent, ParentKey, PciDevice, Role, State},
    vendor::Vendor,
    vfio,
};

/// The longest driver name that `driver_override` takes: PAGE_SIZE - 2.
const LONGEST_OVERRIDE: usize = 4094;

/// A function to be added.
pub(super) struct NewFunction {
    pub(super) address: PciAddress,
    pub(super) facts: Arc<Facts>,
    pub(super) upstream: Option<PciAddress>,
    pub(super) role: Role,
    /// The group to join; a new one by default.
    pub(super) group: Option<u32>,
    pub(super) driver_override: Option<Box<str>>,
}

/// Adds a function to the tree; nothing is bound to it yet.
pub(super) fn add(core: &Core, new: NewFunction) {
    let address = new.address;
    let mut state = core.state();
    let group = state.iommu.then(|| state.join_group(Member::Pci(address), new.group));
    let device = PciDevice {
        facts: new.facts,
        inode: state.next_inode(),
        upstream: new.upstream,
        children: BTreeSet::new(),
        role: new.role,
        driver: None,
        driver_override: new.driver_override,
        group,
        vfio: None,
        card: None,
        parent: None,
        vendor: None,
        intel: None,
    };
    state.pci.insert(address, device);
    match new.upstream.and_then(|bridge| state.pci.get_mut(&bridge)) {
        Some(bridge) => bridge.children.insert(address),
        None => state.roots.entry(address.domain()).or_default().insert(address),
    };
    let event = state.pci_event("add", address);
    drop(state);
    core.emit(event);
}

/// Takes a function out; its lock is held. Blocks while it is open.
pub(super) fn take_out(core: &Core, address: PciAddress) -> Result<(), Errno> {
    detach(core, address)?;
    let event = core.state().pci_event("remove", address);
    core.emit(event);
    let mut state = core.state();
    state.leave_group(Member::Pci(address));
    let upstream = state.pci.remove(&address).and_then(|device| device.upstream);
    match upstream.and_then(|bridge| state.pci.get_mut(&bridge)) {
        Some(bridge) => {
            bridge.children.remove(&address);
        }
        None => {
            let domain = address.domain();
            if let Some(root) = state.roots.get_mut(&domain) {
                root.remove(&address);
            }
        }
    }
    Ok(())
}

impl State {
    /// Whether a driver matches a function: by its override alone, if it has one.
    fn matches(&self, device: &PciDevice, index: usize) -> bool {
        let Some(driver) = self.drivers.get(index).filter(|driver| driver.loaded) else {
            return false;
        };
        match &device.driver_override {
            Some(wanted) => **wanted == *driver.name,
            None => device.facts.native == Some(index),
        }
    }

    fn matching_driver(&self, device: &PciDevice) -> Option<usize> {
        (0..self.drivers.len()).find(|index| self.matches(device, *index))
    }

    /// What the probe of a driver answers.
    fn probe(&self, address: PciAddress, index: usize) -> Result<(), Errno> {
        let device = self.function(address)?;
        let driver = self.drivers.get(index).ok_or(Errno::ENODEV)?;
        if let Role::Vf { pf: pf_address, .. } = device.role {
            // pci_device_can_probe
            let pf = self.pci.get(&pf_address).map(|pf| &pf.role);
            let autoprobe = matches!(pf, Some(Role::Pf(sriov)) if sriov.autoprobe);
            if !autoprobe && device.driver_override.is_none() {
                return Err(Errno::ENODEV);
            }
            if !driver.vfio && !self.nvidia_has_pf(pf_address) {
                return Err(Errno::ENODEV);
            }
        }
        if driver.vfio {
            if matches!(&device.role, Role::Pf(sriov) if sriov.count > 0) {
                return Err(Errno::EBUSY);
            }
            // Measured by others: vfio-pci does not take such a VF.
            if device.facts.carries.is_some() {
                return Err(Errno::EINVAL);
            }
            // Without an IOMMU there is no group to register with.
            return device.group.map(|_| ()).ok_or(Errno::EINVAL);
        }
        // iommu_device_use_default_domain: user space owns the group's DMA.
        match device.group {
            Some(group) if self.is_group_open(group) => Err(Errno::EBUSY),
            _ => Ok(()),
        }
    }
}

/// Binds a driver; the function's lock is held.
pub(super) fn attach(core: &Core, address: PciAddress, index: usize) -> Result<(), Errno> {
    let mut state = core.state();
    if state.function(address)?.driver.is_some() {
        return Err(Errno::EBUSY);
    }
    state.probe(address, index)?;
    let driver = state.drivers.get_mut(index).ok_or(Errno::ENODEV)?;
    driver.devices.insert(address);
    let vfio = driver.vfio;
    let device = state.function_mut(address)?;
    device.driver = Some(index);
    let own = device.facts.native == Some(index);
    let display = device.facts.class >> 16 == 3;
    if own && !vfio {
        let offered = device.facts.mdev.clone();
        device.parent = offered.map(|(kind, pool)| Box::new(Parent::new(kind, pool)));
        let carries = device.facts.carries.clone();
        device.vendor = carries.map(|(kind, pool)| Box::new(Vendor::new(kind, pool)));
        if let Role::Pf(sriov) = &device.role {
            device.intel = Intel::new(&sriov.spec).map(Box::new);
        }
    }
    let is_vendor = device.vendor.is_some();
    let is_parent = device.parent.is_some();
    if display && own && !vfio && !is_vendor {
        let card = state.card_numbers.take();
        state.function_mut(address)?.card = Some(card);
    }
    drop(state);
    if is_parent {
        mdev::announce(core, ParentKey::Pci(address), true);
    }
    if vfio || is_vendor {
        vfio::register(core, Member::Pci(address))?;
    }
    if own {
        gim::probe(core, address);
    }
    let event = core.state().pci_event("bind", address);
    core.emit(event);
    Ok(())
}

/// Binds whatever matches, if anything does: success either way.
pub(super) fn attach_any(core: &Core, address: PciAddress) {
    let driver = {
        let state = core.state();
        state.pci.get(&address).and_then(|device| state.matching_driver(device))
    };
    if let Some(driver) = driver {
        // A probe that fails leaves the function unbound, which is no failure
        // of the one who asked (__device_attach_driver).
        let _ = attach(core, address, driver);
    }
}

/// Binds the functions that waited for a driver to be loaded: by their override,
/// or by being that driver's own.
pub(super) fn attach_waiting(core: &Core, loaded: Option<usize>) {
    let waiting: Vec<_> = {
        let state = core.state();
        let unbound = state.pci.iter().filter(|(_, device)| device.driver.is_none());
        let own = |device: &PciDevice| loaded.is_some() && device.facts.native == loaded;
        let wanted = unbound.filter(|(_, device)| device.driver_override.is_some() || own(device));
        wanted.map(|(address, _)| *address).collect()
    };
    for address in waiting {
        if let Ok(_device) = core.lock_device(address) {
            attach_any(core, address);
        }
    }
}

/// Unbinds; the function's lock is held. Blocks while it is open in VFIO.
pub(super) fn detach(core: &Core, address: PciAddress) -> Result<(), Errno> {
    let (has_vfs, is_parent) = {
        let mut state = core.state();
        let device = state.function_mut(address)?;
        let Some(driver) = device.driver.take() else { return Ok(()) };
        let mut has_vfs = matches!(&device.role, Role::Pf(sriov) if sriov.count > 0);
        let (card, is_parent) = (device.card.take(), device.parent.is_some());
        if let Some(card) = card {
            state.card_numbers.give_back(card);
        }
        state.gim.unbound(address);
        if let Some(driver) = state.drivers.get_mut(driver) {
            driver.devices.remove(&address);
            // It lets go of a PF and leaves the VFs as they are.
            has_vfs &= *driver.name != *nvidia::STUB;
        }
        (has_vfs, is_parent)
    };
    if has_vfs {
        // A PF's driver takes its VFs along (pci_disable_sriov in its remove).
        sriov::disable(core, address)?;
    }
    if is_parent {
        mdev::unregister(core, ParentKey::Pci(address))?;
        core.state().function_mut(address)?.parent = None;
        mdev::announce(core, ParentKey::Pci(address), false);
    }
    vfio::unregister(core, Member::Pci(address))?;
    core.state().clear_vendor(address);
    let mut state = core.state();
    state.nvidia_unbound(address);
    let device = state.function_mut(address)?;
    device.vendor = None;
    device.intel = None;
    drop(state);
    let event = core.state().pci_event("unbind", address);
    core.emit(event);
    Ok(())
}

/// `drivers/<driver>/bind`.
pub(super) fn bind(core: &Core, driver: usize, value: &str) -> Result<(), Errno> {
    let address = {
        let state = core.state();
        let address = state.function_named(one_line(value)).ok_or(Errno::ENODEV)?;
        if !state.matches(state.function(address)?, driver) {
            return Err(Errno::ENODEV);
        }
        address
    };
    let _device = core.lock_device(address)?;
    attach(core, address, driver)
}

/// `drivers/<driver>/unbind`.
pub(super) fn unbind(core: &Core, driver: usize, value: &str) -> Result<(), Errno> {
    let address = core.state().function_named(one_line(value)).ok_or(Errno::ENODEV)?;
    let bound = || core.state().function(address).is_ok_and(|d| d.driver == Some(driver));
    if !bound() {
        return Err(Errno::ENODEV);
    }
    let _device = core.lock_device(address)?;
    if !bound() {
        return Ok(());
    }
    let has_vfs = matches!(&core.state().function(address)?.role, Role::Pf(pf) if pf.count > 0);
    let _host = if has_vfs { Some(core.lock_host()?) } else { None };
    detach(core, address)
}

/// `drivers_probe`: success even when nothing was bound.
pub(super) fn drivers_probe(core: &Core, value: &str) -> Result<(), Errno> {
    let address = core.state().function_named(one_line(value)).ok_or(Errno::ENODEV)?;
    let _device = core.lock_device(address)?;
    let bound = core.state().function(address)?.driver.is_some();
    if !bound {
        attach_any(core, address);
    }
    Ok(())
}

/// `driver_override`: up to the newline; nothing before it clears.
pub(super) fn set_override(core: &Core, address: PciAddress, value: &str) -> Result<(), Errno> {
    if value.len() > LONGEST_OVERRIDE {
        return Err(Errno::EINVAL);
    }
    let name = value.split('\n').next().unwrap_or_default();
    let _device = core.lock_device(address)?;
    core.state().function_mut(address)?.driver_override = (!name.is_empty()).then(|| name.into());
    Ok(())
}

/// `reset`: takes `1` only.
pub(super) fn reset(core: &Core, address: PciAddress, value: &str) -> Result<(), Errno> {
    if unsigned(value).map_err(|_| Errno::EINVAL)? != 1 {
        return Err(Errno::EINVAL);
    }
    core.lock_device(address).map(drop)
}

/// `remove`: hot unplug.
pub(super) fn remove(core: &Core, address: PciAddress, value: &str) -> Result<(), Errno> {
    if unsigned(value).map_err(|_| Errno::EINVAL)? == 0 {
        return Ok(());
    }
    let _device = core.lock_device(address)?;
    let _host = core.lock_host()?;
    let below = core.state().function(address)?.children.clone();
    for child in below {
        let _child = core.lock_device(child)?;
        take_out(core, child)?;
    }
    unlink_vf(core, address)?;
    take_out(core, address)
}

/// Takes a VF's links away, as the first step of its removal.
pub(super) fn unlink_vf(core: &Core, address: PciAddress) -> Result<(), Errno> {
    if let Role::Vf { linked, .. } = &mut core.state().function_mut(address)?.role {
        *linked = false;
    }
    Ok(())
}

/// The text without its newline (`sysfs_streq`).
fn one_line(value: &str) -> &str {
    value.strip_suffix('\n').unwrap_or(value)
}
