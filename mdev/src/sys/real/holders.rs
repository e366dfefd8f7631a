//! Who has a node open: found from open descriptors by device number, since a
//! guest's own `/dev` makes path names mere hints.

use std::{
    ffi::CStr,
    ops::ControlFlow,
    os::fd::{AsFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, readlinkat},
    unistd::read,
};

use crate::model::Holder;

use super::{
    super::{HolderQuery, raw},
    dir::for_each_name,
    root::Root,
};

/// The processes other than ours that have one of the nodes open.
///
/// One `statx` a descriptor: a `readlink` to leave out sockets and pipes first
/// would save no call.
///
/// # Errors
/// Also when nobody was found but not everybody could be looked at: for want
/// of CAP_SYS_PTRACE, say.
pub(super) fn holders(dev: &Root, proc: &Root, query: &HolderQuery) -> Result<Vec<Holder>, Errno> {
    let mut numbers = Vec::with_capacity(query.nodes.len());
    for node in &query.nodes {
        match dev.char_device(node.as_str()) {
            Ok((_, number)) => numbers.push((number, node.as_str())),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ENODEV) => {}
            Err(errno) => return Err(errno),
        }
    }
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let mut scan = Scan { proc, numbers, found: Vec::new(), refused: None };
    match query.pid {
        Some(pid) => scan.process(pid),
        None => {
            let dir = proc.open_at(c".", OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
            let own = std::process::id();
            for_each_name(dir.as_fd(), |name| {
                match number(name) {
                    Some(pid) if pid != own => scan.process(pid),
                    _ => {}
                }
                ControlFlow::Continue(())
            })?;
        }
    }
    match scan.refused {
        Some(errno) if scan.found.is_empty() => Err(errno),
        _ => Ok(scan.found),
    }
}

struct Scan<'a> {
    proc: &'a Root,
    /// The device number of each node that was asked for.
    numbers: Vec<((u32, u32), &'a str)>,
    found: Vec<Holder>,
    /// Why a process could not be looked at: nobody found then proves nothing.
    refused: Option<Errno>,
}

impl Scan<'_> {
    /// Looks at one process; one that has ended holds nothing.
    fn process(&mut self, pid: u32) {
        match self.look(pid) {
            Ok(Some(holder)) => self.found.push(holder),
            Ok(None) | Err(Errno::ENOENT | Errno::ESRCH) => {}
            Err(errno) => self.refused = Some(errno),
        }
    }

    fn look(&self, pid: u32) -> Result<Option<Holder>, Errno> {
        let open = |what, flags| self.proc.open_at(format!("{pid}/{what}").as_str(), flags);
        let fds = open("fd", OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let mut held = Ok(None);
        for_each_name(fds.as_fd(), |fd| {
            held = self.held(pid, fds.as_fd(), fd);
            match held {
                Ok(None) => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        })?;
        let Some((device, node)) = held? else {
            return Ok(None);
        };
        let mut comm = [0; 64];
        let length = read(open("comm", OFlag::O_RDONLY)?, &mut comm)?;
        let command = String::from_utf8_lossy(comm.get(..length).unwrap_or_default());
        Ok(Some(Holder { pid, command: command.trim_end_matches('\n').to_owned(), device, node }))
    }

    /// The node as it was asked for and as the process sees it, when descriptor
    /// `fd` is one of the nodes.
    fn held(
        &self,
        pid: u32,
        fds: BorrowedFd<'_>,
        fd: &CStr,
    ) -> Result<Option<(String, String)>, Errno> {
        match raw::char_device(fds, fd) {
            Ok(Some(number)) => {
                let device = self.asked_for(number).filter(|_| !self.only_names(pid, fd));
                Ok(device.map(|device| {
                    let name = readlinkat(fds, fd).unwrap_or_default();
                    (device.to_owned(), name.to_string_lossy().into_owned())
                }))
            }
            // Where not even the name is ours to read, the process is closed to
            // us; else it is a file that its own file system keeps to its user.
            Err(errno @ (Errno::EACCES | Errno::EPERM)) if readlinkat(fds, fd) == Err(errno) => {
                Err(errno)
            }
            // Closed meanwhile, or a file that its file system cannot tell of.
            Ok(None) | Err(_) => Ok(None),
        }
    }

    /// Whether a descriptor only names its file (`O_PATH`): the device is not
    /// open. udev has such descriptors while it sets a new node's permissions.
    fn only_names(&self, pid: u32, fd: &CStr) -> bool {
        let flags = || {
            let path = format!("{pid}/fdinfo/{}", fd.to_str().ok()?);
            let mut text = [0; 256];
            let length =
                read(self.proc.open_at(path.as_str(), OFlag::O_RDONLY).ok()?, &mut text).ok()?;
            let text = std::str::from_utf8(text.get(..length)?).ok()?;
            let octal = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
            i32::from_str_radix(octal.trim(), 8).ok()
        };
        flags().is_some_and(|flags| flags & OFlag::O_PATH.bits() != 0)
    }

    fn asked_for(&self, number: (u32, u32)) -> Option<&str> {
        let node = self.numbers.iter().find(|(known, _)| *known == number);
        node.map(|(_, node)| *node)
    }
}

fn number(name: &CStr) -> Option<u32> {
    name.to_bytes().first().filter(|digit| digit.is_ascii_digit())?;
    name.to_str().ok()?.parse().ok()
}
