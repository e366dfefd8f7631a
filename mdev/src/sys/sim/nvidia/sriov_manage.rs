//! `sriov-manage`: enables or disables all VFs of a GPU. It takes the PF from the
//! driver, changes the count while a stub driver has it, and gives it back.

use crate::model::PciAddress;

use super::{
    super::{
        core::Core,
        pci, sriov,
        state::{Driver, Role},
    },
    Answer, STUB,
};

const USAGE: &str = "\
Usage:
    /usr/lib/nvidia/sriov-manage <-e|-d> <ssss:bb:dd.f|ALL>
    /usr/lib/nvidia/sriov-manage -h
";

pub(super) fn run(core: &Core, args: &[String]) -> Answer {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (enable, target) = match args[..] {
        ["-e", target] => (true, target),
        ["-d", target] => (false, target),
        ["-h"] => return Answer::failed(0, USAGE),
        _ => return Answer::failed(1, USAGE),
    };
    let known: Vec<PciAddress> = core.state().nvidia.keys().copied().collect();
    let gpus: Vec<_> = match target.eq_ignore_ascii_case("all") {
        true => known,
        false => known.into_iter().filter(|gpu| is_called(*gpu, target)).collect(),
    };
    // An address that names no GPU is no reason to say anything.
    let mut answer = Answer { text: String::new(), status: i32::from(gpus.is_empty()) };
    for gpu in gpus {
        match enable {
            true => self::enable(core, gpu, &mut answer),
            false => disable(core, gpu, &mut answer),
        }
        if answer.status != 0 {
            break;
        }
    }
    answer
}

/// Whether a text is a GPU's address, as `lspci -s` takes it.
fn is_called(gpu: PciAddress, text: &str) -> bool {
    let full = gpu.to_string();
    full.eq_ignore_ascii_case(text) || full.strip_prefix("0000:") == Some(text)
}

fn enable(core: &Core, gpu: PciAddress, answer: &mut Answer) {
    let Some(total) = total(core, gpu) else { return };
    if core.state().vf_count(gpu) != 0 {
        return answer.line(format!("GPU at {gpu} already has VFs enabled."));
    }
    answer.line(format!("Enabling VFs on {gpu}"));
    let late = {
        let mut state = core.state();
        let Some(nvidia) = state.nvidia.get_mut(&gpu) else { return };
        nvidia.late = nvidia.spec.late_vfs.min(total);
        nvidia.late + nvidia.spec.missing_vfs
    };
    change(core, gpu, total.saturating_sub(late), answer);
    // As the script's status is that of its last command, which is not this one.
    attach_vfs(core, gpu);
}

fn disable(core: &Core, gpu: PciAddress, answer: &mut Answer) {
    if total(core, gpu).is_none() {
        return;
    }
    if core.state().vf_count(gpu) == 0 {
        return answer.line(format!("GPU at {gpu} already has VFs disabled."));
    }
    answer.line(format!("Disabling VFs on {gpu}"));
    change(core, gpu, 0, answer);
    if answer.status == 0
        && let Some(nvidia) = core.state().nvidia.get_mut(&gpu)
    {
        nvidia.late = 0;
    }
}

/// `sriov_totalvfs`, where the GPU has VFs at all.
fn total(core: &Core, gpu: PciAddress) -> Option<u16> {
    match &core.state().pci.get(&gpu)?.role {
        Role::Pf(sriov) => Some(sriov.total()),
        _ => None,
    }
}

/// Sets the count with the PF on the stub.
fn change(core: &Core, gpu: PciAddress, count: u16, answer: &mut Answer) {
    let is_kept = {
        let state = core.state();
        state.is_on_nvidia(gpu) && state.is_in_use(gpu)
    };
    if is_kept {
        answer.line(format!("Cannot obtain unbindLock for {gpu}"));
        answer.status = 1;
        return;
    }
    if let Err(errno) = try_change(core, gpu, count) {
        answer.line(format!("sriov-manage: write error: {}", errno.desc()));
    }
}

fn try_change(core: &Core, gpu: PciAddress, count: u16) -> Result<(), nix::errno::Errno> {
    // The VFs first, which on the way lose what they carry.
    let vfs = core.state().vfs_of(gpu);
    for vf in vfs {
        let _device = core.lock_device(vf)?;
        pci::detach(core, vf)?;
    }
    let _device = core.lock_device(gpu)?;
    pci::detach(core, gpu)?;
    pci::attach(core, gpu, stub(core))?;
    {
        let _host = core.lock_host()?;
        match count {
            0 => sriov::disable(core, gpu)?,
            count => sriov::enable(core, gpu, count)?,
        }
    }
    pci::detach(core, gpu)?;
    pci::attach_any(core, gpu);
    Ok(())
}

/// Binds the VFs to the driver, which does not take them before it has the PF.
fn attach_vfs(core: &Core, gpu: PciAddress) {
    let vfs = core.state().vfs_of(gpu);
    for vf in vfs {
        let bound = core.state().pci.get(&vf).is_some_and(|device| device.driver.is_some());
        if !bound && let Ok(_device) = core.lock_device(vf) {
            pci::attach_any(core, vf);
        }
    }
}

/// Lets the VFs appear that were late.
pub(in super::super) fn deliver_late(core: &Core) {
    let gpus: Vec<PciAddress> = core.state().nvidia.keys().copied().collect();
    for gpu in gpus {
        let late = core.state().nvidia.get_mut(&gpu).map_or(0, |gpu| std::mem::take(&mut gpu.late));
        let there = core.state().vf_count(gpu);
        if late > 0 {
            // Nobody is told where a VF's place is taken: it stays away.
            let _ = sriov::extend(core, gpu, there..there + late);
            attach_vfs(core, gpu);
        }
    }
    core.events.settle();
}

/// The index of the stub driver, which the script loads.
fn stub(core: &Core) -> usize {
    let mut state = core.state();
    if let Some(known) = state.drivers.iter().position(|driver| *driver.name == *STUB) {
        return known;
    }
    state.drivers.push(Driver {
        name: STUB.into(),
        loaded: true,
        vfio: false,
        enable_sriov: false,
        devices: Default::default(),
    });
    state.drivers.len() - 1
}
