//! `sriov-manage`, and what it takes along.

use super::{nvidia::*, *};
use crate::sys::ToolId::{Modprobe, NvidiaSmi, SriovManage};

const NUMVFS: &str = "bus/pci/devices/0000:41:00.0/sriov_numvfs";

#[test]
fn all_vfs_come_and_go_with_the_pf_unbound_in_between() {
    let sim = a100("");
    let heard = sim.heard();
    assert_eq!(sim.sriov_manage(&format!("-e {GPU}")), (0, format!("Enabling VFs on {GPU}\n")));
    assert_eq!((sim.text(NUMVFS).unwrap().as_str(), sim.vf_names().len()), ("16\n", 16));
    assert_eq!(sim.link(&format!("{PF}/driver")).unwrap(), "nvidia");
    assert_eq!(sim.link(&format!("{}/driver", vf(15))).unwrap(), "nvidia");
    assert!(sim.has(&format!("{}/mdev_supported_types/nvidia-468", vf(0))));
    let of_pf: Vec<_> = heard
        .lock()
        .unwrap()
        .iter()
        .filter(|event| event.ends_with(GPU) && !event.starts_with("change"))
        .cloned()
        .collect();
    let (unbind, bind) = (format!("unbind pci:{GPU}"), format!("bind pci:{GPU}"));
    // From the driver to the stub and back.
    assert_eq!(of_pf, [unbind.clone(), bind.clone(), unbind, bind]);
    // The VFs are bound last: their driver takes none before it has the PF.
    let first_vf = heard.lock().unwrap().iter().position(|e| e == "bind pci:0000:41:00.4").unwrap();
    let last_pf =
        heard.lock().unwrap().iter().rposition(|e| *e == format!("bind pci:{GPU}")).unwrap();
    assert!(first_vf > last_pf);

    let again = sim.sriov_manage(&format!("-e {GPU}"));
    assert_eq!(again, (0, format!("GPU at {GPU} already has VFs enabled.\n")));
    assert_eq!(sim.sriov_manage("-d ALL"), (0, format!("Disabling VFs on {GPU}\n")));
    assert_eq!((sim.text(NUMVFS).unwrap().as_str(), sim.vf_names().len()), ("0\n", 0));
    assert_eq!(sim.link(&format!("{PF}/driver")).unwrap(), "nvidia");
    let again = sim.sriov_manage(&format!("-d {GPU}"));
    assert_eq!(again, (0, format!("GPU at {GPU} already has VFs disabled.\n")));
}

#[test]
fn other_command_lines_are_answered_with_the_usage() {
    let sim = a100("");
    for line in ["", "-e", "-x", "-e 0000:41:00.0 now", "on ALL"] {
        let (status, text) = sim.sriov_manage(line);
        assert_eq!(status, 1, "{line}");
        assert!(text.contains("sriov-manage <-e|-d> <ssss:bb:dd.f|ALL>"), "{text}");
    }
    // An address without a GPU: nothing is said.
    assert_eq!(sim.sriov_manage("-e 0000:42:00.0"), (1, String::new()));
    assert_eq!(sim.sriov_manage("-h").0, 0);
}

#[test]
fn a_host_without_such_a_gpu_does_not_have_the_programs() {
    let sim = host("");
    for tool in [SriovManage, NvidiaSmi] {
        assert_eq!(sim.run_tool(tool, &[], SOON), Err(Errno::ENOENT));
    }
    // One that is described by its PCI function alone is enough.
    let plain = host(
        "[[pci]]\naddress = \"0000:41:00.0\"\nvendor = 0x10de\ndevice = 1\nclass = 0x030200\n\
         driver = \"nvidia\"\nsriov = { total-vfs = 4, vf-device = 1, vf-driver = \"nvidia\" }\n",
    );
    plain.enable_vfs();
    assert_eq!(plain.vf_names().len(), 4);
}

#[test]
fn success_is_said_although_vfs_are_missing() {
    let sim = a100("missing-vfs = 3");
    sim.enable_vfs();
    assert_eq!((sim.text(NUMVFS).unwrap().as_str(), sim.vf_names().len()), ("13\n", 13));
    sim.deliver_late_vfs();
    assert_eq!(sim.vf_names().len(), 13);
}

#[test]
fn late_vfs_come_when_they_are_delivered() {
    let sim = a100("late-vfs = 4");
    sim.enable_vfs();
    assert_eq!(sim.vf_names().len(), 12);
    let heard = sim.heard();
    sim.deliver_late_vfs();
    assert_eq!((sim.text(NUMVFS).unwrap().as_str(), sim.vf_names().len()), ("16\n", 16));
    assert_eq!(sim.link(&format!("{}/driver", vf(15))).unwrap(), "nvidia");
    let added = heard.lock().unwrap().iter().filter(|e| e.starts_with("add pci:")).count();
    assert_eq!(added, 4);
    // Once.
    sim.deliver_late_vfs();
    assert_eq!(sim.vf_names().len(), 16);
    // Those that are still late when all are disabled do not come after it.
    let sim = a100("late-vfs = 4");
    sim.enable_vfs();
    sim.done(SriovManage, "-d ALL");
    sim.deliver_late_vfs();
    assert_eq!(sim.vf_names().len(), 0);
}

#[test]
fn the_count_is_not_changed_through_sysfs() {
    let sim = a100("");
    assert_eq!(sim.put(NUMVFS, "16"), Err(Errno::ENOENT));
    sim.enable_vfs();
    assert_eq!(sim.put(NUMVFS, "0"), Err(Errno::ENOENT));
    assert_eq!(sim.vf_names().len(), 16);
}

#[test]
fn a_gpu_in_use_is_not_let_go() {
    let refused = (1, format!("Enabling VFs on {GPU}\nCannot obtain unbindLock for {GPU}\n"));
    let sim = a100("nvml-held = true");
    assert_eq!(sim.sriov_manage(&format!("-e {GPU}")), refused);
    assert_eq!(sim.vf_names().len(), 0);
    let sim = a100("");
    let card = sim.hold(&node("dri/card0"), 77, "Xorg").unwrap();
    assert_eq!(sim.sriov_manage(&format!("-e {GPU}")), refused);
    drop(card);
    sim.enable_vfs();
}

#[test]
fn vgpus_go_with_the_vfs_but_not_while_one_is_held() {
    let sim = l40s("");
    sim.enable_vfs();
    sim.carry(2, 1150).unwrap();
    let held = sim.hold(&sim.group_node(&vf(2)), 42, "qemu").unwrap();
    let refused = (1, format!("Disabling VFs on {GPU}\nCannot obtain unbindLock for {GPU}\n"));
    assert_eq!(sim.sriov_manage(&format!("-d {GPU}")), refused);
    assert_eq!((sim.vf_names().len(), sim.vendor(2, "current_vgpu_type")), (16, "1150".into()));
    drop(held);
    sim.done(SriovManage, &format!("-d {GPU}"));
    sim.enable_vfs();
    // It is gone, and so is what it took.
    assert_eq!(sim.vendor(2, "current_vgpu_type"), "0");
    assert!(sim.creatable(0).contains(&"48Q".into()));

    let sim = a100("");
    sim.enable_vfs();
    sim.make(&vf(1), "nvidia-468", UUID).unwrap();
    let held = sim.hold(&sim.group_node(&format!("bus/mdev/devices/{UUID}")), 42, "qemu").unwrap();
    assert_eq!(sim.sriov_manage(&format!("-d {GPU}")), refused);
    drop(held);
    sim.done(SriovManage, &format!("-d {GPU}"));
    assert!(!sim.has(&format!("bus/mdev/devices/{UUID}")));
}

#[test]
fn without_the_driver_loaded_modprobe_brings_the_gpu() {
    let sim = a100("loaded = false");
    assert!(!sim.has(&format!("{PF}/driver")));
    let said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make \
                sure that the latest NVIDIA driver is installed and running.\n\n";
    assert_eq!(sim.smi("-q -x"), (9, said.into()));
    sim.done(Modprobe, "nvidia");
    assert_eq!(sim.link(&format!("{PF}/driver")).unwrap(), "nvidia");
    assert_eq!(sim.smi("-q -x").0, 0);
}

#[test]
fn a_reboot_forgets_all_but_mig_mode_on_ampere() {
    let (on, off) = (a100("mig-persists = true"), a100(""));
    for sim in [&on, &off] {
        sim.done(NvidiaSmi, "-mig 1");
        sim.enable_vfs();
        sim.done(NvidiaSmi, "mig -cgi 9 -C");
        sim.make(&vf(0), "nvidia-476", UUID).unwrap();
    }
    for (sim, mode) in [(on, "Enabled"), (off, "Disabled")] {
        let next = SimKernel::new(&sim.next_boot()).unwrap();
        assert_ne!(next.boot_id(), sim.boot_id());
        assert_eq!((next.vf_names().len(), next.text(NUMVFS).unwrap().as_str()), (0, "0\n"));
        assert!(!next.has(&format!("bus/mdev/devices/{UUID}")));
        assert_eq!(next.element("current_mig"), mode);
        if mode == "Enabled" {
            assert_eq!(next.smi("mig -lgi"), (6, "No GPU instances found: Not Found\n".into()));
        }
    }
}

#[test]
fn what_is_described_must_make_sense() {
    let refused = |nvidia: &str| {
        let text = text(nvidia, "", "mdev = \"k\"", "A100");
        HostSpec::parse(&text, "host.toml").unwrap_err().to_string()
    };
    assert!(refused("mig-mode = true").contains("in MIG mode, which it does not have"));
    assert!(refused("missing-vfs = 10\nlate-vfs = 7").contains("missing or late than it has"));
    assert!(refused("mig = \"a100\"").contains("unknown variant"));
    assert!(refused("mgi = 1").contains("unknown field"));
    let other = "[[pci]]\naddress = \"0000:41:00.0\"\nvendor = 0x1002\ndevice = 1\n\
                 class = 0x030000\ndriver = \"amdgpu\"\nnvidia = {}\n";
    let refused = HostSpec::parse(other, "host.toml").unwrap_err().to_string();
    assert!(refused.contains("line 2: 0000:41:00.0 is no GPU on NVIDIA's driver"), "{refused}");
}
