//! The lab's host, simulated, for the conformance cases.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use vgpu_mdev::sys::{
    Executor, Kernel, KernelEvent, Lanes, NodePath, ProbeTarget,
    sim::{HostSpec, SimKernel},
};

use crate::conformance::{Held, Host};

/// The lab's host with groups only.
pub fn lab() -> Box<dyn Host> {
    Box::new(Twin::new(false))
}

/// The lab's host with cdevs as well.
pub fn lab_with_cdevs() -> Box<dyn Host> {
    Box::new(Twin::new(true))
}

struct Twin {
    kernel: SimKernel,
    has_cdevs: bool,
    last_pid: AtomicU32,
}

impl Twin {
    fn new(has_cdevs: bool) -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/hosts/lab.toml");
        let mut spec = HostSpec::parse(&std::fs::read_to_string(path).unwrap(), path).unwrap();
        spec.vfio.cdevs = has_cdevs;
        Self { kernel: SimKernel::new(&spec).unwrap(), has_cdevs, last_pid: AtomicU32::new(100) }
    }

    fn holder(&self, hold: impl FnOnce(u32, &str) -> Box<dyn Any + Send>) -> Held {
        let (pid, command) = (self.last_pid.fetch_add(1, Ordering::Relaxed), "holder");
        Held { pid, command: command.into(), guard: hold(pid, command) }
    }
}

impl Host for Twin {
    fn kernel(&self) -> Arc<dyn Kernel> {
        Arc::new(self.kernel.clone())
    }

    fn executor(&self) -> Arc<dyn Executor> {
        Arc::new(Lanes::new(Arc::new(self.kernel.clone())))
    }

    fn boot_id(&self) -> String {
        self.kernel.boot_id().into()
    }

    fn module_aliases(&self) -> String {
        self.kernel.module_aliases().into()
    }

    fn has_cdevs(&self) -> bool {
        self.has_cdevs
    }

    fn record(&self, listener: Box<dyn Fn(&KernelEvent) + Send + Sync>) -> Box<dyn Any + Send> {
        self.kernel.on_event(listener);
        Box::new(())
    }

    fn listen(&self, listener: Box<dyn Fn(&KernelEvent) + Send + Sync>) -> Box<dyn Any + Send> {
        self.kernel.on_settled_event(listener);
        // The kernel ends with the case, and its listeners with it.
        Box::new(())
    }

    fn settle(&self) {
        // Events are heard before the call that caused them returns.
    }

    fn hold(&self, device: &ProbeTarget) -> Held {
        let node = device.cdev.as_ref().or(device.group.as_ref()).unwrap();
        self.holder(|pid, command| Box::new(self.kernel.hold(node, pid, command).unwrap()))
    }

    fn hold_node(&self, node: &NodePath) -> Held {
        self.holder(|pid, command| Box::new(self.kernel.hold_unbound(node, pid, command).unwrap()))
    }

    fn owner(&self, node: &NodePath) -> Option<u32> {
        self.kernel.owner(node)
    }
}
