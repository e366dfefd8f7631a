//! Making, using and removing vGPUs of each framework over the bus.

use std::{collections::HashMap, os::fd::AsRawFd as _};

use vgpu_mdev::sys::{
    NodePath,
    sim::{Calls, FaultOn},
};
use zbus::{OwnedFd, OwnedObjectPath, OwnedVariant};

use crate::{
    bus::{Bus, GPU, MANAGER, Options, ROOT, VGPU, call, create, options, property, remove},
    served::Served,
};

#[tokio::test]
async fn an_mdev_comes_and_goes() {
    let bus = Bus::start();
    let _served = Served::start(&bus);
    let connection = bus.connect().await;
    let uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";
    let asked = || options([("uuid", uuid.into()), ("name", "guest-1".into())]);
    let vgpu = create(&connection, "GRID T4-2Q", asked()).await;
    assert_eq!(vgpu, "/org/vgpu/Host1/vgpus/83b8f4f2_509f_382f_3c1e_e6bfe0fa1001");
    assert_eq!(property::<String>(&connection, &vgpu, VGPU, "Name").await, "guest-1");
    assert_eq!(property::<String>(&connection, &vgpu, VGPU, "Profile").await, "nvidia-231");
    assert_eq!(property::<String>(&connection, &vgpu, VGPU, "State").await, "active");
    for name in [uuid, "guest-1"] {
        let reply = call(&connection, ROOT, MANAGER, "GetVgpu", &(name,)).await.unwrap();
        assert_eq!(reply.body().deserialize::<OwnedObjectPath>().unwrap().as_str(), vgpu);
    }
    // Again, by another name of the same profile, is no error.
    let again = call(&connection, ROOT, MANAGER, "CreateVgpu", &("t4-2q", asked())).await.unwrap();
    let (path, created, _): (OwnedObjectPath, bool, OwnedObjectPath) =
        again.body().deserialize().unwrap();
    assert_eq!((path.as_str(), created), (vgpu.as_str(), false));
    // Another profile under that UUID is.
    let other = call(&connection, ROOT, MANAGER, "CreateVgpu", &("t4-1q", asked())).await;
    assert_eq!(other.unwrap_err().name, "org.vgpu.Host1.Error.BadState");
    remove(&connection, &vgpu).await;
    let gone = call(&connection, &vgpu, VGPU, "Probe", &()).await.unwrap_err();
    assert_eq!(gone.name, "org.freedesktop.DBus.Error.UnknownObject");
}

#[tokio::test]
async fn a_function_comes_and_goes() {
    let bus = Bus::start();
    let _served = Served::start(&bus);
    let connection = bus.connect().await;
    let gpu = "/org/vgpu/Host1/gpus/pci_0000_41_00_0";
    let full =
        call(&connection, ROOT, MANAGER, "CreateVgpu", &("flex-140-vf", Options::new())).await;
    let full = full.unwrap_err();
    assert_eq!(full.name, "org.vgpu.Host1.Error.NoCapacity");
    assert_eq!(full.detail("Code").as_deref(), Some("no-functions-enabled"));

    let body = (2u32, Options::new());
    call(&connection, gpu, GPU, "SetVfCount", &body).await.unwrap();
    assert_eq!(property::<u32>(&connection, gpu, GPU, "VfCount").await, 2);
    let vgpu = create(&connection, "flex-140-vf", Options::new()).await;
    let addresses: Vec<String> = property(&connection, &vgpu, VGPU, "Address").await;
    assert_eq!(addresses.len(), 1);
    let functions: Vec<HashMap<String, OwnedVariant>> =
        property(&connection, gpu, GPU, "Functions").await;
    let taken: Vec<_> = functions
        .iter()
        .filter(|function| {
            function["State"] == OwnedVariant::try_from(zbus::Variant::from("vgpu")).unwrap()
        })
        .map(|function| -> OwnedObjectPath {
            function["Vgpu"].try_clone().unwrap().try_into().unwrap()
        })
        .collect();
    assert_eq!(taken.iter().map(|path| path.as_str()).collect::<Vec<_>>(), [vgpu.as_str()]);
    let refused = call(&connection, gpu, GPU, "SetVfCount", &(0u32, Options::new())).await;
    assert_eq!(refused.unwrap_err().name, "org.vgpu.Host1.Error.Busy");
    remove(&connection, &vgpu).await;
    call(&connection, gpu, GPU, "SetVfCount", &(0u32, Options::new())).await.unwrap();
    assert_eq!(property::<u32>(&connection, gpu, GPU, "VfCount").await, 0);
}

#[tokio::test]
async fn a_device_is_probed_and_handed_over() {
    let bus = Bus::start();
    let _served = Served::start(&bus);
    let connection = bus.connect().await;
    let vgpu = create(&connection, "mtty-1", Options::new()).await;
    let reply = call(&connection, &vgpu, VGPU, "Probe", &()).await.unwrap();
    let report: HashMap<String, OwnedVariant> = reply.body().deserialize().unwrap();
    let mut keys: Vec<_> = report.keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected = [
        "CanReset",
        "DmaMap",
        "Interface",
        "Interrupts",
        "Migration",
        "PciIds",
        "Regions",
        "Reset",
    ];
    assert_eq!(keys, expected);
    assert_eq!(report["Regions"].value_signature(), "a(uttu)");

    let reply = call(&connection, &vgpu, VGPU, "OpenDevice", &(Options::new(),)).await.unwrap();
    let body = reply.body();
    let (fds, info): (HashMap<String, OwnedFd>, HashMap<String, OwnedVariant>) =
        body.deserialize().unwrap();
    let mut names: Vec<_> = fds.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["device", "iommu"]);
    assert!(fds.values().all(|fd| fd.as_raw_fd() > 2));
    let node: String = info["Node"].try_clone().unwrap().try_into().unwrap();
    assert!(node.starts_with("/dev/vfio/devices/vfio"), "{node}");
    assert!(info.contains_key("MemlockNote") && info.contains_key("Address"));
}

#[tokio::test]
async fn a_holder_is_found() {
    let bus = Bus::start();
    let served = Served::start(&bus);
    let connection = bus.connect().await;
    let vgpu = create(&connection, "mtty-1", Options::new()).await;
    assert_eq!(property::<String>(&connection, &vgpu, VGPU, "InUse").await, "unknown");
    let group: i32 = property(&connection, &vgpu, VGPU, "IommuGroup").await;
    let node = NodePath::new(format!("vfio/{group}")).unwrap();
    let held = served.kernel.hold(&node, 4242, "qemu").unwrap();
    let reply = call(&connection, &vgpu, VGPU, "GetHolders", &()).await.unwrap();
    let holders: Vec<(u32, String, String)> = reply.body().deserialize().unwrap();
    assert_eq!(holders, [(4242, "qemu".into(), format!("/dev/vfio/{group}"))]);
    assert_eq!(property::<String>(&connection, &vgpu, VGPU, "InUse").await, "yes");
    let reply = call(&connection, ROOT, MANAGER, "GetVgpuByPid", &(4242u32,)).await.unwrap();
    assert_eq!(reply.body().signature().to_string(), "o");
    assert_eq!(reply.body().deserialize::<OwnedObjectPath>().unwrap().as_str(), vgpu);
    drop(held);
    remove(&connection, &vgpu).await;
}

#[tokio::test]
async fn a_kernel_refusal_is_told_whole() {
    let bus = Bus::start();
    let served = Served::start(&bus);
    let connection = bus.connect().await;
    let path = "*/mtty-1/create";
    served.kernel.fail(path, FaultOn::Write(Calls::All), nix::errno::Errno::ENOMEM);
    let failed = call(&connection, ROOT, MANAGER, "CreateVgpu", &("mtty-1", Options::new())).await;
    let failed = failed.unwrap_err();
    assert_eq!(failed.name, "org.vgpu.Host1.Error.KernelRefused");
    assert_eq!(failed.detail("Errno").as_deref(), Some("ENOMEM"));
    assert!(failed.detail("Path").unwrap().ends_with("mtty-1/create"), "{failed:?}");
    assert!(failed.detail("Code").is_some());
    served.kernel.clear_faults();
    create(&connection, "mtty-1", Options::new()).await;
}
