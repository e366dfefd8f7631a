//! What the handlers of calls share.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;
use vgpu_mdev::{engine::Engine, model::Vgpu};
use vgpu_polkit::{Authority, Caller, Callers, Details, Rule, authorize};

use super::{
    call::Call,
    error::Fault,
    jobs::Jobs,
    limits::{Limits, UserPermit},
    server::Outgoing,
    vgpu::VgpuObject,
};

/// What the handlers of calls share.
pub(crate) struct Service {
    pub(crate) engine: Arc<Engine>,
    pub(crate) authority: Box<dyn Authority>,
    pub(crate) callers: Callers,
    pub(crate) jobs: Jobs,
    pub(crate) limits: Limits,
    pub(crate) simulated: bool,
    pub(crate) machine_id: Option<String>,
    /// How long a caller is kept waiting before its work goes on as a job.
    pub(crate) patience: Duration,
    pub(crate) outgoing: mpsc::UnboundedSender<Outgoing>,
}

/// Who called, for the handlers that have to know.
pub(crate) struct Asker<'a> {
    service: &'a Service,
    call: &'a Call,
    /// The user.
    pub(crate) uid: u32,
    _one_of_theirs: UserPermit,
}

impl Service {
    /// A vGPU with what is known of its use.
    pub(crate) fn vgpu_object(&self, vgpu: Arc<Vgpu>) -> VgpuObject {
        let in_use = self.engine.in_use(vgpu.uuid);
        VgpuObject { vgpu, in_use }
    }

    /// Puts something behind everything that already waits; when the server has
    /// ended there is nobody left to tell.
    pub(crate) fn put(&self, outgoing: Outgoing) {
        let _ = self.outgoing.send(outgoing);
    }

    /// Finds out who sent a call.
    ///
    /// # Errors
    /// AccessDenied when the bus does not say, LimitsExceeded when too many
    /// calls of that user are at work.
    pub(crate) async fn asker<'a>(&'a self, call: &'a Call) -> Result<Asker<'a>, Fault> {
        let uid = self.callers.uid(&call.header()).await?;
        let permit = self.limits.of_user(uid)?;
        Ok(Asker { service: self, call, uid, _one_of_theirs: permit })
    }
}

impl Asker<'_> {
    /// Checks a rule against the owner of what the call is about.
    ///
    /// # Errors
    /// AccessDenied or InteractiveAuthorizationRequired.
    pub(crate) async fn may(
        &self,
        rule: Rule,
        owner: Option<u32>,
        details: &Details,
    ) -> Result<(), Fault> {
        let header = self.call.header();
        let caller = Caller::new(self.uid, &header);
        let checked = authorize(&*self.service.authority, caller, rule, owner, details).await;
        checked.map_err(|denied| {
            tracing::info!(method = self.call.method().member, "refused: {denied}");
            denied.into()
        })
    }

    /// Whether a rule holds, without asking the user for a password.
    pub(crate) async fn would(&self, rule: Rule, owner: Option<u32>) -> bool {
        let header = self.call.header();
        let caller = Caller::new(self.uid, &header).quietly();
        authorize(&*self.service.authority, caller, rule, owner, &Details::new()).await.is_ok()
    }
}
