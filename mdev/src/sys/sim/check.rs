//! What must hold between the parts of a described host.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::PciAddress;

use super::{
    gim, nvidia,
    spec::{HostSpec, PciSpec, SriovSpec},
};

/// The highest IOMMU group that can be asked for.
const LAST_GROUP: u32 = 65_535;

/// What is wrong, and the value by which its line is found.
pub(super) struct Fault {
    pub(super) value: String,
    pub(super) message: String,
}

/// The first thing that does not hold.
pub(super) fn fault(spec: &HostSpec) -> Option<Fault> {
    check(spec).err()
}

fn wrong<T>(value: impl std::fmt::Display, message: String) -> Result<T, Fault> {
    Err(Fault { value: format!("\"{value}\""), message })
}

fn check(spec: &HostSpec) -> Result<(), Fault> {
    for driver in &spec.vfio_drivers {
        name(&driver.name, "a driver")?;
    }
    kinds(spec)?;
    let mut taken = BTreeMap::new();
    for pci in &spec.pci {
        function(spec, pci)?;
        if let Some(message) = gim::fault(spec, pci) {
            return wrong(pci.address, message);
        }
        if taken.insert(pci.address, pci.address).is_some() {
            return wrong(pci.address, format!("{} is described twice", pci.address));
        }
    }
    for pci in &spec.pci {
        if let Some(sriov) = &pci.sriov {
            virtual_functions(spec, pci, sriov, &mut taken)?;
        }
        if let Some(bridge) = pci.behind.filter(|bridge| !earlier(spec, *bridge, pci.address)) {
            return wrong(
                bridge,
                format!("{} lies behind {bridge}, which must be described before it", pci.address),
            );
        }
    }
    for parent in &spec.virtual_parents {
        name(&parent.name, "a virtual parent")?;
        kind(spec, &parent.mdev)?;
    }
    let mut uuids = BTreeSet::new();
    for mdev in &spec.mdevs {
        if !uuids.insert(mdev.uuid) {
            return wrong(mdev.uuid, format!("the mdev {} is described twice", mdev.uuid));
        }
    }
    Ok(())
}

fn kinds(spec: &HostSpec) -> Result<(), Fault> {
    for (key, kind) in &spec.mdev_kinds {
        name(&kind.driver, "a driver")?;
        let mut ids = BTreeSet::new();
        for ty in &kind.types {
            name(&ty.id, "an mdev type")?;
            if ty.aperture.is_some() != kind.aperture.is_some() {
                let what = if kind.aperture.is_some() { "low-mb" } else { "size" };
                return wrong(&ty.id, format!("{} in mdev-kind {key} needs its {what}", ty.id));
            }
            if ty.size == 0 {
                return wrong(&ty.id, format!("the size of {} in mdev-kind {key} is 0", ty.id));
            }
            if !ids.insert(&ty.id) {
                return wrong(&ty.id, format!("mdev-kind {key} has two types {}", ty.id));
            }
        }
    }
    Ok(())
}

fn function(spec: &HostSpec, pci: &PciSpec) -> Result<(), Fault> {
    let address = pci.address;
    if pci.class > 0xff_ffff {
        return wrong(address, format!("the class of {address} has more than 24 bits"));
    }
    if let Some(group) = pci.iommu_group.filter(|group| *group > LAST_GROUP) {
        return wrong(
            address,
            format!("the iommu-group {group} of {address} is above {LAST_GROUP}"),
        );
    }
    if let Some(driver) = &pci.driver {
        name(driver, "a driver")?;
    }
    if let Some(bound) = &pci.bound {
        bound_to(spec, bound)?;
    }
    nvidia(pci)?;
    if let Some(mdev) = &pci.mdev {
        kind(spec, mdev)?;
        if pci.driver.is_none() {
            return wrong(address, format!("{address} has mdev types but no driver to offer them"));
        }
    }
    Ok(())
}

/// What is said of an NVIDIA GPU.
fn nvidia(pci: &PciSpec) -> Result<(), Fault> {
    let (address, Some(said)) = (pci.address, &pci.nvidia) else { return Ok(()) };
    if !nvidia::is_gpu(pci.vendor, pci.class, pci.driver.as_deref()) {
        return wrong(address, format!("{address} is no GPU on NVIDIA's driver"));
    }
    if said.mig_mode && said.mig.is_none() {
        return wrong(address, format!("{address} is in MIG mode, which it does not have"));
    }
    let total = pci.sriov.as_ref().map_or(0, |sriov| sriov.total_vfs);
    if said.missing_vfs.saturating_add(said.late_vfs) > total {
        return wrong(address, format!("more VFs of {address} are missing or late than it has"));
    }
    let enabled = pci.sriov.as_ref().is_some_and(|sriov| sriov.enabled > 0);
    if enabled && !said.loaded {
        return wrong(address, format!("{address} has VFs enabled without its driver"));
    }
    Ok(())
}

fn virtual_functions(
    spec: &HostSpec,
    pci: &PciSpec,
    sriov: &SriovSpec,
    taken: &mut BTreeMap<PciAddress, PciAddress>,
) -> Result<(), Fault> {
    let pf = pci.address;
    if sriov.offset == 0 || (sriov.stride == 0 && sriov.total_vfs > 1) {
        return wrong(
            pf,
            format!("offset or stride of {pf} is 0: its VFs would lie on each other"),
        );
    }
    if let Some(driver) = &sriov.vf_driver {
        name(driver, "a driver")?;
    }
    for offered in sriov.mdev.iter().chain(&sriov.vendor) {
        kind(spec, offered)?;
    }
    if sriov.i915.is_some() && sriov.xe.is_some() {
        return wrong(pf, format!("{pf} is described with both i915 and xe"));
    }
    if (sriov.i915.is_some() || sriov.xe.is_some()) && pci.driver.is_none() {
        return wrong(pf, format!("{pf} has something for VFs but no driver to give it"));
    }
    let most = sriov.driver_limit.unwrap_or(u16::MAX).min(sriov.total_vfs);
    if sriov.enabled > most {
        return wrong(pf, format!("{pf} has {} VFs enabled of {most}", sriov.enabled));
    }
    if sriov.enabled > 0 && (pci.driver.is_none() || pci.bound.is_some()) {
        return wrong(pf, format!("{pf} has VFs enabled but is not bound to a driver of its own"));
    }
    for vf in &sriov.vf {
        bound_to(spec, &vf.bound)?;
        if vf.index >= sriov.enabled {
            return wrong(pf, format!("VF {} of {pf} is bound but not enabled", vf.index));
        }
    }
    for index in 0..sriov.total_vfs {
        // Beyond the last bus the kernel refuses the count; that is no fault.
        let Some(vf) = vf_address(pf, sriov, index) else { break };
        if let Some(other) = taken.insert(vf, pf) {
            return wrong(pf, format!("VF {index} of {pf} lies at {vf}, which belongs to {other}"));
        }
    }
    Ok(())
}

/// Where a VF lies.
pub(super) fn vf_address(pf: PciAddress, sriov: &SriovSpec, index: u16) -> Option<PciAddress> {
    pf.offset_by(u32::from(sriov.offset) + u32::from(sriov.stride) * u32::from(index))
}

fn earlier(spec: &HostSpec, bridge: PciAddress, device: PciAddress) -> bool {
    let place = |wanted| spec.pci.iter().position(|pci| pci.address == wanted);
    place(bridge) < place(device) && place(bridge).is_some()
}

fn kind(spec: &HostSpec, kind: &str) -> Result<(), Fault> {
    if spec.mdev_kinds.contains_key(kind) {
        return Ok(());
    }
    let known: Vec<_> = spec.mdev_kinds.keys().map(String::as_str).collect();
    wrong(kind, format!("there is no [mdev-kind.{kind}]; described are: {}", known.join(", ")))
}

fn bound_to(spec: &HostSpec, driver: &str) -> Result<(), Fault> {
    let loaded = |known: &super::spec::VfioDriverSpec| known.loaded && known.name == driver;
    if driver == "none" || spec.vfio_drivers.iter().any(loaded) {
        return Ok(());
    }
    wrong(driver, format!("bound = {driver:?} is neither \"none\" nor a loaded vfio-driver"))
}

/// A name that can be an element of a path.
fn name(name: &str, what: &str) -> Result<(), Fault> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if (1..=64).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('.') {
        return Ok(());
    }
    wrong(
        name,
        format!("{name:?} cannot name {what}: use 1 to 64 letters, digits, '-', '_' and '.'"),
    )
}
