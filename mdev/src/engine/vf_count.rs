//! Setting how many VFs a GPU has.

use uuid::Uuid;

use crate::{
    error::{Error, ErrorKind, Result},
    framework::sriov,
    model::{FunctionState, GpuId},
    plan::Plan,
    refusal::Context,
    request::Control,
    scan::Reader,
    sys::{Deadline, LaneKey, Read},
};

use super::{Engine, failure};

const NVIDIA: u16 = 0x10de;

impl Engine {
    /// Sets how many VFs a GPU has.
    ///
    /// # Errors
    /// When VFs are in use, the GPU has none, or the kernel refuses or does less.
    pub fn set_vf_count(&self, gpu: &GpuId, count: u32, control: &Control) -> Result<()> {
        let tried = format!("setting the VF count of GPU {gpu} to {count}");
        let _turn = self.turn(gpu, &tried)?;
        // A count change is planned on what is there now, not on the last event.
        self.try_scan_gpu(gpu).map_err(|error| failure::of_scan(&*tried, error))?;
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
        if pci.ids.0 == NVIDIA {
            return Err(Error::new(
                ErrorKind::NotSupported,
                "vendor-tool",
                tried,
                "NVIDIA's driver refuses a count from sysfs, and its VFs must stay with it",
            )
            .remedy("use NVIDIA's /usr/lib/nvidia/sriov-manage -e or -d"));
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
            return Ok(());
        }
        if let Some(vgpu) = snapshot.vgpus_of(gpu).next() {
            return Err(Error::new(
                ErrorKind::Busy,
                "functions-in-use",
                tried,
                format!(
                    "vGPUs are on the GPU ({}), among them {}{}",
                    snapshot.vgpu_count_of(gpu),
                    vgpu.uuid,
                    if vgpu.managed { "" } else { ", which is someone else's" }
                ),
            )
            .remedy("remove them first; a count changes only by way of 0"));
        }
        let used: Vec<String> = known
            .functions
            .iter()
            .filter(|function| function.state != FunctionState::Free)
            .map(|function| {
                let driver = function.driver.as_deref().unwrap_or("no driver");
                format!("{} ({driver})", function.address)
            })
            .collect();
        if !used.is_empty() {
            return Err(Error::new(
                ErrorKind::Busy,
                "functions-used-by-host",
                tried,
                format!("VFs are used by the host or changing: {}", used.join(", ")),
            )
            .remedy("unbind them from the host's drivers first"));
        }
        let lane = LaneKey::Function(pci.address);
        let reader = Reader::new(&*self.executor, &lane, Deadline::after(self.timing.read));
        let mut functions = Vec::new();
        for function in facts.iter().flat_map(|facts| &facts.functions) {
            functions.push(self.read_binding(function.address, &tried)?.function);
        }
        let autoprobe = sriov::device(pci.address)
            .map_err(Into::into)
            .and_then(|device| reader.read(&device, vec![Read::text("sriov_drivers_autoprobe")]))
            .map_err(|error| failure::of_scan(&*tried, error))?
            .text();
        let steps =
            sriov::plan_vf_count(pci.address, &functions, autoprobe.as_deref() == Some("1"), count)
                .map_err(|error| failure::of_scan(&*tried, error.into()))?;
        let plan = Plan {
            id: Uuid::new_v4(),
            purpose: tried.clone(),
            gpu: gpu.clone(),
            vgpu: None,
            generation: None,
            base_revision: snapshot.revision(),
            steps,
        };
        let mut result = self.run(&plan, control, self.timing.write);
        if let Err(failed) = &mut result {
            self.owe(gpu, std::mem::take(&mut failed.owed));
        }
        // Enumerated as well, so that events of the new VFs find their GPU.
        self.refresh_host(gpu);
        let context = Context { has_driver: pci.driver.is_some(), has_free_instances: false };
        result.map_err(|failed| failure::of_plan(tried, failed, context))
    }
}
