//! Every write of every plan, and every run of a vendor's program, fails once
//! with each errno that it can give: by itself, and with all that follows, so
//! that undoing fails as well. All is rolled back, or the error says what is left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use nix::errno::Errno;
use uuid::Uuid;
use vgpu_mdev::{
    error::{Error, ErrorKind},
    request::{Configure, Control, CreateRequest},
    sys::sim::{Calls, FaultOn, HostSpec},
};
use vgpu_tests::{conformance::Picture, simulated::Simulated};

const OURS: Uuid = Uuid::from_u128(0x0b5e_55ed);

type Change = fn(&Simulated) -> Result<(), Error>;

/// A change, and what is made ready before it.
struct Scenario {
    name: &'static str,
    host: &'static str,
    prepare: &'static [Change],
    change: Change,
}

fn create_of(host: &Simulated, profile: &str) -> Result<(), Error> {
    let request =
        CreateRequest { profile: profile.into(), uuid: Some(OURS), ..CreateRequest::default() };
    host.engine.create(&request, &Control::default()).map(drop)
}

fn remove(host: &Simulated) -> Result<(), Error> {
    host.remove(OURS)
}

macro_rules! create {
    ($profile:literal) => {
        |host| create_of(host, $profile)
    };
}

macro_rules! set_vfs {
    ($gpu:literal, $count:literal) => {
        |host| host.set_vfs($gpu, $count)
    };
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "an mdev on a T4", host: "builtin", prepare: &[], change: create!("t4-4q") },
    Scenario {
        name: "no mdev on a T4",
        host: "builtin",
        prepare: &[create!("t4-4q")],
        change: remove,
    },
    Scenario {
        name: "an mdev on a VF of an A2",
        host: "a2",
        prepare: &[],
        change: create!("a2-4q"),
    },
    Scenario {
        name: "no mdev on a VF of an A2",
        host: "a2",
        prepare: &[create!("a2-4q")],
        change: remove,
    },
    Scenario {
        name: "a type on a VF of an L40S",
        host: "l40s",
        prepare: &[],
        change: create!("l40s-8q"),
    },
    Scenario {
        name: "no type on a VF of an L40S",
        host: "l40s",
        prepare: &[create!("l40s-8q")],
        change: remove,
    },
    Scenario {
        name: "parameters of a vGPU of an L40S",
        host: "l40s",
        prepare: &[create!("l40s-8q")],
        change: |host| {
            let params = "disable_vnc=1,enable_uvm=1".parse().unwrap();
            host.engine.set_params(OURS, &params, &Control::default())
        },
    },
    Scenario {
        name: "VFs of a Flex 140",
        host: "builtin",
        prepare: &[],
        change: set_vfs!("0000:41:00.0", 2),
    },
    Scenario {
        name: "other VFs of a Flex 140",
        host: "builtin",
        prepare: &[set_vfs!("0000:41:00.0", 2)],
        change: set_vfs!("0000:41:00.0", 3),
    },
    Scenario {
        name: "no VFs of a Flex 140",
        host: "builtin",
        prepare: &[set_vfs!("0000:41:00.0", 2)],
        change: set_vfs!("0000:41:00.0", 0),
    },
    Scenario {
        name: "a VF of a Flex 140",
        host: "builtin",
        prepare: &[set_vfs!("0000:41:00.0", 2)],
        change: create!("flex-140-vf"),
    },
    Scenario {
        name: "no VF of a Flex 140",
        host: "builtin",
        prepare: &[set_vfs!("0000:41:00.0", 2), create!("flex-140-vf")],
        change: remove,
    },
    Scenario {
        name: "a whole Radeon",
        host: "builtin",
        prepare: &[],
        change: create!("1002-73bf-full"),
    },
    Scenario {
        name: "no whole Radeon",
        host: "builtin",
        prepare: &[create!("1002-73bf-full")],
        change: remove,
    },
];

/// The errnos that a write can give, as the facts have them.
fn errnos(path: &str) -> &'static [Errno] {
    use Errno::*;
    match path.rsplit('/').next().unwrap_or_default() {
        "create" => &[EINVAL, EIO, ENOSPC, EUSERS, EEXIST, ENODEV, ENOENT, ENOMEM],
        "remove" => &[EAGAIN, ENODEV, ENOENT, EIO],
        "current_vgpu_type" => &[EIO, EPERM, EINVAL, ENOENT, ENODEV],
        "vgpu_params" => &[EIO, EPERM, EINVAL, ENOENT],
        "sriov_numvfs" => {
            &[ENOENT, EINVAL, ERANGE, EBUSY, ENODEV, ENOSPC, ENOMEM, EIO, EUCLEAN, EPERM, ETIMEDOUT]
        }
        "sriov_drivers_autoprobe" => &[EINVAL, EIO],
        "driver_override" => &[EINVAL, ENOMEM, ENODEV],
        "drivers_probe" => &[EINVAL, ENODEV, EBUSY, ENOMEM, EPERM],
        "bind" | "unbind" => &[ENODEV, EBUSY, EINVAL],
        other => panic!("no errnos are known for {other}"),
    }
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Write(Calls, Errno),
    Run(Calls, Errno),
}

fn host_of(scenario: &Scenario) -> Simulated {
    let config = "[passthrough]\nallow = ['0000:81:00.0', '0000:02:00.0']\n";
    let spec = match scenario.host {
        "builtin" => HostSpec::builtin().unwrap(),
        name => {
            let path = format!("{}/hosts/{name}.toml", env!("CARGO_MANIFEST_DIR"));
            HostSpec::parse(&std::fs::read_to_string(&path).unwrap(), path).unwrap()
        }
    };
    let host = Simulated::on(&spec, config);
    host.engine.rescan().unwrap();
    for prepare in scenario.prepare {
        prepare(&host).unwrap();
    }
    host
}

/// The paths that a change writes, in order, when nothing fails.
fn writes(scenario: &Scenario) -> Vec<String> {
    let host = host_of(scenario);
    host.kernel.record_writes();
    (scenario.change)(&host).unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
    host.kernel.writes().into_iter().map(|write| write.path).collect()
}

/// Runs a scenario with a fault; `None` when nothing met it, else what is wrong.
fn meet(scenario: &Scenario, fault: Fault) -> Option<Result<(), String>> {
    let mut host = host_of(scenario);
    let before = Picture::of(&host.kernel);
    host.kernel.hold_events();
    let errno = match fault {
        Fault::Write(calls, errno) => {
            host.kernel.fail("*", FaultOn::Write(calls), errno);
            errno
        }
        Fault::Run(calls, errno) => {
            host.kernel.fail("*", FaultOn::Run(calls), errno);
            errno
        }
    };
    let result = (scenario.change)(&host);
    let met = host.kernel.faults_met() > 0;
    host.kernel.clear_faults();
    host.kernel.release_events(|_| {});
    if !met {
        return None;
    }
    host.engine.rescan().unwrap();
    let seen = host.picture();
    host.restart();
    host.engine.rescan().unwrap();
    if host.picture() != seen {
        return Some(Err("another engine sees something else".into()));
    }
    Some(match result {
        Ok(()) => Err("it says success".into()),
        Err(error) => told_well(&error, errno, &before.difference(&Picture::of(&host.kernel))),
    })
}

/// Whether an error keeps the first failure, and says what is left, if anything.
fn told_well(error: &Error, errno: Errno, left: &[String]) -> Result<(), String> {
    if error.errno() != Some(errno) {
        return Err(format!("the first error was {errno:?}, and it says {error}"));
    }
    if error.kind() == ErrorKind::Degraded {
        let told = error.undo_failures().join("\n");
        let device = |line: &str| {
            let path = line.split(": ").next().unwrap_or_default();
            let mut parts = path.split('/');
            parts.find(|part| part.parse::<Uuid>().is_ok() || part.contains(':')).map(str::to_owned)
        };
        // What follows from it, as in the list of a driver's devices, has no name.
        let unnamed = left.iter().filter(|line| device(line).is_some_and(|d| !told.contains(&d)));
        let by_name: BTreeMap<_, _> = unnamed.map(|line| (device(line), line)).collect();
        // A PF whose VFs are there or not names them by its count.
        let missing: Vec<_> = by_name.values().filter(|_| !told.contains("sriov_numvfs")).collect();
        return match missing.as_slice() {
            [] => Ok(()),
            missing => Err(format!("{missing:#?} is left and not named in: {error}")),
        };
    }
    match (left, error.undo_failures()) {
        ([], []) => Ok(()),
        _ => Err(format!("{left:#?} is left, and it says {error}")),
    }
}

#[test]
fn whatever_a_write_gives_all_is_undone_or_named() {
    /// As many as there are now: fewer mean that something is no longer tried.
    const CASES: usize = 300;
    let mut cases: Vec<(&Scenario, Fault)> = Vec::new();
    for scenario in SCENARIOS {
        for (n, path) in writes(scenario).iter().enumerate() {
            let n = n as u32 + 1;
            for errno in errnos(path) {
                cases.push((scenario, Fault::Write(Calls::Nth(n), *errno)));
                cases.push((scenario, Fault::Write(Calls::From(n), *errno)));
            }
        }
    }
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((scenario, fault)) = cases.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    match meet(scenario, *fault) {
                        Some(Ok(())) => {}
                        Some(Err(what)) => {
                            wrong
                                .lock()
                                .unwrap()
                                .push(format!("{}, {fault:?}: {what}", scenario.name));
                        }
                        None => wrong
                            .lock()
                            .unwrap()
                            .push(format!("{}, {fault:?}: nothing met it", scenario.name)),
                    }
                }
            });
        }
    });
    println!("{} cases", cases.len());
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(cases.len() >= CASES, "only {} cases", cases.len());
    let _ = (Fault::Run(Calls::All, Errno::EIO), Configure::default());
}
