#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read as _, Write as _},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    process::{Child, Command, Stdio},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::stat::{Mode, SFlag, makedev, mknod},
};
use tempfile::TempDir;

use super::{
    super::{Read, Value},
    *,
};

/// A root of sysfs and one of /dev in a temporary directory.
struct Host {
    dir: TempDir,
    kernel: RealKernel,
}

impl Host {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        for sub in ["sys", "dev/vfio"] {
            fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        let roots =
            Roots { sys: dir.path().join("sys"), dev: dir.path().join("dev"), ..Roots::default() };
        let kernel = RealKernel::new(&roots, Programs::default()).unwrap();
        Self { dir, kernel }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// A node with the number of /dev/zero (`major:minor` 1:5).
    fn node(&self, path: &str) -> PathBuf {
        let path = self.path(path);
        mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 5)).unwrap();
        path
    }

    fn read(&self, base: &str, reads: Vec<Read>) -> Vec<Reading> {
        read(&self.kernel, base, reads)
    }

    fn text(&self, base: &str, path: &'static str) -> Result<String, Errno> {
        match self.read(base, vec![Read::text(path)]).remove(0)? {
            Value::Text(text) => Ok(text),
            other => panic!("{other:?}"),
        }
    }
}

fn read(kernel: &RealKernel, base: &str, reads: Vec<Read>) -> Vec<Reading> {
    kernel.read_batch(&ReadBatch { base: SysPath::new(base).unwrap(), reads })
}

fn text(text: &str) -> Reading {
    Ok(Value::Text(text.to_owned()))
}

/// A GPU as sysfs shows it, reached through relative links.
fn gpu() -> Host {
    let host = Host::new();
    host.file("sys/devices/pci0/0000:41:00.0/vendor", "0x10de\n");
    host.file("sys/devices/pci0/0000:41:00.0/types/nvidia-558/name", "NVIDIA A40-2Q\n");
    host.file("sys/kernel/iommu_groups/7/type", "DMA\n");
    host.file("sys/bus/pci/drivers/nvidia/bind", "");
    host.link("sys/bus/pci/devices/0000:41:00.0", "../../../devices/pci0/0000:41:00.0");
    host.link("sys/devices/pci0/0000:41:00.0/driver", "../../../bus/pci/drivers/nvidia");
    host.link("sys/devices/pci0/0000:41:00.0/iommu_group", "../../../kernel/iommu_groups/7");
    host
}

const GPU: &str = "bus/pci/devices/0000:41:00.0";

#[test]
fn a_batch_reads_each_of_its_kinds() {
    let host = gpu();
    let inode = fs::metadata(host.path("sys/devices/pci0/0000:41:00.0")).unwrap().ino();
    let group = fs::metadata(host.path("sys/kernel/iommu_groups/7")).unwrap().ino();
    let mut read = host.read(
        GPU,
        vec![
            Read::text("vendor"),
            Read::text("types/nvidia-558/name"),
            Read::text("iommu_group/type"),
            Read::text("numa_node"),
            Read::text("types"),
            Read::link("driver"),
            Read::link("vendor"),
            Read::inode(""),
            Read::inode("iommu_group"),
            Read::names("types"),
            Read::names(""),
            Read::names("iommu_group"),
        ],
    );
    let Ok(Value::Names(names)) = &mut read[10] else { panic!("{read:?}") };
    names.sort_unstable();
    assert_eq!(
        read,
        [
            text("0x10de\n"),
            text("NVIDIA A40-2Q\n"),
            text("DMA\n"),
            Err(Errno::ENOENT),
            Err(Errno::EISDIR),
            Ok(Value::Link("nvidia".into())),
            Err(Errno::EINVAL),
            Ok(Value::Inode(inode)),
            Ok(Value::Inode(group)),
            Ok(Value::Names(vec!["nvidia-558".into()])),
            Ok(Value::Names(["driver", "iommu_group", "types", "vendor"].map(String::from).into())),
            Ok(Value::Names(vec!["type".into()])),
        ]
    );
}

#[test]
fn a_missing_directory_fails_each_read() {
    let read =
        gpu().read("bus/pci/devices/0000:42:00.0", vec![Read::text("vendor"), Read::names("")]);
    assert_eq!(read, [Err(Errno::ENOENT), Err(Errno::ENOENT)]);
}

#[test]
fn nothing_leaves_its_root() {
    let host = gpu();
    host.file("secret/key", "secret");
    host.link("sys/absolute", "/etc");
    host.link("sys/upwards", "../secret");
    host.link("sys/devices/pci0/0000:41:00.0/out", "../../../../secret");
    for base in ["absolute", "upwards"] {
        assert_eq!(host.text(base, "key"), Err(Errno::EXDEV), "{base}");
    }
    for path in ["out/key", "../../../../secret/key", "/etc/passwd"] {
        assert_eq!(host.text(GPU, path), Err(Errno::EXDEV), "{path}");
    }
    let write = |path| host.kernel.write(&SysPath::new(path).unwrap(), "x");
    assert_eq!(write("upwards/key"), Err(Errno::EXDEV));
    assert_eq!(fs::read_to_string(host.path("secret/key")).unwrap(), "secret");
}

#[test]
fn long_and_odd_content_is_kept() {
    let host = Host::new();
    for length in [0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537] {
        host.file("sys/d/content", vec![b'x'; length]);
        assert_eq!(host.text("d", "content").unwrap().len(), length.min(65_536));
    }
    host.file("sys/d/odd", b"a\xffb\n");
    assert_eq!(host.text("d", "odd").unwrap(), "a\u{fffd}b\n");
}

#[test]
fn a_large_directory_is_read_whole() {
    let host = Host::new();
    let mut expected: Vec<_> =
        (0..2000).map(|n| format!("83b8f4f2-509f-382f-3c1e-e6bfe0fa{n:04}")).collect();
    for name in &expected {
        host.file(&format!("sys/parent/{name}"), "");
    }
    let Ok(Value::Names(mut names)) = host.read("parent", vec![Read::names("")]).remove(0) else {
        panic!("no names")
    };
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
}

#[test]
fn the_real_sysfs_is_reached_through_its_links() {
    let kernel = RealKernel::new(&Roots::default(), Programs::default()).unwrap();
    let read = read(
        &kernel,
        "class/mem/zero",
        vec![
            Read::text("dev"),
            Read::link("subsystem"),
            Read::names("no/such"),
            Read::text("subsystem/zero/dev"),
        ],
    );
    assert_eq!(
        read,
        [text("1:5\n"), Ok(Value::Link("mem".into())), Err(Errno::ENOENT), text("1:5\n")]
    );
}

#[test]
fn a_write_changes_what_is_there_and_makes_nothing() {
    let host = Host::new();
    host.file("sys/d/sriov_numvfs", "0000");
    let write = |path, value| host.kernel.write(&SysPath::new(path).unwrap(), value);
    assert_eq!(write("d/sriov_numvfs", "12"), Ok(()));
    assert_eq!(host.text("d", "sriov_numvfs").unwrap(), "1200", "truncated or appended");
    assert_eq!(write("d/other", "1"), Err(Errno::ENOENT));
    assert_eq!(write("d", "1"), Err(Errno::EISDIR));
    assert!(!host.path("sys/d/other").exists());
}

#[test]
fn only_character_devices_are_nodes() {
    let host = Host::new();
    host.node("dev/vfio/3");
    host.file("dev/vfio/file", "");
    host.link("dev/vfio/link", "3");
    let open = |node| host.kernel.open_node(&NodePath::new(node).unwrap());
    let mut zero = [1; 4];
    let opened = open("vfio/3").unwrap();
    let flags = fcntl(&opened, FcntlArg::F_GETFD).unwrap();
    assert_eq!(flags, libc::FD_CLOEXEC);
    let mut opened = File::from(opened);
    opened.read_exact(&mut zero).unwrap();
    assert_eq!(zero, [0; 4]);
    opened.write_all(b"x").unwrap();
    for (node, errno) in [
        ("vfio/file", Errno::ENODEV),
        ("vfio", Errno::ENODEV),
        ("vfio/link", Errno::ENODEV),
        ("vfio/4", Errno::ENOENT),
    ] {
        assert_eq!(open(node).unwrap_err(), errno, "{node}");
    }
}

#[test]
fn a_node_is_given_to_its_user_alone() {
    let host = Host::new();
    let path = host.node("dev/vfio/3");
    host.kernel.chown(&NodePath::new("vfio/3").unwrap(), 12_345).unwrap();
    let now = fs::metadata(&path).unwrap();
    assert!(now.file_type().is_char_device());
    assert_eq!((now.uid(), now.permissions().mode() & 0o7777), (12_345, 0o600));
    host.file("dev/vfio/file", "");
    let file = NodePath::new("vfio/file").unwrap();
    assert_eq!(host.kernel.chown(&file, 12_345), Err(Errno::ENODEV));
}

/// A child that has `path` open, and nothing else but its pipes.
struct Opener(Child);

impl Opener {
    fn new(path: &Path) -> Self {
        let script = format!("exec 9<>'{}'; echo open; read end", path.display());
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        Self(child)
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn holders_are_found_by_number_whatever_the_name() {
    let host = Host::new();
    // A number of its own, that nothing else on this machine has open:
    // /dev/full (1:7) opened by this test's children alone.
    let node = |path: &str| {
        let path = host.path(path);
        mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 7)).unwrap();
        path
    };
    node("dev/vfio/3");
    let elsewhere = node("private");
    host.node("dev/vfio/4");
    let query = |pid, nodes: &[&str]| {
        let nodes = nodes.iter().map(|node| NodePath::new(*node).unwrap()).collect();
        host.kernel.holders(&HolderQuery { nodes, pid }).unwrap()
    };
    let own = Some(std::process::id());
    assert_eq!(query(own, &["vfio/3"]), [], "before it was opened");
    let named = nix::fcntl::open(&elsewhere, OFlag::O_PATH, Mode::empty()).unwrap();
    assert_eq!(query(own, &["vfio/3"]), [], "a descriptor that only names it holds nothing");
    drop(named);
    let opener = Opener::new(&elsewhere);
    let holder = Holder {
        pid: opener.0.id(),
        command: "sh".into(),
        device: "vfio/3".into(),
        node: elsewhere.to_str().unwrap().into(),
    };
    assert_eq!(query(None, &["vfio/9", "vfio/3"]), std::slice::from_ref(&holder));
    assert_eq!(query(Some(holder.pid), &["vfio/3"]), std::slice::from_ref(&holder));
    assert_eq!(query(Some(holder.pid), &["vfio/4"]), []);
    assert_eq!(query(own, &["vfio/3"]), [], "another process holds it");
    assert_eq!(query(None, &["vfio/9", "vfio"]), []);
    drop(opener);
    assert_eq!(query(Some(holder.pid), &["vfio/3"]), [], "after it ended");
}

#[test]
fn a_missing_root_is_named() {
    let roots = Roots { sys: "/no/such/root".into(), ..Roots::default() };
    let error = RealKernel::new(&roots, Programs::default()).err().unwrap().to_string();
    assert_eq!(error, "cannot open the root /no/such/root: No such file or directory");
}

/// As a user who may not look into other users' processes, nobody is not the
/// answer.
#[test]
fn nobody_found_is_no_answer_when_processes_refuse() {
    let host = Host::new();
    let dir = host.path("proc/41/fd");
    fs::create_dir_all(&dir).unwrap();
    host.node("dev/vfio/3");
    let roots = Roots { sys: host.path("sys"), dev: host.path("dev"), proc: host.path("proc") };
    let kernel = RealKernel::new(&roots, Programs::default()).unwrap();
    let query = HolderQuery { nodes: vec![NodePath::new("vfio/3").unwrap()], pid: None };
    assert_eq!(kernel.holders(&query), Ok(vec![]));
    // Anything but a directory stands for what cannot be looked into: as root
    // no mode keeps us out.
    fs::remove_dir(&dir).unwrap();
    host.file("proc/41/fd", "");
    assert_eq!(kernel.holders(&query), Err(Errno::ENOTDIR));
    host.link("proc/42/fd/5", "../../../dev/vfio/3");
    host.file("proc/42/comm", "qemu\n");
    let holder = Holder {
        pid: 42,
        command: "qemu".into(),
        device: "vfio/3".into(),
        node: "../../../dev/vfio/3".into(),
    };
    assert_eq!(kernel.holders(&query), Ok(vec![holder]));
}
