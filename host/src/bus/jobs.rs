//! Jobs: work that outlived its call.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use vgpu_host_api::{names, path};
use vgpu_mdev::request::Control;
use vgpu_polkit::{Details, Rule};
use zbus::{Message, ObjectPath};

use super::{
    call::Call,
    error::Fault,
    properties::{Emits, Interface, Property, Shown},
    service::Service,
};

/// Work that outlived its call.
pub(crate) struct Job {
    pub(crate) id: u32,
    /// What it does, for people.
    pub(crate) operation: String,
    /// The user whose call it was.
    pub(crate) owner_uid: u32,
    pub(crate) control: Control,
}

impl Job {
    /// Its object's path.
    pub(crate) fn path(&self) -> ObjectPath<'static> {
        path::job(self.id)
    }
}

impl Shown for Job {
    const INTERFACES: &'static [Interface<Self>] = &[Interface::always(names::JOB, PROPERTIES)];
}

const PROPERTIES: &[Property<Job>] = &[
    Property {
        name: "Operation",
        signature: "s",
        emits: Emits::Never,
        get: |job| job.operation.as_str().into(),
    },
    Property {
        name: "Progress",
        signature: "d",
        emits: Emits::Nothing,
        get: |job| job.control.progress().into(),
    },
];

/// The jobs that run.
#[derive(Default)]
pub(crate) struct Jobs {
    last: AtomicU32,
    running: Mutex<BTreeMap<u32, Arc<Job>>>,
}

impl Jobs {
    /// Makes a job of work that goes on.
    pub(crate) fn begin(&self, operation: String, owner_uid: u32, control: Control) -> Arc<Job> {
        let id = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let job = Arc::new(Job { id, operation, owner_uid, control });
        lock(&self.running).insert(id, job.clone());
        job
    }

    /// Takes out a job whose work is over.
    pub(crate) fn end(&self, id: u32) {
        lock(&self.running).remove(&id);
    }

    /// The job of that number.
    pub(crate) fn find(&self, id: u32) -> Option<Arc<Job>> {
        lock(&self.running).get(&id).cloned()
    }

    /// All jobs, the oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Job>> {
        lock(&self.running).values().cloned().collect()
    }
}

/// Answers `Cancel`.
pub(crate) async fn cancel(
    service: &Service,
    call: &Call,
    job: &Job,
    rule: Rule,
) -> Result<Message, Fault> {
    let asker = service.asker(call).await?;
    asker.may(rule, Some(job.owner_uid), &Details::new()).await?;
    tracing::info!(uid = asker.uid, job = job.id, "cancelling: {}", job.operation);
    job.control.cancel();
    call.reply(&())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
