//! The engine: the one object that the daemon and the tests talk to.
//!
//! [`rescan`] turns kernel events into looks at the kernel; `create`, `remove`
//! and `vf_count` plan and run changes, and `debts` undoes late what hung;
//! `device` opens, probes and finds holders.

mod choose;
mod configure;
mod covered;
mod create;
mod debts;
mod device;
mod failure;
mod params;
mod plan_vgpus;
mod remove;
mod rescan;
mod settle;
mod smi;
mod turn;
mod vf_count;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use uuid::Uuid;

use crate::{
    claims::{Claims, Generation},
    config::Config,
    error::{Error, ErrorKind, Result},
    execute::Runner,
    framework::{self, View},
    hub::Hub,
    journal::{Journal, TraceOnly},
    model::{Change, GpuId, InUse, Snapshot, VgpuName},
    plan::{Plan, Undo},
    publisher::Publisher,
    request::Control,
    scan::{HostFacts, NodeKinds, SmiFacts},
    store::{Store, StoreError},
    sys::{Deadline, Executor, KernelEvent, LaneKey},
    totals::Totals,
};

use self::{covered::Covered, rescan::Rescans, turn::Turns};

pub use rescan::Hint;

/// How long the engine waits for the kernel before it calls it stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// For the reads of one scan.
    pub read: Duration,
    /// For one write. Enabling VFs sleeps 100 ms, disabling them 1 s (Linux
    /// 6.12, `drivers/pci/iov.c`).
    pub write: Duration,
    /// For the outcome of a write to show: most stores are synchronous, so this
    /// covers drivers that finish later.
    pub show: Duration,
    /// For a probe: a reset can take seconds.
    pub probe: Duration,
    /// For other requests on the same GPU.
    pub turn: Duration,
    /// For one run of a vendor's program.
    pub tool: Duration,
    /// For what such a program began to show: VFs of NVIDIA's GPUs have come
    /// half a minute late.
    pub late: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            read: Duration::from_secs(5),
            write: Duration::from_secs(8),
            show: Duration::from_millis(1500),
            probe: Duration::from_secs(15),
            turn: Duration::from_secs(60),
            tool: Duration::from_secs(60),
            late: Duration::from_secs(45),
        }
    }
}

/// What the engine needs to start.
pub struct Setup {
    /// Runs its operations.
    pub executor: Arc<dyn Executor>,
    /// What the administrator decided.
    pub config: Config,
    /// Where the claims are kept: `/run/vgpu-host`.
    pub run_dir: PathBuf,
    /// The text of `/lib/modules/<release>/modules.alias`, empty when there is
    /// none: names the VFIO variant drivers.
    pub module_aliases: String,
    /// The kernel's boot id: the claims of another boot are void.
    pub boot_id: String,
    /// How long it waits for the kernel.
    pub timing: Timing,
}

/// Discovers, plans, creates and removes. All methods may block; reading the
/// snapshot never does.
pub struct Engine {
    executor: Arc<dyn Executor>,
    config: Config,
    vfio_aliases: String,
    boot_id: String,
    timing: Timing,
    claims: Claims,
    totals: Totals,
    /// What NVIDIA's program said of its GPUs when it was last asked.
    smi: ArcSwap<BTreeMap<GpuId, SmiFacts>>,
    /// Asks it, one at a time.
    asking: Mutex<()>,
    publisher: Publisher,
    hub: Hub,
    journal: Box<dyn Journal>,
    host: ArcSwap<HostFacts>,
    /// Changes of one GPU, one at a time.
    plans: Turns,
    /// Scans of one GPU, one at a time, so that an older one never overwrites
    /// a newer one.
    scans: Turns,
    /// Enumerations, one at a time, for the same reason.
    enumerating: Mutex<()>,
    rescans: Arc<Rescans>,
    /// The vGPUs that a request works on now: nobody else settles their claims.
    at_work: Mutex<BTreeSet<Uuid>>,
    /// Which nodes this kernel makes.
    node_kinds: NodeKinds,
    /// Which events the last looks have covered.
    covered: Mutex<Covered>,
    /// What the last look for holders found.
    looks: Mutex<BTreeMap<Uuid, (InUse, Instant)>>,
    /// What is still to be undone, since the kernel hung.
    debts: Mutex<BTreeMap<GpuId, Vec<Undo>>>,
}

impl Engine {
    /// Scans the host and starts.
    ///
    /// # Errors
    /// When the host cannot be enumerated or the claims cannot be read.
    pub fn start(setup: Setup) -> Result<Arc<Self>> {
        let run_dir = &setup.run_dir;
        let claims = Store::open(run_dir.join("claims"))
            .and_then(|store| Claims::load(store, &setup.boot_id, setup.config.limits.clone()))
            .map_err(|error| unreadable(&error))?;
        let totals = Store::open(run_dir.join("totals"))
            .and_then(Totals::load)
            .map_err(|error| unreadable(&error))?;
        // Of thousands of lines a handful is about VFIO.
        let vfio_aliases: String = setup
            .module_aliases
            .lines()
            .filter(|line| line.starts_with("alias vfio_pci:"))
            .flat_map(|line| [line, "\n"])
            .collect();
        let engine = Arc::new(Self {
            executor: setup.executor,
            config: setup.config,
            vfio_aliases,
            boot_id: setup.boot_id,
            timing: setup.timing,
            claims,
            totals,
            smi: ArcSwap::default(),
            asking: Mutex::default(),
            publisher: Publisher::default(),
            hub: Hub::default(),
            journal: Box::new(TraceOnly),
            host: ArcSwap::default(),
            plans: Turns::default(),
            scans: Turns::default(),
            enumerating: Mutex::default(),
            rescans: Arc::default(),
            at_work: Mutex::default(),
            node_kinds: NodeKinds::default(),
            covered: Mutex::default(),
            looks: Mutex::default(),
            debts: Mutex::default(),
        });
        let back = Arc::downgrade(&engine);
        engine.executor.on_recovery(Box::new(move |lane| {
            if let Some(engine) = back.upgrade() {
                engine.recovered(lane);
            }
        }));
        engine.scan_all()?;
        Rescans::start(&engine);
        engine.hint(Hint::NvidiaSmi);
        Ok(engine)
    }

    /// The latest picture.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.publisher.snapshot()
    }

    /// Calls `listener` with every change from now on, in order, on the thread
    /// that published it: it must be quick and must not call the engine.
    pub fn subscribe(&self, listener: impl Fn(&Change) + Send + Sync + 'static) {
        self.publisher.subscribe(Box::new(listener));
    }

    /// Takes note of a uevent; the rescan follows on a thread of the engine.
    pub fn observe(self: &Arc<Self>, event: &KernelEvent) {
        self.hub.notify();
        let hint = rescan::hint_of(event, &self.host.load(), &self.publisher.snapshot());
        if let Some(hint) = hint
            && !lock(&self.covered).covers(&hint, event)
        {
            self.hint(hint);
        }
    }

    /// A lane that hung is back: what it kept from being read is looked at
    /// again, since no event tells of it.
    fn recovered(self: &Arc<Self>, lane: &LaneKey) {
        let gpu = match lane {
            LaneKey::Gpu(gpu) => Some(gpu.clone()),
            LaneKey::Function(address) => self.host.load().gpu_of_device(&address.to_string()),
            LaneKey::Mdev(uuid) => self.snapshot().vgpu(*uuid).map(|vgpu| vgpu.gpu.clone()),
            LaneKey::Host | LaneKey::Programs => return self.hint(Hint::All),
            LaneKey::NvidiaSmi => return self.hint(Hint::NvidiaSmi),
        };
        if let Some(gpu) = gpu {
            self.hint(Hint::Gpu(gpu));
        }
    }

    /// Looks again at what the hint names, on a thread of the engine.
    pub fn hint(self: &Arc<Self>, hint: Hint) {
        Rescans::add(self, hint);
    }

    /// The UUID that a name belongs to.
    pub fn named(&self, name: &VgpuName) -> Option<Uuid> {
        self.claims.named(name)
    }

    /// Whether a vGPU was in use when somebody looked within the last seconds.
    pub fn in_use(&self, uuid: Uuid) -> InUse {
        const FRESH: Duration = Duration::from_secs(10);
        match lock(&self.looks).get(&uuid) {
            Some((seen, at)) if at.elapsed() < FRESH => *seen,
            _ => InUse::Unknown,
        }
    }

    /// Why a profile of a GPU is available or not, in words.
    ///
    /// # Errors
    /// When there is no such GPU or profile.
    pub fn explain(&self, gpu: &GpuId, profile: &str) -> Result<String> {
        let tried = || format!("explaining profile {profile:?} of GPU {gpu}");
        let snapshot = self.snapshot();
        let Some(found) = snapshot.gpu(gpu) else {
            return Err(failure::no_such_gpu(tried(), gpu));
        };
        let Some(profile) = found.profiles_called(profile).next() else {
            return Err(failure::no_such_profile(tried(), &found.profiles));
        };
        Ok(match &profile.reason {
            Some(reason) => format!("none of {} available: {}", profile.short_name, reason.text),
            None => format!(
                "{} of {} available: {} at most, {} vGPUs on the GPU now",
                profile.available,
                profile.short_name,
                profile.total,
                snapshot.vgpu_count_of(gpu)
            ),
        })
    }

    /// What facts are seen through.
    fn with_view<T>(&self, look: impl FnOnce(View<'_>) -> T) -> T {
        let host = self.host.load();
        look(View {
            config: &self.config,
            claims: &self.claims,
            totals: &self.totals,
            smi: &self.smi.load(),
            has_mdev: host.has_mdev,
            drivers: &host.drivers,
            module_aliases: &self.vfio_aliases,
        })
    }

    /// Runs a plan.
    fn run(
        &self,
        plan: &Plan,
        control: &Control,
        limit: Duration,
    ) -> std::result::Result<(), crate::execute::Failure> {
        self.runner(limit).run(plan, control)
    }

    fn runner(&self, limit: Duration) -> Runner<'_> {
        Runner {
            executor: &*self.executor,
            hub: &self.hub,
            journal: &*self.journal,
            write_limit: limit,
            show_limit: self.timing.show,
            tool_limit: self.timing.tool,
            late_limit: self.timing.late,
        }
    }

    /// Waits for the turn on a GPU, and first finishes what an earlier change
    /// left.
    fn turn<'a>(&'a self, gpu: &GpuId, tried: &str) -> Result<turn::Turn<'a>> {
        self.turn_at(&self.turn_of(gpu), gpu, tried)
    }

    /// The same, at the turn of the GPU `at`.
    fn turn_at<'a>(&'a self, at: &GpuId, gpu: &GpuId, tried: &str) -> Result<turn::Turn<'a>> {
        let turn = self.timing.turn;
        let taken = self.plans.take(at, Deadline::after(turn));
        if taken.is_some() {
            self.pay(gpu);
        }
        taken.ok_or_else(|| {
            Error::new(
                ErrorKind::Busy,
                "gpu-busy",
                tried,
                format!("other work on GPU {gpu} did not end within {turn:?}"),
            )
            .remedy("try again later")
        })
    }

    /// The GPU whose turn it is: a change of one GPU of an XGMI hive waits for
    /// those of the others, since their driver orders them by no lock of its own.
    fn turn_of(&self, gpu: &GpuId) -> GpuId {
        let facts = |id: &GpuId| self.publisher.facts(id);
        let Some(hive) = facts(gpu).and_then(|facts| framework::hive(&facts)) else {
            return gpu.clone();
        };
        let snapshot = self.snapshot();
        let mut members = snapshot.gpus().map(|other| &other.id).filter(|other| {
            facts(other).and_then(|facts| framework::hive(&facts)).as_ref() == Some(&hive)
        });
        members.next().unwrap_or(gpu).clone()
    }

    /// Marks a vGPU as worked on until the mark is dropped; `None` when another
    /// request works on it.
    fn work_on(&self, uuid: Uuid) -> Option<AtWork<'_>> {
        lock(&self.at_work).insert(uuid).then(|| AtWork { engine: self, uuid })
    }

    /// Tells a device of this boot from a later one at its address.
    fn generation(&self, inode: u64) -> Generation {
        Generation { boot_id: self.boot_id.clone(), inode }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.rescans.close();
    }
}

struct AtWork<'a> {
    engine: &'a Engine,
    uuid: Uuid,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        lock(&self.engine.at_work).remove(&self.uuid);
    }
}

fn unreadable(error: &StoreError) -> Error {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let tried = "reading what an earlier run left";
    Error::new(ErrorKind::KernelRefused, "state-unreadable", tried, cause.unwrap_or_default())
        .at(error.path().display())
        .remedy("see that the folder exists and belongs to the service")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
