//! The one layer that touches the system.
//!
//! The engine talks to it through one narrow trait, [`Executor`]: an operation
//! of a closed set ([`Op`]) runs on a lane until a deadline. [`Lanes`] is the
//! executor in this process: a bounded queue for each lane, over a
//! [`Kernel`], which is either the real one with injected roots
//! ([`real::RealKernel`]) or a simulated one that behaves ([`sim::SimKernel`]).

mod kernel;
mod lanes;
mod op;
mod path;
mod perform;
pub mod raw;
pub mod real;
pub mod sim;

pub use kernel::{Kernel, KernelEvent, ProbeFailure};
pub use lanes::Lanes;
pub(crate) use op::path_text;
pub use op::{
    Deadline, Executor, HolderQuery, LaneKey, Observed, Op, OpError, Opened, ProbeReport,
    ProbeTarget, Read, ReadBatch, ReadKind, Reading, Region, ToolId, ToolOutput, Value, WriteAttr,
};
pub use path::{InvalidPath, NodePath, SysPath};
