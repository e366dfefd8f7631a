//! Waiting for an engine's picture.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use vgpu_mdev::{engine::Engine, model::Snapshot};

/// How long the engine may take to see a change.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Waits until the engine's picture is as `wanted`.
///
/// # Panics
/// When it does not come to that.
pub fn until(engine: &Engine, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
    let more = Arc::new((Mutex::new(()), Condvar::new()));
    let published = more.clone();
    engine.subscribe(move |_| {
        drop(published.0.lock());
        published.1.notify_all();
    });
    let end = Instant::now() + LIMIT;
    let mut guard = more.0.lock().unwrap();
    loop {
        let snapshot = engine.snapshot();
        if wanted(&snapshot) {
            return snapshot;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "the picture stays {snapshot:#?}");
        guard = more.1.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}
