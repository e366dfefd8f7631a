//! Making one of NVIDIA's GPUs ready for vGPUs. The order is NVIDIA's: MIG mode,
//! then the VFs, then GPU instances or heterogeneous mode. Enabling VFs rebinds
//! the GPU and wipes the last two, MIG mode changes only while there are no VFs,
//! and disabling them ends every vGPU: never while there is one.

use uuid::Uuid;

use crate::{
    model::PciAddress,
    plan::{Expect, SmiState, Step, StepOp, Undo, UndoOp},
    room::Shape,
    scan::{GpuInstance, SmiFacts},
    sys::{LaneKey, ToolId},
};

use super::sriov::device;

/// What is wanted of a GPU; `None` leaves it as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wish {
    /// Whether its VFs exist, all of them.
    pub functions: Option<bool>,
    /// MIG mode.
    pub mig: Option<bool>,
    /// The GPU instances.
    pub instances: Option<Vec<Shape>>,
    /// Whether vGPUs of several sizes may lie side by side.
    pub heterogeneous: Option<bool>,
}

/// A GPU as it is.
#[derive(Debug, Clone, Copy)]
pub struct Now<'a> {
    /// Its address.
    pub gpu: PciAddress,
    /// The VFs that it has.
    pub functions: u32,
    /// The VFs that it can have.
    pub all_functions: u32,
    /// What NVIDIA's program says; `None` when it could not be asked.
    pub smi: Option<&'a SmiFacts>,
    /// The vGPUs on it, each with the GPU instance that it is in, where that is
    /// known.
    pub vgpus: &'a [(Uuid, Option<u32>)],
}

/// What stands against it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// It would end vGPUs.
    #[error("{what} would end the vGPUs {}", list(vgpus))]
    Wipes {
        /// What would.
        what: &'static str,
        /// The vGPUs.
        vgpus: Vec<Uuid>,
    },
    /// The GPU cannot do it.
    #[error("the GPU has no {0}")]
    Unable(&'static str),
    /// NVIDIA's program does not tell what is.
    #[error("MIG and heterogeneous mode are not known, since nvidia-smi does not say")]
    Unknown,
    /// What is wanted excludes itself.
    #[error("{0}")]
    Contradiction(&'static str),
}

fn list(vgpus: &[Uuid]) -> String {
    vgpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The steps from `now` to `wish`; none when it is so already.
///
/// # Errors
/// What stands against it.
pub fn plan(now: Now<'_>, wish: &Wish) -> Result<Vec<Step>, Obstacle> {
    Planner::new(now, wish)?.plan()
}

struct Planner<'a> {
    now: Now<'a>,
    /// What is, and what is to be.
    mig: (bool, bool),
    heterogeneous: (bool, bool),
    functions: (bool, bool),
    instances: (&'a [GpuInstance], Vec<Shape>),
    is_asked_for_instances: bool,
    steps: Vec<Step>,
}

impl<'a> Planner<'a> {
    fn new(now: Now<'a>, wish: &Wish) -> Result<Self, Obstacle> {
        let modes = wish.mig.is_some() || wish.instances.is_some() || wish.heterogeneous.is_some();
        if modes && now.smi.is_none() {
            return Err(Obstacle::Unknown);
        }
        let is_mig = now.smi.and_then(|smi| smi.mig);
        let is_mixed = now.smi.and_then(|smi| smi.heterogeneous);
        if is_mig.is_none() && (wish.mig == Some(true) || wish.instances.is_some()) {
            return Err(Obstacle::Unable("MIG"));
        }
        // In MIG mode it is not told.
        let is_told = !is_mig.is_some_and(|mig| mig.current);
        if is_mixed.is_none() && is_told && wish.heterogeneous == Some(true) {
            return Err(Obstacle::Unable("heterogeneous mode"));
        }
        // A change that waits for a reset is still to be made if it is not wanted.
        let mig_now = is_mig.is_some_and(|mig| mig.pending);
        let mig = wish.mig.unwrap_or(mig_now);
        let there = now.smi.map_or(&[][..], |smi| &smi.instances[..]);
        let instances = match &wish.instances {
            Some(wanted) => wanted.clone(),
            None if mig => there.iter().map(|found| found.shape.clone()).collect(),
            None => Vec::new(),
        };
        if !mig && !instances.is_empty() {
            return Err(Obstacle::Contradiction("GPU instances need MIG, which is off"));
        }
        let mixed_now = is_mixed == Some(true);
        let mixed = wish.heterogeneous.unwrap_or(mixed_now && !mig);
        if mig && mixed {
            return Err(Obstacle::Contradiction(
                "MIG divides the GPU by its instances, and heterogeneous mode is for vGPUs without MIG",
            ));
        }
        let functions = wish.functions.unwrap_or(now.functions > 0);
        let makes = wish.instances.as_ref().is_some_and(|wanted| !wanted.is_empty());
        if !functions && (makes || wish.heterogeneous == Some(true)) {
            return Err(Obstacle::Contradiction(
                "enabling the VFs wipes GPU instances and heterogeneous mode: enable them first",
            ));
        }
        Ok(Self {
            now,
            mig: (mig_now, mig),
            heterogeneous: (mixed_now, mixed),
            functions: (now.functions > 0, functions),
            instances: (there, instances),
            is_asked_for_instances: wish.instances.is_some(),
            steps: Vec::new(),
        })
    }

    fn plan(mut self) -> Result<Vec<Step>, Obstacle> {
        let changes_mig = self.mig.0 != self.mig.1;
        let off = self.functions.0 && (!self.functions.1 || changes_mig || self.is_partial());
        let on = self.functions.1 && (!self.functions.0 || off);
        if off || on || changes_mig {
            let what = if changes_mig { "changing MIG mode" } else { "changing the VFs" };
            self.refuse_over(what, |_| true)?;
        }
        if off {
            self.functions_off();
        }
        let mut there: Vec<GpuInstance> = self.instances.0.to_vec();
        if changes_mig {
            if !self.mig.1 {
                self.destroy(std::mem::take(&mut there));
            }
            self.set_mig();
        }
        if on {
            self.functions_on();
            there.clear();
            self.heterogeneous.0 = false;
        }
        // Those that nobody spoke of stay, or are made again.
        if self.is_asked_for_instances || on {
            self.set_instances(there)?;
        }
        if self.heterogeneous.0 != self.heterogeneous.1 {
            self.refuse_over("changing heterogeneous mode", |_| true)?;
            self.set_heterogeneous();
        }
        Ok(self.steps)
    }

    /// Refuses what would end vGPUs.
    fn refuse_over(
        &self,
        what: &'static str,
        ends: impl Fn(Option<u32>) -> bool,
    ) -> Result<(), Obstacle> {
        let vgpus: Vec<Uuid> =
            self.now.vgpus.iter().filter(|(_, at)| ends(*at)).map(|(uuid, _)| *uuid).collect();
        if vgpus.is_empty() { Ok(()) } else { Err(Obstacle::Wipes { what, vgpus }) }
    }

    fn functions_off(&mut self) {
        let mut undo = vec![self.sriov_manage_undo("-e", self.now.functions)];
        // Enabling them again wipes what was there besides.
        let there = self.shapes_there();
        if let (Some(create), true) = (self.create_args(there.clone()), self.mig.0) {
            let again = Undo::tool(LaneKey::NvidiaSmi, ToolId::NvidiaSmi, create);
            undo.push(again.shows(self.smi_shows(SmiState::Instances(there))));
        }
        if self.heterogeneous.0 {
            undo.push(self.smi_undo(&["vgpu"], &["-shm", "1"], SmiState::Heterogeneous(true)));
        }
        self.sriov_manage("-d", 0, undo);
    }

    fn functions_on(&mut self) {
        let undo = vec![self.sriov_manage_undo("-d", 0)];
        self.sriov_manage("-e", self.now.all_functions, undo);
    }

    fn sriov_manage(&mut self, what: &str, count: u32, undo: Vec<Undo>) {
        let args = vec![what.to_owned(), self.now.gpu.to_string()];
        let unless_used = self.disabled_by(count);
        self.steps.push(Step {
            lane: LaneKey::Programs,
            op: StepOp::RunTool { tool: ToolId::SriovManage, args, unless_used },
            // It exits with 0 although VFs are missing.
            expect: self.functions_show(count),
            undo,
        });
    }

    fn sriov_manage_undo(&self, what: &str, count: u32) -> Undo {
        let args = vec![what.to_owned(), self.now.gpu.to_string()];
        Undo::tool(LaneKey::Programs, ToolId::SriovManage, args)
            .unless_used(self.disabled_by(count))
            .shows(match self.is_partial() {
                // They may be more than there were.
                true if count > 0 => Expect::Nothing,
                _ => self.functions_show(count),
            })
    }

    /// The GPU, where going to a count takes its VFs away.
    fn disabled_by(&self, count: u32) -> Vec<PciAddress> {
        if count == 0 { vec![self.now.gpu] } else { Vec::new() }
    }

    fn functions_show(&self, count: u32) -> Expect {
        // An address is a path element.
        device(self.now.gpu).map_or(Expect::Nothing, |pf| Expect::Functions { pf, count })
    }

    fn smi_shows(&self, state: SmiState) -> Expect {
        Expect::Smi { gpu: self.now.gpu, state }
    }

    fn is_partial(&self) -> bool {
        self.now.functions > 0 && self.now.functions < self.now.all_functions
    }

    fn set_mig(&mut self) {
        let value = |on: bool| if on { "1" } else { "0" };
        let before = SmiState::Mig(self.mig.0);
        let undo = vec![self.smi_undo(&[], &["-mig", value(self.mig.0)], before)];
        let state = SmiState::Mig(self.mig.1);
        self.smi(&[], &["-mig", value(self.mig.1)], state, undo);
    }

    fn set_heterogeneous(&mut self) {
        let value = |on: bool| if on { "1" } else { "0" };
        let before = SmiState::Heterogeneous(self.heterogeneous.0);
        let undo = vec![self.smi_undo(&["vgpu"], &["-shm", value(self.heterogeneous.0)], before)];
        let state = SmiState::Heterogeneous(self.heterogeneous.1);
        self.smi(&["vgpu"], &["-shm", value(self.heterogeneous.1)], state, undo);
    }

    /// From the instances that are there by now to those that are wanted: what is
    /// among both stays.
    fn set_instances(&mut self, mut there: Vec<GpuInstance>) -> Result<(), Obstacle> {
        // Of one shape, those that carry vGPUs stay first.
        let carries =
            |found: &GpuInstance| self.now.vgpus.iter().any(|(_, at)| *at == Some(found.id));
        there.sort_by_key(|found| !carries(found));
        let mut missing = self.instances.1.clone();
        let (mut kept, mut surplus) = (Vec::new(), Vec::new());
        for instance in there {
            match missing.iter().position(|shape| *shape == instance.shape) {
                Some(at) => {
                    missing.swap_remove(at);
                    kept.push(instance);
                }
                None => surplus.push(instance),
            }
        }
        if !surplus.is_empty() {
            let goes = |at: Option<u32>| at.is_none_or(|id| surplus.iter().any(|s| s.id == id));
            self.refuse_over("destroying GPU instances", goes)?;
        }
        let mut shapes: Vec<Shape> = kept.iter().map(|found| found.shape.clone()).collect();
        self.destroy_but(surplus, &shapes);
        let stay = self.smi_shows(SmiState::Instances(shapes.clone()));
        // The largest first: the small ones fit beside it, but not the reverse.
        missing.sort_unstable_by(|a, b| b.cmp(a));
        shapes.extend(missing.iter().cloned());
        if let Some(args) = self.create_args(missing) {
            let ids = kept.iter().map(|found| found.id).collect();
            let undo = Undo {
                lane: LaneKey::NvidiaSmi,
                op: UndoOp::KeepInstances { gpu: self.now.gpu, ids },
                expect: stay,
            };
            self.steps.push(Step {
                lane: LaneKey::NvidiaSmi,
                op: run_smi(args),
                expect: self.smi_shows(SmiState::Instances(shapes)),
                undo: vec![undo],
            });
        }
        Ok(())
    }

    fn destroy(&mut self, instances: Vec<GpuInstance>) {
        self.destroy_but(instances, &[]);
    }

    fn destroy_but(&mut self, instances: Vec<GpuInstance>, kept: &[Shape]) {
        if instances.is_empty() {
            return;
        }
        let again = self.create_args(instances.iter().map(|found| found.shape.clone()).collect());
        let all = kept.iter().chain(instances.iter().map(|found| &found.shape)).cloned().collect();
        let undo = again.map(|args| {
            Undo::tool(LaneKey::NvidiaSmi, ToolId::NvidiaSmi, args)
                .shows(self.smi_shows(SmiState::Instances(all)))
        });
        self.steps.push(Step {
            lane: LaneKey::NvidiaSmi,
            op: StepOp::DestroyInstances {
                gpu: self.now.gpu,
                ids: instances.iter().map(|found| found.id).collect(),
            },
            expect: Expect::Smi { gpu: self.now.gpu, state: SmiState::Instances(kept.to_vec()) },
            undo: undo.into_iter().collect(),
        });
    }

    fn shapes_there(&self) -> Vec<Shape> {
        self.instances.0.iter().map(|found| found.shape.clone()).collect()
    }

    /// The arguments that create GPU instances with their compute instances.
    fn create_args(&self, shapes: Vec<Shape>) -> Option<Vec<String>> {
        if shapes.is_empty() {
            return None;
        }
        let names: Vec<String> = shapes.iter().map(ToString::to_string).collect();
        Some(self.smi_args(&["mig"], &["-cgi", &names.join(","), "-C"]))
    }

    fn smi(&mut self, command: &[&str], rest: &[&str], state: SmiState, undo: Vec<Undo>) {
        self.steps.push(Step {
            lane: LaneKey::NvidiaSmi,
            op: run_smi(self.smi_args(command, rest)),
            expect: self.smi_shows(state),
            undo,
        });
    }

    fn smi_undo(&self, command: &[&str], rest: &[&str], state: SmiState) -> Undo {
        Undo::tool(LaneKey::NvidiaSmi, ToolId::NvidiaSmi, self.smi_args(command, rest))
            .shows(self.smi_shows(state))
    }

    fn smi_args(&self, command: &[&str], rest: &[&str]) -> Vec<String> {
        let gpu = self.now.gpu.to_string();
        let all = command.iter().copied().chain(["-i", &gpu]).chain(rest.iter().copied());
        all.map(str::to_owned).collect()
    }
}

fn run_smi(args: Vec<String>) -> StepOp {
    StepOp::RunTool { tool: ToolId::NvidiaSmi, args, unless_used: Vec::new() }
}

#[cfg(test)]
#[path = "enable_tests.rs"]
mod tests;
