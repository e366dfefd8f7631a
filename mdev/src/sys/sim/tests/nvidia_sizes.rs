//! Sizes of vGPUs: one at a time, or side by side in heterogeneous mode.

use super::{nvidia::*, *};
use crate::sys::ToolId::{NvidiaSmi, SriovManage};

const ADD: &str = "NVRM: Failed to add vgpu create request:";

/// An L40S with its VFs, in heterogeneous mode.
fn mixed() -> SimKernel {
    let sim = l40s("");
    sim.enable_vfs();
    sim.done(NvidiaSmi, &format!("vgpu -i {GPU} -shm 1"));
    sim
}

#[test]
fn one_size_at_a_time_starts_at_its_multiples() {
    let sim = l40s("");
    sim.enable_vfs();
    for (index, start) in [(0, "0"), (1, "16"), (2, "32")] {
        sim.carry(index, 1154).unwrap();
        assert_eq!(sim.vendor(index, "placement_id"), start);
    }
    assert_eq!(sim.creatable(3), [] as [String; 0]);
    assert_eq!(sim.carry(3, 1154), Err(Errno::EIO));
    assert_eq!(sim.carry(3, 1147), Err(Errno::EIO));
    assert_eq!(sim.carry(0, 1154), Err(Errno::EIO));
    assert_eq!(sim.log(), [format!("{ADD} 0x1a"), format!("{ADD} 0x56"), format!("{ADD} 0x38")]);
    // The first that is free, and another series of that size.
    sim.carry(1, 0).unwrap();
    assert_eq!(sim.creatable(3), ["16Q", "16A"]);
    sim.carry(3, 1164).unwrap();
    assert_eq!(sim.vendor(3, "placement_id"), "16");
}

#[test]
fn the_mode_is_only_there_where_it_can_be() {
    let sim = l40s("");
    assert_eq!(sim.element("vgpu_heterogeneous_mode"), "Disabled");
    sim.enable_vfs();
    sim.carry(0, 1154).unwrap();
    let (status, said) = sim.smi(&format!("vgpu -i {GPU} -shm 1"));
    assert_eq!(status, 19);
    assert!(said.ends_with("00000000:41:00.0: In use by another client\n"), "{said}");
    assert_eq!(sim.element("vgpu_heterogeneous_mode"), "Disabled");
    sim.carry(0, 0).unwrap();
    sim.done(NvidiaSmi, &format!("vgpu -shm 1 -i {GPU}"));
    assert_eq!(sim.element("vgpu_heterogeneous_mode"), "Enabled");
    sim.done(NvidiaSmi, &format!("vgpu -shm 0 -i {GPU}"));
    assert_eq!(sim.element("vgpu_heterogeneous_mode"), "Disabled");

    let without = host(&text("", "", "mdev = \"k\"", "A2"));
    assert_eq!(without.smi("vgpu -shm 1").0, 3);
    assert_eq!(without.element("vgpu_heterogeneous_mode"), "N/A");
    // MIG and heterogeneous mode exclude each other.
    let mig = a100("mig-mode = true");
    assert_eq!(mig.smi("vgpu -shm 1").0, 3);
    assert_eq!(mig.element("vgpu_heterogeneous_mode"), "N/A");
}

#[test]
fn cycling_the_vfs_wipes_the_mode() {
    let sim = l40s("");
    sim.done(NvidiaSmi, &format!("vgpu -i {GPU} -shm 1"));
    sim.enable_vfs();
    assert_eq!(sim.element("vgpu_heterogeneous_mode"), "Disabled");
    sim.done(NvidiaSmi, &format!("vgpu -i {GPU} -shm 1"));
    // It does nothing where they are there.
    sim.enable_vfs();
    assert_eq!(sim.element("vgpu_heterogeneous_mode"), "Enabled");
    sim.done(SriovManage, "-d ALL");
    assert_eq!(sim.element("vgpu_heterogeneous_mode"), "Disabled");
}

#[test]
fn sizes_lie_side_by_side_where_each_may_start() {
    let sim = mixed();
    let place = |index| sim.vendor(index, "placement_id");
    sim.carry(0, 1154).unwrap(); // 16Q: 0 or 32
    sim.carry(1, 1152).unwrap(); // 8Q: 0, 16, 24, 40
    sim.carry(2, 1150).unwrap(); // 4Q: 0, 8, 12, 20, 24, 32, 36, 44
    assert_eq!([place(0), place(1), place(2)], ["0", "16", "24"]);
    let left = sim.creatable(3);
    assert!(left.contains(&"16Q".into()) && left.contains(&"8Q".into()), "{left:?}");
    // 24 begins at 0 or 24, and both are taken in part.
    assert!(!left.contains(&"24Q".into()) && !left.contains(&"48Q".into()), "{left:?}");
    assert_eq!(sim.carry(3, 1155), Err(Errno::EIO));
    sim.carry(3, 1154).unwrap();
    assert_eq!(place(3), "32");
    // 4 GiB at 28 are left, but no 4Q starts there; a 2Q does.
    assert!(!sim.creatable(4).contains(&"4Q".into()));
    sim.carry(4, 1148).unwrap();
    assert_eq!(place(4), "28");
}

#[test]
fn mixing_ignores_how_many_a_type_says() {
    // One of 12 GiB at 0: 4Q has 8 starts, of which two are taken.
    let sim = mixed();
    sim.carry(0, 1153).unwrap();
    let mut made = 0;
    while sim.carry(1 + made, 1150).is_ok() {
        made += 1;
    }
    assert_eq!(made, 6);
}

#[test]
fn blackwells_small_ones_take_three_of_its_96() {
    let sim = blackwell("");
    sim.enable_vfs();
    sim.carry(0, 1518).unwrap();
    sim.carry(1, 1518).unwrap();
    assert_eq!(sim.vendor(1, "placement_id"), "3");
}

#[test]
fn lists_can_have_the_name_first() {
    let sim = l40s("list-order = \"name-first\"");
    sim.enable_vfs();
    let list = sim.vendor(0, "creatable_vgpu_types");
    let mut lines = list.lines();
    assert_eq!(lines.next(), Some("vGPU Name      ID"));
    assert_eq!(lines.next(), Some("NVIDIA L40S-1B   1145"));
    let parsed = crate::scan::text::creatable_types(&list);
    assert_eq!(parsed.len(), list.lines().count() - 1);
    assert_eq!(parsed[0], (1145, "NVIDIA L40S-1B".into()));
}

#[test]
fn a_query_is_the_log_of_each_gpu() {
    let second = text("", "", "mdev = \"k\"", "A2").replace("41:00.0", "a1:00.0");
    let (_, second) = second.split_once("[[pci]]").unwrap();
    let (second, _) = second.split_once("[mdev-kind").unwrap();
    let first = text("mig = \"a100-40gb\"", "", "mdev = \"k\"", "A100");
    let sim = host(&format!("{first}[[pci]]{second}"));
    let xml = sim.done(NvidiaSmi, "-q -x");
    let said = crate::scan::nvidia_smi::query(&xml).unwrap();
    assert_eq!(said.len(), 2);
    assert!(said[&"0000:41:00.0".parse().unwrap()].mig.is_some());
    assert!(said[&"0000:a1:00.0".parse().unwrap()].mig.is_none());
    assert!(xml.contains(
        "\t<gpu id=\"00000000:A1:00.0\">\n\t\t<product_name>NVIDIA Some</product_name>\n"
    ));
    assert!(xml.contains(
        "<virtualization_mode>Host VGPU</virtualization_mode>\n\t\t\t<host_vgpu_mode>SR-IOV</"
    ));
    for one in ["0000:a1:00.0", "00000000:A1:00.0", "a1:00.0", "1"] {
        let xml = sim.done(NvidiaSmi, &format!("-q -x -i {one}"));
        assert!(xml.contains("id=\"00000000:A1:00.0\"") && !xml.contains("41:00.0"), "{one}");
    }
    assert_eq!(sim.smi("-q -x -i 0000:99:00.0"), (6, "No devices were found\n".into()));
    for line in [
        "",
        "-q",
        "-i",
        "-mig 2",
        "mig",
        "mig -cgi",
        "vgpu -shm",
        "-q -x -i 0 -i 1",
        "mig -dgi -gi x",
    ] {
        assert_eq!(sim.smi(line).0, 1, "{line}");
    }
    sim.put("bus/pci/drivers/nvidia/unbind", "0000:a1:00.0").unwrap();
    assert_eq!(sim.smi("-q -x -i 0000:a1:00.0").0, 6);
}

#[test]
fn programs_meet_scripted_faults() {
    use crate::sys::sim::{Calls, FaultOn};
    let sim = l40s("");
    sim.fail("sriov-manage -e *", FaultOn::Run(Calls::Nth(1)), Errno::ETIMEDOUT);
    let run = || sim.run_tool(SriovManage, &["-e".into(), GPU.into()], SOON);
    assert_eq!(run(), Err(Errno::ETIMEDOUT));
    sim.clear_faults();
    sim.lie("sriov-manage *", FaultOn::Run(Calls::Nth(1)));
    assert_eq!(run().unwrap().status, Some(0));
    assert_eq!(sim.vf_names().len(), 0);
    sim.enable_vfs();
    assert_eq!(sim.vf_names().len(), 16);
    // All that were run, whatever became of them.
    assert_eq!(sim.commands(), vec![format!("sriov-manage -e {GPU}"); 3]);
}
