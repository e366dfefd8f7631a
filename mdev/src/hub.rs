//! Where kernel events arrive and those who wait for one wake up.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::sys::Deadline;

/// Counts kernel events.
#[derive(Debug, Default)]
pub struct Hub {
    seen: Mutex<u64>,
    more: Condvar,
}

impl Hub {
    /// Counts one more and wakes who waits.
    pub fn notify(&self) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.more.notify_all();
    }

    /// How many there have been. Taken *before* looking at the kernel, so that
    /// an event between the look and the wait is not missed.
    pub fn mark(&self) -> u64 {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there have been more than `mark`; `false` at the deadline.
    pub fn wait_beyond(&self, mark: u64, deadline: Deadline) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        while *seen <= mark {
            let left = deadline.left();
            if left.is_zero() {
                return false;
            }
            seen = self.more.wait_timeout(seen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
