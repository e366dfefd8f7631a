//! How many uevents the kernel has sent.

use crate::sys::{Read, ReadBatch};

use super::{Reader, Readings, ScanError, path};

/// Reads the count; `None` where there is none to read.
///
/// # Errors
/// When the lane fails.
pub fn read_uevent_count(reader: Reader<'_>) -> Result<Option<u64>, ScanError> {
    let mut r = reader.read_each(vec![uevent_count()?])?;
    Ok(take_uevent_count(&mut r))
}

/// What to read for it, first of all that is read with it.
pub(super) fn uevent_count() -> Result<ReadBatch, ScanError> {
    Ok(ReadBatch { base: path("kernel")?, reads: vec![Read::text("uevent_seqnum")] })
}

pub(super) fn take_uevent_count(r: &mut Readings) -> Option<u64> {
    r.text()?.parse().ok()
}
