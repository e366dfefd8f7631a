//! Nodes below `/dev`: opened, and given to a user. Only character devices, and
//! never through a link in the last element.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag},
    sys::stat::{FchmodatFlags, Mode, fchmodat},
    unistd::{Uid, fchownat},
};

use super::{
    super::{NodePath, raw},
    root::Root,
};

/// Opens a node read-write.
///
/// Looks before it opens, since opening has side effects, and again at what it
/// opened.
pub(super) fn open_node(dev: &Root, node: &NodePath) -> Result<OwnedFd, Errno> {
    let (_, number) = dev.char_device(node.as_str())?;
    let opened = dev.open_at(node.as_str(), OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY)?;
    match raw::char_device(opened.as_fd(), c"")? {
        Some(now) if now == number => Ok(opened),
        _ => Err(Errno::ENODEV),
    }
}

/// Makes `uid` the owner of a node, mode 0600: the mode first, so that no group
/// gains what its old mode gave.
pub(super) fn chown(dev: &Root, proc: &Root, node: &NodePath, uid: u32) -> Result<(), Errno> {
    let (node, _) = dev.char_device(node.as_str())?;
    // `fchmod` refuses an O_PATH descriptor (EBADF, `fs/open.c`); its link in
    // /proc leads to the same inode.
    let link = format!("self/fd/{}", node.as_raw_fd());
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    fchmodat(proc, link.as_str(), mode, FchmodatFlags::FollowSymlink)?;
    fchownat(node, c"", Some(Uid::from_raw(uid)), None, AtFlags::AT_EMPTY_PATH)
}
