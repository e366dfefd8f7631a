//! Runs a plan: each step, its read-back, and on failure everything undone in
//! reverse, with the first error kept.

mod tool;

use std::time::Duration;

use crate::{
    hub::Hub,
    journal::{Journal, Record},
    model::PciAddress,
    plan::{Expect, Plan, Step, StepOp, Undo, UndoOp},
    request::Control,
    scan::{Reader, Readings, ScanError, text},
    sys::{
        Deadline, Executor, InvalidPath, LaneKey, NodePath, Op, OpError, Read, ReadBatch, SysPath,
        WriteAttr,
    },
};

pub use tool::{ToolFailure, UndoError, ask};

/// What a plan runs with.
pub struct Runner<'a> {
    /// Runs its operations.
    pub executor: &'a dyn Executor,
    /// Wakes at kernel events.
    pub hub: &'a Hub,
    /// Where work in flight is written down.
    pub journal: &'a dyn Journal,
    /// How long one write may take.
    pub write_limit: Duration,
    /// How long the outcome of a write may take to show.
    pub show_limit: Duration,
    /// How long a vendor's program may take.
    pub tool_limit: Duration,
    /// How long the outcome of a program may take to show.
    pub late_limit: Duration,
}

/// A plan that failed.
#[derive(Debug)]
pub struct Failure {
    /// The number of the step that failed.
    pub step: usize,
    /// Why.
    pub cause: Cause,
    /// What could not be undone, in words.
    pub undo_failures: Vec<String>,
    /// What was not undone since the kernel hangs, and is to be once it has
    /// come back, in this order.
    pub owed: Vec<Undo>,
}

/// Why a step failed.
#[derive(Debug)]
pub enum Cause {
    /// Its operation failed.
    Op(OpError),
    /// It succeeded, but what it should show does not show: what was expected,
    /// and what is there.
    Unmet {
        /// What was expected.
        expected: Expect,
        /// What is there, in words.
        seen: String,
    },
    /// A vendor's program failed.
    Tool(ToolFailure),
    /// VFs that would have gone are used by now.
    Used(Vec<PciAddress>),
    /// The job was cancelled before the step.
    Cancelled,
}

/// A step that failed.
struct Halt {
    cause: Cause,
    /// Whether it may have done something, which is to be undone.
    begun: bool,
}

impl From<ScanError> for Cause {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::Op(error) => Self::Op(error),
            other => Self::Op(OpError::Probe {
                what: "reading back".into(),
                message: other.to_string(),
                errno: None,
            }),
        }
    }
}

impl From<InvalidPath> for Cause {
    fn from(error: InvalidPath) -> Self {
        ScanError::from(error).into()
    }
}

impl Runner<'_> {
    /// Runs a plan.
    ///
    /// # Errors
    /// The first failure; everything before it has been undone, except what it
    /// names.
    pub fn run(&self, plan: &Plan, control: &Control) -> Result<(), Failure> {
        self.journal.record(&Record::Begin {
            plan: plan.id,
            purpose: plan.purpose.clone(),
            steps: plan.steps.len(),
        });
        for (n, step) in plan.steps.iter().enumerate() {
            control.set_progress(n, plan.steps.len());
            let result = if control.is_cancelled() {
                Err(Halt { cause: Cause::Cancelled, begun: false })
            } else {
                self.journal.record(&Record::Intent {
                    plan: plan.id,
                    step: n,
                    op: step.op.clone(),
                });
                self.step(step)
            };
            if let Err(Halt { cause, begun }) = result {
                let (undo_failures, owed) = self.undo(plan, n + usize::from(begun));
                self.journal.record(&Record::End { plan: plan.id, done: false });
                return Err(Failure { step: n, cause, undo_failures, owed });
            }
            self.journal.record(&Record::Observed { plan: plan.id, step: n });
        }
        control.set_progress(plan.steps.len(), plan.steps.len());
        self.journal.record(&Record::End { plan: plan.id, done: true });
        Ok(())
    }

    fn step(&self, step: &Step) -> Result<(), Halt> {
        let begun = |cause| Halt { cause, begun: true };
        match &step.op {
            StepOp::Write(write) => return self.write_step(step, write, None),
            StepOp::WriteUnlessHeld { write, group } => {
                return self.write_step(step, write, Some(group));
            }
            StepOp::OverrideFunctions { pf, driver } => {
                self.override_functions(&step.lane, *pf, driver).map_err(begun)?
            }
            StepOp::GiveNodes { device, uid } => {
                self.give_nodes(&step.lane, device, *uid).map_err(begun)?
            }
            StepOp::RunTool { tool, args, unless_used } => {
                self.refuse_if_used(&step.lane, unless_used)
                    .and_then(|()| self.run_tool(&step.lane, *tool, args))
                    .map_err(|cause| Halt { begun: tool::has_run(&cause), cause })?;
            }
            StepOp::DestroyInstances { gpu, ids } => {
                self.destroy_instances(*gpu, ids).map_err(begun)?
            }
            StepOp::Look => {}
        }
        let limit = match &step.op {
            StepOp::RunTool { .. } | StepOp::Look => self.late_limit,
            _ => self.show_limit,
        };
        self.expect(&step.lane, &step.expect, limit).map_err(begun)
    }

    fn write_step(
        &self,
        step: &Step,
        write: &WriteAttr,
        unless_held: Option<&NodePath>,
    ) -> Result<(), Halt> {
        let begun = |cause| Halt { cause, begun: true };
        let shows = what_shows(&step.expect).map_err(|error| begun(error.into()))?;
        let reads = shows.unwrap_or_default();
        let seen = self.write(&step.lane, write, unless_held, reads).map_err(|error| Halt {
            // Refused by the kernel, or never tried: it did nothing.
            begun: matches!(error, OpError::Deadline { .. }),
            cause: Cause::Op(error),
        })?;
        if seen.is_some_and(|mut seen| unmet(&step.expect, &mut seen).is_none()) {
            return Ok(());
        }
        self.expect(&step.lane, &step.expect, self.show_limit).map_err(begun)
    }

    /// Writes, and reads in the same turn of the lane: `None` when nothing was to
    /// be read, or not all of it could be.
    fn write(
        &self,
        lane: &LaneKey,
        write: &WriteAttr,
        unless_held: Option<&NodePath>,
        reads: Vec<ReadBatch>,
    ) -> Result<Option<Readings>, OpError> {
        let op = Op::WriteAttr { write: write.clone(), unless_held: unless_held.cloned(), reads };
        let observed = self.executor.run(lane, op, Deadline::after(self.write_limit))?;
        Ok(Readings::of(observed))
    }

    /// Looks until what a step should show shows: at once, and again with each
    /// kernel event until the deadline.
    fn expect(&self, lane: &LaneKey, expect: &Expect, limit: Duration) -> Result<(), Cause> {
        let deadline = Deadline::after(limit);
        loop {
            let seen_events = self.hub.mark();
            match self.look(lane, expect)? {
                None => return Ok(()),
                Some(seen) if !self.hub.wait_beyond(seen_events, deadline) => {
                    return Err(Cause::Unmet { expected: expect.clone(), seen });
                }
                Some(_) => {}
            }
        }
    }

    /// `None` when it shows, else what is there.
    fn look(&self, lane: &LaneKey, expect: &Expect) -> Result<Option<String>, Cause> {
        // What is read here waits for no lock that the write took.
        let reader = Reader::new(self.executor, lane, Deadline::after(self.write_limit));
        if let Some(batches) = what_shows(expect)? {
            return Ok(unmet(expect, &mut reader.read_each(batches)?));
        }
        let (pf, count) = match expect {
            Expect::Functions { pf, count } => (pf, count),
            Expect::Smi { gpu, state } => return self.look_with_smi(*gpu, state),
            _ => return Ok(None),
        };
        let functions = self.functions(reader, pf)?;
        let linked = functions.iter().filter(|(_, linked)| *linked).count();
        Ok((linked != *count as usize || functions.len() != linked)
            .then(|| format!("{pf} has {linked} VFs")))
    }

    /// The VFs of a PF, each with whether it is linked back.
    fn functions(
        &self,
        reader: Reader<'_>,
        pf: &SysPath,
    ) -> Result<Vec<(PciAddress, bool)>, Cause> {
        let names = reader.read(pf, vec![Read::names("")])?.names();
        let links: Vec<String> =
            names.into_iter().filter(|name| text::virtfn(name).is_some()).collect();
        let mut reads = Vec::with_capacity(links.len() * 2);
        for link in &links {
            reads.push(Read::link(link.clone()));
            reads.push(Read::link(format!("{link}/physfn")));
        }
        let mut r = reader.read(pf, reads)?;
        Ok(links
            .iter()
            .filter_map(|_| {
                let (address, physfn) = (r.link(), r.link());
                Some((address.as_deref().and_then(text::pci_name)?, physfn.is_some()))
            })
            .collect())
    }

    fn override_functions(
        &self,
        lane: &LaneKey,
        pf: PciAddress,
        driver: &str,
    ) -> Result<(), Cause> {
        let reader = Reader::new(self.executor, lane, Deadline::after(self.write_limit));
        let device = crate::framework::sriov::device(pf)?;
        for (function, _) in self.functions(reader, &device)? {
            let lane = LaneKey::Function(function);
            let write = crate::framework::sriov::set_override(function, Some(driver))?;
            self.write(&lane, &write, None, Vec::new()).map_err(Cause::Op)?;
            let set = crate::framework::sriov::override_is(function, Some(driver))?;
            self.expect(&lane, &set, self.show_limit)?;
        }
        Ok(())
    }

    fn give_nodes(&self, lane: &LaneKey, device: &SysPath, uid: u32) -> Result<(), Cause> {
        let reader = Reader::new(self.executor, lane, Deadline::after(self.write_limit));
        let mut r =
            reader.read(device, vec![Read::link("iommu_group"), Read::names("vfio-dev")])?;
        let (group, names) = (r.link(), r.names());
        let mut nodes = Vec::new();
        if let Some(group) = group {
            nodes.push(format!("vfio/{group}"));
        }
        for name in names {
            if reader
                .read(device, vec![Read::inode(format!("vfio-dev/{name}/dev"))])?
                .inode()
                .is_some()
            {
                nodes.push(format!("vfio/devices/{name}"));
            }
        }
        for node in nodes {
            let op = Op::Chown { node: NodePath::new(node)?, uid };
            match self.executor.run(lane, op, Deadline::after(self.write_limit)) {
                // A kernel without groups, or without cdevs, lacks that node.
                Err(OpError::Kernel { errno: nix::errno::Errno::ENOENT, .. }) | Ok(_) => {}
                Err(error) => return Err(Cause::Op(error)),
            }
        }
        Ok(())
    }

    /// Undoes the first `begun` steps, the last one first, up to one that hangs:
    /// autoprobe must not be on again before the count is back.
    fn undo(&self, plan: &Plan, begun: usize) -> (Vec<String>, Vec<Undo>) {
        let mut failures = Vec::new();
        let mut owed = Vec::new();
        for (n, step) in plan.steps.iter().enumerate().take(begun).rev() {
            if step.undo.is_empty() {
                continue;
            }
            self.journal.record(&Record::Undoing { plan: plan.id, step: n });
            for undo in &step.undo {
                if !owed.is_empty() {
                    owed.push(undo.clone());
                    continue;
                }
                if let Err(error) = self.undo_one(undo) {
                    if error.is_stuck() {
                        owed.push(undo.clone());
                    }
                    failures.push(error.to_string());
                }
            }
        }
        (failures, owed)
    }

    /// Undoes one thing; that there is nothing to undo is no error.
    ///
    /// # Errors
    /// The kernel's or the program's refusal, or that it hangs.
    pub fn undo_one(&self, Undo { lane, op, expect }: &Undo) -> Result<(), UndoError> {
        match op {
            UndoOp::Write(write) => match self.write(lane, write, None, Vec::new()) {
                Err(error) if self.is_undone(lane, write, &error) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            },
            UndoOp::RunTool { tool, args, unless_used } => {
                self.refuse_if_used(lane, unless_used)?;
                self.run_tool(lane, *tool, args)?;
            }
            UndoOp::KeepInstances { gpu, ids } => self.keep_instances(*gpu, ids)?,
        }
        Ok(self.expect(lane, expect, self.late_limit)?)
    }

    /// Whether an undoing write was refused since there is nothing to undo: the
    /// device is gone, or not bound. The errno alone does not tell: a driver can
    /// give the same for another reason.
    fn is_undone(&self, lane: &LaneKey, write: &WriteAttr, error: &OpError) -> bool {
        use nix::errno::Errno;
        if !matches!(error.errno(), Some(Errno::ENOENT | Errno::ENODEV)) {
            return false;
        }
        let reader = Reader::new(self.executor, lane, Deadline::after(self.write_limit));
        let look = || -> Result<bool, ScanError> {
            let path = write.path.as_str();
            let device = format!("bus/pci/devices/{}", write.value.trim());
            if path == "bus/pci/drivers_probe" {
                let mut r = reader.read(&SysPath::new(device)?, vec![Read::inode("")])?;
                return Ok(r.inode().is_none());
            }
            if let Some(driver) =
                path.strip_prefix("bus/pci/drivers/").and_then(|path| path.strip_suffix("/unbind"))
            {
                let mut r = reader.read(&SysPath::new(device)?, vec![Read::link("driver")])?;
                return Ok(r.link().as_deref() != Some(driver));
            }
            let (base, last) = split(&write.path)?;
            Ok(reader.read(&base, vec![Read::inode(last)])?.inode().is_none())
        };
        // What cannot be looked at is told.
        look().unwrap_or(false)
    }
}

/// What to read to see whether something shows; `None` where one look at known
/// paths is not enough.
fn what_shows(expect: &Expect) -> Result<Option<Vec<ReadBatch>>, InvalidPath> {
    let (path, read): (&SysPath, fn(String) -> Read) = match expect {
        Expect::Nothing => return Ok(Some(Vec::new())),
        Expect::Functions { .. } | Expect::Smi { .. } => return Ok(None),
        Expect::Link { path, .. } | Expect::NoLink { path } => (path, Read::link),
        Expect::Text { path, .. } => (path, Read::text),
        Expect::Gone { path } => (path, Read::inode),
    };
    let (base, last) = split(path)?;
    Ok(Some(vec![ReadBatch { base, reads: vec![read(last)] }]))
}

/// `None` when it shows in what was read, else what is there.
fn unmet(expect: &Expect, r: &mut Readings) -> Option<String> {
    match expect {
        Expect::Nothing | Expect::Functions { .. } | Expect::Smi { .. } => None,
        Expect::Link { path, name } => match (r.link(), name) {
            (None, _) => Some(format!("{path} is missing")),
            (Some(is), Some(name)) if is != *name => Some(format!("{path} leads to {is}")),
            _ => None,
        },
        Expect::NoLink { path } => r.link().map(|is| format!("{path} still leads to {is}")),
        Expect::Text { path, text } => match r.text() {
            Some(is) if is == *text => None,
            Some(is) => Some(format!("{path} reads {is:?}")),
            None => Some(format!("{path} cannot be read")),
        },
        Expect::Gone { path } => r.inode().map(|_| format!("{path} is still there")),
    }
}

/// A path as directory and last element.
fn split(path: &SysPath) -> Result<(SysPath, String), InvalidPath> {
    match path.as_str().rsplit_once('/') {
        Some((base, last)) => Ok((SysPath::new(base)?, last.to_owned())),
        None => Ok((path.clone(), String::new())),
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Op(error) => error.fmt(f),
            Self::Unmet { seen, .. } => f.write_str(seen),
            Self::Tool(failure) => failure.fmt(f),
            Self::Used(functions) => {
                let names: Vec<String> = functions.iter().map(ToString::to_string).collect();
                write!(f, "VFs are used by now: {}", names.join(", "))
            }
            Self::Cancelled => f.write_str("it was cancelled"),
        }
    }
}
