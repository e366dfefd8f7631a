//! PCI functions: what is read of a PF and of its VFs.
//!
//! `driver_override` and `sriov_numvfs` are not among it: reading them waits
//! for the device's lock, behind whatever hangs there (Linux 6.12,
//! `driver_override_show`, `sriov_numvfs_show`). VFs are counted by their links.

use std::collections::BTreeMap;

use crate::{
    model::PciAddress,
    sys::{Read, ReadBatch, SysPath},
};

use super::{Reader, Readings, ScanError, VendorFacts, path, text, vendor::read_vendor};

/// The driver whose VFs can have a folder `nvidia/`.
const NVIDIA_DRIVER: &str = "nvidia";

/// What is known of a PF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciFacts {
    /// Its address.
    pub address: PciAddress,
    /// Vendor and device id.
    pub ids: (u16, u16),
    /// Subsystem vendor and device id.
    pub subsystem: (u16, u16),
    /// The 24-bit class.
    pub class: u32,
    /// The bound driver.
    pub driver: Option<String>,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// Its IOMMU group.
    pub group: Option<u32>,
    /// The members of that group, itself included.
    pub group_members: Vec<PciAddress>,
    /// Of those, the ones outside its slot that are no bridges: with one of
    /// them the group is not ours to give away.
    pub strangers: Vec<PciAddress>,
    /// Whether the firmware's console is on it (`boot_vga`).
    pub boot_vga: bool,
    /// `modalias`, by which a VFIO variant driver is chosen.
    pub modalias: String,
    /// `sriov_totalvfs`; 0 without SR-IOV.
    pub total_vfs: u32,
    /// The VFs by number, from the `virtfn` links.
    pub functions: BTreeMap<u32, PciAddress>,
    /// The name of its VFIO device, such as `vfio0`, while one is registered.
    pub vfio_device: Option<String>,
    /// Whether that has a node of its own.
    pub has_cdev: bool,
    /// Its XGMI hive, where its driver tells.
    pub hive: Option<String>,
    /// The inode of its directory.
    pub inode: u64,
}

/// What is known of a VF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionFacts {
    /// Its address.
    pub address: PciAddress,
    /// The bound driver.
    pub driver: Option<String>,
    /// Its IOMMU group.
    pub group: Option<u32>,
    /// Whether the kernel has linked it to its PF.
    pub linked: bool,
    /// The name of its VFIO device, while one is registered.
    pub vfio_device: Option<String>,
    /// Whether that has a node of its own.
    pub has_cdev: bool,
    /// The inode of its directory: new at each re-creation.
    pub inode: u64,
    /// What it tells of its vGPU type, under NVIDIA's vendor-specific VFIO.
    pub vendor: Option<VendorFacts>,
}

/// Reads a PF; `None` when it is gone.
///
/// # Errors
/// When its lane fails.
pub fn read_pci(reader: Reader<'_>, address: PciAddress) -> Result<Option<PciFacts>, ScanError> {
    let base = device(address)?;
    let mut r = reader.read(
        &base,
        vec![
            Read::inode(""),
            Read::text("vendor"),
            Read::text("device"),
            Read::text("subsystem_vendor"),
            Read::text("subsystem_device"),
            Read::text("class"),
            Read::text("numa_node"),
            Read::text("boot_vga"),
            Read::text("modalias"),
            Read::text("sriov_totalvfs"),
            Read::link("driver"),
            Read::link("iommu_group"),
            Read::names("iommu_group/devices"),
            Read::names("vfio-dev"),
            Read::names(""),
        ],
    )?;
    let Some(inode) = r.inode() else {
        return Ok(None);
    };
    let id = |r: &mut Readings| r.text().as_deref().and_then(text::pci_id).unwrap_or(0);
    let mut facts = PciFacts {
        address,
        inode,
        ids: (id(&mut r), id(&mut r)),
        subsystem: (id(&mut r), id(&mut r)),
        class: r.text().as_deref().and_then(text::hex).unwrap_or(0),
        numa_node: r.text().as_deref().and_then(text::numa_node),
        boot_vga: r.text().as_deref() == Some("1"),
        modalias: r.text().unwrap_or_default(),
        total_vfs: r.text().as_deref().and_then(text::count).unwrap_or(0),
        driver: r.link(),
        group: r.link().as_deref().and_then(text::count),
        group_members: r.names().iter().filter_map(|name| text::pci_name(name)).collect(),
        strangers: Vec::new(),
        functions: BTreeMap::new(),
        vfio_device: r.names().into_iter().next(),
        has_cdev: false,
        hive: None,
    };
    facts.group_members.sort_unstable();
    let entries = r.names();
    if entries.iter().any(|name| name == "xgmi_hive_info") {
        // drivers/gpu/drm/amd/amdgpu/amdgpu_xgmi.c, amdgpu_xgmi_show_attrs
        let read = Read::text("xgmi_hive_info/xgmi_hive_id");
        facts.hive = reader.read(&base, vec![read])?.text().filter(|id| !id.is_empty());
    }
    let links: Vec<(u32, String)> =
        entries.into_iter().filter_map(|name| Some((text::virtfn(&name)?, name))).collect();
    let reads = links.iter().map(|(_, name)| Read::link(name.clone())).collect();
    let mut targets = reader.read(&base, reads)?;
    for (number, _) in links {
        if let Some(vf) = targets.link().as_deref().and_then(text::pci_name) {
            facts.functions.insert(number, vf);
        }
    }
    facts.strangers = read_strangers(reader, &facts)?;
    if let Some(name) = &facts.vfio_device {
        facts.has_cdev = reader
            .read(&base, vec![Read::inode(format!("vfio-dev/{name}/dev"))])?
            .inode()
            .is_some();
    }
    Ok(Some(facts))
}

/// Reads all VFs of a PF, in the order of their numbers; those that are gone
/// meanwhile are left out.
///
/// # Errors
/// When the lane fails.
pub fn read_functions(reader: Reader<'_>, pf: &PciFacts) -> Result<Vec<FunctionFacts>, ScanError> {
    let addresses: Vec<PciAddress> = pf.functions.values().copied().collect();
    read_many(reader, &addresses)
}

/// Reads one VF; `None` when it is gone.
///
/// # Errors
/// When the lane fails.
pub fn read_function(
    reader: Reader<'_>,
    address: PciAddress,
) -> Result<Option<FunctionFacts>, ScanError> {
    Ok(read_many(reader, &[address])?.pop())
}

fn read_many(
    reader: Reader<'_>,
    addresses: &[PciAddress],
) -> Result<Vec<FunctionFacts>, ScanError> {
    let mut batches = Vec::with_capacity(addresses.len());
    for address in addresses {
        batches.push(ReadBatch {
            base: device(*address)?,
            reads: vec![
                Read::inode(""),
                Read::link("physfn"),
                Read::link("driver"),
                Read::link("iommu_group"),
                Read::names("vfio-dev"),
            ],
        });
    }
    let mut r = reader.read_each(batches)?;
    let mut found = Vec::with_capacity(addresses.len());
    for address in addresses {
        let inode = r.inode();
        let function = FunctionFacts {
            address: *address,
            linked: r.link().is_some(),
            driver: r.link(),
            group: r.link().as_deref().and_then(text::count),
            vfio_device: r.names().into_iter().next(),
            has_cdev: false,
            inode: inode.unwrap_or(0),
            vendor: None,
        };
        if inode.is_some() {
            found.push(function);
        }
    }
    let mut batches = Vec::new();
    for function in &found {
        if let Some(name) = &function.vfio_device {
            let reads = vec![Read::inode(format!("vfio-dev/{name}/dev"))];
            batches.push(ReadBatch { base: device(function.address)?, reads });
        }
    }
    let mut r = reader.read_each(batches)?;
    for function in found.iter_mut().filter(|function| function.vfio_device.is_some()) {
        function.has_cdev = r.inode().is_some();
    }
    let nvidia = |function: &FunctionFacts| function.driver.as_deref() == Some(NVIDIA_DRIVER);
    let addresses: Vec<PciAddress> =
        found.iter().filter(|function| nvidia(function)).map(|function| function.address).collect();
    let vendor = read_vendor(reader, &addresses)?;
    for (function, vendor) in found.iter_mut().filter(|f| nvidia(f)).zip(vendor) {
        function.vendor = vendor;
    }
    Ok(found)
}

/// The members of a PF's group that are neither of its slot nor bridges.
fn read_strangers(reader: Reader<'_>, pf: &PciFacts) -> Result<Vec<PciAddress>, ScanError> {
    const BRIDGE: u32 = 0x06;
    let others: Vec<PciAddress> =
        pf.group_members.iter().copied().filter(|member| !member.same_slot(pf.address)).collect();
    let reads = others.iter().map(|member| Read::text(format!("{member}/class"))).collect();
    let mut classes = reader.read(&path("bus/pci/devices")?, reads)?;
    Ok(others
        .into_iter()
        .filter(|_| classes.text().as_deref().and_then(text::hex).is_none_or(|c| c >> 16 != BRIDGE))
        .collect())
}

fn device(address: PciAddress) -> Result<SysPath, ScanError> {
    path(format!("bus/pci/devices/{address}"))
}
