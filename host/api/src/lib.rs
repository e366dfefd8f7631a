//! The D-Bus contract of vgpu-host, for its daemon and its clients: the
//! interfaces' XML, names, object paths, wire types, errors and client proxies.
//!
//! The XML in `interfaces/` is the contract; everything else follows it.

pub mod error;
pub mod names;
pub mod path;
pub mod proxy;
pub mod wire;

/// The interfaces, as introspection answers them and as people read them.
pub mod interfaces {
    /// The host as a whole.
    pub const MANAGER: &str = include_str!("../interfaces/org.vgpu.Host1.Manager.xml");
    /// A GPU.
    pub const GPU: &str = include_str!("../interfaces/org.vgpu.Host1.Gpu.xml");
    /// A vGPU.
    pub const VGPU: &str = include_str!("../interfaces/org.vgpu.Host1.Vgpu.xml");
    /// A job.
    pub const JOB: &str = include_str!("../interfaces/org.vgpu.Host1.Job.xml");
    /// MIG of a GPU.
    pub const MIG: &str = include_str!("../interfaces/org.vgpu.Host1.Mig1.xml");
    /// Heterogeneous mode of a GPU.
    pub const HETEROGENEOUS: &str = include_str!("../interfaces/org.vgpu.Host1.Heterogeneous1.xml");
    /// What NVIDIA's driver tells of a vGPU.
    pub const NVIDIA_VGPU: &str = include_str!("../interfaces/org.vgpu.Host1.NvidiaVgpu1.xml");
    /// All of them.
    pub const ALL: [&str; 7] = [MANAGER, GPU, MIG, HETEROGENEOUS, VGPU, NVIDIA_VGPU, JOB];
}
