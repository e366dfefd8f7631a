//! AMD's GIM: its VFs come with its module, for all of its GPUs at once
//! (`modprobe gim vf_num=N0,N1,…`, in probe order); a count written to sysfs is
//! refused with ENOENT. The module goes only while no VF is in use.

use crate::{
    model::PciAddress,
    plan::{Expect, Step, StepOp, Undo},
    sys::{InvalidPath, LaneKey, ToolId},
};

use super::{
    VFIO_PCI,
    sriov::{auto, device},
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
    /// The VFs that it has.
    pub now: u32,
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
    let counts = |of: fn(&GimGpu) -> u32| gpus.iter().map(of).collect::<Vec<u32>>();
    let (before, after) = (counts(|gpu| gpu.now), counts(|gpu| gpu.wanted));
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
            lane: LaneKey::Host,
            op: modprobe(&["-r", DRIVER]),
            expect: Expect::Nothing,
            undo: vec![load_undo(&before)],
        });
        for gpu in gpus.iter().filter(|gpu| gpu.now > 0) {
            steps.push(look(gpu.address, 0)?);
        }
    }
    if loads {
        let StepOp::RunTool { tool, args } = modprobe(&["-r", DRIVER]) else {
            return Ok(steps);
        };
        steps.push(Step {
            lane: LaneKey::Host,
            op: load(&after),
            expect: Expect::Nothing,
            undo: vec![Undo::tool(LaneKey::Host, tool, args)],
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

fn modprobe(args: &[&str]) -> StepOp {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    StepOp::RunTool { tool: ToolId::Modprobe, args }
}

fn load(counts: &[u32]) -> StepOp {
    let counts: Vec<String> = counts.iter().map(ToString::to_string).collect();
    modprobe(&[DRIVER, &format!("vf_num={}", counts.join(","))])
}

fn load_undo(counts: &[u32]) -> Undo {
    let args = match load(counts) {
        StepOp::RunTool { args, .. } => args,
        _ => Vec::new(),
    };
    Undo::tool(LaneKey::Host, ToolId::Modprobe, args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(address: &str, now: u32, wanted: u32) -> GimGpu {
        GimGpu { address: address.parse().unwrap(), now, wanted, autoprobe: true }
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
}
