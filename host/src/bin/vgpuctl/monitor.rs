//! `monitor`: what happens, one line each, as it happens.

use std::collections::HashMap;

use futures_util::StreamExt;
use serde_json::{Map, Value, json};
use vgpu_host_api::names;
use zbus::{MatchRule, Message, MessageStream, ObjectPath, Variant, message::Type};

use crate::{
    failure::{Code, Failure, Result},
    json,
    output::{Output, note, plain, print},
    service::Service,
};

type Properties<'a> = HashMap<String, Variant<'a>>;

/// What happened, as the bus told it.
enum Event {
    /// An object appeared, with its facts by interface.
    Added(String, Map<String, Value>),
    /// An object is gone.
    Removed(String),
    /// An object has further interfaces, with their facts.
    Gained(String, Map<String, Value>),
    /// An object no longer has these interfaces.
    Lost(String, Vec<String>),
    /// An object's facts changed.
    Changed(String, Map<String, Value>),
    /// A job began.
    JobNew(u32, String),
    /// A job ended.
    JobRemoved(u32, String, String, Map<String, Value>),
    /// The service came or went.
    Service(bool),
}

/// `vgpuctl monitor`
pub(crate) async fn run(service: &Service, output: &Output) -> Result<()> {
    let connection = service.connection();
    let ours = service
        .said(MessageStream::for_match_rule(service.said(ours())?, connection, None).await)?;
    let owner = service
        .said(MessageStream::for_match_rule(service.said(owner())?, connection, None).await)?;
    // Starts the service where the bus can, and says so where it cannot.
    let version = service.said(service.manager().await?.version().await)?;
    note(&format!("watching vgpu-hostd {version}; Ctrl-C ends it"));

    let mut messages = futures_util::stream::select(ours, owner);
    while let Some(message) = messages.next().await {
        let message = service.said(message)?;
        match service.said(event(&message))? {
            Some(event) if output.is_json() => print(&format!("{}\n", event.json()))?,
            Some(event) => print(&format!("{}\n", plain(&event.text())))?,
            None => {}
        }
    }
    Err(Failure::new(Code::Unreachable, "the bus went away"))
}

fn ours() -> zbus::Result<MatchRule<'static>> {
    MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(names::SERVICE)
        .path_namespace(names::ROOT)
        .build()
}

fn owner() -> zbus::Result<MatchRule<'static>> {
    let bus = "org.freedesktop.DBus";
    let rule = MatchRule::builder().msg_type(Type::Signal).sender(bus).interface(bus);
    rule.member("NameOwnerChanged").arg(0, names::SERVICE).build()
}

/// The event that a signal tells of; `None` for one that says nothing new.
fn event(message: &Message) -> zbus::Result<Option<Event>> {
    let header = message.header();
    let Some(member) = header.member() else {
        return Ok(None);
    };
    let path = header.path().map(|path| path.as_str().to_owned()).unwrap_or_default();
    let body = message.body();
    Ok(match member.as_str() {
        "InterfacesAdded" => {
            let (path, interfaces): (ObjectPath<'_>, HashMap<String, Properties<'_>>) =
                body.deserialize()?;
            let interfaces = interfaces.iter().filter(|(name, _)| name.starts_with(names::SERVICE));
            let facts: Map<String, Value> =
                interfaces.map(|(name, held)| (name.clone(), Value::Object(facts(held)))).collect();
            let path = path.as_str().to_owned();
            match has_its_own(facts.keys()) {
                _ if facts.is_empty() => None,
                true => Some(Event::Added(path, facts)),
                false => Some(Event::Gained(path, facts)),
            }
        }
        "InterfacesRemoved" => {
            let (path, interfaces): (ObjectPath<'_>, Vec<String>) = body.deserialize()?;
            let path = path.as_str().to_owned();
            Some(match has_its_own(&interfaces) {
                true => Event::Removed(path),
                false => Event::Lost(path, interfaces),
            })
        }
        "PropertiesChanged" => {
            let (_, changed, _): (String, Properties<'_>, Vec<String>) = body.deserialize()?;
            Some(Event::Changed(path, facts(&changed)))
        }
        "JobNew" => {
            let (id, job): (u32, ObjectPath<'_>) = body.deserialize()?;
            Some(Event::JobNew(id, job.as_str().to_owned()))
        }
        "JobRemoved" => {
            let (id, job, result, details): (u32, ObjectPath<'_>, String, Properties<'_>) =
                body.deserialize()?;
            Some(Event::JobRemoved(id, job.as_str().to_owned(), result, facts(&details)))
        }
        "NameOwnerChanged" => {
            let (_, _, new): (String, String, String) = body.deserialize()?;
            Some(Event::Service(!new.is_empty()))
        }
        _ => None,
    })
}

/// Whether one of the interfaces is that which an object of its kind always has.
fn has_its_own<'a>(interfaces: impl IntoIterator<Item = &'a String>) -> bool {
    let own = [names::MANAGER, names::GPU, names::VGPU, names::JOB];
    interfaces.into_iter().any(|name| own.contains(&name.as_str()))
}

fn facts(held: &Properties<'_>) -> Map<String, Value> {
    json::facts(held.iter().map(|(name, held)| (name.as_str(), held)))
}

impl Event {
    fn json(&self) -> Value {
        match self {
            Self::Added(path, interfaces) => {
                json!({ "event": "added", "path": path, "interfaces": interfaces })
            }
            Self::Removed(path) => json!({ "event": "removed", "path": path }),
            Self::Gained(path, interfaces) => {
                json!({ "event": "gained", "path": path, "interfaces": interfaces })
            }
            Self::Lost(path, interfaces) => {
                json!({ "event": "lost", "path": path, "interfaces": interfaces })
            }
            Self::Changed(path, facts) => {
                json!({ "event": "changed", "path": path, "properties": facts })
            }
            Self::JobNew(id, path) => json!({ "event": "job_new", "id": id, "path": path }),
            Self::JobRemoved(id, path, result, details) => {
                json!({ "event": "job_removed", "id": id, "path": path, "result": result, "details": details })
            }
            Self::Service(true) => json!({ "event": "service_started" }),
            Self::Service(false) => json!({ "event": "service_stopped" }),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Added(path, interfaces) => {
                format!("added    {} {}", short(path), all_brief(interfaces)).trim_end().to_owned()
            }
            Self::Removed(path) => format!("removed  {}", short(path)),
            Self::Gained(path, interfaces) => {
                format!("gained   {} {}", short(path), all_brief(interfaces)).trim_end().to_owned()
            }
            Self::Lost(path, interfaces) => {
                let names = interfaces.iter().filter_map(|name| name.rsplit('.').next());
                format!("lost     {} {}", short(path), names.collect::<Vec<_>>().join(" "))
            }
            Self::Changed(path, facts) => format!("changed  {} {}", short(path), words(facts)),
            Self::JobNew(_, path) => format!("started  {}", short(path)),
            Self::JobRemoved(_, path, result, details) => {
                format!("ended    {} {result} {}", short(path), words(details))
                    .trim_end()
                    .to_owned()
            }
            Self::Service(true) => "service  started".to_owned(),
            Self::Service(false) => "service  stopped".to_owned(),
        }
    }
}

/// The path without the part that all have.
fn short(path: &str) -> &str {
    path.strip_prefix(names::ROOT).map_or(path, |rest| rest.trim_start_matches('/'))
}

/// What new interfaces show, without their tables.
fn all_brief(interfaces: &Map<String, Value>) -> String {
    let facts = interfaces.values().filter_map(Value::as_object).map(brief);
    facts.collect::<Vec<_>>().join(" ")
}

/// What an interface shows, without its tables.
fn brief(facts: &Map<String, Value>) -> String {
    let brief = |held: &Value| !held.is_object() && !held.is_array() && !held.is_null();
    words(facts.iter().filter(|(_, held)| brief(held)))
}

fn words<'a>(facts: impl IntoIterator<Item = (&'a String, &'a Value)>) -> String {
    let word = |(name, held): (&String, &Value)| match held {
        Value::String(text) => format!("{name}={text}"),
        Value::Null => format!("{name}="),
        other => format!("{name}={other}"),
    };
    facts.into_iter().map(word).collect::<Vec<_>>().join(" ")
}
