//! Setting how many VFs a GPU has, by the kernel itself.

use uuid::Uuid;

use crate::{
    error::{Error, ErrorKind, Result},
    framework::{nvidia, sriov},
    model::GpuId,
    plan::{Plan, Step},
    refusal::Context,
    request::{Configure, Control},
    scan::Reader,
    sys::{Deadline, LaneKey, Read},
};

use super::{Engine, configure, failure};

impl Engine {
    /// Sets how many VFs a GPU has.
    ///
    /// # Errors
    /// When VFs are in use, the GPU has none, or the kernel refuses or does less.
    pub fn set_vf_count(&self, gpu: &GpuId, count: u32, control: &Control) -> Result<()> {
        let tried = format!("setting the VF count of GPU {gpu} to {count}");
        let facts = self.publisher.facts(gpu).ok_or_else(|| failure::no_such_gpu(&*tried, gpu))?;
        // Where the kernel does not, the vendor's program does.
        if nvidia::has_functions(&facts) || configure::is_gim(&facts) {
            let wish = Configure { functions: Some(count), ..Configure::default() };
            return self.configure(gpu, &wish, control);
        }
        let _turn = self.turn(gpu, &tried)?;
        let steps = self.plan_vf_count(gpu, count, &tried)?;
        if steps.is_empty() {
            return Ok(());
        }
        let has_driver = facts.pci.as_ref().is_some_and(|pci| pci.driver.is_some());
        let plan = Plan {
            id: Uuid::new_v4(),
            purpose: tried.clone(),
            gpu: gpu.clone(),
            vgpu: None,
            generation: None,
            base_revision: self.snapshot().revision(),
            steps,
        };
        let mut result = self.run(&plan, control, self.timing.write);
        if let Err(failed) = &mut result {
            self.owe(gpu, std::mem::take(&mut failed.owed));
        }
        // Enumerated as well, so that events of the new VFs find their GPU.
        self.refresh_host(gpu);
        let context = Context { has_driver, has_free_instances: false };
        result.map_err(|failed| failure::of_plan(tried, failed, context))
    }

    /// The steps to a count, by what is there now; the caller has the GPU's turn.
    pub(super) fn plan_vf_count(&self, gpu: &GpuId, count: u32, tried: &str) -> Result<Vec<Step>> {
        // A count change is planned on what is there now, not on the last event.
        self.try_scan_gpu(gpu).map_err(|error| failure::of_scan(tried, error))?;
        let snapshot = self.snapshot();
        let Some(known) = snapshot.gpu(gpu) else {
            return Err(failure::no_such_gpu(tried, gpu));
        };
        let facts = self.publisher.facts(gpu);
        let Some(pci) =
            facts.as_ref().and_then(|facts| facts.pci.as_ref()).filter(|pci| pci.total_vfs > 0)
        else {
            return Err(Error::new(
                ErrorKind::NotSupported,
                "no-sriov",
                tried,
                "the GPU has no SR-IOV, or it is off in the firmware",
            )
            .remedy("turn on SR-IOV in the firmware if the GPU has it"));
        };
        if pci.ids.0 == nvidia::VENDOR {
            return Err(Error::new(
                ErrorKind::NotSupported,
                "vendor-driver",
                tried,
                "the VFs of NVIDIA's GPUs come with NVIDIA's driver, which the GPU is not on",
            )
            .remedy("load NVIDIA's vGPU driver; see dmesg for why it did not bind"));
        }
        if count > pci.total_vfs {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "too-many-functions",
                tried,
                format!("the GPU has at most {} VFs", pci.total_vfs),
            )
            .remedy("ask for fewer"));
        }
        if known.vf_count == count {
            return Ok(Vec::new());
        }
        configure::refuse_if_used(gpu, &snapshot, tried)?;
        let lane = LaneKey::Function(pci.address);
        let reader = Reader::new(&*self.executor, &lane, Deadline::after(self.timing.read));
        let mut functions = Vec::new();
        for function in facts.iter().flat_map(|facts| &facts.functions) {
            functions.push(self.read_binding(function.address, tried)?.function);
        }
        let autoprobe = sriov::device(pci.address)
            .map_err(Into::into)
            .and_then(|device| reader.read(&device, vec![Read::text("sriov_drivers_autoprobe")]))
            .map_err(|error| failure::of_scan(tried, error))?
            .text();
        sriov::plan_vf_count(pci.address, &functions, autoprobe.as_deref() == Some("1"), count)
            .map_err(|error| failure::of_scan(tried, error.into()))
    }
}
