//! The names in a directory, without an allocation for each.

use std::{ffi::CStr, ops::ControlFlow, os::fd::BorrowedFd};

use nix::errno::Errno;

use super::super::raw;

/// Bytes of entries read at once.
const BUFFER: usize = 16 * 1024;
/// Where `d_reclen` and `d_name` lie in `struct linux_dirent64`
/// (`include/linux/dirent.h`).
const RECLEN: std::ops::Range<usize> = 16..18;
const NAME: usize = 19;

/// Calls `each` with every name in an open directory but `.` and `..`, until
/// one breaks.
pub(super) fn for_each_name(
    dir: BorrowedFd<'_>,
    mut each: impl FnMut(&CStr) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let mut buffer = [0; BUFFER];
    loop {
        let filled = raw::getdents64(dir, &mut buffer)?;
        if filled == 0 {
            return Ok(());
        }
        for name in names(buffer.get(..filled).unwrap_or_default()) {
            if each(name).is_break() {
                return Ok(());
            }
        }
    }
}

fn names(mut entries: &[u8]) -> impl Iterator<Item = &CStr> {
    std::iter::from_fn(move || {
        loop {
            let length = entries.get(RECLEN)?.try_into().map(u16::from_ne_bytes).ok()?;
            let (entry, rest) = entries.split_at_checked(usize::from(length))?;
            entries = rest;
            let name = CStr::from_bytes_until_nul(entry.get(NAME..)?).ok()?;
            if !matches!(name.to_bytes(), b"." | b"..") {
                return Some(name);
            }
        }
    })
}
