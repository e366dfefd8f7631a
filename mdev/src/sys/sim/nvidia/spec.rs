//! What is described of an NVIDIA GPU beyond its PCI function.

use serde::Deserialize;

use crate::framebuffer::Generation;

use super::mig::Geometry;

/// An NVIDIA GPU, as its driver and its programs know it.
///
/// ```toml
/// [pci.nvidia]
/// product = "NVIDIA A100-PCIE-40GB"
/// generation = "ampere"
/// mig = "a100-40gb"
/// mig-persists = true
/// heterogeneous = true
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct NvidiaSpec {
    /// Its product name.
    pub product: String,
    /// Its generation: how its framebuffer is divided.
    pub generation: GpuGeneration,
    /// Which GPU instances it takes; none: it has no MIG.
    pub mig: Option<Geometry>,
    /// MIG mode at boot.
    pub mig_mode: bool,
    /// A change of MIG mode waits for a reset of the GPU, or for its driver to
    /// be bound anew.
    pub mig_reset_needed: bool,
    /// MIG mode outlives a reboot: on Ampere it is kept on the board.
    pub mig_persists: bool,
    /// The most vGPUs that share a GPU instance: 1 before Blackwell.
    pub vgpus_per_instance: u32,
    /// Whether it can have vGPUs of several sizes side by side.
    pub heterogeneous: bool,
    /// VFs that never appear, although enabling them succeeds.
    pub missing_vfs: u16,
    /// VFs that appear later, see
    /// [`SimKernel::deliver_late_vfs`](crate::sys::sim::SimKernel::deliver_late_vfs).
    pub late_vfs: u16,
    /// Whether some program holds it through NVML, as monitoring does.
    pub nvml_held: bool,
    /// Whether its driver is loaded at boot; otherwise `modprobe nvidia` does it.
    pub loaded: bool,
    /// How `creatable_vgpu_types` lists.
    pub list_order: ListOrder,
}

impl Default for NvidiaSpec {
    /// A GPU without MIG and without heterogeneous mode.
    fn default() -> Self {
        Self {
            product: "NVIDIA Graphics Device".into(),
            generation: GpuGeneration::Ampere,
            mig: None,
            mig_mode: false,
            mig_reset_needed: false,
            mig_persists: false,
            vgpus_per_instance: 1,
            heterogeneous: false,
            missing_vfs: 0,
            late_vfs: 0,
            nvml_held: false,
            loaded: true,
            list_order: ListOrder::IdFirst,
        }
    }
}

/// A generation of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuGeneration {
    /// Ampere, and Turing before it.
    Ampere,
    /// Ada and Hopper.
    Ada,
    /// Blackwell.
    Blackwell,
}

impl From<GpuGeneration> for Generation {
    fn from(generation: GpuGeneration) -> Self {
        match generation {
            GpuGeneration::Ampere => Self::Ampere,
            GpuGeneration::Ada => Self::Ada,
            GpuGeneration::Blackwell => Self::Blackwell,
        }
    }
}

/// How a VF's list of types is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListOrder {
    /// `1145  : NVIDIA L40S-1B`, as captured.
    IdFirst,
    /// `NVIDIA A40-2Q   558`, as in NVIDIA's documents.
    NameFirst,
}
