//! The simulated sysfs through real system calls.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{fs, io, os::unix::fs::MetadataExt, path::PathBuf, sync::mpsc, thread, time::Duration};

use nix::errno::Errno;
use vgpu_mdev::sys::{NodePath, sim::HostSpec};
use vgpu_tests::simulated::Mounted;

const UUID: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";

struct Host(Mounted);

impl Host {
    fn new() -> Self {
        Self(Mounted::new(&HostSpec::builtin().unwrap()))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.sys().join(path)
    }

    fn read(&self, path: &str) -> Result<String, Errno> {
        fs::read_to_string(self.path(path)).map_err(errno)
    }

    fn write(&self, path: &str, text: &str) -> Result<(), Errno> {
        fs::write(self.path(path), text).map_err(errno)
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap())
}

#[test]
fn system_calls_give_the_kernels_answers() {
    let host = Host::new();
    let pf = "bus/pci/devices/0000:41:00.0";
    assert_eq!(host.read(&format!("{pf}/vendor")).unwrap(), "0x8086\n");
    assert_eq!(host.write(&format!("{pf}/sriov_numvfs"), "abc"), Err(Errno::EINVAL));
    assert_eq!(host.write(&format!("{pf}/sriov_numvfs"), "32"), Err(Errno::ERANGE));
    assert_eq!(host.write(&format!("{pf}/sriov_numvfs"), "2"), Ok(()));
    assert_eq!(host.write(&format!("{pf}/sriov_numvfs"), "3"), Err(Errno::EBUSY));
    assert_eq!(host.read(&format!("{pf}/sriov_numvfs")).unwrap(), "2\n");
    assert_eq!(host.write(&format!("{pf}/vendor"), "1"), Err(Errno::EACCES));
    assert_eq!(host.read(&format!("{pf}/reset")), Err(Errno::EACCES));
    assert_eq!(host.write(&format!("{pf}/nothing"), "1"), Err(Errno::EACCES));
    assert_eq!(host.read(&format!("{pf}/nothing")), Err(Errno::ENOENT));
    let link = fs::read_link(host.path(&format!("{pf}/virtfn1"))).unwrap();
    assert_eq!(link.to_str(), Some("../0000:41:00.2"));
    assert_eq!(host.read(&format!("{pf}/virtfn1/device")).unwrap(), "0x56c1\n");
    // An empty write reaches no attribute.
    host.write(&format!("{pf}/driver_override"), "x\n").unwrap();
    host.write(&format!("{pf}/driver_override"), "").unwrap();
    assert_eq!(host.read(&format!("{pf}/driver_override")).unwrap(), "x\n");
}

#[test]
fn directories_list_what_is_there_now() {
    let host = Host::new();
    let names = |path: &str| {
        let listed = fs::read_dir(host.path(path)).unwrap();
        let mut names: Vec<_> =
            listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names("class/mdev_bus"), ["0000:3b:00.0", "mbochs", "mdpy", "mtty"]);
    assert!(names("bus/mdev/devices").is_empty());
    let create = "class/mdev_bus/mtty/mdev_supported_types/mtty-1/create";
    host.write(create, UUID).unwrap();
    assert_eq!(names("bus/mdev/devices"), [UUID]);
    let inode = || fs::metadata(host.path(&format!("bus/mdev/devices/{UUID}"))).unwrap().ino();
    let first = inode();
    assert_eq!(inode(), first);
    host.write(&format!("bus/mdev/devices/{UUID}/remove"), "1").unwrap();
    assert!(names("bus/mdev/devices").is_empty());
    host.write(create, UUID).unwrap();
    assert_ne!(inode(), first);
}

/// What the kernel keeps of the tree ends with the device that it belongs to.
#[test]
fn what_was_looked_up_goes_with_its_device() {
    let host = Host::new();
    let available =
        "class/mdev_bus/0000:3b:00.0/mdev_supported_types/nvidia-231/available_instances";
    let below = available.replace("class/mdev_bus/0000:3b:00.0", "devices/pci0000:00/0000:3b:00.0");
    for _ in 0..2 {
        assert_eq!(host.read(available).unwrap(), "8\n");
        assert_eq!(host.read(&below).unwrap(), "8\n");
        host.write("bus/pci/drivers/nvidia/unbind", "0000:3b:00.0").unwrap();
        assert_eq!(host.read(available), Err(Errno::ENOENT));
        assert_eq!(host.read(&below), Err(Errno::ENOENT));
        host.write("bus/pci/drivers/nvidia/bind", "0000:3b:00.0").unwrap();
    }
    assert_eq!(host.read(available).unwrap(), "8\n");
}

#[test]
fn a_store_that_blocks_blocks_itself_alone() {
    let host = Host::new();
    host.write("class/mdev_bus/mtty/mdev_supported_types/mtty-1/create", UUID).unwrap();
    let device = format!("bus/mdev/devices/{UUID}");
    let group = fs::read_link(host.path(&format!("{device}/iommu_group"))).unwrap();
    let group = group.file_name().unwrap().to_str().unwrap().to_owned();
    let guest = host
        .0
        .simulation
        .hold(&NodePath::new(format!("vfio/{group}")).unwrap(), 1, "qemu")
        .unwrap();
    let remove = host.path(&format!("{device}/remove"));
    let (heard, events) = mpsc::channel();
    host.0.simulation.on_event(Box::new(move |event| {
        let _ = heard.send(format!("{} {}", event.action, event.subsystem));
    }));
    let (send, receive) = mpsc::channel();
    thread::spawn(move || send.send(fs::write(remove, "1").map_err(errno)));
    let event = events.recv_timeout(Duration::from_secs(10)).expect("the remove does not begin");
    assert_eq!(event, "remove vfio-dev");
    assert!(!host.path(&device).exists());
    assert!(receive.recv_timeout(Duration::from_millis(100)).is_err(), "it does not block");
    let left = "class/mdev_bus/mtty/mdev_supported_types/mtty-1/available_instances";
    assert_eq!(host.read(left).unwrap(), "23\n");
    drop(guest);
    assert_eq!(receive.recv_timeout(Duration::from_secs(10)).unwrap(), Ok(()));
    assert_eq!(host.read(left).unwrap(), "24\n");
}
