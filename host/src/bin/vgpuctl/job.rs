//! Work that outlives its call: waiting for its end, and cancelling it.

use std::{future::Future, io::IsTerminal, pin::pin};

use futures_util::StreamExt;
use vgpu_host_api::{
    error, names,
    proxy::{JobProxy, JobRemovedStream},
};
use zbus::{OwnedObjectPath, proxy::CacheProperties};

use crate::{
    args::Wait,
    failure::{Code, Failure, Result},
    output::note,
    service::Service,
};

/// What became of a call.
pub(crate) enum Outcome<T> {
    /// It is done.
    Done(T),
    /// It goes on as that job.
    Running(T, OwnedObjectPath),
}

/// Makes a call and, unless told otherwise, waits for the job that it may
/// leave. Ctrl-C cancels the job; a second one leaves it alone.
pub(crate) async fn finish<T>(
    service: &Service,
    wait: Wait,
    call: impl Future<Output = zbus::Result<(T, OwnedObjectPath)>>,
) -> Result<Outcome<T>> {
    if !wait.wait {
        let (answer, job) = service.said(call.await)?;
        return Ok(if is_done(&job) {
            Outcome::Done(answer)
        } else {
            Outcome::Running(answer, job)
        });
    }
    // Before the call: the end may come right behind its answer.
    let mut ends = service.said(service.manager().await?.receive_job_removed().await)?;
    let mut interrupts = interrupts()?;
    let mut call = pin!(call);
    let (answer, cancel) = tokio::select! {
        answer = &mut call => (answer, false),
        _ = interrupts.recv() => {
            note("interrupted; waiting for the service's answer");
            (call.await, true)
        }
    };
    let (answer, job) = service.said(answer)?;
    if is_done(&job) {
        return Ok(Outcome::Done(answer));
    }
    wait_for(service, &mut ends, &mut interrupts, &job, cancel).await?;
    Ok(Outcome::Done(answer))
}

fn is_done(job: &OwnedObjectPath) -> bool {
    job.as_str() == names::NONE
}

fn interrupts() -> Result<tokio::signal::unix::Signal> {
    let kind = tokio::signal::unix::SignalKind::interrupt();
    tokio::signal::unix::signal(kind)
        .map_err(|error| Failure::other(format!("cannot watch for Ctrl-C: {error}")))
}

async fn wait_for(
    service: &Service,
    ends: &mut JobRemovedStream,
    interrupts: &mut tokio::signal::unix::Signal,
    job: &OwnedObjectPath,
    mut cancel: bool,
) -> Result<()> {
    let builder = JobProxy::builder(service.connection()).cache_properties(CacheProperties::No);
    let proxy = service.said(builder.path(job).build().await)?;
    if std::io::stderr().is_terminal() {
        note(&format!("this takes longer (job {}); Ctrl-C cancels it", job.as_str()));
    }
    let mut cancelled = false;
    loop {
        if cancel && !cancelled {
            note("cancelling; waiting until all is undone");
            // It may be over already: its end says how it went.
            let _ = proxy.cancel().await;
            cancelled = true;
        }
        tokio::select! {
            end = ends.next() => {
                let Some(end) = end else {
                    return Err(Failure::new(Code::Unreachable, "the bus went away while the job was running"));
                };
                let end = service.said(end.args())?;
                if end.job() != &**job {
                    continue;
                }
                let detail = |name: &str| {
                    let text = end.details().get(name).and_then(|held| held.downcast_ref::<&str>().ok());
                    text.unwrap_or_default().to_owned()
                };
                return match *end.result() {
                    "done" => Ok(()),
                    "cancelled" => Err(Failure::new(Code::Cancelled, "cancelled; all was undone")),
                    _ => Err(Failure::named(&detail(error::detail::ERROR), &detail(error::detail::MESSAGE))),
                };
            }
            _ = interrupts.recv() => {
                if cancelled {
                    let job = job.as_str();
                    return Err(Failure::new(Code::Cancelled, format!("left while job {job} is being undone")));
                }
                cancel = true;
            }
        }
    }
}
