//! Whole devices.

use vgpu_mdev::{
    error::ErrorKind,
    model::{Framework, ReasonCode, VgpuState},
};

use super::{
    IGB, NVME, Rig,
    count::{device, disable, enable},
    rig::{create, gpu, profile, refused, remove, request, set_count},
};

const WHOLE: &str = "1b36-0010-full";

/// The PF goes to vfio-pci and comes back to its driver; meanwhile it cannot be
/// divided.
pub fn a_whole_device_goes_and_comes_back(rig: &Rig) {
    let engine = rig.engine();
    let snapshot = engine.snapshot();
    let igb = snapshot.gpu(&gpu(IGB)).unwrap();
    assert!(
        igb.profiles.iter().all(|profile| profile.framework != Framework::Passthrough),
        "a device is offered whole without leave"
    );
    let made = create(&engine, NVME, WHOLE);
    assert_eq!((made.framework, made.state), (Framework::Passthrough, VgpuState::Active));
    assert_eq!(made.addresses, [NVME.parse().unwrap()]);
    let driver = || rig.link(format!("{}/driver", device(NVME)));
    assert_eq!(driver().as_deref(), Some("vfio-pci"));
    assert_eq!(profile(&engine, NVME, WHOLE).reason.unwrap().code, ReasonCode::Full);
    let vf = profile(&engine, NVME, "1b36-0010-vf");
    assert_eq!(vf.reason.unwrap().code, ReasonCode::PassedThrough);
    let error = set_count(&engine, NVME, 1).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Busy, "functions-in-use"));
    remove(&engine, made.uuid).unwrap();
    assert_eq!(driver().as_deref(), Some("nvme"));
    assert_eq!(rig.text(format!("{}/driver_override", device(NVME))).unwrap(), "(null)");
    assert_eq!(profile(&engine, NVME, WHOLE).available, 1);
}

/// A device with VFs is not offered whole.
pub fn not_while_it_is_divided(rig: &Rig) {
    enable(rig, NVME, 1);
    let engine = rig.engine();
    assert_eq!(profile(&engine, NVME, WHOLE).reason.unwrap().code, ReasonCode::Divided);
    let error = refused(&engine, &request(NVME, WHOLE));
    assert_eq!((error.kind(), error.code()), (ErrorKind::NoCapacity, "divided"));
    disable(rig, NVME);
    rig.wait_for(&engine, |snapshot| {
        let gpu = snapshot.gpu(&gpu(NVME)).unwrap();
        gpu.profiles_called(WHOLE).all(|profile| profile.available == 1)
    });
}
