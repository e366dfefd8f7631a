//! NVIDIA's driver and programs: what a GPU takes, MIG and heterogeneous mode,
//! `sriov-manage` and `nvidia-smi`.

mod mig;
mod mig_command;
mod query;
mod rules;
mod smi;
mod spec;
mod sriov_manage;

use std::{collections::BTreeMap, sync::Arc};

use nix::errno::Errno;

use crate::{
    framebuffer::Run,
    model::PciAddress,
    sys::{ToolId, ToolOutput},
};

use super::{
    core::Core,
    state::{Member, NodeKey, Role, State},
};

pub use self::{
    mig::Geometry,
    spec::{GpuGeneration, ListOrder, NvidiaSpec},
};
pub(super) use self::{rules::Misfit, sriov_manage::deliver_late};

/// NVIDIA's PCI vendor id.
const VENDOR: u16 = 0x10de;
/// Its driver for GPUs and VFs.
const DRIVER: &str = "nvidia";
/// The driver on which a PF is while its VFs are enabled or disabled.
pub(super) const STUB: &str = "pci-pf-stub";

/// A GPU, as the driver knows it.
pub(super) struct Nvidia {
    spec: Arc<NvidiaSpec>,
    /// MIG mode, and what it will be after the next reset.
    mig: bool,
    pending: bool,
    /// Heterogeneous mode.
    mixed: bool,
    /// The GPU instances, by number.
    instances: BTreeMap<u32, mig::Instance>,
    /// The vGPUs: mdevs, or VFs that carry one.
    carried: BTreeMap<Member, Carried>,
    /// VFs that have not appeared yet.
    late: u16,
}

/// A vGPU.
struct Carried {
    gib: u64,
    run: Run,
    instance: Option<u32>,
}

impl Nvidia {
    fn new(spec: NvidiaSpec) -> Self {
        Self {
            mig: spec.mig_mode,
            pending: spec.mig_mode,
            mixed: false,
            instances: BTreeMap::new(),
            carried: BTreeMap::new(),
            late: 0,
            spec: Arc::new(spec),
        }
    }

    fn layout(&self) -> Option<&'static mig::Layout> {
        self.spec.mig.map(Geometry::layout)
    }

    /// What the GPU forgets when its driver lets go of it, or at a reset. A MIG
    /// mode that waited becomes effective.
    fn reset(&mut self) {
        self.instances.clear();
        self.mixed = false;
        self.mig = self.pending;
    }

    /// How a list of types is written.
    pub(super) fn list_order(&self) -> ListOrder {
        self.spec.list_order
    }

    /// Whether MIG mode is on after the next boot.
    pub(super) fn mig_at_next_boot(&self) -> bool {
        self.spec.mig_persists && self.pending
    }
}

/// Whether a function is one of NVIDIA's GPUs, with its driver.
pub(super) fn is_gpu(vendor: u16, class: u32, driver: Option<&str>) -> bool {
    vendor == VENDOR && class >> 16 == 3 && driver == Some(DRIVER)
}

impl State {
    /// Makes a GPU known to the driver.
    pub(super) fn add_nvidia(&mut self, gpu: PciAddress, spec: NvidiaSpec) {
        self.nvidia.insert(gpu, Nvidia::new(spec));
    }

    /// A driver lets go of a function.
    pub(super) fn nvidia_unbound(&mut self, function: PciAddress) {
        if let Some(gpu) = self.nvidia.get_mut(&function) {
            gpu.reset();
        }
    }

    /// Whether the driver has the PF of one of its VFs; it takes no VF before.
    pub(super) fn nvidia_has_pf(&self, pf: PciAddress) -> bool {
        !self.nvidia.contains_key(&pf) || self.is_on_nvidia(pf)
    }

    /// Whether a GPU is on its own driver.
    fn is_on_nvidia(&self, gpu: PciAddress) -> bool {
        let driver = self.pci.get(&gpu).and_then(|device| self.driver_of(device));
        driver.is_some_and(|driver| *driver.name == *DRIVER)
    }

    fn vf_count(&self, gpu: PciAddress) -> u16 {
        match self.pci.get(&gpu).map(|device| &device.role) {
            Some(Role::Pf(sriov)) => sriov.count,
            _ => 0,
        }
    }

    /// The VFs of a GPU that are there.
    fn vfs_of(&self, gpu: PciAddress) -> Vec<PciAddress> {
        let is_vf = |role: &Role| matches!(role, Role::Vf { pf, .. } if *pf == gpu);
        let vfs = self.pci.iter().filter(|(_, device)| is_vf(&device.role));
        vfs.map(|(address, _)| *address).collect()
    }

    /// Whether a process uses a GPU, itself or through a vGPU: then the driver
    /// does not let go of it (`unbindLock` reads 0).
    fn is_in_use(&self, gpu: PciAddress) -> bool {
        let card = self.pci.get(&gpu).and_then(|device| device.card);
        let drawn_on = card.is_some_and(|card| self.holds.contains_key(&NodeKey::Card(card)));
        let monitored = self.nvidia.get(&gpu).is_some_and(|gpu| gpu.spec.nvml_held);
        let parents = || self.vfs_of(gpu).into_iter().chain([gpu]);
        let mdevs = || {
            parents()
                .filter_map(|function| self.pci.get(&function)?.parent.as_deref())
                .flat_map(|parent| parent.members.iter().map(|(_, uuid)| Member::Mdev(*uuid)))
        };
        drawn_on
            || monitored
            || parents().any(|function| self.is_held(Member::Pci(function)))
            || mdevs().any(|mdev| self.is_held(mdev))
    }
}

/// Runs one of NVIDIA's programs; a host without such a GPU does not have them.
pub(super) fn run(core: &Core, tool: ToolId, args: &[String]) -> Result<ToolOutput, Errno> {
    if core.state().nvidia.is_empty() {
        return Err(Errno::ENOENT);
    }
    let answer = match tool {
        ToolId::SriovManage => sriov_manage::run(core, args),
        _ => smi::run(core, args),
    };
    core.events.settle();
    core.wake();
    Ok(ToolOutput { status: Some(answer.status), output: answer.text })
}

/// What a program says, and its exit status.
#[derive(Default)]
struct Answer {
    text: String,
    status: i32,
}

impl Answer {
    fn failed(status: i32, text: impl Into<String>) -> Self {
        Self { text: text.into(), status }
    }

    fn line(&mut self, text: impl AsRef<str>) {
        self.text.push_str(text.as_ref());
        self.text.push('\n');
    }
}
