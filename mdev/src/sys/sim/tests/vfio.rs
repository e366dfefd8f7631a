//! Groups, nodes, holders and the probe.

use nix::errno::Errno;

use super::*;
use crate::sys::{HolderQuery, ProbeTarget};

const GPU: &str = "bus/pci/devices/0000:81:00.0";
const AUDIO: &str = "bus/pci/devices/0000:81:00.1";

fn to_vfio(sim: &SimKernel, device: &str) {
    let address = device.rsplit('/').next().unwrap();
    let driver = sim.link(&format!("{device}/driver")).unwrap();
    sim.put(&format!("bus/pci/drivers/{driver}/unbind"), address).unwrap();
    sim.put(&format!("{device}/driver_override"), "vfio-pci").unwrap();
    sim.put("bus/pci/drivers_probe", address).unwrap();
}

fn target(sim: &SimKernel, device: &str, cdev: bool) -> ProbeTarget {
    ProbeTarget {
        device: SysPath::new(device).unwrap(),
        group: Some(sim.group_node(device)),
        cdev: cdev.then(|| sim.cdev_node(device)),
    }
}

#[test]
fn a_legacy_group_opens_once() {
    let sim = builtin().with_vf_on_vfio();
    let group = sim.group_node(VF);
    assert!(sim.open_node(&group).is_ok());
    let guest = sim.hold(&group, 1, "qemu").unwrap();
    assert_eq!(sim.open_node(&group).err(), Some(Errno::EBUSY));
    assert_eq!(sim.hold(&group, 2, "qemu").err(), Some(Errno::EBUSY));
    drop(guest);
    assert!(sim.open_node(&group).is_ok());
}

#[test]
fn a_cdev_is_exclusive_once_it_is_bound() {
    let sim = builtin().with_vf_on_vfio();
    let (group, cdev) = (sim.group_node(VF), sim.cdev_node(VF));
    let looker = sim.hold_unbound(&cdev, 1, "looker").unwrap();
    assert!(sim.open_node(&group).is_ok(), "an unbound cdev is unseen by the group");
    let guest = sim.hold(&cdev, 2, "qemu").unwrap();
    assert_eq!(sim.open_node(&group).err(), Some(Errno::EBUSY));
    assert_eq!(sim.hold(&cdev, 3, "qemu").err(), Some(Errno::EINVAL));
    assert!(sim.open_node(&cdev).is_ok(), "opening is not exclusive");
    drop(guest);
    drop(looker);
    let guest = sim.hold(&group, 4, "qemu").unwrap();
    assert_eq!(sim.hold(&cdev, 5, "qemu").err(), Some(Errno::EBUSY));
    drop(guest);
}

#[test]
fn nodes_exist_while_a_member_is_on_a_vfio_driver() {
    let sim = builtin();
    let group = sim.group_node(GPU);
    assert_eq!(sim.open_node(&group).err(), Some(Errno::ENOENT));
    to_vfio(&sim, GPU);
    assert!(sim.open_node(&group).is_ok() && sim.has(&format!("class/{}", group.as_str())));
    let cdev = sim.cdev_node(GPU);
    assert!(sim.open_node(&cdev).is_ok());
    let number = sim.list(&format!("{GPU}/vfio-dev"))[0].clone();
    assert!(sim.text(&format!("class/vfio-dev/{number}/dev")).unwrap().starts_with("511:"));
    sim.put("bus/pci/drivers/vfio-pci/unbind", "0000:81:00.0").unwrap();
    assert_eq!(sim.open_node(&group).err(), Some(Errno::ENOENT));
    assert!(!sim.has(&format!("{GPU}/vfio-dev")));
}

#[test]
fn without_cdevs_a_device_still_has_its_number_but_no_node() {
    let mut spec = HostSpec::builtin().unwrap();
    spec.vfio.cdevs = false;
    let sim = SimKernel::new(&spec).unwrap().with_vf_on_vfio();
    let number = sim.list(&format!("{VF}/vfio-dev"))[0].clone();
    assert!(!sim.has(&format!("{VF}/vfio-dev/{number}/dev")));
    assert_eq!(sim.open_node(&sim.cdev_node(VF)).err(), Some(Errno::ENOENT));
    assert_eq!(sim.open_node(&node("iommu")).err(), Some(Errno::ENOENT));
    assert!(sim.open_node(&node("vfio/vfio")).is_ok());
}

#[test]
fn a_group_is_viable_when_every_member_is() {
    let sim = builtin();
    to_vfio(&sim, GPU);
    let failure = sim.probe(&target(&sim, GPU, false), SOON).unwrap_err();
    assert_eq!(failure.errno, Some(Errno::EPERM));
    assert!(failure.message.contains("0000:81:00.1 is bound to snd_hda_intel"), "{failure}");
    to_vfio(&sim, AUDIO);
    let report = sim.probe(&target(&sim, GPU, false), SOON).unwrap();
    assert_eq!((report.interface.as_str(), report.pci_ids), ("group", Some((0x1002, 0x73bf))));
    assert_eq!((report.can_reset, report.reset, report.dma_map), (true, Some(true), true));
    assert_eq!(sim.link(&format!("{AUDIO}/iommu_group")), sim.link(&format!("{GPU}/iommu_group")));
}

#[test]
fn a_held_device_cannot_be_probed() {
    let sim = builtin().with_vf_on_vfio();
    assert_eq!(sim.probe(&target(&sim, VF, true), SOON).unwrap().interface, "cdev");
    let guest = sim.hold(&sim.group_node(VF), 1, "qemu").unwrap();
    for cdev in [false, true] {
        let failure = sim.probe(&target(&sim, VF, cdev), SOON).unwrap_err();
        assert_eq!(failure.errno, Some(Errno::EBUSY), "{failure}");
    }
    drop(guest);
}

#[test]
fn a_host_driver_cannot_join_a_group_that_user_space_owns() {
    let sim = builtin();
    to_vfio(&sim, GPU);
    sim.put("bus/pci/drivers/snd_hda_intel/unbind", "0000:81:00.1").unwrap();
    let guest = sim.hold(&sim.group_node(GPU), 1, "qemu").unwrap();
    assert_eq!(sim.put("bus/pci/drivers/snd_hda_intel/bind", "0000:81:00.1"), Err(Errno::EBUSY));
    drop(guest);
    assert_eq!(sim.put("bus/pci/drivers/snd_hda_intel/bind", "0000:81:00.1"), Ok(()));
}

#[test]
fn holders_are_found_by_node_and_process() {
    let sim = builtin().with_vf_on_vfio();
    let (group, cdev) = (sim.group_node(VF), sim.cdev_node(VF));
    let guest = sim.hold(&cdev, 41, "qemu-system-x86").unwrap();
    let _looker = sim.hold_unbound(&cdev, 42, "looker").unwrap();
    let nodes = vec![group, cdev, node("vfio/99")];
    let all = sim.holders(&HolderQuery { nodes: nodes.clone(), pid: None }).unwrap();
    let pids: Vec<_> = all.iter().map(|holder| (holder.pid, holder.command.as_str())).collect();
    assert_eq!(pids, [(41, "qemu-system-x86"), (42, "looker")]);
    drop(guest);
    let one = sim.holders(&HolderQuery { nodes, pid: Some(41) }).unwrap();
    assert!(one.is_empty(), "{one:?}");
}

#[test]
fn a_node_given_away_is_roots_again_when_it_comes_back() {
    let sim = builtin();
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    let group = sim.group_node(&format!("{MTTY}/{UUID}"));
    sim.chown(&group, 1000).unwrap();
    assert_eq!(sim.owner(&group), Some(1000));
    sim.put(&format!("{MTTY}/{UUID}/remove"), "1").unwrap();
    assert_eq!((sim.owner(&group), sim.chown(&group, 0)), (None, Err(Errno::ENOENT)));
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    assert_eq!(sim.owner(&group), Some(0));
}
