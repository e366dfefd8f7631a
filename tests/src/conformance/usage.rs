//! Nodes, and who uses them.

use nix::errno::Errno;
use vgpu_mdev::{
    error::ErrorKind,
    model::{InUse, NodeKind, Vgpu},
    request::{Control, CreateRequest},
};

use super::{
    Held, IGB, Rig,
    rig::{create, node, remove, request, set_count, vgpu},
};

fn group(vgpu: &Vgpu) -> &str {
    node(vgpu, NodeKind::Group).expect("it has a group node")
}

fn assert_held_by(engine: &vgpu_mdev::engine::Engine, vgpu: &Vgpu, held: &Held) {
    let holders = engine.holders(vgpu.uuid).unwrap();
    let [holder] = &holders[..] else { panic!("{holders:?}") };
    assert_eq!((holder.pid, &holder.command), (held.pid, &held.command));
    assert!(vgpu.nodes.iter().any(|node| node.path == holder.device), "{holder:?}");
    assert_eq!(engine.in_use(vgpu.uuid), InUse::Yes);
    assert_eq!(engine.held_by(held.pid).unwrap(), [vgpu.uuid]);
}

/// A legacy group opens once; its holder is found; the engine does not probe
/// what is held.
pub fn a_group_opens_once(rig: &Rig) {
    let engine = rig.engine();
    let made = create(&engine, "mbochs", "mbochs-small");
    let node = group(&made);
    rig.open(node).unwrap();
    let held = rig.hold_node(node);
    assert_eq!(rig.open(node), Err(Errno::EBUSY));
    assert_held_by(&engine, &made, &held);
    let error = engine.probe(made.uuid).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Busy, "held"));
    assert_eq!(error.holder().map(|holder| holder.pid), Some(held.pid));
    assert_eq!(remove(&engine, made.uuid).unwrap_err().code(), "held");
    drop(held);
    rig.open(node).unwrap();
    assert_eq!(engine.holders(made.uuid).unwrap(), []);
    assert_eq!(engine.in_use(made.uuid), InUse::No);
    remove(&engine, made.uuid).unwrap();
    assert_eq!(rig.open(node), Err(Errno::ENOENT));
}

/// A device is used through its group or its own node, not both. Where there
/// are groups only, there is no such node at all.
pub fn a_cdev_excludes_its_group(rig: &Rig) {
    let engine = rig.engine();
    let made = create(&engine, "mtty", "mtty-1");
    let opened = engine.open_device(made.uuid, false);
    let Some(cdev) = node(&made, NodeKind::Cdev) else {
        assert!(!rig.has_cdevs());
        assert_eq!(rig.open("iommu"), Err(Errno::ENOENT));
        let error = opened.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::NotSupported, "groups-only"));
        remove(&engine, made.uuid).unwrap();
        return;
    };
    assert!(rig.has_cdevs());
    let opened = opened.unwrap();
    let names: Vec<_> = opened.fds.iter().map(|(name, _)| *name).collect();
    assert_eq!((&*names, &*opened.node), (&["device", "iommu"][..], cdev));
    drop(opened);
    let held = rig.hold(&made);
    assert_eq!(rig.open(group(&made)), Err(Errno::EBUSY));
    // Opening is not exclusive, binding is.
    rig.open(cdev).unwrap();
    assert_eq!(engine.probe(made.uuid).unwrap_err().kind(), ErrorKind::Busy);
    drop(held);
    rig.open(group(&made)).unwrap();
    remove(&engine, made.uuid).unwrap();
}

/// No VF count is changed and no VF unbound while one is held.
pub fn a_held_function_stays(rig: &Rig) {
    let engine = rig.engine();
    set_count(&engine, IGB, 1).unwrap();
    let made = create(&engine, IGB, "8086-10c9-vf");
    let held = rig.hold(&made);
    assert_held_by(&engine, &made, &held);
    assert_eq!(set_count(&engine, IGB, 0).unwrap_err().kind(), ErrorKind::Busy);
    let error = remove(&engine, made.uuid).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Busy, "held"));
    assert_eq!(error.holder().map(|holder| holder.pid), Some(held.pid));
    assert_eq!(vgpu(&engine, made.uuid).state, made.state);
    drop(held);
    remove(&engine, made.uuid).unwrap();
    set_count(&engine, IGB, 0).unwrap();
}

/// A node that is merely open counts: a guest may be starting.
pub fn an_open_node_counts(rig: &Rig) {
    let engine = rig.engine();
    let made = create(&engine, "mdpy", "mdpy-vga");
    for path in made.nodes.iter().map(|node| &node.path) {
        let held = rig.hold_node(path);
        assert_held_by(&engine, &made, &held);
        assert_eq!(remove(&engine, made.uuid).unwrap_err().code(), "held", "{path}");
    }
    remove(&engine, made.uuid).unwrap();
}

/// The nodes of a vGPU belong to its owner.
pub fn nodes_go_to_their_owner(rig: &Rig) {
    let engine = rig.engine();
    set_count(&engine, IGB, 1).unwrap();
    for (on, profile) in [("mtty", "mtty-1"), (IGB, "8086-10c9-vf")] {
        for owner_uid in [4711, 0] {
            let wanted = CreateRequest { owner_uid, ..request(on, profile) };
            let made = engine.create(&wanted, &Control::default()).unwrap();
            let made = vgpu(&engine, made.uuid);
            assert_eq!(made.owner_uid, owner_uid);
            assert!(!made.nodes.is_empty());
            // udev has its say as well, and must not take it back.
            rig.settle();
            for node in &made.nodes {
                assert_eq!(rig.owner(&node.path), Some(owner_uid), "{}", node.path);
            }
            remove(&engine, made.uuid).unwrap();
        }
    }
    set_count(&engine, IGB, 0).unwrap();
}

/// A probe opens the device as a VMM would.
pub fn a_probe_sees_the_device(rig: &Rig) {
    let engine = rig.engine();
    set_count(&engine, IGB, 1).unwrap();
    for (on, profile, ids) in [
        ("mtty", "mtty-1", (0x4348, 0x3253)),
        ("mdpy", "mdpy-vga", (0x1b36, 0x000f)),
        ("mbochs", "mbochs-small", (0x1234, 0x1111)),
    ] {
        let made = create(&engine, on, profile);
        let report = engine.probe(made.uuid).unwrap();
        assert_eq!(report.interface, if rig.has_cdevs() { "cdev" } else { "group" });
        assert_eq!(report.pci_ids, Some(ids), "{on}");
        assert!(report.dma_map, "{on}: {report:?}");
        remove(&engine, made.uuid).unwrap();
    }
    let made = create(&engine, IGB, "8086-10c9-vf");
    let report = engine.probe(made.uuid).unwrap();
    // A VF's own config space has no ids: vfio-pci gives them
    // (drivers/vfio/pci/vfio_pci_config.c).
    assert_eq!(report.pci_ids, Some((0x8086, 0x10ca)));
    assert!(report.can_reset && report.reset == Some(true) && report.dma_map, "{report:?}");
    remove(&engine, made.uuid).unwrap();
    set_count(&engine, IGB, 0).unwrap();
}
