//! The loop: one message after another, one change after another.

use std::{num::NonZeroUsize, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use vgpu_host_api::{error::standard, names};
use vgpu_mdev::{
    engine::Engine,
    model::{Change, Snapshot},
};
use vgpu_polkit::{Authority, Callers, Rule};
use zbus::{Connection, MatchRule, Message, MessageStream, fdo::RequestNameFlags, message::Type};

use super::{
    call::{Call, wants_reply},
    configure,
    contract::{self, Handler},
    error::Fault,
    gpu, introspect,
    jobs::{self, Job, Jobs},
    limits::Limits,
    manager, memory, nvidia,
    objects::{self, Object},
    options::echo,
    peer, properties,
    service::Service,
    signals, vgpu,
    work::{self, End},
};

/// What the server tells of its host.
pub struct Host {
    /// Whether the kernel below is a simulated one.
    pub simulated: bool,
    /// The content of `/etc/machine-id`, where there is one.
    pub machine_id: Option<String>,
    /// How long a caller is kept waiting before its work goes on as a job.
    pub patience: Duration,
    /// How long stopping waits for what runs: a forced removal waits for its
    /// holder, which can take for ever.
    pub stop_patience: Duration,
}

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process serves already.
    #[error("another process owns {name} on this bus; stop it first", name = names::SERVICE)]
    NameTaken,
    /// The bus does not let us serve.
    #[error("the bus does not give us the name {name}: {source}; is its policy file installed?", name = names::SERVICE)]
    Name {
        /// The bus's answer.
        source: zbus::Error,
    },
    /// The connection failed.
    #[error("the bus: {0}")]
    Bus(#[from] zbus::Error),
    /// The bus went away.
    #[error("the bus closed the connection")]
    Closed,
}

/// What goes out, in order.
pub(crate) enum Outgoing {
    /// The picture has changed.
    Change(Change),
    /// The answer to a call.
    Reply(Call, Result<Message, Fault>),
    /// A job has begun.
    JobNew(Arc<Job>),
    /// A job is over.
    JobRemoved(Arc<Job>, End),
}

/// Serves an engine on a bus.
pub struct Server {
    connection: Connection,
    calls: MessageStream,
    service: Arc<Service>,
    /// What the bus has been told.
    picture: Arc<Snapshot>,
    outgoing: mpsc::UnboundedReceiver<Outgoing>,
    stop_patience: Duration,
}

impl Server {
    /// Prepares to serve: follows the engine from its present picture on. Calls
    /// that arrive wait until [`Server::run`].
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn new(
        connection: Connection,
        engine: Arc<Engine>,
        authority: Box<dyn Authority>,
        host: Host,
    ) -> Result<Self, ServeError> {
        let rule = MatchRule::builder().msg_type(Type::MethodCall).build()?;
        let calls =
            MessageStream::for_match_rule(rule, &connection, NonZeroUsize::new(256)).await?;
        let (sender, outgoing) = mpsc::unbounded_channel();
        let changes = sender.clone();
        engine.subscribe(move |change| {
            // The server has ended when nobody receives.
            let _ = changes.send(Outgoing::Change(change.clone()));
        });
        let service = Arc::new(Service {
            callers: Callers::new(connection.clone()),
            engine: engine.clone(),
            authority,
            jobs: Jobs::default(),
            limits: Limits::new(),
            simulated: host.simulated,
            machine_id: host.machine_id,
            patience: host.patience,
            outgoing: sender,
        });
        let (picture, stop_patience) = (engine.snapshot(), host.stop_patience);
        Ok(Self { connection, calls, service, picture, outgoing, stop_patience })
    }

    /// Takes the service's name on the bus.
    ///
    /// # Errors
    /// When somebody has it, or the bus's policy refuses.
    pub async fn take_name(&self) -> Result<(), ServeError> {
        let flags = RequestNameFlags::DO_NOT_QUEUE;
        match self.connection.request_name_with_flags(names::SERVICE, flags).await {
            Ok(_) => Ok(()),
            Err(zbus::Error::NameTaken) => Err(ServeError::NameTaken),
            Err(source) => Err(ServeError::Name { source }),
        }
    }

    /// Serves until `stop` is ready. Then it begins no more work, and returns
    /// when what runs has ended and is answered, or does not end for long; the
    /// name is kept until then, since clients listen to it for the end of their
    /// jobs.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let (limits, patience) = (self.service.limits.clone(), self.stop_patience);
        let ended = async move {
            stop.await;
            limits.close();
            if tokio::time::timeout(patience, limits.idle()).await.is_err() {
                tracing::warn!("stopping without what still runs: the kernel finishes it alone");
            }
        };
        tokio::pin!(ended);
        loop {
            tokio::select! {
                biased;
                Some(outgoing) = self.outgoing.recv() => self.send(outgoing).await?,
                message = self.calls.next() => match message {
                    Some(message) => self.take(message?).await?,
                    None => return Err(ServeError::Closed),
                },
                () = &mut ended => break,
            }
        }
        while let Ok(outgoing) = self.outgoing.try_recv() {
            self.send(outgoing).await?;
        }
        self.connection.release_name(names::SERVICE).await?;
        Ok(())
    }

    async fn send(&mut self, outgoing: Outgoing) -> Result<(), ServeError> {
        match outgoing {
            Outgoing::Change(change) => {
                // The first picture may hold it already.
                if change.after.revision() > self.picture.revision() {
                    let signals = signals::of_change(&self.service, &change)?;
                    self.picture = change.after;
                    self.connection.send_all(&signals).await?;
                }
            }
            Outgoing::Reply(call, answer) => self.answer(call.message(), answer).await?,
            Outgoing::JobNew(job) => self.connection.send_all(&signals::job_new(&job)?).await?,
            Outgoing::JobRemoved(job, end) => {
                self.service.jobs.end(job.id);
                self.connection.send_all(&signals::job_removed(&job, &end)?).await?;
            }
        }
        Ok(())
    }

    /// Answers a call at once, or starts to work on it.
    async fn take(&mut self, message: Message) -> Result<(), ServeError> {
        let size = message.data().len();
        let found = std::panic::catch_unwind(AssertUnwindSafe(|| self.dispatch(&message)));
        match found.unwrap_or_else(|panic| Err(work::panicked(&*panic))) {
            Ok(None) => {}
            Ok(Some(reply)) => self.answer(&message, Ok(reply)).await?,
            Err(fault) => self.answer(&message, Err(fault)).await?,
        }
        drop(message);
        memory::give_back_after(size);
        Ok(())
    }

    async fn answer(
        &self,
        call: &Message,
        answer: Result<Message, Fault>,
    ) -> Result<(), ServeError> {
        if !wants_reply(call) {
            return Ok(());
        }
        let reply = match answer {
            Ok(reply) => reply,
            Err(fault) => fault.reply(call)?,
        };
        let size = reply.data().len();
        self.connection.send(&reply).await?;
        drop(reply);
        memory::give_back_after(size);
        Ok(())
    }

    /// Finds the object and the method; `None` when the answer comes later.
    fn dispatch(&self, message: &Message) -> Result<Option<Message>, Fault> {
        let header = message.header();
        let (Some(path), Some(member)) = (header.path(), header.member()) else {
            return Err(Fault::invalid("a method call has a path and a member"));
        };
        let interface = header.interface().map(|interface| interface.as_str());
        let is_peer = interface == Some(names::standard::PEER);
        let object = match objects::find(&self.service, &self.picture, path.as_str()) {
            Some(object) => object,
            // Peer is about the connection, not about an object.
            None if is_peer => Object::Manager,
            None => {
                return Err(Fault::new(
                    standard::UNKNOWN_OBJECT,
                    format!("there is no object {}; it may have gone", echo(path.as_str())),
                ));
            }
        };
        let interfaces = object.interfaces(&self.service);
        if let Some(interface) = interface.filter(|interface| !interfaces.contains(interface)) {
            return Err(Fault::new(
                standard::UNKNOWN_INTERFACE,
                format!("{path} has no interface {}", echo(interface)),
            ));
        }
        let method = contract::find(&interfaces, interface, member.as_str()).ok_or_else(|| {
            let of = interface.unwrap_or(path.as_str());
            Fault::new(
                standard::UNKNOWN_METHOD,
                format!("{of} has no method {}", echo(member.as_str())),
            )
        })?;
        let call = Call::new(message.clone(), method)?;
        self.handle(call, object)
    }

    fn handle(&self, call: Call, object: Object) -> Result<Option<Message>, Fault> {
        let (service, picture) = (&*self.service, &*self.picture);
        match call.method().handler {
            Handler::Ping => peer::ping(&call).map(Some),
            Handler::GetMachineId => peer::machine_id(service, &call).map(Some),
            Handler::Introspect => {
                introspect::introspect(service, picture, &call, &object).map(Some)
            }
            Handler::Get => properties::get(service, &call, &object).map(Some),
            Handler::GetAll => properties::get_all(service, &call, &object).map(Some),
            Handler::Set => properties::set(service, &call, &object).map(Some),
            Handler::GetManagedObjects => {
                objects::get_managed_objects(service, picture, &call).map(Some)
            }
            _ => self.handle_ours(call, object),
        }
    }

    /// A method of our own: what has no rule in the table is refused.
    fn handle_ours(&self, call: Call, object: Object) -> Result<Option<Message>, Fault> {
        let method = call.method();
        let Some(rule) = vgpu_polkit::rule(method.interface, method.member) else {
            return Err(Fault::new(
                standard::ACCESS_DENIED,
                format!("{}.{} is for nobody", method.interface, method.member),
            ));
        };
        if rule == Rule::Everyone
            && let Some(answer) = self.look(&call)
        {
            return answer.map(Some);
        }
        let permit = self.service.limits.begin(call.sender())?;
        let (service, picture) = (self.service.clone(), self.picture.clone());
        tokio::spawn(async move {
            let work = work_on(&service, &picture, &call, &object, rule);
            work::guarded(&service, &call, &object, work).await;
            drop(permit);
        });
        Ok(None)
    }

    /// A method that only looks into the picture, and nobody is kept from.
    fn look(&self, call: &Call) -> Option<Result<Message, Fault>> {
        Some(match call.method().handler {
            Handler::GetGpu => manager::get_gpu(&self.picture, call),
            Handler::GetVgpu => manager::get_vgpu(&self.picture, call),
            Handler::ListGpus => manager::list_gpus(&self.picture, call),
            Handler::ListProfiles => manager::list_profiles(&self.picture, call),
            Handler::ListVgpus => manager::list_vgpus(&self.picture, call),
            _ => return None,
        })
    }
}

/// Works on a method that may block or has to ask who calls.
async fn work_on(
    service: &Service,
    picture: &Snapshot,
    call: &Call,
    object: &Object,
    rule: Rule,
) -> Result<Option<Message>, Fault> {
    match (call.method().handler, object) {
        (Handler::CreateVgpu, _) => manager::create_vgpu(service, picture, call, rule).await,
        (Handler::GetVgpuByPid, _) => {
            manager::get_vgpu_by_pid(service, picture, call, rule).await.map(Some)
        }
        (Handler::PlanVgpus, _) if rule == Rule::Everyone => {
            manager::plan_vgpus(service, call).await.map(Some)
        }
        (Handler::Rescan, _) => manager::rescan(service, call, rule).await.map(Some),
        (Handler::Explain, Object::Gpu(gpu)) if rule == Rule::Everyone => {
            gpu::explain(service, call, gpu).await.map(Some)
        }
        (Handler::SetVfCount, Object::Gpu(gpu)) => {
            gpu::set_vf_count(service, call, gpu, rule).await
        }
        (Handler::Configure, Object::Gpu(gpu)) => {
            configure::configure(service, call, gpu, rule).await
        }
        (Handler::PlanConfiguration, Object::Gpu(gpu)) if rule == Rule::Everyone => {
            configure::plan_configuration(service, call, gpu).await.map(Some)
        }
        (Handler::Remove, Object::Vgpu(vgpu)) => vgpu::remove(service, call, vgpu, rule).await,
        (Handler::Probe, Object::Vgpu(vgpu)) => {
            vgpu::probe(service, call, vgpu, rule).await.map(Some)
        }
        (Handler::OpenDevice, Object::Vgpu(vgpu)) => {
            vgpu::open_device(service, call, vgpu, rule).await.map(Some)
        }
        (Handler::GetHolders, Object::Vgpu(vgpu)) => {
            vgpu::get_holders(service, call, vgpu, rule).await.map(Some)
        }
        (Handler::SetParams, Object::Vgpu(vgpu)) => {
            nvidia::set_params(service, call, vgpu, rule).await
        }
        (Handler::Cancel, Object::Job(job)) => {
            jobs::cancel(service, call, job, rule).await.map(Some)
        }
        (handler, _) => Err(Fault::failed(format!("{handler:?} has no answer for this object"))),
    }
}
