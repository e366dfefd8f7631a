//! A directory that no path leaves.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    NixPath,
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2},
    sys::stat::Mode,
};

use super::super::raw;

/// A root that cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot open the root {}: {}", path.display(), errno.desc())]
pub struct RootError {
    path: PathBuf,
    errno: Errno,
}

/// How often a race with a rename or mount is tried again. `RESOLVE_BENEATH`
/// answers EAGAIN when any happens on the host while it passes a `..`
/// (`fs/namei.c`, `handle_dots`).
const RACES: usize = 1000;

/// An open root.
pub(super) struct Root {
    dir: OwnedFd,
    /// Whether the kernel has `openat2` (Linux 5.6), and no filter forbids it.
    scoped: bool,
}

impl Root {
    pub(super) fn open(path: &Path) -> Result<Self, RootError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let error = |errno| RootError { path: path.to_owned(), errno };
        let dir = nix::fcntl::open(path, flags, Mode::empty()).map_err(error)?;
        let scoped =
            !matches!(openat2(&dir, c".", beneath(flags)), Err(Errno::ENOSYS | Errno::EPERM));
        Ok(Self { dir, scoped })
    }

    /// Opens a path below the root. Links are followed as long as they stay
    /// below it: most of sysfs is reached by relative ones.
    pub(super) fn open_at<P: NixPath + ?Sized>(
        &self,
        path: &P,
        flags: OFlag,
    ) -> Result<OwnedFd, Errno> {
        self.open_below(self.dir.as_fd(), path, flags)
    }

    /// Opens a path below `dir` that has no link in it, ELOOP when it has. It
    /// takes no lock of the host, as `RESOLVE_BENEATH` does for each path
    /// (`fs/namei.c`, `complete_walk` and `path_is_under`); without links and
    /// `..`, which the caller refuses, nothing leads out.
    pub(super) fn open_unlinked<P: NixPath + ?Sized>(
        &self,
        dir: BorrowedFd<'_>,
        path: &P,
        flags: OFlag,
    ) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlag::O_CLOEXEC;
        if !self.scoped {
            return Err(Errno::ELOOP);
        }
        let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        openat2(dir, path, how)
    }

    /// Opens a path below `dir`, EXDEV when it leaves `dir`.
    pub(super) fn open_below<P: NixPath + ?Sized>(
        &self,
        dir: BorrowedFd<'_>,
        path: &P,
        flags: OFlag,
    ) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlag::O_CLOEXEC;
        if !self.scoped {
            return openat(dir, path, flags, Mode::empty());
        }
        let mut last = Errno::EAGAIN;
        for _ in 0..RACES {
            match openat2(dir, path, beneath(flags)) {
                Err(errno @ (Errno::EAGAIN | Errno::EINTR)) => last = errno,
                opened => return opened,
            }
        }
        Err(last)
    }

    /// The character device at `path`: an `O_PATH` descriptor and its number.
    ///
    /// ENODEV for anything else.
    pub(super) fn char_device(&self, path: &str) -> Result<(OwnedFd, (u32, u32)), Errno> {
        let node = self.open_at(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
        let number = raw::char_device(node.as_fd(), c"")?;
        Ok((node, number.ok_or(Errno::ENODEV)?))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

fn beneath(flags: OFlag) -> OpenHow {
    OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS)
}
