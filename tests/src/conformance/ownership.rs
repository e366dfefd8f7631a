//! What is ours and what is not.

use uuid::Uuid;
use vgpu_mdev::{
    error::ErrorKind,
    model::{FunctionState, VgpuName, VgpuState},
    request::{Control, CreateRequest},
};

use super::{
    IGB, Rig,
    count::{device, disable, enable, raw_count},
    mdev::{raw_create, raw_remove},
    rig::{create, gpu, profile, refused, remove, request, set_count, vgpu},
};

/// An mdev that somebody else made is seen by its events, shown, and never
/// touched.
pub fn a_foreign_mdev_is_shown_and_refused(rig: &Rig) {
    let engine = rig.engine();
    let uuid = Uuid::new_v4();
    raw_create(rig, "mtty", "mtty-2", uuid).unwrap();
    let snapshot = rig.wait_for(&engine, |snapshot| {
        snapshot.vgpu(uuid).is_some_and(|vgpu| {
            vgpu.state == VgpuState::Active && vgpu.profile.is_some() && !vgpu.nodes.is_empty()
        })
    });
    let shown = snapshot.vgpu(uuid).unwrap();
    assert!(!shown.managed);
    assert_eq!((shown.owner_uid, shown.profile.as_ref().unwrap().as_str()), (0, "mtty-2"));
    assert_eq!(profile(&engine, "mtty", "mtty-1").available, 22);
    let error = remove(&engine, uuid).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::NotManaged, "foreign"));
    assert_eq!(engine.probe(uuid).unwrap_err().kind(), ErrorKind::NotManaged);
    let same = CreateRequest { uuid: Some(uuid), ..request("mtty", "mtty-2") };
    assert_eq!(refused(&engine, &same).kind(), ErrorKind::NotManaged);
    assert!(rig.exists(format!("bus/mdev/devices/{uuid}")));
    raw_remove(rig, "mtty", uuid).unwrap();
    rig.wait_for(&engine, |snapshot| snapshot.vgpu(uuid).is_none());
    rig.wait_for(&engine, |s| {
        let gpu = s.gpu(&gpu("mtty")).unwrap();
        gpu.profiles_called("mtty-1").all(|profile| profile.available == 24)
    });
}

/// A VF that somebody else bound to vfio-pci is a foreign vGPU; one on a driver
/// of the host is the host's. Neither is taken, and the count stays.
pub fn a_foreign_function_is_shown_and_refused(rig: &Rig) {
    let vfs = enable(rig, IGB, 2);
    let engine = rig.engine();
    rig.write(format!("{}/driver_override", device(&vfs[0])), "vfio-pci\n").unwrap();
    rig.write("bus/pci/drivers_probe", &vfs[0]).unwrap();
    let snapshot = rig.wait_for(&engine, |snapshot| {
        snapshot.vgpus_of(&gpu(IGB)).any(|vgpu| vgpu.state == VgpuState::Active)
    });
    let shown = snapshot.vgpus_of(&gpu(IGB)).next().unwrap();
    assert!(!shown.managed);
    assert_eq!(shown.addresses, [vfs[0].parse().unwrap()]);
    let function = &snapshot.gpu(&gpu(IGB)).unwrap().functions[0];
    assert_eq!((function.state, function.vgpu), (FunctionState::Vgpu, Some(shown.uuid)));
    let error = remove(&engine, shown.uuid).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::NotManaged, "foreign"));
    assert_eq!(set_count(&engine, IGB, 0).unwrap_err().kind(), ErrorKind::Busy);
    let pinned =
        CreateRequest { function: Some(vfs[0].parse().unwrap()), ..request(IGB, "8086-10c9-vf") };
    assert_eq!(refused(&engine, &pinned).code(), "no-free-function");

    let made = create(&engine, IGB, "8086-10c9-vf");
    assert_eq!(made.addresses, [vfs[1].parse().unwrap()]);
    remove(&engine, made.uuid).unwrap();
    drop(engine);
    disable(rig, IGB);
}

/// An engine that starts again shows the same: UUIDs, names, owners, and what
/// is ours; and can remove it.
pub fn a_restart_shows_the_same(rig: &Rig) {
    let engine = rig.engine();
    let name: VgpuName = "guest-1".parse().unwrap();
    let named = CreateRequest {
        name: Some(name.clone()),
        owner_uid: 4711,
        ..request("mbochs", "mbochs-large")
    };
    let named = engine.create(&named, &Control::default()).unwrap().uuid;
    set_count(&engine, IGB, 2).unwrap();
    let function = create(&engine, IGB, "8086-10c9-vf").uuid;
    let foreign = Uuid::new_v4();
    raw_create(rig, "mtty", "mtty-1", foreign).unwrap();
    rig.settle();
    engine.rescan().unwrap();
    let before = engine.snapshot();
    drop(engine);

    let engine = rig.engine();
    let after = engine.snapshot();
    assert!(before.vgpus().eq(after.vgpus()), "{before:#?} is not {after:#?}");
    assert!(before.gpus().eq(after.gpus()), "{before:#?} is not {after:#?}");
    assert_eq!(after.vgpu_count(), 3);
    let shown = vgpu(&engine, named);
    assert_eq!((&shown.name, shown.owner_uid, shown.managed), (&Some(name.clone()), 4711, true));
    assert_eq!(engine.named(&name), Some(named));
    assert!(vgpu(&engine, function).managed);
    assert!(!vgpu(&engine, foreign).managed);
    remove(&engine, named).unwrap();
    remove(&engine, function).unwrap();
    assert_eq!(remove(&engine, foreign).unwrap_err().kind(), ErrorKind::NotManaged);
    raw_remove(rig, "mtty", foreign).unwrap();
    set_count(&engine, IGB, 0).unwrap();
}

/// What somebody else takes away is no longer ours, and its name and function
/// are free: addresses and UUIDs are used again.
pub fn what_others_remove_is_no_longer_ours(rig: &Rig) {
    let engine = rig.engine();
    let name: VgpuName = "again".parse().unwrap();
    let named = CreateRequest { name: Some(name.clone()), ..request("mtty", "mtty-1") };
    let uuid = engine.create(&named, &Control::default()).unwrap().uuid;
    raw_remove(rig, "mtty", uuid).unwrap();
    rig.wait_for(&engine, |snapshot| snapshot.vgpu(uuid).is_none());
    assert_eq!(engine.named(&name), None);
    raw_create(rig, "mtty", "mtty-1", uuid).unwrap();
    let snapshot = rig.wait_for(&engine, |snapshot| snapshot.vgpu(uuid).is_some());
    assert!(!snapshot.vgpu(uuid).unwrap().managed);
    raw_remove(rig, "mtty", uuid).unwrap();
    rig.wait_for(&engine, |snapshot| snapshot.vgpu(uuid).is_none());

    set_count(&engine, IGB, 1).unwrap();
    let made = create(&engine, IGB, "8086-10c9-vf");
    raw_count(rig, IGB, "0").unwrap();
    rig.wait_for(&engine, |snapshot| snapshot.vgpu(made.uuid).is_none());
    set_count(&engine, IGB, 1).unwrap();
    let next = create(&engine, IGB, "8086-10c9-vf");
    assert_eq!(next.addresses, made.addresses);
    assert_ne!((next.uuid, next.inode), (made.uuid, made.inode));
    remove(&engine, next.uuid).unwrap();
    set_count(&engine, IGB, 0).unwrap();
}
