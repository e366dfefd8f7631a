//! AMD's GIM: its VFs come with its module, for all of its GPUs at once
//! (`modprobe gim vf_num=N0,N1,…`, in probe order); a count written to sysfs is
//! refused with ENOENT. The module goes only while no VF is in use.

use crate::{
    claims::ClaimedFunction,
    model::PciAddress,
    plan::{Expect, Step, StepOp, Undo},
    sys::{InvalidPath, LaneKey, ToolId},
};

use super::{
    VFIO_PCI,
    sriov::{auto, device, set_override},
};

/// The driver's and the module's name.
pub const DRIVER: &str = "gim";

/// The most VFs of one GPU (`vf_num`).
pub const MOST: u32 = 31;

/// A GPU of GIM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GimGpu {
    /// Its address: GPUs are probed in that order.
    pub address: PciAddress,
    /// The VFs that it has, with their overrides, which undoing gives back.
    pub functions: Vec<ClaimedFunction>,
    /// The VFs that it is to have; 0 for all, or for none.
    pub wanted: u32,
    /// Whether the kernel binds drivers to its VFs as they appear.
    pub autoprobe: bool,
}

/// The steps that load the module anew, or unload it where no VF is wanted.
///
/// # Errors
/// Never: an address is a path element.
pub fn plan(gpus: &[GimGpu], is_loaded: bool) -> Result<Vec<Step>, InvalidPath> {
    let now = |gpu: &GimGpu| gpu.functions.len() as u32;
    let before: Vec<u32> = gpus.iter().map(now).collect();
    let after: Vec<u32> = gpus.iter().map(|gpu| gpu.wanted).collect();
    let mut steps = Vec::new();
    if before == after {
        return Ok(steps);
    }
    // amdgpu of the host must not take the VFs.
    let loads = after.iter().any(|count| *count > 0);
    for gpu in gpus.iter().filter(|gpu| gpu.autoprobe && loads) {
        steps.push(auto(gpu.address, false)?);
    }
    if is_loaded {
        steps.push(Step {
            lane: LaneKey::Programs,
            op: unload(gpus),
            expect: Expect::Nothing,
            undo: reload(gpus, &before)?,
        });
        for gpu in gpus.iter().filter(|gpu| now(gpu) > 0) {
            steps.push(look(gpu.address, 0)?);
        }
    }
    if loads {
        steps.push(Step {
            lane: LaneKey::Programs,
            op: modprobe(load(&after), Vec::new()),
            expect: Expect::Nothing,
            undo: vec![undo(&["-r".to_owned(), DRIVER.to_owned()]).unless_used(all(gpus))],
        });
        // It says success although it enabled fewer than asked.
        for gpu in gpus {
            steps.push(look(gpu.address, gpu.wanted)?);
        }
        for gpu in gpus.iter().filter(|gpu| gpu.wanted > 0) {
            steps.push(Step {
                lane: LaneKey::Host,
                op: StepOp::OverrideFunctions { pf: gpu.address, driver: VFIO_PCI.into() },
                expect: Expect::Nothing,
                undo: Vec::new(),
            });
        }
    }
    for gpu in gpus.iter().filter(|gpu| gpu.autoprobe && loads) {
        steps.push(auto(gpu.address, true)?);
    }
    Ok(steps)
}

fn look(gpu: PciAddress, count: u32) -> Result<Step, InvalidPath> {
    Ok(Step {
        lane: LaneKey::Host,
        op: StepOp::Look,
        expect: Expect::Functions { pf: device(gpu)?, count },
        undo: Vec::new(),
    })
}

/// What undoes that the module was unloaded.
fn reload(gpus: &[GimGpu], counts: &[u32]) -> Result<Vec<Undo>, InvalidPath> {
    let mut undos = vec![undo(&load(counts))];
    for function in gpus.iter().flat_map(|gpu| &gpu.functions) {
        if let Some(driver) = function.driver_override.as_deref() {
            let write = set_override(function.address, Some(driver))?;
            undos.push(Undo::write(LaneKey::Function(function.address), write));
        }
    }
    Ok(undos)
}

fn load(counts: &[u32]) -> [String; 2] {
    // A GPU that was above its limit had none, which is no number for it.
    let counts: Vec<String> = counts.iter().map(|count| (*count).max(1).to_string()).collect();
    [DRIVER.to_owned(), format!("vf_num={}", counts.join(","))]
}

fn unload(gpus: &[GimGpu]) -> StepOp {
    modprobe(["-r".to_owned(), DRIVER.to_owned()], all(gpus))
}

fn modprobe(args: [String; 2], unless_used: Vec<PciAddress>) -> StepOp {
    StepOp::RunTool { tool: ToolId::Modprobe, args: args.into(), unless_used }
}

fn undo(args: &[String; 2]) -> Undo {
    Undo::tool(LaneKey::Programs, ToolId::Modprobe, args.to_vec())
}

fn all(gpus: &[GimGpu]) -> Vec<PciAddress> {
    gpus.iter().map(|gpu| gpu.address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(address: &str, now: u32, wanted: u32) -> GimGpu {
        let address: PciAddress = address.parse().unwrap();
        let function = |n| ClaimedFunction {
            address: address.offset_by(16 + n).unwrap(),
            driver: None,
            driver_override: (n > 0).then(|| VFIO_PCI.into()),
        };
        let functions = (0..now).map(function).collect();
        GimGpu { address, functions, wanted, autoprobe: true }
    }

    fn words(gpus: &[GimGpu], is_loaded: bool) -> Vec<String> {
        plan(gpus, is_loaded).unwrap().iter().map(|step| step.op.to_string()).collect()
    }

    #[test]
    fn all_gpus_of_the_module_change_at_once() {
        let gpus = [gpu("0000:0c:00.0", 1, 2), gpu("0000:22:00.0", 1, 1)];
        let look = "look whether it shows";
        assert_eq!(
            words(&gpus, true),
            [
                "write \"0\" to /sys/bus/pci/devices/0000:0c:00.0/sriov_drivers_autoprobe",
                "write \"0\" to /sys/bus/pci/devices/0000:22:00.0/sriov_drivers_autoprobe",
                "run modprobe -r gim",
                look,
                look,
                "run modprobe gim vf_num=2,1",
                look,
                look,
                "set driver_override of the VFs of 0000:0c:00.0 to vfio-pci",
                "set driver_override of the VFs of 0000:22:00.0 to vfio-pci",
                "write \"1\" to /sys/bus/pci/devices/0000:0c:00.0/sriov_drivers_autoprobe",
                "write \"1\" to /sys/bus/pci/devices/0000:22:00.0/sriov_drivers_autoprobe",
            ]
        );
        assert_eq!(words(&[gpu("0000:0c:00.0", 2, 0)], true), ["run modprobe -r gim", look]);
        assert_eq!(words(&[gpu("0000:0c:00.0", 2, 2)], true), [""; 0]);
    }

    #[test]
    fn undoing_gives_back_counts_and_overrides() {
        let gpus = [gpu("0000:0c:00.0", 2, 3), gpu("0000:22:00.0", 0, 1)];
        let steps = plan(&gpus, true).unwrap();
        let undos = |op: &str| -> Vec<String> {
            let step = steps.iter().find(|step| step.op.to_string().starts_with(op)).unwrap();
            step.undo.iter().map(|undo| undo.to_string()).collect()
        };
        let set = "\"vfio-pci\\n\" to /sys/bus/pci/devices/0000:0c:02.1/driver_override";
        assert_eq!(undos("run modprobe -r"), ["modprobe gim vf_num=2,1", set]);
        assert_eq!(undos("run modprobe gim"), ["modprobe -r gim"]);
    }
}
