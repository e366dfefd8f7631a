//! Plans are data: steps with what each must show and how it is undone, made
//! before the first write and journalled while they run.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    claims::Generation,
    model::{GpuId, PciAddress},
    room::Shape,
    sys::{LaneKey, NodePath, SysPath, ToolId, WriteAttr},
};

/// What is to be done on one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Names it in the journal.
    pub id: Uuid,
    /// In words, for errors and jobs: `creating vGPU … of mtty-2 on mtty`.
    pub purpose: String,
    /// The GPU.
    pub gpu: GpuId,
    /// The vGPU that it makes or removes; none for VF counts.
    pub vgpu: Option<Uuid>,
    /// Which creation of that vGPU's device it is about, where it exists.
    pub generation: Option<Generation>,
    /// The revision of the snapshot that it was made on.
    pub base_revision: u64,
    /// What to do, in order.
    pub steps: Vec<Step>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The lane that a hang would take.
    pub lane: LaneKey,
    /// What is done.
    pub op: StepOp,
    /// What must be seen afterwards: the kernel often says success and did less.
    pub expect: Expect,
    /// What undoes it, in this order; the values were read before.
    pub undo: Vec<Undo>,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepOp {
    /// Writes an attribute.
    Write(WriteAttr),
    /// Writes an attribute, unless somebody holds the device.
    WriteUnlessHeld {
        /// The write.
        write: WriteAttr,
        /// The device's group, which opens once.
        group: NodePath,
    },
    /// Sets the `driver_override` of every VF that a PF has by now.
    OverrideFunctions {
        /// The PF.
        pf: PciAddress,
        /// The VFIO driver.
        driver: String,
    },
    /// Gives a device's VFIO nodes to a user.
    GiveNodes {
        /// The device's directory.
        #[serde(with = "crate::sys::path_text")]
        device: SysPath,
        /// The user.
        uid: u32,
    },
    /// Runs a vendor's program, without a shell; it must exit with 0.
    RunTool {
        /// Which one.
        tool: ToolId,
        /// Its arguments.
        args: Vec<String>,
        /// Not while a VF of these PFs is used: it would go, with its vGPU.
        unless_used: Vec<PciAddress>,
    },
    /// Destroys MIG GPU instances, each with its compute instances.
    DestroyInstances {
        /// The GPU.
        gpu: PciAddress,
        /// Their numbers.
        ids: Vec<u32>,
    },
    /// Does nothing: what a step before it did shows in more than one place.
    Look,
}

impl fmt::Display for StepOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(write) | Self::WriteUnlessHeld { write, .. } => {
                write!(f, "write {:?} to {}", write.value.trim_end(), write.path)
            }
            Self::OverrideFunctions { pf, driver } => {
                write!(f, "set driver_override of the VFs of {pf} to {driver}")
            }
            Self::GiveNodes { device, uid } => {
                write!(f, "give the VFIO nodes of {device} to uid {uid}")
            }
            Self::RunTool { tool, args, .. } => write!(f, "run {tool} {}", args.join(" ")),
            Self::DestroyInstances { gpu, ids } => {
                let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                write!(f, "destroy the GPU instances {} of {gpu}", ids.join(", "))
            }
            Self::Look => f.write_str("look whether it shows"),
        }
    }
}

/// What must be seen after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// Nothing beyond the kernel's success.
    Nothing,
    /// A link, with that last element where one is named.
    Link {
        /// The link.
        path: SysPath,
        /// Its target's last element.
        name: Option<String>,
    },
    /// No such link.
    NoLink {
        /// The link.
        path: SysPath,
    },
    /// An attribute that reads so.
    Text {
        /// The attribute.
        path: SysPath,
        /// Its value, without the new line.
        text: String,
    },
    /// The directory is gone.
    Gone {
        /// The directory.
        path: SysPath,
    },
    /// So many VFs, each linked to its PF.
    Functions {
        /// The PF's directory.
        pf: SysPath,
        /// How many.
        count: u32,
    },
    /// What NVIDIA's program says of a GPU.
    Smi {
        /// The GPU.
        gpu: PciAddress,
        /// What it must say.
        state: SmiState,
    },
}

/// What NVIDIA's program must say of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmiState {
    /// MIG mode is, or is to be after the next reset.
    Mig(bool),
    /// vGPUs of several sizes may lie side by side.
    Heterogeneous(bool),
    /// These are the GPU instances, in any order.
    Instances(Vec<Shape>),
}

/// What undoes a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undo {
    /// The lane that a hang would take.
    pub lane: LaneKey,
    /// What is done.
    pub op: UndoOp,
    /// What must be seen afterwards.
    pub expect: Expect,
}

/// What undoing does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoOp {
    /// Writes an attribute.
    Write(WriteAttr),
    /// Runs a vendor's program.
    RunTool {
        /// Which one.
        tool: ToolId,
        /// Its arguments.
        args: Vec<String>,
        /// Not while a VF of these PFs is used: somebody has taken it meanwhile.
        unless_used: Vec<PciAddress>,
    },
    /// Destroys the MIG GPU instances that were not there before.
    KeepInstances {
        /// The GPU.
        gpu: PciAddress,
        /// The numbers of those that stay.
        ids: Vec<u32>,
    },
}

impl Undo {
    /// Undoing by a write.
    pub fn write(lane: LaneKey, write: WriteAttr) -> Self {
        Self { lane, op: UndoOp::Write(write), expect: Expect::Nothing }
    }

    /// Undoing by a vendor's program.
    pub fn tool(lane: LaneKey, tool: ToolId, args: Vec<String>) -> Self {
        let op = UndoOp::RunTool { tool, args, unless_used: Vec::new() };
        Self { lane, op, expect: Expect::Nothing }
    }

    /// The same, where it takes the VFs of these PFs along: not while one is used.
    #[must_use]
    pub fn unless_used(mut self, pfs: Vec<PciAddress>) -> Self {
        if let UndoOp::RunTool { unless_used, .. } = &mut self.op {
            *unless_used = pfs;
        }
        self
    }

    /// The same, where something must show afterwards.
    #[must_use]
    pub fn shows(self, expect: Expect) -> Self {
        Self { expect, ..self }
    }
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            UndoOp::Write(write) => write!(f, "{:?} to {}", write.value, write.path),
            UndoOp::RunTool { tool, args, .. } => write!(f, "{tool} {}", args.join(" ")),
            UndoOp::KeepInstances { gpu, .. } => write!(f, "the new GPU instances of {gpu}"),
        }
    }
}
