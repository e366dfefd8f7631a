//! The lab's host, simulated, for the conformance cases: its kernel spoken to in
//! process, or its sysfs through a mount.

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

use super::Mounted;
use crate::conformance::{Held, Host};

/// The lab's host with groups only.
pub fn lab() -> Box<dyn Host> {
    in_process(false)
}

/// The lab's host with cdevs as well.
pub fn lab_with_cdevs() -> Box<dyn Host> {
    in_process(true)
}

/// The lab's host with groups only, its sysfs mounted.
pub fn mounted_lab() -> Box<dyn Host> {
    mounted(false)
}

/// The lab's host with cdevs as well, its sysfs mounted.
pub fn mounted_lab_with_cdevs() -> Box<dyn Host> {
    mounted(true)
}

fn in_process(has_cdevs: bool) -> Box<dyn Host> {
    let simulation = SimKernel::new(&spec(has_cdevs)).unwrap();
    Box::new(Twin::new(simulation.clone(), Arc::new(simulation), None, has_cdevs))
}

fn mounted(has_cdevs: bool) -> Box<dyn Host> {
    let mounted = Mounted::new(&spec(has_cdevs));
    let (simulation, kernel) = (mounted.simulation.clone(), mounted.kernel.clone());
    Box::new(Twin::new(simulation, kernel, Some(mounted), has_cdevs))
}

fn spec(has_cdevs: bool) -> HostSpec {
    let mut spec = super::described("lab");
    spec.vfio.cdevs = has_cdevs;
    spec
}

/// A simulation, and the kernel through which it is spoken to.
struct Twin<K> {
    simulation: SimKernel,
    kernel: Arc<K>,
    _mounted: Option<Mounted>,
    has_cdevs: bool,
    last_pid: AtomicU32,
}

impl<K: Kernel> Twin<K> {
    fn new(
        simulation: SimKernel,
        kernel: Arc<K>,
        mounted: Option<Mounted>,
        has_cdevs: bool,
    ) -> Self {
        let last_pid = AtomicU32::new(100);
        Self { simulation, kernel, _mounted: mounted, has_cdevs, last_pid }
    }

    fn holder(&self, hold: impl FnOnce(u32, &str) -> Box<dyn Any + Send>) -> Held {
        let (pid, command) = (self.last_pid.fetch_add(1, Ordering::Relaxed), "holder");
        Held { pid, command: command.into(), guard: hold(pid, command) }
    }
}

impl<K: Kernel> Host for Twin<K> {
    fn kernel(&self) -> Arc<dyn Kernel> {
        self.kernel.clone()
    }

    fn executor(&self) -> Arc<dyn Executor> {
        Arc::new(Lanes::new(self.kernel.clone()))
    }

    fn boot_id(&self) -> String {
        self.simulation.boot_id().into()
    }

    fn module_aliases(&self) -> String {
        self.simulation.module_aliases().into()
    }

    fn has_cdevs(&self) -> bool {
        self.has_cdevs
    }

    fn record(&self, listener: Box<dyn Fn(&KernelEvent) + Send + Sync>) -> Box<dyn Any + Send> {
        self.simulation.on_event(listener);
        Box::new(())
    }

    fn listen(&self, listener: Box<dyn Fn(&KernelEvent) + Send + Sync>) -> Box<dyn Any + Send> {
        self.simulation.on_settled_event(listener);
        // The kernel ends with the case, and its listeners with it.
        Box::new(())
    }

    fn settle(&self) {
        // Events are heard before the call that caused them returns.
    }

    fn hold(&self, device: &ProbeTarget) -> Held {
        let node = device.cdev.as_ref().or(device.group.as_ref()).unwrap();
        self.holder(|pid, command| Box::new(self.simulation.hold(node, pid, command).unwrap()))
    }

    fn hold_node(&self, node: &NodePath) -> Held {
        self.holder(|pid, command| {
            Box::new(self.simulation.hold_unbound(node, pid, command).unwrap())
        })
    }

    fn owner(&self, node: &NodePath) -> Option<u32> {
        self.simulation.owner(node)
    }
}
