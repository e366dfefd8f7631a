//! One test for each fact about the kernel that the simulation keeps.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod binding;
mod chaos;
mod events;
mod faults;
mod gim;
mod gvt;
mod i915;
mod mdevs;
mod nvidia;
mod nvidia_mig;
mod nvidia_sizes;
mod nvidia_sriov;
mod scale;
mod specs;
mod tree;
mod vfio;
mod vfs;
mod xe;

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use nix::errno::Errno;

use super::{HostSpec, SimKernel};
use crate::sys::{Kernel, KernelEvent, NodePath, ReadKind, SysPath, Value};

/// Long enough for a thread that is not blocked to have answered.
const SOON: Duration = Duration::from_secs(10);
/// How long a thread must not have answered to count as blocked.
const BLOCKED: Duration = Duration::from_millis(50);

const PF: &str = "bus/pci/devices/0000:41:00.0";
const VF: &str = "bus/pci/devices/0000:41:00.1";
const MTTY: &str = "class/mdev_bus/mtty";
const UUID: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";

fn host(text: &str) -> SimKernel {
    SimKernel::new(&HostSpec::parse(text, "host.toml").unwrap()).unwrap()
}

fn builtin() -> SimKernel {
    SimKernel::new(&HostSpec::builtin().unwrap()).unwrap()
}

impl SimKernel {
    fn put(&self, path: &str, value: &str) -> Result<(), Errno> {
        self.write(&SysPath::new(path).unwrap(), value)
    }

    fn text(&self, path: &str) -> Result<String, Errno> {
        match self.read(path, ReadKind::Text)? {
            Value::Text(text) => Ok(text),
            other => panic!("{other:?}"),
        }
    }

    fn link(&self, path: &str) -> Result<String, Errno> {
        match self.read(path, ReadKind::Link)? {
            Value::Link(text) => Ok(text),
            other => panic!("{other:?}"),
        }
    }

    fn list(&self, path: &str) -> Vec<String> {
        match self.read(path, ReadKind::Names) {
            Ok(Value::Names(mut names)) => {
                names.sort();
                names
            }
            other => panic!("{path}: {other:?}"),
        }
    }

    fn has(&self, path: &str) -> bool {
        self.entry(path).is_ok()
    }

    fn make(&self, parent: &str, type_id: &str, uuid: &str) -> Result<(), Errno> {
        self.put(&format!("{parent}/mdev_supported_types/{type_id}/create"), uuid)
    }

    fn left(&self, parent: &str, type_id: &str) -> String {
        self.text(&format!("{parent}/mdev_supported_types/{type_id}/available_instances"))
            .unwrap()
            .trim_end()
            .to_owned()
    }

    /// The node of a device's group.
    fn group_node(&self, device: &str) -> NodePath {
        node(&format!("vfio/{}", self.link(&format!("{device}/iommu_group")).unwrap()))
    }

    /// The device's own node.
    fn cdev_node(&self, device: &str) -> NodePath {
        node(&format!("vfio/devices/{}", self.list(&format!("{device}/vfio-dev"))[0]))
    }

    /// One VF on vfio-pci at [`VF`].
    fn with_vf_on_vfio(self) -> Self {
        self.put(&format!("{PF}/sriov_drivers_autoprobe"), "0").unwrap();
        self.put(&format!("{PF}/sriov_numvfs"), "1").unwrap();
        self.put(&format!("{VF}/driver_override"), "vfio-pci\n").unwrap();
        self.put("bus/pci/drivers_probe", "0000:41:00.1").unwrap();
        assert_eq!(self.link(&format!("{VF}/driver")).unwrap(), "vfio-pci");
        self
    }

    /// [`SimKernel::heard`], to be waited for.
    fn events(&self) -> mpsc::Receiver<String> {
        let (send, receive) = mpsc::channel();
        self.on_event(Box::new(move |event| drop(send.send(short(event)))));
        receive
    }

    /// `action subsystem:name` of each event from now on.
    fn heard(&self) -> Arc<Mutex<Vec<String>>> {
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let sink = heard.clone();
        self.on_event(Box::new(move |event| sink.lock().unwrap().push(short(event))));
        heard
    }
}

/// Waits for an event that begins so.
fn wait_for(events: &mpsc::Receiver<String>, wanted: &str) {
    while !events.recv_timeout(SOON).expect("the event does not come").starts_with(wanted) {}
}

fn short(event: &KernelEvent) -> String {
    let name = event.devpath.rsplit('/').next().unwrap();
    format!("{} {}:{name}", event.action, event.subsystem)
}

fn node(path: &str) -> NodePath {
    NodePath::new(path).unwrap()
}

/// Something that runs on a thread of its own.
struct Running<T>(mpsc::Receiver<T>);

fn start<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> Running<T> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || send.send(what()));
    Running(receive)
}

impl<T: std::fmt::Debug> Running<T> {
    fn is_blocked(&self) -> bool {
        self.0.recv_timeout(BLOCKED).is_err()
    }

    fn end(self) -> T {
        self.0.recv_timeout(SOON).expect("it does not come back")
    }
}
