//! The words of vgpu-host as types: addresses, names, GPUs, profiles, vGPUs,
//! and the immutable [`Snapshot`] that holds one picture of a host.

mod address;
mod gpu;
mod names;
mod params;
mod profile;
mod snapshot;
mod vgpu;

pub use address::{ParseAddressError, PciAddress};
pub use gpu::{Function, FunctionState, Gpu, GpuState, MigState, Problem};
pub use names::{Framework, GpuId, InvalidName, ParentName, TypeId, VgpuName, parse_uuid};
pub use params::{InvalidParams, VgpuParams};
pub use profile::{Profile, Reason, ReasonCode};
pub use snapshot::{Change, Event, Snapshot};
pub use vgpu::{Holder, InUse, Node, NodeKind, NvidiaVgpu, Vgpu, VgpuState};
