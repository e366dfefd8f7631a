#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use vgpu_host_api::interfaces;
use vgpu_mdev::model::Gpu;

use super::*;
use crate::bus::{
    jobs::Job,
    properties::{Emits, Interface, Shown},
    service::Service,
    vgpu::VgpuObject,
};

#[path = "../../tests/hostd/xml.rs"]
mod xml;

fn contract() -> Vec<xml::Interface> {
    interfaces::ALL.iter().flat_map(|text| xml::parse(text).0).collect()
}

#[test]
fn the_table_has_the_methods_of_the_xml() {
    let written: BTreeSet<_> = contract()
        .into_iter()
        .flat_map(|interface| {
            let name = interface.name.clone();
            interface.methods.into_iter().map(move |(member, types)| (name.clone(), member, types))
        })
        .collect();
    let ours = METHODS.iter().filter(|method| method.interface.starts_with(names::SERVICE));
    let table: BTreeSet<_> = ours
        .map(|method| {
            let types = (method.input.to_owned(), method.output.to_owned());
            (method.interface.to_owned(), method.member.to_owned(), types)
        })
        .collect();
    assert_eq!(table, written);
}

#[test]
fn the_properties_are_those_of_the_xml() {
    let table = [of::<Service>(), of::<Gpu>(), of::<VgpuObject>(), of::<Job>()];
    let table = table.into_iter().flatten().collect();
    let written: BTreeMap<_, _> =
        contract().into_iter().map(|interface| (interface.name, interface.properties)).collect();
    let (table, written) = (flat(table), flat(written));
    assert_eq!(
        missing(&table, &written),
        missing(&written, &table),
        "in the table (left) and in the XML (right) alone"
    );
}

/// Interface, name and facts of each property.
type Entries = Vec<(String, String, xml::Property)>;

fn flat(interfaces: BTreeMap<String, BTreeMap<String, xml::Property>>) -> Entries {
    let of = |(interface, properties): (String, BTreeMap<String, xml::Property>)| {
        properties.into_iter().map(move |(name, facts)| (interface.clone(), name, facts))
    };
    interfaces.into_iter().flat_map(of).collect()
}

/// Those of `ours` that are not in `theirs`.
fn missing<'a>(ours: &'a Entries, theirs: &Entries) -> Vec<&'a (String, String, xml::Property)> {
    ours.iter().filter(|entry| !theirs.contains(entry)).collect()
}

fn of<O: Shown>() -> Vec<(String, BTreeMap<String, xml::Property>)> {
    O::INTERFACES.iter().map(of_interface).collect()
}

fn of_interface<O>(interface: &Interface<O>) -> (String, BTreeMap<String, xml::Property>) {
    let properties = interface.properties.iter().map(|property| {
        let emits = match property.emits {
            Emits::Change => "true",
            Emits::Never => "const",
            Emits::Nothing => "false",
        };
        let written = xml::Property {
            signature: property.signature.into(),
            access: "read".into(),
            emits: emits.into(),
        };
        (property.name.to_owned(), written)
    });
    (interface.name.to_owned(), properties.collect())
}

#[test]
fn every_method_of_ours_has_a_rule() {
    for method in METHODS.iter().filter(|method| method.interface.starts_with(names::SERVICE)) {
        assert!(vgpu_polkit::rule(method.interface, method.member).is_some(), "{method:?}");
    }
}

#[test]
fn the_bus_policy_lets_exactly_these_interfaces_through() {
    let policy = include_str!("../../data/org.vgpu.Host1.conf");
    let allowed = policy.split("send_interface=\"").skip(1);
    let allowed: BTreeSet<_> = allowed.filter_map(|rest| rest.split('"').next()).collect();
    let served: BTreeSet<_> = METHODS.iter().map(|method| method.interface).collect();
    assert_eq!(allowed, served);
}
