//! i915's `prelim_iov/`.

use nix::errno::Errno;

use super::*;

const FLEX: &str = "bus/pci/devices/0000:4d:00.0";
const MB: u64 = 1 << 20;

fn flex() -> SimKernel {
    host(include_str!("../../../../../tests/hosts/flex170.toml"))
}

impl SimKernel {
    /// A number below `prelim_iov/`.
    #[track_caller]
    fn iov(&self, path: &str) -> u64 {
        let text = self.text(&format!("{FLEX}/drm/card0/prelim_iov/{path}")).unwrap();
        text.strip_suffix('\n').unwrap().parse().unwrap()
    }

    fn set_iov(&self, path: &str, value: impl ToString) -> Result<(), Errno> {
        self.put(&format!("{FLEX}/drm/card0/prelim_iov/{path}"), &value.to_string())
    }

    fn enable(&self, count: u16) -> Result<(), Errno> {
        self.put(&format!("{FLEX}/sriov_numvfs"), &count.to_string())
    }

    /// All that a VF needs.
    fn give(&self, vf: u16, lmem: u64) {
        self.set_iov(&format!("vf{vf}/gt/ggtt_quota"), 64 * MB).unwrap();
        self.set_iov(&format!("vf{vf}/gt/contexts_quota"), 1024).unwrap();
        self.set_iov(&format!("vf{vf}/gt/doorbells_quota"), 8).unwrap();
        self.set_iov(&format!("vf{vf}/gt/lmem_quota"), lmem).unwrap();
    }
}

#[test]
fn each_vf_has_its_folder_before_it_exists_and_its_link_while_it_does() {
    let sim = flex();
    let home = format!("{FLEX}/drm/card0/prelim_iov");
    let names = sim.list(&home);
    assert_eq!(names.len(), 33, "{names:?}");
    for name in ["mode", "pf", "vf1", "vf31"] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
    assert_eq!(sim.text(&format!("{home}/mode")).unwrap(), "SR-IOV PF\n");
    assert_eq!(sim.link_text(&format!("{FLEX}/drm/card0/iov")).unwrap(), "prelim_iov");
    assert_eq!(sim.link(&format!("{home}/pf/device")).unwrap(), "0000:4d:00.0");
    assert_eq!(sim.list(&format!("{home}/vf3")), ["control", "gt", "id"]);
    assert_eq!(sim.iov("vf3/id"), 3);
    assert_eq!(
        sim.list(&format!("{home}/vf3/gt")),
        [
            "contexts_quota",
            "doorbells_quota",
            "exec_quantum_ms",
            "ggtt_quota",
            "lmem_quota",
            "preempt_timeout_us"
        ]
    );
    sim.enable(2).unwrap();
    assert_eq!(sim.link(&format!("{home}/vf2/device")).unwrap(), "0000:4d:00.2");
    assert!(!sim.has(&format!("{home}/vf3/device")));
    sim.enable(0).unwrap();
    assert!(!sim.has(&format!("{home}/vf2/device")));
    sim.put("bus/pci/drivers/i915/unbind", "0000:4d:00.0").unwrap();
    assert!(!sim.has(&format!("{FLEX}/drm")));
}

#[test]
fn without_quotas_the_driver_divides_fairly_and_takes_all_back() {
    let sim = flex();
    assert_eq!(sim.iov("pf/gt/available/contexts_free"), 63_488);
    sim.enable(31).unwrap();
    assert_eq!(sim.iov("vf31/gt/contexts_quota"), 2048);
    assert_eq!(sim.iov("vf31/gt/doorbells_quota"), 8);
    // (14848 - 128 MB) / 31, in units of 2 MB.
    assert_eq!(sim.iov("vf31/gt/lmem_quota"), 474 * MB);
    assert_eq!(sim.iov("vf1/gt/ggtt_quota") % (64 << 10), 0);
    assert_eq!(sim.iov("pf/gt/available/lmem_free"), (14_848 - 31 * 474) * MB);
    assert_eq!(sim.iov("pf/auto_provisioning"), 1);
    sim.enable(0).unwrap();
    for resource in ["ggtt", "contexts", "doorbells", "lmem"] {
        assert_eq!(sim.iov(&format!("vf1/gt/{resource}_quota")), 0, "{resource}");
    }
    // One VF gets nearly everything.
    sim.enable(1).unwrap();
    assert_eq!(sim.iov("vf1/gt/lmem_quota"), (14_848 - 128) * MB);
    assert_eq!(sim.iov("vf1/gt/doorbells_quota"), 256);
}

#[test]
fn a_quota_turns_auto_provisioning_off_until_all_are_empty_again() {
    let sim = flex();
    // The PF's own times change nothing, nor does giving nothing.
    sim.set_iov("pf/gt/exec_quantum_ms", 20).unwrap();
    sim.set_iov("vf1/gt/lmem_quota", 0).unwrap();
    sim.set_iov("vf1/gt/exec_quantum_ms", 0).unwrap();
    assert_eq!(sim.iov("pf/auto_provisioning"), 1);
    sim.set_iov("vf1/gt/preempt_timeout_us", 16_000).unwrap();
    assert_eq!(sim.iov("pf/auto_provisioning"), 0);
    sim.set_iov("pf/auto_provisioning", 1).unwrap();
    sim.set_iov("vf7/gt/doorbells_quota", 1).unwrap();
    assert_eq!(sim.iov("pf/auto_provisioning"), 0);
    assert_eq!(sim.set_iov("pf/auto_provisioning", 1), Err(Errno::ESTALE));
    assert_eq!(sim.set_iov("pf/auto_provisioning", "maybe"), Err(Errno::EINVAL));
    sim.set_iov("vf7/gt/doorbells_quota", 0).unwrap();
    sim.set_iov("pf/auto_provisioning", 1).unwrap();
    assert_eq!(sim.iov("pf/auto_provisioning"), 1);
}

#[test]
fn given_quotas_are_kept_and_a_part_of_them_is_refused() {
    let sim = flex();
    sim.set_iov("vf1/gt/lmem_quota", 1024 * MB).unwrap();
    assert_eq!(sim.enable(2), Err(Errno::ENOKEY));
    assert_eq!(sim.text(&format!("{FLEX}/sriov_numvfs")).unwrap(), "0\n");
    sim.give(1, 1024 * MB);
    // The other VF may have nothing at all.
    sim.enable(2).unwrap();
    assert_eq!((sim.iov("vf1/gt/lmem_quota"), sim.iov("vf2/gt/lmem_quota")), (1024 * MB, 0));
    sim.enable(0).unwrap();
    assert_eq!(sim.iov("vf1/gt/lmem_quota"), 1024 * MB);
    // Nothing, and nobody to give it: the driver trusts that it comes later.
    sim.set_iov("vf1/control", "clear\n").unwrap();
    assert_eq!((sim.iov("vf1/gt/lmem_quota"), sim.iov("pf/auto_provisioning")), (0, 0));
    sim.enable(2).unwrap();
    assert_eq!(sim.iov("vf2/gt/ggtt_quota"), 0);
}

#[test]
fn what_the_driver_gave_is_gone_with_the_vfs_even_after_a_change_by_hand() {
    let sim = flex();
    sim.enable(2).unwrap();
    sim.set_iov("vf1/gt/lmem_quota", 2048 * MB).unwrap();
    assert_eq!(sim.iov("pf/auto_provisioning"), 0);
    sim.enable(0).unwrap();
    assert_eq!((sim.iov("vf1/gt/lmem_quota"), sim.iov("vf2/gt/lmem_quota")), (0, 0));
}

#[test]
fn quotas_are_rounded_up_and_bounded() {
    let sim = flex();
    for (attr, value, reads) in [
        ("ggtt_quota", MB + 1, MB + (64 << 10)),
        ("contexts_quota", 1000, 1024),
        ("doorbells_quota", 256, 256),
        ("lmem_quota", 3 * MB, 4 * MB),
    ] {
        sim.set_iov(&format!("vf1/gt/{attr}"), value).unwrap();
        assert_eq!(sim.iov(&format!("vf1/gt/{attr}")), reads);
    }
    for (attr, value, errno) in [
        ("ggtt_quota", "abc", Errno::EINVAL),
        ("ggtt_quota", "4294967297", Errno::E2BIG),
        ("ggtt_quota", "4200000000", Errno::EDQUOT),
        ("ggtt_quota", "18446744073709551615", Errno::EOVERFLOW),
        ("contexts_quota", "65536", Errno::ERANGE),
        ("contexts_quota", "63489", Errno::EDQUOT),
        ("doorbells_quota", "257", Errno::EDQUOT),
        ("lmem_quota", "15569256448", Errno::EDQUOT),
        ("exec_quantum_ms", "4294967296", Errno::ERANGE),
        ("exec_quantum_ms", "-1", Errno::EINVAL),
        ("preempt_timeout_us", "4294967296", Errno::ERANGE),
    ] {
        assert_eq!(sim.set_iov(&format!("vf1/gt/{attr}"), value), Err(errno), "{attr} {value}");
    }
    // What there was is gone after EDQUOT.
    assert_eq!(sim.iov("vf1/gt/lmem_quota"), 0);
    assert_eq!(sim.set_iov("vf1/control", "explode"), Err(Errno::EINVAL));
    assert_eq!(sim.set_iov("pf/gt/available/lmem_free", 1), Err(Errno::EACCES));
    assert_eq!(sim.text(&format!("{FLEX}/drm/card0/prelim_iov/vf1/control")), Err(Errno::EACCES));
}

#[test]
fn the_pf_keeps_its_spare_and_its_policies_exclude_each_other() {
    let sim = flex();
    assert_eq!(sim.iov("pf/gt/lmem_spare"), 128 * MB);
    assert_eq!(sim.iov("pf/gt/available/lmem_max_quota"), (14_848 - 128) * MB);
    assert_eq!(sim.set_iov("pf/gt/lmem_spare", 64 * MB), Err(Errno::EINVAL));
    sim.set_iov("pf/gt/lmem_spare", 1024 * MB).unwrap();
    assert_eq!(sim.iov("pf/gt/available/lmem_max_quota"), (14_848 - 1024) * MB);
    sim.set_iov("pf/gt/doorbells_spare", 56).unwrap();
    assert_eq!(sim.iov("pf/gt/available/doorbells_free"), 256);
    assert_eq!(sim.set_iov("vf1/gt/doorbells_quota", 201), Err(Errno::EDQUOT));
    sim.set_iov("vf1/gt/doorbells_quota", 200).unwrap();

    sim.set_iov("pf/gt/policies/sched_if_idle", 1).unwrap();
    assert_eq!(sim.set_iov("pf/gt/sched_priority", 1), Err(Errno::EIO));
    sim.set_iov("pf/gt/policies/sched_if_idle", 0).unwrap();
    assert_eq!(sim.set_iov("pf/gt/sched_priority", 3), Err(Errno::EINVAL));
    sim.set_iov("pf/gt/sched_priority", 2).unwrap();
    assert_eq!(sim.set_iov("pf/gt/policies/sched_if_idle", 1), Err(Errno::EIO));
}

#[test]
fn too_little_for_each_is_no_space() {
    let text = include_str!("../../../../../tests/hosts/flex170.toml")
        .replace("lmem-mb = 14848", "lmem-mb = 180");
    let sim = host(&text);
    assert_eq!(sim.enable(31), Err(Errno::ENOSPC));
    assert_eq!(sim.iov("vf1/gt/contexts_quota"), 0, "it kept what it had given");
    assert_eq!(sim.enable(26), Ok(()));
    assert_eq!(sim.iov("vf26/gt/lmem_quota"), 2 * MB);
}
