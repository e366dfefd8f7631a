//! Framework `nvidia-vf`: NVIDIA's vendor-specific VFIO. A VF carries a vGPU
//! while its type's number stands in `nvidia/current_vgpu_type`, and stays on
//! NVIDIA's driver, which is also its VFIO driver: it is never bound to another,
//! since what is unbound is broken until the VFs are made anew.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    claims::ClaimedFunction,
    model::{
        Framework, Function, FunctionState, GpuId, PciAddress, Profile, Reason, ReasonCode, TypeId,
        Vgpu,
    },
    plan::{Expect, Step, StepOp, Undo},
    scan::{FunctionFacts, GpuFacts, VendorFacts, text},
    sys::{InvalidPath, LaneKey, WriteAttr},
};

use super::{View, sriov::device};

/// The profiles of a GPU: the types that its VFs list, and those that they
/// listed earlier, since a list loses what no longer fits.
pub fn profiles(facts: &GpuFacts, view: View<'_>, functions: &[Function]) -> Vec<Profile> {
    let mut names = view.totals.names_of(&facts.id);
    let carried = || facts.functions.iter().filter_map(|f| Some((f, f.vendor.as_ref()?)));
    let free: BTreeSet<PciAddress> =
        functions.iter().filter(|f| f.state == FunctionState::Free).map(|f| f.address).collect();
    let mut listing: BTreeMap<TypeId, u32> = BTreeMap::new();
    for (function, vendor) in carried() {
        for (number, name) in &vendor.creatable {
            let Some(id) = type_id(*number) else { continue };
            if free.contains(&function.address) {
                *listing.entry(id.clone()).or_default() += 1;
            }
            names.insert(id, name.clone());
        }
    }
    let sizes: BTreeMap<&TypeId, u64> =
        names.iter().map(|(id, name)| (id, text::framebuffer_of_name(name))).collect();
    // The largest type takes a whole GPU, but may not be on the list any more.
    let known = facts
        .pci
        .as_ref()
        .and_then(|pci| crate::catalog::model(&super::names::model(pci.ids, pci.subsystem)));
    let known = known.map_or(0, |model| u64::from(model.framebuffer_gib) << 30);
    let nominal = sizes.values().copied().fold(known, u64::max);
    let taken: Vec<(PciAddress, u64)> = carried()
        .filter(|(_, vendor)| vendor.current != 0)
        .map(|(function, vendor)| {
            let size = type_id(vendor.current).and_then(|id| sizes.get(&id).copied());
            (function.address, size.unwrap_or(0))
        })
        .collect();
    let used: u64 = taken.iter().map(|(_, size)| size).sum();
    let all = facts.functions.len() as u32;
    names
        .iter()
        .map(|(id, name)| {
            let size = sizes.get(id).copied().unwrap_or(0);
            let fits = |bytes: u64| {
                u32::try_from(bytes.checked_div(size).unwrap_or(0)).unwrap_or(u32::MAX)
            };
            // Each free VF lists it, however few of it still fit.
            let listing = listing.get(id).copied().unwrap_or(0);
            let available = listing.min(fits(nominal.saturating_sub(used)));
            Profile {
                id: id.clone(),
                short_name: text::short_name(id.as_str(), name),
                name: name.clone(),
                framework: Framework::NvidiaVf,
                description: String::new(),
                device_api: super::VFIO_PCI.into(),
                framebuffer: size,
                total: fits(nominal).min(all),
                available,
                reason: (available == 0)
                    .then(|| reason(facts, free.len(), &taken, size, used, nominal)),
            }
        })
        .collect()
}

fn reason(
    facts: &GpuFacts,
    free: usize,
    taken: &[(PciAddress, u64)],
    size: u64,
    used: u64,
    nominal: u64,
) -> Reason {
    let on = |vgpus: &[(PciAddress, u64)]| {
        vgpus.iter().map(|(address, _)| address.to_string()).collect::<Vec<_>>().join(", ")
    };
    if let Some((_, other)) = taken.iter().find(|(_, taken)| *taken != size) {
        let text = format!(
            "what VF {} carries locks the GPU to profiles of {} GiB, as the driver puts only one \
             size on a GPU; remove it, or use such a profile",
            on(taken),
            other >> 30
        );
        return Reason { code: ReasonCode::LockedToSize, text };
    }
    let text = if free == 0 {
        format!("none of {} VFs is free; remove a vGPU", facts.functions.len())
    } else {
        format!(
            "what VF {} carries takes {} of {} GiB, and the driver offers no more; remove one",
            on(taken),
            used >> 30,
            nominal >> 30
        )
    };
    let code = if free == 0 { ReasonCode::NoFreeFunction } else { ReasonCode::Full };
    Reason { code, text }
}

fn lists(vendor: &VendorFacts, id: &TypeId) -> bool {
    vendor.creatable.iter().any(|(number, _)| type_id(*number).as_ref() == Some(id))
}

/// The type id for a number, as mdev would name it.
pub fn type_id(number: u32) -> Option<TypeId> {
    format!("nvidia-{number}").parse().ok()
}

/// Whether a VF of the GPU carries a type.
pub fn carries(facts: &GpuFacts, address: PciAddress, id: &TypeId) -> bool {
    let function = facts.functions.iter().find(|function| function.address == address);
    let current = function.and_then(|function| Some(function.vendor.as_ref()?.current));
    current.and_then(type_id).as_ref() == Some(id)
}

/// A VF as a vGPU, when it carries a type, or is claimed.
pub fn vgpu(gpu: &GpuId, function: &FunctionFacts, view: View<'_>) -> Option<Vgpu> {
    let current = function.vendor.as_ref()?.current;
    let claim = view.claims.of_function(function.address);
    if claim.is_none() && current == 0 {
        return None;
    }
    let parent = function.address.to_string();
    let carried = type_id(current).filter(|_| current != 0);
    let ready = match &claim {
        Some(claim) => carried.as_ref() == Some(&claim.profile),
        None => true,
    };
    Some(Vgpu {
        // Another type at the same address is another vGPU.
        uuid: claim.as_ref().map_or_else(
            || super::foreign_uuid(gpu, &format!("{parent}/{current}")),
            |claim| claim.uuid,
        ),
        name: claim.as_ref().and_then(|claim| claim.name.clone()),
        gpu: gpu.clone(),
        profile: carried.or_else(|| claim.as_ref().map(|claim| claim.profile.clone())),
        framework: Framework::NvidiaVf,
        state: super::state(claim.as_ref(), ready),
        addresses: vec![function.address],
        parent,
        iommu_group: function.group,
        nodes: super::nodes(
            function.group.filter(|_| function.vfio_device.is_some()),
            function.vfio_device.as_deref(),
            function.has_cdev,
        ),
        owner_uid: claim.as_ref().map_or(0, |claim| claim.owner_uid),
        managed: claim.is_some(),
        inode: function.inode,
    })
}

/// The free VF that is to carry a new vGPU: the first that lists the type, or,
/// where none does, the first: the kernel's answer is newer.
pub fn choose_function<'a>(
    facts: &'a GpuFacts,
    functions: &[Function],
    id: &TypeId,
    pinned: Option<PciAddress>,
) -> Option<&'a FunctionFacts> {
    let free = |function: &&FunctionFacts| {
        pinned.is_none_or(|address| address == function.address)
            && functions.iter().any(|known| {
                known.address == function.address && known.state == FunctionState::Free
            })
    };
    let offers = |f: &&FunctionFacts| f.vendor.as_ref().is_some_and(|vendor| lists(vendor, id));
    let all = || facts.functions.iter().filter(|f| f.vendor.is_some()).filter(free);
    all().find(offers).or_else(|| all().next())
}

/// The steps that put a type on a VF.
///
/// # Errors
/// Never: an address is a path element.
pub fn plan_create(address: PciAddress, id: &TypeId) -> Result<Vec<Step>, InvalidPath> {
    let number = id.as_str().strip_prefix("nvidia-").unwrap_or_default();
    Ok(vec![Step { undo: vec![undo(address)?], ..set(address, number)? }])
}

/// The steps that take it off again.
///
/// # Errors
/// Never: an address is a path element.
pub fn plan_remove(function: &ClaimedFunction) -> Result<Vec<Step>, InvalidPath> {
    Ok(vec![set(function.address, "0")?])
}

fn set(address: PciAddress, number: &str) -> Result<Step, InvalidPath> {
    let write = write(address, number)?;
    Ok(Step {
        lane: LaneKey::Function(address),
        expect: Expect::Text { path: write.path.clone(), text: number.to_owned() },
        op: StepOp::Write(write),
        undo: Vec::new(),
    })
}

fn undo(address: PciAddress) -> Result<Undo, InvalidPath> {
    Ok(Undo { lane: LaneKey::Function(address), write: write(address, "0")? })
}

fn write(address: PciAddress, number: &str) -> Result<WriteAttr, InvalidPath> {
    let path = device(address)?.join("nvidia/current_vgpu_type")?;
    Ok(WriteAttr { path, value: number.to_owned() })
}
