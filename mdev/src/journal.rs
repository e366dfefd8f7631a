//! What is written down while a plan runs, so that another process could finish
//! or undo it. The intent is recorded before the operation.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::plan::StepOp;

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A plan begins: its id, purpose and number of steps.
    Begin {
        /// The plan.
        plan: Uuid,
        /// In words.
        purpose: String,
        /// How many steps it has.
        steps: usize,
    },
    /// A step is about to be done.
    Intent {
        /// The plan.
        plan: Uuid,
        /// The step's number, from 0.
        step: usize,
        /// What it does.
        op: StepOp,
    },
    /// A step was done and read back.
    Observed {
        /// The plan.
        plan: Uuid,
        /// The step's number.
        step: usize,
    },
    /// A step is about to be undone.
    Undoing {
        /// The plan.
        plan: Uuid,
        /// The step's number.
        step: usize,
    },
    /// The plan is over.
    End {
        /// The plan.
        plan: Uuid,
        /// Whether it was done; otherwise it was undone as far as possible.
        done: bool,
    },
}

/// Takes records, each safe before `record` returns.
pub trait Journal: Send + Sync {
    /// Writes a record down.
    fn record(&self, record: &Record);
}

/// Keeps nothing but a trace line: work in flight does not outlive the process.
#[derive(Debug, Default)]
pub struct TraceOnly;

impl Journal for TraceOnly {
    fn record(&self, record: &Record) {
        tracing::debug!(?record, "journal");
    }
}
