//! The lab's guest, as tests see it (`tests/lab/README.md`).

mod uevents;

use std::{
    any::Any,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, OnceLock},
};

use vgpu_mdev::{
    sys::{
        Executor, Kernel, KernelEvent, Lanes, NodePath, ProbeTarget,
        real::{MonitorItem, Programs, RealKernel, Roots, monitor},
    },
    vfio,
};

use self::uevents::Uevents;
use crate::conformance::{Held, Host, Picture};

/// Fails a test that is run anywhere else: it would change the host.
///
/// # Panics
/// Outside the lab.
pub fn require() {
    assert_eq!(
        std::env::var("VGPU_LAB").as_deref(),
        Ok("1"),
        "this test changes devices and runs in the lab: make lab"
    );
}

/// Where the built programs are.
///
/// # Panics
/// Outside the lab.
pub fn bin_dir() -> PathBuf {
    std::env::var_os("VGPU_BIN_DIR").expect("the lab sets VGPU_BIN_DIR").into()
}

/// What the guest's sysfs looks like now.
pub fn picture() -> Picture {
    Picture::of(&*kernel())
}

/// The real kernel of the guest.
pub struct Lab;

impl Lab {
    /// The guest.
    ///
    /// # Panics
    /// Outside the lab.
    pub fn boxed() -> Box<dyn Host> {
        require();
        Box::new(Self)
    }
}

/// One for the whole process: lanes that have not ended yet keep it.
fn kernel() -> Arc<RealKernel> {
    static KERNEL: OnceLock<Arc<RealKernel>> = OnceLock::new();
    let open = || {
        let programs = Programs { probe: bin_dir().join("vgpu-vfio-probe"), ..Programs::default() };
        Arc::new(RealKernel::new(&Roots::default(), programs).unwrap())
    };
    KERNEL.get_or_init(open).clone()
}

impl Host for Lab {
    fn kernel(&self) -> Arc<dyn Kernel> {
        kernel()
    }

    fn executor(&self) -> Arc<dyn Executor> {
        Arc::new(Lanes::new(kernel()))
    }

    fn boot_id(&self) -> String {
        fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
    }

    fn module_aliases(&self) -> String {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        fs::read_to_string(format!("/lib/modules/{}/modules.alias", release.trim())).unwrap()
    }

    fn has_cdevs(&self) -> bool {
        match std::env::var("VGPU_LAB_TREE").as_deref() {
            Ok("cdev") => true,
            Ok("stock") => false,
            other => panic!("VGPU_LAB_TREE is {other:?}"),
        }
    }

    fn record(&self, listener: Box<dyn Fn(&KernelEvent) + Send + Sync>) -> Box<dyn Any + Send> {
        Box::new(Uevents::listen(listener))
    }

    fn listen(&self, listener: Box<dyn Fn(&KernelEvent) + Send + Sync>) -> Box<dyn Any + Send> {
        let handle = monitor(move |item| match item {
            MonitorItem::Event(event) => listener(&event),
            MonitorItem::Overrun => panic!("events were lost"),
        });
        Box::new(handle.unwrap())
    }

    fn settle(&self) {
        let status = Command::new("udevadm").args(["settle", "--timeout=60"]).status().unwrap();
        assert!(status.success(), "udev does not settle");
    }

    fn hold(&self, device: &ProbeTarget) -> Held {
        holder(vfio::arguments(device))
    }

    fn hold_node(&self, node: &NodePath) -> Held {
        holder(vec!["--node".into(), node.to_string()])
    }

    fn owner(&self, node: &NodePath) -> Option<u32> {
        fs::metadata(node.to_string()).ok().map(|node| {
            assert!(node.uid() == 0 || node.mode() & 0o777 == 0o600, "mode {:o}", node.mode());
            node.uid()
        })
    }
}

/// Starts `vgpu-hold` and returns once it holds.
fn holder(args: Vec<String>) -> Held {
    let command = "vgpu-hold";
    let child = Command::new(bin_dir().join(command))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Ended(child);
    let mut said = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "held\n", "{command} holds nothing");
    Held { pid: child.0.id(), command: command.into(), guard: Box::new(child) }
}

/// A child that is told to end, and has ended once this is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
