//! What the service leaves behind, and what it finds again.

use std::{fs, process::Command};

use serde_json::Value;
use vgpu_tests::{conformance::IGB, lab};

use crate::service::Service;

/// All objects with all properties.
fn objects() -> Value {
    let output = Command::new("busctl")
        .args(["--system", "--json=short", "call", "org.vgpu.Host1", "/org/vgpu/Host1"])
        .args(["org.freedesktop.DBus.ObjectManager", "GetManagedObjects"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn killed_and_started_again_it_shows_the_same() {
    let mut service = Service::start().await;
    let named = service
        .create_with(
            "mbochs-small",
            [("gpu", "mbochs".into()), ("name", "guest-1".into()), ("owner-uid", 4711u32.into())],
        )
        .await;
    service.set_count(IGB, 2).await;
    let function = service.create(IGB, "8086-10c9-vf").await;
    let foreign = "83b8f4f2-509f-382f-3c1e-e6bfe0fa4321";
    let types = "/sys/class/mdev_bus/mtty/mdev_supported_types";
    fs::write(format!("{types}/mtty-1/create"), foreign).unwrap();
    service.manager().await.rescan().await.unwrap();
    let before = objects();
    service.kill_and_restart().await;
    assert_eq!(before, objects());
    assert_eq!(service.manager().await.get_vgpu("guest-1").await.unwrap(), named);
    service.remove(&named).await;
    service.remove(&function).await;
    service.set_count(IGB, 0).await;
    fs::write(format!("/sys/class/mdev_bus/mtty/{foreign}/remove"), "1").unwrap();
    service.stop().await;
}

const UUID: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa5678";

/// Resident bytes and open descriptors of a process.
fn uses(pid: u32) -> (u64, usize) {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    (pages * 4096, fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

#[tokio::test]
async fn a_hundred_cycles_leave_nothing() {
    let service = Service::start().await;
    let cycles = async |count: u32| {
        for _ in 0..count {
            // The same one again: the lane of another would live on for a while.
            let options = [("gpu", "mtty".into()), ("uuid", UUID.into())];
            let vgpu = service.create_with("mtty-1", options).await;
            service.remove(&vgpu).await;
        }
    };
    // By then its allocator and its threads have what they need.
    cycles(20).await;
    let (tree, (memory, descriptors)) = (lab::picture(), uses(service.pid()));
    cycles(100).await;
    assert_eq!(tree.difference(&lab::picture()), Vec::<String>::new());
    let (memory_after, descriptors_after) = uses(service.pid());
    assert_eq!(descriptors, descriptors_after, "descriptors are left open");
    // What 100 vGPUs are if nothing of them were given back: some 10 KiB each,
    // were it only their facts.
    let grown = memory_after.saturating_sub(memory);
    assert!(grown < 512 * 1024, "{grown} bytes more, after {memory}");
    service.stop().await;
}
