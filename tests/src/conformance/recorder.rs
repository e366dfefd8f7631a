//! The events of a host, recorded.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use vgpu_mdev::sys::KernelEvent;

/// How long an event may take to come: several times what it takes in the lab.
const LIMIT: Duration = Duration::from_secs(30);

/// Records events.
#[derive(Clone, Default)]
pub struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    events: Mutex<Vec<KernelEvent>>,
    more: Condvar,
}

impl Recorder {
    /// Takes an event.
    pub fn record(&self, event: &KernelEvent) {
        self.lock().push(event.clone());
        self.shared.more.notify_all();
    }

    /// How many there are.
    pub fn mark(&self) -> usize {
        self.lock().len()
    }

    /// Waits for an event after `mark` that `wanted` likes.
    ///
    /// # Panics
    /// When none comes.
    pub fn wait(&self, mark: usize, wanted: impl Fn(&KernelEvent) -> bool) -> KernelEvent {
        let end = Instant::now() + LIMIT;
        let mut events = self.lock();
        loop {
            if let Some(event) = events.iter().skip(mark).find(|event| wanted(event)) {
                return event.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the event did not come; there were {:#?}", &events[mark..]);
            events = self
                .shared
                .more
                .wait_timeout(events, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// The events after `mark`.
    pub fn since(&self, mark: usize) -> Vec<KernelEvent> {
        self.lock().iter().skip(mark).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<KernelEvent>> {
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
