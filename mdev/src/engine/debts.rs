//! What a plan could not undo while the kernel hung, done once it has come
//! back: autoprobe is not left off for good, nor VFs that nobody asked for.

use std::collections::VecDeque;

use crate::{
    model::GpuId,
    plan::{Undo, UndoOp},
    sys::Deadline,
};

use super::{Engine, lock};

impl Engine {
    /// Keeps what is to be undone on a GPU.
    pub(super) fn owe(&self, gpu: &GpuId, owed: Vec<Undo>) {
        if !owed.is_empty() {
            lock(&self.debts).entry(gpu.clone()).or_default().extend(owed);
        }
    }

    /// Undoes what is owed on a GPU, unless a change of it runs: that one does
    /// it first.
    pub(super) fn pay_if_free(&self, gpu: &GpuId) {
        if lock(&self.debts).contains_key(gpu)
            && let Some(_turn) =
                self.plans.take(&self.turn_of(gpu), Deadline::after(std::time::Duration::ZERO))
        {
            self.pay(gpu);
        }
    }

    /// Undoes what is owed on a GPU, as far as the kernel does not hang; the
    /// caller has its turn.
    pub(super) fn pay(&self, gpu: &GpuId) {
        let owed = lock(&self.debts).remove(gpu);
        let Some(mut owed) = owed.map(VecDeque::from) else { return };
        if self.try_scan_gpu(gpu).is_err() {
            return self.owe(gpu, owed.into());
        }
        // VFs that somebody has taken meanwhile stay.
        if self.snapshot().vgpus_of(gpu).next().is_some() {
            owed.retain(|undo| !is_count(&undo.op));
        }
        let runner = self.runner(self.timing.write);
        while let Some(undo) = owed.pop_front() {
            match runner.undo_one(&undo) {
                Ok(()) => tracing::info!("undone late: {undo}"),
                Err(error) if error.is_stuck() => {
                    owed.push_front(undo);
                    break;
                }
                Err(error) => tracing::error!("cannot be undone: {error}"),
            }
        }
        self.owe(gpu, owed.into());
        self.refresh_host(gpu);
    }
}

/// Whether it changes a count of VFs, or which GPU instances there are.
fn is_count(op: &UndoOp) -> bool {
    match op {
        UndoOp::Write(write) => write.path.as_str().ends_with("/sriov_numvfs"),
        UndoOp::RunTool { .. } | UndoOp::KeepInstances { .. } => true,
    }
}
