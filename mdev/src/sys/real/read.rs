//! Reading batches: the hot path of discovery. An attribute costs three system
//! calls (open, read, close), a link or an inode one.

use std::{
    ops::ControlFlow,
    os::fd::{AsFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, readlinkat},
    sys::stat::fstatat,
    unistd::read,
};

use super::{
    super::{Read, ReadBatch, ReadKind, Reading, Value},
    dir::for_each_name,
    root::Root,
};

/// What almost every attribute fits in: sysfs gives at most a page.
const PAGE: usize = 4096;
/// The most that is kept of one file.
const LIMIT: usize = 64 * 1024;

/// Reads each of a batch; without its directory, each has the errno of that.
pub(super) fn read_batch(sys: &Root, batch: &ReadBatch) -> Vec<Reading> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let base = match sys.open_at(batch.base.as_str(), flags) {
        Ok(base) => base,
        Err(errno) => return batch.reads.iter().map(|_| Err(errno)).collect(),
    };
    let mut page = [0; PAGE];
    let mut reader = Reader { sys, batch, base: base.as_fd(), page: &mut page };
    batch.reads.iter().map(|read| reader.read(read)).collect()
}

struct Reader<'a> {
    sys: &'a Root,
    batch: &'a ReadBatch,
    base: BorrowedFd<'a>,
    page: &'a mut [u8; PAGE],
}

impl Reader<'_> {
    fn read(&mut self, read: &Read) -> Reading {
        let path = &*read.path;
        if path.starts_with('/') || path.split('/').any(|element| element == "..") {
            return Err(Errno::EXDEV);
        }
        match read.kind {
            ReadKind::Text => self.text(path).map(Value::Text),
            ReadKind::Link => {
                let target = readlinkat(self.base, path)?;
                let target = target.to_string_lossy();
                let name = target.rsplit('/').next().unwrap_or_default();
                Ok(Value::Link(name.to_owned()))
            }
            ReadKind::Names => self.names(path).map(Value::Names),
            ReadKind::Inode => fstatat(self.base, path, AtFlags::AT_EMPTY_PATH)
                .map(|found| Value::Inode(found.st_ino)),
        }
    }

    fn text(&mut self, path: &str) -> Result<String, Errno> {
        let file = self.open(path, OFlag::O_RDONLY)?;
        let first = read_some(file.as_fd(), self.page)?;
        let page = self.page.get(..first).unwrap_or_default();
        if first < PAGE {
            return Ok(String::from_utf8_lossy(page).into_owned());
        }
        let mut content = page.to_vec();
        content.resize(LIMIT, 0);
        let mut filled = first;
        while let Some(rest) = content.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match read_some(file.as_fd(), rest)? {
                0 => break,
                more => filled += more,
            }
        }
        content.truncate(filled);
        Ok(String::from_utf8_lossy(&content).into_owned())
    }

    fn names(&self, path: &str) -> Result<Vec<String>, Errno> {
        let path = if path.is_empty() { "." } else { path };
        let dir = self.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let mut names = Vec::new();
        for_each_name(dir.as_fd(), |name| {
            names.push(name.to_string_lossy().into_owned());
            ControlFlow::Continue(())
        })?;
        Ok(names)
    }

    /// Opens relative to the batch's directory. Few paths lead through a link:
    /// they are opened again, and from the root when the link leaves the
    /// directory, as `iommu_group/type` does.
    fn open(&self, path: &str, flags: OFlag) -> Result<std::os::fd::OwnedFd, Errno> {
        match self.sys.open_unlinked(self.base, path, flags) {
            Err(Errno::ELOOP) => {}
            opened => return opened,
        }
        match self.sys.open_below(self.base, path, flags) {
            Err(Errno::EXDEV) => {
                self.sys.open_at(format!("{}/{path}", self.batch.base.as_str()).as_str(), flags)
            }
            opened => opened,
        }
    }
}

fn read_some(file: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match read(file, buffer) {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}
