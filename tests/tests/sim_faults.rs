//! Every access to the kernel that a change makes is made to fail, to block and
//! to lie, one after the other. Whatever happens: the picture is the truth
//! afterwards, the first error is kept, what failed left nothing behind, and
//! what hung can be removed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use uuid::Uuid;
use vgpu_mdev::{
    engine::Timing,
    error::{Error, ErrorKind},
    model::{GpuState, VgpuState},
    request::{Control, CreateRequest},
    sys::{
        Kernel, SysPath,
        sim::{BlockGuard, Calls, FaultOn},
    },
};
use vgpu_tests::{conformance::Picture, simulated::Simulated};

const FLEX: &str = "0000:41:00.0";
const OWNER: u32 = 1000;
const OURS: Uuid = Uuid::from_u128(0x0b5e_55ed);

/// What blocks costs this each; long enough for what does not, among many
/// others on two cores.
const HASTY: Timing = Timing {
    read: Duration::from_millis(900),
    write: Duration::from_millis(900),
    show: Duration::from_millis(50),
    probe: Duration::from_millis(900),
    turn: Duration::from_secs(60),
    tool: Duration::from_secs(60),
    late: Duration::from_millis(50),
};

/// Where nothing blocks, nothing is to time out.
const PATIENT: Timing = Timing {
    read: Duration::from_secs(60),
    write: Duration::from_secs(60),
    show: Duration::from_millis(50),
    probe: Duration::from_secs(60),
    turn: Duration::from_secs(60),
    tool: Duration::from_secs(60),
    late: Duration::from_millis(50),
};

/// What is tried, on a host that was made ready for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// From nothing to a vGPU of a profile.
    Create(&'static str),
    /// From VFs that someone else enabled to a vGPU on one.
    CreateOnBare,
    /// From a vGPU of a profile to nothing.
    Remove(&'static str),
    /// From one VF count to another.
    SetVfs(u32, u32),
}

use Change::{Create, CreateOnBare, Remove, SetVfs};

const CHANGES: [Change; 10] = [
    Create("mtty-2"),
    Remove("mtty-2"),
    Create("flex-140-vf"),
    Remove("flex-140-vf"),
    CreateOnBare,
    Create("1002-73bf-full"),
    Remove("1002-73bf-full"),
    SetVfs(0, 2),
    SetVfs(2, 0),
    SetVfs(2, 3),
];

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    FailWrite,
    FailRead,
    FailOpen,
    LieWrite,
    BlockWrite,
    BlockRead,
    BlockOpen,
}

const FAULTS: [Fault; 7] = [
    Fault::FailWrite,
    Fault::FailRead,
    Fault::FailOpen,
    Fault::LieWrite,
    Fault::BlockWrite,
    Fault::BlockRead,
    Fault::BlockOpen,
];

/// How many points were covered when this was last looked at, less a few that
/// depend on who reads first: fewer mean that something is no longer tried.
const POINTS: u32 = 565;
const BLOCKING_POINTS: u32 = 520;

impl Fault {
    fn script(self, host: &Simulated, n: u32) -> Option<BlockGuard> {
        let nth = Calls::Nth(n);
        let (on, errno) = match self {
            Self::FailWrite | Self::LieWrite | Self::BlockWrite => {
                (FaultOn::Write(nth), Errno::EIO)
            }
            // What opening anything can give: the memory or the table is full.
            Self::FailRead | Self::BlockRead => (FaultOn::Read(nth), Errno::ENOMEM),
            Self::FailOpen | Self::BlockOpen => (FaultOn::Open(nth), Errno::EMFILE),
        };
        match self {
            Self::FailWrite | Self::FailRead | Self::FailOpen => host.kernel.fail("*", on, errno),
            Self::LieWrite => host.kernel.lie("*", on),
            Self::BlockWrite | Self::BlockRead | Self::BlockOpen => {
                return Some(host.kernel.block("*", on));
            }
        }
        None
    }

    fn blocks(self) -> bool {
        matches!(self, Self::BlockWrite | Self::BlockRead | Self::BlockOpen)
    }

    fn errno(self) -> Option<Errno> {
        match self {
            Self::FailWrite => Some(Errno::EIO),
            Self::FailRead => Some(Errno::ENOMEM),
            Self::FailOpen => Some(Errno::EMFILE),
            _ => None,
        }
    }
}

impl Change {
    fn prepare(self, host: &Simulated) {
        match self {
            CreateOnBare => {
                let write = |attribute: &str, value: &str| {
                    let path = format!("bus/pci/devices/{FLEX}/{attribute}");
                    host.kernel.write(&SysPath::new(path).unwrap(), value).unwrap();
                };
                write("sriov_drivers_autoprobe", "0");
                write("sriov_numvfs", "2");
                write("sriov_drivers_autoprobe", "1");
                host.engine.rescan().unwrap();
            }
            Create("flex-140-vf") => host.set_vfs(FLEX, 2).unwrap(),
            Create(_) => {}
            Remove(profile) => {
                Create(profile).prepare(host);
                Create(profile).attempt(host).unwrap();
            }
            SetVfs(from, _) => host.set_vfs(FLEX, from).unwrap(),
        }
    }

    fn attempt(self, host: &Simulated) -> Result<(), Error> {
        match self {
            CreateOnBare => Create("flex-140-vf").attempt(host),
            Create(profile) => {
                let request = CreateRequest {
                    profile: profile.into(),
                    uuid: Some(OURS),
                    owner_uid: OWNER,
                    ..CreateRequest::default()
                };
                host.engine.create(&request, &Control::default()).map(drop)
            }
            Remove(_) => host.remove(OURS),
            SetVfs(_, to) => host.set_vfs(FLEX, to),
        }
    }

    /// Whether it is done.
    fn is_done(self, host: &Simulated) -> bool {
        match self {
            Create(_) | CreateOnBare => {
                host.vgpu(OURS).is_some_and(|vgpu| vgpu.state == VgpuState::Active)
            }
            Remove(_) => host.vgpu(OURS).is_none(),
            SetVfs(_, to) => {
                host.engine.snapshot().gpu(&FLEX.parse().unwrap()).unwrap().vf_count == to
            }
        }
    }
}

/// Looks until no GPU is stale: what blocked has let go, and ends soon.
fn look_again(host: &Simulated) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        // Waits for its turn, and with it for what is undone late.
        let refused = host.set_vfs(FLEX, u32::MAX).unwrap_err();
        let seen = refused.code() == "too-many-functions" && host.engine.rescan().is_ok();
        let writes_end = host.kernel.writes().iter().all(|write| write.result.is_some());
        let snapshot = host.engine.snapshot();
        if seen && writes_end && snapshot.gpus().all(|gpu| gpu.state == GpuState::Ready) {
            return;
        }
        assert!(Instant::now() < end, "a GPU stays stale");
        thread::yield_now();
    }
}

/// Meets the `n`th call of a kind with a fault; false when there is no such
/// call. Says what is wrong.
fn meet(change: Change, fault: Fault, n: u32) -> Result<bool, String> {
    let mut host = Simulated::builtin_with(PATIENT);
    let pristine = Picture::of(&host.kernel);
    change.prepare(&host);
    let before = Picture::of(&host.kernel);
    if fault.blocks() {
        host.timing = HASTY;
        host.restart();
    }
    host.kernel.record_writes();
    // Without events nothing but the change itself reads.
    host.kernel.hold_events();
    let gate = fault.script(&host, n);
    let result = change.attempt(&host);
    let met = host.kernel.faults_met() > 0;
    host.kernel.clear_faults();
    drop(gate);
    if !met {
        result.map_err(|error| format!("without any fault: {error}"))?;
        return Ok(false);
    }
    host.kernel.release_events(|_| {});
    look_again(&host);

    let told = result.as_ref().err().map_or("success".into(), ToString::to_string);
    let wrong = |what: String| Err(format!("{what}\n    told: {told}"));
    // The picture is the truth: another engine sees the same, and what it
    // shows as ours is claimed.
    let seen = host.picture();
    host.timing = PATIENT;
    host.restart();
    if host.picture() != seen {
        return wrong(format!("after a restart\n{}instead of\n{seen}", host.picture()));
    }
    let after = Picture::of(&host.kernel);
    match &result {
        Ok(()) if !change.is_done(&host) => return wrong("it is not done".into()),
        Ok(()) => {}
        Err(error) => {
            if let Some(errno) = fault.errno()
                && error.errno() != Some(errno)
            {
                return wrong(format!("the first error was {errno:?}"));
            }
            let hangs = error.kind() == ErrorKind::Stuck;
            if hangs && fault.errno().is_some() {
                return wrong("nothing hangs".into());
            }
            let undone = !hangs && error.undo_failures().is_empty();
            let left = before.difference(&after);
            if undone && !left.is_empty() {
                return wrong(format!("it left {left:#?}"));
            }
        }
    }
    // It can be done now, unless what hung has done it meanwhile; and then be
    // taken back, and nothing is left.
    if !change.is_done(&host) {
        let again = match (change, host.vgpu(OURS)) {
            // What is broken has to go first.
            (Create(_) | CreateOnBare, Some(_)) => {
                host.remove(OURS).and_then(|()| change.attempt(&host))
            }
            _ => change.attempt(&host),
        };
        if let Err(error) = again {
            return wrong(format!("it cannot be tried again: {error}"));
        }
        if !change.is_done(&host) {
            return wrong("it is not done, though tried again".into());
        }
    }
    let finish = || {
        if host.vgpu(OURS).is_some() {
            host.remove(OURS)?;
        }
        host.set_vfs(FLEX, 0)
    };
    if let Err(error) = finish() {
        return wrong(format!("it cannot be taken back: {error}"));
    }
    let left = pristine.difference(&Picture::of(&host.kernel));
    if !left.is_empty() {
        return wrong(format!("in the end {left:#?} is left"));
    }
    let claims = std::fs::read_dir(host.run_dir().join("claims")).unwrap().count();
    if claims != 0 {
        return wrong(format!("in the end {claims} claims are left"));
    }
    Ok(true)
}

/// Meets every call that the changes make with each of the faults; gives how
/// many that were.
fn meet_all(faults: impl Fn(Fault) -> bool, threads: usize) -> u32 {
    let work: Vec<(Change, Fault, AtomicU32, AtomicU32)> = CHANGES
        .into_iter()
        .flat_map(|change| FAULTS.map(|fault| (change, fault)))
        .filter(|(_, fault)| faults(*fault))
        .map(|(change, fault)| (change, fault, AtomicU32::new(1), AtomicU32::new(u32::MAX)))
        .collect();
    let covered = AtomicU32::new(0);
    let wrong = Mutex::new(Vec::new());
    let follow = || {
        for (change, fault, next, end) in &work {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= end.load(Ordering::Relaxed) {
                    break;
                }
                let met = meet(*change, *fault, n);
                if let Ok(false) = met {
                    end.fetch_min(n, Ordering::Relaxed);
                    continue;
                }
                covered.fetch_add(1, Ordering::Relaxed);
                if let Err(what) = met {
                    wrong.lock().unwrap().push(format!("{change:?}, {fault:?} {n}: {what}"));
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(follow);
        }
    });
    for (change, fault, _, end) in &work {
        println!("{change:?} {fault:?}: {} points", end.load(Ordering::Relaxed) - 1);
    }
    let covered = covered.into_inner();
    println!("{covered} points covered");
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {covered}:\n{}", wrong.len(), wrong.join("\n"));
    covered
}

#[test]
fn whatever_fails_or_lies_the_picture_is_the_truth() {
    let covered = meet_all(|fault| !fault.blocks(), 4);
    assert!(covered >= POINTS, "only {covered} of {POINTS} points were covered");
}

#[test]
fn whatever_blocks_the_picture_is_the_truth() {
    // What blocks mostly waits: more threads than cores.
    let covered = meet_all(Fault::blocks, 16);
    assert!(covered >= BLOCKING_POINTS, "only {covered} of {BLOCKING_POINTS} were covered");
}
