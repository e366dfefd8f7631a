//! The contract's XML as data.

use std::collections::BTreeMap;

use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};

/// An interface of an XML file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// By name: the types of arguments and results.
    pub(crate) methods: BTreeMap<String, (String, String)>,
    /// By name: the types of what they carry.
    pub(crate) signals: BTreeMap<String, String>,
    /// By name.
    pub(crate) properties: BTreeMap<String, Property>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Property {
    pub(crate) signature: String,
    pub(crate) access: String,
    /// `true`, `const` or `false`.
    pub(crate) emits: String,
}

/// The interfaces and the names of the children in an XML text.
pub(crate) fn parse(text: &str) -> (Vec<Interface>, Vec<String>) {
    let mut reader = Reader::from_str(text);
    let (mut interfaces, mut children) = (Vec::<Interface>::new(), Vec::new());
    let mut member = (String::new(), String::new());
    loop {
        match reader.read_event().expect("well-formed XML") {
            Event::Eof => return (interfaces, children),
            Event::Start(element) | Event::Empty(element) => {
                let kind = element.name().as_ref().to_owned();
                let name = attribute(&element, "name").unwrap_or_default();
                match kind.as_str() {
                    "node" if !name.is_empty() => children.push(name),
                    "node" => {}
                    "interface" => interfaces.push(Interface { name, ..Interface::default() }),
                    _ => {
                        let interface = interfaces.last_mut().expect("inside an interface");
                        take(interface, &mut member, &kind, name, &element);
                    }
                }
            }
            _ => {}
        }
    }
}

fn take(
    interface: &mut Interface,
    member: &mut (String, String),
    kind: &str,
    name: String,
    element: &BytesStart<'_>,
) {
    let text = |name| attribute(element, name).unwrap_or_default();
    match (kind, member.0.as_str()) {
        ("method", _) => {
            interface.methods.insert(name.clone(), Default::default());
            *member = (kind.into(), name);
        }
        ("signal", _) => {
            interface.signals.insert(name.clone(), String::new());
            *member = (kind.into(), name);
        }
        ("property", _) => {
            let property =
                Property { signature: text("type"), access: text("access"), emits: "true".into() };
            interface.properties.insert(name.clone(), property);
            *member = (kind.into(), name);
        }
        ("arg", "method") => {
            let method = interface.methods.get_mut(&member.1).unwrap();
            let types = if text("direction") == "out" { &mut method.1 } else { &mut method.0 };
            types.push_str(&text("type"));
        }
        ("arg", "signal") => interface.signals.get_mut(&member.1).unwrap().push_str(&text("type")),
        ("annotation", "property") => {
            assert_eq!(name, "org.freedesktop.DBus.Property.EmitsChangedSignal");
            interface.properties.get_mut(&member.1).unwrap().emits = text("value");
        }
        other => panic!("unexpected in the XML: {other:?}"),
    }
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = element.attributes().map(Result::unwrap).find(|a| a.key.as_ref() == name)?;
    Some(found.value.into())
}
