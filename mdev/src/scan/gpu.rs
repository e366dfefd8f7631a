//! All that is read of one GPU, less its mdevs: there can be thousands, and
//! one event must not reread them.

use crate::model::GpuId;

use super::{
    FunctionFacts, ParentFacts, PciFacts, Reader, ScanError, read_functions, read_parents, read_pci,
};

/// The facts of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts {
    /// Its id.
    pub id: GpuId,
    /// Its PF; none for a virtual parent.
    pub pci: Option<PciFacts>,
    /// Its mdev parents: itself, or its VFs.
    pub parents: Vec<ParentFacts>,
    /// Its VFs.
    pub functions: Vec<FunctionFacts>,
}

/// Reads a GPU; `None` when it is gone.
///
/// # Errors
/// When its lane fails.
pub fn read_gpu(
    reader: Reader<'_>,
    id: &GpuId,
    parents: &[String],
) -> Result<Option<GpuFacts>, ScanError> {
    let pci = match id.pci() {
        Some(address) => match read_pci(reader, address)? {
            Some(pci) => Some(pci),
            None => return Ok(None),
        },
        None => None,
    };
    let functions = match &pci {
        Some(pci) => read_functions(reader, pci)?,
        None => Vec::new(),
    };
    let parents = read_parents(reader, parents)?;
    if pci.is_none() && parents.iter().all(|parent| parent.types.is_empty()) {
        return Ok(None);
    }
    Ok(Some(GpuFacts { id: id.clone(), pci, parents, functions }))
}
