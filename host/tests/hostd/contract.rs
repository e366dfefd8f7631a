//! The running daemon against the XML of the contract.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vgpu_host_api::interfaces;
use zbus::{Connection, OwnedObjectPath, OwnedVariant};

use crate::{
    bus::{Bus, GPU, MANAGER, Options, ROOT, VGPU, call, create, options, property},
    daemon::Daemon,
    xml::{self, Interface},
};

const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const INTROSPECTABLE: &str = "org.freedesktop.DBus.Introspectable";
const OBJECT_MANAGER: &str = "org.freedesktop.DBus.ObjectManager";
const PEER: &str = "org.freedesktop.DBus.Peer";

pub(crate) fn contract(name: &str) -> Interface {
    let all = interfaces::ALL.iter().flat_map(|text| xml::parse(text).0);
    all.into_iter().find(|interface| interface.name == name).expect("in the contract")
}

pub(crate) async fn introspect(
    connection: &Connection,
    path: &str,
) -> (Vec<Interface>, Vec<String>) {
    let reply = call(connection, path, INTROSPECTABLE, "Introspect", &()).await.unwrap();
    xml::parse(&reply.body().deserialize::<String>().unwrap())
}

/// One object of each interface that lives without a job.
async fn objects(connection: &Connection) -> [(String, &'static str); 4] {
    let vgpu = create(connection, "mtty-1", Options::new()).await;
    [
        (ROOT.into(), MANAGER),
        ("/org/vgpu/Host1/gpus/pci_0000_41_00_0".into(), GPU),
        ("/org/vgpu/Host1/gpus/mdev_mtty".into(), GPU),
        (vgpu, VGPU),
    ]
}

#[tokio::test]
async fn introspection_is_the_contract() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    for (path, name) in objects(&connection).await {
        let (found, _) = introspect(&connection, &path).await;
        let names: BTreeSet<_> = found.iter().map(|interface| interface.name.as_str()).collect();
        let mut expected = BTreeSet::from([name, PEER, INTROSPECTABLE, PROPERTIES]);
        if name == MANAGER {
            expected.insert(OBJECT_MANAGER);
        }
        assert_eq!(names, expected, "{path}");
        let own = found.into_iter().find(|interface| interface.name == name).unwrap();
        assert_eq!(own, contract(name), "{path}");
    }
}

#[tokio::test]
async fn properties_are_those_of_the_contract() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    for (path, name) in objects(&connection).await {
        let reply = call(&connection, &path, PROPERTIES, "GetAll", &(name,)).await.unwrap();
        let all: BTreeMap<String, OwnedVariant> = reply.body().deserialize().unwrap();
        let types: BTreeMap<_, _> = all
            .iter()
            .map(|(key, value)| (key.clone(), value.value_signature().to_string()))
            .collect();
        let expected: BTreeMap<_, _> =
            contract(name).properties.into_iter().map(|(key, p)| (key, p.signature)).collect();
        assert_eq!(types, expected, "{path}");
        for (key, value) in &all {
            let reply = call(&connection, &path, PROPERTIES, "Get", &(name, key)).await.unwrap();
            assert_eq!(&reply.body().deserialize::<OwnedVariant>().unwrap(), value, "{path} {key}");
            let set = call(&connection, &path, PROPERTIES, "Set", &(name, key, value)).await;
            assert_eq!(
                set.unwrap_err().name,
                "org.freedesktop.DBus.Error.PropertyReadOnly",
                "{path} {key}"
            );
        }
    }
}

#[tokio::test]
async fn managed_objects_are_what_is_there() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    let vgpu = create(&connection, "t4-1q", Options::new()).await;
    let reply = call(&connection, ROOT, OBJECT_MANAGER, "GetManagedObjects", &()).await.unwrap();
    type Interfaces = BTreeMap<String, BTreeMap<String, OwnedVariant>>;
    let objects: HashMap<OwnedObjectPath, Interfaces> = reply.body().deserialize().unwrap();
    let gpus = objects.keys().filter(|path| path.starts_with("/org/vgpu/Host1/gpus/")).count();
    assert_eq!((gpus, objects.len()), (7, 8));
    for (path, interfaces) in &objects {
        // The vGPU is NVIDIA's, which tells more of it.
        assert_eq!(interfaces.len(), if path.as_str() == vgpu { 2 } else { 1 }, "{path}");
        for (name, listed) in interfaces {
            let reply =
                call(&connection, path.as_str(), PROPERTIES, "GetAll", &(name,)).await.unwrap();
            let all: BTreeMap<String, OwnedVariant> = reply.body().deserialize().unwrap();
            assert_eq!(listed, &all, "{path}");
        }
    }
    assert!(objects.keys().any(|path| path.as_str() == vgpu));
}

#[tokio::test]
async fn wrong_arguments_are_told_from_unknown_methods() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    for (path, name) in objects(&connection).await {
        for (member, (input, _)) in contract(name).methods {
            // No method of ours takes these.
            let failed = call(&connection, &path, name, &member, &(1u8, 2.0f64)).await.unwrap_err();
            assert_eq!(failed.name, "org.freedesktop.DBus.Error.InvalidArgs", "{name}.{member}");
            let expected =
                format!("{name}.{member} takes arguments of the types \"{input}\", not \"yd\"");
            assert_eq!(failed.text, expected);
        }
        let failed = call(&connection, &path, name, "Format", &()).await.unwrap_err();
        assert_eq!(failed.name, "org.freedesktop.DBus.Error.UnknownMethod");
        let failed = call(&connection, &path, PROPERTIES, "Get", &(name, "Colour")).await;
        assert_eq!(failed.unwrap_err().name, "org.freedesktop.DBus.Error.UnknownProperty");
        let failed = call(&connection, &path, PROPERTIES, "GetAll", &("org.example.X",)).await;
        assert_eq!(failed.unwrap_err().name, "org.freedesktop.DBus.Error.UnknownInterface");
    }
    let failed = call(&connection, ROOT, GPU, "Explain", &("x",)).await.unwrap_err();
    assert_eq!(failed.name, "org.freedesktop.DBus.Error.UnknownInterface");
    for path in ["/org/vgpu/Host2", "/org/vgpu/Host1/vgpus/x", "/org/vgpu/Host1/gpus/mdev_none"] {
        let failed = call(&connection, path, MANAGER, "ListGpus", &()).await.unwrap_err();
        assert_eq!(failed.name, "org.freedesktop.DBus.Error.UnknownObject", "{path}");
    }
}

/// Every method with arguments that it takes: its reply has the types of the
/// contract.
#[tokio::test]
async fn replies_have_the_types_of_the_contract() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    let [_, (sriov, _), (mtty, _), (vgpu, _)] = objects(&connection).await;
    let none = Options::new;
    let uuid: String = property(&connection, &vgpu, VGPU, "Uuid").await;
    let mut answered = BTreeSet::new();
    macro_rules! check {
        ($path:expr, $interface:expr, $member:expr, $body:expr) => {
            let reply = call(&connection, $path, $interface, $member, $body).await;
            let reply = reply.unwrap_or_else(|failed| panic!("{}: {failed:?}", $member));
            let expected = &contract($interface).methods[$member].1;
            assert_eq!(&reply.body().signature().to_string_no_parens(), expected, "{}", $member);
            answered.insert(($interface, $member));
        };
    }
    check!(ROOT, MANAGER, "CreateVgpu", &("mtty-1", none()));
    check!(ROOT, MANAGER, "GetGpu", &("mtty",));
    check!(ROOT, MANAGER, "GetVgpu", &(uuid.as_str(),));
    check!(ROOT, MANAGER, "ListGpus", &());
    check!(ROOT, MANAGER, "ListProfiles", &(none(),));
    check!(ROOT, MANAGER, "ListVgpus", &(none(),));
    check!(ROOT, MANAGER, "PlanVgpus", &(vec![("mtty-1", 2u32)], none()));
    check!(ROOT, MANAGER, "Rescan", &());
    check!(&mtty, GPU, "Explain", &("mtty-1",));
    check!(&sriov, GPU, "SetVfCount", &(2u32, none()));
    let vfs = || options([("vfs", 1u32.into())]);
    check!(&sriov, GPU, "PlanConfiguration", &(vfs(),));
    check!(&sriov, GPU, "Configure", &(vfs(),));
    check!(&vgpu, VGPU, "Probe", &());
    check!(&vgpu, VGPU, "OpenDevice", &(none(),));
    check!(&vgpu, VGPU, "GetHolders", &());
    check!(&vgpu, VGPU, "Remove", &(none(),));
    let all = [MANAGER, GPU, VGPU].into_iter().flat_map(|name| {
        let methods = contract(name).methods.into_keys();
        methods.map(move |member| (name, member)).collect::<Vec<_>>()
    });
    let left: Vec<_> = all.filter(|(n, m)| !answered.contains(&(*n, m.as_str()))).collect();
    // It needs a process that holds one: see the tests of lifecycle.
    assert_eq!(left, [(MANAGER, "GetVgpuByPid".to_owned())]);
}

#[tokio::test]
async fn the_standard_interfaces_answer() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    for path in [ROOT, "/", "/org/vgpu", "/nowhere"] {
        call(&connection, path, PEER, "Ping", &()).await.unwrap();
    }
    let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    match call(&connection, "/", PEER, "GetMachineId", &()).await {
        Ok(reply) => assert_eq!(reply.body().deserialize::<String>().unwrap(), id.trim()),
        Err(failed) => assert!(id.trim().is_empty(), "{failed:?}"),
    }
    assert_eq!(children(&connection, "/").await, ["org"]);
    assert_eq!(children(&connection, "/org").await, ["vgpu"]);
    assert_eq!(children(&connection, "/org/vgpu").await, ["Host1"]);
    assert_eq!(children(&connection, ROOT).await, ["gpus", "vgpus", "jobs"]);
    assert_eq!(children(&connection, "/org/vgpu/Host1/gpus").await.len(), 7);
    assert!(children(&connection, "/org/vgpu/Host1/jobs").await.is_empty());
}

async fn children(connection: &Connection, path: &str) -> Vec<String> {
    introspect(connection, path).await.1
}

/// A method may be called without its interface's name (D-Bus specification,
/// "Method Calls").
#[tokio::test]
async fn the_interface_may_be_left_out() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    let message = zbus::Message::method_call(ROOT, "GetGpu")
        .destination("org.vgpu.Host1")
        .build(&("mtty",))
        .unwrap();
    // As root, whom the bus policy does not bind to interfaces.
    let reply = crate::bus::send(&connection, &message).await.unwrap();
    let path: OwnedObjectPath = reply.body().deserialize().unwrap();
    assert_eq!(path.as_str(), "/org/vgpu/Host1/gpus/mdev_mtty");
}

#[tokio::test]
async fn filters_filter() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    create(&connection, "mtty-1", options([("owner-uid", 1000u32.into())])).await;
    create(&connection, "t4-1q", Options::new()).await;
    let list = async |filter: Options| {
        let reply = call(&connection, ROOT, MANAGER, "ListVgpus", &(filter,)).await.unwrap();
        type Row = (String, String, String, String, String, u32, u32);
        let rows: Vec<Row> = reply.body().deserialize().unwrap();
        rows.into_iter().map(|row| row.2).collect::<BTreeSet<_>>()
    };
    let both = BTreeSet::from(["mtty-1".to_owned(), "t4-1q".to_owned()]);
    assert_eq!(list(Options::new()).await, both);
    assert_eq!(list(options([("managed", true.into())])).await, both);
    assert!(list(options([("managed", false.into())])).await.is_empty());
    let mtty = BTreeSet::from(["mtty-1".to_owned()]);
    assert_eq!(list(options([("owner-uid", 1000u32.into())])).await, mtty);
    assert_eq!(list(options([("gpu", "mtty".into())])).await, mtty);
    let filter = (options([("gpu", "41:00.0".into())]),);
    let reply = call(&connection, ROOT, MANAGER, "ListProfiles", &filter).await.unwrap();
    type Profile = (String, String, String, String, String, u64, u32, u32, String);
    let rows: Vec<Profile> = reply.body().deserialize().unwrap();
    let row = ("0000:41:00.0", "flex-140-vf", 31, "no-functions-enabled");
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].0.as_str(), rows[0].3.as_str(), rows[0].6, rows[0].8.as_str()), row);
}
