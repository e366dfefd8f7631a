//! Many at once, in every order: nothing is given twice, lost or taken from
//! others, and the picture is the truth afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::BTreeSet,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use uuid::Uuid;
use vgpu_mdev::{
    error::{Error, ErrorKind},
    model::VgpuState,
    request::{Control, CreateRequest, Created},
    sys::{
        Kernel, NodePath, ReadKind, SysPath, Value,
        sim::{Calls, FaultOn, HostSpec},
    },
};
use vgpu_tests::{conformance::Picture, simulated::Simulated, watch};

const FLEX: &str = "0000:41:00.0";
const VF: &str = "0000:41:00.1";
const RADEON: &str = "0000:81:00.0";
const AUDIO: &str = "0000:81:00.1";
const OURS: Uuid = Uuid::from_u128(0x0b5e_55ed);
const FIRST: Calls = Calls::Nth(1);

fn create(host: &Simulated, request: &CreateRequest) -> Result<Created, Error> {
    host.engine.create(request, &Control::default())
}

fn of(profile: &str) -> CreateRequest {
    CreateRequest { profile: profile.into(), ..CreateRequest::default() }
}

fn write(host: &Simulated, path: impl Into<String>, value: &str) {
    host.kernel.write(&SysPath::new(path).unwrap(), value).unwrap();
}

fn driver(host: &Simulated, device: &str) -> Option<String> {
    match host.kernel.read(&format!("bus/pci/devices/{device}/driver"), ReadKind::Link) {
        Ok(Value::Link(name)) => Some(name),
        _ => None,
    }
}

/// Binds a function to vfio-pci as someone else would.
fn take(host: &Simulated, device: &str) {
    write(host, format!("bus/pci/devices/{device}/driver_override"), "vfio-pci");
    if let Some(driver) = driver(host, device) {
        write(host, format!("bus/pci/drivers/{driver}/unbind"), device);
    }
    write(host, "bus/pci/drivers_probe", device);
    assert_eq!(driver(host, device).as_deref(), Some("vfio-pci"));
}

/// Another engine sees the same, and each claim is one vGPU of ours.
fn assert_truth(host: &mut Simulated) {
    host.engine.rescan().unwrap();
    let seen = host.picture();
    host.restart();
    assert_eq!(host.picture(), seen);
    let claimed: BTreeSet<String> = std::fs::read_dir(host.run_dir().join("claims"))
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let snapshot = host.engine.snapshot();
    let shown: BTreeSet<String> =
        snapshot.vgpus().filter(|v| v.managed).map(|v| v.uuid.to_string()).collect();
    assert_eq!(claimed, shown);
}

#[test]
fn many_threads_leave_a_true_picture_and_take_it_all_back() {
    let mut host = Simulated::builtin();
    let pristine = Picture::of(&host.kernel);
    host.set_vfs(FLEX, 8).unwrap();
    let begin = Barrier::new(8);
    thread::scope(|scope| {
        for n in 0..8_u32 {
            let (host, begin) = (&host, &begin);
            scope.spawn(move || {
                begin.wait();
                for round in 0..12 {
                    let profile =
                        ["mtty-1", "flex-140-vf", "t4-1q", "mtty-2"][(n as usize + round) % 4];
                    // Two threads each want the same name and UUID.
                    let name = format!("vm-{}-{round}", n / 2);
                    let uuid = Uuid::from_u128(0x1000 + u128::from(n / 2) * 100 + round as u128);
                    let request = CreateRequest {
                        uuid: Some(uuid),
                        name: Some(name.parse().unwrap()),
                        owner_uid: 1000 + n / 2,
                        ..of(profile)
                    };
                    match create(host, &request) {
                        Ok(_) => {}
                        Err(error) => assert!(
                            matches!(
                                error.kind(),
                                ErrorKind::Busy | ErrorKind::BadState | ErrorKind::NoCapacity
                            ),
                            "{error}"
                        ),
                    }
                    if round % 3 == 0 {
                        host.engine.rescan().unwrap();
                    }
                    match host.remove(uuid) {
                        Ok(()) => {}
                        Err(error) => assert!(
                            matches!(error.kind(), ErrorKind::Busy | ErrorKind::NoSuchVgpu),
                            "{error}"
                        ),
                    }
                }
            });
        }
    });
    assert_truth(&mut host);
    let left: Vec<Uuid> = host.engine.snapshot().vgpus().map(|vgpu| vgpu.uuid).collect();
    for uuid in left {
        host.remove(uuid).unwrap();
    }
    host.set_vfs(FLEX, 0).unwrap();
    assert_eq!(pristine.difference(&Picture::of(&host.kernel)), [""; 0]);
    assert_truth(&mut host);
}

#[test]
fn a_quota_holds_under_parallel_calls() {
    let spec = HostSpec::builtin().unwrap();
    let host = Simulated::on(&spec, "[limits]\nvgpus-per-user = 3\n");
    let begin = Barrier::new(12);
    let made: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..12)
            .map(|n| {
                let (host, begin) = (&host, &begin);
                scope.spawn(move || {
                    begin.wait();
                    let profile = ["mtty-1", "t4-1q", "mbochs-small"][n % 3];
                    create(host, &CreateRequest { owner_uid: 1000, ..of(profile) }).is_ok()
                })
            })
            .collect();
        threads.into_iter().map(|t| usize::from(t.join().unwrap())).sum()
    });
    assert_eq!(made, 3);
    assert_eq!(host.engine.snapshot().vgpu_count(), 3);
}

#[test]
fn one_that_comes_too_late_takes_no_mark_away() {
    let host = Simulated::builtin();
    host.set_vfs(FLEX, 1).unwrap();
    let request = |profile: &str| CreateRequest { uuid: Some(OURS), ..of(profile) };
    thread::scope(|scope| {
        // The second of one UUID waits behind another's vGPU…
        let ahead = host.kernel.block("*/mtty-1/create", FaultOn::Write(FIRST));
        let other = scope.spawn(|| host.create("mtty-1"));
        assert!(ahead.wait_met(Duration::from_secs(20)));
        let (started, waiting) = std::sync::mpsc::channel();
        let late = scope.spawn({
            let (host, request) = (&host, request("mtty-1"));
            move || {
                started.send(()).unwrap();
                create(host, &request)
            }
        });
        waiting.recv().unwrap();
        // … while the first is being made.
        let binding = host.kernel.block("bus/pci/drivers_probe", FaultOn::Write(FIRST));
        let first = scope.spawn(|| create(&host, &request("flex-140-vf")));
        assert!(binding.wait_met(Duration::from_secs(20)));
        drop(ahead);
        other.join().unwrap().unwrap();
        let refused = late.join().unwrap().unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Busy | ErrorKind::BadState), "{refused}");
        host.engine.rescan().unwrap();
        drop(binding);
        assert!(first.join().unwrap().unwrap().created);
    });
    assert_eq!(host.vgpu(OURS).unwrap().state, VgpuState::Active);
    host.remove(OURS).unwrap();
}

#[test]
fn a_full_table_of_descriptors_ends_no_claim() {
    let mut host = Simulated::builtin();
    host.set_vfs(FLEX, 1).unwrap();
    for profile in ["mtty-1", "t4-1q", "flex-140-vf", "1002-73bf-full"] {
        host.create(profile).unwrap();
    }
    let before = host.picture();
    host.kernel.fail("*", FaultOn::Read(Calls::All), Errno::EMFILE);
    let error = host.engine.rescan().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EMFILE), "{error}");
    host.kernel.clear_faults();
    for path in ["class/mdev_bus/mtty", "bus/pci/devices/0000:81:00.0"] {
        host.kernel.fail(path, FaultOn::Read(Calls::All), Errno::EMFILE);
    }
    host.engine.rescan().unwrap();
    host.kernel.clear_faults();
    host.engine.rescan().unwrap();
    assert_eq!(host.picture(), before);
    assert_truth(&mut host);
}

#[test]
fn a_function_that_came_back_is_not_the_old_one() {
    let mut host = Simulated::builtin();
    host.set_vfs(FLEX, 1).unwrap();
    let uuid = host.create("flex-140-vf").unwrap();
    host.kernel.hold_events();
    let count = format!("bus/pci/devices/{FLEX}/sriov_numvfs");
    write(&host, format!("bus/pci/devices/{FLEX}/sriov_drivers_autoprobe"), "0");
    write(&host, &*count, "0");
    write(&host, &*count, "1");
    take(&host, VF);
    let taken = Picture::of(&host.kernel);
    // Neither before the events are heard nor after a restart is it ours.
    // What the VF's first events still made the engine look at may have told it.
    let error = host.remove(uuid).unwrap_err();
    assert!(matches!(error.code(), "other-generation" | "no-such-vgpu"), "{error}");
    assert!(host.vgpu(uuid).is_none());
    host.restart();
    host.kernel.release_events(|_| {});
    host.engine.rescan().unwrap();
    let [shown] = &host.engine.snapshot().vgpus().cloned().collect::<Vec<_>>()[..] else {
        panic!("one foreign vGPU is there")
    };
    assert!(!shown.managed);
    assert_eq!(host.remove(shown.uuid).unwrap_err().kind(), ErrorKind::NotManaged);
    assert_eq!(host.set_vfs(FLEX, 0).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(taken.difference(&Picture::of(&host.kernel)), [""; 0]);
    assert_truth(&mut host);
}

#[test]
fn what_someone_took_meanwhile_is_not_taken_away() {
    let host = Simulated::builtin();
    host.set_vfs(FLEX, 1).unwrap();
    host.kernel.hold_events();
    take(&host, VF);
    let taken = Picture::of(&host.kernel);
    let error = host.create("flex-140-vf").unwrap_err();
    // An event of the count can have made the engine look since.
    assert!(["function-in-use", "full"].contains(&error.code()), "{error}");
    assert_eq!(taken.difference(&Picture::of(&host.kernel)), [""; 0]);
}

#[test]
fn a_gpu_does_not_go_with_a_function_that_is_someone_elses() {
    let host = Simulated::builtin();
    host.kernel.hold_events();
    take(&host, AUDIO);
    let node = NodePath::new("vfio/40").unwrap();
    let guest = host.kernel.hold(&node, 4242, "qemu-system-x86").unwrap();
    let taken = Picture::of(&host.kernel);
    let error = host.create("1002-73bf-full").unwrap_err();
    // An event of the count can have made the engine look since.
    assert!(["function-in-use", "full"].contains(&error.code()), "{error}");
    assert_eq!(taken.difference(&Picture::of(&host.kernel)), [""; 0]);
    assert_eq!(driver(&host, RADEON).as_deref(), Some("amdgpu"));
    drop(guest);
}

#[test]
fn a_removal_whose_claim_cannot_be_written_can_be_tried_again() {
    let host = Simulated::builtin();
    let uuid = host.create("mtty-1").unwrap();
    let claims = host.run_dir().join("claims");
    let away = host.run_dir().join("away");
    std::fs::rename(&claims, &away).unwrap();
    host.kernel.fail("*/remove", FaultOn::Write(FIRST), Errno::EIO);
    let error = host.remove(uuid).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EIO), "{error}");
    let error = host.create("mtty-1").unwrap_err();
    assert_eq!(error.code(), "claim-not-written", "{error}");
    std::fs::rename(&away, &claims).unwrap();
    host.remove(uuid).unwrap();
    host.create("mtty-1").unwrap();
}

#[test]
fn a_gpu_that_is_plugged_in_during_a_count_change_is_seen() {
    let host = Simulated::builtin();
    let spec = HostSpec::builtin().unwrap();
    let mut second = spec.pci.iter().find(|pci| pci.address.to_string() == RADEON).unwrap().clone();
    second.address = "0000:91:00.0".parse().unwrap();
    second.iommu_group = None;
    host.kernel.hold_events();
    host.kernel.plug(&spec, &second).unwrap();
    // This looks at the host as well, before the event is heard.
    host.set_vfs(FLEX, 1).unwrap();
    host.kernel.release_events(|events| events.retain(|event| event.action == "add"));
    let end = Instant::now() + Duration::from_secs(20);
    while host.engine.snapshot().gpu(&"0000:91:00.0".parse().unwrap()).is_none() {
        assert!(Instant::now() < end, "it is never seen");
        thread::yield_now();
    }
}

#[test]
fn what_is_being_removed_is_not_handed_out() {
    let host = Simulated::builtin();
    host.set_vfs(FLEX, 1).unwrap();
    let request = CreateRequest { uuid: Some(OURS), ..of("flex-140-vf") };
    create(&host, &request).unwrap();
    let gate = host.kernel.block("*", FaultOn::Open(FIRST));
    thread::scope(|scope| {
        let open = scope.spawn(|| host.engine.open_device(OURS, true));
        assert!(gate.wait_met(Duration::from_secs(20)));
        let remove = scope.spawn(|| host.remove(OURS));
        let is_removing =
            |result: Result<Created, Error>| result.is_err_and(|error| error.code() == "vgpu-busy");
        while !is_removing(create(&host, &request)) {
            thread::yield_now();
        }
        drop(gate);
        let refused = open.join().unwrap().unwrap_err();
        assert_eq!(refused.code(), "being-removed", "{refused}");
        remove.join().unwrap().unwrap();
    });
    assert!(host.vgpu(OURS).is_none());
}

#[test]
fn a_broken_one_does_not_pass_for_what_was_asked() {
    let host = Simulated::builtin();
    host.set_vfs(FLEX, 1).unwrap();
    let request = CreateRequest { uuid: Some(OURS), ..of("flex-140-vf") };
    assert!(create(&host, &request).unwrap().created);
    assert!(!create(&host, &request).unwrap().created);
    write(&host, "bus/pci/drivers/vfio-pci/unbind", VF);
    host.engine.rescan().unwrap();
    assert_eq!(host.vgpu(OURS).unwrap().state, VgpuState::Broken);
    let error = create(&host, &request).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::BadState, "vgpu-broken"), "{error}");
    host.remove(OURS).unwrap();
    assert!(create(&host, &request).unwrap().created);
}

#[test]
fn functions_of_nvidia_are_left_with_its_driver() {
    let host = Simulated::described(
        "[vfio]\ngroups = true\n[[vfio-driver]]\nname = 'vfio-pci'\n[[pci]]\n\
         address = '0000:65:00.0'\nvendor = 0x10de\ndevice = 0x2235\nclass = 0x030200\n\
         driver = 'nvidia'\n[pci.sriov]\ntotal-vfs = 32\nvf-device = 0x2235\n",
        "",
    );
    host.kernel.record_writes();
    let error = host.set_vfs("0000:65:00.0", 4).unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::InvalidArgument, "all-or-none"),
        "{error}"
    );
    assert_eq!(host.kernel.writes(), []);
}

/// The events of our own changes, which arrive when we have long looked, make
/// nobody look again; those of others do.
#[test]
fn own_events_cost_no_further_look() {
    let host = Simulated::builtin();
    host.kernel.hold_events();
    let own = host.create("mtty-1").unwrap().to_string();
    host.kernel.forbid_reading("*");
    let mut events = 0;
    host.kernel.release_events(|held| events = held.len());
    assert!(events > 0, "there was nothing to release");
    // The last one of those that wait to be looked at.
    let foreign = Uuid::from_u128(u128::MAX);
    let (told, heard) = std::sync::mpsc::channel();
    host.engine.subscribe(move |change| {
        if change.after.vgpu(foreign).is_some() {
            let _ = told.send(());
        }
    });
    write(&host, "class/mdev_bus/mtty/mdev_supported_types/mtty-1/create", &foreign.to_string());
    heard.recv_timeout(Duration::from_secs(20)).expect("nobody looked at the other's");
    let looked = host.kernel.forbidden_reads();
    let at = |uuid: &str| looked.iter().any(|path| path.contains(uuid));
    assert!(at(&foreign.to_string()) && !at(&own), "{looked:?}");
}

/// A stranger takes the one slot of the VF that is chosen, and no event has told
/// of it yet: another VF is taken.
#[test]
fn a_function_that_someone_was_faster_on_is_passed_over() {
    let path = format!("{}/hosts/a2.toml", env!("CARGO_MANIFEST_DIR"));
    let host = Simulated::described(&std::fs::read_to_string(path).unwrap(), "");
    host.kernel.hold_events();
    let foreign = Uuid::from_u128(7);
    let parent = "class/mdev_bus/0000:08:00.4/mdev_supported_types/nvidia-746/create";
    write(&host, parent.to_owned(), &foreign.to_string());
    let ours = host.create("a2-4q").unwrap();
    assert_eq!(host.vgpu(ours).unwrap().parent, "0000:08:00.5");
    assert!(!host.vgpu(foreign).unwrap().managed, "it is seen, and left alone");
    // One that was asked for is not exchanged for another.
    write(&host, parent.replace("00.4", "00.6"), &Uuid::from_u128(8).to_string());
    let pinned = CreateRequest {
        profile: "a2-4q".into(),
        function: Some("0000:08:00.6".parse().unwrap()),
        ..CreateRequest::default()
    };
    let refused = host.engine.create(&pinned, &Control::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoCapacity, "{refused}");
}

/// An mdev has its type only after its last event, and its directory goes after
/// that (`mdev_device_create`, drivers/vfio/mdev/mdev_core.c; `device_del`,
/// drivers/base/core.c): a look in between is not the last one.
#[test]
fn a_look_between_an_event_and_what_it_tells_is_followed_by_another() {
    for whole in [true, false] {
        let host = Simulated::builtin();
        let engine = std::sync::Arc::downgrade(&host.engine);
        host.kernel.on_event(Box::new(move |event| {
            let last = matches!(&*event.action, "bind" | "remove");
            if let Some(engine) = engine.upgrade().filter(|_| last && event.subsystem == "mdev") {
                if whole {
                    engine.rescan().unwrap();
                } else {
                    // Waits for the look that an earlier event asks for.
                    engine.observe(event);
                    let wanted = VgpuState::Removing;
                    let wanted = if event.action == "bind" { VgpuState::Creating } else { wanted };
                    watch::until(&engine, |s| s.vgpu(OURS).is_some_and(|v| v.state == wanted));
                }
            }
        }));
        let parent = "class/mdev_bus/mtty";
        let create = format!("{parent}/mdev_supported_types/mtty-1/create");
        write(&host, create, &OURS.to_string());
        watch::until(&host.engine, |snapshot| {
            snapshot.vgpu(OURS).is_some_and(|vgpu| vgpu.state == VgpuState::Active)
        });
        write(&host, format!("{parent}/{OURS}/remove"), "1");
        watch::until(&host.engine, |snapshot| snapshot.vgpu(OURS).is_none());
    }
}
