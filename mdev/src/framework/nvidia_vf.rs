//! Framework `nvidia-vf`: NVIDIA's vendor-specific VFIO. A VF carries a vGPU
//! while its type's number stands in `nvidia/current_vgpu_type`, and stays on
//! NVIDIA's driver, which is also its VFIO driver: it is never bound to another,
//! since what is unbound is broken until the VFs are made anew.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    claims::ClaimedFunction,
    model::{
        Framework, Function, FunctionState, GpuId, NvidiaVgpu, PciAddress, Profile, TypeId, Vgpu,
    },
    plan::{Expect, Step, StepOp, Undo},
    scan::{FunctionFacts, GpuFacts, VendorFacts, text},
    sys::{InvalidPath, LaneKey, WriteAttr},
};

use super::{
    Offer, View,
    nvidia::{self, Division, Functions, Placed},
    sriov::device,
};

/// What a GPU offers: the types that its VFs list, and those that they listed
/// earlier, since a list loses what no longer fits. Types that were never seen,
/// since the GPU was never seen empty, come from the catalog.
pub fn offer(facts: &GpuFacts, view: View<'_>, functions: &[Function]) -> Offer {
    let carried: Vec<(&FunctionFacts, &VendorFacts)> =
        facts.functions.iter().filter_map(|f| Some((f, f.vendor.as_ref()?))).collect();
    if carried.is_empty() {
        return nvidia::offer_without_types(facts, view, Framework::NvidiaVf);
    }
    let free: BTreeSet<PciAddress> =
        functions.iter().filter(|f| f.state == FunctionState::Free).map(|f| f.address).collect();
    let mut listing: BTreeMap<u32, (u32, &str)> = BTreeMap::new();
    for (function, vendor) in &carried {
        for (number, name) in &vendor.creatable {
            let (count, _) = listing.entry(*number).or_insert((0, name));
            *count += u32::from(free.contains(&function.address));
        }
    }
    let model = nvidia::model(facts);
    let catalog = nvidia::catalog_types(model);
    let seen = view.totals.seen_types(&facts.id);
    let all = carried.len() as u32;
    // VFs of it that are used otherwise change nothing of where the driver places.
    let hardware = facts.pci.as_ref().map_or(0, |pci| pci.total_vfs);
    let mut profiles: BTreeMap<TypeId, (Profile, u32)> = BTreeMap::new();
    for (id, ty) in &catalog {
        // An edition can have fewer than the catalog; MIG-backed ones come and go.
        if !seen.complete || text::instance_of_name(&ty.name).is_some() {
            let profile = nvidia::catalog_profile(id.clone(), ty, Framework::NvidiaVf);
            profiles.insert(id.clone(), (profile, 0));
        }
    }
    let listed = listing.iter().filter_map(|(n, (_, name))| Some((nvidia::type_id(*n)?, *name)));
    let known = seen.names.iter().map(|(id, name)| (id.clone(), name.as_str()));
    let largest = |names: &mut dyn Iterator<Item = &str>| {
        names.map(text::framebuffer_of_name).max().unwrap_or(0)
    };
    let nominal = model.map_or_else(
        || {
            let names = seen.names.values().map(String::as_str);
            largest(&mut names.chain(listing.values().map(|(_, name)| *name)))
        },
        |model| u64::from(model.framebuffer_gib) << 30,
    );
    for (id, name) in known.chain(listed) {
        let size = text::framebuffer_of_name(name);
        let by_size = nominal.checked_div(size).unwrap_or(0);
        let by_size = u32::try_from(by_size).unwrap_or(u32::MAX);
        // How many fit, no attribute says.
        let same = catalog.get(&id).filter(|ty| u64::from(ty.gib) << 30 == size);
        let profile = Profile {
            short_name: text::short_name(id.as_str(), name),
            name: name.to_owned(),
            framework: Framework::NvidiaVf,
            description: String::new(),
            device_api: super::VFIO_PCI.into(),
            framebuffer: size,
            total: same.map_or(by_size, |ty| ty.max).min(hardware),
            available: 0,
            reason: None,
            id: id.clone(),
        };
        profiles.insert(id, (profile, 0));
    }
    for (number, (count, _)) in &listing {
        if let Some((_, listed)) = nvidia::type_id(*number).and_then(|id| profiles.get_mut(&id)) {
            *listed = *count;
        }
    }
    let placed = carried
        .iter()
        .filter(|(_, vendor)| vendor.current != 0)
        .filter_map(|(function, vendor)| {
            let id = nvidia::type_id(vendor.current)?;
            let size = profiles.get(&id).map_or(0, |(profile, _)| profile.framebuffer);
            let who = function.address.to_string();
            let (instance, placement) = (vendor.gpu_instance, vendor.placement);
            Some(Placed { who, id, size, instance, placement })
        })
        .collect();
    let division = Division {
        gpu: &facts.id,
        smi: view.smi.get(&facts.id),
        model,
        placed,
        functions: Some(Functions { all, free: free.len() as u32, total: hardware }),
        mig: None,
        has_iommu: nvidia::has_iommu(facts),
        lists: !listing.is_empty(),
        is_named_by_functions: true,
    };
    division.offer(profiles.into_values().collect())
}

fn lists(vendor: &VendorFacts, id: &TypeId) -> bool {
    vendor.creatable.iter().any(|(number, _)| nvidia::type_id(*number).as_ref() == Some(id))
}

/// Whether a VF of the GPU carries a type.
pub fn carries(facts: &GpuFacts, address: PciAddress, id: &TypeId) -> bool {
    let function = facts.functions.iter().find(|function| function.address == address);
    let current = function.and_then(|function| Some(function.vendor.as_ref()?.current));
    current.and_then(nvidia::type_id).as_ref() == Some(id)
}

/// A VF as a vGPU, when it carries a type, or is claimed.
pub fn vgpu(gpu: &GpuId, function: &FunctionFacts, view: View<'_>) -> Option<Vgpu> {
    let vendor = function.vendor.as_ref()?;
    let current = vendor.current;
    let claim = view.claims.of_function(function.address);
    if claim.is_none() && current == 0 {
        return None;
    }
    let parent = function.address.to_string();
    let carried = nvidia::type_id(current).filter(|_| current != 0);
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
        nvidia: (current != 0).then(|| NvidiaVgpu {
            // Without MIG the driver says 0, which is an instance's number as well.
            gpu_instance: vendor.gpu_instance.filter(|id| *id != 0 || is_in_mig_mode(gpu, view)),
            placement: vendor.placement,
            params: vendor.params.clone(),
        }),
    })
}

/// Whether NVIDIA's program says that MIG is on.
fn is_in_mig_mode(gpu: &GpuId, view: View<'_>) -> bool {
    view.smi.get(gpu).and_then(|smi| smi.mig).is_some_and(|mig| mig.current)
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

/// The steps that set the parameters of what a VF carries.
///
/// # Errors
/// Never: an address is a path element.
pub fn plan_params(address: PciAddress, old: &str, new: &str) -> Result<Vec<Step>, InvalidPath> {
    nvidia::plan_params(LaneKey::Function(address), device(address)?, old, new)
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
    Ok(Undo::write(LaneKey::Function(address), write(address, "0")?))
}

fn write(address: PciAddress, number: &str) -> Result<WriteAttr, InvalidPath> {
    let path = device(address)?.join("nvidia/current_vgpu_type")?;
    Ok(WriteAttr { path, value: number.to_owned() })
}
