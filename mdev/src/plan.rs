//! Plans are data: steps with what each must show and how it is undone, made
//! before the first write and journalled while they run.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    claims::Generation,
    model::{GpuId, PciAddress},
    sys::{LaneKey, NodePath, SysPath, WriteAttr},
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
}

/// A write that undoes a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undo {
    /// The lane that a hang would take.
    pub lane: LaneKey,
    /// The write.
    pub write: WriteAttr,
}
