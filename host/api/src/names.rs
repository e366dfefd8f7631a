//! Every name on the bus, in one place.

/// The bus name of the service.
pub const SERVICE: &str = "org.vgpu.Host1";

/// The path of the manager object; all others are below it.
pub const ROOT: &str = "/org/vgpu/Host1";
/// The parent of the GPUs' objects.
pub const GPUS: &str = "/org/vgpu/Host1/gpus";
/// The parent of the vGPUs' objects.
pub const VGPUS: &str = "/org/vgpu/Host1/vgpus";
/// The parent of the jobs' objects.
pub const JOBS: &str = "/org/vgpu/Host1/jobs";
/// Stands for no object: the job of a call whose work is done.
pub const NONE: &str = "/";

/// The interface of the manager.
pub const MANAGER: &str = "org.vgpu.Host1.Manager";
/// The interface of a GPU.
pub const GPU: &str = "org.vgpu.Host1.Gpu";
/// The interface of a vGPU.
pub const VGPU: &str = "org.vgpu.Host1.Vgpu";
/// The interface of a GPU with MIG; absent where it has none.
pub const MIG: &str = "org.vgpu.Host1.Mig1";
/// The interface of a GPU with heterogeneous mode; absent where it has none.
pub const HETEROGENEOUS: &str = "org.vgpu.Host1.Heterogeneous1";
/// The interface of a vGPU of NVIDIA's vendor-specific VFIO; absent at others.
pub const NVIDIA_VGPU: &str = "org.vgpu.Host1.NvidiaVgpu1";
/// The interface of a job.
pub const JOB: &str = "org.vgpu.Host1.Job";

/// The standard interfaces that every object answers; the object manager is at
/// [`ROOT`] alone.
pub mod standard {
    /// Ping and the machine's id.
    pub const PEER: &str = "org.freedesktop.DBus.Peer";
    /// What an object has.
    pub const INTROSPECTABLE: &str = "org.freedesktop.DBus.Introspectable";
    /// Reading properties.
    pub const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
    /// All objects at once.
    pub const OBJECT_MANAGER: &str = "org.freedesktop.DBus.ObjectManager";
}

/// Keys of options (`a{sv}`) and filters.
pub mod option {
    /// `s`: a GPU, by address or parent name.
    pub const GPU: &str = "gpu";
    /// `s`: a UUID.
    pub const UUID: &str = "uuid";
    /// `s`: a vGPU's name.
    pub const NAME: &str = "name";
    /// `u`: the owner.
    pub const OWNER_UID: &str = "owner-uid";
    /// `s`: a VF's address.
    pub const FUNCTION: &str = "function";
    /// `u`: a NUMA node.
    pub const NUMA_NODE: &str = "numa-node";
    /// `s`: a pool of GPUs, as `host.toml` names it.
    pub const POOL: &str = "pool";
    /// `s`: how a GPU is chosen, `pack` or `spread`.
    pub const PLACEMENT: &str = "placement";
    /// `b`: whether the number of VFs may be changed.
    pub const ENABLE_VFS: &str = "enable-vfs";
    /// `u`: how many VFs a GPU has.
    pub const VFS: &str = "vfs";
    /// `b`: MIG mode.
    pub const MIG: &str = "mig";
    /// `as`: the MIG GPU instances, by shape.
    pub const INSTANCES: &str = "instances";
    /// `b`: vGPUs of several sizes side by side.
    pub const HETEROGENEOUS: &str = "heterogeneous";
    /// `b`: although it is held.
    pub const FORCE: &str = "force";
    /// `b`: the group's descriptor where there is no cdev.
    pub const GROUP: &str = "group";
    /// `b`: made or adopted by us.
    pub const MANAGED: &str = "managed";
}
