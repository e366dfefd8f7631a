//! xe's `sriov_admin/`.

use nix::errno::Errno;

use super::*;

const B60: &str = "bus/pci/devices/0000:03:00.0";
const MB: u64 = 1 << 20;

fn b60() -> SimKernel {
    host(include_str!("../../../../../tests/hosts/arc-pro-b60.toml"))
}

impl SimKernel {
    #[track_caller]
    fn admin(&self, path: &str) -> String {
        self.text(&format!("{B60}/sriov_admin/{path}")).unwrap()
    }

    fn set_admin(&self, path: &str, value: impl ToString) -> Result<(), Errno> {
        self.put(&format!("{B60}/sriov_admin/{path}"), &value.to_string())
    }
}

#[test]
fn each_vf_has_its_profile_before_it_exists_and_its_link_while_it_does() {
    let sim = b60();
    let home = format!("{B60}/sriov_admin");
    let names = sim.list(&home);
    assert_eq!((names.len(), &*names[0]), (26, ".bulk_profile"));
    assert!(names.contains(&"vf24".into()) && !names.contains(&"vf25".into()));
    assert_eq!(sim.list(&format!("{home}/pf")), ["device", "profile"]);
    assert_eq!(
        sim.list(&format!("{home}/pf/profile")),
        ["exec_quantum_ms", "preempt_timeout_us", "sched_priority"]
    );
    assert_eq!(sim.list(&format!("{home}/vf1")), ["profile", "stop"]);
    let of_vf = ["exec_quantum_ms", "preempt_timeout_us", "sched_priority", "vram_quota"];
    assert_eq!(sim.list(&format!("{home}/vf1/profile")), of_vf);
    assert_eq!(sim.list(&format!("{home}/.bulk_profile")), of_vf);
    sim.put(&format!("{B60}/sriov_numvfs"), "2").unwrap();
    assert_eq!(sim.link_text(&format!("{home}/vf2/device")).unwrap(), "../../../0000:03:00.2");
    assert!(!sim.has(&format!("{home}/vf3/device")));
    sim.put("bus/pci/drivers/xe/unbind", "0000:03:00.0").unwrap();
    assert!(!sim.has(&home));
}

#[test]
fn times_are_cut_to_what_the_firmware_takes() {
    let sim = b60();
    assert_eq!(sim.admin("vf1/profile/exec_quantum_ms"), "0\n");
    sim.set_admin("vf1/profile/exec_quantum_ms", 100_000).unwrap();
    assert_eq!(sim.admin("vf1/profile/exec_quantum_ms"), "100000\n");
    sim.set_admin("vf1/profile/exec_quantum_ms", 100_001).unwrap();
    assert_eq!(sim.admin("vf1/profile/exec_quantum_ms"), "100000\n");
    sim.set_admin("pf/profile/preempt_timeout_us", u32::MAX).unwrap();
    assert_eq!(sim.admin("pf/profile/preempt_timeout_us"), "100000000\n");
    for (value, errno) in [("x", Errno::EINVAL), ("4294967296", Errno::ERANGE)] {
        assert_eq!(sim.set_admin("vf1/profile/exec_quantum_ms", value), Err(errno));
    }
    sim.set_admin(".bulk_profile/exec_quantum_ms", 20).unwrap();
    for function in ["pf", "vf1", "vf24"] {
        assert_eq!(sim.admin(&format!("{function}/profile/exec_quantum_ms")), "20\n");
    }
    assert_eq!(
        sim.text(&format!("{B60}/sriov_admin/.bulk_profile/exec_quantum_ms")),
        Err(Errno::EACCES)
    );
}

#[test]
fn a_priority_is_the_pfs_or_of_all() {
    let sim = b60();
    let shown = |function: &str| sim.admin(&format!("{function}/profile/sched_priority"));
    assert_eq!(
        (shown("pf"), shown("vf1")),
        ("[low] normal high\n".into(), "[low] normal\n".into())
    );
    sim.set_admin("pf/profile/sched_priority", "high\n").unwrap();
    assert_eq!(
        (shown("pf"), shown("vf1")),
        ("low normal [high]\n".into(), "[low] normal\n".into())
    );
    assert_eq!(sim.set_admin("vf1/profile/sched_priority", "normal"), Err(Errno::EACCES));
    assert_eq!(sim.set_admin(".bulk_profile/sched_priority", "high"), Err(Errno::EINVAL));
    assert_eq!(sim.set_admin("pf/profile/sched_priority", "1"), Err(Errno::EINVAL));
    sim.set_admin(".bulk_profile/sched_priority", "normal").unwrap();
    assert_eq!(
        (shown("pf"), shown("vf9")),
        ("low [normal] high\n".into(), "low [normal]\n".into())
    );
}

#[test]
fn vram_is_divided_in_powers_of_two_unless_it_was_given() {
    let sim = b60();
    let vram = |vf: u16| sim.admin(&format!("vf{vf}/profile/vram_quota"));
    let line = |mb: u64| format!("{}\n", mb * MB);
    let enable = |count: u16| sim.put(&format!("{B60}/sriov_numvfs"), &count.to_string());
    enable(24).unwrap();
    assert_eq!((vram(1), vram(24)), (line(512), line(512)));
    enable(0).unwrap();
    assert_eq!(vram(1), "0\n");
    sim.set_admin("vf1/profile/vram_quota", 5 * MB).unwrap();
    sim.set_admin("vf1/profile/exec_quantum_ms", 7).unwrap();
    enable(2).unwrap();
    assert_eq!((vram(1), vram(2)), (line(6), line(0)));
    enable(0).unwrap();
    assert_eq!((vram(1), sim.admin("vf1/profile/exec_quantum_ms")), (line(0), "0\n".into()));

    sim.set_admin(".bulk_profile/vram_quota", 1000 * MB).unwrap();
    assert_eq!((vram(1), vram(24)), (line(1000), line(1000)));
    // What does not fit leaves what there was released.
    assert_eq!(sim.set_admin("vf1/profile/vram_quota", 2048 * MB), Err(Errno::ENOMEM));
    assert_eq!((vram(1), vram(2)), (line(0), line(1000)));
}

#[test]
fn only_an_enabled_vf_is_stopped() {
    let sim = b60();
    assert_eq!(sim.set_admin("vf1/stop", 1), Err(Errno::EIO));
    assert_eq!(sim.set_admin("vf1/stop", 0), Ok(()));
    sim.put(&format!("{B60}/sriov_numvfs"), "1").unwrap();
    assert_eq!(sim.set_admin("vf1/stop", "y"), Ok(()));
    assert_eq!(sim.set_admin("vf2/stop", 1), Err(Errno::EIO));
    assert_eq!(sim.set_admin("vf1/stop", "x"), Err(Errno::EINVAL));
    assert!(!sim.has(&format!("{B60}/sriov_admin/pf/stop")));
}

#[test]
fn vfs_go_to_the_driver_that_migrates() {
    let sim = b60();
    assert_eq!(
        sim.module_aliases(),
        "alias vfio_pci:v00008086d0000E211sv*sd*bc*sc*i* xe_vfio_pci\n"
    );
    sim.put(&format!("{B60}/sriov_drivers_autoprobe"), "0").unwrap();
    sim.put(&format!("{B60}/sriov_numvfs"), "1").unwrap();
    let vf = "bus/pci/devices/0000:03:00.1";
    sim.put(&format!("{vf}/driver_override"), "xe-vfio-pci").unwrap();
    sim.put("bus/pci/drivers_probe", "0000:03:00.1").unwrap();
    assert_eq!(sim.link(&format!("{vf}/driver")).unwrap(), "xe-vfio-pci");
}
