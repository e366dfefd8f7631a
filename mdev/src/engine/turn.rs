//! One at a time on one GPU, in the order of arrival.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use crate::{model::GpuId, sys::Deadline};

/// The queues of all GPUs.
#[derive(Debug, Default)]
pub(super) struct Turns {
    queues: Mutex<Queues>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Queues {
    next: u64,
    by_gpu: BTreeMap<GpuId, VecDeque<u64>>,
}

/// A turn on a GPU; it ends when this is dropped.
#[must_use]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    gpu: GpuId,
    ticket: u64,
}

impl Turns {
    /// Waits for a turn on a GPU; `None` at the deadline.
    pub(super) fn take(&self, gpu: &GpuId, deadline: Deadline) -> Option<Turn<'_>> {
        let mut queues = self.lock();
        let ticket = queues.next;
        queues.next += 1;
        queues.by_gpu.entry(gpu.clone()).or_default().push_back(ticket);
        // From here on dropping it leaves the queue, whether it was served or not.
        let turn = Turn { turns: self, gpu: gpu.clone(), ticket };
        while queues.by_gpu.get(gpu).and_then(VecDeque::front) != Some(&ticket) {
            let left = deadline.left();
            if left.is_zero() {
                drop(queues);
                return None;
            }
            queues =
                self.moved.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queues);
        Some(turn)
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queues = self.turns.lock();
        if let Some(queue) = queues.by_gpu.get_mut(&self.gpu) {
            queue.retain(|ticket| *ticket != self.ticket);
            if queue.is_empty() {
                queues.by_gpu.remove(&self.gpu);
            }
        }
        drop(queues);
        self.turns.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn turns_come_in_order_and_gpus_do_not_wait_for_each_other() {
        let turns = Turns::default();
        let (one, two): (GpuId, GpuId) = ("one".parse().unwrap(), "two".parse().unwrap());
        let soon = || Deadline::after(Duration::from_millis(10));
        let held = turns.take(&one, soon()).unwrap();
        assert!(turns.take(&one, soon()).is_none(), "two at once");
        assert!(turns.take(&two, soon()).is_some(), "another GPU waited");
        let (done, order) = mpsc::channel();
        thread::scope(|scope| {
            for n in 0..3 {
                let (done, turns, one) = (done.clone(), &turns, &one);
                scope.spawn(move || {
                    let _turn = turns.take(one, Deadline::after(Duration::from_secs(20))).unwrap();
                    done.send(n).unwrap();
                });
                // The next one queues only after this one has.
                while turns.lock().by_gpu.get(one).map_or(0, VecDeque::len) < n + 2 {
                    thread::yield_now();
                }
            }
            drop(held);
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
    }
}
