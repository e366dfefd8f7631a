//! Setting the parameters of an NVIDIA vGPU.

use uuid::Uuid;

use crate::{
    error::{Error, ErrorKind, Result},
    framework::{mdev, nvidia_vf},
    model::{Framework, VgpuParams},
    plan::Plan,
    refusal::Context,
    request::Control,
};

use super::{Engine, failure};

impl Engine {
    /// Sets the parameters of a vGPU of ours; they take effect when a VM next
    /// starts with it. Empty ones clear what was set.
    ///
    /// # Errors
    /// When it is foreign, has none, or the driver refuses or takes something
    /// else.
    pub fn set_params(&self, uuid: Uuid, params: &VgpuParams, control: &Control) -> Result<()> {
        let tried = format!("setting the parameters of vGPU {uuid} to {:?}", params.to_string());
        let find = || match self.snapshot().vgpu(uuid) {
            None => Err(failure::no_such_vgpu(&*tried)),
            Some(vgpu) if !vgpu.managed => Err(failure::foreign(&*tried, vgpu)),
            Some(vgpu) => Ok(vgpu.clone()),
        };
        let gpu = find()?.gpu.clone();
        let _turn = self.turn(&gpu, &tried)?;
        let vgpu = find()?;
        let steps = match (vgpu.framework, vgpu.addresses.first(), &vgpu.nvidia) {
            (Framework::NvidiaVf, Some(function), Some(old)) => {
                nvidia_vf::plan_params(*function, &old.params, &params.to_string())
            }
            (Framework::Mdev, _, Some(old)) => {
                mdev::plan_params(&vgpu.parent, uuid, &old.params, &params.to_string())
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::NotSupported,
                    "no-params",
                    tried,
                    "the vGPU has no parameters: they are of NVIDIA's",
                )
                .remedy("see vgpuctl show for what it has"));
            }
        };
        let steps = steps.map_err(|error| failure::of_scan(&*tried, error.into()))?;
        let plan = Plan {
            id: Uuid::new_v4(),
            purpose: tried.clone(),
            gpu: gpu.clone(),
            vgpu: Some(uuid),
            generation: Some(self.generation(vgpu.inode)),
            base_revision: self.snapshot().revision(),
            steps,
        };
        let result = self.run(&plan, control, self.timing.write);
        self.scan_gpu(&gpu);
        let context = Context { has_driver: true, has_free_instances: false };
        result.map_err(|failed| failure::of_plan(tried, failed, context))
    }
}
