//! The table, the contract's XML and the policy file say the same.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;

use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use vgpu_polkit::{Action, TABLE};

const INTERFACES: [&str; 7] = [
    include_str!("../../host/api/interfaces/org.vgpu.Host1.Manager.xml"),
    include_str!("../../host/api/interfaces/org.vgpu.Host1.Gpu.xml"),
    include_str!("../../host/api/interfaces/org.vgpu.Host1.Mig1.xml"),
    include_str!("../../host/api/interfaces/org.vgpu.Host1.Heterogeneous1.xml"),
    include_str!("../../host/api/interfaces/org.vgpu.Host1.Vgpu.xml"),
    include_str!("../../host/api/interfaces/org.vgpu.Host1.NvidiaVgpu1.xml"),
    include_str!("../../host/api/interfaces/org.vgpu.Host1.Job.xml"),
];
const POLICY: &str = include_str!("../org.vgpu.host1.policy");
const EXAMPLE: &str = include_str!("../50-vgpu-host.rules.example");

fn elements(xml: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut reader = Reader::from_str(xml);
    let mut found = Vec::new();
    loop {
        match reader.read_event().expect("well-formed XML") {
            Event::Start(element) | Event::Empty(element) => found.push(read(&element)),
            Event::Eof => return found,
            _ => {}
        }
    }
}

fn read(element: &BytesStart<'_>) -> (String, Vec<(String, String)>) {
    let attributes = element.attributes().map(Result::unwrap);
    let attributes = attributes.map(|a| (a.key.as_ref().into(), a.value.into())).collect();
    (element.name().as_ref().into(), attributes)
}

fn attribute(attributes: &[(String, String)], name: &str) -> String {
    attributes.iter().find(|(key, _)| key == name).expect("the attribute").1.clone()
}

#[test]
fn every_method_has_a_rule_and_every_rule_a_method() {
    let mut methods = BTreeSet::new();
    for xml in INTERFACES {
        let mut interface = String::new();
        for (element, attributes) in elements(xml) {
            match element.as_str() {
                "interface" => interface = attribute(&attributes, "name"),
                "method" => {
                    methods.insert((interface.clone(), attribute(&attributes, "name")));
                }
                _ => {}
            }
        }
    }
    let table: BTreeSet<_> =
        TABLE.iter().map(|(i, m, _)| ((*i).to_owned(), (*m).to_owned())).collect();
    assert_eq!(table, methods);
    assert_eq!(table.len(), TABLE.len(), "a method stands twice in the table");
}

#[test]
fn the_policy_declares_exactly_the_actions() {
    let declared: Vec<String> = elements(POLICY)
        .into_iter()
        .filter(|(element, _)| element == "action")
        .map(|(_, attributes)| attribute(&attributes, "id"))
        .collect();
    let actions: Vec<String> = Action::ALL.iter().map(|action| action.id().to_owned()).collect();
    assert_eq!(declared, actions);
}

#[test]
fn nothing_is_allowed_unasked() {
    for default in ["<allow_any>no<", "<allow_inactive>no<", "<allow_active>auth_admin_keep<"] {
        assert_eq!(POLICY.matches(default).count(), Action::ALL.len(), "{default}");
    }
    assert_eq!(POLICY.matches("<allow_").count(), 3 * Action::ALL.len());
}

#[test]
fn the_example_names_real_actions() {
    let named: Vec<&str> =
        EXAMPLE.split('"').filter(|text| text.starts_with("org.vgpu.host1.")).collect();
    assert_eq!(named, [Action::Create.id(), Action::Remove.id(), Action::OpenDevice.id()]);
}
