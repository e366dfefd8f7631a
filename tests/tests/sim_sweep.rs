//! Every write of every plan, and every run of a vendor's program, fails once
//! with each errno that it can give: by itself, and with all that follows, so
//! that undoing fails as well. All is rolled back, or the error says what is left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
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
const A100: &str = "0000:41:00.0";
const RTX: &str = "0000:02:00.0";

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

fn configure(host: &Simulated, gpu: &str, wish: Configure) -> Result<(), Error> {
    host.engine.configure(&gpu.parse().unwrap(), &wish, &Control::default())
}

/// An A100 with two GPU instances.
fn a100_with_mig(host: &Simulated) -> Result<(), Error> {
    let instances = ["3g.20gb", "2g.10gb"].map(|shape| shape.parse().unwrap()).to_vec();
    let wish = Configure {
        functions: Some(16),
        mig: Some(true),
        instances: Some(instances),
        heterogeneous: None,
    };
    configure(host, A100, wish)
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
        name: "parameters of an mdev of an A2",
        host: "a2",
        prepare: &[create!("a2-4q")],
        change: |host| {
            let params = "frame_rate_limiter=0".parse().unwrap();
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
    Scenario { name: "an A100 with MIG", host: "a100", prepare: &[], change: a100_with_mig },
    Scenario {
        name: "other instances of an A100",
        host: "a100",
        prepare: &[a100_with_mig],
        change: |host| {
            let instances = ["3g.20gb", "1g.5gb"].map(|shape| shape.parse().unwrap()).to_vec();
            configure(host, A100, Configure { instances: Some(instances), ..Default::default() })
        },
    },
    Scenario {
        name: "an A100 without MIG",
        host: "a100",
        prepare: &[a100_with_mig],
        change: |host| configure(host, A100, Configure { mig: Some(false), ..Default::default() }),
    },
    Scenario {
        name: "an A100 without VFs",
        host: "a100",
        prepare: &[a100_with_mig],
        change: set_vfs!("0000:41:00.0", 0),
    },
    Scenario {
        name: "sizes side by side on an RTX PRO 6000",
        host: "rtx-pro-6000",
        prepare: &[],
        change: |host| {
            let wish =
                Configure { functions: Some(48), heterogeneous: Some(true), ..Default::default() };
            configure(host, RTX, wish)
        },
    },
    Scenario {
        name: "a vGPU in an instance of an RTX PRO 6000",
        host: "rtx-pro-6000",
        prepare: &[|host| {
            let wish = Configure {
                functions: Some(48),
                mig: Some(true),
                instances: Some(vec!["1g.24gb+gfx".parse().unwrap()]),
                heterogeneous: None,
            };
            configure(host, RTX, wish)
        }],
        change: create!("dc-1-2q"),
    },
    Scenario {
        name: "an mdev on a VF of an A40",
        host: "a40",
        prepare: &[],
        change: create!("a40-4q"),
    },
    Scenario {
        name: "two VFs for one MI300X",
        host: "mi300x",
        prepare: &[],
        change: set_vfs!("0000:0c:00.0", 2),
    },
    Scenario {
        name: "a VF of an MI300X",
        host: "mi300x",
        prepare: &[],
        change: create!("mi300x-vf"),
    },
    Scenario {
        name: "VFs of a Flex 170",
        host: "flex170",
        prepare: &[],
        change: |host| {
            let gpu = host.engine.snapshot().gpus().next().unwrap().id.to_string();
            host.set_vfs(&gpu, 2)
        },
    },
    Scenario {
        name: "an mdev of GVT-g",
        host: "gvtg",
        prepare: &[],
        change: create!("i915-gvtg_v5_8"),
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
        "sriov_numvfs" => &[
            ENOENT, EINVAL, ERANGE, EBUSY, ENODEV, ENOSPC, ENOMEM, EIO, EUCLEAN, ENOKEY, EPERM,
            ETIMEDOUT,
        ],
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

/// What a plan does to the host, in order.
struct Trace {
    writes: Vec<String>,
    runs: Vec<String>,
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
    let mut spec = spec;
    if scenario.host == "a40" {
        // Another GPU would take it where one refuses.
        spec.pci.truncate(1);
    }
    let host = Simulated::on(&spec, config);
    host.engine.rescan().unwrap();
    // The program is also asked when the engine starts, meanwhile.
    let asked = spec.pci.iter().filter(|pci| pci.vendor == 0x10de && pci.sriov.is_some()).count();
    let end = Instant::now() + Duration::from_secs(60);
    while host.kernel.commands().len() < 2 * asked {
        assert!(Instant::now() < end, "nvidia-smi was not asked");
        thread::yield_now();
    }
    for prepare in scenario.prepare {
        prepare(&host).unwrap();
    }
    host
}

/// What a change writes and runs when nothing fails.
fn trace(scenario: &Scenario) -> Trace {
    let host = host_of(scenario);
    let before = host.kernel.commands().len();
    // As in each case: nothing but the change itself acts.
    host.kernel.hold_events();
    host.kernel.record_writes();
    (scenario.change)(&host).unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
    Trace {
        writes: host.kernel.writes().into_iter().map(|write| write.path).collect(),
        runs: host.kernel.commands().split_off(before),
    }
}

/// Whether a program was only asked.
fn is_ask(command: &str) -> bool {
    command.contains(" -q ") || command.contains(" -lgi")
}

/// Runs a scenario with a fault: the error, or what is wrong. Where a program was
/// only asked, it may succeed.
fn meet(scenario: &Scenario, fault: Fault, may_succeed: bool) -> Result<Option<Error>, String> {
    let mut host = host_of(scenario);
    let before = Picture::of(&host.kernel);
    host.kernel.hold_events();
    let (on, errno) = match fault {
        Fault::Write(calls, errno) => (FaultOn::Write(calls), errno),
        Fault::Run(calls, errno) => (FaultOn::Run(calls), errno),
    };
    host.kernel.fail("*", on, errno);
    let result = (scenario.change)(&host);
    let met = host.kernel.faults_met() > 0;
    host.kernel.clear_faults();
    host.kernel.release_events(|_| {});
    if !met {
        return Err("nothing met it".into());
    }
    host.engine.rescan().unwrap();
    let seen = host.picture();
    host.restart();
    host.engine.rescan().unwrap();
    if host.picture() != seen {
        return Err("another engine sees something else".into());
    }
    let left = before.difference(&Picture::of(&host.kernel));
    match result {
        Ok(()) if may_succeed => Ok(None),
        Ok(()) => Err("it says success".into()),
        // What modes there are was not known: nothing was done.
        Err(error) if may_succeed && error.code() == "modes-unknown" && left.is_empty() => {
            Ok(Some(error))
        }
        Err(error) => told_well(&error, errno, &left).map(|()| Some(error)),
    }
}

/// Whether an error keeps the first failure, and says what is left, if anything.
fn told_well(error: &Error, errno: Errno, left: &[String]) -> Result<(), String> {
    if error.errno() != Some(errno) {
        return Err(format!("the first error was {errno:?}, and it says {error}"));
    }
    if !error.undo_failures().is_empty() {
        // That a program or the kernel hangs says more.
        if !matches!(error.kind(), ErrorKind::Degraded | ErrorKind::Stuck) {
            return Err(format!("it is degraded, and says {:?}: {error}", error.kind()));
        }
        let told = error.undo_failures().join("\n");
        let device = |line: &str| {
            let path = line.split(": ").next().unwrap_or_default();
            let mut parts = path.split('/');
            parts.find(|part| part.parse::<Uuid>().is_ok() || part.contains(':')).map(str::to_owned)
        };
        // What follows from it, as in the list of a driver's devices, has no name.
        let unnamed = left.iter().filter(|line| device(line).is_some_and(|d| !told.contains(&d)));
        let by_name: BTreeMap<_, _> = unnamed.map(|line| (device(line), line)).collect();
        // That VFs are there or not is named by what gives them.
        let gives = ["sriov_numvfs", "sriov-manage", "modprobe", "nvidia-smi"];
        let is_named = gives.iter().any(|word| told.contains(word));
        let missing: Vec<_> = by_name.values().filter(|_| !is_named).collect();
        return match missing.as_slice() {
            [] => Ok(()),
            missing => Err(format!("{missing:#?} is left and not named in: {error}")),
        };
    }
    match left {
        [] => Ok(()),
        left => Err(format!("{left:#?} is left, and it says {error}")),
    }
}

struct Case {
    scenario: &'static Scenario,
    fault: Fault,
    /// What it meets: an attribute or a program.
    what: String,
    errno: Errno,
    may_succeed: bool,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for scenario in SCENARIOS {
        let Trace { writes, runs } = trace(scenario);
        for (n, path) in (1..).zip(&writes) {
            let what = path.rsplit('/').next().unwrap().to_owned();
            for errno in errnos(path).iter().copied() {
                for calls in [Calls::Nth(n), Calls::From(n)] {
                    let fault = Fault::Write(calls, errno);
                    let what = what.clone();
                    cases.push(Case { scenario, fault, what, errno, may_succeed: false });
                }
            }
        }
        for (n, command) in (1..).zip(&runs) {
            let what = command.split(' ').next().unwrap().to_owned();
            for errno in [Errno::ENOENT, Errno::ETIMEDOUT, Errno::EACCES] {
                for calls in [Calls::Nth(n), Calls::From(n)] {
                    let fault = Fault::Run(calls, errno);
                    let (what, may_succeed) = (what.clone(), is_ask(command));
                    cases.push(Case { scenario, fault, what, errno, may_succeed });
                }
            }
        }
    }
    cases
}

/// Also every error class: what is told of each errno of each attribute is in the
/// snapshot.
#[test]
fn whatever_a_step_gives_all_is_undone_or_named() {
    /// As many as there are now: fewer mean that something is no longer tried.
    const CASES: usize = 782;
    let cases = cases();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let told: Mutex<BTreeMap<(String, String), BTreeSet<String>>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match meet(case.scenario, case.fault, case.may_succeed) {
                        Ok(Some(error)) if error.undo_failures().is_empty() => {
                            let key = (case.what.clone(), format!("{:?}", case.errno));
                            let meaning = match case.fault {
                                Fault::Write(..) => meaning(&error),
                                // Its text names the command.
                                Fault::Run(..) => format!("{:?}, {}", error.kind(), error.code()),
                            };
                            told.lock().unwrap().entry(key).or_default().insert(meaning);
                        }
                        Ok(_) => {}
                        Err(what) => {
                            let name = case.scenario.name;
                            wrong.lock().unwrap().push(format!("{name}, {:?}: {what}", case.fault));
                        }
                    }
                }
            });
        }
    });
    println!("{} cases", cases.len());
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(cases.len() >= CASES, "only {} cases", cases.len());
    let mut text = String::new();
    for ((what, errno), meanings) in told.into_inner().unwrap() {
        for meaning in meanings {
            text.push_str(&format!("{what} {errno}: {meaning}\n"));
        }
    }
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!("errors", text) });
}

/// What an error says, less what was tried and where.
fn meaning(error: &Error) -> String {
    let text = error.to_string();
    let from = text.find("): ").map_or(0, |at| at + 3);
    let told = if error.path().is_some() { &text[from..] } else { &text[..] };
    format!("{:?}, {}: {told}", error.kind(), error.code())
}
