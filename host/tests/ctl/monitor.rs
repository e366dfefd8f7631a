//! What monitor prints.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use serde_json::{Value, json};
use zbus::{Message, Variant};

use crate::{
    fake::{Fake, GPU, JOB, UUID, VGPU, job_removed, path, reply},
    vgpuctl,
};

const MANAGER: &str = "org.freedesktop.DBus.ObjectManager";

fn version() -> crate::fake::Answer {
    Box::new(|call| vec![reply(call, &Variant::from("0.1.0"))])
}

/// A monitor that watches already.
pub(crate) fn start(
    address: &str,
    arguments: &[&str],
) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut command = vgpuctl(address, arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "watching vgpu-hostd 0.1.0; Ctrl-C ends it\n");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    (child, lines)
}

fn emit_all(fake: &Fake) {
    let facts = HashMap::from([
        ("Uuid", Variant::from(UUID)),
        ("Nodes", Variant::new(vec![("group", "/dev/vfio/7")])),
    ]);
    let none: HashMap<&str, Variant<'_>> = HashMap::new();
    let interfaces =
        HashMap::from([("org.vgpu.Host1.Vgpu", facts), ("org.freedesktop.DBus.Peer", none)]);
    let added = Message::signal("/org/vgpu/Host1", MANAGER, "InterfacesAdded");
    fake.emit(added.build(&(path(VGPU), interfaces)).unwrap());
    let changed = Message::signal(VGPU, "org.freedesktop.DBus.Properties", "PropertiesChanged");
    let facts = HashMap::from([("IommuGroup", Variant::from(-1_i32))]);
    fake.emit(changed.build(&("org.vgpu.Host1.Vgpu", facts, Vec::<String>::new())).unwrap());
    let removed = Message::signal("/org/vgpu/Host1", MANAGER, "InterfacesRemoved");
    fake.emit(removed.build(&(path(VGPU), vec!["org.vgpu.Host1.Vgpu"])).unwrap());
    let new = Message::signal("/org/vgpu/Host1", "org.vgpu.Host1.Manager", "JobNew");
    fake.emit(new.build(&(1_u32, path(JOB))).unwrap());
    let details = HashMap::from([("Error", Variant::from("org.vgpu.Host1.Error.Busy"))]);
    fake.emit(job_removed("failed", &details));
}

#[test]
fn monitor_prints_one_object_a_line() {
    let fake = Fake::start(vec![("Get", version())]);
    let (mut child, lines) = start(&fake.bus.address, &["monitor", "--json"]);
    emit_all(&fake);
    let events: Vec<Value> =
        lines.take(5).map(|line| serde_json::from_str(&line).unwrap()).collect();
    let facts = json!({ "uuid": UUID, "nodes": [["group", "/dev/vfio/7"]] });
    assert_eq!(
        events,
        [
            json!({ "event": "added", "path": VGPU, "interfaces": { "org.vgpu.Host1.Vgpu": facts } }),
            json!({ "event": "changed", "path": VGPU, "properties": { "iommu_group": null } }),
            json!({ "event": "removed", "path": VGPU }),
            json!({ "event": "job_new", "id": 1, "path": JOB }),
            json!({
                "event": "job_removed", "id": 1, "path": JOB, "result": "failed",
                "details": { "error": "org.vgpu.Host1.Error.Busy" },
            }),
        ]
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_object_that_gains_an_interface_is_no_new_one() {
    let emit = |fake: &Fake| {
        let facts = HashMap::from([("Current", Variant::from(false))]);
        let interfaces = HashMap::from([("org.vgpu.Host1.Mig1", facts)]);
        let added = Message::signal("/org/vgpu/Host1", MANAGER, "InterfacesAdded");
        fake.emit(added.build(&(path(GPU), interfaces)).unwrap());
        let removed = Message::signal("/org/vgpu/Host1", MANAGER, "InterfacesRemoved");
        fake.emit(removed.build(&(path(GPU), vec!["org.vgpu.Host1.Mig1"])).unwrap());
    };
    let fake = Fake::start(vec![("Get", version())]);
    let (mut as_json, json_lines) = start(&fake.bus.address, &["monitor", "--json"]);
    let (mut as_text, lines) = start(&fake.bus.address, &["monitor"]);
    emit(&fake);
    let events: Vec<Value> =
        json_lines.take(2).map(|line| serde_json::from_str(&line).unwrap()).collect();
    let facts = json!({ "org.vgpu.Host1.Mig1": { "current": false } });
    assert_eq!(
        events,
        [
            json!({ "event": "gained", "path": GPU, "interfaces": facts }),
            json!({ "event": "lost", "path": GPU, "interfaces": ["org.vgpu.Host1.Mig1"] }),
        ]
    );
    let gpu = GPU.trim_start_matches("/org/vgpu/Host1/");
    let wanted = [format!("gained   {gpu} current=false"), format!("lost     {gpu} Mig1")];
    assert_eq!(lines.take(2).collect::<Vec<_>>(), wanted);
    for child in [&mut as_json, &mut as_text] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn monitor_tells_of_the_service_and_ends_with_the_bus() {
    let fake = Fake::start(vec![("Get", version())]);
    let (child, mut lines) = start(&fake.bus.address, &["monitor"]);
    emit_all(&fake);
    let vgpu = VGPU.trim_start_matches("/org/vgpu/Host1/");
    let wanted = [
        format!("added    {vgpu} uuid={UUID}"),
        format!("changed  {vgpu} iommu_group="),
        format!("removed  {vgpu}"),
        "started  jobs/1".to_owned(),
        "ended    jobs/1 failed error=org.vgpu.Host1.Error.Busy".to_owned(),
    ];
    for line in wanted {
        assert_eq!(lines.next().unwrap(), line);
    }
    let bus = fake.bus.clone();
    drop(fake);
    assert_eq!(lines.next().unwrap(), "service  stopped");
    drop(bus);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
}
