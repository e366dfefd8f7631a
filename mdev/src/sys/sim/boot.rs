//! From a described host to a running kernel: by the same operations that run
//! later, before anybody listens.

use std::sync::Arc;

use nix::errno::Errno;
use uuid::Uuid;

use super::{
    check,
    core::Core,
    gim, mdev, nvidia,
    pci::{self, NewFunction},
    spec::{HeldNode, HolderSpec, HostSpec, MdevKind, MdevSpec, PciSpec, SpecError, SriovSpec},
    sriov,
    state::{
        Driver, Facts, Member, NodeKey, Parent, ParentKey, Pool, Role, Sriov, State, VirtualParent,
    },
};

pub(super) fn boot(spec: &HostSpec) -> Result<Core, SpecError> {
    if let Some(fault) = check::fault(spec) {
        return Err(SpecError::new(fault.message));
    }
    let core = Core::default();
    prepare(&mut core.state(), spec);
    for function in &spec.pci {
        plug(&core, spec, function)?;
    }
    for index in 0..spec.virtual_parents.len() as u16 {
        mdev::announce(&core, ParentKey::Virtual(index), true);
    }
    for existing in &spec.mdevs {
        make_mdev(&core, existing)?;
    }
    for holder in &spec.holders {
        hold(&core, holder)?;
    }
    Ok(core)
}

fn prepare(state: &mut State, spec: &HostSpec) {
    state.iommu = spec.iommu;
    state.vfio = spec.vfio;
    for driver in &spec.vfio_drivers {
        state.drivers.push(Driver {
            name: driver.name.as_str().into(),
            loaded: driver.loaded,
            vfio: true,
            enable_sriov: driver.enable_sriov,
            devices: Default::default(),
        });
    }
    let wanted = spec.pci.iter().filter_map(|function| function.iommu_group);
    wanted.for_each(|group| state.group_numbers.reserve(group));
    let sriov = spec.pci.iter().filter_map(|function| function.sriov.as_ref());
    state.mdev_bus = spec.pci.iter().any(|function| function.mdev.is_some())
        || sriov.into_iter().any(|sriov| sriov.mdev.is_some());
    state.mdev_drivers = spec.mdev_kinds.values().map(|kind| kind.driver.clone()).collect();
    for parent in &spec.virtual_parents {
        if let Some((kind, pool)) = offer(state, spec, Some(&parent.mdev)) {
            let name = parent.name.as_str().into();
            state.virtual_parents.push(VirtualParent { name, parent: Parent::new(kind, pool) });
        }
    }
}

/// Adds one described function with its driver and VFs.
pub(super) fn plug(core: &Core, spec: &HostSpec, function: &PciSpec) -> Result<(), SpecError> {
    let address = function.address;
    let refused = |what: &str, errno: Errno| {
        SpecError::new(format!("{address}: {what} is refused by the kernel: {errno:?}"))
    };
    let new = new_function(&mut core.state(), spec, function);
    gim::describe(core, function);
    pci::add(core, new);
    match function.bound.as_deref() {
        None => pci::attach_any(core, address),
        Some("none") => {}
        Some(driver) => {
            pci::set_override(core, address, driver)
                .and_then(|()| attach_named(core, address, driver))
                .map_err(|errno| refused(driver, errno))?;
        }
    }
    let Some(sriov) = function.sriov.as_ref().filter(|sriov| sriov.enabled > 0) else {
        return Ok(());
    };
    sriov::enable(core, address, sriov.enabled).map_err(|errno| refused("enabled", errno))?;
    for vf in &sriov.vf {
        let Some(at) = check::vf_address(address, sriov, vf.index) else { continue };
        pci::detach(core, at).map_err(|errno| refused("unbinding", errno))?;
        if vf.bound != "none" {
            pci::set_override(core, at, &vf.bound)
                .and_then(|()| attach_named(core, at, &vf.bound))
                .map_err(|errno| refused(&vf.bound, errno))?;
        }
    }
    Ok(())
}

fn attach_named(core: &Core, address: crate::model::PciAddress, name: &str) -> Result<(), Errno> {
    let driver = core.state().driver_named(name).ok_or(Errno::ENODEV)?;
    pci::attach(core, address, driver)
}

fn new_function(state: &mut State, spec: &HostSpec, function: &PciSpec) -> NewFunction {
    let native = function.driver.as_deref().map(|name| driver(state, name));
    let facts = Facts {
        vendor: function.vendor,
        device: function.device,
        subsystem: (function.subsystem_vendor, function.subsystem_device),
        class: function.class,
        revision: function.revision,
        numa_node: function.numa_node,
        boot_vga: function.boot_vga,
        reset_methods: function.reset_methods.clone(),
        native,
        mdev: offer(state, spec, function.mdev.as_ref()),
        carries: None,
    };
    let role = match &function.sriov {
        None => Role::Plain,
        Some(sriov) => {
            let mut pf = capability(state, spec, &facts, sriov);
            // NVIDIA's driver has no sriov_configure (kernel-open/nvidia/nv-pci.c).
            pf.spec.callback &= function.nvidia.is_none();
            Role::Pf(Box::new(pf))
        }
    };
    describe_nvidia(state, function, &facts, &role);
    NewFunction {
        address: function.address,
        facts: Arc::new(facts),
        upstream: function.behind,
        role,
        group: function.iommu_group,
        driver_override: None,
    }
}

/// Makes NVIDIA's GPUs known to their driver.
fn describe_nvidia(state: &mut State, function: &PciSpec, facts: &Facts, role: &Role) {
    if !nvidia::is_gpu(function.vendor, function.class, function.driver.as_deref()) {
        return;
    }
    let address = function.address;
    state.add_nvidia(address, function.nvidia.clone().unwrap_or_default());
    let Some(described) = &function.nvidia else { return };
    let of_vfs = match role {
        Role::Pf(sriov) => [sriov.vf_facts.mdev.as_ref(), sriov.vf_facts.carries.as_ref()],
        _ => [None, None],
    };
    for (_, pool) in of_vfs.into_iter().flatten().chain(&facts.mdev) {
        if let Some(pool) = state.pools.get_mut(*pool) {
            pool.ruled_by = Some(address);
        }
    }
    let driver = facts.native.and_then(|driver| state.drivers.get_mut(driver));
    if let Some(driver) = driver.filter(|_| !described.loaded) {
        driver.loaded = false;
    }
}

/// The host as the next boot finds it.
pub(super) fn next(spec: &HostSpec, state: &State) -> HostSpec {
    let mut next = spec.clone();
    next.boot_id = Uuid::from_u128(spec.boot_id.as_u128().wrapping_add(1));
    next.mdevs.clear();
    next.holders.clear();
    for function in &mut next.pci {
        if let Some(sriov) = &mut function.sriov {
            sriov.enabled = 0;
            sriov.vf.clear();
        }
        let known = state.nvidia.get(&function.address);
        if let (Some(nvidia), Some(known)) = (&mut function.nvidia, known) {
            nvidia.mig_mode = known.mig_at_next_boot();
        }
    }
    next
}

fn capability(state: &mut State, spec: &HostSpec, pf: &Facts, sriov: &SriovSpec) -> Sriov {
    let vf_facts = Facts {
        vendor: pf.vendor,
        device: sriov.vf_device,
        subsystem: pf.subsystem,
        class: sriov.vf_class.unwrap_or(pf.class),
        revision: pf.revision,
        numa_node: pf.numa_node,
        boot_vga: false,
        reset_methods: sriov.vf_reset_methods.clone(),
        native: sriov.vf_driver.as_deref().map(|name| driver(state, name)),
        mdev: offer(state, spec, sriov.mdev.as_ref()),
        carries: offer(state, spec, sriov.vendor.as_ref()),
    };
    Sriov {
        spec: SriovSpec { vf: Vec::new(), vf_reset_methods: Vec::new(), ..sriov.clone() },
        vf_facts: Arc::new(vf_facts),
        autoprobe: sriov.autoprobe,
        count: 0,
    }
}

/// The index of a host driver, which is loaded.
fn driver(state: &mut State, name: &str) -> usize {
    if let Some(known) = state.drivers.iter().position(|driver| *driver.name == *name) {
        return known;
    }
    state.drivers.push(Driver {
        name: name.into(),
        loaded: true,
        vfio: false,
        enable_sriov: false,
        devices: Default::default(),
    });
    state.drivers.len() - 1
}

/// A kind with a pool of its own.
fn offer(
    state: &mut State,
    spec: &HostSpec,
    kind: Option<&String>,
) -> Option<(Arc<MdevKind>, usize)> {
    let kind = spec.mdev_kinds.get(kind?)?.clone();
    state.pools.push(Pool::default());
    Some((kind, state.pools.len() - 1))
}

fn make_mdev(core: &Core, existing: &MdevSpec) -> Result<(), SpecError> {
    let MdevSpec { uuid, parent, type_id } = existing;
    let found = {
        let state = core.state();
        let key = state.parents().find(|key| state.parent_name(*key) == *parent);
        let index = key.and_then(|key| {
            let types = &state.parent(key)?.kind.types;
            types.iter().position(|ty| ty.id == *type_id)
        });
        key.zip(index.and_then(|index| u16::try_from(index).ok()))
    };
    let Some((key, index)) = found else {
        return Err(SpecError::new(format!("mdev {uuid}: {parent} offers no type {type_id}")));
    };
    mdev::create(core, key, index, &uuid.to_string()).map_err(|errno| {
        SpecError::new(format!("mdev {uuid}: {type_id} is refused by {parent}: {errno:?}"))
    })
}

fn hold(core: &Core, holder: &HolderSpec) -> Result<(), SpecError> {
    let HolderSpec { device, pid, command, .. } = holder;
    let (key, bind) = {
        let state = core.state();
        let function = state.function_named(device).map(Member::Pci);
        let member = function.or_else(|| device.parse().ok().map(Member::Mdev));
        let node = member.and_then(|member| match (holder.node, member) {
            (HeldNode::Group, _) => state.group_of(member).map(NodeKey::Group),
            (HeldNode::Cdev, _) => state.live_vfio_of(member).map(NodeKey::Cdev),
            (HeldNode::Drm, Member::Pci(address)) => {
                state.pci.get(&address)?.card.map(NodeKey::Card)
            }
            (HeldNode::Drm, Member::Mdev(_)) => None,
        });
        (node, holder.node == HeldNode::Cdev)
    };
    let key = key.ok_or_else(|| {
        SpecError::new(format!("holder {pid}: {device} has no node that could be held"))
    })?;
    core.take_hold(&key, (*pid, command), bind).map(drop).map_err(|errno| {
        SpecError::new(format!("holder {pid}: /dev/{} cannot be opened: {errno:?}", key.path()))
    })
}
