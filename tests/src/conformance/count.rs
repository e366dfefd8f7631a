//! VF counts.

use std::collections::BTreeSet;

use nix::errno::Errno;
use vgpu_mdev::{
    error::ErrorKind,
    model::{FunctionState, PciAddress, ReasonCode},
};

use super::{
    IGB, NVME, Rig,
    rig::{create, gpu, profile, refused, remove, request, set_count},
};

/// The directory of a PCI function.
pub(super) fn device(address: impl std::fmt::Display) -> String {
    format!("bus/pci/devices/{address}")
}

/// Sets the count by a bare write.
pub(super) fn raw_count(rig: &Rig, pf: &str, count: &str) -> Result<(), Errno> {
    rig.write(format!("{}/sriov_numvfs", device(pf)), count)
}

/// Enables VFs that no driver of the host takes.
pub(super) fn enable(rig: &Rig, pf: &str, count: u32) -> Vec<String> {
    rig.write(format!("{}/sriov_drivers_autoprobe", device(pf)), "0").unwrap();
    raw_count(rig, pf, &count.to_string()).unwrap();
    functions(rig, pf)
}

/// Takes them away again.
pub(super) fn disable(rig: &Rig, pf: &str) {
    raw_count(rig, pf, "0").unwrap();
    rig.write(format!("{}/sriov_drivers_autoprobe", device(pf)), "1").unwrap();
}

/// The VFs by number.
fn functions(rig: &Rig, pf: &str) -> Vec<String> {
    (0..).map_while(|n| rig.link(format!("{}/virtfn{n}", device(pf)))).collect()
}

/// The order of `sriov_numvfs_store` (`drivers/pci/pci-sysfs.c`).
pub fn every_refusal_has_its_errno(rig: &Rig) {
    for (pf, total) in [(IGB, 7), (NVME, 4)] {
        let text = |attribute: &str| rig.text(format!("{}/{attribute}", device(pf))).unwrap();
        assert_eq!(text("sriov_totalvfs"), total.to_string());
        for (value, errno) in [
            ("x", Errno::EINVAL),
            ("-1", Errno::EINVAL),
            ("1x", Errno::EINVAL),
            ("65536", Errno::EINVAL),
            (&*(total + 1).to_string(), Errno::ERANGE),
        ] {
            assert_eq!(raw_count(rig, pf, value), Err(errno), "{pf}: {value:?}");
        }
        raw_count(rig, pf, "0").unwrap();
        assert_eq!(enable(rig, pf, 2).len(), 2);
        assert_eq!(text("sriov_numvfs"), "2");
        raw_count(rig, pf, "2").unwrap();
        raw_count(rig, pf, "0x2\n").unwrap();
        assert_eq!(raw_count(rig, pf, "3"), Err(Errno::EBUSY));
        assert_eq!(raw_count(rig, pf, "1"), Err(Errno::EBUSY));
        assert_eq!(functions(rig, pf).len(), 2);
        disable(rig, pf);
        assert_eq!(functions(rig, pf), [""; 0]);
    }
}

/// Without a driver, and on vfio-pci, no VF can be enabled; the same count
/// again is not looked at further. The engine tells the two apart.
pub fn a_driver_is_needed(rig: &Rig) {
    let unbind =
        |driver: &str| rig.write(format!("bus/pci/drivers/{driver}/unbind"), NVME).unwrap();
    let set = |text: &str| rig.write(format!("{}/driver_override", device(NVME)), text).unwrap();
    let probe = || rig.write("bus/pci/drivers_probe", NVME).unwrap();
    unbind("nvme");
    raw_count(rig, NVME, "0").unwrap();
    assert_eq!(raw_count(rig, NVME, "1"), Err(Errno::ENOENT));
    let engine = rig.engine();
    let error = set_count(&engine, NVME, 1).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::NotSupported, "no-driver"), "{error}");
    assert_eq!(error.errno(), Some(Errno::ENOENT));
    assert_eq!(error.path(), Some(&*format!("/sys/{}/sriov_numvfs", device(NVME))));
    drop(engine);
    set("vfio-pci\n");
    probe();
    assert_eq!(rig.link(format!("{}/driver", device(NVME))).as_deref(), Some("vfio-pci"));
    assert_eq!(raw_count(rig, NVME, "1"), Err(Errno::ENOENT));
    unbind("vfio-pci");
    set("\n");
    probe();
    assert_eq!(rig.link(format!("{}/driver", device(NVME))).as_deref(), Some("nvme"));
}

/// Links from PF to VF and back, addresses by offset and stride, and an IOMMU
/// group each.
pub fn functions_lead_to_each_other(rig: &Rig) {
    for (pf, total) in [(IGB, 7), (NVME, 4)] {
        let vfs = enable(rig, pf, total);
        assert_eq!(vfs.len(), total as usize);
        let number = |attribute: &str| -> u32 {
            rig.text(format!("{}/{attribute}", device(pf))).unwrap().parse().unwrap()
        };
        let (offset, stride) = (number("sriov_offset"), number("sriov_stride"));
        let address: PciAddress = pf.parse().unwrap();
        let mut groups = BTreeSet::new();
        for (n, vf) in (0..).zip(&vfs) {
            let expected = address.offset_by(offset + stride * n).unwrap();
            assert_eq!(*vf, expected.to_string());
            assert_eq!(rig.link(format!("{}/physfn", device(vf))).as_deref(), Some(pf));
            assert!(rig.exists(format!("{}/sriov_vf_msix_count", device(vf))));
            assert_eq!(rig.link(format!("{}/driver", device(vf))), None);
            groups.insert(rig.link(format!("{}/iommu_group", device(vf))).unwrap());
        }
        assert_eq!(groups.len(), vfs.len(), "VFs share a group");
        disable(rig, pf);
        assert!(vfs.iter().all(|vf| !rig.exists(device(vf))));
    }
}

/// With autoprobe off no driver takes a VF, unless `driver_override` names one
/// (`drivers/pci/pci-driver.c`, `pci_device_can_probe`).
pub fn autoprobe_gives_way_to_an_override(rig: &Rig) {
    let autoprobe = format!("{}/sriov_drivers_autoprobe", device(NVME));
    assert_eq!(rig.text(&autoprobe).unwrap(), "1");
    assert_eq!(rig.write(&autoprobe, "x"), Err(Errno::EINVAL));
    let vfs = enable(rig, NVME, 1);
    let vf = &vfs[0];
    assert_eq!(rig.text(&autoprobe).unwrap(), "0");
    let driver = || rig.link(format!("{}/driver", device(vf)));
    rig.write("bus/pci/drivers_probe", vf).unwrap();
    assert_eq!(driver(), None);
    rig.write(format!("{}/driver_override", device(vf)), "vfio-pci\n").unwrap();
    rig.write("bus/pci/drivers_probe", vf).unwrap();
    assert_eq!(driver().as_deref(), Some("vfio-pci"));
    disable(rig, NVME);
}

/// The engine enables VFs unbound and with their override, shows them free, and
/// refuses what cannot be.
pub fn the_engine_sets_it(rig: &Rig) {
    let engine = rig.engine();
    for (pf, total) in [(IGB, 7), (NVME, 4)] {
        let slug = if pf == IGB { "8086:10c9-vf" } else { "1b36:0010-vf" }.replace(':', "-");
        let shown = profile(&engine, pf, &slug);
        assert_eq!((shown.available, shown.total), (0, total));
        assert_eq!(shown.reason.unwrap().code, ReasonCode::NoFunctionsEnabled);
        let error = refused(&engine, &request(pf, &slug));
        assert_eq!(error.code(), "no-functions-enabled");
        let error = set_count(&engine, pf, total + 1).unwrap_err();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::InvalidArgument, "too-many-functions")
        );
        assert_eq!(set_count(&engine, "mtty", 1).unwrap_err().kind(), ErrorKind::NotSupported);

        set_count(&engine, pf, 2).unwrap();
        let snapshot = engine.snapshot();
        let functions = &snapshot.gpu(&gpu(pf)).unwrap().functions;
        let states: Vec<_> = functions.iter().map(|function| function.state).collect();
        assert_eq!(states, [FunctionState::Free; 2]);
        for function in functions {
            let path = format!("{}/driver_override", device(function.address));
            assert_eq!(rig.text(path).unwrap(), "vfio-pci");
        }
        assert_eq!(rig.text(format!("{}/sriov_drivers_autoprobe", device(pf))).unwrap(), "1");
        set_count(&engine, pf, 2).unwrap();

        let made = create(&engine, pf, &slug);
        let error = set_count(&engine, pf, 3).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Busy, "functions-in-use"));
        assert_eq!(set_count(&engine, pf, 0).unwrap_err().code(), "functions-in-use");
        remove(&engine, made.uuid).unwrap();

        // From one count to another by way of 0.
        set_count(&engine, pf, 3).unwrap();
        assert_eq!(engine.snapshot().gpu(&gpu(pf)).unwrap().vf_count, 3);
        assert_eq!(profile(&engine, pf, &slug).available, 3);
        set_count(&engine, pf, 0).unwrap();
        assert_eq!(engine.snapshot().gpu(&gpu(pf)).unwrap().functions, []);
    }
}
