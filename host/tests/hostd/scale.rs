//! 4,096 vGPUs: large replies cost no lasting memory, and introspection does
//! not list them.

use std::{fmt::Write as _, fs};

use vgpu_host_api::wire::VgpuEntry;

use crate::{
    bus::{Bus, MANAGER, Options, ROOT, call},
    daemon::Daemon,
};

const COUNT: usize = 4096;
/// The design's goal after ten of each large reply.
const LARGEST_KIB: u64 = 64 * 1024;

/// One mdev parent with 4,096 vGPUs.
fn host() -> String {
    let mut text = String::from(
        "[[virtual-parent]]\nname = \"big\"\nmdev = \"big\"\n\
         [mdev-kind.big]\ndriver = \"vfio_big\"\nunits = 5000\nguest-ids = [0x4348, 0x3253]\n\
         types = [{ id = \"big-1\", name = \"One\", size = 1 }]\n",
    );
    for number in 1..=COUNT {
        let uuid = uuid::Uuid::from_u128(0x1111_2222_3333_4444 << 64 | number as u128);
        let _ = write!(text, "[[mdev]]\nuuid = \"{uuid}\"\nparent = \"big\"\ntype = \"big-1\"\n");
    }
    text
}

#[tokio::test]
async fn thousands_of_vgpus() {
    let bus = Bus::start();
    let file = bus.dir.path().join("host.toml");
    fs::write(&file, host()).unwrap();
    let daemon = Daemon::of_host(&bus, &file);
    let connection = bus.connect().await;
    let object_manager = "org.freedesktop.DBus.ObjectManager";
    for _ in 0..10 {
        let reply =
            call(&connection, ROOT, object_manager, "GetManagedObjects", &()).await.unwrap();
        assert!(reply.body().len() > COUNT * 300, "{}", reply.body().len());
        let reply =
            call(&connection, ROOT, MANAGER, "ListVgpus", &(Options::new(),)).await.unwrap();
        let rows: Vec<VgpuEntry<'_>> = reply.body().deserialize().unwrap();
        assert_eq!(rows.len(), COUNT);
        for path in ["/", ROOT, "/org/vgpu/Host1/vgpus"] {
            let introspectable = "org.freedesktop.DBus.Introspectable";
            let reply = call(&connection, path, introspectable, "Introspect", &()).await.unwrap();
            assert!(reply.body().len() < 8192, "{path}: {}", reply.body().len());
        }
    }
    let resident = daemon.resident_kib();
    assert!(resident < LARGEST_KIB, "{resident} KiB resident");
}
