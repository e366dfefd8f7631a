//! Making a vGPU.

use nix::errno::Errno;
use uuid::Uuid;

use crate::{
    claims::{Claim, ClaimedFunction, Generation, Phase},
    error::{Error, ErrorKind, Result},
    execute::Cause,
    framework::{self, mdev, nvidia_vf, passthrough, sriov},
    model::{Framework, FunctionState, GpuId, PciAddress, Profile, VgpuState},
    plan::{Expect, Plan, Step, StepOp},
    refusal::Context,
    request::{Control, CreateRequest, Created},
    scan::{GpuFacts, Reader, text},
    sys::{Deadline, HolderQuery, LaneKey, NodePath, Observed, Op, Read},
};

use super::{Engine, choose, failure};

impl Engine {
    /// Makes a vGPU. The same UUID and profile again is no error.
    ///
    /// # Errors
    /// Says what was tried, the cause and the remedy; all is undone.
    pub fn create(&self, request: &CreateRequest, control: &Control) -> Result<Created> {
        if let Some(uuid) = request.uuid
            && let Some(created) = self.existing(uuid, request)?
        {
            return Ok(created);
        }
        let uuid = request.uuid.unwrap_or_else(Uuid::new_v4);
        let mut refused = None;
        for (gpu, profile) in self.candidates(request, control)? {
            let mut result = self.create_on(&gpu, &profile, uuid, request, control);
            // Somebody was faster on that VF, but there are others.
            for _ in 0..RETRIES {
                match &result {
                    Err(refused) if refused.taken && request.function.is_none() => {
                        result = self.create_on(&gpu, &profile, uuid, request, control);
                    }
                    _ => break,
                }
            }
            match result.map_err(|refused| refused.error) {
                Ok(()) => {
                    return Ok(Created { uuid, created: true });
                }
                // Somebody else took the last one: the next GPU may have one.
                Err(error)
                    if error.kind() == ErrorKind::NoCapacity
                        && error.code() != "quota"
                        && request.gpu.is_none() =>
                {
                    refused.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(refused.unwrap_or_else(|| {
            Error::new(
                ErrorKind::NoCapacity,
                "no-capacity",
                choose::tried(request),
                "no GPU has one left",
            )
        }))
    }

    /// The vGPU that a request with that UUID made before.
    fn existing(&self, uuid: Uuid, request: &CreateRequest) -> Result<Option<Created>> {
        let snapshot = self.snapshot();
        let Some(claim) = self.claims.get(uuid) else {
            return match snapshot.vgpu(uuid) {
                // Just removed, and the picture does not show it yet.
                Some(vgpu) if vgpu.managed => Err(busy_uuid(&choose::tried(request), uuid)),
                Some(vgpu) => Err(failure::foreign(choose::tried(request), vgpu)),
                None => Ok(None),
            };
        };
        if claim.owner_uid != request.owner_uid {
            return Err(Error::new(
                ErrorKind::Busy,
                "uuid-taken",
                choose::tried(request),
                format!("vGPU {uuid} belongs to another user"),
            )
            .remedy("choose another UUID"));
        }
        let profiles = snapshot.gpu(&claim.gpu).map(|gpu| &gpu.profiles[..]).unwrap_or_default();
        let same = profiles.iter().any(|p| p.id == claim.profile && p.is_called(&request.profile))
            && request.gpu.as_ref().is_none_or(|gpu| *gpu == claim.gpu);
        match claim.phase {
            _ if !same => Err(Error::new(
                ErrorKind::BadState,
                "uuid-other-profile",
                choose::tried(request),
                format!("vGPU {uuid} exists with profile {} on GPU {}", claim.profile, claim.gpu),
            )
            .remedy("choose another UUID, or remove that vGPU first")),
            Phase::Active
                if snapshot.vgpu(uuid).is_some_and(|vgpu| vgpu.state == VgpuState::Broken) =>
            {
                Err(Error::new(
                    ErrorKind::BadState,
                    "vgpu-broken",
                    choose::tried(request),
                    format!("vGPU {uuid} exists, but its device is not on its driver"),
                )
                .remedy("remove it first"))
            }
            Phase::Active => Ok(Some(Created { uuid, created: false })),
            Phase::Reserved | Phase::Removing => Err(busy_uuid(&choose::tried(request), uuid)),
        }
    }

    fn create_on(
        &self,
        gpu: &GpuId,
        profile: &Profile,
        uuid: Uuid,
        request: &CreateRequest,
        control: &Control,
    ) -> std::result::Result<(), Refused> {
        let tried = format!("creating vGPU {uuid} of {} on GPU {gpu}", profile.short_name);
        let _turn = self.turn(gpu, &tried)?;
        if profile.framework == Framework::Passthrough {
            // Unbinding a PF takes its VFs along: planned on what is there now.
            self.try_scan_gpu(gpu).map_err(|error| failure::of_scan(&*tried, error))?;
        }
        let facts = self.publisher.facts(gpu).ok_or_else(|| failure::no_such_gpu(&*tried, gpu))?;
        let prepared = match profile.framework {
            Framework::Mdev => self.prepare_mdev(&facts, profile, uuid, request, &tried)?,
            Framework::NvidiaVf => self.prepare_vendor(&facts, profile, request, &tried)?,
            Framework::Sriov => self.prepare_function(&facts, request, &tried)?,
            Framework::Passthrough => self.prepare_whole(&facts, &tried)?,
        };
        let claim = Claim {
            uuid,
            name: request.name.clone(),
            gpu: gpu.clone(),
            profile: profile.id.clone(),
            framework: profile.framework,
            owner_uid: request.owner_uid,
            functions: prepared.functions.clone(),
            phase: Phase::Reserved,
            generation: prepared.generation,
        };
        let work = self.work_on(uuid).ok_or_else(|| busy_uuid(&tried, uuid))?;
        self.claims.reserve(claim)?;
        let mut steps = prepared.steps;
        if request.owner_uid != 0 {
            steps.push(Step {
                lane: LaneKey::Gpu(gpu.clone()),
                op: StepOp::GiveNodes { device: prepared.device, uid: request.owner_uid },
                expect: Expect::Nothing,
                undo: Vec::new(),
            });
        }
        let plan = Plan {
            id: Uuid::new_v4(),
            purpose: tried.clone(),
            gpu: gpu.clone(),
            vgpu: Some(uuid),
            generation: None,
            base_revision: self.snapshot().revision(),
            steps,
        };
        let result = self.run(&plan, control, self.timing.write);
        if let Err(failed) = result {
            let hangs = matches!(&failed.cause, Cause::Op(error) if error.is_stuck());
            let taken_back = !hangs && failed.undo_failures.is_empty();
            let context = Context {
                has_driver: facts.pci.as_ref().is_none_or(|pci| pci.driver.is_some()),
                has_free_instances: profile.available > 0,
            };
            let carrier = prepared
                .parent
                .or_else(|| prepared.functions.first().map(|first| first.address.to_string()));
            let error = failure::of_plan(tried, failed, context);
            if taken_back {
                self.scan_gpu_without(gpu, uuid);
            }
            drop(work);
            if !taken_back {
                // What may still come to be stays claimed until a scan settles it.
                self.scan_gpu(gpu);
            }
            let is_function = carrier.as_ref().is_some_and(|name| *name != gpu.to_string());
            let taken = taken_back
                && is_function
                && self.snapshot().vgpus_of(gpu).any(|vgpu| Some(&vgpu.parent) == carrier.as_ref());
            return Err(Refused { error, taken });
        }
        let done = self.finish(gpu, uuid, prepared.parent.as_deref());
        drop(work);
        if self.claims.get(uuid).is_some_and(|claim| claim.phase == Phase::Reserved) {
            // Somebody removed it since, and nobody else looks.
            self.scan_gpu(gpu);
        }
        Ok(done?)
    }

    /// Makes the claim active with its device's generation, and publishes.
    fn finish(&self, gpu: &GpuId, uuid: Uuid, parent: Option<&str>) -> Result<()> {
        let Some(parent) = parent else {
            let done = self.claims.advance(uuid, Phase::Active, None);
            self.scan_gpu(gpu);
            return done;
        };
        let mut done = Ok(());
        self.scan_mdev(gpu, parent, uuid, |mdev| {
            if let Some(mdev) = mdev {
                let generation = Some(self.generation(mdev.inode));
                done = self.claims.advance(uuid, Phase::Active, generation);
            }
        });
        done
    }

    fn prepare_mdev(
        &self,
        facts: &GpuFacts,
        profile: &Profile,
        uuid: Uuid,
        request: &CreateRequest,
        tried: &str,
    ) -> Result<Prepared> {
        let pinned = request.function.map(|address| address.to_string());
        let parent = match &pinned {
            Some(name) => facts.parents.iter().find(|p| p.name == *name).map(|p| p.name.as_str()),
            None => mdev::choose_parent(facts, &profile.id),
        };
        let parent = parent.ok_or_else(|| failure::no_such_profile(tried, &[]))?;
        let steps = mdev::plan_create(&facts.id, parent, &profile.id, uuid);
        let device = mdev::device(parent, uuid);
        match (steps, device) {
            (Ok(steps), Ok(device)) => Ok(Prepared {
                parent: Some(parent.to_owned()),
                functions: Vec::new(),
                generation: None,
                device,
                steps,
            }),
            (Err(error), _) | (_, Err(error)) => Err(failure::of_scan(tried, error.into())),
        }
    }

    fn prepare_vendor(
        &self,
        facts: &GpuFacts,
        profile: &Profile,
        request: &CreateRequest,
        tried: &str,
    ) -> Result<Prepared> {
        let path = |error: crate::sys::InvalidPath| failure::of_scan(tried, error.into());
        let gpu = self.with_view(|view| framework::gpu(facts, view, &[]));
        let chosen =
            nvidia_vf::choose_function(facts, &gpu.functions, &profile.id, request.function);
        let Some(function) = chosen else {
            return Err(no_free_function(request, tried));
        };
        let claimed = ClaimedFunction {
            address: function.address,
            driver: function.driver.clone(),
            driver_override: None,
        };
        Ok(Prepared {
            parent: None,
            functions: vec![claimed],
            generation: Some(self.generation(function.inode)),
            device: sriov::device(function.address).map_err(path)?,
            steps: nvidia_vf::plan_create(function.address, &profile.id).map_err(path)?,
        })
    }

    fn prepare_function(
        &self,
        facts: &GpuFacts,
        request: &CreateRequest,
        tried: &str,
    ) -> Result<Prepared> {
        let gpu = self.with_view(|view| framework::gpu(facts, view, &[]));
        let free = gpu.functions.iter().find(|function| {
            function.state == FunctionState::Free
                && request.function.is_none_or(|pinned| pinned == function.address)
        });
        let Some(free) = free else {
            return Err(no_free_function(request, tried));
        };
        self.prepare_functions(&[free.address], false, tried)
    }

    fn prepare_whole(&self, facts: &GpuFacts, tried: &str) -> Result<Prepared> {
        let Some(pci) = &facts.pci else {
            return Err(failure::no_such_profile(tried, &[]));
        };
        let obstacle = self.with_view(|view| {
            if passthrough::allowed(pci, view) { passthrough::obstacle(pci, view) } else { None }
        });
        if let Some(reason) = obstacle {
            return Err(Error::new(ErrorKind::BadState, reason.code.as_str(), tried, reason.text));
        }
        let members = passthrough::members(pci);
        for member in &members {
            self.refuse_if_host_uses(*member, tried)?;
        }
        self.prepare_functions(&members, true, tried)
    }

    /// Reads what the functions have now, which undoing and removing give back,
    /// and plans to bind them to their VFIO drivers. Only the host's own drivers
    /// are unbound, and only where they `may_be_bound`.
    fn prepare_functions(
        &self,
        addresses: &[PciAddress],
        may_be_bound: bool,
        tried: &str,
    ) -> Result<Prepared> {
        let mut generation = None;
        let mut functions = Vec::with_capacity(addresses.len());
        let mut steps = Vec::new();
        let path = |error: crate::sys::InvalidPath| failure::of_scan(tried, error.into());
        for address in addresses {
            let Binding { function, modalias, inode } = self.read_binding(*address, tried)?;
            generation.get_or_insert(self.generation(inode));
            // Taken by someone since it was last looked at.
            if let Some(driver) = &function.driver
                && (!may_be_bound || self.with_view(|view| view.is_vfio_driver(driver)))
            {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "function-in-use",
                    tried,
                    format!("{address} is on driver {driver} by now, by someone else's doing"),
                )
                .remedy("try again, or choose another GPU"));
            }
            let driver = self.with_view(|view| view.vfio_driver(&modalias).to_owned());
            steps.extend(sriov::plan_bind(&function, &driver).map_err(path)?);
            functions.push(function);
        }
        let first = addresses.first().ok_or_else(|| failure::no_such_profile(tried, &[]))?;
        let device = sriov::device(*first).map_err(path)?;
        Ok(Prepared { parent: None, functions, generation, device, steps })
    }

    /// Reads what a function is bound to now.
    pub(super) fn read_binding(&self, address: PciAddress, tried: &str) -> Result<Binding> {
        let lane = LaneKey::Function(address);
        let reader = Reader::new(&*self.executor, &lane, Deadline::after(self.timing.read));
        let reads = vec![
            Read::inode(""),
            Read::link("driver"),
            Read::text("driver_override"),
            Read::text("modalias"),
        ];
        let mut r = sriov::device(address)
            .map_err(Into::into)
            .and_then(|device| reader.read(&device, reads))
            .map_err(|error| failure::of_scan(tried, error))?;
        let Some(inode) = r.inode() else {
            return Err(Error::new(
                ErrorKind::NoCapacity,
                "function-gone",
                tried,
                format!("function {address} is gone"),
            ));
        };
        let driver = r.link();
        let driver_override =
            r.text().as_deref().and_then(text::driver_override).map(str::to_owned);
        Ok(Binding {
            function: ClaimedFunction { address, driver, driver_override },
            modalias: r.text().unwrap_or_default(),
            inode,
        })
    }

    /// Refuses a device whose DRM, block, input or other nodes a process of the
    /// host has open.
    fn refuse_if_host_uses(&self, address: PciAddress, tried: &str) -> Result<()> {
        let lane = LaneKey::Function(address);
        let reader = Reader::new(&*self.executor, &lane, Deadline::after(self.timing.read));
        let device =
            sriov::device(address).map_err(|error| failure::of_scan(tried, error.into()))?;
        let nodes = host_nodes(reader, &device).map_err(|error| failure::of_scan(tried, error))?;
        if nodes.is_empty() {
            return Ok(());
        }
        let op = Op::Holders(HolderQuery { nodes, pid: None });
        match self.executor.run(&lane, op, Deadline::after(self.timing.read)) {
            Ok(Observed::Holders(holders)) => match holders.into_iter().next() {
                Some(holder) => Err(Error::new(
                    ErrorKind::Busy,
                    "used-by-host",
                    tried,
                    format!("a process of the host uses {address}"),
                )
                .held_by(holder)
                .remedy("stop it first")),
                None => Ok(()),
            },
            Ok(_) => Ok(()),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            Err(error) => Err(failure::of_op(tried, error)),
        }
    }
}

/// How often another VF is tried where somebody was faster.
const RETRIES: usize = 3;

/// A creation that failed.
struct Refused {
    error: Error,
    /// Whether somebody else has by now what was chosen to carry the vGPU.
    taken: bool,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { error, taken: false }
    }
}

/// What a vGPU is made of, before anything is written.
struct Prepared {
    /// The mdev's parent.
    parent: Option<String>,
    /// The functions it takes, with what they get back.
    functions: Vec<ClaimedFunction>,
    /// Which creation of the first of them it is; a new mdev has none yet.
    generation: Option<Generation>,
    /// The device whose nodes its owner gets.
    device: crate::sys::SysPath,
    steps: Vec<Step>,
}

/// What a function is bound to.
pub(super) struct Binding {
    pub(super) function: ClaimedFunction,
    modalias: String,
    inode: u64,
}

/// The device nodes of the host's drivers on a device: those of its DRM cards
/// (`<device>/drm/card0`) and NVMe controllers (`<device>/nvme/nvme0/nvme0n1`),
/// each named as its node in /dev.
fn host_nodes(
    reader: Reader<'_>,
    device: &crate::sys::SysPath,
) -> std::result::Result<Vec<NodePath>, crate::scan::ScanError> {
    let mut r = reader.read(device, vec![Read::names("drm"), Read::names("nvme")])?;
    let cards = r
        .names()
        .into_iter()
        .filter(|name| name.starts_with("card") || name.starts_with("renderD"));
    let mut nodes: Vec<String> = cards.map(|name| format!("dri/{name}")).collect();
    for controller in r.names() {
        let below = reader.read(device, vec![Read::names(format!("nvme/{controller}"))])?.names();
        nodes.extend(below.into_iter().filter(|name| name.starts_with("nvme")));
        nodes.push(controller);
    }
    nodes.into_iter().map(|node| Ok(NodePath::new(node)?)).collect()
}

fn no_free_function(request: &CreateRequest, tried: &str) -> Error {
    let cause = match request.function {
        Some(pinned) => format!("function {pinned} is not free"),
        None => "no VF is free".to_owned(),
    };
    Error::new(ErrorKind::NoCapacity, "no-free-function", tried, cause)
        .remedy("see vgpuctl show for what each VF is used for")
}

fn busy_uuid(tried: &str, uuid: Uuid) -> Error {
    Error::new(ErrorKind::Busy, "vgpu-busy", tried, format!("vGPU {uuid} is being made or removed"))
        .remedy("try again when that is done")
}
