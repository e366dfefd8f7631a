//! Making NVIDIA's GPUs ready by NVIDIA's own programs: the order, what is never
//! done, and what is undone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{sync::mpsc, thread, time::Duration};

use nix::errno::Errno;
use vgpu_mdev::{
    error::{Error, ErrorKind},
    model::{Framework, Gpu, MigState, VgpuState},
    request::{Configure, Control, CreateRequest},
    sys::sim::{Calls, FaultOn, HostSpec},
};
use vgpu_tests::{conformance::Picture, simulated::Simulated};

const A100: &str = "0000:41:00.0";
const RTX: &str = "0000:02:00.0";

/// A described host, its description edited.
fn edited(name: &str, edit: impl Fn(&str) -> String) -> Simulated {
    let path = format!("{}/hosts/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = edit(&std::fs::read_to_string(&path).unwrap());
    let host = Simulated::on(&HostSpec::parse(&text, path).unwrap(), "");
    // What NVIDIA's program says comes by itself a little later.
    host.engine.rescan().unwrap();
    host
}

fn described(name: &str) -> Simulated {
    edited(name, str::to_owned)
}

fn with_nvidia(line: &'static str) -> impl Fn(&str) -> String {
    move |text| text.replace("[pci.nvidia]\n", &format!("[pci.nvidia]\n{line}\n"))
}

fn gpu(host: &Simulated, id: &str) -> Gpu {
    (**host.engine.snapshot().gpu(&id.parse().unwrap()).unwrap()).clone()
}

fn configure(host: &Simulated, id: &str, wish: &Configure) -> Result<(), Error> {
    host.engine.configure(&id.parse().unwrap(), wish, &Control::default())
}

fn plan(host: &Simulated, id: &str, wish: &Configure) -> Vec<String> {
    host.engine.plan_configuration(&id.parse().unwrap(), wish).unwrap()
}

fn mig(instances: &[&str]) -> Configure {
    Configure {
        functions: Some(16),
        mig: Some(true),
        instances: Some(instances.iter().map(|shape| shape.parse().unwrap()).collect()),
        heterogeneous: None,
    }
}

/// What is available of a profile, and the reason's code.
fn offer(host: &Simulated, id: &str, profile: &str) -> (u32, &'static str) {
    let gpu = gpu(host, id);
    let found = gpu.profiles_called(profile).next().unwrap();
    (found.available, found.reason_code())
}

/// The commands that changed something.
fn changes(host: &Simulated) -> Vec<String> {
    let asks = |line: &String| line.contains(" -q ") || line.contains(" -lgi");
    host.kernel.commands().into_iter().filter(|line| !asks(line)).collect()
}

#[test]
fn an_a100_goes_from_nothing_to_mig_backed_vgpus_and_back() {
    let host = described("a100");
    assert_eq!(gpu(&host, A100).framework, Framework::Mdev, "the kernel has the mdev bus");
    assert_eq!(offer(&host, A100, "a100-4c"), (0, "no-functions-enabled"));
    assert_eq!(offer(&host, A100, "a100-3-20c"), (0, "mig-off"));
    let fresh = Picture::of(&host.kernel);

    let wish = mig(&["1g.5gb", "3g.20gb", "3g.20gb"]);
    let steps = [
        "run nvidia-smi -i 0000:41:00.0 -mig 1",
        "run sriov-manage -e 0000:41:00.0",
        "run nvidia-smi mig -i 0000:41:00.0 -cgi 3g.20gb,3g.20gb,1g.5gb -C",
    ];
    assert_eq!(plan(&host, A100, &wish), steps);
    assert_eq!(changes(&host), [""; 0], "a plan changes nothing");
    // Both 3g.20gb take all eight memory slices: what does not fit is undone.
    let refused = configure(&host, A100, &wish).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::KernelRefused, "program-failed"));
    assert!(refused.to_string().contains("-cgi 3g.20gb,3g.20gb,1g.5gb -C ended with status"));
    assert_eq!(fresh.difference(&Picture::of(&host.kernel)), [""; 0]);
    assert!(!gpu(&host, A100).mig.unwrap().current, "MIG mode is undone as well");

    let wish = mig(&["3g.20gb", "2g.10gb", "1g.5gb"]);
    configure(&host, A100, &wish).unwrap();
    let shown = gpu(&host, A100);
    assert_eq!((shown.framework, shown.vf_count), (Framework::Mdev, 16));
    let MigState { current, pending, instances } = shown.mig.unwrap();
    assert!(current && pending);
    let mut shapes: Vec<_> = instances.into_iter().map(|(_, shape)| shape).collect();
    shapes.sort();
    assert_eq!(shapes, ["1g.5gb", "2g.10gb", "3g.20gb"]);
    assert_eq!(offer(&host, A100, "a100-3-20c"), (1, "ok"));
    assert_eq!(offer(&host, A100, "a100-4c"), (0, "mig-on"));
    assert_eq!(offer(&host, A100, "a100-7-40c"), (0, "no-gpu-instance"));

    let before = changes(&host).len();
    configure(&host, A100, &wish).unwrap();
    assert_eq!(changes(&host).len(), before, "it was so already");

    let uuid = host.create("a100-3-20c").unwrap();
    assert_eq!(offer(&host, A100, "a100-3-20c"), (0, "full"));
    // Whatever would end it is refused, and nothing is run.
    for wish in [
        Configure { functions: Some(0), ..Configure::default() },
        Configure { mig: Some(false), ..Configure::default() },
        Configure { instances: Some(Vec::new()), ..Configure::default() },
    ] {
        let refused = configure(&host, A100, &wish).unwrap_err();
        assert_eq!((refused.kind(), refused.code()), (ErrorKind::Busy, "would-end-vgpus"));
        assert!(refused.to_string().contains(&uuid.to_string()), "{refused}");
    }
    assert_eq!(changes(&host).len(), before);
    assert_eq!(host.vgpu(uuid).unwrap().state, VgpuState::Active);

    host.remove(uuid).unwrap();
    let off = Configure { functions: Some(0), mig: Some(false), ..Configure::default() };
    configure(&host, A100, &off).unwrap();
    assert_eq!(fresh.difference(&Picture::of(&host.kernel)), [""; 0]);
    assert!(!gpu(&host, A100).mig.unwrap().current);
}

#[test]
fn every_instance_profile_holds_as_many_as_its_type_says() {
    let host = described("a100");
    for (shape, count, profile) in [
        ("1g.5gb", 7, "a100-1-5c"),
        ("2g.10gb", 3, "a100-2-10c"),
        ("3g.20gb", 2, "a100-3-20c"),
        ("4g.20gb", 1, "a100-4-20c"),
        ("7g.40gb", 1, "a100-7-40c"),
        ("1g.5gb+me", 1, "a100-1-5cme"),
    ] {
        configure(&host, A100, &mig(&vec![shape; count])).unwrap();
        assert_eq!(offer(&host, A100, profile), (count as u32, "ok"), "{shape}");
        let made: Vec<_> = (0..count).map(|_| host.create(profile).unwrap()).collect();
        let refused = host.create(profile).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoCapacity, "{refused}");
        made.into_iter().for_each(|uuid| host.remove(uuid).unwrap());
        // One more than fits is refused, and what was there is there again.
        let more = mig(&vec![shape; count + 1]);
        assert_eq!(configure(&host, A100, &more).unwrap_err().code(), "program-failed");
        assert_eq!(offer(&host, A100, profile), (count as u32, "ok"), "{shape}");
    }
}

#[test]
fn functions_that_are_missing_are_no_success_and_late_ones_are_waited_for() {
    let all = Configure { functions: Some(16), ..Configure::default() };
    let host = edited("a100", with_nvidia("missing-vfs = 3"));
    let fresh = Picture::of(&host.kernel);
    let refused = configure(&host, A100, &all).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::RolledBack, "short-vf-count"));
    assert!(refused.to_string().contains("has 13 VFs instead of 16"), "{refused}");
    assert_eq!(fresh.difference(&Picture::of(&host.kernel)), [""; 0]);

    let mut host = edited("a100", with_nvidia("late-vfs = 4"));
    host.timing.late = Duration::from_secs(30);
    host.restart();
    let (begun, has_begun) = mpsc::channel();
    let begun = std::sync::Mutex::new(begun);
    host.kernel.on_settled_event(Box::new(move |event| {
        if event.action == "add" && event.devpath.ends_with("0000:41:01.7") {
            let _ = begun.lock().unwrap().send(());
        }
    }));
    thread::scope(|scope| {
        let kernel = host.kernel.clone();
        scope.spawn(move || {
            has_begun.recv_timeout(Duration::from_secs(30)).unwrap();
            kernel.deliver_late_vfs();
        });
        configure(&host, A100, &all).unwrap();
    });
    assert_eq!(gpu(&host, A100).vf_count, 16);
}

#[test]
fn nvidias_driver_enables_all_functions_or_none() {
    let host = described("a100");
    let refused = host.set_vfs(A100, 4).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::InvalidArgument, "all-or-none"));
    host.set_vfs(A100, 16).unwrap();
    assert_eq!(gpu(&host, A100).vf_count, 16);
    host.set_vfs(A100, 0).unwrap();
    assert_eq!(changes(&host), ["sriov-manage -e 0000:41:00.0", "sriov-manage -d 0000:41:00.0"]);
    // A create that may, does.
    let request =
        CreateRequest { profile: "a100-4c".into(), enable_vfs: true, ..CreateRequest::default() };
    host.engine.create(&request, &Control::default()).unwrap();
    assert_eq!((gpu(&host, A100).vf_count, offer(&host, A100, "a100-4c")), (16, (9, "ok")));
}

#[test]
fn what_a_program_says_is_kept_in_the_error() {
    let host = edited("a100", with_nvidia("nvml-held = true"));
    let refused = host.set_vfs(A100, 16).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::KernelRefused, "program-failed"));
    assert!(refused.to_string().contains("Cannot obtain unbindLock"), "{refused}");

    let host = described("a100");
    host.kernel.fail("sriov-manage*", FaultOn::Run(Calls::All), Errno::ENOENT);
    let missing = host.set_vfs(A100, 16).unwrap_err();
    assert_eq!((missing.kind(), missing.code()), (ErrorKind::NotSupported, "program-missing"));
    host.kernel.clear_faults();
    host.kernel.fail("nvidia-smi*", FaultOn::Run(Calls::All), Errno::ETIMEDOUT);
    let unknown = configure(&host, A100, &mig(&["7g.40gb"])).unwrap_err();
    assert_eq!((unknown.kind(), unknown.code()), (ErrorKind::NotSupported, "modes-unknown"));
    // VFs alone need no word of it.
    host.set_vfs(A100, 16).unwrap();
    assert_eq!(gpu(&host, A100).mig, None, "what was known is not shown as if it were fresh");
}

#[test]
fn a_mode_that_waits_for_a_reset_is_shown_as_pending() {
    let host = edited("a100", with_nvidia("mig-reset-needed = true"));
    let on = Configure { mig: Some(true), ..Configure::default() };
    configure(&host, A100, &on).unwrap();
    let shown = gpu(&host, A100);
    let state = shown.mig.clone().unwrap();
    assert_eq!((state.current, state.pending), (false, true));
    let problem = shown.problems.iter().find(|problem| problem.code == "mig-pending").unwrap();
    assert!(problem.text.contains("nvidia-smi --gpu-reset -i 0000:41:00.0"), "{problem}");
    let reason = shown.profiles_called("a100-3-20c").next().unwrap().reason.clone().unwrap();
    assert!(reason.text.contains("to be on after the GPU's next reset"), "{}", reason.text);
    assert_eq!(plan(&host, A100, &on), [""; 0], "it is asked for already");
    let off = Configure { mig: Some(false), ..Configure::default() };
    assert_eq!(plan(&host, A100, &off), ["run nvidia-smi -i 0000:41:00.0 -mig 0"]);
    // Enabling the VFs binds the driver anew, and with it the mode comes.
    configure(&host, A100, &mig(&["7g.40gb"])).unwrap();
    assert_eq!(offer(&host, A100, "a100-7-40c"), (1, "ok"));
}

#[test]
fn sizes_lie_side_by_side_where_the_driver_places_them() {
    let host = described("rtx-pro-6000");
    let wish = Configure { functions: Some(48), heterogeneous: Some(true), ..Configure::default() };
    configure(&host, RTX, &wish).unwrap();
    assert_eq!(gpu(&host, RTX).heterogeneous, Some(true));
    let large = host.create("dc-48q").unwrap();
    let small = host.create("dc-4q").unwrap();
    let placement = |uuid| host.vgpu(uuid).unwrap().nvidia.unwrap().placement;
    assert_eq!((placement(large), placement(small)), (Some(0), Some(48)));
    assert_eq!(offer(&host, RTX, "dc-48q"), (0, "full"));
    assert_eq!(offer(&host, RTX, "dc-4q"), (11, "ok"));
    let refused =
        configure(&host, RTX, &Configure { heterogeneous: Some(false), ..Configure::default() })
            .unwrap_err();
    assert_eq!(refused.code(), "would-end-vgpus");
    // What is taken to be available is what the driver takes.
    for _ in 0..11 {
        host.create("dc-4q").unwrap();
    }
    assert_eq!(offer(&host, RTX, "dc-4q").0, 0);
}

#[test]
fn what_a_reboot_forgets_is_not_there_again() {
    let host = described("a100");
    configure(&host, A100, &mig(&["3g.20gb", "3g.20gb"])).unwrap();
    let next = Simulated::on(&host.kernel.next_boot(), "");
    next.engine.rescan().unwrap();
    let shown = gpu(&next, A100);
    assert_eq!(shown.vf_count, 0);
    let state = shown.mig.unwrap();
    // On Ampere the mode stays, the instances do not.
    assert!(state.current && state.instances.is_empty());
    configure(&next, A100, &mig(&["3g.20gb"])).unwrap();
    assert_eq!(
        changes(&next),
        ["sriov-manage -e 0000:41:00.0", "nvidia-smi mig -i 0000:41:00.0 -cgi 3g.20gb -C"]
    );
}
