//! Framework `mdev`: mediated devices, by
//! `<parent>/mdev_supported_types/<type>/create` and `<parent>/<uuid>/remove`
//! (`Documentation/driver-api/vfio-mediated-device.rst`).

use std::{collections::BTreeMap, sync::Arc};

use uuid::Uuid;

use crate::{
    claims::Claim,
    model::{Framework, GpuId, Profile, Reason, ReasonCode, TypeId, Vgpu, VgpuState},
    plan::{Expect, Step, StepOp, Undo},
    scan::{GpuFacts, MdevFacts, TypeFacts, text},
    sys::{InvalidPath, LaneKey, SysPath, WriteAttr},
};

use super::View;

/// The profiles of a GPU: its parents' types together. `vgpus` are those on it,
/// where they matter (see [`super::needs_vgpus`]).
pub fn profiles(facts: &GpuFacts, view: View<'_>, vgpus: &[Arc<Vgpu>]) -> Vec<Profile> {
    let gpu = &facts.id;
    let mut offered: BTreeMap<&TypeId, (&Arc<TypeFacts>, u32)> = BTreeMap::new();
    for (id, (facts, available)) in facts.parents.iter().flat_map(|parent| &parent.types) {
        offered.entry(id).or_insert((facts, 0)).1 += available;
    }
    // Types of one size (Q, A, B, C) take each other's place.
    let placed: Vec<(Uuid, u64)> = vgpus
        .iter()
        .filter_map(|vgpu| {
            let (facts, _) = offered.get(vgpu.profile.as_ref()?)?;
            Some((vgpu.uuid, text::framebuffer(&facts.description)))
        })
        .collect();
    let has_free_parent =
        facts.parents.iter().any(|parent| !vgpus.iter().any(|vgpu| vgpu.parent == parent.name));
    let vfs = facts.functions.len();
    offered
        .into_iter()
        .map(|(id, (facts, available))| {
            // Few drivers say how many fit: otherwise it is the most that was
            // ever seen available.
            let stated = text::max_instance(&facts.description);
            let total = stated.unwrap_or_else(|| view.totals.of(gpu, id).max(available));
            // Each free VF offers one, however few the GPU has left.
            let framebuffer = text::framebuffer(&facts.description);
            let same = placed.iter().filter(|(_, size)| *size == framebuffer);
            let taken = same.count() as u32;
            let available =
                stated.map_or(available, |all| available.min(all.saturating_sub(taken)));
            let name = facts.name.clone().unwrap_or_else(|| id.to_string());
            Profile {
                id: id.clone(),
                short_name: text::short_name(id.as_str(), &name),
                name,
                framework: Framework::Mdev,
                description: facts.description.clone(),
                device_api: facts.device_api.clone(),
                framebuffer,
                total,
                available,
                reason: (available == 0).then(|| {
                    locked(id, framebuffer, &placed).unwrap_or_else(|| {
                        if vfs > 0 && !has_free_parent { no_free_function(vfs) } else { full() }
                    })
                }),
            }
        })
        .collect()
}

/// Why a type has none left, where NVIDIA's driver puts only one size on a GPU
/// and vGPUs of another are there.
fn locked(id: &TypeId, size: u64, placed: &[(Uuid, u64)]) -> Option<Reason> {
    const NAMED: usize = 4;
    let is_nvidia = id.as_str().starts_with("nvidia-");
    let (_, other) = placed.iter().find(|(_, other)| is_nvidia && *other != size)?;
    let named: Vec<String> = placed.iter().take(NAMED).map(|(uuid, _)| uuid.to_string()).collect();
    let more = placed.len().saturating_sub(NAMED);
    let (whose, lock) = if placed.len() == 1 { ("vGPU", "locks") } else { ("vGPUs", "lock") };
    Some(Reason {
        code: ReasonCode::LockedToSize,
        text: format!(
            "{whose} {}{} {lock} the GPU to profiles of {} GiB, as the driver puts only one size on a \
             GPU; remove what is there, or use such a profile",
            named.join(", "),
            if more > 0 { format!(" and {more} more") } else { String::new() },
            other >> 30
        ),
    })
}

fn no_free_function(functions: usize) -> Reason {
    let text = format!("each of the {functions} VFs carries a vGPU; remove one of them");
    Reason { code: ReasonCode::NoFreeFunction, text }
}

fn full() -> Reason {
    Reason {
        code: ReasonCode::Full,
        text: "the driver has no instance of this type left: vGPUs on the same GPU take its \
               place, possibly of other types; remove one of them"
            .into(),
    }
}

/// An mdev as a vGPU.
pub fn vgpu(gpu: &GpuId, mdev: &MdevFacts, claim: Option<&Claim>) -> Vgpu {
    let state = match (&mdev.type_id, super::state(claim, mdev.driver.is_some())) {
        (None, VgpuState::Active) => VgpuState::Creating,
        (None, VgpuState::Broken) => VgpuState::Removing,
        (_, state) => state,
    };
    Vgpu {
        uuid: mdev.uuid,
        name: claim.and_then(|claim| claim.name.clone()),
        gpu: gpu.clone(),
        profile: mdev.type_id.clone().or_else(|| claim.map(|claim| claim.profile.clone())),
        framework: Framework::Mdev,
        state,
        addresses: Vec::new(),
        parent: mdev.parent.clone(),
        iommu_group: mdev.group,
        nodes: super::nodes(
            mdev.group.filter(|_| mdev.has_group_node),
            mdev.vfio_device.as_deref(),
            mdev.has_cdev,
        ),
        owner_uid: claim.map_or(0, |claim| claim.owner_uid),
        managed: claim.is_some(),
        inode: mdev.inode,
    }
}

/// The parent that is to carry a new mdev: the first that has one available.
pub fn choose_parent<'a>(facts: &'a GpuFacts, id: &TypeId) -> Option<&'a str> {
    let offers = |available_only: bool| {
        facts.parents.iter().find(|parent| {
            parent.types.get(id).is_some_and(|(_, available)| !available_only || *available > 0)
        })
    };
    // With none left the kernel is asked all the same: its answer is newer.
    offers(true).or_else(|| offers(false)).map(|parent| parent.name.as_str())
}

/// The device's directory, below its parent: `/sys/bus/mdev/devices` loses it
/// while a removal still waits (measured on Linux 6.12).
///
/// # Errors
/// When the parent's name is no path element.
pub fn device(parent: &str, uuid: Uuid) -> Result<SysPath, InvalidPath> {
    SysPath::new(format!("class/mdev_bus/{parent}/{uuid}"))
}

/// The steps that create an mdev.
///
/// # Errors
/// When a name is no path element.
pub fn plan_create(
    gpu: &GpuId,
    parent: &str,
    id: &TypeId,
    uuid: Uuid,
) -> Result<Vec<Step>, InvalidPath> {
    let types = SysPath::new(format!("class/mdev_bus/{parent}/mdev_supported_types"))?;
    let device = device(parent, uuid)?;
    Ok(vec![Step {
        lane: LaneKey::Gpu(gpu.clone()),
        op: StepOp::Write(WriteAttr {
            path: types.join(&format!("{id}/create"))?,
            value: uuid.to_string(),
        }),
        expect: Expect::Link { path: device.join("driver")?, name: None },
        undo: vec![remove(&device, uuid)?],
    }])
}

/// The steps that remove an mdev. Its removal waits for its holder and takes
/// that mdev alone: it has a lane of its own.
///
/// # Errors
/// When the parent's name is no path element.
pub fn plan_remove(parent: &str, uuid: Uuid) -> Result<Vec<Step>, InvalidPath> {
    let device = device(parent, uuid)?;
    let Undo { lane, write } = remove(&device, uuid)?;
    Ok(vec![Step {
        lane,
        op: StepOp::Write(write),
        expect: Expect::Gone { path: device },
        undo: Vec::new(),
    }])
}

fn remove(device: &SysPath, uuid: Uuid) -> Result<Undo, InvalidPath> {
    Ok(Undo {
        lane: LaneKey::Mdev(uuid),
        write: WriteAttr { path: device.join("remove")?, value: "1".into() },
    })
}
