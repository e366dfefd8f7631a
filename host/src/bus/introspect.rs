//! `Introspect`: the contract's XML and the children of one level.

use std::{collections::BTreeMap, fmt::Write as _, sync::LazyLock};

use vgpu_host_api::{interfaces, names, path};
use vgpu_mdev::model::Snapshot;
use zbus::Message;

use super::{
    call::Call,
    error::Fault,
    objects::{Node, Object},
    service::Service,
};

/// Up to so many children are listed, since tools ask each of them in turn;
/// more are found with `GetManagedObjects`.
const LISTED: usize = 64;

const HEAD: &str = "<!DOCTYPE node PUBLIC \"-//freedesktop//DTD D-BUS Object Introspection 1.0//EN\"\n\
    \x20 \"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd\">\n<node>\n";

const PEER: &str = r#"  <interface name="org.freedesktop.DBus.Peer">
    <method name="Ping"/>
    <method name="GetMachineId">
      <arg name="machine_uuid" type="s" direction="out"/>
    </method>
  </interface>
  <interface name="org.freedesktop.DBus.Introspectable">
    <method name="Introspect">
      <arg name="xml_data" type="s" direction="out"/>
    </method>
  </interface>
"#;

const PROPERTIES: &str = r#"  <interface name="org.freedesktop.DBus.Properties">
    <method name="Get">
      <arg name="interface_name" type="s" direction="in"/>
      <arg name="property_name" type="s" direction="in"/>
      <arg name="value" type="v" direction="out"/>
    </method>
    <method name="GetAll">
      <arg name="interface_name" type="s" direction="in"/>
      <arg name="props" type="a{sv}" direction="out"/>
    </method>
    <method name="Set">
      <arg name="interface_name" type="s" direction="in"/>
      <arg name="property_name" type="s" direction="in"/>
      <arg name="value" type="v" direction="in"/>
    </method>
    <signal name="PropertiesChanged">
      <arg name="interface_name" type="s"/>
      <arg name="changed_properties" type="a{sv}"/>
      <arg name="invalidated_properties" type="as"/>
    </signal>
  </interface>
"#;

const OBJECT_MANAGER: &str = r#"  <interface name="org.freedesktop.DBus.ObjectManager">
    <method name="GetManagedObjects">
      <arg name="objects" type="a{oa{sa{sv}}}" direction="out"/>
    </method>
    <signal name="InterfacesAdded">
      <arg name="object" type="o"/>
      <arg name="interfaces" type="a{sa{sv}}"/>
    </signal>
    <signal name="InterfacesRemoved">
      <arg name="object" type="o"/>
      <arg name="interfaces" type="as"/>
    </signal>
  </interface>
"#;

/// The contract's interfaces without the comments for people, by name.
static OURS: LazyLock<BTreeMap<&str, String>> =
    LazyLock::new(|| interfaces::ALL.into_iter().map(|file| (name(file), bare(file))).collect());

/// Answers `Introspect`.
pub(crate) fn introspect(
    service: &Service,
    picture: &Snapshot,
    call: &Call,
    object: &Object,
) -> Result<Message, Fault> {
    call.reply(&(xml(service, picture, object),))
}

fn xml(service: &Service, picture: &Snapshot, object: &Object) -> String {
    let mut xml = HEAD.to_owned();
    xml.push_str(PEER);
    let ours = object.own_interfaces(service);
    for text in ours.iter().filter_map(|name| OURS.get(name)) {
        xml.push_str(text);
    }
    if !ours.is_empty() {
        xml.push_str(PROPERTIES);
    }
    match object {
        Object::Manager => {
            xml.push_str(OBJECT_MANAGER);
            let parents = [names::GPUS, names::VGPUS, names::JOBS];
            children(&mut xml, parents.len(), parents.map(str::to_owned));
        }
        Object::Node(Node::Above(child)) => children(&mut xml, 1, [(*child).to_owned()]),
        Object::Node(Node::Gpus) => {
            let gpus = picture.gpus();
            children(
                &mut xml,
                picture.gpu_count(),
                gpus.map(|gpu| path::gpu(&gpu.id.to_string()).to_string()),
            );
        }
        Object::Node(Node::Vgpus) => {
            let vgpus = picture.vgpus();
            children(
                &mut xml,
                picture.vgpu_count(),
                vgpus.map(|vgpu| path::vgpu(&vgpu.uuid.to_string()).to_string()),
            );
        }
        Object::Node(Node::Jobs) => {
            let jobs = service.jobs.all();
            children(&mut xml, jobs.len(), jobs.iter().map(|job| job.path().to_string()));
        }
        Object::Gpu(_) | Object::Vgpu(_) | Object::Job(_) => {}
    }
    xml.push_str("</node>\n");
    xml
}

/// Lists the last elements of the children's paths, unless there are too many.
fn children(xml: &mut String, count: usize, paths: impl IntoIterator<Item = String>) {
    if count > LISTED {
        let _ = writeln!(
            xml,
            "  <!-- {count} objects: GetManagedObjects of {} lists them -->",
            names::ROOT
        );
        return;
    }
    for path in paths {
        let element = path.rsplit('/').next().unwrap_or_default();
        let _ = writeln!(xml, "  <node name=\"{element}\"/>");
    }
}

/// The name of the interface of a contract file.
fn name(file: &str) -> &str {
    let rest = file.split_once("<interface name=\"").map_or("", |(_, rest)| rest);
    rest.split('"').next().unwrap_or_default()
}

/// The interface of a contract file, without comments.
fn bare(file: &str) -> String {
    let start = file.find("<interface").unwrap_or_default();
    let end = file.rfind("</node>").unwrap_or(file.len());
    let mut rest = file.get(start..end).unwrap_or_default();
    let mut bare = String::from("  ");
    while let Some((before, comment)) = rest.split_once("<!--") {
        bare.push_str(before.trim_end_matches(' '));
        rest = comment.split_once("-->").map_or("", |(_, after)| after.trim_start_matches('\n'));
    }
    bare.push_str(rest);
    bare
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_contract_loses_its_comments_alone() {
        for file in interfaces::ALL {
            let bare = bare(file);
            assert!(!bare.contains("--"), "{bare}");
            assert!(
                bare.starts_with("  <interface name=") && bare.ends_with("  </interface>\n"),
                "{bare}"
            );
            for element in ["<method ", "<property ", "<signal ", "<arg ", "<annotation "] {
                assert_eq!(
                    bare.matches(element).count(),
                    file.matches(element).count(),
                    "{element}"
                );
            }
        }
    }

    #[test]
    fn each_file_is_found_by_its_interface() {
        let known = [
            names::MANAGER,
            names::GPU,
            names::MIG,
            names::HETEROGENEOUS,
            names::VGPU,
            names::NVIDIA_VGPU,
            names::JOB,
        ];
        assert!(
            OURS.keys().collect::<BTreeSet<_>>() == known.iter().collect(),
            "{:?}",
            OURS.keys()
        );
    }

    #[test]
    fn hundreds_of_children_are_not_listed() {
        let mut xml = String::new();
        children(&mut xml, 2, ["/a/b".to_owned(), "/a/c".to_owned()]);
        assert_eq!(xml, "  <node name=\"b\"/>\n  <node name=\"c\"/>\n");
        xml.clear();
        children(&mut xml, 65, (0..65).map(|n| n.to_string()));
        assert_eq!(xml, "  <!-- 65 objects: GetManagedObjects of /org/vgpu/Host1 lists them -->\n");
    }
}
