//! MIG: the mode, GPU instances, and the types that they back.

use super::{nvidia::*, *};
use crate::sys::ToolId::{NvidiaSmi, SriovManage};

/// The ids of instances made by one `-cgi`, in its order.
fn made(sim: &SimKernel, profiles: &str) -> (Vec<u32>, i32) {
    let (status, text) = sim.smi(&format!("mig -i {GPU} -cgi {profiles}"));
    let made =
        text.lines().filter_map(|line| line.strip_prefix("Successfully created GPU instance ID"));
    (made.map(|rest| rest.split_whitespace().next().unwrap().parse().unwrap()).collect(), status)
}

fn in_mig_mode(sim: SimKernel) -> SimKernel {
    sim.done(NvidiaSmi, &format!("-i {GPU} -mig 1"));
    sim
}

#[test]
fn the_mode_is_turned_on_and_off() {
    let sim = a100("");
    assert_eq!(
        (sim.element("current_mig"), sim.element("pending_mig")),
        ("Disabled".into(), "Disabled".into())
    );
    assert_eq!(
        sim.smi(&format!("-i {GPU} -mig 1")),
        (0, "Enabled MIG Mode for GPU 00000000:41:00.0\nAll done.\n".into())
    );
    assert_eq!(sim.element("current_mig"), "Enabled");
    sim.enable_vfs();
    let busy = "Unable to disable MIG Mode for GPU 00000000:41:00.0: In use by another client\n\
                Terminating early due to previous errors.\n";
    assert_eq!(sim.smi(&format!("-i {GPU} -mig 0")), (19, busy.into()));
    assert_eq!(sim.element("pending_mig"), "Enabled");
    sim.done(SriovManage, "-d ALL");
    assert_eq!(
        sim.smi("-mig 0 -i 00000000:41:00.0"),
        (0, "Disabled MIG Mode for GPU 00000000:41:00.0\nAll done.\n".into())
    );
    // While there are VFs it is not turned on either.
    sim.enable_vfs();
    assert_eq!(sim.smi("-i 0 -mig 1").0, 19);
}

#[test]
fn a_gpu_without_mig_says_so_and_success() {
    let sim = l40s("");
    let said = "Unable to enable MIG Mode for GPU 00000000:41:00.0: Not Supported\n\
                Treating as warning and moving on.\nAll done.\n";
    assert_eq!(sim.smi(&format!("-i {GPU} -mig 1")), (0, said.into()));
    assert_eq!(
        (sim.element("current_mig"), sim.element("pending_mig")),
        ("N/A".into(), "N/A".into())
    );
    assert_eq!(sim.smi("mig -lgip"), (6, "No MIG-supported devices found.\n".into()));
    assert_eq!(sim.smi("mig -lgi"), (6, "No MIG-enabled devices found.\n".into()));
}

#[test]
fn a_change_waits_for_a_reset_or_for_the_driver_to_come_back() {
    for commit in ["reset", "cycle"] {
        let sim = a100("mig-reset-needed = true");
        let (status, said) = sim.smi(&format!("-i {GPU} -mig 1"));
        assert_eq!(status, 0);
        assert!(
            said.starts_with("Warning: MIG mode is in pending enable state for GPU 00000000:41:00.0:Not Supported\n"),
            "{said}"
        );
        assert!(said.ends_with("All done.\n"));
        let modes = || (sim.element("current_mig"), sim.element("pending_mig"));
        assert_eq!(modes(), ("Disabled".into(), "Enabled".into()));
        assert_eq!(sim.smi("mig -cgi 9"), (6, "No MIG-enabled devices found.\n".into()));
        match commit {
            "reset" => {
                let said = "GPU 00000000:41:00.0 was successfully reset.\nAll done.\n";
                assert_eq!(sim.smi(&format!("-i {GPU} --gpu-reset")), (0, said.into()));
            }
            _ => sim.enable_vfs(),
        }
        assert_eq!(modes(), ("Enabled".into(), "Enabled".into()));
    }
    // Somebody in the way has the same effect.
    let sim = a100("nvml-held = true");
    let (status, said) = sim.smi(&format!("-i {GPU} -mig 1"));
    assert_eq!(status, 0);
    assert!(said.contains("00000000:41:00.0:In use by another client\n"), "{said}");
    assert_eq!(sim.element("current_mig"), "Disabled");
    assert_eq!(sim.smi("-r").0, 19);
}

#[test]
fn the_drivers_placement_is_that_of_the_guide() {
    for (profiles, ids) in [
        ("19,14,5", &[13, 5, 1][..]),
        ("9,19,14,19", &[2, 7, 4, 8]),
        ("14,19,19,19,19,19", &[5, 13, 7, 8, 9, 10]),
        ("19,19,19,19,19,19,19", &[13, 11, 12, 7, 8, 9, 10]),
        ("9,3g.20gb", &[2, 1]),
        ("0", &[0]),
    ] {
        assert_eq!(made(&in_mig_mode(a100("")), profiles), (ids.to_vec(), 0), "{profiles}");
    }
    let a30 = in_mig_mode(host(&text("mig = \"a30\"", "", "mdev = \"k\"", "A30")));
    assert_eq!(made(&a30, "14,14,5"), (vec![3, 4, 2], 0));
    assert_eq!(made(&in_mig_mode(blackwell("")), "47,47,47,47"), (vec![3, 4, 5, 6], 0));
}

#[test]
fn what_has_no_room_is_refused_and_what_was_made_stays() {
    let sim = in_mig_mode(a100(""));
    let (status, said) = sim.smi("mig -cgi 19,19,14,9 -C");
    let expected = "\
Successfully created GPU instance ID 13 on GPU  0 using profile MIG 1g.5gb (ID 19)
Successfully created compute instance ID  0 on GPU  0 GPU instance ID 13 using profile MIG 1g.5gb (ID  0)
Successfully created GPU instance ID 11 on GPU  0 using profile MIG 1g.5gb (ID 19)
Successfully created compute instance ID  0 on GPU  0 GPU instance ID 11 using profile MIG 1g.5gb (ID  0)
Successfully created GPU instance ID  3 on GPU  0 using profile MIG 2g.10gb (ID 14)
Successfully created compute instance ID  0 on GPU  0 GPU instance ID  3 using profile MIG 2g.10gb (ID  1)
Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources
Failed to create GPU instances: Insufficient Resources
";
    assert_eq!((status, said.as_str()), (23, expected));
    let (status, said) = sim.smi("mig -cgi 99");
    assert_eq!(status, 2);
    assert!(said.contains("on GPU  0 using profile 99: Invalid Argument\n"), "{said}");
    // Two of three slices leave the seventh compute slice without memory.
    let sim = in_mig_mode(a100(""));
    assert_eq!(made(&sim, "9,9").1, 0);
    assert_eq!(made(&sim, "19").1, 23);
    // One media engine, one instance that has it.
    let sim = in_mig_mode(a100(""));
    assert_eq!((made(&sim, "20").1, made(&sim, "20").1), (0, 23));
}

#[test]
fn instances_are_listed_with_their_place() {
    let sim = in_mig_mode(a100(""));
    assert_eq!(sim.smi("mig -lgi"), (6, "No GPU instances found: Not Found\n".into()));
    made(&sim, "9,19");
    let table = "\
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   0  MIG 1g.5gb          19        7          0:1     |
+-------------------------------------------------------+
|   0  MIG 3g.20gb          9        2          4:4     |
+-------------------------------------------------------+
";
    assert_eq!(sim.smi(&format!("mig -i {GPU} -lgi")), (0, table.into()));
}

#[test]
fn profiles_are_listed_with_what_is_free() {
    let a30 = in_mig_mode(host(&text("mig = \"a30\"", "", "mdev = \"k\"", "A30")));
    let table = a30.done(NvidiaSmi, "mig -lgip");
    let head = "\
+-----------------------------------------------------------------------------+
| GPU instance profiles:                                                      |
| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                              Free/Total   GiB              CE    JPEG  OFA  |
|=============================================================================|
|   0  MIG 1g.6gb        14     4/4        5.81       No     14     1     0   |
|                                                             1     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 1g.6gb+me     21     1/1        5.81       No     14     1     0   |
|                                                             1     1     1   |
";
    assert!(table.starts_with(head), "{table}");
    let free = |sim: &SimKernel| {
        let found = crate::scan::nvidia_smi::instance_profiles(&sim.done(NvidiaSmi, "mig -lgip"));
        found.iter().map(|profile| (profile.id, profile.free)).collect::<Vec<_>>()
    };
    let sim = a100("");
    assert!(free(&sim).iter().all(|(_, free)| *free == 0));
    let sim = in_mig_mode(sim);
    let empty = [(19, 7), (20, 1), (15, 4), (14, 3), (9, 2), (5, 1), (0, 1)];
    assert_eq!(free(&sim), empty);
    made(&sim, "9");
    assert_eq!(free(&sim), [(19, 4), (20, 1), (15, 2), (14, 2), (9, 1), (5, 1), (0, 0)]);
    // A wider table, where names are longer.
    let table = in_mig_mode(blackwell("")).done(NvidiaSmi, "mig -lgip");
    let row = "\
|   0  MIG 1g.24gb+me.all  65     1/1        23.62      No     46     4     4   |
|                                                               1     4     1   |
";
    assert!(table.contains(row), "{table}");
}

#[test]
fn instances_are_destroyed_from_the_inside() {
    let sim = in_mig_mode(a100(""));
    assert_eq!(sim.smi("mig -dci"), (6, "No compute instances found: Not Found\n".into()));
    assert_eq!(sim.smi("mig -dgi"), (6, "No GPU instances found: Not Found\n".into()));
    sim.done(NvidiaSmi, "mig -cgi 9,9 -C");
    let busy = "Unable to destroy GPU instance ID  1 from GPU  0: In use by another client\n\
                Failed to destroy GPU instances: In use by another client\n";
    assert_eq!(sim.smi("mig -dgi"), (19, busy.into()));
    assert_eq!(
        sim.done(NvidiaSmi, "mig -dci"),
        "Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  1\n\
         Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  2\n"
    );
    assert_eq!(
        sim.done(NvidiaSmi, &format!("mig -i {GPU} -dgi -gi 2")),
        "Successfully destroyed GPU instance ID  2 from GPU  0\n"
    );
    assert_eq!(sim.smi("mig -dgi -gi 2").0, 6);
    // The mode stays while there is one.
    assert_eq!(sim.smi(&format!("-i {GPU} -mig 0")).0, 19);
    sim.done(NvidiaSmi, "mig -dgi");
    sim.done(NvidiaSmi, &format!("-i {GPU} -mig 0"));
}

#[test]
fn enabling_vfs_wipes_instances() {
    let sim = in_mig_mode(a100(""));
    sim.done(NvidiaSmi, "mig -cgi 9 -C");
    sim.enable_vfs();
    assert_eq!(sim.smi("mig -lgi"), (6, "No GPU instances found: Not Found\n".into()));
    assert_eq!(sim.element("current_mig"), "Enabled");
}

#[test]
fn types_follow_the_mode_and_the_instances() {
    let sim = a100("");
    sim.enable_vfs();
    let left = |sim: &SimKernel, id: &str| sim.left(&vf(0), id);
    // Off: time-sliced ones alone.
    assert_eq!((left(&sim, "nvidia-468"), left(&sim, "nvidia-474")), ("10".into(), "0".into()));
    assert_eq!(sim.make(&vf(0), "nvidia-474", UUID), Err(Errno::ENOSPC));
    assert_eq!(sim.log(), ["NVRM: Failed to add vgpu create request: 0x38"]);
    sim.done(SriovManage, "-d ALL");
    let sim = in_mig_mode(sim);
    sim.enable_vfs();
    // On: nothing without an instance.
    for id in ["nvidia-468", "nvidia-474", "nvidia-476", "nvidia-706"] {
        assert_eq!(left(&sim, id), "0", "{id}");
    }
    made(&sim, "9,19,20");
    let all = ["nvidia-468", "nvidia-474", "nvidia-475", "nvidia-476", "nvidia-477", "nvidia-706"];
    assert_eq!(all.map(|id| left(&sim, id)), ["0", "1", "0", "1", "0", "1"]);
    sim.make(&vf(0), "nvidia-476", UUID).unwrap();
    // One vGPU in an instance; the instance is in use as long.
    assert_eq!(sim.left(&vf(1), "nvidia-476"), "0");
    let second = UUID.replace("1001", "1002");
    assert_eq!(sim.make(&vf(1), "nvidia-476", &second), Err(Errno::ENOSPC));
    assert_eq!(sim.smi("mig -dgi -gi 2").0, 19);
    assert_eq!(sim.make(&vf(1), "nvidia-474", &second), Ok(()));
    sim.put(&format!("bus/mdev/devices/{UUID}/remove"), "1").unwrap();
    assert_eq!(sim.left(&vf(2), "nvidia-476"), "1");
    sim.done(NvidiaSmi, "mig -dgi -gi 2");
    assert_eq!(sim.left(&vf(2), "nvidia-476"), "0");
}

#[test]
fn several_share_an_instance_on_blackwell() {
    let sim = in_mig_mode(blackwell(""));
    sim.enable_vfs();
    assert_eq!(sim.creatable(0), [] as [String; 0]);
    // Only those with graphics back a vGPU.
    made(&sim, "14");
    assert_eq!(sim.creatable(0), [] as [String; 0]);
    made(&sim, "47,47");
    assert_eq!(sim.creatable(0), ["2Q", "24Q"]);
    let place = |index| (sim.vendor(index, "gpu_instance_id"), sim.vendor(index, "placement_id"));
    sim.carry(0, 1546).unwrap();
    sim.carry(1, 1546).unwrap();
    assert_eq!((place(0), place(1)), (("4".into(), "0".into()), ("4".into(), "2".into())));
    // The other size takes the other instance, and nothing but that size then.
    sim.carry(2, 1561).unwrap();
    assert_eq!(place(2), ("5".into(), "0".into()));
    assert_eq!(sim.creatable(3), ["2Q"]);
    for index in 3..13 {
        sim.carry(index, 1546).unwrap();
    }
    assert_eq!(place(12), ("4".into(), "22".into()));
    assert_eq!(sim.creatable(13), [] as [String; 0]);
    assert_eq!(sim.carry(13, 1546), Err(Errno::EIO));
    assert_eq!(sim.log().last().unwrap(), "NVRM: Failed to add vgpu create request: 0x40");
    assert_eq!(sim.text(&format!("{}/nvidia/gpu_instance_id", vf(13))), Err(Errno::ENXIO));
}
