//! A polkit of the tests' own on the private bus: it decides as told, and
//! remembers what it was asked.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use futures_util::StreamExt as _;
use zbus::{Message, MessageStream, OwnedVariant, message::Type};

use crate::bus::Bus;

/// What polkit was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// The kind of subject and its bus name.
    pub(crate) subject: (String, String),
    /// The action, without its prefix.
    pub(crate) action: String,
    pub(crate) details: HashMap<String, String>,
    pub(crate) interactive: bool,
}

/// The polkit; it ends with this.
pub(crate) struct Authority {
    asked: Arc<Mutex<Vec<Question>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Authority {
    /// Allows these actions, without their prefix, to everyone.
    pub(crate) async fn allowing(bus: &Bus, actions: &'static [&'static str]) -> Self {
        let connection = bus.connect().await;
        let mut stream = MessageStream::from(&connection);
        connection.request_name("org.freedesktop.PolicyKit1").await.unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let questions = asked.clone();
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = stream.next().await {
                if message.message_type() != Type::MethodCall {
                    continue;
                }
                let question = question(&message);
                let allowed = actions.contains(&question.action.as_str());
                questions.lock().unwrap().push(question);
                let answer = (allowed, !allowed, HashMap::<String, String>::new());
                let reply = Message::method_return(&message.header()).build(&(answer,)).unwrap();
                connection.send(&reply).await.unwrap();
            }
        });
        Self { asked, task }
    }

    /// The actions that it was asked about since the last time.
    pub(crate) fn actions(&self) -> Vec<String> {
        self.questions().into_iter().map(|question| question.action).collect()
    }

    /// What it was asked since the last time.
    pub(crate) fn questions(&self) -> Vec<Question> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn question(message: &Message) -> Question {
    assert_eq!(message.header().member().unwrap().as_str(), "CheckAuthorization");
    type Subject = (String, HashMap<String, OwnedVariant>);
    let body = message.body();
    let (subject, action, details, flags, cancellation): (
        Subject,
        String,
        HashMap<String, String>,
        u32,
        String,
    ) = body.deserialize().unwrap();
    assert_eq!(cancellation, "");
    let name = subject.1["name"].try_clone().unwrap().try_into().unwrap();
    let action = action.strip_prefix("org.vgpu.host1.").expect("an action of ours").to_owned();
    Question { subject: (subject.0, name), action, details, interactive: flags == 1 }
}
