//! The only module with `unsafe`: thin safe wrappers for the system calls that
//! nix and vfio-ioctls lack.
#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::Command,
};

use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{VFIO_BASE, VFIO_TYPE, vfio_device_info, vfio_region_info};
use vfio_ioctls::{VfioDevice, VfioError, VfioOps};
use vm_memory::{Address as _, GuestMemoryBackend as _, GuestMemoryMmap, GuestMemoryRegion as _};

/// Reads directory entries (`struct linux_dirent64`) into `buffer`: how many
/// bytes it holds, 0 at the end.
pub(super) fn getdents64(dir: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the descriptor is open for the borrow's life, and the kernel
    // writes at most `buffer.len()` bytes into the exclusively borrowed buffer.
    let read = unsafe {
        libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
    };
    Errno::result(read).map(|read| usize::try_from(read).unwrap_or(0))
}

/// The device number of the character device at `name` below `dir` (of `dir`
/// itself when `name` is empty), links followed; `None` for anything else.
///
/// Asks for cached attributes, so that a file on a dead network file system
/// among a process's descriptors costs no round trip.
pub(super) fn char_device(dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<(u32, u32)>, Errno> {
    let flags = libc::AT_STATX_DONT_SYNC
        | libc::AT_NO_AUTOMOUNT
        | if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the descriptor is open for the borrow's life, `name` ends with a
    // NUL, and `found` is a writable `struct statx`.
    let done = unsafe {
        libc::statx(dir.as_raw_fd(), name.as_ptr(), flags, libc::STATX_TYPE, found.as_mut_ptr())
    };
    Errno::result(done)?;
    // SAFETY: all zeroes is a valid `struct statx`, and the kernel filled it.
    let found = unsafe { found.assume_init() };
    let is_char = libc::mode_t::from(found.stx_mode) & libc::S_IFMT == libc::S_IFCHR;
    Ok(is_char.then_some((found.stx_rdev_major, found.stx_rdev_minor)))
}

/// A descriptor of a child that has not been waited for; readable once it ended.
pub(super) fn pidfd_open(pid: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: takes two integers and no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = Errno::result(fd)?;
    let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor (close-on-exec) for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Keeps every descriptor but the standard ones from a child, also those that
/// we inherited ourselves.
pub(super) fn seal_descriptors(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call on
    // integers, which is async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            let flags = libc::CLOSE_RANGE_CLOEXEC;
            match Errno::result(libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flags)) {
                // Before Linux 5.11 there is no such call or flag; all
                // descriptors that we opened are close-on-exec anyway.
                Ok(_) | Err(Errno::ENOSYS | Errno::EINVAL) => Ok(()),
                Err(errno) => Err(io::Error::from(errno)),
            }
        });
    }
}

/// Gives memory that the allocator keeps but does not use back to the kernel.
pub fn malloc_trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer; the allocator locks itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets all threads share so many allocator arenas, instead of eight for each
/// processor: a lane allocates little and lives long.
pub fn limit_malloc_arenas(arenas: u8) {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two integers; the allocator locks itself.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, libc::c_int::from(arenas));
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = arenas;
}

/// `_IO(VFIO_TYPE, VFIO_BASE + n)` (`include/uapi/linux/vfio.h`).
const fn vfio_request(n: u32) -> libc::Ioctl {
    ((VFIO_TYPE as libc::Ioctl) << 8) | (VFIO_BASE + n) as libc::Ioctl
}

/// The descriptor of a VFIO device.
pub(crate) fn vfio_device_fd(device: &VfioDevice) -> BorrowedFd<'_> {
    // SAFETY: the device owns its descriptor and closes it when it is dropped,
    // which the borrow outlives not.
    unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) }
}

/// `VFIO_DEVICE_GET_INFO`.
pub(crate) fn vfio_device_info(device: BorrowedFd<'_>) -> Result<vfio_device_info, Errno> {
    let mut info = vfio_device_info { argsz: argsz::<vfio_device_info>(), ..Default::default() };
    // SAFETY: the descriptor is open, and `info` is the structure that this
    // request takes, with its true size in `argsz`.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), vfio_request(7), &raw mut info) };
    Errno::result(done).map(|_| info)
}

/// `VFIO_DEVICE_GET_REGION_INFO`, without capabilities.
pub(crate) fn vfio_region_info(
    device: BorrowedFd<'_>,
    index: u32,
) -> Result<vfio_region_info, Errno> {
    let mut info =
        vfio_region_info { argsz: argsz::<vfio_region_info>(), index, ..Default::default() };
    // SAFETY: as in `vfio_device_info`; capabilities that do not fit `argsz`
    // are left out by the kernel.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), vfio_request(8), &raw mut info) };
    Errno::result(done).map(|_| info)
}

/// `VFIO_DEVICE_RESET`.
pub(crate) fn vfio_device_reset(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the descriptor is open, and this request takes no argument.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), vfio_request(11)) }).map(drop)
}

/// Maps guest memory for DMA and unmaps it again.
pub(crate) fn map_and_unmap(ops: &dyn VfioOps, memory: &GuestMemoryMmap) -> Result<(), VfioError> {
    for region in memory.iter() {
        let iova = region.start_addr().raw_value();
        // SAFETY: vm-memory owns the mapping, hands out no reference to its
        // content, and keeps it for the life of `memory`; it is unmapped from
        // the device below, or else never freed.
        unsafe { ops.vfio_dma_map(iova, region.size(), region.as_ptr())? };
        if let Err(error) = ops.vfio_dma_unmap(iova, region.size()) {
            std::mem::forget(memory.clone());
            return Err(error);
        }
    }
    Ok(())
}

const fn argsz<T>() -> u32 {
    size_of::<T>() as u32
}
