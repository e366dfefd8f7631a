#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;

use tempfile::TempDir;

use super::*;

/// A host with these paths, all of them directories.
fn host(paths: &[&str]) -> (TempDir, Host) {
    let root = TempDir::new().unwrap();
    for path in paths {
        fs::create_dir_all(root.path().join(path)).unwrap();
    }
    let host = Host::below(root.path());
    (root, host)
}

fn statuses(checks: &[Check]) -> Vec<(&str, Status)> {
    checks.iter().map(|check| (check.check, check.status)).collect()
}

#[test]
fn a_bare_host_fails_with_a_remedy_each() {
    let (_root, host) = host(&[]);
    let checks = of_host(&host);
    assert_eq!(
        statuses(&checks[..5]),
        [
            ("iommu", Status::Fail),
            ("iommu-groups", Status::Fail),
            ("vfio", Status::Fail),
            ("vfio-pci", Status::Fail),
            ("mdev", Status::Ok),
        ]
    );
    assert!(checks.iter().all(|check| (check.status == Status::Ok) == check.remedy.is_none()));
}

#[test]
fn a_ready_host_passes() {
    let (root, host) = host(&[
        "sys/class/iommu/dmar0",
        "sys/kernel/iommu_groups/0",
        "sys/kernel/iommu_groups/1",
        "sys/class/vfio",
        "sys/class/vfio-dev",
        "sys/bus/pci/drivers/vfio-pci",
        "sys/class/mdev_bus/mtty",
        "dev/iommu",
        "proc/self",
    ]);
    fs::write(root.path().join("proc/self/status"), "Name:\tx\nCapEff:\t000001ffffffffff\n")
        .unwrap();
    let text: String = of_host(&host).iter().map(Check::text).collect();
    assert_eq!(
        text,
        "ok    iommu         in use, 1 unit\n\
         ok    iommu-groups  2 groups\n\
         ok    vfio          loaded, with device nodes of their own (iommufd)\n\
         ok    vfio-pci      loaded\n\
         ok    mdev          1 parent\n\
         ok    memlock       the caller may lock any amount (CAP_IPC_LOCK)\n"
    );
}

#[test]
fn an_ordinary_user_has_a_limit() {
    let (root, host) = host(&["proc/self"]);
    fs::write(root.path().join("proc/self/status"), "CapEff:\t0000000000000000\n").unwrap();
    assert!(!host.may_lock_all());
    assert_eq!((locked(0), locked(65536)), ("nothing".to_owned(), "64 KiB".to_owned()));
}
