//! SR-IOV.

use nix::errno::Errno;

use super::*;

const NUMVFS: &str = "bus/pci/devices/0000:41:00.0/sriov_numvfs";
const IGB: &str = r#"
    [[pci]]
    address = "0000:02:00.0"
    vendor = 0x8086
    device = 0x10c9
    class = 0x020000
    driver = "igb"
    sriov = { total-vfs = 7, offset = 128, stride = 2, vf-device = 0x10ca, driver-limit = 6 }

    [[pci]]
    address = "0000:02:00.1"
    vendor = 0x8086
    device = 0x10c9
    class = 0x020000
    driver = "igb"
    sriov = { total-vfs = 8, offset = 128, stride = 2, vf-device = 0x10ca }
"#;

fn with_sriov(sriov: &str) -> SimKernel {
    host(&format!(
        "[[pci]]\naddress = \"0000:41:00.0\"\nvendor = 0x8086\ndevice = 0x56c0\n\
         class = 0x030000\ndriver = \"i915\"\n\
         sriov = {{ total-vfs = 31, vf-device = 0x56c0, vf-driver = \"i915\"{sriov} }}\n"
    ))
}

#[test]
fn a_count_that_is_no_u16_is_refused() {
    let sim = builtin();
    // Also what is past a u16 (measured on Linux 6.12).
    for text in ["abc", "-1", "1 2", "0x", "1\n\n", "08", "65536", "99999999999999999999"] {
        assert_eq!(sim.put(NUMVFS, text), Err(Errno::EINVAL), "{text:?}");
    }
    assert_eq!(sim.put(NUMVFS, "0x2\n"), Ok(()));
    assert_eq!(sim.text(NUMVFS).unwrap(), "2\n");
}

#[test]
fn a_count_above_the_total_or_the_drivers_limit_is_out_of_range() {
    let sim = builtin();
    assert_eq!(sim.put(NUMVFS, "32"), Err(Errno::ERANGE));
    let igb = host(IGB);
    let pf = "bus/pci/devices/0000:02:00.0";
    assert_eq!(igb.text(&format!("{pf}/sriov_totalvfs")).unwrap(), "6\n");
    assert_eq!(igb.put(&format!("{pf}/sriov_numvfs"), "7"), Err(Errno::ERANGE));
}

#[test]
fn the_range_is_checked_before_the_driver() {
    let sim = with_sriov(", callback = false");
    assert_eq!(sim.put(NUMVFS, "32"), Err(Errno::ERANGE));
    assert_eq!(sim.put(NUMVFS, "1"), Err(Errno::ENOENT));
}

#[test]
fn the_same_count_succeeds_even_without_a_driver() {
    let sim = builtin();
    sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0").unwrap();
    assert_eq!(sim.put(NUMVFS, "0"), Ok(()));
    assert_eq!(sim.put(NUMVFS, "1"), Err(Errno::ENOENT));
    assert!(!sim.has(&format!("{PF}/driver")));
}

#[test]
fn a_pf_on_vfio_pci_has_no_callback_unless_sriov_was_enabled() {
    let to_vfio = |sim: &SimKernel| {
        sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0").unwrap();
        sim.put(&format!("{PF}/driver_override"), "vfio-pci").unwrap();
        sim.put("bus/pci/drivers/vfio-pci/bind", "0000:41:00.0").unwrap();
    };
    let sim = builtin();
    to_vfio(&sim);
    assert_eq!(sim.put(NUMVFS, "1"), Err(Errno::ENOENT));

    let mut spec = HostSpec::builtin().unwrap();
    spec.vfio_drivers[0].enable_sriov = true;
    let sim = SimKernel::new(&spec).unwrap();
    to_vfio(&sim);
    assert_eq!(sim.put(NUMVFS, "1"), Ok(()));
    // The kernel keeps these VFs in user space.
    assert_eq!(sim.text(&format!("{VF}/driver_override")).unwrap(), "vfio-pci\n");
    assert_eq!(sim.link(&format!("{VF}/driver")).unwrap(), "vfio-pci");
}

#[test]
fn a_count_changes_only_through_zero() {
    let sim = builtin();
    sim.put(NUMVFS, "4").unwrap();
    assert_eq!(sim.put(NUMVFS, "2"), Err(Errno::EBUSY));
    assert_eq!(sim.put(NUMVFS, "4"), Ok(()));
    sim.put(NUMVFS, "0").unwrap();
    assert_eq!(sim.put(NUMVFS, "2"), Ok(()));
    assert_eq!(sim.text(NUMVFS).unwrap(), "2\n");
}

#[test]
fn the_drivers_errno_comes_last() {
    let sim = with_sriov(", errno = \"ENOMEM\"");
    assert_eq!(sim.put(NUMVFS, "1"), Err(Errno::ENOMEM));
    assert_eq!(sim.put(NUMVFS, "32"), Err(Errno::ERANGE));
    assert_eq!(sim.text(NUMVFS).unwrap(), "0\n");
}

#[test]
fn a_short_count_is_silent() {
    let sim = with_sriov(", short-count = 2");
    assert_eq!(sim.put(NUMVFS, "8"), Ok(()));
    assert_eq!(sim.text(NUMVFS).unwrap(), "2\n");
    assert!(sim.has(&format!("{PF}/virtfn1")) && !sim.has(&format!("{PF}/virtfn2")));
}

#[test]
fn vfs_lie_by_offset_and_stride_beside_their_pf() {
    let sim = host(IGB);
    sim.put("bus/pci/devices/0000:02:00.1/sriov_numvfs", "2").unwrap();
    let pf = "devices/pci0000:00/0000:02:00.1";
    assert_eq!(sim.link_text(&format!("{pf}/virtfn0")).unwrap(), "../0000:02:10.1");
    assert_eq!(sim.link_text(&format!("{pf}/virtfn1")).unwrap(), "../0000:02:10.3");
    let vf = "devices/pci0000:00/0000:02:10.3";
    assert_eq!(sim.link_text(&format!("{vf}/physfn")).unwrap(), "../0000:02:00.1");
    assert_eq!(sim.text(&format!("{vf}/device")).unwrap(), "0x10ca\n");
    assert!(
        sim.has(&format!("{vf}/sriov_vf_msix_count")) && !sim.has(&format!("{vf}/sriov_numvfs"))
    );
    assert_eq!(sim.text(&format!("{pf}/sriov_vf_device")).unwrap(), "10ca\n");
}

#[test]
fn past_the_last_bus_there_is_no_memory() {
    let sim = host(&IGB.replace("0000:02", "0000:ff"));
    let path = "bus/pci/devices/0000:ff:00.0/sriov_numvfs";
    assert_eq!(sim.put(path, "4"), Ok(()));
    let far = host(&IGB.replace("0000:02", "0000:ff").replace("offset = 128", "offset = 250"));
    assert_eq!(far.put(path, "4"), Err(Errno::ENOMEM));
    assert_eq!(far.text(path).unwrap(), "0\n");
}

#[test]
fn host_drivers_take_vfs_unless_autoprobe_is_off() {
    let sim = builtin();
    sim.put(NUMVFS, "1").unwrap();
    assert_eq!(sim.link(&format!("{VF}/driver")).unwrap(), "i915");
    sim.put(NUMVFS, "0").unwrap();
    sim.put(&format!("{PF}/sriov_drivers_autoprobe"), "0").unwrap();
    sim.put(NUMVFS, "1").unwrap();
    assert!(!sim.has(&format!("{VF}/driver")));
    assert_eq!(sim.put("bus/pci/drivers/i915/bind", "0000:41:00.1"), Err(Errno::ENODEV));
    // An override lets its driver in although autoprobe is off.
    sim.put(&format!("{VF}/driver_override"), "vfio-pci").unwrap();
    assert_eq!(sim.put("bus/pci/drivers/vfio-pci/bind", "0000:41:00.1"), Ok(()));
    assert_eq!(sim.put(&format!("{PF}/sriov_drivers_autoprobe"), "maybe"), Err(Errno::EINVAL));
}

#[test]
fn disabling_blocks_while_a_vf_is_open_and_hangs_every_other_pf() {
    let two = HostSpec::builtin().map(|mut spec| {
        let mut other = spec.pci.iter().find(|pci| pci.sriov.is_some()).unwrap().clone();
        other.address = "0000:51:00.0".parse().unwrap();
        spec.pci.push(other);
        spec
    });
    let sim = SimKernel::new(&two.unwrap()).unwrap().with_vf_on_vfio();
    let group = sim.group_node(VF);
    let guest = sim.hold(&group, 4711, "qemu").unwrap();
    let events = sim.events();
    let clone = sim.clone();
    let disable = start(move || clone.put(NUMVFS, "0"));
    wait_for(&events, "remove vfio-dev:");
    assert!(disable.is_blocked());
    // The VF is partly gone, and its group's node still says busy.
    assert!(!sim.has(&format!("{VF}/vfio-dev")) && !sim.has(&format!("{VF}/physfn")));
    assert!(sim.has(VF) && !sim.has(&format!("{PF}/virtfn0")));
    assert_eq!(sim.open_node(&group).err(), Some(Errno::EBUSY));
    // Other PFs hang in reads and writes of their count; the rest still reads.
    let other = "bus/pci/devices/0000:51:00.0";
    let (a, b) = (sim.clone(), sim.clone());
    let read = start(move || a.text(&format!("{other}/sriov_numvfs")));
    assert!(read.is_blocked());
    assert_eq!(sim.text(&format!("{other}/sriov_totalvfs")).unwrap(), "31\n");
    assert_eq!(sim.text(&format!("{other}/driver_override")).unwrap(), "(null)\n");
    assert!(sim.text(&format!("{other}/uevent")).unwrap().contains("DRIVER=i915\n"));
    let write = start(move || b.put(&format!("{other}/sriov_numvfs"), "0"));
    assert!(write.is_blocked());
    drop(guest);
    assert_eq!((disable.end(), write.end()), (Ok(()), Ok(())));
    assert_eq!(read.end().unwrap(), "0\n");
    assert!(!sim.has(VF));
}

#[test]
fn a_recreated_vf_has_a_new_inode_and_no_override_but_the_old_group_number() {
    let sim = builtin().with_vf_on_vfio();
    let (inode, group) = (sim.read(VF, ReadKind::Inode), sim.link(&format!("{VF}/iommu_group")));
    sim.put(NUMVFS, "0").unwrap();
    sim.put(NUMVFS, "1").unwrap();
    assert_ne!(sim.read(VF, ReadKind::Inode), inode);
    assert_eq!(sim.link(&format!("{VF}/iommu_group")), group);
    assert_eq!(sim.text(&format!("{VF}/driver_override")).unwrap(), "(null)\n");
}

#[test]
fn a_pfs_driver_takes_its_vfs_along() {
    let sim = builtin();
    sim.put(NUMVFS, "2").unwrap();
    sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0").unwrap();
    assert!(!sim.has(VF));
    assert_eq!(sim.text(NUMVFS).unwrap(), "0\n");
}

#[test]
fn unplugging_a_vf_is_survived_by_its_pf() {
    let sim = builtin();
    sim.put(NUMVFS, "2").unwrap();
    sim.put(&format!("{VF}/remove"), "1").unwrap();
    assert!(
        !sim.has(VF) && !sim.has(&format!("{PF}/virtfn0")) && sim.has(&format!("{PF}/virtfn1"))
    );
    sim.put(NUMVFS, "0").unwrap();
    assert_eq!(sim.put(NUMVFS, "2"), Ok(()));
}
