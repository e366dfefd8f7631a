//! What a case needs of a host besides its kernel.

use std::{any::Any, sync::Arc};

use vgpu_mdev::sys::{Executor, Kernel, KernelEvent, NodePath, ProbeTarget};

/// A host to run cases on: simulated or real.
pub trait Host: Sync {
    /// Its kernel.
    fn kernel(&self) -> Arc<dyn Kernel>;

    /// New lanes over its kernel.
    fn executor(&self) -> Arc<dyn Executor>;

    /// Its boot id.
    fn boot_id(&self) -> String;

    /// Its `modules.alias`.
    fn module_aliases(&self) -> String;

    /// Whether VFIO devices have nodes of their own.
    fn has_cdevs(&self) -> bool;

    /// Calls `listener` with every event from now on, as the kernel sends it,
    /// until what is returned is dropped.
    fn record(&self, listener: Box<dyn Fn(&KernelEvent) + Send + Sync>) -> Box<dyn Any + Send>;

    /// Calls `listener` as an engine's host does: with the events that concern
    /// it, once udev has had them.
    fn listen(&self, listener: Box<dyn Fn(&KernelEvent) + Send + Sync>) -> Box<dyn Any + Send>;

    /// Returns when udev is done with all events so far.
    fn settle(&self);

    /// Makes another process hold a device as a VMM does.
    fn hold(&self, device: &ProbeTarget) -> Held;

    /// Makes another process open a node, and no more.
    fn hold_node(&self, node: &NodePath) -> Held;

    /// The user who owns a node.
    fn owner(&self, node: &NodePath) -> Option<u32>;
}

/// Another process that holds something, until this is dropped.
pub struct Held {
    /// Its process id.
    pub pid: u32,
    /// Its command's name.
    pub command: String,
    /// What ends the holding when it is dropped.
    pub guard: Box<dyn Any + Send>,
}
