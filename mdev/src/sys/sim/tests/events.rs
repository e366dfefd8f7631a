//! Events: their order, and the tree at the moment of each.

use super::*;

#[test]
fn enabling_vfs_tells_the_pf_last_and_before_the_count_reads() {
    let sim = builtin();
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let (sink, clone) = (seen.clone(), sim.clone());
    sim.on_event(Box::new(move |event| {
        let linked = clone.has(&format!("{VF}/physfn")) && clone.has(&format!("{PF}/virtfn0"));
        let driver = clone.has(&format!("{VF}/driver"));
        sink.lock().unwrap().push((short(event), linked, driver));
        if short(event) == "change pci:0000:41:00.0" {
            // The store has the lock: this reader would wait for itself.
            let count = clone.text(&format!("{PF}/sriov_numvfs"));
            assert_eq!(count, Err(Errno::EDEADLK));
        }
    }));
    sim.put(&format!("{PF}/sriov_numvfs"), "1").unwrap();
    let expected = [
        ("add pci:0000:41:00.1".to_owned(), false, false),
        ("change pci:0000:41:00.1".to_owned(), true, false),
        ("bind pci:0000:41:00.1".to_owned(), true, true),
        ("change pci:0000:41:00.0".to_owned(), true, true),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
    seen.lock().unwrap().clear();
    sim.put(&format!("{PF}/sriov_numvfs"), "0").unwrap();
    let names: Vec<_> = seen.lock().unwrap().iter().map(|(event, ..)| event.clone()).collect();
    assert_eq!(names, ["unbind pci:0000:41:00.1", "remove pci:0000:41:00.1"]);
}

#[test]
fn an_mdevs_add_comes_before_its_links() {
    let sim = builtin();
    let dir = format!("{MTTY}/{UUID}");
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let (sink, clone) = (seen.clone(), sim.clone());
    sim.on_event(Box::new(move |event| {
        let has = ["driver", "iommu_group", "mdev_type"].map(|l| clone.has(&format!("{dir}/{l}")));
        sink.lock().unwrap().push((event.subsystem.clone() + " " + &event.action, has));
    }));
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    let expected = [
        ("mdev add", [false, false, false]),
        ("vfio add", [true, true, false]),
        ("vfio-dev add", [true, true, false]),
        // mdev_create_sysfs_files follows device_driver_attach.
        ("mdev bind", [true, true, false]),
    ];
    assert_eq!(*seen.lock().unwrap(), expected.map(|(event, has)| (event.to_owned(), has)));
    assert!(sim.has(&format!("{MTTY}/{UUID}/mdev_type")));
}

#[test]
fn removing_an_mdev_ends_with_its_remove() {
    let sim = builtin();
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    let heard = sim.heard();
    sim.put(&format!("{MTTY}/{UUID}/remove"), "1").unwrap();
    let kinds: Vec<_> =
        heard.lock().unwrap().iter().map(|e| e.split(':').next().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["remove vfio-dev", "remove vfio", "unbind mdev", "remove mdev"]);
}

#[test]
fn settled_listeners_hear_when_the_tree_is_done() {
    let sim = builtin();
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let (sink, clone) = (seen.clone(), sim.clone());
    sim.on_settled_event(Box::new(move |event| {
        let count = clone.text(&format!("{PF}/sriov_numvfs")).unwrap();
        sink.lock().unwrap().push(format!("{} {}", short(event), count.trim_end()));
    }));
    sim.put(&format!("{PF}/sriov_drivers_autoprobe"), "0").unwrap();
    sim.put(&format!("{PF}/sriov_numvfs"), "1").unwrap();
    let expected =
        ["add pci:0000:41:00.1 1", "change pci:0000:41:00.1 1", "change pci:0000:41:00.0 1"];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn settled_listeners_hear_of_a_call_that_blocks() {
    let sim = builtin();
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    let guest = sim.hold(&sim.group_node(&format!("{MTTY}/{UUID}")), 1, "qemu").unwrap();
    let (send, receive) = mpsc::channel();
    sim.on_settled_event(Box::new(move |event| send.send(short(event)).unwrap()));
    let clone = sim.clone();
    let remove = start(move || clone.put(&format!("{MTTY}/{UUID}/remove"), "1"));
    assert!(receive.recv_timeout(SOON).unwrap().starts_with("remove vfio-dev:"));
    assert!(remove.is_blocked());
    drop(guest);
    assert_eq!(remove.end(), Ok(()));
    let rest: Vec<_> = receive.try_iter().collect();
    assert_eq!(rest.last().unwrap(), &format!("remove mdev:{UUID}"));
}

#[test]
fn the_variables_are_the_kernels() {
    let sim = builtin();
    let seen = Arc::<Mutex<Vec<KernelEvent>>>::default();
    let sink = seen.clone();
    sim.on_event(Box::new(move |event| sink.lock().unwrap().push(event.clone())));
    sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0").unwrap();
    sim.put("bus/pci/drivers/i915/bind", "0000:41:00.0").unwrap();
    let seen = seen.lock().unwrap();
    let keys = |event: &KernelEvent| {
        event.properties.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&seen[0]), ["PCI_CLASS", "PCI_ID", "PCI_SUBSYS_ID", "PCI_SLOT_NAME", "SEQNUM"]);
    assert_eq!(seen[1].devpath, "/devices/pci0000:00/0000:41:00.0");
    let text: Vec<_> =
        seen[1].properties.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let fixed = [
        "DRIVER=i915",
        "PCI_CLASS=30000",
        "PCI_ID=8086:56C1",
        "PCI_SUBSYS_ID=8086:4905",
        "PCI_SLOT_NAME=0000:41:00.0",
        "MODALIAS=pci:v00008086d000056C1sv00008086sd00004905bc03sc00i00",
    ];
    assert_eq!(text[..6], fixed);
}

#[test]
fn a_parent_announces_itself() {
    let sim = builtin();
    let states = Arc::<Mutex<Vec<_>>>::default();
    let sink = states.clone();
    sim.on_event(Box::new(move |event| {
        let state = event.properties.iter().find(|(key, _)| key == "MDEV_STATE");
        sink.lock().unwrap().extend(state.map(|(_, value)| value.clone()));
    }));
    sim.put("bus/pci/drivers/nvidia/unbind", "0000:3b:00.0").unwrap();
    sim.put("bus/pci/drivers/nvidia/bind", "0000:3b:00.0").unwrap();
    assert_eq!(*states.lock().unwrap(), ["unregistered", "registered"]);
}

#[test]
fn events_can_come_late_reordered_or_not_at_all() {
    let sim = builtin();
    let heard = sim.heard();
    let overruns = Arc::<Mutex<u32>>::default();
    let count = overruns.clone();
    sim.on_overrun(Box::new(move || *count.lock().unwrap() += 1));
    sim.put(&format!("{PF}/sriov_drivers_autoprobe"), "0").unwrap();
    sim.hold_events();
    sim.put(&format!("{PF}/sriov_numvfs"), "1").unwrap();
    assert!(heard.lock().unwrap().is_empty());
    sim.release_events(|events| {
        events.reverse();
        events.truncate(2);
    });
    assert_eq!(*heard.lock().unwrap(), ["change pci:0000:41:00.0", "change pci:0000:41:00.1"]);
    sim.hold_events();
    sim.put(&format!("{PF}/sriov_numvfs"), "0").unwrap();
    sim.lose_events();
    assert_eq!((heard.lock().unwrap().len(), *overruns.lock().unwrap()), (2, 1));
    sim.put(&format!("{PF}/uevent"), "change").unwrap();
    assert_eq!(heard.lock().unwrap().len(), 3);
}

#[test]
fn a_listener_may_write() {
    let sim = builtin();
    let heard = sim.heard();
    let clone = sim.clone();
    sim.on_event(Box::new(move |event| {
        if short(event) == "add pci:0000:41:00.1" {
            clone.make(MTTY, "mtty-1", UUID).unwrap();
        }
    }));
    sim.put(&format!("{PF}/sriov_numvfs"), "1").unwrap();
    let heard = heard.lock().unwrap();
    assert_eq!(heard[0], "add pci:0000:41:00.1");
    assert!(heard.contains(&format!("bind mdev:{UUID}")), "{heard:?}");
    assert_eq!(heard.last().unwrap(), "change pci:0000:41:00.0");
}
