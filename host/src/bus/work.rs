//! Work that blocks, and work that can outlive its call.

use std::{any::Any, collections::HashMap, panic::AssertUnwindSafe};

use futures_util::FutureExt as _;
use tokio::task::{JoinError, spawn_blocking};
use vgpu_host_api::{error::detail, path};
use vgpu_mdev::{
    error::{Error, ErrorKind},
    request::Control,
};
use vgpu_polkit::{Action, Rule};
use zbus::{Message, ObjectPath, Variant};

use super::{call::Call, error::Fault, objects::Object, server::Outgoing, service::Service};

/// Runs something that may block on a thread of its own.
///
/// # Errors
/// Its own, or Failed when it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Fault> {
    finished(spawn_blocking(work).await)
}

fn finished<T>(done: Result<Result<T, Error>, JoinError>) -> Result<T, Fault> {
    match done {
        Ok(result) => result.map_err(Fault::from),
        Err(error) => Err(match error.try_into_panic() {
            Ok(panic) => panicked(&*panic),
            Err(error) => Fault::failed(format!("the work did not run: {error}")),
        }),
    }
}

/// Answers a call about an object when its work is done: a panic is a failure
/// of that call alone, and only those who may look learn who is in the way.
pub(crate) async fn guarded(
    service: &Service,
    call: &Call,
    object: &Object,
    work: impl Future<Output = Result<Option<Message>, Fault>>,
) {
    let answer = AssertUnwindSafe(work).catch_unwind().await;
    match answer.unwrap_or_else(|panic| Err(panicked(&*panic))) {
        Ok(None) => {}
        Ok(Some(reply)) => service.put(Outgoing::Reply(call.clone(), Ok(reply))),
        Err(fault) if fault.names_a_process() && !may_see(service, call, object).await => {
            service.put(Outgoing::Reply(call.clone(), Err(fault.without_process())));
        }
        Err(fault) => service.put(Outgoing::Reply(call.clone(), Err(fault))),
    }
}

/// Whether the caller may see which process holds a vGPU.
async fn may_see(service: &Service, call: &Call, object: &Object) -> bool {
    let owner = match object {
        Object::Vgpu(vgpu) => Some(vgpu.owner_uid),
        _ => None,
    };
    match service.asker(call).await {
        Ok(asker) => asker.would(Rule::OwnerOr(Action::Inspect), owner).await,
        Err(_) => false,
    }
}

/// What a panic becomes on the bus.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Fault {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text.as_str(),
        _ => "no message",
    };
    tracing::error!("a call panicked: {text}");
    Fault::failed("the service failed in this call, which is an error in it; its log says more")
}

/// Work that becomes a job when it takes long.
pub(crate) struct Work {
    owner_uid: u32,
    operation: String,
    control: Control,
}

impl Work {
    /// Work for that user; `operation` says what it does, for people.
    pub(crate) fn new(owner_uid: u32, operation: String) -> Self {
        Self { owner_uid, operation, control: Control::default() }
    }

    /// Follows and cancels it.
    pub(crate) fn control(&self) -> Control {
        self.control.clone()
    }

    /// Runs it. `reply` makes the reply from its result and `/`, or, when it
    /// takes long, from nothing and its job; then the job's end is told by a
    /// signal and there is nothing left to answer.
    ///
    /// # Errors
    /// Of work that ended within the caller's patience.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        service: &Service,
        call: &Call,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
        reply: impl Fn(Option<T>, ObjectPath<'_>) -> Result<Message, Fault>,
    ) -> Result<Option<Message>, Fault> {
        tracing::info!(uid = self.owner_uid, "{}", self.operation);
        let mut running = spawn_blocking(work);
        if let Ok(done) = tokio::time::timeout(service.patience, &mut running).await {
            let done = finished(done)
                .inspect_err(|fault| tracing::warn!("{}: {}", self.operation, fault.text))?;
            return reply(Some(done), path::none()).map(Some);
        }
        let job = service.jobs.begin(self.operation, self.owner_uid, self.control);
        service.put(Outgoing::JobNew(job.clone()));
        let early = reply(None, job.path())?;
        service.put(Outgoing::Reply(call.clone(), Ok(early)));
        let end = match running.await {
            Ok(Err(error)) if error.kind() == ErrorKind::Cancelled => End::Cancelled,
            done => match finished(done) {
                Ok(_) => End::Done,
                Err(fault) => End::Failed(fault.without_process()),
            },
        };
        tracing::info!(job = job.id, "{}: {}", job.operation, end.as_str());
        service.put(Outgoing::JobRemoved(job, end));
        Ok(None)
    }
}

/// How a job ended.
pub(crate) enum End {
    Done,
    Cancelled,
    Failed(Fault),
}

impl End {
    /// The word used on the bus.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed(_) => "failed",
        }
    }

    /// The details that JobRemoved carries.
    pub(crate) fn details(&self) -> HashMap<&'static str, Variant<'_>> {
        match self {
            Self::Failed(fault) => HashMap::from([
                (detail::ERROR, fault.name.into()),
                (detail::MESSAGE, fault.text.as_str().into()),
            ]),
            Self::Done | Self::Cancelled => HashMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use vgpu_host_api::error::standard;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_failure_of_its_call() {
        let fault = blocking::<()>(|| panic!("out of cheese")).await.unwrap_err();
        assert_eq!(fault.name, standard::FAILED);
        assert!(!fault.text.contains("cheese"), "{}", fault.text);
        assert_eq!(blocking(|| Ok(7)).await, Ok(7));
    }
}
