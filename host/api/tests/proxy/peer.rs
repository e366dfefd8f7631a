//! A peer made from one interface's XML.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsFd,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex},
};

use futures_util::StreamExt;
use quick_xml::{Reader, events::Event};
use zbus::{
    Array, Connection, Dict, Message, MessageStream, ObjectPath, Signature, Structure, Variant,
    connection::Builder, message::Type as Kind, wire::StructureBuilder,
};

/// What the XML says of one interface.
#[derive(Default)]
struct Contract {
    interface: String,
    /// Method to its arguments' types, in and out.
    methods: BTreeMap<String, (Vec<Signature>, Vec<Signature>)>,
    signals: BTreeMap<String, Vec<Signature>>,
    properties: BTreeMap<String, Signature>,
}

impl Contract {
    fn parse(xml: &str) -> Self {
        let mut contract = Self::default();
        let mut member = String::new();
        let mut reader = Reader::from_str(xml);
        loop {
            let (Event::Start(tag) | Event::Empty(tag)) = (match reader.read_event().unwrap() {
                Event::Eof => return contract,
                event => event,
            }) else {
                continue;
            };
            let attribute = |name: &str| {
                let found = tag.try_get_attribute(name).unwrap();
                found.map(|found| found.value.into_owned())
            };
            let name = attribute("name").unwrap_or_default();
            let signature = || Signature::try_from(attribute("type").unwrap().as_str()).unwrap();
            match tag.name().as_ref() {
                "interface" => contract.interface = name,
                "method" => {
                    contract.methods.insert(name.clone(), Default::default());
                    member = name;
                }
                "signal" => {
                    contract.signals.insert(name.clone(), Vec::new());
                    member = name;
                }
                "property" => {
                    contract.properties.insert(name, signature());
                }
                "arg" => match (contract.methods.get_mut(&member), attribute("direction")) {
                    (Some((_, outs)), Some(direction)) if direction == "out" => {
                        outs.push(signature())
                    }
                    (Some((ins, _)), _) => ins.push(signature()),
                    (None, _) => contract.signals.get_mut(&member).unwrap().push(signature()),
                },
                _ => {}
            }
        }
    }
}

/// The other end of a proxy.
pub(crate) struct Peer {
    contract: Arc<Contract>,
    used: Arc<Mutex<BTreeSet<String>>>,
    server: Connection,
}

/// A peer that answers as `xml` says, and a connection to it.
pub(crate) async fn connect(xml: &str) -> (Peer, Connection) {
    let contract = Arc::new(Contract::parse(xml));
    let used = Arc::new(Mutex::new(BTreeSet::new()));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = Builder::unix_stream(ours).server(zbus::Guid::generate()).p2p().build();
    let client = Builder::unix_stream(theirs).p2p().build();
    let (server, client) = futures_util::future::try_join(server, client).await.unwrap();
    let calls = MessageStream::from(&server);
    tokio::spawn(answer(server.clone(), calls, contract.clone(), used.clone()));
    (Peer { contract, used, server }, client)
}

impl Peer {
    /// Emits each signal of the XML, with values of its types.
    pub(crate) async fn emit_signals(&self, path: &str) {
        for (name, arguments) in &self.contract.signals {
            let interface = self.contract.interface.as_str();
            let signal = Message::signal(path, interface, name.as_str());
            self.server.send(&with_body(signal, arguments)).await.unwrap();
        }
    }

    /// Checks that each method and property of the XML was called, and that the
    /// signals are the XML's.
    pub(crate) fn assert_all_was_used(&self, signals: &[&str]) {
        let methods = self.contract.methods.keys();
        let all: BTreeSet<String> =
            methods.chain(self.contract.properties.keys()).cloned().collect();
        assert!(!all.is_empty());
        assert_eq!(*self.used.lock().unwrap(), all);
        assert!(self.contract.signals.keys().eq(signals), "signals differ");
    }
}

async fn answer(
    server: Connection,
    mut calls: MessageStream,
    contract: Arc<Contract>,
    used: Arc<Mutex<BTreeSet<String>>>,
) {
    while let Some(Ok(call)) = calls.next().await {
        if call.message_type() != Kind::MethodCall {
            continue;
        }
        let reply = match reply_to(&call, &contract) {
            Ok((member, reply)) => {
                used.lock().unwrap().insert(member);
                reply
            }
            Err(why) => {
                let error = "org.freedesktop.DBus.Error.UnknownMethod";
                Message::error(&call.header(), error).build(&why).unwrap()
            }
        };
        server.send(&reply).await.unwrap();
    }
}

/// The member that was used and the reply, or why there is none.
fn reply_to(call: &Message, contract: &Contract) -> Result<(String, Message), String> {
    let header = call.header();
    let reply = Message::method_return(&header);
    let member = header.member().unwrap().to_string();
    let interface = header.interface().unwrap().as_str();
    if interface == "org.freedesktop.DBus.Properties" {
        let body = call.body();
        let (of, name): (String, String) = body.deserialize().map_err(|error| error.to_string())?;
        let signature = contract.properties.get(&name).filter(|_| of == contract.interface);
        let signature = signature.ok_or_else(|| format!("no property {of}.{name}"))?;
        return Ok((name, reply.build(&value(signature)).unwrap()));
    }
    let arguments = contract.methods.get(&member).filter(|_| interface == contract.interface);
    let (ins, outs) = arguments.ok_or_else(|| format!("no method {interface}.{member}"))?;
    let (sent, wanted) = (header.signature().to_string_no_parens(), concat(ins));
    if sent != wanted {
        return Err(format!("{member} was called with {sent:?}, the XML has {wanted:?}"));
    }
    Ok((member, with_body(reply, outs)))
}

fn concat(signatures: &[Signature]) -> String {
    signatures.iter().map(ToString::to_string).collect()
}

fn with_body(message: zbus::message::Builder<'_>, arguments: &[Signature]) -> Message {
    if arguments.is_empty() {
        return message.build(&()).unwrap();
    }
    message.build(&structure(arguments.iter())).unwrap()
}

fn structure<'a>(fields: impl Iterator<Item = &'a Signature>) -> Structure<'static> {
    let mut builder = StructureBuilder::new();
    for field in fields {
        builder.push_value(value(field));
    }
    builder.build().unwrap()
}

/// Some value of that type; containers hold one element.
fn value(signature: &Signature) -> Variant<'static> {
    match signature {
        Signature::Bool => true.into(),
        Signature::I32 => 1_i32.into(),
        Signature::U32 => 1_u32.into(),
        Signature::U64 => 1_u64.into(),
        Signature::F64 => 0.5_f64.into(),
        Signature::Str => "text".into(),
        Signature::ObjectPath => ObjectPath::try_from("/a/path").unwrap().into(),
        Signature::Variant => Variant::Variant(Box::new(1_u32.into())),
        Signature::Fd => {
            Variant::Fd(zbus::Fd::Owned(std::io::stderr().as_fd().try_clone_to_owned().unwrap()))
        }
        Signature::Array(child) => {
            let mut array = Array::new(child.signature());
            array.append(value(child.signature())).unwrap();
            array.into()
        }
        Signature::Dict { key, value: child } => {
            let mut dict = Dict::new(key.signature(), child.signature());
            dict.append(value(key.signature()), value(child.signature())).unwrap();
            dict.into()
        }
        Signature::Structure(fields) => structure(fields.iter()).into(),
        other => panic!("the contract has no values of type {other}"),
    }
}
