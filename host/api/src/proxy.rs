//! Clients' view of the contract: one proxy for each interface, exactly as the
//! XML in `interfaces/` has it.
//!
//! Methods that change something allow the daemon to ask for a password.
//! Nothing is cached: a value is read when it is asked for.

use std::collections::HashMap;

use zbus::{OwnedFd, OwnedObjectPath, OwnedVariant, Variant, proxy};

use crate::wire::{
    ChoiceEntry, GpuEntry, HolderEntry, ProfileEntry, ProfileFacts, RemainingEntry, VgpuEntry,
};

/// Options of a call by name.
pub type Options<'a> = HashMap<&'a str, Variant<'a>>;
/// Facts by name, as the service answers them.
pub type Facts = HashMap<String, OwnedVariant>;
/// The host as a whole.
#[proxy(
    interface = "org.vgpu.Host1.Manager",
    default_service = "org.vgpu.Host1",
    default_path = "/org/vgpu/Host1"
)]
pub trait Manager {
    /// Makes a vGPU of a profile.
    #[zbus(allow_interactive_auth)]
    fn create_vgpu(
        &self,
        profile: &str,
        options: &Options<'_>,
    ) -> zbus::Result<(OwnedObjectPath, bool, OwnedObjectPath)>;

    /// The object of a GPU, named by PCI address or parent name.
    fn get_gpu(&self, name: &str) -> zbus::Result<OwnedObjectPath>;

    /// The object of a vGPU, named by UUID or name.
    fn get_vgpu(&self, name: &str) -> zbus::Result<OwnedObjectPath>;

    /// Places many vGPUs, and changes nothing.
    fn plan_vgpus(
        &self,
        wishes: &[(&str, u32)],
        options: &Options<'_>,
    ) -> zbus::Result<(Vec<ChoiceEntry<'static>>, Vec<RemainingEntry<'static>>)>;

    /// The vGPU whose VFIO node the process has open.
    #[zbus(name = "GetVgpuByPid", allow_interactive_auth)]
    fn get_vgpu_by_pid(&self, pid: u32) -> zbus::Result<OwnedObjectPath>;

    /// All GPUs.
    fn list_gpus(&self) -> zbus::Result<Vec<GpuEntry<'static>>>;

    /// The profiles that pass the filter.
    fn list_profiles(&self, filter: &Options<'_>) -> zbus::Result<Vec<ProfileEntry<'static>>>;

    /// The vGPUs that pass the filter.
    fn list_vgpus(&self, filter: &Options<'_>) -> zbus::Result<Vec<VgpuEntry<'static>>>;

    /// Looks at the whole host again.
    fn rescan(&self) -> zbus::Result<()>;

    /// Work that outlives its call has begun.
    #[zbus(signal)]
    fn job_new(&self, id: u32, job: zbus::ObjectPath<'_>) -> zbus::Result<()>;

    /// Work that outlived its call is over.
    #[zbus(signal)]
    fn job_removed(
        &self,
        id: u32,
        job: zbus::ObjectPath<'_>,
        result: &str,
        details: HashMap<String, Variant<'_>>,
    ) -> zbus::Result<()>;

    /// The service's version.
    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> zbus::Result<String>;

    /// Whether the kernel below is a simulated one.
    #[zbus(property(emits_changed_signal = "const"))]
    fn simulated(&self) -> zbus::Result<bool>;

    /// The frameworks that the service knows.
    #[zbus(property(emits_changed_signal = "const"))]
    fn frameworks(&self) -> zbus::Result<Vec<String>>;
}

/// A GPU.
#[proxy(interface = "org.vgpu.Host1.Gpu", default_service = "org.vgpu.Host1")]
pub trait Gpu {
    /// Why a profile is available or not, in words.
    fn explain(&self, profile: &str) -> zbus::Result<String>;

    /// Sets how many VFs exist.
    #[zbus(allow_interactive_auth)]
    fn set_vf_count(&self, count: u32, options: &Options<'_>) -> zbus::Result<OwnedObjectPath>;

    /// Changes how it is divided.
    #[zbus(allow_interactive_auth)]
    fn configure(&self, options: &Options<'_>) -> zbus::Result<OwnedObjectPath>;

    /// What that would do, in words.
    fn plan_configuration(&self, options: &Options<'_>) -> zbus::Result<Vec<String>>;

    /// PCI address or parent name.
    #[zbus(property(emits_changed_signal = "const"))]
    fn address(&self) -> zbus::Result<String>;

    /// The maker.
    #[zbus(property)]
    fn vendor(&self) -> zbus::Result<String>;

    /// The model.
    #[zbus(property)]
    fn model(&self) -> zbus::Result<String>;

    /// The bound driver, empty without one.
    #[zbus(property)]
    fn driver(&self) -> zbus::Result<String>;

    /// The NUMA node, -1 when unknown.
    #[zbus(property)]
    fn numa_node(&self) -> zbus::Result<i32>;

    /// How it is divided.
    #[zbus(property)]
    fn framework(&self) -> zbus::Result<String>;

    /// `ready` or `stale`.
    #[zbus(property)]
    fn state(&self) -> zbus::Result<String>;

    /// The most VFs that the hardware has.
    #[zbus(property)]
    fn vf_total(&self) -> zbus::Result<u32>;

    /// The VFs that exist.
    #[zbus(property)]
    fn vf_count(&self) -> zbus::Result<u32>;

    /// Type id to full name, short name, framebuffer in bytes, total.
    #[zbus(property)]
    fn profiles(&self) -> zbus::Result<HashMap<String, ProfileFacts>>;

    /// Type id to number available and reason code.
    #[zbus(property)]
    fn capacity(&self) -> zbus::Result<HashMap<String, (u32, String)>>;

    /// Code and text of what is wrong.
    #[zbus(property)]
    fn problems(&self) -> zbus::Result<Vec<(String, String)>>;

    /// The VFs.
    #[zbus(property)]
    fn functions(&self) -> zbus::Result<Vec<Facts>>;
}

/// A GPU with MIG.
#[proxy(interface = "org.vgpu.Host1.Mig1", default_service = "org.vgpu.Host1")]
pub trait Mig1 {
    /// Whether MIG mode is on.
    #[zbus(property)]
    fn current(&self) -> zbus::Result<bool>;

    /// Whether it is on after the GPU's next reset.
    #[zbus(property)]
    fn pending(&self) -> zbus::Result<bool>;

    /// The GPU instances: number and shape.
    #[zbus(property)]
    fn instances(&self) -> zbus::Result<Vec<(u32, String)>>;
}

/// A GPU with heterogeneous mode.
#[proxy(interface = "org.vgpu.Host1.Heterogeneous1", default_service = "org.vgpu.Host1")]
pub trait Heterogeneous1 {
    /// Whether vGPUs of several sizes may lie side by side.
    #[zbus(property)]
    fn enabled(&self) -> zbus::Result<bool>;
}

/// A vGPU.
#[proxy(interface = "org.vgpu.Host1.Vgpu", default_service = "org.vgpu.Host1")]
pub trait Vgpu {
    /// Removes it.
    #[zbus(allow_interactive_auth)]
    fn remove(&self, options: &Options<'_>) -> zbus::Result<OwnedObjectPath>;

    /// Opens it through VFIO, looks, resets it if it can, closes.
    #[zbus(allow_interactive_auth)]
    fn probe(&self) -> zbus::Result<Facts>;

    /// Hands the opened device to the caller.
    #[zbus(allow_interactive_auth)]
    fn open_device(&self, options: &Options<'_>)
    -> zbus::Result<(HashMap<String, OwnedFd>, Facts)>;

    /// The processes that have its node open.
    #[zbus(allow_interactive_auth)]
    fn get_holders(&self) -> zbus::Result<Vec<HolderEntry>>;

    /// Its UUID.
    #[zbus(property(emits_changed_signal = "const"))]
    fn uuid(&self) -> zbus::Result<String>;

    /// Its name, empty without one.
    #[zbus(property)]
    fn name(&self) -> zbus::Result<String>;

    /// The GPU that it is part of.
    #[zbus(property)]
    fn gpu(&self) -> zbus::Result<OwnedObjectPath>;

    /// The type id of its profile.
    #[zbus(property)]
    fn profile(&self) -> zbus::Result<String>;

    /// The framework that made it.
    #[zbus(property)]
    fn framework(&self) -> zbus::Result<String>;

    /// `creating`, `active`, `removing` or `broken`.
    #[zbus(property)]
    fn state(&self) -> zbus::Result<String>;

    /// The PCI functions that it consists of.
    #[zbus(property)]
    fn address(&self) -> zbus::Result<Vec<String>>;

    /// -1 without one.
    #[zbus(property)]
    fn iommu_group(&self) -> zbus::Result<i32>;

    /// Kind and absolute path.
    #[zbus(property)]
    fn nodes(&self) -> zbus::Result<Vec<(String, String)>>;

    /// The user who owns it.
    #[zbus(property)]
    fn owner_uid(&self) -> zbus::Result<u32>;

    /// Whether the service made it.
    #[zbus(property)]
    fn managed(&self) -> zbus::Result<bool>;

    /// `yes`, `no` or `unknown`, when somebody last looked.
    #[zbus(property(emits_changed_signal = "false"))]
    fn in_use(&self) -> zbus::Result<String>;
}

/// A vGPU of NVIDIA's vendor-specific VFIO.
#[proxy(interface = "org.vgpu.Host1.NvidiaVgpu1", default_service = "org.vgpu.Host1")]
pub trait NvidiaVgpu1 {
    /// Sets its parameters.
    #[zbus(allow_interactive_auth)]
    fn set_params(&self, params: &str) -> zbus::Result<OwnedObjectPath>;

    /// The MIG GPU instance that it is in, -1 for none.
    #[zbus(property)]
    fn gpu_instance(&self) -> zbus::Result<i32>;

    /// Where in the GPU's framebuffer it lies, -1 while it has no place.
    #[zbus(property)]
    fn placement(&self) -> zbus::Result<i32>;

    /// Its parameters, empty for none.
    #[zbus(property)]
    fn params(&self) -> zbus::Result<String>;
}

/// Work that outlived its call.
#[proxy(interface = "org.vgpu.Host1.Job", default_service = "org.vgpu.Host1")]
pub trait Job {
    /// Asks it to stop before its next step and to undo what it did.
    #[zbus(allow_interactive_auth)]
    fn cancel(&self) -> zbus::Result<()>;

    /// What it does, for people.
    #[zbus(property(emits_changed_signal = "const"))]
    fn operation(&self) -> zbus::Result<String>;

    /// 0 to 1.
    #[zbus(property(emits_changed_signal = "false"))]
    fn progress(&self) -> zbus::Result<f64>;
}
