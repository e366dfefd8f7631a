//! Framework `mdev`: mediated devices, by
//! `<parent>/mdev_supported_types/<type>/create` and `<parent>/<uuid>/remove`
//! (`Documentation/driver-api/vfio-mediated-device.rst`).

use std::{collections::BTreeMap, sync::Arc};

use uuid::Uuid;

use crate::{
    claims::Claim,
    model::{Framework, GpuId, NvidiaVgpu, Profile, Reason, ReasonCode, TypeId, Vgpu, VgpuState},
    plan::{Expect, Step, StepOp, Undo},
    room::{Kind, Room},
    scan::{GpuFacts, MdevFacts, ParentFacts, TypeFacts, text},
    sys::{InvalidPath, LaneKey, SysPath, WriteAttr},
};

use super::{
    Offer, View,
    nvidia::{self, Division, Functions, Placed},
};

/// What a GPU offers: its parents' types together. `vgpus` are those on it, where
/// they matter (see [`super::needs_vgpus`]).
pub fn offer(facts: &GpuFacts, view: View<'_>, vgpus: &[Arc<Vgpu>]) -> Offer {
    let gpu = &facts.id;
    let mut types: BTreeMap<&TypeId, (&Arc<TypeFacts>, u32)> = BTreeMap::new();
    for (id, (facts, available)) in facts.parents.iter().flat_map(|parent| &parent.types) {
        let (_, sum) = types.entry(id).or_insert((facts, 0));
        *sum = sum.saturating_add(*available);
    }
    if types.is_empty() && nvidia::has_functions(facts) {
        return nvidia::offer_without_types(facts, view, Framework::Mdev);
    }
    let is_nvidia = types.keys().any(|id| id.as_str().starts_with("nvidia-"));
    let profiles: Vec<(Profile, u32)> = types
        .into_iter()
        .map(|(id, (facts, available))| {
            // Few drivers say how many fit: otherwise it is the most that was
            // ever seen available.
            let stated = text::max_instance(&facts.description);
            let name = facts.name.clone().unwrap_or_else(|| id.to_string());
            let profile = Profile {
                id: id.clone(),
                short_name: text::short_name(id.as_str(), &name),
                name,
                framework: Framework::Mdev,
                description: facts.description.clone(),
                device_api: facts.device_api.clone(),
                framebuffer: text::framebuffer(&facts.description),
                total: stated.unwrap_or_else(|| view.totals.of(gpu, id).max(available)),
                available: 0,
                reason: None,
            };
            (profile, available)
        })
        .collect();
    // Each free VF offers one, however few the GPU has left.
    let on_functions = facts.parents.iter().any(|parent| parent.name != gpu.to_string());
    let is_free = |parent: &ParentFacts| !vgpus.iter().any(|vgpu| vgpu.parent == parent.name);
    let free = facts.parents.iter().filter(|parent| is_free(parent)).count() as u32;
    if !is_nvidia {
        return shared(profiles, (on_functions && !vgpus.is_empty()).then_some(free), vgpus);
    }
    // Where each lies the driver does not say, but that it follows from the order
    // in which they were made, in which the kernel gave their inodes.
    let mut in_order: Vec<&Arc<Vgpu>> = vgpus.iter().collect();
    in_order.sort_by_key(|vgpu| vgpu.inode);
    let placed = in_order
        .into_iter()
        .filter_map(|vgpu| {
            let id = vgpu.profile.clone()?;
            let (profile, _) = profiles.iter().find(|(profile, _)| profile.id == id)?;
            let size = profile.framebuffer;
            let who = vgpu.uuid.to_string();
            Some(Placed { who, id, size, instance: None, placement: None })
        })
        .collect();
    let division = Division {
        gpu,
        smi: view.smi.get(gpu),
        model: nvidia::model(facts),
        placed,
        functions: on_functions.then_some(Functions {
            all: facts.functions.len() as u32,
            free,
            total: facts.pci.as_ref().map_or(0, |pci| pci.total_vfs),
        }),
        has_iommu: !on_functions || nvidia::has_iommu(facts),
        mig: None,
        lists: true,
        is_named_by_functions: false,
    };
    division.offer(profiles)
}

/// The offer of a GPU whose driver counts what its types share.
fn shared(profiles: Vec<(Profile, u32)>, free: Option<u32>, vgpus: &[Arc<Vgpu>]) -> Offer {
    let kinds = profiles
        .iter()
        .map(|(profile, available)| Kind {
            id: profile.id.clone(),
            size: profile.framebuffer,
            total: profile.total,
            offered: *available,
            whole: false,
            instance: None,
        })
        .collect();
    let room = Room::shared(kinds, free);
    let mut profiles: Vec<Profile> = profiles.into_iter().map(|(profile, _)| profile).collect();
    for (place, profile) in profiles.iter_mut().enumerate() {
        profile.available = room.available(place);
        if profile.available == 0 {
            profile.reason = Some(match free {
                Some(0) => no_free_function(vgpus.len()),
                _ => aperture(&profile.description).unwrap_or_else(full),
            });
        }
    }
    Offer { profiles, room }
}

fn no_free_function(functions: usize) -> Reason {
    let text = format!("each of the {functions} VFs carries a vGPU; remove one of them");
    Reason { code: ReasonCode::NoFreeFunction, text }
}

/// Why a type of Intel GVT-g does not fit: its driver divides the graphics
/// aperture (Linux, `drivers/gpu/drm/i915/gvt/aperture_gm.c`).
fn aperture(description: &str) -> Option<Reason> {
    let needs = text::aperture(description)?;
    Some(Reason {
        code: ReasonCode::Aperture,
        text: format!(
            "one takes {} MB of the aperture, {} MB of graphics memory beyond it and {} fences, \
             and less is left: vGPUs on the GPU take the rest, or the firmware's aperture is too \
             small; remove one, use a smaller type, or enlarge the aperture in the firmware",
            needs.low_mb, needs.high_mb, needs.fences
        ),
    })
}

fn full() -> Reason {
    Reason {
        code: ReasonCode::Full,
        text: "the driver has no instance of this type left: vGPUs on the same GPU take its \
 \
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
        nvidia: mdev.params.clone().map(|params| NvidiaVgpu { params, ..NvidiaVgpu::default() }),
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
        undo: vec![Undo::write(LaneKey::Mdev(uuid), remove(&device)?)],
    }])
}

/// The steps that set the parameters of one of NVIDIA's.
///
/// # Errors
/// When the parent's name is no path element.
pub fn plan_params(
    parent: &str,
    uuid: Uuid,
    old: &str,
    new: &str,
) -> Result<Vec<Step>, InvalidPath> {
    nvidia::plan_params(LaneKey::Mdev(uuid), device(parent, uuid)?, old, new)
}

/// The steps that remove an mdev. Its removal waits for its holder and takes
/// that mdev alone: it has a lane of its own.
///
/// # Errors
/// When the parent's name is no path element.
pub fn plan_remove(parent: &str, uuid: Uuid) -> Result<Vec<Step>, InvalidPath> {
    let device = device(parent, uuid)?;
    Ok(vec![Step {
        lane: LaneKey::Mdev(uuid),
        op: StepOp::Write(remove(&device)?),
        expect: Expect::Gone { path: device },
        undo: Vec::new(),
    }])
}

fn remove(device: &SysPath) -> Result<WriteAttr, InvalidPath> {
    Ok(WriteAttr { path: device.join("remove")?, value: "1".into() })
}
