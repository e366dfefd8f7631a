//! A service that answers as a test says, to see what vgpuctl makes of it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
};

use futures_util::StreamExt;
use zbus::{
    Message, MessageStream, ObjectPath, Variant, connection::Builder, message::Type as Kind,
};

use crate::bus::Bus;

pub(crate) const UUID: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";
pub(crate) const VGPU: &str = "/org/vgpu/Host1/vgpus/83b8f4f2_509f_382f_3c1e_e6bfe0fa1001";
pub(crate) const GPU: &str = "/org/vgpu/Host1/gpus/pci_0000_41_00_0";
pub(crate) const JOB: &str = "/org/vgpu/Host1/jobs/1";

/// What one call gets: replies and signals, in their order.
pub(crate) type Answer = Box<dyn Fn(&Message) -> Vec<Message> + Send>;

/// A running service; it ends with the test.
pub(crate) struct Fake {
    /// Outlives the service where a test keeps it.
    pub bus: Arc<Bus>,
    calls: Arc<Mutex<Vec<String>>>,
    called: Mutex<mpsc::Receiver<String>>,
    emit: tokio::sync::mpsc::UnboundedSender<Message>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Starts it on a bus of its own, with the answers to some members; others
    /// are unknown methods.
    pub(crate) fn start(answers: Vec<(&'static str, Answer)>) -> Self {
        let bus = Arc::new(Bus::start());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (tell, called) = mpsc::channel();
        let (emit, mut to_emit) = tokio::sync::mpsc::unbounded_channel::<Message>();
        let (ready, is_ready) = mpsc::channel();
        let (address, log) = (bus.address.clone(), calls.clone());
        let answers: HashMap<_, _> = answers.into_iter().collect();
        let serve = async move {
            let builder = Builder::address(address.as_str());
            let connection = builder.build().await.unwrap();
            let mut messages = MessageStream::from(&connection);
            connection.request_name("org.vgpu.Host1").await.unwrap();
            ready.send(()).unwrap();
            loop {
                let call = tokio::select! {
                    call = messages.next() => call.unwrap().unwrap(),
                    signal = to_emit.recv() => match signal {
                        Some(signal) => { connection.send(&signal).await.unwrap(); continue }
                        None => return,
                    },
                };
                if call.message_type() != Kind::MethodCall {
                    continue;
                }
                let member = call.header().member().unwrap().to_string();
                log.lock().unwrap().push(member.clone());
                let messages = match answers.get(member.as_str()) {
                    Some(answer) => answer(&call),
                    None => vec![error(&call, "org.freedesktop.DBus.Error.UnknownMethod", &member)],
                };
                for message in messages {
                    connection.send(&message).await.unwrap();
                }
                let _ = tell.send(member);
            }
        };
        let run = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(serve)
        };
        let thread = Some(std::thread::spawn(run));
        is_ready.recv().unwrap();
        Self { bus, calls, called: Mutex::new(called), emit, thread }
    }

    /// The members that were called, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    /// Waits until that member has been answered.
    pub(crate) fn wait_for(&self, member: &str) {
        let called = self.called.lock().unwrap();
        while called.recv().unwrap() != member {}
    }

    /// Emits a signal.
    pub(crate) fn emit(&self, signal: Message) {
        self.emit.send(signal).unwrap();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let (closed, _) = tokio::sync::mpsc::unbounded_channel();
        self.emit = closed;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the service panicked");
    }
}

/// A reply with that body.
pub(crate) fn reply<B: serde::Serialize + zbus::DynamicType>(call: &Message, body: &B) -> Message {
    Message::method_return(&call.header()).build(body).unwrap()
}

/// An error as the service sends it: text and details.
pub(crate) fn error(call: &Message, name: &str, text: &str) -> Message {
    let details: HashMap<&str, Variant<'_>> = HashMap::from([("Code", Variant::from("some-code"))]);
    Message::error(&call.header(), name.to_owned()).build(&(text, details)).unwrap()
}

/// Always the same error.
pub(crate) fn refuse(name: &'static str, text: &'static str) -> Answer {
    Box::new(move |call| vec![error(call, name, text)])
}

/// Always the same reply.
pub(crate) fn answer<B: serde::Serialize + zbus::DynamicType + Send + 'static>(body: B) -> Answer {
    Box::new(move |call| vec![reply(call, &body)])
}

pub(crate) fn path(path: &'static str) -> ObjectPath<'static> {
    ObjectPath::try_from(path).unwrap()
}

pub(crate) fn job_removed(result: &str, details: &HashMap<&str, Variant<'_>>) -> Message {
    let signal = Message::signal("/org/vgpu/Host1", "org.vgpu.Host1.Manager", "JobRemoved");
    signal.build(&(1_u32, path(JOB), result, details)).unwrap()
}
