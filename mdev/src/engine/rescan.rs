//! From kernel events to looks at the kernel.
//!
//! An event is a hint: what it names is read again. Hints for one GPU gather
//! while it is being read. A GPU that hangs holds one worker until its
//! deadline; the others get a new one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Condvar, Mutex, Weak},
    thread,
};

use uuid::Uuid;

use crate::{
    error::Result,
    model::{Framework, GpuId, PciAddress, Snapshot},
    scan::{
        GpuFacts, HostFacts, MdevFacts, Reader, ScanError, enumerate, read_function, read_gpu,
        read_mdev, read_mdevs, read_uevent_count, text,
    },
    sys::{Deadline, KernelEvent, LaneKey, OpError},
};

use super::{Engine, failure, lock};

/// What to look at again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hint {
    /// Everything, as after lost events.
    All,
    /// Which GPUs there are.
    Host,
    /// One GPU.
    Gpu(GpuId),
    /// One function of a GPU.
    Function(GpuId, PciAddress),
    /// One mdev on a parent of a GPU.
    Mdev(GpuId, String, Uuid),
    /// What NVIDIA's program says, of which no event tells.
    NvidiaSmi,
}

/// What a uevent is about, if anything of ours.
pub(super) fn hint_of(event: &KernelEvent, host: &HostFacts, snapshot: &Snapshot) -> Option<Hint> {
    let mut elements = event.devpath.rsplit('/').filter(|element| !element.is_empty());
    let device = elements.next()?;
    let above = elements.next();
    let hint_for = |device: &str, above: Option<&str>| {
        if let Some(uuid) = text::mdev_name(device) {
            let parent = above?;
            return match host.gpu_of_device(parent) {
                Some(gpu) => Some(Hint::Mdev(gpu, parent.to_owned(), uuid)),
                None => snapshot.vgpu(uuid).map(|vgpu| Hint::Gpu(vgpu.gpu.clone())),
            };
        }
        let address = text::pci_name(device)?;
        match host.gpu_of_device(device)? {
            GpuId::Pci(pf) if pf != address => Some(Hint::Function(GpuId::Pci(pf), address)),
            gpu => Some(Hint::Gpu(gpu)),
        }
    };
    match event.subsystem.as_str() {
        "mdev" => hint_for(device, above),
        // …/<device>/vfio-dev/vfioX
        "vfio-dev" => hint_for(elements.next()?, elements.next()),
        "pci" => match hint_for(device, above) {
            // A device that goes can be a GPU or change what its PF has.
            Some(_) if matches!(event.action.as_str(), "add" | "remove") => Some(Hint::Host),
            Some(hint) => Some(hint),
            // A VF that is not known yet, or a device of no interest.
            None => matches!(event.action.as_str(), "add" | "change").then_some(Hint::Host),
        },
        // A VFIO driver that is loaded or goes changes what is on offer.
        "drivers" => event.devpath.starts_with("/bus/pci/drivers/").then_some(Hint::Host),
        _ => event.properties.iter().any(|(key, _)| key == "MDEV_STATE").then_some(Hint::All),
    }
}

/// The hints that wait, and the workers that follow them.
#[derive(Default)]
pub(super) struct Rescans {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    all: bool,
    host: bool,
    smi: bool,
    gpus: BTreeMap<GpuId, Pending>,
    busy: BTreeSet<GpuId>,
    host_busy: bool,
    smi_busy: bool,
    workers: usize,
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct Pending {
    whole: bool,
    functions: BTreeSet<PciAddress>,
    mdevs: BTreeSet<(Uuid, String)>,
}

enum Work {
    Host { all: bool },
    NvidiaSmi,
    Gpu(GpuId, Pending),
}

/// More workers than this are never needed: each further one would wait for a
/// GPU that hangs, and after its deadline a lane that hangs answers at once.
const WORKERS: usize = 32;

impl Rescans {
    /// Starts the first worker.
    pub(super) fn start(engine: &Arc<Engine>) {
        engine.rescans.spawn(engine, &mut lock(&engine.rescans.state));
    }

    /// Adds a hint.
    pub(super) fn add(engine: &Arc<Engine>, hint: Hint) {
        let rescans = &engine.rescans;
        let mut state = lock(&rescans.state);
        match hint {
            Hint::All => state.all = true,
            Hint::Host => state.host = true,
            Hint::NvidiaSmi => state.smi = true,
            Hint::Gpu(gpu) => state.gpus.entry(gpu).or_default().whole = true,
            Hint::Function(gpu, address) => {
                state.gpus.entry(gpu).or_default().functions.insert(address);
            }
            Hint::Mdev(gpu, parent, uuid) => {
                state.gpus.entry(gpu).or_default().mdevs.insert((uuid, parent));
            }
        }
        if state.idle > 0 {
            rescans.more.notify_one();
        } else if state.workers > 0 && state.workers < WORKERS {
            rescans.spawn(engine, &mut state);
        }
    }

    /// Ends the workers.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.more.notify_all();
    }

    fn spawn(self: &Arc<Self>, engine: &Arc<Engine>, state: &mut State) {
        state.workers += 1;
        let (rescans, engine) = (self.clone(), Arc::downgrade(engine));
        let spawned = thread::Builder::new()
            .name("vgpu-rescan".into())
            .stack_size(512 * 1024)
            .spawn(move || rescans.work(&engine));
        if let Err(error) = spawned {
            state.workers -= 1;
            tracing::error!("a rescan waits for a thread: {error}");
        }
    }

    fn work(&self, engine: &Weak<Engine>) {
        loop {
            let work = {
                let mut state = lock(&self.state);
                loop {
                    if state.closed {
                        return;
                    }
                    if let Some(work) = state.take() {
                        break work;
                    }
                    // One worker stays; those who came for a GPU that hung go.
                    if state.idle > 0 {
                        state.workers -= 1;
                        return;
                    }
                    state.idle += 1;
                    state =
                        self.more.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
                    state.idle -= 1;
                }
            };
            let Some(engine) = engine.upgrade() else {
                return;
            };
            engine.follow(&work);
            let mut state = lock(&self.state);
            match work {
                Work::Host { .. } => state.host_busy = false,
                Work::NvidiaSmi => state.smi_busy = false,
                Work::Gpu(gpu, _) => {
                    state.busy.remove(&gpu);
                }
            }
        }
    }
}

impl State {
    fn take(&mut self) -> Option<Work> {
        if (self.all || self.host) && !self.host_busy {
            self.host_busy = true;
            self.host = false;
            return Some(Work::Host { all: std::mem::take(&mut self.all) });
        }
        if self.smi && !self.smi_busy {
            (self.smi, self.smi_busy) = (false, true);
            return Some(Work::NvidiaSmi);
        }
        let gpu = self.gpus.keys().find(|gpu| !self.busy.contains(*gpu)).cloned()?;
        let pending = self.gpus.remove(&gpu)?;
        self.busy.insert(gpu.clone());
        Some(Work::Gpu(gpu, pending))
    }
}

impl Engine {
    /// Looks at everything again and returns when the picture is published.
    ///
    /// # Errors
    /// When the host cannot be enumerated.
    pub fn rescan(&self) -> Result<()> {
        self.scan_all()?;
        self.ask_smi();
        Ok(())
    }

    /// Looks at all of the kernel.
    pub(super) fn scan_all(&self) -> Result<()> {
        let changed =
            self.enumerate(true).map_err(|error| failure::of_scan("scanning the host", error))?;
        let cores = thread::available_parallelism().map_or(2, usize::from);
        let queue = Mutex::new(changed.into_iter());
        let next = || lock(&queue).next();
        thread::scope(|scope| {
            // A few more than cores, so that a GPU that hangs delays no other.
            for _ in 1..cores + 2 {
                scope.spawn(|| {
                    while let Some(gpu) = next() {
                        self.pay_if_free(&gpu);
                        self.scan_gpu(&gpu);
                    }
                });
            }
            while let Some(gpu) = next() {
                self.pay_if_free(&gpu);
                self.scan_gpu(&gpu);
            }
        });
        Ok(())
    }

    fn follow(self: &Arc<Self>, work: &Work) {
        if let Work::Gpu(gpu, _) = work {
            self.pay_if_free(gpu);
        }
        match work {
            Work::Host { all } => match self.enumerate(*all) {
                Ok(changed) => {
                    // Enabling VFs wipes what NVIDIA's program told of a GPU.
                    if !all && changed.iter().any(|gpu| self.smi.load().contains_key(gpu)) {
                        self.hint(Hint::NvidiaSmi);
                    }
                    changed.into_iter().for_each(|gpu| self.hint(Hint::Gpu(gpu)));
                }
                Err(error) => tracing::error!("the host could not be enumerated: {error}"),
            },
            Work::NvidiaSmi => self.ask_smi(),
            Work::Gpu(gpu, Pending { whole: true, .. }) => self.scan_gpu(gpu),
            Work::Gpu(gpu, pending) => {
                for (uuid, parent) in &pending.mdevs {
                    self.scan_mdev(gpu, parent, *uuid, |_| {});
                }
                if !pending.functions.is_empty() {
                    self.scan_functions(gpu, &pending.functions);
                }
            }
        }
    }

    /// Lists the GPUs: drops those that are gone, and answers those that are to
    /// be scanned: all, or the new ones and those whose VFs or parents changed.
    fn enumerate(&self, all: bool) -> std::result::Result<Vec<GpuId>, ScanError> {
        let _turn = lock(&self.enumerating);
        let reader =
            Reader::new(&*self.executor, &LaneKey::Host, Deadline::after(self.timing.read));
        let found = enumerate(reader, &self.config)?;
        let before = self.host.swap(Arc::new(found));
        let now = self.host.load();
        for gpu in before.gpus.keys().filter(|gpu| !now.gpus.contains_key(*gpu)) {
            // A scan that saw it still there must not publish it afterwards.
            let _scan = self.scans.take(gpu, Deadline::after(self.timing.read * 2));
            self.drop_gpu(gpu);
        }
        let functions_of = |host: &HostFacts, gpu: &GpuId| -> Vec<PciAddress> {
            let pf = gpu.pci();
            host.functions.iter().filter(|(_, of)| Some(**of) == pf).map(|(vf, _)| *vf).collect()
        };
        let drivers_changed = before.drivers != now.drivers;
        Ok(now
            .gpus
            .iter()
            .filter(|(gpu, parents)| {
                all || drivers_changed
                    || before.gpus.get(*gpu) != Some(*parents)
                    || functions_of(&before, gpu) != functions_of(&now, gpu)
            })
            .map(|(gpu, _)| gpu.clone())
            .collect())
    }

    /// Lists the GPUs again, after our own change of one. What else changed
    /// meanwhile is looked at as well: the next enumeration finds no difference.
    pub(super) fn refresh_host(&self, gpu: &GpuId) {
        match self.enumerate(false) {
            Ok(changed) => {
                changed.iter().filter(|other| *other != gpu).for_each(|other| self.scan_gpu(other));
            }
            Err(error) => tracing::error!("the host could not be enumerated: {error}"),
        }
        self.scan_gpu(gpu);
    }

    /// Reads a whole GPU and publishes it, as stale where that fails.
    pub(super) fn scan_gpu(&self, gpu: &GpuId) {
        // What failed was logged.
        let _ = self.scan_gpu_and(gpu, || {});
    }

    /// The same, for who cannot go on without.
    pub(super) fn try_scan_gpu(&self, gpu: &GpuId) -> std::result::Result<(), ScanError> {
        self.scan_gpu_and(gpu, || {})
    }

    /// The same, and ends the claim on a vGPU that was taken back: between the
    /// looks of other scans, one of which would else show what it read before as
    /// someone else's.
    pub(super) fn scan_gpu_without(&self, gpu: &GpuId, uuid: Uuid) {
        let _ = self.scan_gpu_and(gpu, || drop(self.claims.release(uuid)));
        self.claims.release(uuid);
    }

    /// Reads a whole GPU, then calls `settle`, then publishes.
    fn scan_gpu_and(
        &self,
        gpu: &GpuId,
        settle: impl FnOnce(),
    ) -> std::result::Result<(), ScanError> {
        let waited = self.timing.read * 2;
        let Some(_scan) = self.scans.take(gpu, Deadline::after(waited)) else {
            self.publisher.mark_stale(gpu);
            let what = format!("waiting for an earlier scan of GPU {gpu}");
            return Err(OpError::Deadline { what, waited }.into());
        };
        let began = self.claims.clock();
        let parents = self.host.load().gpus.get(gpu).cloned().unwrap_or_default();
        let lane = LaneKey::Gpu(gpu.clone());
        let reader = Reader::new(&*self.executor, &lane, Deadline::after(self.timing.read));
        let read = || -> std::result::Result<Option<(GpuFacts, Vec<MdevFacts>, _)>, ScanError> {
            let uevents = read_uevent_count(reader)?;
            let Some(facts) = read_gpu(reader, gpu, &parents)? else {
                return Ok(None);
            };
            let mdevs = read_mdevs(reader, &self.node_kinds, &facts.parents)?;
            Ok(Some((facts, mdevs, uevents)))
        };
        match read() {
            Ok(Some((facts, mdevs, uevents))) => {
                if mdevs.iter().all(MdevFacts::is_whole) {
                    lock(&self.covered).gpu(gpu, uevents);
                }
                self.totals.learn(&facts);
                settle();
                self.settle_claims(&facts, &mdevs, began);
                self.with_view(|view| self.publisher.put_gpu(facts, &mdevs, view));
            }
            Ok(None) => self.drop_gpu(gpu),
            Err(error) => {
                self.unreadable(gpu, &error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads one mdev and what its GPU still offers; `settle` hears of the
    /// mdev before it is published.
    pub(super) fn scan_mdev(
        &self,
        gpu: &GpuId,
        parent: &str,
        uuid: Uuid,
        settle: impl FnOnce(Option<&MdevFacts>),
    ) {
        let Some(_scan) = self.scans.take(gpu, Deadline::after(self.timing.read * 2)) else {
            self.publisher.mark_stale(gpu);
            return;
        };
        let Some(facts) = self.publisher.facts(gpu) else {
            drop(_scan);
            self.scan_gpu(gpu);
            return;
        };
        let mut facts = (*facts).clone();
        let began = self.claims.clock();
        let lane = LaneKey::Gpu(gpu.clone());
        let reader = Reader::new(&*self.executor, &lane, Deadline::after(self.timing.read));
        match read_mdev(reader, &self.node_kinds, parent, uuid, &mut facts.parents) {
            Ok((found, uevents)) => {
                let mdev = found.as_ref();
                if mdev.is_none_or(MdevFacts::is_whole) {
                    lock(&self.covered).mdev(uuid, uevents);
                }
                self.totals.learn(&facts);
                settle(mdev);
                if let Some(claim) =
                    self.claims.get(uuid).filter(|claim| claim.framework == Framework::Mdev)
                {
                    let device = mdev.map(|mdev| (mdev.inode, mdev.driver.is_some()));
                    self.settle(&claim, device, began);
                }
                self.with_view(|view| self.publisher.put_mdev(facts, uuid, mdev, view));
            }
            Err(error) => self.unreadable(gpu, &error),
        }
    }

    /// Reads some functions of a GPU and publishes them.
    fn scan_functions(&self, gpu: &GpuId, addresses: &BTreeSet<PciAddress>) {
        let Some(_scan) = self.scans.take(gpu, Deadline::after(self.timing.read * 2)) else {
            self.publisher.mark_stale(gpu);
            return;
        };
        let known = self.publisher.facts(gpu);
        let Some(mut facts) = known.map(|facts| (*facts).clone()) else {
            return;
        };
        let began = self.claims.clock();
        let lane = LaneKey::Gpu(gpu.clone());
        let reader = Reader::new(&*self.executor, &lane, Deadline::after(self.timing.read));
        let mut lost = false;
        for address in addresses {
            let slot = facts.functions.iter_mut().find(|function| function.address == *address);
            match (read_function(reader, *address), slot) {
                (Ok(Some(new)), Some(old)) => *old = new,
                (Err(error), _) => return self.unreadable(gpu, &error),
                // It came or went: the PF's links have to be read again.
                _ => lost = true,
            }
        }
        if lost {
            drop(_scan);
            return self.scan_gpu(gpu);
        }
        self.settle_claims_on_functions(&facts, began);
        self.with_view(|view| self.publisher.put_functions(facts, view));
    }

    fn drop_gpu(&self, gpu: &GpuId) {
        let began = self.claims.clock();
        for claim in self.claims.on_gpu(gpu) {
            self.settle(&claim, None, began);
        }
        self.publisher.drop_gpu(gpu);
    }

    fn unreadable(&self, gpu: &GpuId, error: &ScanError) {
        tracing::warn!("GPU {gpu} keeps its last facts: {error}");
        self.publisher.mark_stale(gpu);
    }
}
