//! Drivers and overrides.

use nix::errno::Errno;

use super::*;

const OVERRIDE: &str = "bus/pci/devices/0000:41:00.0/driver_override";

#[test]
fn an_override_is_set_by_a_name_and_cleared_by_a_newline() {
    let sim = builtin();
    assert_eq!(sim.text(OVERRIDE).unwrap(), "(null)\n");
    sim.put(OVERRIDE, "vfio-pci\n").unwrap();
    assert_eq!(sim.text(OVERRIDE).unwrap(), "vfio-pci\n");
    assert_eq!(sim.put(OVERRIDE, ""), Ok(()));
    assert_eq!(sim.text(OVERRIDE).unwrap(), "vfio-pci\n", "an empty write is a no-op");
    sim.put(OVERRIDE, "\n").unwrap();
    assert_eq!(sim.text(OVERRIDE).unwrap(), "(null)\n");
}

#[test]
fn an_override_has_a_longest_length() {
    let sim = builtin();
    assert_eq!(sim.put(OVERRIDE, &"x".repeat(4094)), Ok(()));
    assert_eq!(sim.put(OVERRIDE, &"x".repeat(4095)), Err(Errno::EINVAL));
}

#[test]
fn bind_refuses_what_is_unknown_or_does_not_match_before_what_is_bound() {
    let sim = builtin();
    let bind = "bus/pci/drivers/vfio-pci/bind";
    assert_eq!(sim.put(bind, "0000:99:00.0"), Err(Errno::ENODEV));
    assert_eq!(sim.put(bind, "0000:41:00.0"), Err(Errno::ENODEV));
    sim.put(OVERRIDE, "vfio-pci").unwrap();
    assert_eq!(sim.put(bind, "0000:41:00.0"), Err(Errno::EBUSY));
}

#[test]
fn unbind_refuses_what_another_driver_has() {
    let sim = builtin();
    assert_eq!(sim.put("bus/pci/drivers/vfio-pci/unbind", "0000:41:00.0"), Err(Errno::ENODEV));
    assert_eq!(sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.9"), Err(Errno::ENODEV));
    assert_eq!(sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0\n"), Ok(()));
    assert_eq!(sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0"), Err(Errno::ENODEV));
}

#[test]
fn drivers_probe_says_success_even_when_nothing_was_bound() {
    let sim = builtin();
    assert_eq!(sim.put("bus/pci/drivers_probe", "0000:99:00.0"), Err(Errno::ENODEV));
    sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0").unwrap();
    sim.put(OVERRIDE, "no-such-driver").unwrap();
    assert_eq!(sim.put("bus/pci/drivers_probe", "0000:41:00.0"), Ok(()));
    assert!(!sim.has(&format!("{PF}/driver")));
    sim.put(OVERRIDE, "\n").unwrap();
    assert_eq!(sim.put("bus/pci/drivers_probe", "0000:41:00.0"), Ok(()));
    assert_eq!(sim.link(&format!("{PF}/driver")).unwrap(), "i915");
}

#[test]
fn vfio_pci_refuses_a_pf_with_vfs() {
    // igb-like: a PF without a driver of its own keeps no VFs, so vfio-pci with
    // enable_sriov is the one that meets them.
    let sim = builtin();
    sim.put(&format!("{PF}/sriov_numvfs"), "1").unwrap();
    sim.put(OVERRIDE, "vfio-pci").unwrap();
    assert_eq!(sim.put("bus/pci/drivers/vfio-pci/bind", "0000:41:00.0"), Err(Errno::EBUSY));
}

#[test]
fn without_an_iommu_vfio_pci_binds_nothing() {
    let mut spec = HostSpec::builtin().unwrap();
    spec.iommu = false;
    let sim = SimKernel::new(&spec).unwrap();
    assert!(!sim.has(&format!("{PF}/iommu_group")) && sim.list("class/iommu").is_empty());
    sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0").unwrap();
    sim.put(OVERRIDE, "vfio-pci").unwrap();
    assert_eq!(sim.put("bus/pci/drivers/vfio-pci/bind", "0000:41:00.0"), Err(Errno::EINVAL));
    assert_eq!(sim.put("bus/pci/drivers_probe", "0000:41:00.0"), Ok(()));
    assert!(!sim.has(&format!("{PF}/driver")));
}

#[test]
fn unbinding_blocks_while_open_and_takes_the_device_lock_along() {
    let sim = builtin().with_vf_on_vfio();
    let guest = sim.hold(&sim.group_node(VF), 1, "qemu").unwrap();
    let events = sim.events();
    let clone = sim.clone();
    let unbind = start(move || clone.put("bus/pci/drivers/vfio-pci/unbind", "0000:41:00.1"));
    wait_for(&events, "remove vfio-dev:");
    assert!(unbind.is_blocked());
    let clone = sim.clone();
    let read = start(move || clone.text(&format!("{VF}/driver_override")));
    assert!(read.is_blocked());
    // Only this function's: its PF still answers.
    assert_eq!(sim.text(&format!("{PF}/sriov_numvfs")).unwrap(), "1\n");
    drop(guest);
    assert_eq!(unbind.end(), Ok(()));
    assert_eq!(read.end().unwrap(), "vfio-pci\n");
}

#[test]
fn reset_takes_one_only_and_is_hidden_where_there_is_none() {
    let sim = builtin();
    assert_eq!(sim.text(&format!("{PF}/reset_method")).unwrap(), "flr bus\n");
    assert_eq!(sim.put(&format!("{PF}/reset"), "1"), Ok(()));
    assert_eq!(sim.put(&format!("{PF}/reset"), "2"), Err(Errno::EINVAL));
    let console = "bus/pci/devices/0000:02:00.0";
    assert!(!sim.has(&format!("{console}/reset")) && !sim.has(&format!("{console}/reset_method")));
    assert_eq!(sim.text(&format!("{console}/boot_vga")).unwrap(), "1\n");
}

#[test]
fn modprobe_loads_a_known_driver_only() {
    use crate::sys::ToolId::Modprobe;
    let sim = builtin();
    assert!(!sim.has("bus/pci/drivers/i915-vfio-pci") && !sim.has("module/i915_vfio_pci"));
    sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0").unwrap();
    sim.put(OVERRIDE, "i915-vfio-pci").unwrap();
    let run = |module: &str| sim.run_tool(Modprobe, &[module.to_owned()], SOON).unwrap();
    assert_eq!(run("i915-vfio-pci").status, Some(0));
    assert!(sim.has("bus/pci/drivers/i915-vfio-pci/bind") && sim.has("module/i915_vfio_pci"));
    assert_eq!(sim.link(&format!("{PF}/driver")).unwrap(), "i915-vfio-pci", "it was waited for");
    let unknown = run("nonsense");
    assert_eq!(unknown.status, Some(1));
    assert!(unknown.output.contains("nonsense not found"), "{}", unknown.output);
}

#[test]
fn a_display_has_a_card_while_its_host_driver_has_it() {
    let sim = builtin();
    let card = sim.list(&format!("{PF}/drm"))[0].clone();
    assert!(sim.text(&format!("{PF}/drm/{card}/dev")).unwrap().starts_with("226:"));
    sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0").unwrap();
    assert!(!sim.has(&format!("{PF}/drm")));
}
