//! Mediated devices.

use nix::errno::Errno;
use uuid::Uuid;

use super::*;

const T4: &str = "class/mdev_bus/0000:3b:00.0";
const BUS: &str = "bus/mdev/devices";

fn uuid(n: u128) -> String {
    Uuid::from_u128(n).to_string()
}

#[test]
fn a_created_mdev_has_all_its_links() {
    let sim = builtin();
    sim.make(MTTY, "mtty-2", &UUID.to_uppercase()).unwrap();
    let dir = format!("devices/virtual/mtty/mtty/{UUID}");
    assert_eq!(sim.link_text(&format!("{BUS}/{UUID}")).unwrap(), format!("../../../{dir}"));
    let ty = sim.link_text(&format!("{dir}/mdev_type")).unwrap();
    assert_eq!(ty, "../mdev_supported_types/mtty-2");
    assert_eq!(sim.link(&format!("{dir}/driver")).unwrap(), "vfio_mtty");
    let group = sim.link(&format!("{dir}/iommu_group")).unwrap();
    assert_eq!(sim.list(&format!("kernel/iommu_groups/{group}/devices")), [UUID]);
    assert_eq!(sim.list(&format!("{MTTY}/mdev_supported_types/mtty-2/devices")), [UUID]);
    assert_eq!(sim.list("bus/mdev/drivers/vfio_mtty"), [UUID]);
    assert!(sim.list("class/vfio").contains(&group));
}

#[test]
fn the_uuid_must_have_36_characters_or_37() {
    let sim = builtin();
    let braced = format!("{{{UUID}}}");
    let spoiled = UUID.replace('8', "g");
    for text in ["x", &UUID[..35], &braced, &spoiled, "83b8f4f2509f382f3c1ee6bfe0fa10010000"] {
        assert_eq!(sim.make(MTTY, "mtty-1", text), Err(Errno::EINVAL), "{text:?}");
    }
    assert_eq!(sim.make(MTTY, "mtty-1", &format!("{UUID}\n")), Ok(()));
}

#[test]
fn a_uuid_exists_once_on_the_host() {
    let sim = builtin();
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    assert_eq!(sim.make(MTTY, "mtty-1", UUID), Err(Errno::EEXIST));
    assert_eq!(sim.make("class/mdev_bus/mdpy", "mdpy-vga", UUID), Err(Errno::EEXIST));
}

#[test]
fn a_shared_capacity_counts_for_all_types() {
    let sim = builtin();
    assert_eq!((sim.left(MTTY, "mtty-1"), sim.left(MTTY, "mtty-2")), ("24".into(), "12".into()));
    sim.make(MTTY, "mtty-2", UUID).unwrap();
    assert_eq!((sim.left(MTTY, "mtty-1"), sim.left(MTTY, "mtty-2")), ("22".into(), "11".into()));
    let mbochs = "class/mdev_bus/mbochs";
    sim.make(mbochs, "mbochs-large", &uuid(1)).unwrap();
    let left = ["mbochs-small", "mbochs-medium", "mbochs-large"].map(|ty| sim.left(mbochs, ty));
    assert_eq!(left, ["48", "12", "3"]);
}

#[test]
fn full_is_enospc_from_the_driver_and_eusers_from_the_core() {
    let sim = builtin();
    (0..24).for_each(|n| sim.make(MTTY, "mtty-1", &uuid(n)).unwrap());
    assert_eq!(sim.left(MTTY, "mtty-1"), "0");
    let heard = sim.heard();
    assert_eq!(sim.make(MTTY, "mtty-1", UUID), Err(Errno::ENOSPC));
    // The driver refuses a device that was on the bus already.
    let mdev = |action| format!("{action} mdev:{UUID}");
    assert_eq!(*heard.lock().unwrap(), [mdev("add"), mdev("remove")]);
    assert!(!sim.has(&format!("{MTTY}/{UUID}")));
    heard.lock().unwrap().clear();

    let mdpy = "class/mdev_bus/mdpy";
    (100..104).for_each(|n| sim.make(mdpy, "mdpy-hd", &uuid(n)).unwrap());
    heard.lock().unwrap().clear();
    assert_eq!(sim.make(mdpy, "mdpy-vga", UUID), Err(Errno::EUSERS));
    assert!(heard.lock().unwrap().is_empty());
}

#[test]
fn on_a_homogeneous_gpu_the_first_decides() {
    let sim = builtin();
    assert_eq!((sim.left(T4, "nvidia-232"), sim.left(T4, "nvidia-230")), ("4".into(), "16".into()));
    sim.make(T4, "nvidia-232", UUID).unwrap();
    // 4Q, 4A and 4C mix; a free slot of another size gives EINVAL.
    let left = ["nvidia-232", "nvidia-227", "nvidia-319", "nvidia-230"].map(|ty| sim.left(T4, ty));
    assert_eq!(left, ["3", "3", "3", "0"]);
    assert_eq!(sim.make(T4, "nvidia-230", &uuid(1)), Err(Errno::EINVAL));
    sim.put(&format!("{BUS}/{UUID}/remove"), "1").unwrap();
    assert_eq!(sim.left(T4, "nvidia-230"), "16");
}

#[test]
fn remove_takes_a_number_and_zero_does_nothing() {
    let sim = builtin();
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    let remove = format!("{BUS}/{UUID}/remove");
    assert_eq!(sim.put(&remove, "please"), Err(Errno::EINVAL));
    assert_eq!(sim.put(&remove, "0"), Ok(()));
    assert!(sim.has(&remove));
    assert_eq!(sim.put(&remove, "1\n"), Ok(()));
    assert!(!sim.has(&format!("{MTTY}/{UUID}")) && sim.list(BUS).is_empty());
    assert_eq!(sim.put(&remove, "1"), Err(Errno::ENOENT));
    assert_eq!(sim.left(MTTY, "mtty-1"), "24");
}

#[test]
fn a_remove_that_blocks_leaves_half_of_the_mdev() {
    let sim = builtin();
    sim.make(MTTY, "mtty-2", UUID).unwrap();
    let dir = format!("{MTTY}/{UUID}");
    let group = sim.group_node(&dir);
    let guest = sim.hold(&group, 7, "qemu").unwrap();
    let heard = sim.heard();
    let events = sim.events();
    let (clone, path) = (sim.clone(), format!("{BUS}/{UUID}/remove"));
    let remove = start(move || clone.put(&path, "1"));
    wait_for(&events, "remove vfio-dev:");
    assert!(remove.is_blocked());
    // Measured on Linux 6.12, point by point.
    assert!(sim.has(&dir) && sim.has(&format!("{dir}/iommu_group")));
    for gone in ["mdev_type", "driver", "vfio-dev", "remove"] {
        assert!(!sim.has(&format!("{dir}/{gone}")), "{gone} is there");
    }
    assert_eq!(sim.open_node(&group).err(), Some(Errno::EBUSY));
    assert_eq!(sim.left(MTTY, "mtty-1"), "22");
    assert_eq!(sim.make(MTTY, "mtty-1", UUID), Err(Errno::EEXIST));
    let events = heard.lock().unwrap().clone();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].starts_with("remove vfio-dev:"), "{events:?}");
    assert_eq!(sim.make(MTTY, "mtty-1", &uuid(1)), Ok(()));
    drop(guest);
    assert_eq!(remove.end(), Ok(()));
    assert!(!sim.has(&dir));
    assert_eq!(sim.left(MTTY, "mtty-1"), "23");
}

#[test]
fn an_mdev_that_is_being_made_cannot_be_removed_yet() {
    let sim = builtin();
    let answers = Arc::<Mutex<Vec<_>>>::default();
    let (sink, clone) = (answers.clone(), sim.clone());
    sim.on_event(Box::new(move |event| {
        if event.action == "bind" {
            sink.lock().unwrap().push(clone.put(&format!("{BUS}/{UUID}/remove"), "1"));
        }
    }));
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    assert_eq!(*answers.lock().unwrap(), [Err(Errno::EAGAIN)]);
}

#[test]
fn a_parent_takes_its_mdevs_along() {
    let sim = builtin();
    sim.make(T4, "nvidia-230", UUID).unwrap();
    let heard = sim.heard();
    sim.put("bus/pci/drivers/nvidia/unbind", "0000:3b:00.0").unwrap();
    assert!(sim.list(BUS).is_empty() && !sim.has(T4));
    assert!(heard.lock().unwrap().contains(&"change pci:0000:3b:00.0".to_owned()));
    sim.put("bus/pci/drivers/nvidia/bind", "0000:3b:00.0").unwrap();
    assert_eq!(sim.left(T4, "nvidia-230"), "16");
}

#[test]
fn vfs_that_are_parents_share_the_gpus_capacity() {
    let sim = host(
        r#"
        [mdev-kind.a2]
        driver = "nvidia-vgpu-vfio"
        units = 16
        homogeneous = "size"
        per-parent = 1
        types = [
          { id = "nvidia-746", name = "NVIDIA A2-4Q", size = 4, max = 4 },
          { id = "nvidia-751", name = "NVIDIA A2-4A", size = 4, max = 4 },
          { id = "nvidia-744", name = "NVIDIA A2-1Q", size = 1, max = 16 },
        ]

        [[pci]]
        address = "0000:08:00.0"
        vendor = 0x10de
        device = 0x25b6
        class = 0x030200
        driver = "nvidia"

        [pci.sriov]
        total-vfs = 16
        offset = 4
        vf-device = 0x25b6
        vf-driver = "nvidia"
        enabled = 16
        mdev = "a2"
        "#,
    );
    let vf = |n: usize| {
        let vf = sim.link(&format!("bus/pci/devices/0000:08:00.0/virtfn{n}")).unwrap();
        format!("class/mdev_bus/{vf}")
    };
    assert_eq!(vf(15), "class/mdev_bus/0000:08:02.3");
    for n in 0..3 {
        sim.make(&vf(n), "nvidia-746", &uuid(n as u128)).unwrap();
    }
    let left = |n| ["nvidia-746", "nvidia-751", "nvidia-744"].map(|ty| sim.left(&vf(n), ty));
    assert_eq!((left(3), left(0)), (["1", "1", "0"].map(Into::into), ["0"; 3].map(Into::into)));
    assert_eq!(sim.make(&vf(0), "nvidia-746", &uuid(9)), Err(Errno::ENOSPC));
}

#[test]
fn group_and_vfio_numbers_are_reused_at_once() {
    let sim = builtin();
    let dir = format!("{MTTY}/{UUID}");
    let numbers = || (sim.group_node(&dir), sim.list(&format!("{dir}/vfio-dev")));
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    let (first, inode) = (numbers(), sim.read(&dir, ReadKind::Inode));
    sim.put(&format!("{dir}/remove"), "1").unwrap();
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    assert_eq!(numbers(), first);
    assert_ne!(sim.read(&dir, ReadKind::Inode), inode);
}
