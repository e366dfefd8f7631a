//! Each way in which the kernel can refuse gives an error of its own, with
//! path, errno, cause and remedy, and leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nix::errno::Errno;
use vgpu_mdev::{
    error::{Error, ErrorKind},
    model::GpuState,
    sys::sim::{Calls, FaultOn},
};
use vgpu_tests::simulated::Simulated;

const FLEX: &str = "0000:41:00.0";
const NTH: FaultOn = FaultOn::Write(Calls::Nth(1));

/// What is tried on the built-in host.
#[derive(Debug, Clone, Copy)]
enum Try {
    /// Creating a vGPU of a profile.
    Create(&'static str),
    /// Setting the Flex's VF count.
    SetVfs(u32),
    /// Enabling two VFs first, then creating a vGPU on one.
    CreateVf,
}

/// Where a write fails, with what; what is tried; the error's kind, code, and
/// what its path ends with.
type Case = (&'static str, Errno, Try, ErrorKind, &'static str, &'static str);

use ErrorKind::{Busy, InvalidArgument, KernelRefused, NoCapacity, NoSuchGpu, NotSupported};
use Try::{Create, CreateVf, SetVfs};

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("*/mtty-2/create", Errno::EEXIST, Create("mtty-2"), Busy, "uuid-exists", "mtty-2/create"),
    ("*/mtty-2/create", Errno::ENOSPC, Create("mtty-2"), NoCapacity, "no-space", "mtty-2/create"),
    ("*/mtty-2/create", Errno::EUSERS, Create("mtty-2"), NoCapacity, "no-instances", "mtty-2/create"),
    ("*/mtty-2/create", Errno::EINVAL, Create("mtty-2"), NoCapacity, "driver-rule", "mtty-2/create"),
    ("*/mtty-2/create", Errno::EIO, Create("mtty-2"), NoCapacity, "driver-rule", "mtty-2/create"),
    ("*/mtty-2/create", Errno::ENODEV, Create("mtty-2"), NoSuchGpu, "parent-going", "mtty-2/create"),
    ("*/mtty-2/create", Errno::EACCES, Create("mtty-2"), KernelRefused, "denied", "mtty-2/create"),
    ("*/sriov_numvfs", Errno::EBUSY, SetVfs(2), Busy, "functions-enabled", "sriov_numvfs"),
    ("*/sriov_numvfs", Errno::ENOENT, SetVfs(2), NotSupported, "driver-without-sriov", "sriov_numvfs"),
    ("*/sriov_numvfs", Errno::ERANGE, SetVfs(2), InvalidArgument, "too-many-functions", "sriov_numvfs"),
    ("*/sriov_numvfs", Errno::ENOMEM, SetVfs(2), KernelRefused, "no-mmio-space", "sriov_numvfs"),
    ("*/sriov_numvfs", Errno::EINVAL, SetVfs(2), KernelRefused, "count-refused", "sriov_numvfs"),
    ("*/sriov_numvfs", Errno::EIO, SetVfs(2), KernelRefused, "enable-failed", "sriov_numvfs"),
    ("*/sriov_numvfs", Errno::ENOSPC, SetVfs(2), NoCapacity, "no-resources", "sriov_numvfs"),
    ("*/sriov_drivers_autoprobe", Errno::EPERM, SetVfs(2), KernelRefused, "denied", "sriov_drivers_autoprobe"),
    ("*/drivers_probe", Errno::ENODEV, CreateVf, NoSuchGpu, "device-gone", "drivers_probe"),
    ("*/drivers_probe", Errno::EINVAL, CreateVf, KernelRefused, "probe-refused", "drivers_probe"),
    ("*/drivers_probe", Errno::EBUSY, CreateVf, Busy, "probe-busy", "drivers_probe"),
    ("*/driver_override", Errno::EINVAL, CreateVf, InvalidArgument, "driver-name-too-long", "driver_override"),
];

fn attempt(host: &Simulated, what: Try) -> Result<(), Error> {
    match what {
        Create(profile) => host.create(profile).map(drop),
        SetVfs(count) => host.set_vfs(FLEX, count),
        CreateVf => host.create("flex-140-vf").map(drop),
    }
}

#[test]
fn each_refusal_is_told_apart_and_leaves_nothing() {
    for (pattern, errno, what, kind, code, path) in CASES {
        let host = Simulated::builtin();
        if matches!(what, CreateVf) {
            host.set_vfs(FLEX, 2).unwrap();
        }
        let before = host.picture();
        host.kernel.fail(pattern, NTH, *errno);
        let error = attempt(&host, *what).expect_err(&format!("{pattern} {errno:?}: no error"));
        let case = format!("{pattern} {errno:?} {what:?}: {error}");
        assert_eq!((error.kind(), error.code()), (*kind, *code), "{case}");
        assert_eq!(error.errno(), Some(*errno), "{case}");
        assert!(error.path().unwrap().ends_with(path), "{case}");
        assert!(error.to_string().contains(&format!("{errno:?}")), "{case}");
        assert!(error.undo_failures().is_empty(), "{case}");
        assert_eq!(host.picture(), before, "{case}: something was left");
        // Nothing is left reserved either: the same thing works now.
        attempt(&host, *what).unwrap_or_else(|error| panic!("{case}: then {error}"));
    }
}

#[test]
fn the_two_enoents_are_told_apart() {
    let host = |driver: &str, callback: bool| {
        format!(
            "[vfio]\ngroups = true\n[[vfio-driver]]\nname = 'vfio-pci'\n[[pci]]\naddress = '{FLEX}'\n\
             vendor = 0x8086\ndevice = 0x56c1\nclass = 0x030000\n{driver}\n[pci.sriov]\n\
             total-vfs = 31\nvf-device = 0x56c1\ncallback = {callback}\n"
        )
    };
    let try_it = |host: String| {
        let error = Simulated::described(&host, "").set_vfs(FLEX, 2).unwrap_err();
        (error.errno(), error.code())
    };
    assert_eq!(try_it(host("", true)), (Some(Errno::ENOENT), "no-driver"));
    let without = try_it(host("driver = 'gim'", false));
    assert_eq!(without, (Some(Errno::ENOENT), "driver-without-sriov"));
}

#[test]
fn a_short_count_is_undone_and_told() {
    let host = Simulated::described(
        &format!(
            "[vfio]\ngroups = true\n[[vfio-driver]]\nname = 'vfio-pci'\n[[pci]]\naddress = '{FLEX}'\n\
             vendor = 0x8086\ndevice = 0x56c1\nclass = 0x030000\ndriver = 'i915'\n[pci.sriov]\n\
             total-vfs = 31\nvf-device = 0x56c1\nshort-count = 3\n"
        ),
        "",
    );
    let error = host.set_vfs(FLEX, 8).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::RolledBack, "short-vf-count"), "{error}");
    assert!(
        error.to_string().contains("3 VFs") && error.to_string().contains("instead of 8"),
        "{error}"
    );
    let gpu = host.engine.snapshot().gpu(&FLEX.parse().unwrap()).unwrap().clone();
    assert_eq!(gpu.vf_count, 0);
    let autoprobe = host.kernel.read(
        &format!("bus/pci/devices/{FLEX}/sriov_drivers_autoprobe"),
        vgpu_mdev::sys::ReadKind::Text,
    );
    assert_eq!(
        autoprobe,
        Ok(vgpu_mdev::sys::Value::Text("1\n".into())),
        "autoprobe was not given back"
    );
}

#[test]
fn a_probe_that_binds_nothing_is_no_success() {
    let host = Simulated::builtin();
    host.set_vfs(FLEX, 1).unwrap();
    let before = host.picture();
    host.kernel.lie("*/drivers_probe", NTH);
    let error = host.create("flex-140-vf").unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::RolledBack, "driver-did-not-bind"),
        "{error}"
    );
    assert_eq!(host.picture(), before);
}

#[test]
fn a_failed_undo_never_hides_the_first_error() {
    let host = Simulated::builtin();
    host.set_vfs(FLEX, 1).unwrap();
    host.kernel.fail("*/drivers_probe", NTH, Errno::EINVAL);
    // The first write sets the override, the second one takes it back.
    host.kernel.fail("*/driver_override", FaultOn::Write(Calls::Nth(2)), Errno::EIO);
    let error = host.create("flex-140-vf").unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Degraded, "probe-refused"), "{error}");
    assert_eq!(error.errno(), Some(Errno::EINVAL));
    let [failure] = error.undo_failures() else { panic!("{error}") };
    assert!(failure.contains("driver_override") && failure.contains("EIO"), "{failure}");
}

#[test]
fn a_kernel_that_hangs_costs_its_lane_and_says_so() {
    let host = Simulated::builtin();
    let uuid = host.create("mtty-1").unwrap();
    let gate = host.kernel.block(&format!("*/{uuid}/remove"), NTH);
    let error = host.remove(uuid).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Stuck, "kernel-hangs"), "{error}");
    let again = host.remove(uuid).unwrap_err();
    assert_eq!(again.code(), "being-removed", "{again}");
    // The same parent still takes others.
    let other = host.create("mtty-1").unwrap();
    host.remove(other).unwrap();
    drop(gate);
    // Once the kernel lets go, the event ends the claim.
    wait_until(&host, || host.vgpu(uuid).is_none());
    host.engine.rescan().unwrap();
    assert_eq!(host.create("mtty-1").map(drop).ok(), Some(()));
}

#[test]
fn a_gpu_whose_reads_hang_keeps_its_facts_marked_stale() {
    let host = Simulated::builtin();
    let id = "0000:3b:00.0".parse().unwrap();
    let gate = host.kernel.block("*/0000:3b:00.0/numa_node", FaultOn::Read(Calls::Nth(1)));
    host.engine.rescan().unwrap();
    let stale = host.engine.snapshot().gpu(&id).unwrap().clone();
    assert_eq!(stale.state, GpuState::Stale);
    assert_eq!(stale.model, "T4");
    let other = host.create("mtty-1").unwrap();
    host.remove(other).unwrap();
    // No event tells that the kernel is back: the lane does.
    let (seen, states) = std::sync::mpsc::channel();
    host.engine.subscribe(move |change| {
        let _ = seen.send(change.after.gpu(&id).map(|gpu| gpu.state));
    });
    drop(gate);
    let ready = || states.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
    while ready() != Some(GpuState::Ready) {}
}

#[test]
fn what_is_held_is_not_removed_and_its_holder_is_named() {
    let host = Simulated::builtin();
    let uuid = host.create("mtty-1").unwrap();
    for node in host.vgpu(uuid).unwrap().nodes {
        let path = vgpu_mdev::sys::NodePath::new(node.path.clone()).unwrap();
        let guard = host.kernel.hold(&path, 4242, "qemu-system-x86").unwrap();
        let error = host.remove(uuid).unwrap_err();
        assert_eq!((error.kind(), error.code()), (Busy, "held"), "{error}");
        let holder = error.holder().unwrap();
        assert_eq!((holder.pid, &*holder.command), (4242, "qemu-system-x86"));
        assert_eq!(host.engine.held_by(4242).unwrap(), [uuid]);
        assert!(host.vgpu(uuid).is_some(), "it was removed");
        drop(guard);
    }
    host.remove(uuid).unwrap();
}

#[test]
fn a_whole_gpu_goes_and_comes_back_with_its_audio() {
    let host = Simulated::builtin();
    let before = host.picture();
    let uuid = host.create("1002-73bf-full").unwrap();
    let vgpu = host.vgpu(uuid).unwrap();
    let addresses: Vec<String> = vgpu.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["0000:81:00.0", "0000:81:00.1"]);
    host.remove(uuid).unwrap();
    assert_eq!(host.picture(), before);
}

#[test]
fn the_console_is_never_given_away() {
    let host = Simulated::builtin();
    let error = host.create("1a03-2000-full").unwrap_err();
    assert_eq!((error.kind(), error.code()), (NoCapacity, "used-by-host"), "{error}");
}

#[test]
fn a_restart_shows_the_same_picture() {
    let mut host = Simulated::builtin();
    host.set_vfs(FLEX, 2).unwrap();
    host.create("mtty-2").unwrap();
    host.create("t4-2q").unwrap();
    host.create("flex-140-vf").unwrap();
    let before = host.picture();
    host.restart();
    assert_eq!(host.picture(), before);
}

/// Waits for a condition that a kernel event brings about.
fn wait_until(host: &Simulated, done: impl Fn() -> bool) {
    let (changed, wait) = std::sync::mpsc::channel();
    host.engine.subscribe(move |_| {
        let _ = changed.send(());
    });
    while !done() {
        wait.recv_timeout(std::time::Duration::from_secs(20)).expect("no change within 20 s");
    }
}

#[test]
fn a_process_that_is_closed_to_us_does_not_stop_a_removal() {
    let host = Simulated::builtin();
    let uuid = host.create("mtty-1").unwrap();
    host.kernel.fail("proc", FaultOn::Read(Calls::All), Errno::EACCES);
    host.remove(uuid).unwrap();
}
