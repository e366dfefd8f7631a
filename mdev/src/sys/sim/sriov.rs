//! Virtual functions: drivers/pci/iov.c of Linux 6.12.

use std::ops::Range;

use nix::errno::Errno;

use crate::model::PciAddress;

use super::{
    core::Core,
    number::{boolean, unsigned},
    pci::{self, NewFunction},
    state::{Role, Sriov, State},
};

/// `sriov_numvfs`, in the order of `sriov_numvfs_store`.
pub(super) fn set_count(core: &Core, pf: PciAddress, value: &str) -> Result<(), Errno> {
    // Whatever is no u16 is EINVAL, what is too large as well.
    let wanted = unsigned(value).ok().and_then(|wanted| u16::try_from(wanted).ok());
    let wanted = wanted.ok_or(Errno::EINVAL)?;
    if wanted > core.state().sriov(pf)?.total() {
        return Err(Errno::ERANGE);
    }
    let _device = core.lock_device(pf)?;
    // Measured on Linux 6.12: one stuck store hangs those of all other PFs.
    let _host = core.lock_host()?;
    let mut enable = wanted;
    {
        let state = core.state();
        let sriov = state.sriov(pf)?;
        if wanted == sriov.count {
            return Ok(());
        }
        let driver = state.driver_of(state.function(pf)?).ok_or(Errno::ENOENT)?;
        let callback = if driver.vfio { driver.enable_sriov } else { sriov.spec.callback };
        if !callback {
            return Err(Errno::ENOENT);
        }
        if wanted != 0 {
            if sriov.count != 0 {
                return Err(Errno::EBUSY);
            }
            if let Some(errno) = sriov.spec.errno {
                return Err(errno.0);
            }
            enable = wanted.min(sriov.spec.short_count.unwrap_or(wanted));
        }
    }
    match wanted {
        0 => disable(core, pf),
        _ => self::enable(core, pf, enable),
    }
}

/// `sriov_drivers_autoprobe`.
pub(super) fn set_autoprobe(core: &Core, pf: PciAddress, value: &str) -> Result<(), Errno> {
    core.state().sriov_mut(pf)?.autoprobe = boolean(value)?;
    Ok(())
}

/// Enables VFs on a PF without any; the PF's lock is held.
pub(super) fn enable(core: &Core, pf: PciAddress, count: u16) -> Result<(), Errno> {
    extend(core, pf, 0..count)
}

/// Adds VFs to those that a PF has.
pub(super) fn extend(core: &Core, pf: PciAddress, new: Range<u16>) -> Result<(), Errno> {
    let count = new.end;
    let addresses: Option<Vec<_>> = {
        let state = core.state();
        let sriov = state.sriov(pf)?;
        new.map(|index| sriov.vf_address(pf, index)).collect()
    };
    // Past the last bus (sriov_enable: "bus number out of range").
    let addresses = addresses.ok_or(Errno::ENOMEM)?;
    if addresses.iter().any(|vf| core.state().pci.contains_key(vf)) {
        return Err(Errno::EBUSY);
    }
    core.state().provision(pf, count)?;
    for vf in addresses {
        let new = new_vf(&core.state(), pf, vf)?;
        pci::add(core, new);
        if let Role::Vf { linked, .. } = &mut core.state().function_mut(vf)?.role {
            *linked = true;
        }
        let event = core.state().pci_event("change", vf);
        core.emit(event);
        let _device = core.lock_device(vf)?;
        pci::attach_any(core, vf);
    }
    // The PF's event comes before the count reads as set.
    let event = core.state().pci_event("change", pf);
    core.emit(event);
    core.state().sriov_mut(pf)?.count = count;
    Ok(())
}

fn new_vf(state: &State, pf: PciAddress, vf: PciAddress) -> Result<NewFunction, Errno> {
    let device = state.function(pf)?;
    let sriov = state.sriov(pf)?;
    let vfio = state.driver_of(device).filter(|driver| driver.vfio);
    Ok(NewFunction {
        address: vf,
        facts: sriov.vf_facts.clone(),
        upstream: device.upstream,
        role: Role::Vf { pf, linked: false },
        group: device.group.filter(|_| sriov.spec.share_group),
        // vfio_pci_bus_notifier: the VFs of a PF on vfio-pci stay in user space.
        driver_override: vfio.map(|driver| (&*driver.name).into()),
    })
}

/// Removes all VFs of a PF; the locks of the PF and the host are held. Blocks
/// while one of them is open.
pub(super) fn disable(core: &Core, pf: PciAddress) -> Result<(), Errno> {
    let vfs: Vec<_> = {
        let state = core.state();
        let sriov = state.sriov(pf)?;
        (0..sriov.count).filter_map(|index| sriov.vf_address(pf, index)).collect()
    };
    for vf in vfs {
        // One that was unplugged before is passed over (pci_iov_remove_virtfn).
        if pci::unlink_vf(core, vf).is_err() {
            continue;
        }
        let _device = core.lock_device(vf)?;
        pci::take_out(core, vf)?;
    }
    let mut state = core.state();
    state.sriov_mut(pf)?.count = 0;
    state.unprovision(pf);
    Ok(())
}

impl State {
    fn sriov(&self, pf: PciAddress) -> Result<&Sriov, Errno> {
        match &self.function(pf)?.role {
            Role::Pf(sriov) => Ok(sriov),
            _ => Err(Errno::ENODEV),
        }
    }

    fn sriov_mut(&mut self, pf: PciAddress) -> Result<&mut Sriov, Errno> {
        match &mut self.function_mut(pf)?.role {
            Role::Pf(sriov) => Ok(sriov),
            _ => Err(Errno::ENODEV),
        }
    }
}
