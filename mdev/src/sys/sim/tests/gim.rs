//! AMD's GIM.

use super::*;
use crate::sys::{ToolId, ToolOutput, sim::EntryKind};

const A: &str = "0000:0c:00.0";
const B: &str = "0000:22:00.0";
/// Of another hive, which it tells.
const C: &str = "0000:38:00.0";

/// Three MI300X; `vf_num` of each at boot, and what else their SR-IOV has.
fn gpus(vf_num: [u16; 3], sriov: &str) -> SimKernel {
    let gpu = |(address, rest): (&str, String)| {
        format!(
            "[[pci]]\naddress = \"{address}\"\nvendor = 0x1002\ndevice = 0x74a1\n\
             class = 0x120000\ndriver = \"gim\"\n\
             sriov = {{ total-vfs = 8, offset = 16, vf-device = 0x74b5, vf-driver = \"amdgpu\", \
             callback = false{sriov} }}\ngim = {{ {rest} }}\n"
        )
    };
    let [a, b, c] = vf_num;
    let text: String = [
        (A, format!("hive = 1, limit = 8, vf-num = {a}")),
        (B, format!("hive = 1, limit = 8, vf-num = {b}")),
        (C, format!("hive = 2, hive-file = true, limit = 2, vf-num = {c}")),
    ]
    .into_iter()
    .map(gpu)
    .collect();
    host(&text)
}

/// Without drivers on the VFs.
fn free(vf_num: [u16; 3]) -> SimKernel {
    gpus(vf_num, ", autoprobe = false")
}

fn path(gpu: &str, attr: &str) -> String {
    format!("bus/pci/devices/{gpu}/{attr}")
}

impl SimKernel {
    fn modprobe_gim(&self, args: &[&str]) -> ToolOutput {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        self.run(ToolId::Modprobe, &args).unwrap()
    }

    /// How many VFs each GPU has.
    fn counts(&self) -> [usize; 3] {
        [A, B, C].map(|gpu| {
            let links = self.list(&path(gpu, ""));
            links.iter().filter(|name| name.starts_with("virtfn")).count()
        })
    }

    fn driver_of(&self, gpu: &str) -> Option<String> {
        self.link(&path(gpu, "driver")).ok()
    }

    fn mode(&self, gpu: &str, attr: &str) -> String {
        self.text(&path(gpu, attr)).unwrap()
    }
}

fn done() -> ToolOutput {
    ToolOutput { status: Some(0), output: String::new() }
}

fn refused(output: &str) -> ToolOutput {
    ToolOutput { status: Some(1), output: output.into() }
}

#[test]
fn functions_come_with_the_module_and_never_through_sysfs() {
    let sim = free([1, 2, 1]);
    assert_eq!(sim.counts(), [1, 2, 1]);
    assert_eq!(sim.put(&path(A, "sriov_numvfs"), "0"), Err(Errno::ENOENT));
    assert_eq!(sim.put(&path(A, "sriov_numvfs"), "2"), Err(Errno::ENOENT));
    assert_eq!(sim.text(&path(B, "sriov_numvfs")).unwrap(), "2\n");
    assert_eq!(sim.text("bus/pci/devices/0000:22:02.1/device").unwrap(), "0x74b5\n");
    assert_eq!(sim.counts(), [1, 2, 1]);
}

#[test]
fn a_module_that_is_not_loaded_has_no_gpu_until_modprobe() {
    let sim = free([0, 0, 0]);
    assert_eq!((sim.counts(), sim.driver_of(A)), ([0, 0, 0], None));
    assert!(!sim.has(&path(A, "reset_gpu")) && !sim.has("module/gim"));
    assert_eq!(sim.put(&path(A, "sriov_numvfs"), "1"), Err(Errno::ENOENT));
    // One by default.
    assert_eq!(sim.modprobe_gim(&["gim"]), done());
    assert_eq!((sim.counts(), sim.driver_of(C).as_deref()), ([1, 1, 1], Some("gim")));
    assert!(sim.has("module/gim"));
}

#[test]
fn numbers_go_by_address_and_the_last_repeats() {
    let sim = free([1, 1, 1]);
    assert_eq!(sim.modprobe_gim(&["-r", "gim"]), done());
    assert_eq!((sim.counts(), sim.driver_of(B)), ([0, 0, 0], None));
    assert!(!sim.has("bus/pci/devices/0000:0c:02.0") && !sim.has("module/gim"));
    assert_eq!(sim.modprobe_gim(&["gim", "vf_num=4,2"]), done());
    assert_eq!(sim.counts(), [4, 2, 2]);
    // It is loaded, so its numbers stay.
    assert_eq!(sim.modprobe_gim(&["gim", "vf_num=1"]), done());
    assert_eq!(sim.counts(), [4, 2, 2]);
    // Without numbers it takes those of last time (/etc/gim_config).
    assert_eq!(sim.modprobe_gim(&["--remove", "gim"]), done());
    assert_eq!(sim.modprobe_gim(&["-r", "gim"]), done());
    assert_eq!(sim.modprobe_gim(&["gim"]), done());
    assert_eq!(sim.counts(), [4, 2, 2]);
}

#[test]
fn a_gpu_of_someone_else_takes_no_number() {
    let sim = free([1, 1, 1]);
    sim.modprobe_gim(&["-r", "gim"]);
    sim.put(&path(A, "driver_override"), "vfio-pci").unwrap();
    sim.put("bus/pci/drivers_probe", A).unwrap();
    sim.modprobe_gim(&["gim", "vf_num=8,2,1"]);
    assert_eq!(sim.driver_of(A).as_deref(), Some("vfio-pci"));
    assert_eq!(sim.counts(), [0, 8, 2]);
}

#[test]
fn above_the_limit_the_probe_succeeds_without_functions() {
    let sim = free([1, 1, 1]);
    sim.modprobe_gim(&["-r", "gim"]);
    assert_eq!(sim.modprobe_gim(&["gim", "vf_num=8"]), done());
    assert_eq!(sim.counts(), [8, 8, 0]);
    assert_eq!(sim.driver_of(C).as_deref(), Some("gim"));
    assert_eq!(sim.log(), ["gim 0000:38:00.0: VF number 8 to be enabled exceeds the vf limit 2."]);
    // The GPU does not run: it has no attributes of the driver either.
    assert!(!sim.has(&path(C, "memory_partition_mode")) && !sim.has(&path(C, "xgmi_hive_info")));
    assert!(sim.has(&path(A, "memory_partition_mode")));
}

#[test]
fn a_number_out_of_range_becomes_one_and_no_number_keeps_the_module_out() {
    let sim = free([2, 2, 2]);
    sim.modprobe_gim(&["-r", "gim"]);
    for bad in ["vf_num=two", "vf_num=", "vf_num=1,,1", "vf_num=-1"] {
        let said = "modprobe: ERROR: could not insert 'gim': Invalid argument\n";
        assert_eq!(sim.modprobe_gim(&["gim", bad]), refused(said), "{bad}");
        assert_eq!((sim.counts(), sim.driver_of(A)), ([0, 0, 0], None));
    }
    let many = format!("vf_num={}", ["1"; 33].join(","));
    assert_eq!(sim.modprobe_gim(&["gim", &many]).status, Some(1));
    assert_eq!(sim.modprobe_gim(&["gim", "vf_num=0,32,2"]), done());
    assert_eq!(sim.counts(), [1, 1, 2]);
}

#[test]
fn unloading_waits_while_a_function_is_in_use_and_changes_nothing_till_then() {
    let sim = free([1, 1, 1]);
    let vf = "bus/pci/devices/0000:0c:02.0";
    sim.put(&format!("{vf}/driver_override"), "vfio-pci").unwrap();
    sim.put("bus/pci/drivers_probe", "0000:0c:02.0").unwrap();
    let guest = sim.hold(&sim.group_node(vf), 4711, "qemu").unwrap();
    let clone = sim.clone();
    let unload = start(move || clone.modprobe_gim(&["-r", "gim"]));
    assert!(unload.is_blocked());
    assert_eq!((sim.counts(), sim.driver_of(B).as_deref()), ([1, 1, 1], Some("gim")));
    assert!(sim.has(&format!("{vf}/physfn")) && sim.has(&format!("{vf}/vfio-dev")));
    drop(guest);
    assert_eq!(unload.end(), done());
    assert_eq!((sim.counts(), sim.driver_of(B)), ([0, 0, 0], None));
}

#[test]
fn drivers_of_the_host_take_functions_where_autoprobe_lets_them() {
    let sim = gpus([1, 1, 1], "");
    let vf = "bus/pci/devices/0000:0c:02.0";
    assert_eq!(sim.link(&format!("{vf}/driver")).unwrap(), "amdgpu");
    let clone = sim.clone();
    let unload = start(move || clone.modprobe_gim(&["-r", "gim"]));
    assert!(unload.is_blocked(), "amdgpu uses the VFs");
    for vf in ["0000:0c:02.0", "0000:22:02.0", "0000:38:02.0"] {
        sim.put("bus/pci/drivers/amdgpu/unbind", vf).unwrap();
    }
    assert_eq!(unload.end(), done());
    sim.put(&path(A, "sriov_drivers_autoprobe"), "0").unwrap();
    sim.modprobe_gim(&["gim", "vf_num=1"]);
    assert!(sim.has(vf) && !sim.has(&format!("{vf}/driver")));
    assert_eq!(sim.link("bus/pci/devices/0000:22:02.0/driver").unwrap(), "amdgpu");
}

#[test]
fn modes_change_for_the_whole_hive() {
    let sim = free([1, 1, 1]);
    assert_eq!(sim.mode(A, "spatial_partition_mode"), "SPX\n");
    assert_eq!(sim.mode(A, "memory_partition_config"), "NPS1 NPS4 \n");
    assert_eq!(
        sim.mode(A, "accelerator_partition_profile"),
        "profile_index       profile_type        num_of_partitions   num_of_resources    \
         resource_index_in_resource_profiles\n\
         0                   SPX                 1                   2                   \
         [[3 7 ]]\n"
    );
    // With one VF, profile 1 is CPX.
    sim.put(&path(B, "accelerator_partition_profile"), "1").unwrap();
    let spatial = |sim: &SimKernel| [A, B, C].map(|gpu| sim.mode(gpu, "spatial_partition_mode"));
    assert_eq!(spatial(&sim), ["CPX\n", "CPX\n", "SPX\n"]);
    sim.put(&path(A, "accelerator_partition_profile"), "0").unwrap();
    // NPS4 brings CPX with it.
    sim.put(&path(A, "memory_partition_mode"), "nps4\n").unwrap();
    assert_eq!(spatial(&sim), ["CPX\n", "CPX\n", "SPX\n"]);
    let memory = |gpu| sim.mode(gpu, "memory_partition_mode").lines().next().unwrap().to_owned();
    assert_eq!(
        [A, B, C].map(memory),
        ["NPS4", "NPS4", "NPS1"].map(|mode| format!("memory_partition_mode: {mode}"))
    );
    assert_eq!(
        sim.mode(A, "memory_partition_mode").lines().nth(2).unwrap(),
        "NUMA0 type=128 start=0x0000000000000000 end=0x0000000bffffffff"
    );
}

#[test]
fn stores_say_success_although_nothing_changes() {
    let sim = free([1, 2, 1]);
    let modes = |sim: &SimKernel| {
        [A, B, C].map(|gpu| {
            ["accelerator_partition_profile", "memory_partition_mode"]
                .map(|attr| sim.mode(gpu, attr))
        })
    };
    let before = modes(&sim);
    // There is no such profile, NPS2 is not for MI300X, and NPS8 is taken for NPS4,
    // which two VFs cannot have.
    assert_eq!(sim.put(&path(A, "accelerator_partition_profile"), "7"), Ok(()));
    assert_eq!(sim.put(&path(A, "memory_partition_mode"), "NPS2"), Ok(()));
    assert_eq!(sim.put(&path(B, "accelerator_partition_profile"), "0"), Ok(()));
    assert_eq!(modes(&sim), before);
    sim.put(&path(B, "memory_partition_mode"), "NPS8").unwrap();
    assert_eq!(sim.mode(B, "spatial_partition_mode"), "DPX\n");
    assert_eq!(sim.mode(A, "spatial_partition_mode"), "CPX\n");
    // What cannot be parsed is refused.
    assert_eq!(sim.put(&path(A, "memory_partition_mode"), "all"), Err(Errno::EINVAL));
    assert_eq!(sim.put(&path(A, "accelerator_partition_profile"), "SPX"), Err(Errno::EINVAL));
    assert_eq!(sim.put(&path(A, "spatial_partition_mode"), "SPX"), Err(Errno::EACCES));

    // A guest on one GPU keeps all of its hive.
    let vf = "bus/pci/devices/0000:22:02.1";
    sim.put(&format!("{vf}/driver_override"), "vfio-pci").unwrap();
    sim.put("bus/pci/drivers_probe", "0000:22:02.1").unwrap();
    let guest = sim.hold(&sim.group_node(vf), 4711, "qemu").unwrap();
    assert_eq!(sim.put(&path(A, "memory_partition_mode"), "NPS1"), Ok(()));
    assert_eq!(sim.put(&path(C, "memory_partition_mode"), "NPS4"), Ok(()));
    let spatial = |sim: &SimKernel| [A, B, C].map(|gpu| sim.mode(gpu, "spatial_partition_mode"));
    assert_eq!(spatial(&sim), ["CPX\n", "DPX\n", "CPX\n"]);
    drop(guest);
    assert_eq!(sim.put(&path(A, "memory_partition_mode"), "NPS1"), Ok(()));
    assert_eq!(spatial(&sim), ["SPX\n", "DPX\n", "CPX\n"]);
}

#[test]
fn a_number_of_functions_without_a_mode_tells_a_failure_with_success() {
    let sim = free([3, 4, 1]);
    assert_eq!(sim.mode(A, "spatial_partition_mode"), "failed to get current sp mode\n");
    assert_eq!(
        sim.mode(A, "accelerator_partition_profile"),
        "failed to get current accelerator partition profile\n"
    );
    assert_eq!(sim.mode(B, "spatial_partition_mode"), "QPX\n");
    let row = sim.mode(B, "accelerator_partition_profile");
    assert!(row.ends_with("[[1 5 ][1 5 ][1 5 ][1 5 ]]\n"), "{row}");
}

#[test]
fn some_attributes_do_harm_when_they_are_read() {
    let sim = free([1, 1, 1]);
    sim.list(&path(A, ""));
    let _ = sim.read(&path(A, "reset_gpu"), ReadKind::Inode);
    sim.mode(A, "spatial_partition_caps");
    assert_eq!(sim.harm_done(), [""; 0]);
    assert_eq!(sim.mode(A, "reset_gpu"), "dev(0000:0c:00.0) reset completed\n");
    sim.mode(B, "psp_vbflash");
    let through = "bus/pci/devices/0000:0c:02.0/physfn/psp_vbflash_status";
    sim.text(through).unwrap();
    assert_eq!(sim.harm_done(), [&path(A, "reset_gpu"), &path(B, "psp_vbflash"), through]);
}

#[test]
fn reading_reset_gpu_resets_that_gpu_each_time() {
    let sim = free([1, 1, 1]);
    let resets = |sim: &SimKernel| [A, B, C].map(|gpu| sim.resets(gpu.parse().unwrap()));
    sim.list(&path(A, ""));
    let _ = sim.read(&path(A, "reset_gpu"), ReadKind::Inode);
    sim.mode(A, "psp_vbflash_status");
    assert_eq!(resets(&sim), [0, 0, 0]);
    sim.mode(A, "reset_gpu");
    sim.text("bus/pci/devices/0000:0c:02.0/physfn/reset_gpu").unwrap();
    sim.mode(C, "reset_gpu");
    assert_eq!(resets(&sim), [2, 0, 1]);
    // A GPU that does not run has no such attribute.
    sim.modprobe_gim(&["-r", "gim"]);
    assert_eq!(sim.text(&path(B, "reset_gpu")), Err(Errno::ENOENT));
    assert_eq!(resets(&sim), [2, 0, 1]);
}

#[test]
fn the_parameter_reads_as_it_was_given_while_the_module_is_loaded() {
    const VF_NUM: &str = "module/gim/parameters/vf_num";
    let sim = free([1, 2, 1]);
    assert_eq!(sim.text(VF_NUM).unwrap(), "1,2,1\n");
    assert_eq!(sim.entry(VF_NUM), Ok(EntryKind::Attribute(0o444)));
    assert_eq!(sim.put(VF_NUM, "2"), Err(Errno::EACCES));
    sim.modprobe_gim(&["-r", "gim"]);
    assert_eq!(sim.text(VF_NUM), Err(Errno::ENOENT));
    // What is out of range is corrected elsewhere.
    sim.modprobe_gim(&["gim", "vf_num=0,2"]);
    assert_eq!((sim.text(VF_NUM).unwrap(), sim.counts()), ("0,2\n".into(), [1, 2, 2]));
    sim.modprobe_gim(&["gim", "vf_num=4"]);
    assert_eq!(sim.text(VF_NUM).unwrap(), "0,2\n");
    // Taken from last time, it was not given.
    sim.modprobe_gim(&["-r", "gim"]);
    sim.modprobe_gim(&["gim"]);
    assert_eq!((sim.text(VF_NUM).unwrap(), sim.counts()), (String::new(), [1, 2, 2]));
    // Other modules have no parameters here.
    assert_eq!(sim.list("module/gim"), ["parameters"]);
    assert!(sim.has("module/vfio_pci") && !sim.has("module/vfio_pci/parameters"));
}

#[test]
fn reads_are_counted_once_asked_for() {
    let sim = free([1, 1, 1]);
    sim.mode(A, "spatial_partition_mode");
    assert!(sim.reads().is_empty());
    sim.record_reads();
    sim.mode(A, "spatial_partition_mode");
    sim.mode(A, "spatial_partition_mode");
    sim.list("bus/pci/devices");
    let counted: Vec<_> = sim.reads().into_iter().collect();
    assert_eq!(
        counted,
        [("bus/pci/devices".to_owned(), 1), (path(A, "spatial_partition_mode"), 2)]
    );
}

#[test]
fn changes_are_recorded_in_order() {
    let sim = free([1, 1, 1]);
    sim.record_writes();
    sim.put(&path(A, "sriov_drivers_autoprobe"), "1").unwrap();
    sim.modprobe_gim(&["-r", "gim"]);
    sim.put(&path(A, "sriov_numvfs"), "1").unwrap_err();
    assert_eq!(
        sim.changes(),
        [
            "write \"1\" to bus/pci/devices/0000:0c:00.0/sriov_drivers_autoprobe",
            "run modprobe -r gim",
            "write \"1\" to bus/pci/devices/0000:0c:00.0/sriov_numvfs",
        ]
    );
}

#[test]
fn the_hive_is_told_only_where_it_is_described_to_be() {
    let sim = free([1, 1, 1]);
    assert_eq!(sim.text(&path(C, "xgmi_hive_info/xgmi_hive_id")).unwrap(), "2\n");
    assert!(sim.list(&path(C, "")).contains(&"xgmi_hive_info".to_owned()));
    assert!(!sim.has(&path(A, "xgmi_hive_info")));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let described = |gim: &str, rest: &str| {
        HostSpec::parse(
            &format!(
                "[[pci]]\naddress = \"{A}\"\nvendor = 0x1002\ndevice = 0x74a1\n\
                 class = 0x120000\n{rest}\ngim = {{ hive = 1, {gim} }}\n"
            ),
            "host.toml",
        )
        .unwrap_err()
        .to_string()
    };
    let sriov = "sriov = { total-vfs = 8, vf-device = 0x74b5, callback = false }";
    let by = |driver: &str| format!("driver = \"{driver}\"\n{sriov}");
    for (gim, rest, said) in [
        ("limit = 9", by("gim"), "limit of 0000:0c:00.0 is from 1 to 8, and vf-num at most 31"),
        ("limit = 1", by("amdgpu"), "0000:0c:00.0 has [pci.gim], but another driver than gim"),
        ("limit = 1", "driver = \"gim\"".into(), "needs callback = false and no enabled VFs"),
    ] {
        let refused = described(gim, &rest);
        assert!(refused.starts_with("host.toml: line 2: ") && refused.contains(said), "{refused}");
    }
}
