//! Steps that a vendor's program does, and what NVIDIA's says afterwards: exit
//! codes alone are not believed.

use std::fmt;

use nix::errno::Errno;

use crate::{
    framework::sriov,
    model::PciAddress,
    plan::SmiState,
    room::Shape,
    scan::{Reader, SmiFacts, nvidia_smi, text},
    sys::{Deadline, Executor, LaneKey, Observed, Op, OpError, Read, ToolId, ToolOutput},
};

use super::{Cause, Runner};

/// How much of a program's output an error carries.
const KEPT: usize = 2000;

/// A vendor's program that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFailure {
    /// What was run, in words.
    pub what: String,
    /// Its exit status, `None` when a signal ended it.
    pub status: Option<i32>,
    /// The end of what it printed.
    pub output: String,
}

impl fmt::Display for ToolFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{} ended with status {status}", self.what)?,
            None => write!(f, "{} was ended by a signal", self.what)?,
        }
        match self.output.trim() {
            "" => f.write_str(" and said nothing"),
            said => write!(f, " and said: {}", said.replace('\n', " | ")),
        }
    }
}

impl ToolFailure {
    fn of(what: String, answer: &ToolOutput) -> Self {
        let from = answer.output.len().saturating_sub(KEPT);
        let from = (from..answer.output.len()).find(|at| answer.output.is_char_boundary(*at));
        let output = answer.output.get(from.unwrap_or(0)..).unwrap_or_default().to_owned();
        Self { what, status: answer.status, output }
    }
}

/// Why something could not be undone.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// Its operation failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Its program failed.
    #[error("{0}")]
    Tool(ToolFailure),
    /// It succeeded and does not show, or was not tried, for a reason in words.
    #[error("{0}")]
    Unmet(String),
}

impl UndoError {
    /// Whether the kernel hangs.
    pub fn is_stuck(&self) -> bool {
        matches!(self, Self::Op(error) if error.is_stuck())
    }
}

impl From<Cause> for UndoError {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Op(error) => Self::Op(error),
            Cause::Tool(failure) => Self::Tool(failure),
            cause => Self::Unmet(cause.to_string()),
        }
    }
}

/// Whether a program that failed was started, and may have done something.
pub(super) fn has_run(cause: &Cause) -> bool {
    match cause {
        Cause::Op(OpError::Tool { errno, .. }) => *errno == Errno::ETIMEDOUT,
        Cause::Used(_) => false,
        _ => true,
    }
}

/// What NVIDIA's program says of one GPU.
///
/// # Errors
/// When it is missing, hangs, fails or says something else.
pub fn ask(
    executor: &dyn Executor,
    gpu: PciAddress,
    deadline: Deadline,
) -> Result<SmiFacts, Cause> {
    let bdf = gpu.to_string();
    let args = words(&["-q", "-x", "-i", &bdf]);
    let answer = run(executor, &LaneKey::NvidiaSmi, ToolId::NvidiaSmi, &args, deadline)?;
    let facts = nvidia_smi::query(&answer.output).and_then(|mut all| all.remove(&gpu));
    let mut facts = facts.ok_or_else(|| {
        Cause::Tool(ToolFailure::of(format!("nvidia-smi {}", args.join(" ")), &answer))
    })?;
    if facts.mig.is_some_and(|mig| mig.current) {
        let shown = words(&["mig", "-i", &bdf, "-lgi"]);
        let op = Op::RunTool { tool: ToolId::NvidiaSmi, args: shown.clone() };
        if let Observed::Tool(answer) = executor.run(&LaneKey::NvidiaSmi, op, deadline)? {
            facts.instances = nvidia_smi::instances(&answer.output);
            facts.instances.sort_unstable_by_key(|found| found.id);
            // With no instance it fails, and says so; else it tells nothing.
            let says_none = answer.output.contains("No GPU instances found");
            if facts.instances.is_empty() && !says_none {
                let what = format!("nvidia-smi {}", shown.join(" "));
                return Err(Cause::Tool(ToolFailure::of(what, &answer)));
            }
        }
    }
    Ok(facts)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Runs a program that must exit with 0.
fn run(
    executor: &dyn Executor,
    lane: &LaneKey,
    tool: ToolId,
    args: &[String],
    deadline: Deadline,
) -> Result<ToolOutput, Cause> {
    let op = Op::RunTool { tool, args: args.to_vec() };
    let what = format!("{tool} {}", args.join(" "));
    match executor.run(lane, op, deadline)? {
        Observed::Tool(answer) if answer.status == Some(0) => Ok(answer),
        Observed::Tool(answer) => Err(Cause::Tool(ToolFailure::of(what, &answer))),
        _ => {
            let output = "the executor gave an answer of the wrong kind".into();
            Err(Cause::Tool(ToolFailure { what, status: None, output }))
        }
    }
}

impl Runner<'_> {
    pub(super) fn run_tool(
        &self,
        lane: &LaneKey,
        tool: ToolId,
        args: &[String],
    ) -> Result<ToolOutput, Cause> {
        run(self.executor, lane, tool, args, Deadline::after(self.tool_limit))
    }

    /// Refuses what takes VFs away while one is used: somebody may have made a vGPU
    /// since the plan was made.
    pub(super) fn refuse_if_used(&self, lane: &LaneKey, pfs: &[PciAddress]) -> Result<(), Cause> {
        let mut used = Vec::new();
        for pf in pfs {
            let reader = Reader::new(self.executor, lane, Deadline::after(self.write_limit));
            let device = sriov::device(*pf)?;
            let host = reader.read(&device, vec![Read::link("driver")])?.link();
            for (function, _) in self.functions(reader, &device)? {
                let reads = vec![
                    Read::link("driver"),
                    Read::text("nvidia/current_vgpu_type"),
                    Read::names(""),
                ];
                let mut r = reader.read(&sriov::device(function)?, reads)?;
                // An idle one has no driver, or its PF's.
                let is_taken = r.link().is_some_and(|driver| host.as_ref() != Some(&driver));
                let carries = r.text().is_some_and(|number| number.trim() != "0");
                let has_mdev = r.names().iter().any(|name| text::mdev_name(name).is_some());
                if is_taken || carries || has_mdev {
                    used.push(function);
                }
            }
        }
        if used.is_empty() { Ok(()) } else { Err(Cause::Used(used)) }
    }

    /// Destroys those of the GPU instances that are still there: a step before may
    /// have wiped them.
    pub(super) fn destroy_instances(&self, gpu: PciAddress, ids: &[u32]) -> Result<(), Cause> {
        let facts = ask(self.executor, gpu, Deadline::after(self.tool_limit))?;
        let there = facts.instances.iter().map(|found| found.id).filter(|id| ids.contains(id));
        self.destroy(gpu, &there.collect::<Vec<_>>())
    }

    /// Destroys GPU instances, each after its compute instances, of which there
    /// may be none.
    fn destroy(&self, gpu: PciAddress, ids: &[u32]) -> Result<(), Cause> {
        let bdf = gpu.to_string();
        for id in ids {
            let id = id.to_string();
            let compute = words(&["mig", "-i", &bdf, "-dci", "-gi", &id]);
            // What stands against it, the next one says.
            match self.run_tool(&LaneKey::NvidiaSmi, ToolId::NvidiaSmi, &compute) {
                Ok(_) | Err(Cause::Tool(_)) => {}
                Err(cause) => return Err(cause),
            }
            let instance = words(&["mig", "-i", &bdf, "-dgi", "-gi", &id]);
            self.run_tool(&LaneKey::NvidiaSmi, ToolId::NvidiaSmi, &instance)?;
        }
        Ok(())
    }

    /// Destroys the GPU instances that are not among `ids`.
    pub(super) fn keep_instances(&self, gpu: PciAddress, ids: &[u32]) -> Result<(), Cause> {
        let facts = ask(self.executor, gpu, Deadline::after(self.tool_limit))?;
        let new: Vec<u32> =
            facts.instances.iter().map(|found| found.id).filter(|id| !ids.contains(id)).collect();
        self.destroy(gpu, &new)
    }

    /// `None` when NVIDIA's program says it, else what it says.
    pub(super) fn look_with_smi(
        &self,
        gpu: PciAddress,
        state: &SmiState,
    ) -> Result<Option<String>, Cause> {
        let facts = ask(self.executor, gpu, Deadline::after(self.tool_limit))?;
        let on = |on: bool| if on { "on" } else { "off" };
        Ok(match state {
            SmiState::Mig(wanted) => match facts.mig {
                Some(mig) if mig.pending == *wanted => None,
                Some(mig) => Some(format!("MIG mode of {gpu} is {}", on(mig.current))),
                None => Some(format!("{gpu} has no MIG mode")),
            },
            SmiState::Heterogeneous(wanted) => (facts.heterogeneous != Some(*wanted))
                .then(|| format!("heterogeneous mode of {gpu} is {}", on(!wanted))),
            SmiState::Instances(wanted) => {
                let mut is: Vec<Shape> =
                    facts.instances.into_iter().map(|found| found.shape).collect();
                let mut wanted = wanted.clone();
                is.sort_unstable();
                wanted.sort_unstable();
                let names: Vec<String> = is.iter().map(ToString::to_string).collect();
                (is != wanted).then(|| format!("{gpu} has the GPU instances {}", names.join(", ")))
            }
        })
    }
}

impl From<OpError> for Cause {
    fn from(error: OpError) -> Self {
        Self::Op(error)
    }
}
