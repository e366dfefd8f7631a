//! AMD's GPUs on GIM: plain VFs, as many as the module was loaded with, for all
//! GPUs of it at once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeSet, thread};

use nix::errno::Errno;
use uuid::Uuid;
use vgpu_mdev::{
    error::{Error, ErrorKind},
    model::{Framework, FunctionState, Gpu, PciAddress, VgpuParams},
    request::{Configure, Control, CreateRequest, PlanRequest},
    sys::{
        ReadKind, Value,
        sim::{Calls, FaultOn, HostSpec},
    },
};
use vgpu_tests::simulated::Simulated;

const GPUS: [&str; 8] = [
    "0000:0c:00.0",
    "0000:22:00.0",
    "0000:38:00.0",
    "0000:5c:00.0",
    "0000:9f:00.0",
    "0000:af:00.0",
    "0000:bf:00.0",
    "0000:df:00.0",
];
const FIRST: &str = GPUS[0];
const SECOND: &str = GPUS[1];
const PROFILE: &str = "mi300x-vf";

/// The attributes of a PF that may be read; `virtfn` stands for all of its links.
const READABLE: [&str; 19] = [
    "",
    "boot_vga",
    "class",
    "device",
    "driver",
    "iommu_group",
    "iommu_group/devices",
    "modalias",
    "numa_node",
    "physfn",
    "sriov_drivers_autoprobe",
    "sriov_totalvfs",
    "sriov_vf_msix_count",
    "subsystem_device",
    "subsystem_vendor",
    "vendor",
    "vfio-dev",
    "virtfn",
    "virtfn/physfn",
];
const HIVE: &str = "xgmi_hive_info/xgmi_hive_id";

fn spec() -> HostSpec {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/hosts/mi300x.toml");
    HostSpec::parse(&std::fs::read_to_string(path).unwrap(), path).unwrap()
}

/// The eight GPUs, with something about each changed.
fn host_with(change: impl Fn(&mut vgpu_mdev::sys::sim::PciSpec)) -> Simulated {
    let mut spec = spec();
    spec.pci.iter_mut().for_each(change);
    Simulated::on(&spec, "")
}

fn host() -> Simulated {
    host_with(|_| {})
}

fn gpu(host: &Simulated, gpu: &str) -> Gpu {
    (**host.engine.snapshot().gpu(&gpu.parse().unwrap()).unwrap()).clone()
}

/// How many VFs each GPU has, as the picture shows.
fn counts(host: &Simulated) -> [usize; 8] {
    GPUS.map(|address| gpu(host, address).functions.len())
}

/// What is available of the profile, and the reason's code.
fn offer(host: &Simulated, address: &str) -> (u32, &'static str) {
    let gpu = gpu(host, address);
    let [profile] = &gpu.profiles[..] else { panic!("{:?}", gpu.profiles) };
    assert_eq!(profile.short_name, PROFILE);
    (profile.available, profile.reason_code())
}

fn create_on(host: &Simulated, gpu: &str) -> Result<Uuid, Error> {
    let request = CreateRequest {
        profile: PROFILE.into(),
        gpu: Some(gpu.parse().unwrap()),
        ..CreateRequest::default()
    };
    host.engine.create(&request, &Control::default()).map(|created| created.uuid)
}

fn text(host: &Simulated, device: &str, attr: &str) -> String {
    match host.kernel.read(&format!("bus/pci/devices/{device}/{attr}"), ReadKind::Text) {
        Ok(Value::Text(text)) => text.trim_end().to_owned(),
        other => panic!("{other:?}"),
    }
}

fn auto(gpu: &str, value: u8) -> String {
    format!("write \"{value}\" to bus/pci/devices/{gpu}/sriov_drivers_autoprobe")
}

/// The override of the VF `n` of a GPU.
fn override_vf(gpu: &str, n: u32) -> String {
    let gpu: PciAddress = gpu.parse().unwrap();
    let vf = gpu.offset_by(16 + n).unwrap();
    format!("write \"vfio-pci\\n\" to bus/pci/devices/{vf}/driver_override")
}

#[test]
fn the_picture_is_of_eight_gpus_with_a_function_each() {
    let host = host();
    assert_eq!(host.engine.snapshot().gpus().count(), 8);
    for (n, address) in GPUS.into_iter().enumerate() {
        let gpu = gpu(&host, address);
        assert_eq!((gpu.framework, &*gpu.model), (Framework::Sriov, "MI300X"));
        assert_eq!(gpu.numa_node, Some(n as u32 / 4));
        let [function] = &gpu.functions[..] else { panic!("{:?}", gpu.functions) };
        assert_eq!((function.state, function.driver.as_deref()), (FunctionState::Free, None));
        assert_eq!(function.address.to_string(), address.replace("00.0", "02.0"));
        assert_eq!(offer(&host, address), (1, "ok"));
    }
}

#[test]
fn a_vgpu_fits_on_each_gpu_and_removal_leaves_all_as_before() {
    let host = host();
    let before = host.picture();
    let made: Vec<Uuid> = (0..8).map(|_| host.create(PROFILE).unwrap()).collect();
    let parents: BTreeSet<String> =
        made.iter().map(|uuid| host.vgpu(*uuid).unwrap().gpu.to_string()).collect();
    assert_eq!(parents, GPUS.map(str::to_owned).into());
    for address in GPUS {
        assert_eq!(offer(&host, address), (0, "full"));
        let why = host.engine.explain(&address.parse().unwrap(), PROFILE).unwrap();
        assert!(why.contains("the one VF carries a vGPU; remove it, or enable more VFs"), "{why}");
        let refused = create_on(&host, address).unwrap_err();
        assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "full"));
    }
    let refused = host.create(PROFILE).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "full"));
    made.into_iter().for_each(|uuid| host.remove(uuid).unwrap());
    assert_eq!(host.picture(), before);
    for address in GPUS {
        let vf = address.replace("00.0", "02.0");
        assert_eq!(text(&host, &vf, "driver_override"), "(null)");
    }
}

#[test]
fn a_count_is_set_by_loading_the_module_anew_and_others_keep_theirs() {
    let host = host();
    host.kernel.record_writes();
    host.set_vfs(SECOND, 2).unwrap();
    assert_eq!(counts(&host), [1, 2, 1, 1, 1, 1, 1, 1]);
    assert_eq!(offer(&host, SECOND), (2, "ok"));
    let mut expected =
        vec!["run modprobe -r gim".to_owned(), "run modprobe gim vf_num=1,2,1,1,1,1,1,1".into()];
    for address in GPUS {
        expected.push(override_vf(address, 0));
        expected.extend((address == SECOND).then(|| override_vf(address, 1)));
    }
    assert_eq!(host.kernel.changes(), expected);

    // Nothing is to be done, or to be refused, where it is so already.
    let uuid = create_on(&host, SECOND).unwrap();
    let done = host.kernel.changes().len();
    host.set_vfs(SECOND, 2).unwrap();
    assert_eq!(host.kernel.changes().len(), done);
    host.remove(uuid).unwrap();
}

#[test]
fn drivers_of_the_host_are_kept_off_while_functions_appear() {
    let host = host();
    GPUS.into_iter().for_each(|address| {
        let path = format!("bus/pci/devices/{address}/sriov_drivers_autoprobe");
        host.write(&path, "1").unwrap();
    });
    host.kernel.record_writes();
    host.set_vfs(FIRST, 4).unwrap();
    assert_eq!(counts(&host), [4, 1, 1, 1, 1, 1, 1, 1]);
    for address in GPUS {
        let functions = gpu(&host, address).functions;
        assert!(functions.iter().all(|f| f.state == FunctionState::Free), "{functions:?}");
        assert_eq!(text(&host, address, "sriov_drivers_autoprobe"), "1");
    }
    let changes = host.kernel.changes();
    let (off, rest) = changes.split_at(8);
    assert_eq!(off, GPUS.map(|address| auto(address, 0)));
    assert_eq!(rest[..2], ["run modprobe -r gim", "run modprobe gim vf_num=4,1,1,1,1,1,1,1"]);
    assert_eq!(rest[rest.len() - 8..], GPUS.map(|address| auto(address, 1)));
}

#[test]
fn a_count_above_the_gpus_limit_is_told_and_rolled_back() {
    let host = host_with(|pci| pci.gim.as_mut().unwrap().limit = 2);
    host.set_vfs(SECOND, 2).unwrap();
    let before = host.picture();
    host.kernel.record_writes();
    // The module says success.
    let refused = host.set_vfs(FIRST, 4).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::RolledBack, "short-vf-count"));
    assert!(refused.to_string().contains("0 VFs"), "{refused}");
    assert_eq!(counts(&host), [1, 2, 1, 1, 1, 1, 1, 1]);
    assert_eq!(host.picture(), before);
    for (vf, driver) in [("0000:22:02.0", "vfio-pci"), ("0000:22:02.1", "vfio-pci")] {
        assert_eq!(text(&host, vf, "driver_override"), driver, "{vf} lost its override");
    }

    // What the PF itself cannot have is refused before.
    let done = host.kernel.changes().len();
    let refused = host.set_vfs(FIRST, 9).unwrap_err();
    assert_eq!(
        (refused.kind(), refused.code()),
        (ErrorKind::InvalidArgument, "too-many-functions")
    );
    assert!(refused.to_string().contains("at most 8"), "{refused}");
    assert_eq!(host.kernel.changes().len(), done);
}

#[test]
fn a_vgpu_on_any_gpu_of_the_module_keeps_all_counts() {
    let host = host();
    let uuid = create_on(&host, SECOND).unwrap();
    let before = host.picture();
    host.kernel.record_writes();
    let refused = host.set_vfs(FIRST, 2).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Busy, "functions-in-use"));
    assert!(refused.to_string().contains(&uuid.to_string()), "{refused}");
    assert_eq!((host.kernel.changes(), host.picture()), (Vec::new(), before));
    host.remove(uuid).unwrap();
    host.set_vfs(FIRST, 2).unwrap();
    assert_eq!(counts(&host), [2, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn functions_of_the_hosts_driver_keep_the_module() {
    let host = host_with(|pci| pci.sriov.as_mut().unwrap().autoprobe = true);
    assert_eq!(offer(&host, FIRST), (0, "used-by-host"));
    host.kernel.record_writes();
    let refused = host.set_vfs(FIRST, 2).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Busy, "functions-used-by-host"));
    assert!(refused.to_string().contains("0000:0c:02.0 (amdgpu)"), "{refused}");
    assert_eq!(host.kernel.changes(), [""; 0]);
}

#[test]
fn a_modprobe_that_fails_or_does_nothing_is_undone() {
    let run = |n| FaultOn::Run(Calls::Nth(n));
    for n in [1, 2] {
        for lies in [false, true] {
            let host = host();
            GPUS.into_iter().for_each(|address| {
                let path = format!("bus/pci/devices/{address}/sriov_drivers_autoprobe");
                host.write(&path, "1").unwrap();
            });
            let before = host.picture();
            match lies {
                true => host.kernel.lie("modprobe *", run(n)),
                false => host.kernel.fail("modprobe *", run(n), Errno::EIO),
            }
            let refused = host.set_vfs(FIRST, 2).unwrap_err();
            let expected = match lies {
                true => (ErrorKind::RolledBack, "short-vf-count"),
                false => (ErrorKind::NotSupported, "program-missing"),
            };
            assert_eq!((refused.kind(), refused.code()), expected, "{refused}");
            assert_eq!(host.kernel.faults_met(), 1);
            assert_eq!(host.picture(), before, "run {n}, lies: {lies}");
            for address in GPUS {
                assert_eq!(text(&host, address, "sriov_drivers_autoprobe"), "1");
            }
            host.kernel.clear_faults();
            host.set_vfs(FIRST, 2).unwrap();
            assert_eq!(counts(&host), [2, 1, 1, 1, 1, 1, 1, 1]);
        }
    }
}

#[test]
fn a_module_that_is_not_loaded_is_loaded_with_one_for_each_other_gpu() {
    let host = host_with(|pci| pci.gim.as_mut().unwrap().vf_num = 0);
    let before = host.picture();
    assert_eq!(counts(&host), [0; 8]);
    assert_eq!(offer(&host, FIRST), (0, "no-functions-enabled"));
    host.kernel.record_writes();
    host.set_vfs(FIRST, 2).unwrap();
    assert_eq!(counts(&host), [2, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(host.kernel.changes()[0], "run modprobe gim vf_num=2,1,1,1,1,1,1,1");
    // The others have some: the module stays.
    let refused = host.set_vfs(FIRST, 0).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NotSupported, "module-wide"));
    assert!(refused.to_string().contains(SECOND), "{refused}");

    let host = host_with(|pci| pci.gim.as_mut().unwrap().vf_num = 0);
    host.kernel.lie("modprobe gim *", FaultOn::Run(Calls::All));
    host.set_vfs(FIRST, 2).unwrap_err();
    assert_eq!(host.picture(), before);
}

#[test]
fn gpus_that_were_loaded_above_their_limit_get_functions_again() {
    let host = host_with(|pci| {
        let gim = pci.gim.as_mut().unwrap();
        (gim.limit, gim.vf_num) = (2, 4);
    });
    assert_eq!((counts(&host), offer(&host, FIRST)), ([0; 8], (0, "no-functions-enabled")));
    host.set_vfs(FIRST, 2).unwrap();
    assert_eq!(counts(&host), [2, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn the_only_gpu_loses_its_functions_with_the_module() {
    let mut spec = spec();
    spec.pci.truncate(1);
    let host = Simulated::on(&spec, "");
    host.kernel.record_writes();
    host.set_vfs(FIRST, 0).unwrap();
    assert_eq!(host.kernel.changes(), ["run modprobe -r gim"]);
    let gpu = gpu(&host, FIRST);
    assert_eq!((gpu.functions.len(), offer(&host, FIRST)), (0, (0, "no-functions-enabled")));
    host.set_vfs(FIRST, 8).unwrap();
    assert_eq!(offer(&host, FIRST), (8, "ok"));
}

/// What the commands of `vgpuctl` ask of the engine besides changes.
fn all_that_is_asked(host: &Simulated, vgpu: Uuid) {
    let first = FIRST.parse().unwrap();
    host.engine.explain(&first, PROFILE).unwrap();
    host.engine.probe(vgpu).unwrap();
    assert!(host.engine.holders(vgpu).unwrap().is_empty());
    assert!(host.engine.held_by(4711).unwrap().is_empty());
    host.engine.open_device(vgpu, true).unwrap();
    let wishes = vec![(PROFILE.to_owned(), 2)];
    host.engine.plan_vgpus(&PlanRequest { wishes, ..PlanRequest::default() }).unwrap();
    let wish = |functions| Configure { functions: Some(functions), ..Configure::default() };
    host.engine.plan_configuration(&first, &wish(4)).unwrap_err();
    host.engine.configure(&first, &wish(4), &Control::default()).unwrap_err();
    let params: VgpuParams = "frame_rate_limiter=0".parse().unwrap();
    host.engine.set_params(vgpu, &params, &Control::default()).unwrap_err();
}

#[test]
fn only_attributes_of_an_allow_list_are_read() {
    for hive_file in [false, true] {
        let mut host = host_with(|pci| pci.gim.as_mut().unwrap().hive_file = hive_file);
        host.kernel.record_reads();
        host.restart();
        host.set_vfs(FIRST, 2).unwrap();
        let made = [create_on(&host, FIRST).unwrap(), host.create(PROFILE).unwrap()];
        host.set_vfs(SECOND, 2).unwrap_err();
        create_on(&host, "0000:00:00.0").unwrap_err();
        all_that_is_asked(&host, made[0]);
        host.engine.rescan().unwrap();
        made.into_iter().for_each(|uuid| host.remove(uuid).unwrap());
        host.kernel.lie("modprobe gim *", FaultOn::Run(Calls::Nth(1)));
        host.set_vfs(SECOND, 2).unwrap_err();

        let mut read = BTreeSet::new();
        for path in host.kernel.reads().keys() {
            let Some(rest) = path.strip_prefix("bus/pci/devices/") else {
                assert!(!GPUS.iter().any(|gpu| path.contains(gpu)), "{path}");
                continue;
            };
            let (device, attr) = rest.split_once('/').unwrap_or((rest, ""));
            if GPUS.contains(&device) {
                read.insert(attr.replace(|letter: char| letter.is_ascii_digit(), ""));
            }
        }
        // All of the list is needed.
        let mut listed: BTreeSet<String> = READABLE.map(str::to_owned).into();
        listed.extend(hive_file.then(|| HIVE.to_owned()));
        assert_eq!(read, listed);
        assert_eq!(host.kernel.harm_done(), [""; 0]);
    }
}

#[test]
fn changes_of_two_gpus_of_a_hive_do_not_overlap() {
    for hive_file in [false, true] {
        let host = host_with(|pci| pci.gim.as_mut().unwrap().hive_file = hive_file);
        host.kernel.record_writes();
        thread::scope(|scope| {
            for address in [FIRST, SECOND] {
                let host = &host;
                scope.spawn(move || host.set_vfs(address, 2).unwrap());
            }
        });
        // The second began with what the first had left.
        assert_eq!(counts(&host), [2, 2, 1, 1, 1, 1, 1, 1]);
        let changes = host.kernel.changes();
        let runs: Vec<&str> = changes.iter().filter_map(|c| c.strip_prefix("run ")).collect();
        let first = if runs[1].contains("vf_num=2,1,") { "2,1" } else { "1,2" };
        assert_eq!(
            runs,
            [
                "modprobe -r gim",
                &format!("modprobe gim vf_num={first},1,1,1,1,1,1"),
                "modprobe -r gim",
                "modprobe gim vf_num=2,2,1,1,1,1,1,1",
            ]
        );
        let second = changes.iter().rposition(|change| change == "run modprobe -r gim").unwrap();
        // Nine VFs after the first change, ten after the second, each set once.
        assert_eq!((second, changes.len()), (2 + 9, 2 + 9 + 2 + 10));

        // Neither do those of two vGPUs.
        host.kernel.record_writes();
        let all = host.kernel.changes().len();
        thread::scope(|scope| {
            for address in [FIRST, SECOND] {
                let host = &host;
                scope.spawn(move || create_on(host, address).unwrap());
            }
        });
        let changes = &host.kernel.changes()[all..];
        let buses: Vec<bool> = changes.iter().map(|change| change.contains(&FIRST[..8])).collect();
        assert_eq!(buses.iter().zip(&buses[1..]).filter(|(a, b)| a != b).count(), 1, "{changes:?}");
    }
}

#[test]
fn a_change_waits_for_that_of_another_gpu_of_the_hive() {
    let host = host();
    host.kernel.record_writes();
    let stuck = host.kernel.block("modprobe -r gim", FaultOn::Run(Calls::Nth(1)));
    thread::scope(|scope| {
        let first = scope.spawn(|| host.set_vfs(FIRST, 2));
        assert!(stuck.wait_met(std::time::Duration::from_secs(10)));
        let second = scope.spawn(|| create_on(&host, GPUS[7]));
        thread::yield_now();
        assert_eq!(host.kernel.changes(), ["run modprobe -r gim"]);
        drop(stuck);
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    let changes = host.kernel.changes();
    assert_eq!(changes[1], "run modprobe gim vf_num=2,1,1,1,1,1,1,1");
    let load = changes[2..].iter().position(|change| change.ends_with("drivers_probe")).unwrap();
    assert_eq!(load, 10, "the vGPU came before the VFs were ready: {changes:?}");
}
