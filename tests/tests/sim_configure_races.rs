//! What others do while a GPU is being configured: no vGPU ends by it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    thread,
    time::{Duration, Instant},
};

use vgpu_mdev::{
    engine::Hint,
    error::{Error, ErrorKind},
    model::Gpu,
    request::{Configure, Control},
    sys::{
        Kernel as _, ReadKind, ToolId,
        sim::{BlockGuard, Calls, FaultOn, HostSpec},
    },
};
use vgpu_tests::simulated::{Simulated, described};

const RTX: &str = "0000:02:00.0";
const VF: &str = "bus/pci/devices/0000:02:00.2";

fn rtx(functions: bool) -> Simulated {
    let host = Simulated::on(&described("rtx-pro-6000"), "");
    host.engine.rescan().unwrap();
    if functions {
        host.set_vfs(RTX, 48).unwrap();
    }
    host
}

fn gpu(host: &Simulated, id: &str) -> Gpu {
    (**host.engine.snapshot().gpu(&id.parse().unwrap()).unwrap()).clone()
}

fn configure(host: &Simulated, id: &str, wish: &Configure) -> Result<(), Error> {
    host.engine.configure(&id.parse().unwrap(), wish, &Control::default())
}

fn met(block: &BlockGuard) {
    assert!(block.wait_met(Duration::from_secs(10)), "nothing came to it");
}

/// Puts a type on a VF, as somebody else.
fn make_foreign(host: &Simulated) {
    let list = host.kernel.read(&format!("{VF}/nvidia/creatable_vgpu_types"), ReadKind::Text);
    assert!(format!("{list:?}").contains("1521"), "{list:?}");
    host.write(&format!("{VF}/nvidia/current_vgpu_type"), "1521").unwrap();
}

fn carried(host: &Simulated) -> String {
    match host.kernel.read(&format!("{VF}/nvidia/current_vgpu_type"), ReadKind::Text) {
        Ok(vgpu_mdev::sys::Value::Text(text)) => text.trim().to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_vgpu_that_comes_while_nvidia_smi_is_asked_is_seen() {
    let host = rtx(true);
    let asked = host.kernel.block("nvidia-smi -q*", FaultOn::Run(Calls::Nth(1)));
    let off = Configure { functions: Some(0), ..Configure::default() };
    let refused = thread::scope(|scope| {
        let configuring = scope.spawn(|| configure(&host, RTX, &off));
        met(&asked);
        make_foreign(&host);
        drop(asked);
        configuring.join().unwrap()
    })
    .unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Busy, "would-end-vgpus"));
    assert_eq!(carried(&host), "1521");
}

#[test]
fn undoing_ends_no_vgpu_that_came_meanwhile() {
    let host = rtx(false);
    host.kernel.lie("nvidia-smi vgpu*-shm 1", FaultOn::Run(Calls::All));
    // Asked before, and after that lie.
    let asked = host.kernel.block("nvidia-smi -q*", FaultOn::Run(Calls::Nth(2)));
    let wish = Configure { functions: Some(48), heterogeneous: Some(true), ..Configure::default() };
    let refused = thread::scope(|scope| {
        let configuring = scope.spawn(|| configure(&host, RTX, &wish));
        met(&asked);
        make_foreign(&host);
        drop(asked);
        configuring.join().unwrap()
    })
    .unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Degraded, "program-did-less"));
    assert_eq!(carried(&host), "1521");
    assert_eq!(gpu(&host, RTX).vf_count, 48);
    assert!(refused.to_string().contains("0000:02:00.2"), "{refused}");
}

#[test]
fn a_vgpu_on_a_gpu_of_gims_keeps_the_module_from_being_unloaded() {
    let host = Simulated::on(&described("mi300x"), "");
    let autoprobe = "bus/pci/devices/0000:0c:00.0/sriov_drivers_autoprobe";
    host.write(autoprobe, "1").unwrap();
    // The first step, after which the module goes.
    let first = host.kernel.block(autoprobe, FaultOn::Write(Calls::Nth(1)));
    let taken = "0000:22:02.0";
    let refused = thread::scope(|scope| {
        let configuring = scope.spawn(|| host.set_vfs("0000:0c:00.0", 8));
        met(&first);
        host.write(&format!("bus/pci/devices/{taken}/driver_override"), "vfio-pci").unwrap();
        host.write("bus/pci/drivers_probe", taken).unwrap();
        drop(first);
        configuring.join().unwrap()
    })
    .unwrap_err();
    assert_eq!(
        (refused.kind(), refused.code()),
        (ErrorKind::Busy, "functions-in-use"),
        "{refused}"
    );
    assert!(refused.to_string().contains(taken), "{refused}");
    let commands = host.kernel.commands();
    assert!(!commands.iter().any(|line| line.starts_with("modprobe")), "{commands:?}");
}

#[test]
fn the_gpus_of_gim_wait_for_each_other_also_while_it_is_unloaded() {
    let config = "[passthrough]\nallow = ['0000:22:00.0']\n";
    let host = Simulated::on(&described("mi300x"), config);
    let loading = host.kernel.block("modprobe gim*", FaultOn::Run(Calls::Nth(1)));
    thread::scope(|scope| {
        let configuring = scope.spawn(|| host.set_vfs("0000:0c:00.0", 8));
        met(&loading);
        // By now no driver is on any of them, and no hive is known.
        host.engine.rescan().unwrap();
        assert_eq!(gpu(&host, "0000:22:00.0").driver, None);
        let whole = scope.spawn(|| host.create("mi300x-full"));
        thread::sleep(Duration::from_millis(300));
        assert!(!whole.is_finished(), "it did not wait: {:?}", whole.join());
        drop(loading);
        configuring.join().unwrap().unwrap();
        let refused = whole.join().unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadState, "{refused}");
    });
    assert_eq!(gpu(&host, "0000:0c:00.0").vf_count, 8);
    assert_eq!(gpu(&host, "0000:22:00.0").vf_count, 1);
}

#[test]
fn two_gpus_of_gim_are_configured_one_after_the_other() {
    let host = Simulated::on(&described("mi300x"), "");
    thread::scope(|scope| {
        let one = scope.spawn(|| host.set_vfs("0000:0c:00.0", 8));
        let other = scope.spawn(|| host.set_vfs("0000:22:00.0", 4));
        let made = scope.spawn(|| host.create("mi300x-vf"));
        let results = [one.join().unwrap(), other.join().unwrap()];
        let made = made.join().unwrap();
        // Either it came first, and they are refused, or nothing stood in the way.
        let all = results.iter().all(Result::is_ok);
        assert!(all || made.is_ok(), "{results:?} {made:?}");
        if let Ok(uuid) = made {
            assert!(host.vgpu(uuid).is_some());
        }
    });
}

#[test]
fn an_undo_that_does_nothing_is_told() {
    let host = rtx(false);
    host.kernel.lie("nvidia-smi vgpu*-shm 1", FaultOn::Run(Calls::All));
    host.kernel.lie("sriov-manage -d*", FaultOn::Run(Calls::All));
    let wish = Configure { functions: Some(48), heterogeneous: Some(true), ..Configure::default() };
    let refused = configure(&host, RTX, &wish).unwrap_err();
    assert_eq!(gpu(&host, RTX).vf_count, 48);
    // Else the error would say that all is as it was.
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Degraded, "program-did-less"));
    assert!(refused.to_string().contains("0000:02:00.0 has 48 VFs"), "{refused}");
}

#[test]
fn a_program_that_hangs_keeps_no_other_gpu_waiting() {
    for hanging in ["sriov-manage*", "nvidia-smi*"] {
        let text = std::fs::read_to_string(format!(
            "{}/hosts/rtx-pro-6000.toml",
            env!("CARGO_MANIFEST_DIR")
        ))
        .unwrap();
        let t4 = "[[pci]]\naddress = '0000:3b:00.0'\nvendor = 0x10de\ndevice = 0x1eb8\n\
                  class = 0x030200\ndriver = 'nvidia'\nmdev = 't4'\n\
                  [[pci]]\naddress = '0000:83:00.0'\nvendor = 0x8086\ndevice = 0xe211\nclass = 0x030000\ndriver = 'xe'\n\
                  sriov = { total-vfs = 4, vf-device = 0xe211, vf-driver = 'xe' }\n\
                  [mdev-kind.t4]\ndriver = 'nvidia-vgpu-vfio'\ncatalog = 'T4'\n";
        let spec = HostSpec::parse(&format!("{text}{t4}"), "host.toml").unwrap();
        let mut host = Simulated::on(&spec, "");
        host.timing.tool = Duration::from_secs(3);
        host.restart();
        host.engine.rescan().unwrap();
        let hang = host.kernel.block(hanging, FaultOn::Run(Calls::Nth(1)));
        let on = Configure { functions: Some(48), ..Configure::default() };
        let result = thread::scope(|scope| {
            let configuring = scope.spawn(|| configure(&host, RTX, &on));
            met(&hang);
            let begun = Instant::now();
            host.create("t4-4q").unwrap();
            host.set_vfs("0000:83:00.0", 2).unwrap();
            assert_eq!(gpu(&host, "0000:83:00.0").vf_count, 2);
            assert!(begun.elapsed() < Duration::from_secs(2), "{hanging}: {:?}", begun.elapsed());
            if hanging.starts_with("sriov") {
                host.engine.rescan().unwrap();
            }
            configuring.join().unwrap()
        });
        assert_eq!(result.is_err(), hanging.starts_with("sriov"), "{hanging} {result:?}");
        drop(hang);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let on = configure(&host, RTX, &Configure { mig: Some(false), ..Configure::default() });
            if on.is_ok() {
                break;
            }
            assert!(Instant::now() < deadline, "{on:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn what_others_configure_is_no_lie_of_ours() {
    let host = rtx(true);
    let run = |tool, line: &str| {
        let args: Vec<String> = line.split(' ').map(Into::into).collect();
        let said = host.kernel.run_tool(tool, &args, Duration::from_secs(5)).unwrap();
        assert_eq!(said.status, Some(0), "{line}: {}", said.output);
    };
    let instances = |shapes: &str| {
        run(ToolId::NvidiaSmi, &format!("mig -i {RTX} -cgi {shapes} -C"));
        // Nobody hears of that, but whatever is done next, the VFs are read again.
        host.engine.hint(Hint::Gpu(RTX.parse().unwrap()));
    };
    let is_offered_soon = |profile: &str| {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let gpu = gpu(&host, RTX);
            // Its driver is bound anew meanwhile, and offers nothing.
            let now = gpu.profiles_called(profile).next().map(|profile| profile.available);
            if now.is_some_and(|available| available > 0) {
                return;
            }
            assert!(Instant::now() < deadline, "{now:?} of {profile}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    is_offered_soon("dc-48q");
    run(ToolId::SriovManage, &format!("-d {RTX}"));
    run(ToolId::NvidiaSmi, &format!("-i {RTX} -mig 1"));
    // As if it did not answer any more: what it said stays.
    host.kernel.lose_events();
    run(ToolId::SriovManage, &format!("-e {RTX}"));
    instances("47,47");
    is_offered_soon("dc-1-24q");
    host.create("dc-1-24q").unwrap();
}

#[test]
fn nvidia_smi_is_asked_again_when_functions_come() {
    let host = rtx(false);
    let run = |tool, line: &str| {
        let args: Vec<String> = line.split(' ').map(Into::into).collect();
        assert_eq!(
            host.kernel.run_tool(tool, &args, Duration::from_secs(5)).unwrap().status,
            Some(0)
        );
    };
    run(ToolId::NvidiaSmi, &format!("-i {RTX} -mig 1"));
    run(ToolId::SriovManage, &format!("-e {RTX}"));
    let deadline = Instant::now() + Duration::from_secs(10);
    while !gpu(&host, RTX).mig.unwrap().current {
        assert!(Instant::now() < deadline, "it was not asked");
        thread::sleep(Duration::from_millis(20));
    }
}
