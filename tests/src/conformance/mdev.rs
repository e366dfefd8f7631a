//! Creating and removing mdevs.

use std::thread;

use nix::errno::Errno;
use uuid::Uuid;
use vgpu_mdev::{
    error::ErrorKind,
    model::{Framework, InUse, ReasonCode, VgpuState},
    request::{Control, CreateRequest},
};

use super::{
    Rig,
    rig::{create, gpu, profile, refused, remove, request, vgpu},
};

/// The directory of a parent's type.
pub(super) fn type_dir(parent: &str, id: &str) -> String {
    format!("class/mdev_bus/{parent}/mdev_supported_types/{id}")
}

/// Creates by a bare write.
pub(super) fn raw_create(rig: &Rig, parent: &str, id: &str, uuid: Uuid) -> Result<(), Errno> {
    rig.write(format!("{}/create", type_dir(parent, id)), &uuid.to_string())
}

/// Removes by a bare write.
pub(super) fn raw_remove(rig: &Rig, parent: &str, uuid: Uuid) -> Result<(), Errno> {
    rig.write(format!("class/mdev_bus/{parent}/{uuid}/remove"), "1")
}

fn available(rig: &Rig, parent: &str, id: &str) -> u32 {
    let text = rig.text(format!("{}/available_instances", type_dir(parent, id)));
    text.unwrap().parse().unwrap()
}

/// An mdev appears with its driver, type and group, on the bus and below its
/// parent; the engine shows the same; removed, it is gone from both.
pub fn created_and_removed(rig: &Rig) {
    let engine = rig.engine();
    for (parent, id) in [("mtty", "mtty-2"), ("mdpy", "mdpy-xga"), ("mbochs", "mbochs-large")] {
        let made = create(&engine, parent, id);
        let uuid = made.uuid;
        let device = format!("class/mdev_bus/{parent}/{uuid}");
        assert_eq!(rig.link(format!("{device}/driver")).as_deref(), Some(parent));
        assert_eq!(rig.link(format!("{device}/mdev_type")).as_deref(), Some(id));
        let group = rig.link(format!("{device}/iommu_group")).unwrap();
        // Named so also where there is an IOMMU, which mdevs do without.
        assert_eq!(rig.text(format!("{device}/iommu_group/name")).unwrap(), "vfio-noiommu");
        assert_eq!(rig.text(format!("{device}/iommu_group/type")).unwrap(), "unknown");
        assert!(rig.exists(format!("bus/mdev/devices/{uuid}")));
        let listed = rig.names(format!("{}/devices", type_dir(parent, id)));
        assert!(listed.contains(&uuid.to_string()));

        assert_eq!(made.gpu, gpu(parent));
        assert_eq!(made.framework, Framework::Mdev);
        assert_eq!(made.state, VgpuState::Active);
        assert_eq!(made.profile.as_ref().unwrap().as_str(), id);
        assert_eq!(made.iommu_group, Some(group.parse().unwrap()));
        assert_eq!(made.nodes.len(), if rig.has_cdevs() { 2 } else { 1 });
        assert!(made.managed && made.addresses.is_empty());

        remove(&engine, uuid).unwrap();
        assert!(!rig.exists(&device));
        assert!(!rig.exists(format!("bus/mdev/devices/{uuid}")));
        assert!(engine.snapshot().vgpu(uuid).is_none());
        assert_eq!(remove(&engine, uuid).unwrap_err().kind(), ErrorKind::NoSuchVgpu);
    }
}

/// The kernel takes a UUID once on the whole host; the engine answers the same
/// request again, and no other, with what is there.
pub fn a_uuid_exists_once(rig: &Rig) {
    let engine = rig.engine();
    let uuid = Uuid::new_v4();
    let wanted = CreateRequest { uuid: Some(uuid), ..request("mtty", "mtty-1") };
    let make = |wanted: &CreateRequest| engine.create(wanted, &Control::default());
    let (first, second) = (make(&wanted).unwrap(), make(&wanted).unwrap());
    assert_eq!((first.uuid, first.created), (uuid, true));
    assert_eq!((second.uuid, second.created), (uuid, false));
    for (parent, id) in [("mtty", "mtty-1"), ("mtty", "mtty-2"), ("mdpy", "mdpy-vga")] {
        assert_eq!(raw_create(rig, parent, id, uuid), Err(Errno::EEXIST));
    }
    let other = CreateRequest { uuid: Some(uuid), ..request("mtty", "mtty-2") };
    assert_eq!(refused(&engine, &other).code(), "uuid-other-profile");
    let elsewhere = CreateRequest { uuid: Some(uuid), ..request("mdpy", "mdpy-vga") };
    assert_eq!(refused(&engine, &elsewhere).code(), "uuid-other-profile");
    let stranger = CreateRequest { owner_uid: 4711, ..wanted };
    assert_eq!(refused(&engine, &stranger).code(), "uuid-taken");
    remove(&engine, uuid).unwrap();
}

/// `create` looks at the length and at the first 36 characters, and names the
/// device in lower case (`drivers/vfio/mdev/mdev_sysfs.c`, `create_store`).
pub fn malformed_uuids_are_refused(rig: &Rig) {
    let create = format!("{}/create", type_dir("mtty", "mtty-1"));
    for text in [
        "x",
        "83b8f4f2509f382f3c1ee6bfe0fa1001",
        "83b8f4f2-509f-382f-3c1e-e6bfe0fa100",
        "83b8f4f2-509f-382f-3c1e-e6bfe0fa100g",
        "{3b8f4f2-509f-382f-3c1e-e6bfe0fa1001}",
        "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001\n\n",
        "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001-23",
        "../../../../../../../../etc/passwd__",
    ] {
        assert_eq!(rig.write(&create, text), Err(Errno::EINVAL), "{text:?}");
    }
    let uuid: Uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001".parse().unwrap();
    for text in ["83B8F4F2-509F-382F-3C1E-E6BFE0FA1001", "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001\n"] {
        rig.write(&create, text).unwrap();
        assert!(rig.exists(format!("class/mdev_bus/mtty/{uuid}")), "{text:?}");
        raw_remove(rig, "mtty", uuid).unwrap();
    }
}

/// Types of one parent share what it has.
struct Capacity {
    parent: &'static str,
    /// Each type with how many fit, the one that is made first.
    types: &'static [(&'static str, u32)],
    /// How many of the others are left beside one of the first.
    beside_one: &'static [u32],
    full: Errno,
}

/// 24 ports.
pub fn ports_run_out(rig: &Rig) {
    run_out(
        rig,
        &Capacity {
            parent: "mtty",
            types: &[("mtty-2", 12), ("mtty-1", 24)],
            beside_one: &[22],
            full: Errno::ENOSPC,
        },
    );
}

/// Four displays, which the mdev core counts.
pub fn displays_run_out(rig: &Rig) {
    run_out(
        rig,
        &Capacity {
            parent: "mdpy",
            types: &[("mdpy-hd", 4), ("mdpy-vga", 4), ("mdpy-xga", 4)],
            beside_one: &[3, 3],
            full: Errno::EUSERS,
        },
    );
}

/// 256 MB of video memory.
pub fn video_memory_runs_out(rig: &Rig) {
    run_out(
        rig,
        &Capacity {
            parent: "mbochs",
            types: &[("mbochs-large", 4), ("mbochs-medium", 16), ("mbochs-small", 64)],
            beside_one: &[12, 48],
            full: Errno::ENOSPC,
        },
    );
}

fn run_out(rig: &Rig, capacity: &Capacity) {
    let Capacity { parent, types, beside_one, full } = *capacity;
    let engine = rig.engine();
    let (first, most) = types[0];
    for (id, fit) in types {
        assert_eq!(available(rig, parent, id), *fit, "{id}");
        let shown = profile(&engine, parent, id);
        assert_eq!((shown.available, shown.total, shown.reason), (*fit, *fit, None), "{id}");
    }
    let mut made = vec![create(&engine, parent, first).uuid];
    for ((id, fit), left) in types[1..].iter().zip(beside_one) {
        assert_eq!(available(rig, parent, id), *left, "{id}");
        let shown = profile(&engine, parent, id);
        assert_eq!((shown.available, shown.total), (*left, *fit), "{id}");
    }
    for _ in 1..most {
        made.push(create(&engine, parent, first).uuid);
    }
    for (id, fit) in types {
        assert_eq!(available(rig, parent, id), 0, "{id}");
        assert_eq!(raw_create(rig, parent, id, Uuid::new_v4()), Err(full), "{id}");
        let shown = profile(&engine, parent, id);
        assert_eq!((shown.available, shown.total), (0, *fit), "{id}");
        assert_eq!(shown.reason.unwrap().code, ReasonCode::Full, "{id}");
        let error = refused(&engine, &request(parent, id));
        assert_eq!((error.kind(), error.code()), (ErrorKind::NoCapacity, "full"), "{id}");
    }
    for uuid in made {
        remove(&engine, uuid).unwrap();
    }
    for (id, fit) in types {
        assert_eq!(profile(&engine, parent, id).available, *fit, "{id}");
    }
}

/// The engine refuses to remove what is held and names the holder. The kernel
/// waits for it: meanwhile the mdev is off the bus, and still takes its place.
pub fn a_removal_waits_for_the_holder(rig: &Rig) {
    let engine = rig.engine();
    let made = create(&engine, "mtty", "mtty-2");
    let uuid = made.uuid;
    let held = rig.hold(&made);
    let error = remove(&engine, uuid).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Busy, "held"));
    let holder = error.holder().expect("the holder is named");
    assert_eq!((holder.pid, &holder.command), (held.pid, &held.command));
    assert_eq!(engine.in_use(uuid), InUse::Yes);
    assert_eq!(vgpu(&engine, uuid).state, VgpuState::Active);

    rig.settle();
    let mark = rig.events.mark();
    thread::scope(|scope| {
        let removal = scope.spawn(|| raw_remove(rig, "mtty", uuid));
        rig.events.wait(mark, |e| (&*e.subsystem, &*e.action) == ("vfio-dev", "remove"));
        let shown =
            rig.wait_for(&engine, |s| s.vgpu(uuid).is_some_and(|v| v.state == VgpuState::Removing));
        assert!(shown.vgpu(uuid).unwrap().managed);
        let device = format!("class/mdev_bus/mtty/{uuid}");
        assert!(!rig.exists(format!("bus/mdev/devices/{uuid}")), "it is still on the bus");
        assert!(rig.exists(&device), "its directory is gone");
        assert_eq!(available(rig, "mtty", "mtty-1"), 22);
        assert_eq!(raw_create(rig, "mtty", "mtty-1", uuid), Err(Errno::EEXIST));
        let other = Uuid::new_v4();
        raw_create(rig, "mtty", "mtty-1", other).unwrap();
        raw_remove(rig, "mtty", other).unwrap();
        let ours =
            rig.events.since(mark).into_iter().filter(|e| e.devpath.contains(&*uuid.to_string()));
        let seen: Vec<_> = ours.map(|e| (e.subsystem, e.action)).collect();
        assert_eq!(seen, [("vfio-dev".to_owned(), "remove".to_owned())]);
        assert!(!removal.is_finished(), "the removal did not wait");
        drop(held);
        removal.join().unwrap().unwrap();
        assert!(!rig.exists(&device));
    });
    rig.wait_for(&engine, |s| s.vgpu(uuid).is_none());
    let again = CreateRequest { uuid: Some(uuid), ..request("mtty", "mtty-1") };
    assert!(engine.create(&again, &Control::default()).unwrap().created);
    remove(&engine, uuid).unwrap();
}

/// `remove` takes a number; 0 does nothing.
pub fn removing_takes_a_number(rig: &Rig) {
    let uuid = Uuid::new_v4();
    raw_create(rig, "mtty", "mtty-1", uuid).unwrap();
    let remove = format!("class/mdev_bus/mtty/{uuid}/remove");
    assert_eq!(rig.write(&remove, "x"), Err(Errno::EINVAL));
    rig.write(&remove, "0").unwrap();
    rig.write(&remove, "").unwrap();
    assert!(rig.exists(format!("bus/mdev/devices/{uuid}")));
    rig.write(&remove, "2").unwrap();
    assert!(!rig.exists(format!("class/mdev_bus/mtty/{uuid}")));
    assert_eq!(rig.write(&remove, "1"), Err(Errno::ENOENT));
}
