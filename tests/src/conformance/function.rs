//! Binding functions, and the vGPUs that they become.

use nix::errno::Errno;
use vgpu_mdev::{
    error::ErrorKind,
    model::{Framework, FunctionState, ReasonCode, VgpuState},
    request::CreateRequest,
};

use super::{
    IGB, NVME, Rig,
    count::{device, disable, enable},
    rig::{create, gpu, profile, refused, remove, request, set_count},
};

/// `name\n` sets it and `\n` clears it; an empty write does nothing; unset it
/// reads `(null)` (`drivers/base/driver.c`, `driver_set_override`).
pub fn an_override_is_set_and_cleared(rig: &Rig) {
    let vfs = enable(rig, NVME, 1);
    let path = format!("{}/driver_override", device(&vfs[0]));
    let reads = |expected: &str| assert_eq!(rig.text(&path).unwrap(), expected);
    reads("(null)");
    rig.write(&path, "vfio-pci").unwrap();
    reads("vfio-pci");
    rig.write(&path, "").unwrap();
    reads("vfio-pci");
    rig.write(&path, "no-such-driver\n").unwrap();
    reads("no-such-driver");
    rig.write(&path, "\n").unwrap();
    reads("(null)");
    assert_eq!(rig.write(&path, &"x".repeat(5000)), Err(Errno::EINVAL));
    reads("(null)");
    disable(rig, NVME);
}

/// `drivers_probe` says success although nothing was bound
/// (`drivers/base/bus.c`, `drivers_probe_store`).
pub fn probing_says_success_without_a_driver(rig: &Rig) {
    let vfs = enable(rig, NVME, 1);
    let (vf, driver) = (&vfs[0], format!("{}/driver", device(&vfs[0])));
    rig.write(format!("{}/driver_override", device(vf)), "no-such-driver\n").unwrap();
    rig.write("bus/pci/drivers_probe", vf).unwrap();
    assert_eq!(rig.link(&driver), None);
    rig.write(format!("{}/driver_override", device(vf)), "vfio-pci\n").unwrap();
    rig.write("bus/pci/drivers_probe", &format!("{vf}\n")).unwrap();
    assert_eq!(rig.link(&driver).as_deref(), Some("vfio-pci"));
    // Bound already: success, and nothing done.
    rig.write("bus/pci/drivers_probe", vf).unwrap();
    assert_eq!(rig.write("bus/pci/drivers_probe", "0000:7f:1f.7"), Err(Errno::ENODEV));
    assert_eq!(rig.write("bus/pci/drivers_probe", "x"), Err(Errno::ENODEV));
    disable(rig, NVME);
}

/// `bind` wants a device that matches and has no driver.
pub fn only_a_matching_driver_binds(rig: &Rig) {
    let vfs = enable(rig, NVME, 1);
    let vf = &vfs[0];
    let bind = |driver: &str, name: &str| rig.write(format!("bus/pci/drivers/{driver}/bind"), name);
    assert_eq!(bind("vfio-pci", vf), Err(Errno::ENODEV));
    assert_eq!(bind("igb", vf), Err(Errno::ENODEV));
    assert_eq!(bind("vfio-pci", "0000:7f:1f.7"), Err(Errno::ENODEV));
    assert_eq!(bind("no-such-driver", vf), Err(Errno::ENOENT));
    rig.write(format!("{}/driver_override", device(vf)), "vfio-pci\n").unwrap();
    assert_eq!(bind("nvme", vf), Err(Errno::ENODEV));
    bind("vfio-pci", vf).unwrap();
    assert_eq!(bind("vfio-pci", vf), Err(Errno::EBUSY));
    disable(rig, NVME);
}

/// `unbind` wants the driver that has it.
pub fn unbinding_takes_the_right_driver(rig: &Rig) {
    let vfs = enable(rig, NVME, 1);
    let vf = &vfs[0];
    let unbind =
        |driver: &str, name: &str| rig.write(format!("bus/pci/drivers/{driver}/unbind"), name);
    assert_eq!(unbind("vfio-pci", vf), Err(Errno::ENODEV));
    assert_eq!(unbind("igb", NVME), Err(Errno::ENODEV));
    assert_eq!(unbind("vfio-pci", "0000:7f:1f.7"), Err(Errno::ENODEV));
    rig.write(format!("{}/driver_override", device(vf)), "vfio-pci\n").unwrap();
    rig.write("bus/pci/drivers_probe", vf).unwrap();
    unbind("vfio-pci", &format!("{vf}\n")).unwrap();
    assert_eq!(rig.link(format!("{}/driver", device(vf))), None);
    assert_eq!(unbind("vfio-pci", vf), Err(Errno::ENODEV));
    disable(rig, NVME);
}

/// A VF becomes a vGPU on vfio-pci and is given back as it was, override
/// included; when all are taken the next one is refused with the reason.
pub fn a_vgpu_gives_back_what_it_took(rig: &Rig) {
    for (pf, called) in [(IGB, "8086-10c9-vf"), (NVME, "1b36-0010-vf")] {
        let vfs = enable(rig, pf, 2);
        // One had an override before, of somebody's own.
        rig.write(format!("{}/driver_override", device(&vfs[0])), "mine\n").unwrap();
        let engine = rig.engine();
        assert_eq!(profile(&engine, pf, called).available, 2);
        let made = [create(&engine, pf, called), create(&engine, pf, called)];
        for (vgpu, vf) in made.iter().zip(&vfs) {
            assert_eq!(vgpu.addresses, [vf.parse().unwrap()]);
            assert_eq!((vgpu.framework, vgpu.state), (Framework::Sriov, VgpuState::Active));
            let group = rig.link(format!("{}/iommu_group", device(vf))).unwrap();
            assert_eq!(vgpu.iommu_group, Some(group.parse().unwrap()));
            assert_eq!(vgpu.nodes.len(), if rig.has_cdevs() { 2 } else { 1 });
            assert!(vgpu.managed);
            assert_eq!(rig.link(format!("{}/driver", device(vf))).as_deref(), Some("vfio-pci"));
        }
        let shown = profile(&engine, pf, called);
        assert_eq!(shown.available, 0);
        assert_eq!(shown.reason.unwrap().code, ReasonCode::Full);
        let error = refused(&engine, &request(pf, called));
        assert_eq!((error.kind(), error.code()), (ErrorKind::NoCapacity, "full"));
        for vgpu in &made {
            remove(&engine, vgpu.uuid).unwrap();
            assert!(engine.snapshot().vgpu(vgpu.uuid).is_none());
        }
        for (vf, had) in vfs.iter().zip(["mine", "(null)"]) {
            assert_eq!(rig.link(format!("{}/driver", device(vf))), None);
            assert_eq!(rig.text(format!("{}/driver_override", device(vf))).unwrap(), had);
        }
        assert_eq!(profile(&engine, pf, called).available, 2);
        drop(engine);
        disable(rig, pf);
    }
}

/// A function that carries a vGPU is no other's.
pub fn a_function_is_given_once(rig: &Rig) {
    let engine = rig.engine();
    set_count(&engine, IGB, 3).unwrap();
    let last = engine.snapshot().gpu(&gpu(IGB)).unwrap().functions[2].address;
    let pinned = CreateRequest { function: Some(last), ..request(IGB, "8086-10c9-vf") };
    let made = engine.create(&pinned, &Default::default()).unwrap();
    let snapshot = engine.snapshot();
    assert_eq!(snapshot.vgpu(made.uuid).unwrap().addresses, [last]);
    let function = &snapshot.gpu(&gpu(IGB)).unwrap().functions[2];
    assert_eq!((function.state, function.vgpu), (FunctionState::Vgpu, Some(made.uuid)));
    let error = refused(&engine, &pinned);
    assert_eq!((error.kind(), error.code()), (ErrorKind::NoCapacity, "no-free-function"));
    remove(&engine, made.uuid).unwrap();
    set_count(&engine, IGB, 0).unwrap();
}
