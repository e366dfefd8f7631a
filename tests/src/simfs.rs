//! A simulated kernel's sysfs, mounted through FUSE: real system calls, and
//! other people's tools, meet the same tree, errnos and blocking.

use std::{
    collections::HashMap,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, UNIX_EPOCH},
};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenAccMode, OpenFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, SessionACL,
    TimeOrNow, WriteFlags,
};
use nix::mount::{MntFlags, umount2};
use vgpu_mdev::sys::{
    Kernel, ReadKind, SysPath, Value,
    sim::{EntryKind, SimKernel},
};

/// For how long the kernel keeps what it looked up and may not change.
const FOREVER: Duration = Duration::from_secs(86_400);
/// What `stat` says of an attribute's size, as sysfs does.
const PAGE: u64 = 4096;
/// The FUSE loop's threads; calls that can block have threads of their own.
const THREADS: usize = 2;

/// The mounted tree, until dropped.
pub struct SimFs {
    _session: BackgroundSession,
    at: PathBuf,
}

impl SimFs {
    /// Mounts a kernel's sysfs on an existing directory.
    ///
    /// # Errors
    /// When `/dev/fuse` or `fusermount3` is missing or refuses.
    pub fn mount(sim: SimKernel, at: &Path) -> io::Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("vgpu-sim".into())];
        config.acl = SessionACL::All;
        config.n_threads = Some(THREADS);
        let tree = Tree { sim, shared: Arc::default() };
        let session = fuser::spawn_mount(tree, at, &config)?;
        Ok(Self { _session: session, at: at.to_owned() })
    }
}

impl Drop for SimFs {
    /// By force: what still waits for the tree fails. Else a process that ends
    /// while one of its threads waits never does, since that wait cannot be killed
    /// (`request_wait_answer`, fs/fuse/dev.c) and keeps its own `/dev/fuse` open.
    fn drop(&mut self) {
        // Refused to other users, for whom the session unmounts.
        let _ = umount2(&self.at, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
    }
}

struct Tree {
    sim: SimKernel,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// Node `n + 2` is the nth that was looked up; node 1 is the root.
    paths: Vec<Arc<str>>,
    nodes: HashMap<(Arc<str>, u64), u64>,
    /// What an open file or directory has read at its beginning.
    texts: HashMap<u64, Arc<str>>,
    listings: HashMap<u64, Vec<(INodeNo, FileType, String)>>,
    last_handle: u64,
}

impl Shared {
    /// The node of a path; a device that was made anew is a new node.
    fn node(&mut self, path: &str, inode: u64) -> INodeNo {
        if path.is_empty() {
            return INodeNo::ROOT;
        }
        let path: Arc<str> = path.into();
        let next = self.paths.len() as u64 + 2;
        let node = *self.nodes.entry((path.clone(), inode)).or_insert(next);
        if node == next {
            self.paths.push(path);
        }
        INodeNo(node)
    }

    fn path(&self, node: INodeNo) -> Result<Arc<str>, Errno> {
        if node == INodeNo::ROOT {
            return Ok("".into());
        }
        let index = usize::try_from(node.0 - 2).map_err(|_| Errno::ENOENT)?;
        self.paths.get(index).cloned().ok_or(Errno::ENOENT)
    }

    fn handle(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }
}

impl Tree {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }

    /// The attributes of a path as it is now.
    fn attributes(&self, path: &str) -> Result<FileAttr, Errno> {
        let (kind, perm, size) = match self.sim.entry(path).map_err(errno)? {
            EntryKind::Directory => (FileType::Directory, 0o755, 0),
            EntryKind::Link => (FileType::Symlink, 0o777, 0),
            EntryKind::Attribute(mode) => (FileType::RegularFile, mode, PAGE),
        };
        let inode = match self.sim.read(path, ReadKind::Inode) {
            Ok(Value::Inode(inode)) if kind != FileType::Symlink => inode,
            _ => 0,
        };
        Ok(FileAttr {
            ino: self.shared().node(path, inode),
            size,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: PAGE as u32,
            flags: 0,
        })
    }

    /// What a name in a directory leads to, and for how long.
    fn look_up(&self, parent: INodeNo, name: &OsStr) -> Result<(FileAttr, Duration), Errno> {
        let parent = self.shared().path(parent)?;
        let path = join(&parent, name.to_str().ok_or(Errno::ENOENT)?);
        Ok((self.attributes(&path)?, lasting(&path)))
    }

    fn list(&self, node: INodeNo) -> Result<Vec<(INodeNo, FileType, String)>, Errno> {
        let path = self.shared().path(node)?;
        let names = match self.sim.read(&path, ReadKind::Names).map_err(errno)? {
            Value::Names(names) => names,
            _ => return Err(Errno::ENOTDIR),
        };
        let dots = [".", ".."].map(|name| (node, FileType::Directory, name.to_owned()));
        // One that vanishes while it is listed is not listed.
        let entries = names.into_iter().filter_map(|name| {
            let attributes = self.attributes(&join(&path, &name)).ok()?;
            Some((attributes.ino, attributes.kind, name))
        });
        Ok(dots.into_iter().chain(entries).collect())
    }

    fn open_file(&self, node: INodeNo, flags: OpenFlags) -> Result<u64, Errno> {
        let path = self.shared().path(node)?;
        let EntryKind::Attribute(mode) = self.sim.entry(&path).map_err(errno)? else {
            return Err(Errno::EISDIR);
        };
        // Also for root (kernfs_fop_open, fs/kernfs/file.c).
        let wanted = match flags.acc_mode() {
            OpenAccMode::O_RDONLY => 0o444,
            OpenAccMode::O_WRONLY => 0o222,
            OpenAccMode::O_RDWR => 0o666,
        };
        let both = [0o444, 0o222].map(|bits| wanted & bits == 0 || mode & bits != 0);
        if both == [true, true] { Ok(self.shared().handle()) } else { Err(Errno::EACCES) }
    }
}

impl Filesystem for Tree {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(parent, name) {
            Ok((attributes, lasting)) => reply.entry(&lasting, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let path = self.shared().path(node);
        match path.and_then(|path| Ok((self.attributes(&path)?, lasting(&path)))) {
            // A node of a device that was made anew meanwhile is gone.
            Ok((attributes, _)) if attributes.ino != node => reply.error(Errno::ENOENT),
            Ok((attributes, lasting)) => reply.attr(&lasting, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    /// Truncation on opening is nothing to sysfs.
    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.getattr(request, node, handle, reply);
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let path = self.shared().path(node);
        match path.and_then(|path| self.sim.link_text(&path).map_err(errno)) {
            Ok(text) => reply.data(text.as_bytes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        _: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EACCES);
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let how = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        match self.open_file(node, flags) {
            Ok(handle) => reply.opened(FileHandle(handle), how),
            Err(errno) => reply.error(errno),
        }
    }

    /// The first on a thread of its own, since it can block; it has all the text.
    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let part = move |text: &str, reply: ReplyData| {
            let rest = text.as_bytes().get(offset as usize..).unwrap_or_default();
            reply.data(&rest[..rest.len().min(size as usize)]);
        };
        let kept = self.shared().texts.get(&handle.0).filter(|_| offset > 0).cloned();
        if let Some(text) = kept {
            return part(&text, reply);
        }
        let (sim, shared, path) = (self.sim.clone(), self.shared.clone(), self.shared().path(node));
        thread::spawn(move || {
            let text = path.and_then(|path| match sim.read(&path, ReadKind::Text) {
                Ok(Value::Text(text)) => Ok(Arc::<str>::from(text)),
                Ok(_) => Err(Errno::EIO),
                Err(refused) => Err(errno(refused)),
            });
            match text {
                Ok(text) => {
                    lock(&shared).texts.insert(handle.0, text.clone());
                    part(&text, reply);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// On a thread of its own, since it can block.
    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (sim, path) = (self.sim.clone(), self.shared().path(node));
        let value = String::from_utf8(data.to_vec());
        thread::spawn(move || {
            let written = path.and_then(|path| {
                let path = SysPath::new(&*path).map_err(|_| Errno::ENOENT)?;
                let value = value.map_err(|_| Errno::EINVAL)?;
                sim.write(&path, &value).map_err(errno).map(|()| value.len() as u32)
            });
            match written {
                Ok(length) => reply.written(length),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn release(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.shared().texts.remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.list(node) {
            Ok(listing) => {
                let mut shared = self.shared();
                let handle = shared.handle();
                shared.listings.insert(handle, listing);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let shared = self.shared();
        let listing = shared.listings.get(&handle.0).map(Vec::as_slice).unwrap_or_default();
        for (index, (node, kind, name)) in listing.iter().enumerate().skip(offset as usize) {
            if reply.add(*node, index as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.shared().listings.remove(&handle.0);
        reply.ok();
    }
}

/// For how long a name means the same, where the kernel need not ask each time:
/// the directories above all devices stay; a type and its attributes stay as
/// long as the folder of types, which is looked up before them.
fn lasting(path: &str) -> Duration {
    let above = ["class/mdev_bus", "bus/pci", "bus/pci/devices", "bus/mdev", "bus/mdev/devices"];
    let is_root = path.strip_prefix("devices/").is_some_and(|root| !root.contains('/'));
    let of_type = path
        .split_once("/mdev_supported_types/")
        .is_some_and(|(_, below)| below.matches('/').count() <= 1);
    let stays = !path.contains('/') || above.contains(&path) || is_root || of_type;
    if stays { FOREVER } else { Duration::ZERO }
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn errno(errno: nix::errno::Errno) -> Errno {
    Errno::from_i32(errno as i32)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
