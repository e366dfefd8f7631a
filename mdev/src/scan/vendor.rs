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
}

/// Reads the folder of each function, `None` for one that has none.
///
/// `gpu_instance_id` and `placement_id` are not read: on an idle VF they fail
/// with ENXIO.
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
    Ok(addresses
        .iter()
        .map(|_| {
            let (current, creatable) = (r.text(), r.text());
            Some(VendorFacts {
                current: current.as_deref().and_then(text::count)?,
                creatable: text::creatable_types(&creatable.unwrap_or_default()),
            })
        })
        .collect())
}
