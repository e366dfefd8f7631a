//! What the service is for: vGPUs of each framework, made, probed and removed.

use vgpu_host_api::{error, proxy::Options};
use vgpu_tests::conformance::{IGB, NVME};

use crate::service::{Service, error_name, fact};

/// Whether the guest's VFIO has cdevs.
pub(crate) fn interface() -> &'static str {
    if std::env::var("VGPU_LAB_TREE").unwrap() == "cdev" { "cdev" } else { "group" }
}

#[tokio::test]
async fn mdevs_are_made_probed_and_removed() {
    let service = Service::start().await;
    for (gpu, profile, ids) in [
        ("mbochs", "mbochs-medium", "1234:1111"),
        ("mdpy", "mdpy-hd", "1b36:000f"),
        ("mtty", "mtty-2", "4348:3253"),
    ] {
        let path = service.create(gpu, profile).await;
        let vgpu = service.vgpu(&path).await;
        assert_eq!(vgpu.state().await.unwrap(), "active");
        assert_eq!(vgpu.framework().await.unwrap(), "mdev");
        assert_eq!(vgpu.profile().await.unwrap(), profile);
        assert!(vgpu.managed().await.unwrap());
        let report = vgpu.probe().await.unwrap();
        assert_eq!(fact::<String>(&report, "Interface"), interface(), "{gpu}");
        assert_eq!(fact::<String>(&report, "PciIds"), ids);
        assert!(fact::<bool>(&report, "DmaMap"), "{gpu}");
        service.remove(&path).await;
        assert_eq!(error_name(vgpu.probe().await), error::standard::UNKNOWN_OBJECT);
    }
    service.stop().await;
}

#[tokio::test]
async fn functions_are_enabled_bound_probed_and_released() {
    let service = Service::start().await;
    for (pf, profile, ids) in
        [(IGB, "8086-10c9-vf", "8086:10ca"), (NVME, "1b36-0010-vf", "1b36:0010")]
    {
        service.set_count(pf, 2).await;
        let gpu = service.gpu(pf).await;
        assert_eq!(gpu.vf_count().await.unwrap(), 2);
        let made = [service.create(pf, profile).await, service.create(pf, profile).await];
        let full = service.manager().await;
        let options = Options::from([("gpu", pf.into())]);
        assert_eq!(error_name(full.create_vgpu(profile, &options).await), error::NO_CAPACITY);
        let refused = gpu.set_vf_count(0, &Options::new()).await;
        assert_eq!(error_name(refused), error::BUSY);
        for path in &made {
            let vgpu = service.vgpu(path).await;
            assert_eq!(vgpu.state().await.unwrap(), "active");
            let report = vgpu.probe().await.unwrap();
            assert_eq!(fact::<String>(&report, "Interface"), interface(), "{pf}");
            assert_eq!(fact::<String>(&report, "PciIds"), ids);
            assert!(fact::<bool>(&report, "DmaMap"), "{pf}");
            assert_eq!(fact::<String>(&report, "Reset"), "ok", "{pf}");
        }
        for path in &made {
            service.remove(path).await;
        }
        service.set_count(pf, 0).await;
        assert_eq!(gpu.vf_count().await.unwrap(), 0);
    }
    service.stop().await;
}

#[tokio::test]
async fn a_whole_device_is_passed_through_and_given_back() {
    let service = Service::start().await;
    let gpu = service.gpu(NVME).await;
    assert_eq!(gpu.driver().await.unwrap(), "nvme");
    let path = service.create(NVME, "1b36-0010-full").await;
    assert_eq!(gpu.driver().await.unwrap(), "vfio-pci");
    let vgpu = service.vgpu(&path).await;
    assert_eq!(vgpu.framework().await.unwrap(), "passthrough");
    assert_eq!(vgpu.address().await.unwrap(), [NVME]);
    let report = vgpu.probe().await.unwrap();
    assert_eq!(fact::<String>(&report, "PciIds"), "1b36:0010");
    assert!(fact::<bool>(&report, "DmaMap"));
    service.remove(&path).await;
    assert_eq!(gpu.driver().await.unwrap(), "nvme");
    service.stop().await;
}

#[tokio::test]
async fn a_device_is_handed_to_the_caller() {
    let service = Service::start().await;
    let path = service.create("mtty", "mtty-1").await;
    let vgpu = service.vgpu(&path).await;
    let opened = vgpu.open_device(&Options::new()).await;
    let own = std::process::id();
    if interface() == "group" {
        assert_eq!(error_name(opened), error::NOT_SUPPORTED);
        let options = Options::from([("group", true.into())]);
        let (fds, _) = vgpu.open_device(&options).await.unwrap();
        assert_eq!(fds.keys().collect::<Vec<_>>(), ["group"]);
        let again = vgpu.open_device(&options).await;
        assert_eq!(error_name(again), error::BUSY);
        assert_eq!(vgpu.get_holders().await.unwrap()[0].pid, own);
    } else {
        let (mut fds, info) = opened.unwrap();
        assert_eq!(fds.len(), 2);
        let node: String = fact(&info, "Node");
        assert!(node.starts_with("/dev/vfio/devices/vfio"), "{node}");
        let mut take = |name: &str| std::os::fd::OwnedFd::from(fds.remove(name).unwrap());
        let (device, iommu) = (take("device"), take("iommu"));
        assert_eq!(vgpu.get_holders().await.unwrap()[0].pid, own);
        assert_eq!(error_name(vgpu.remove(&Options::new()).await), error::BUSY);
        // As a VMM does: bound to an address space.
        let bound = vgpu_mdev::vfio::bind(device.into(), iommu.into()).unwrap();
        drop(bound);
    }
    service.remove(&path).await;
    service.stop().await;
}
