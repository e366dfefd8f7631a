//! Which GPUs the host has.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    config::Config,
    model::{GpuId, PciAddress},
    sys::Read,
};

use super::{Reader, ScanError, path, text};

/// What was found on the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostFacts {
    /// The GPUs, each with its mdev parents: itself, or its VFs.
    pub gpus: BTreeMap<GpuId, Vec<String>>,
    /// The VFs of the GPUs.
    pub functions: BTreeMap<PciAddress, PciAddress>,
    /// The PCI drivers that are loaded.
    pub drivers: BTreeSet<String>,
    /// Whether the kernel has the mdev bus.
    pub has_mdev: bool,
}

impl HostFacts {
    /// The GPU that a device belongs to: itself, or the PF of a VF.
    pub fn gpu_of_device(&self, device: &str) -> Option<GpuId> {
        if let Some(address) = text::pci_name(device) {
            let pf = self.functions.get(&address).copied().unwrap_or(address);
            let id = GpuId::Pci(pf);
            return self.gpus.contains_key(&id).then_some(id);
        }
        let id = GpuId::Mdev(device.parse().ok()?);
        self.gpus.contains_key(&id).then_some(id)
    }
}

/// Lists the GPUs of the host: PCI functions by class and by the
/// administrator's word, and every mdev parent. VFs belong to their PF; one
/// that has no `physfn` yet or any more is never a GPU of its own.
///
/// # Errors
/// When the host's lane fails.
pub fn enumerate(reader: Reader<'_>, config: &Config) -> Result<HostFacts, ScanError> {
    let mut readings = reader.read(
        &path("bus")?,
        vec![Read::names("pci/devices"), Read::names("pci/drivers"), Read::inode("mdev")],
    )?;
    let mut devices: Vec<PciAddress> =
        readings.names().iter().filter_map(|name| text::pci_name(name)).collect();
    devices.sort_unstable();
    let drivers = readings.names().into_iter().collect();
    let has_mdev = readings.inode().is_some();
    // The class exists only once the first parent has registered.
    let parents = reader.read(&path("class")?, vec![Read::names("mdev_bus")])?.names();

    let base = path("bus/pci/devices")?;
    let links = devices.iter().map(|device| Read::link(format!("{device}/physfn"))).collect();
    let mut links = reader.read(&base, links)?;
    let mut functions = BTreeMap::new();
    devices.retain(|device| match links.link().as_deref().and_then(text::pci_name) {
        Some(pf) => {
            functions.insert(*device, pf);
            false
        }
        None => true,
    });

    let parent_addresses: BTreeSet<PciAddress> =
        parents.iter().filter_map(|name| text::pci_name(name)).collect();
    let mut gpus = BTreeMap::new();
    for address in gpu_addresses(reader, config, devices, &parent_addresses)? {
        gpus.insert(GpuId::Pci(address), Vec::new());
    }
    for parent in parents {
        let id = match text::pci_name(&parent) {
            Some(address) => GpuId::Pci(functions.get(&address).copied().unwrap_or(address)),
            None => match parent.parse() {
                Ok(name) => GpuId::Mdev(name),
                Err(_) => continue,
            },
        };
        if matches!(id, GpuId::Mdev(_)) {
            gpus.entry(id.clone()).or_default();
        }
        // Parents of excluded GPUs and of VFs without a PF are left out.
        if let Some(listed) = gpus.get_mut(&id) {
            listed.push(parent);
        }
    }
    for listed in gpus.values_mut() {
        listed.sort_by_key(|name| text::pci_name(name));
    }
    functions.retain(|_, pf| gpus.contains_key(&GpuId::Pci(*pf)));
    Ok(HostFacts { gpus, functions, drivers, has_mdev })
}

fn gpu_addresses(
    reader: Reader<'_>,
    config: &Config,
    devices: Vec<PciAddress>,
    parents: &BTreeSet<PciAddress>,
) -> Result<Vec<PciAddress>, ScanError> {
    let base = path("bus/pci/devices")?;
    let reads = devices.iter().map(|device| Read::text(format!("{device}/class"))).collect();
    let mut classes = reader.read(&base, reads)?;
    let classed: Vec<(PciAddress, u32)> = devices
        .into_iter()
        .filter_map(|device| Some((device, text::hex(&classes.text()?)?)))
        .collect();
    // Ids are read only where somebody's rule asks for them, or the class fits.
    let asks_ids = !config.discovery.add.is_empty();
    let candidates: Vec<(PciAddress, u32)> = classed
        .into_iter()
        .filter(|(device, class)| asks_ids || is_gpu_class(*class) || parents.contains(device))
        .collect();
    let mut reads = Vec::with_capacity(candidates.len() * 3);
    for (device, _) in &candidates {
        reads.push(Read::text(format!("{device}/vendor")));
        reads.push(Read::text(format!("{device}/device")));
        // Every VF has this attribute, even while it has no physfn link
        // (drivers/pci/iov.c, sriov_vf_attrs_are_visible).
        reads.push(Read::inode(format!("{device}/sriov_vf_msix_count")));
    }
    let mut readings = reader.read(&base, reads)?;
    let mut found = Vec::new();
    for (address, class) in candidates {
        let vendor = readings.text().as_deref().and_then(text::pci_id);
        let device = readings.text().as_deref().and_then(text::pci_id);
        let is_vf = readings.inode().is_some();
        let (Some(vendor), Some(device), false) = (vendor, device, is_vf) else {
            continue;
        };
        let matches = |selectors: &[crate::config::Selector]| {
            selectors.iter().any(|s| s.matches(address, vendor, device, class))
        };
        let wanted =
            is_gpu_class(class) || parents.contains(&address) || matches(&config.discovery.add);
        if wanted && !matches(&config.discovery.exclude) {
            found.push(address);
        }
    }
    Ok(found)
}

/// Display controllers (0x03xxxx) and processing accelerators (0x1200xx), as
/// the PCI Code and ID Assignment Specification numbers them.
fn is_gpu_class(class: u32) -> bool {
    class >> 16 == 0x03 || class >> 8 == 0x1200
}
