//! Making a GPU ready for vGPUs: its VFs, MIG mode, GPU instances and
//! heterogeneous mode, by the kernel or by the vendor's program.

use uuid::Uuid;

use crate::{
    error::{Error, ErrorKind, Result},
    framework::{
        self,
        enable::{self, Now, Obstacle, Wish},
        gim::{self, GimGpu},
        nvidia, sriov,
    },
    model::{FunctionState, GpuId, Snapshot},
    plan::{Plan, Step},
    refusal::Context,
    request::{Configure, Control},
    scan::{GpuFacts, PciFacts, Reader},
    sys::{Deadline, LaneKey, Read},
};

use super::{Engine, failure, turn::Turn};

impl Engine {
    /// Changes how a GPU is divided; nothing is done where it is so already.
    ///
    /// # Errors
    /// When it would end vGPUs, the GPU cannot, or a program or the kernel refuses
    /// or does less; all is undone.
    pub fn configure(&self, gpu: &GpuId, wish: &Configure, control: &Control) -> Result<()> {
        let tried = tried(gpu, wish);
        // That takes seconds, in which somebody may make a vGPU: asked before looking.
        let facts = self.publisher.facts(gpu);
        if let Some(address) = facts.filter(|facts| nvidia::has_functions(facts)).and(gpu.pci())
            && let Err(cause) = self.ask_smi_about(address)
        {
            tracing::warn!("MIG and heterogeneous mode of {gpu} are not known: {cause}");
        }
        let Some(prepared) = self.prepare(gpu, wish, &tried)? else {
            // The kernel changes the count by itself.
            return match wish.functions {
                Some(count) => self.set_vf_count(gpu, count, control),
                None => Ok(()),
            };
        };
        self.run_configuration(gpu, prepared, control, tried)
    }

    /// What [`Engine::configure`] would do, in words, in order; nothing is changed,
    /// and no program is run: its modes are those last known.
    ///
    /// # Errors
    /// As [`Engine::configure`], as far as it is known before.
    pub fn plan_configuration(&self, gpu: &GpuId, wish: &Configure) -> Result<Vec<String>> {
        let tried = format!("planning: {}", tried(gpu, wish));
        let steps = match self.prepare(gpu, wish, &tried)? {
            Some(prepared) => prepared.steps,
            None => match wish.functions {
                Some(count) => {
                    let _turn = self.turn(gpu, &tried)?;
                    self.plan_vf_count(gpu, count, &tried)?
                }
                None => Vec::new(),
            },
        };
        let told = |step: &&Step| step.op != crate::plan::StepOp::Look;
        Ok(steps.iter().filter(told).map(|step| step.op.to_string()).collect())
    }

    /// The steps by a vendor's program; `None` for a GPU whose VFs the kernel
    /// enables by itself.
    fn prepare(&self, gpu: &GpuId, wish: &Configure, tried: &str) -> Result<Option<Prepared<'_>>> {
        let facts = self.publisher.facts(gpu).ok_or_else(|| failure::no_such_gpu(tried, gpu))?;
        if nvidia::has_functions(&facts) {
            return self.prepare_nvidia(gpu, wish, tried).map(Some);
        }
        if wish.mig.is_some() || wish.instances.is_some() || wish.heterogeneous.is_some() {
            return Err(Error::new(
                ErrorKind::NotSupported,
                "no-modes",
                tried,
                "MIG, GPU instances and heterogeneous mode are of NVIDIA's GPUs with VFs, on \
                 NVIDIA's driver",
            )
            .remedy("see vgpuctl show GPU for its driver and VFs"));
        }
        match wish.functions {
            Some(count) if is_gim(&facts) => self.prepare_gim(gpu, count, tried).map(Some),
            _ => Ok(None),
        }
    }

    fn prepare_nvidia(&self, gpu: &GpuId, wish: &Configure, tried: &str) -> Result<Prepared<'_>> {
        let turns = vec![self.turn(gpu, tried)?];
        let (facts, snapshot) = self.look_again(gpu, tried)?;
        let pci = facts.pci.as_ref().ok_or_else(|| failure::no_such_gpu(tried, gpu))?;
        let functions = match wish.functions {
            None => None,
            Some(count) if count == 0 || count == pci.total_vfs => Some(count > 0),
            Some(count) => {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "all-or-none",
                    tried,
                    format!(
                        "NVIDIA's driver enables all VFs or none, and {count} is neither 0 nor {}",
                        pci.total_vfs
                    ),
                )
                .remedy(format!("ask for 0 or {}", pci.total_vfs)));
            }
        };
        let vgpus: Vec<(Uuid, Option<u32>)> = snapshot
            .vgpus_of(gpu)
            .map(|vgpu| {
                let on = |f: &&crate::scan::FunctionFacts| vgpu.addresses.contains(&f.address);
                let carrier = facts.functions.iter().find(on);
                (vgpu.uuid, carrier.and_then(|f| f.vendor.as_ref()?.gpu_instance))
            })
            .collect();
        let smi = self.smi.load();
        let now = Now {
            gpu: pci.address,
            functions: facts.functions.len() as u32,
            all_functions: pci.total_vfs,
            smi: smi.get(gpu),
            vgpus: &vgpus,
        };
        let wish = Wish {
            functions,
            mig: wish.mig,
            instances: wish.instances.clone(),
            heterogeneous: wish.heterogeneous,
        };
        let steps = enable::plan(now, &wish).map_err(|obstacle| of_obstacle(tried, &obstacle))?;
        Ok(Prepared { steps, changed: vec![gpu.clone()], _turns: turns })
    }

    /// All GPUs of the module change at once: their turns are taken in the order
    /// of their addresses, each by itself. One for all would not do: without the
    /// module it is not seen that they belong together.
    fn prepare_gim(&self, gpu: &GpuId, count: u32, tried: &str) -> Result<Prepared<'_>> {
        let mut all: Vec<GpuId> = self.snapshot().gpus().map(|gpu| gpu.id.clone()).collect();
        all.retain(|id| self.publisher.facts(id).is_some_and(|facts| is_gim(&facts)));
        let mut turns = Vec::with_capacity(all.len());
        for id in &all {
            turns.push(self.turn_at(id, id, tried)?);
        }
        let mut gpus = Vec::with_capacity(all.len());
        let mut is_loaded = false;
        for id in &all {
            let facts = self.look_again(id, tried)?.0;
            let Some(pci) = &facts.pci else { continue };
            is_loaded |= pci.driver.as_deref() == Some(gim::DRIVER);
            let most = pci.total_vfs.min(gim::MOST);
            if id == gpu && count > most {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "too-many-functions",
                    tried,
                    format!("the GPU has at most {most} VFs"),
                )
                .remedy("ask for fewer"));
            }
            // The module takes at least one for each GPU.
            let others = (facts.functions.len() as u32).max(u32::from(count > 0));
            gpus.push(self.read_gim(&facts, pci, if id == gpu { count } else { others }, tried)?);
        }
        let is_so = |gpu: &GimGpu| gpu.functions.len() as u32 == gpu.wanted;
        if gpus.iter().all(is_so) {
            return Ok(Prepared { steps: Vec::new(), changed: all, _turns: turns });
        }
        for id in &all {
            refuse_if_used(id, &self.snapshot(), tried)?;
        }
        if count == 0 && gpus.iter().any(|gpu| gpu.wanted > 0) {
            let others: Vec<String> = gpus
                .iter()
                .filter(|gpu| gpu.wanted > 0)
                .map(|gpu| gpu.address.to_string())
                .collect();
            return Err(Error::new(
                ErrorKind::NotSupported,
                "module-wide",
                tried,
                format!(
                    "GIM gives each of its GPUs at least one VF, and {} have some",
                    others.join(", ")
                ),
            )
            .remedy("ask for 1, or unload gim when no GPU of it is needed"));
        }
        let steps =
            gim::plan(&gpus, is_loaded).map_err(|error| failure::of_scan(tried, error.into()))?;
        Ok(Prepared { steps, changed: all, _turns: turns })
    }

    /// A GPU of GIM, with what undoing is to give back.
    fn read_gim(
        &self,
        facts: &GpuFacts,
        pci: &PciFacts,
        wanted: u32,
        tried: &str,
    ) -> Result<GimGpu> {
        let lane = LaneKey::Function(pci.address);
        let reader = Reader::new(&*self.executor, &lane, Deadline::after(self.timing.read));
        let autoprobe = sriov::device(pci.address)
            .map_err(Into::into)
            .and_then(|device| reader.read(&device, vec![Read::text("sriov_drivers_autoprobe")]))
            .map_err(|error| failure::of_scan(tried, error))?
            .text();
        let functions = facts.functions.iter();
        let functions = functions
            .map(|function| Ok(self.read_binding(function.address, tried)?.function))
            .collect::<Result<Vec<_>>>()?;
        let autoprobe = autoprobe.as_deref() == Some("1");
        Ok(GimGpu { address: pci.address, functions, wanted, autoprobe })
    }

    /// What is on a GPU now, not at the last event.
    fn look_again(
        &self,
        gpu: &GpuId,
        tried: &str,
    ) -> Result<(std::sync::Arc<GpuFacts>, std::sync::Arc<Snapshot>)> {
        self.try_scan_gpu(gpu).map_err(|error| failure::of_scan(tried, error))?;
        let facts = self.publisher.facts(gpu).ok_or_else(|| failure::no_such_gpu(tried, gpu))?;
        Ok((facts, self.snapshot()))
    }

    fn run_configuration(
        &self,
        gpu: &GpuId,
        prepared: Prepared<'_>,
        control: &Control,
        tried: String,
    ) -> Result<()> {
        if prepared.steps.is_empty() {
            return Ok(());
        }
        let plan = Plan {
            id: Uuid::new_v4(),
            purpose: tried.clone(),
            gpu: gpu.clone(),
            vgpu: None,
            generation: None,
            base_revision: self.snapshot().revision(),
            steps: prepared.steps,
        };
        let mut result = self.run(&plan, control, self.timing.write);
        if let Err(failed) = &mut result {
            self.owe(gpu, std::mem::take(&mut failed.owed));
        }
        self.refresh_host(gpu);
        for changed in &prepared.changed {
            if changed != gpu {
                self.scan_gpu(changed);
            }
            let is_nvidia =
                self.publisher.facts(changed).is_some_and(|facts| nvidia::has_functions(&facts));
            if let (true, Some(address)) = (is_nvidia, changed.pci()) {
                // What it says is shown as it is, also after a failure.
                let _ = self.ask_smi_about(address);
            }
        }
        let context = Context { has_driver: true, has_free_instances: false };
        result.map_err(|failed| failure::of_plan(tried, failed, context))
    }
}

struct Prepared<'a> {
    steps: Vec<Step>,
    /// The GPUs that it changes.
    changed: Vec<GpuId>,
    _turns: Vec<Turn<'a>>,
}

/// Whether a GPU's VFs come with AMD's GIM.
pub(super) fn is_gim(facts: &GpuFacts) -> bool {
    facts.pci.as_ref().is_some_and(framework::comes_with_gim)
}

/// Refuses to change the VFs of a GPU while one is in use.
pub(super) fn refuse_if_used(gpu: &GpuId, snapshot: &Snapshot, tried: &str) -> Result<()> {
    if let Some(vgpu) = snapshot.vgpus_of(gpu).next() {
        return Err(Error::new(
            ErrorKind::Busy,
            "functions-in-use",
            tried,
            format!(
                "vGPUs are on GPU {gpu} ({}), among them {}{}",
                snapshot.vgpu_count_of(gpu),
                vgpu.uuid,
                if vgpu.managed { "" } else { ", which is someone else's" }
            ),
        )
        .remedy("remove them first; a count changes only by way of 0"));
    }
    let functions = snapshot.gpu(gpu).map(|gpu| &gpu.functions[..]).unwrap_or_default();
    let used: Vec<String> = functions
        .iter()
        .filter(|function| function.state != FunctionState::Free)
        .map(|function| {
            let driver = function.driver.as_deref().unwrap_or("no driver");
            format!("{} ({driver})", function.address)
        })
        .collect();
    if used.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Busy,
        "functions-used-by-host",
        tried,
        format!("VFs are used by the host or changing: {}", used.join(", ")),
    )
    .remedy("unbind them from the host's drivers first"))
}

fn of_obstacle(tried: &str, obstacle: &Obstacle) -> Error {
    let (kind, code, remedy) = match obstacle {
        Obstacle::Wipes { .. } => {
            (ErrorKind::Busy, "would-end-vgpus", "remove them first, or leave that as it is")
        }
        Obstacle::Unable(_) => {
            (ErrorKind::NotSupported, "unable", "see vgpuctl show GPU for what it has")
        }
        Obstacle::Unknown => (
            ErrorKind::NotSupported,
            "modes-unknown",
            "see that nvidia-smi runs, and give its path under [tools] in host.toml",
        ),
        Obstacle::Contradiction(_) => {
            (ErrorKind::InvalidArgument, "contradiction", "ask for the one or the other")
        }
    };
    Error::new(kind, code, tried, obstacle.to_string()).remedy(remedy)
}

fn tried(gpu: &GpuId, wish: &Configure) -> String {
    let on = |on: bool| if on { "on" } else { "off" };
    let mut parts = Vec::new();
    parts.extend(wish.functions.map(|count| format!("{count} VFs")));
    parts.extend(wish.mig.map(|mig| format!("MIG {}", on(mig))));
    parts.extend(wish.instances.as_ref().map(|shapes| {
        let names: Vec<String> = shapes.iter().map(ToString::to_string).collect();
        match names.len() {
            0 => "no GPU instances".to_owned(),
            _ => format!("the GPU instances {}", names.join(", ")),
        }
    }));
    parts.extend(wish.heterogeneous.map(|mixed| format!("heterogeneous mode {}", on(mixed))));
    format!("configuring GPU {gpu} for {}", parts.join(", "))
}
