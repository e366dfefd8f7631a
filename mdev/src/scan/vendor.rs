//! NVIDIA's vendor-specific VFIO: what a VF tells in its folder `nvidia/`
//! (driver branch 17 and later on Linux 6.8 and later, where there is no mdev).

use crate::{
    model::PciAddress,
    sys::{Read, ReadBatch},
};

use super::{Reader, ScanError, path, text};

/// What a VF tells of its vGPU type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VendorFacts {
    /// The types that it can carry now, by number, with their full names
    /// (`creatable_vgpu_types`). The list shrinks with what its siblings carry,
    /// and is empty when the GPU is full.
    pub creatable: Vec<(u32, String)>,
    /// The number of the type that it carries (`current_vgpu_type`), 0 for none.
    pub current: u32,
    /// The MIG GPU instance that it is in (`gpu_instance_id`).
    pub gpu_instance: Option<u32>,
    /// Where in the framebuffer it lies (`placement_id`).
    pub placement: Option<u32>,
    /// Its parameters (`vgpu_params`), empty for none.
    pub params: String,
}

/// Reads the folder of each function, `None` for one that has none.
///
/// What only a vGPU has is read where there is one: on an idle VF those
/// attributes fail with ENXIO.
///
/// # Errors
/// When the lane fails.
pub(super) fn read_vendor(
    reader: Reader<'_>,
    addresses: &[PciAddress],
) -> Result<Vec<Option<VendorFacts>>, ScanError> {
    let mut batches = Vec::with_capacity(addresses.len());
    for address in addresses {
        batches.push(ReadBatch {
            base: path(format!("bus/pci/devices/{address}"))?,
            reads: vec![
                Read::text("nvidia/current_vgpu_type"),
                Read::text("nvidia/creatable_vgpu_types"),
            ],
        });
    }
    let mut r = reader.read_each(batches)?;
    let mut found: Vec<Option<VendorFacts>> = addresses
        .iter()
        .map(|_| {
            let (current, creatable) = (r.text(), r.text());
            Some(VendorFacts {
                current: current.as_deref().and_then(text::count)?,
                creatable: text::creatable_types(&creatable.unwrap_or_default()),
                gpu_instance: None,
                placement: None,
                params: String::new(),
            })
        })
        .collect();
    let carries = |vendor: &Option<VendorFacts>| vendor.as_ref().is_some_and(|v| v.current != 0);
    let mut batches = Vec::new();
    for (address, _) in addresses.iter().zip(&found).filter(|(_, vendor)| carries(vendor)) {
        batches.push(ReadBatch {
            base: path(format!("bus/pci/devices/{address}"))?,
            reads: vec![
                Read::text("nvidia/gpu_instance_id"),
                Read::text("nvidia/placement_id"),
                Read::text("nvidia/vgpu_params"),
            ],
        });
    }
    if batches.is_empty() {
        return Ok(found);
    }
    let mut r = reader.read_each(batches)?;
    for vendor in found.iter_mut().flatten().filter(|vendor| vendor.current != 0) {
        vendor.gpu_instance = r.text().as_deref().and_then(text::count);
        vendor.placement = r.text().as_deref().and_then(text::count);
        vendor.params = r.text().unwrap_or_default().trim().to_owned();
    }
    Ok(found)
}
