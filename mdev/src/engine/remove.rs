//! Removing a vGPU.

use std::time::Duration;

use nix::errno::Errno;
use uuid::Uuid;

use crate::{
    claims::{Claim, Phase},
    error::{Error, ErrorKind, Result},
    execute::Cause,
    framework::{mdev, nvidia, nvidia_vf, sriov},
    model::{Framework, InUse, NodeKind, Vgpu},
    plan::{Plan, StepOp},
    refusal::Context,
    request::{Control, RemoveOptions},
    scan::{Reader, text},
    sys::{Deadline, LaneKey, Op, OpError, Read},
};

use super::{Engine, failure};

/// How long a forced removal waits for the holder to let go.
const FORCED_LIMIT: Duration = Duration::from_secs(24 * 3600);

impl Engine {
    /// Removes a vGPU of ours.
    ///
    /// # Errors
    /// When it is foreign, held or the kernel refuses.
    pub fn remove(&self, uuid: Uuid, options: RemoveOptions, control: &Control) -> Result<()> {
        let tried = format!("removing vGPU {uuid}");
        let find = || match self.snapshot().vgpu(uuid) {
            None => Err(failure::no_such_vgpu(&*tried)),
            Some(vgpu) if !vgpu.managed => Err(failure::foreign(&*tried, vgpu)),
            Some(vgpu) => Ok(vgpu.clone()),
        };
        let gpu = find()?.gpu.clone();
        // A forced removal can wait for ever: it takes its vGPU alone.
        let turn = if options.force { None } else { Some(self.turn(&gpu, &tried)?) };
        // Somebody may have removed it meanwhile.
        let vgpu = &find()?;
        let Some(work) = self.work_on(uuid) else {
            return Err(Error::new(
                ErrorKind::Busy,
                "being-removed",
                tried,
                "it is being made or removed already",
            ));
        };
        if let Some(claim) = self.claims.get(uuid) {
            self.end_hung_removal(&claim);
        }
        let claim = self.claims.begin_removal(uuid)?;
        let result = self.remove_claimed(vgpu, &claim, options, control, &tried);
        match &result {
            Ok(()) if claim.framework == Framework::Mdev => {
                let release = || drop(self.claims.release(uuid));
                self.scan_mdev(&vgpu.gpu, &vgpu.parent, uuid, |_| release());
                release();
            }
            Ok(()) => self.scan_gpu_without(&vgpu.gpu, uuid),
            // It may still hang: a scan ends the claim or the removal.
            Err(error) if error.kind() == ErrorKind::Stuck => {}
            Err(_) => self.claims.end_removal(uuid),
        }
        drop(work);
        if result.is_err() {
            match vgpu.framework {
                Framework::Mdev => self.scan_mdev(&vgpu.gpu, &vgpu.parent, uuid, |_| {}),
                Framework::NvidiaVf | Framework::Sriov | Framework::Passthrough => {
                    self.scan_gpu(&vgpu.gpu)
                }
            }
        }
        drop(turn);
        // Whoever was faster, and whatever failed: it is gone, as was asked. A
        // function that is gone has still to be given back.
        let is_gone = claim.framework == Framework::Mdev && self.snapshot().vgpu(uuid).is_none();
        if is_gone { Ok(()) } else { result }
    }

    /// Makes a vGPU removable again whose removal hung and came back with
    /// something still to be done. Nobody works on it.
    pub(super) fn end_hung_removal(&self, claim: &Claim) {
        if claim.phase != Phase::Removing {
            return;
        }
        let functions = claim.functions.iter().map(|f| LaneKey::Function(f.address));
        let mut lanes = functions.chain([LaneKey::Mdev(claim.uuid)]);
        // A lane that hangs says so at once.
        let hangs = |lane: LaneKey| {
            let nothing = Op::ReadBatch(Vec::new());
            self.executor.run(&lane, nothing, Deadline::after(self.timing.read)).is_err()
        };
        if !lanes.any(hangs) {
            self.claims.end_removal(claim.uuid);
        }
    }

    fn remove_claimed(
        &self,
        vgpu: &Vgpu,
        claim: &Claim,
        options: RemoveOptions,
        control: &Control,
        tried: &str,
    ) -> Result<()> {
        if !options.force {
            self.refuse_if_seen_held(vgpu, tried)?;
        }
        let path = |error: crate::sys::InvalidPath| failure::of_scan(tried, error.into());
        let mut steps = Vec::new();
        if claim.framework == Framework::Mdev {
            steps = mdev::plan_remove(&vgpu.parent, vgpu.uuid).map_err(path)?;
        }
        for (n, function) in claim.functions.iter().enumerate() {
            let lane = LaneKey::Function(function.address);
            let reader = Reader::new(&*self.executor, &lane, Deadline::after(self.timing.read));
            let device = sriov::device(function.address).map_err(path)?;
            let mut r = reader
                .read(
                    &device,
                    vec![
                        Read::inode(""),
                        Read::link("driver"),
                        Read::text("nvidia/current_vgpu_type"),
                    ],
                )
                .map_err(|error| failure::of_scan(tried, error))?;
            let (inode, driver) = (r.inode(), r.link());
            let carried = r.text().as_deref().and_then(text::count).and_then(nvidia::type_id);
            let is_other_device = claim.generation.as_ref().map(|known| known.inode) != inode
                && claim.generation.is_some();
            let is_other_type =
                claim.framework == Framework::NvidiaVf && carried.as_ref() != Some(&claim.profile);
            // Addresses are used again: what is there now may be another's.
            if n == 0 && (is_other_device || is_other_type) {
                return Err(Error::new(
                    ErrorKind::BadState,
                    "other-generation",
                    tried,
                    format!(
                        "function {} is no longer the one that was given out",
                        function.address
                    ),
                )
                .remedy("nothing is left to do"));
            }
            if claim.framework == Framework::NvidiaVf {
                steps.extend(nvidia_vf::plan_remove(function).map_err(path)?);
                continue;
            }
            let on_vfio =
                driver.filter(|driver| self.with_view(|view| view.is_vfio_driver(driver)));
            steps.extend(sriov::plan_unbind(function, on_vfio.as_deref()).map_err(path)?);
        }
        let group = vgpu.nodes.iter().find(|node| node.kind == NodeKind::Group);
        if let (false, Some(group), Some(first)) = (options.force, group, steps.first_mut())
            && let StepOp::Write(write) = &first.op
        {
            let group = super::device::node(&group.path, tried)?;
            first.op = StepOp::WriteUnlessHeld { write: write.clone(), group };
        }
        let plan = Plan {
            id: Uuid::new_v4(),
            purpose: tried.to_owned(),
            gpu: vgpu.gpu.clone(),
            vgpu: Some(vgpu.uuid),
            generation: claim.generation.clone(),
            base_revision: self.snapshot().revision(),
            steps,
        };
        let limit = if options.force { FORCED_LIMIT } else { self.timing.write };
        match self.run(&plan, control, limit) {
            Ok(()) => Ok(()),
            Err(failed) if is_held(&failed.cause) => {
                self.note_use(vgpu.uuid, InUse::Yes);
                Err(match self.known_holder(vgpu, tried)? {
                    Some(holder) => held(vgpu, tried).held_by(holder),
                    None => held(vgpu, tried),
                })
            }
            Err(failed) => Err(failure::of_plan(
                tried,
                failed,
                Context { has_driver: true, has_free_instances: false },
            )),
        }
    }

    /// Refuses to remove what a scan of descriptors shows as held.
    ///
    /// Needed only where there are cdevs: an open one that is not bound yet stays
    /// invisible to the group. Else the kernel's word is both the quicker and the
    /// surer answer, since a group opens once; the removal asks for it in the
    /// turn in which it writes, when the claim is marked as being removed.
    fn refuse_if_seen_held(&self, vgpu: &Vgpu, tried: &str) -> Result<()> {
        let has_cdev = vgpu.nodes.iter().any(|node| node.kind == NodeKind::Cdev);
        match has_cdev.then(|| self.known_holder(vgpu, tried)).transpose()?.flatten() {
            Some(holder) => Err(held(vgpu, tried).held_by(holder)),
            None => Ok(()),
        }
    }
}

/// Whether a removal was refused since the device's group is open.
fn is_held(cause: &Cause) -> bool {
    matches!(cause, Cause::Op(OpError::Kernel { path, errno: Errno::EBUSY, .. }) if path.starts_with("/dev/"))
}

fn held(vgpu: &Vgpu, tried: &str) -> Error {
    let node = vgpu.nodes.first().map(|node| format!("/dev/{}", node.path)).unwrap_or_default();
    Error::new(ErrorKind::Busy, "held", tried, "a process uses it")
        .at(node)
        .remedy("stop the guest that uses it")
}
