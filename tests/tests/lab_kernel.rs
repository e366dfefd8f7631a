//! The real kernel layer on a real kernel: attributes, nodes, holders, probes
//! and uevents, on the sample mdev drivers and a virtual function of an NVMe
//! controller.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    env,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use nix::errno::Errno;
use vgpu_mdev::sys::{
    HolderQuery, Kernel, KernelEvent, NodePath, ProbeTarget, Read, ReadBatch, SysPath, Value,
    real::{MonitorHandle, MonitorItem, Programs, RealKernel, Roots, monitor},
};
use vgpu_tests::lab;

/// Several times what the emulated machine needs.
const LONG: Duration = Duration::from_secs(60);
const PF: &str = "bus/pci/devices/0000:02:00.0";
const MTTY: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";
const MBOCHS: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa2001";
const MDPY: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa3001";

fn sys(path: impl Into<String>) -> SysPath {
    SysPath::new(path).unwrap()
}

fn node(path: &str) -> NodePath {
    NodePath::new(path).unwrap()
}

struct Lab {
    kernel: RealKernel,
    events: Receiver<MonitorItem>,
    _monitor: MonitorHandle,
}

impl Lab {
    fn new() -> Self {
        let probe = PathBuf::from(env::var_os("VGPU_BIN_DIR").unwrap()).join("vgpu-vfio-probe");
        let programs = Programs { probe, ..Programs::default() };
        let (item, events) = channel();
        let monitor = monitor(move |new| drop(item.send(new))).unwrap();
        let kernel = RealKernel::new(&Roots::default(), programs).unwrap();
        Self { kernel, events, _monitor: monitor }
    }

    fn write(&self, path: &str, value: &str) {
        self.kernel.write(&sys(path), value).unwrap_or_else(|errno| panic!("{path}: {errno}"));
    }

    fn read(&self, base: &str, read: Read) -> Result<Value, Errno> {
        self.kernel.read_batch(&ReadBatch { base: sys(base), reads: vec![read] }).remove(0)
    }

    fn link(&self, base: &str, path: &'static str) -> String {
        match self.read(base, Read::link(path)) {
            Ok(Value::Link(name)) => name,
            other => panic!("{base}/{path}: {other:?}"),
        }
    }

    /// Waits for an event, those before it left aside.
    fn event(&self, wanted: impl Fn(&KernelEvent) -> bool) -> KernelEvent {
        let end = Instant::now() + LONG;
        let mut seen = Vec::new();
        loop {
            match self.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(MonitorItem::Event(event)) if wanted(&event) => return event,
                Ok(item) => seen.push(item),
                Err(RecvTimeoutError::Timeout) => panic!("no such event; seen: {seen:#?}"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The group node of a device, once VFIO has it.
    fn group(&self, device: &str) -> NodePath {
        let name = device.rsplit('/').next().unwrap();
        let below = format!("/{name}/vfio-dev/");
        self.event(|event| event.action == "add" && event.devpath.contains(&below));
        node(&format!("vfio/{}", self.link(device, "iommu_group")))
    }

    /// The device's own node, where the kernel has such.
    fn cdev(&self, device: &str) -> Option<NodePath> {
        let Ok(Value::Names(names)) = self.read(device, Read::names("vfio-dev")) else {
            return None;
        };
        let node = node(&format!("vfio/devices/{}", names[0]));
        Path::new(&node.to_string()).exists().then_some(node)
    }

    fn create(&self, parent: &str, kind: &str, uuid: &str) -> ProbeTarget {
        self.write(&format!("class/mdev_bus/{parent}/mdev_supported_types/{kind}/create"), uuid);
        self.target(format!("bus/mdev/devices/{uuid}"))
    }

    fn target(&self, device: String) -> ProbeTarget {
        let group = Some(self.group(&device));
        let cdev = self.cdev(&device);
        assert_eq!(cdev.is_some(), env::var("VGPU_LAB_TREE").unwrap() == "cdev");
        ProbeTarget { device: sys(device), group, cdev }
    }

    fn remove(&self, target: &ProbeTarget) {
        self.write(&format!("{}/remove", target.device.as_str()), "1");
        let uuid = target.device.as_str().rsplit('/').next().unwrap();
        self.event(|event| event.action == "remove" && event.devpath.ends_with(uuid));
    }
}

/// Both ways to open a device: by its group, and by its own node where there
/// are such.
fn ways(target: &ProbeTarget) -> Vec<(&'static str, ProbeTarget)> {
    let mut ways = vec![("group", ProbeTarget { cdev: None, ..target.clone() })];
    if target.cdev.is_some() {
        ways.push(("cdev", target.clone()));
        ways.push(("cdev", ProbeTarget { group: None, ..target.clone() }));
    }
    ways
}

#[test]
fn mdevs_are_probed() {
    lab::require();
    let lab = Lab::new();
    // Of the sample drivers' sources: PCI ids, and the size of region 0.
    for (parent, kind, uuid, ids, size) in [
        ("mtty", "mtty-2", MTTY, (0x4348, 0x3253), 8),
        ("mbochs", "mbochs-small", MBOCHS, (0x1234, 0x1111), 4 << 20),
        ("mdpy", "mdpy-vga", MDPY, (0x1b36, 0x000f), 2 << 20),
    ] {
        let target = lab.create(parent, kind, uuid);
        for (interface, way) in ways(&target) {
            let report = lab.kernel.probe(&way, LONG).unwrap_or_else(|e| panic!("{way:?}: {e}"));
            assert_eq!(report.interface, interface, "{way:?}");
            assert_eq!(report.pci_ids, Some(ids), "{report:?}");
            assert_eq!((report.regions[0].index, report.regions[0].size), (0, size));
            assert!(report.regions.iter().any(|r| r.index == 7 && r.readable == Some(true)));
            assert!(report.dma_map, "{report:?}");
            assert_eq!((report.can_reset, report.reset), (false, None));
            let migrates = parent == "mtty";
            assert_eq!(report.migration.contains(&"stop-copy".into()), migrates, "{report:?}");
        }
        lab.remove(&target);
    }
}

#[test]
fn a_virtual_function_is_probed_and_reset() {
    lab::require();
    let lab = Lab::new();
    lab.write(&format!("{PF}/sriov_drivers_autoprobe"), "0");
    lab.write(&format!("{PF}/sriov_numvfs"), "1");
    let vf = lab.link(PF, "virtfn0");
    let device = format!("bus/pci/devices/{vf}");
    lab.write(&format!("{device}/driver_override"), "vfio-pci");
    lab.write("bus/pci/drivers_probe", &vf);
    let target = lab.target(device.clone());
    for (interface, way) in ways(&target) {
        let report = lab.kernel.probe(&way, LONG).unwrap_or_else(|e| panic!("{way:?}: {e}"));
        assert_eq!(report.interface, interface, "{way:?}");
        assert_eq!(report.pci_ids, Some((0x1b36, 0x0010)));
        assert!(report.dma_map && report.can_reset, "{report:?}");
        assert_eq!((report.reset, report.reset_errno), (Some(true), None));
    }
    // The device's own text, through its link in /sys/bus.
    let vendor = lab.read(&device, Read::text("physfn/vendor")).unwrap();
    assert_eq!(vendor, Value::Text("0x1b36\n".into()));
    lab.write(&format!("{PF}/sriov_numvfs"), "0");
    lab.event(|event| event.action == "remove" && event.devpath.ends_with(&vf));
    assert_eq!(lab.read(&device, Read::text("vendor")), Err(Errno::ENOENT));
    lab.write(&format!("{PF}/sriov_drivers_autoprobe"), "1");
}

#[test]
fn a_held_device_names_its_holder() {
    lab::require();
    let lab = Lab::new();
    let target = lab.create("mtty", "mtty-1", MTTY);
    let group = target.group.clone().unwrap();
    let query = HolderQuery { nodes: vec![group.clone()], pid: None };
    assert_eq!(lab.kernel.holders(&query), Ok(vec![]));
    let path = group.to_string();
    let opened = File::options().read(true).write(true).open(&path).unwrap();
    let mut child =
        Command::new("sleep").arg("infinity").stdin(Stdio::from(opened)).spawn().unwrap();
    let holders = lab.kernel.holders(&query).unwrap();
    let found: Vec<_> = holders.iter().map(|h| (h.pid, &*h.command, &*h.node)).collect();
    assert_eq!(found, [(child.id(), "sleep", &*path)]);
    for (_, way) in ways(&target) {
        let failure = lab.kernel.probe(&way, LONG).unwrap_err();
        assert_eq!(failure.errno, Some(Errno::EBUSY), "{failure}");
        assert!(failure.message.contains("another process"), "{failure}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(lab.kernel.holders(&query), Ok(vec![]));
    lab.kernel.chown(&group, 1234).unwrap();
    let now = fs::metadata(&path).unwrap();
    assert_eq!((now.uid(), now.mode() & 0o7777), (1234, 0o600));
    drop(lab.kernel.open_node(&group).unwrap());
    lab.remove(&target);
}

#[test]
fn a_group_that_is_not_viable_names_its_members() {
    lab::require();
    let lab = Lab::new();
    // The chipset's functions share a group: the SMBus to VFIO, while the
    // SATA controller keeps its host driver.
    let modprobe = Command::new("modprobe").arg("ahci").status().unwrap();
    assert!(modprobe.success());
    let (smbus, sata) = ("0000:00:1f.3", "0000:00:1f.2");
    assert_eq!(lab.link(&format!("bus/pci/devices/{sata}"), "driver"), "ahci");
    let device = format!("bus/pci/devices/{smbus}");
    if let Ok(Value::Link(_)) = lab.read(&device, Read::link("driver")) {
        lab.write(&format!("{device}/driver/unbind"), smbus);
    }
    lab.write(&format!("{device}/driver_override"), "vfio-pci");
    lab.write("bus/pci/drivers_probe", smbus);
    let target = lab.target(device.clone());
    let way = ProbeTarget { cdev: None, ..target };
    let failure = lab.kernel.probe(&way, LONG).unwrap_err();
    assert!(failure.message.contains("is not viable"), "{failure}");
    assert!(failure.message.contains("0000:00:1f.2 is bound to ahci"), "{failure}");
    lab.write(&format!("{device}/driver/unbind"), smbus);
    lab.write(&format!("{device}/driver_override"), "\n");
}

#[test]
fn a_parent_that_comes_and_goes_is_seen() {
    lab::require();
    let lab = Lab::new();
    let modprobe = |argument| {
        let status = Command::new("modprobe").args([argument, "mdpy"]).status().unwrap();
        assert!(status.success());
    };
    let is_parent = |event: &KernelEvent| event.devpath == "/devices/virtual/mdpy/mdpy";
    modprobe("-r");
    // The tag that came with `MDEV_STATE` stays, so its end is seen as well.
    lab.event(|event| is_parent(event) && event.action == "remove");
    modprobe("-a");
    let event = lab.event(is_parent);
    assert_eq!((&*event.action, &*event.subsystem), ("change", "mdpy"));
    let registered = ("MDEV_STATE".into(), "registered".into());
    assert!(event.properties.contains(&registered), "{event:?}");
}
