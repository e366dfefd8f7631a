//! What the kernel means by an errno: one table from attribute and errno to
//! kind, stable code, cause and remedy. The order and meaning of the errnos are
//! those of Linux 6.12 (`drivers/pci/pci-sysfs.c`, `drivers/base/bus.c`,
//! `drivers/vfio/mdev/`, `drivers/vfio/group.c`), checked in the lab.

use nix::errno::Errno;

use crate::error::ErrorKind;

/// An errno, understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of failure.
    pub kind: ErrorKind,
    /// A stable code.
    pub code: &'static str,
    /// The likely cause.
    pub cause: &'static str,
    /// What helps.
    pub remedy: &'static str,
}

/// What more is known, for errnos with two meanings.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context {
    /// Whether a driver is bound to the device.
    pub has_driver: bool,
    /// Whether the driver offers instances of the type now.
    pub has_free_instances: bool,
}

/// What `errno` means on the attribute or node at `path`.
pub fn explain(path: &str, errno: Errno, context: Context) -> Refusal {
    let element = path.rsplit('/').next().unwrap_or(path);
    let (kind, code, cause, remedy) = match element {
        "create" => create(errno, context),
        "remove" => remove(errno),
        "sriov_numvfs" => vf_count(errno, context),
        "current_vgpu_type" => vendor_type(errno),
        "vgpu_params" => vgpu_params(errno),
        "driver_override" => driver_override(errno),
        "drivers_probe" => drivers_probe(errno),
        "bind" => bind(errno),
        "unbind" => unbind(errno),
        _ if path.starts_with("/dev/") => node(errno),
        _ => None,
    }
    .unwrap_or_else(|| general(errno));
    Refusal { kind, code, cause, remedy }
}

type Row = (ErrorKind, &'static str, &'static str, &'static str);

use ErrorKind::{Busy, InvalidArgument, KernelRefused, NoCapacity, NoSuchGpu, NotSupported};

fn create(errno: Errno, context: Context) -> Option<Row> {
    Some(match errno {
        Errno::EEXIST => (
            Busy,
            "uuid-exists",
            "an mdev of that UUID exists on this host, possibly on another GPU or still being removed",
            "choose another UUID, or see vgpuctl list",
        ),
        Errno::EUSERS => (
            NoCapacity,
            "no-instances",
            "the kernel counts no instance of this type as left",
            "remove a vGPU on this GPU or choose another GPU",
        ),
        Errno::ENOSPC => (
            NoCapacity,
            "no-space",
            "the driver has no room left for this type",
            "remove a vGPU on this GPU or choose a smaller profile",
        ),
        Errno::ENODEV => (
            NoSuchGpu,
            "parent-going",
            "the GPU's driver is going away",
            "see whether the driver is being unloaded, and try again",
        ),
        Errno::EINVAL | Errno::EIO if context.has_free_instances => (
            NoCapacity,
            "driver-rule",
            "the driver refused although it shows free instances: many drivers put only profiles \
             of one size on one GPU",
            "use the profile of the vGPUs that are there, or another GPU; the driver's reason is in dmesg",
        ),
        Errno::EINVAL => (
            KernelRefused,
            "driver-refused",
            "the driver refused this type now",
            "the driver's reason is in dmesg",
        ),
        Errno::ENOENT => (
            NotSupported,
            "type-gone",
            "the GPU no longer offers this type",
            "see vgpuctl profiles for what it offers now",
        ),
        _ => return None,
    })
}

fn vgpu_params(errno: Errno) -> Option<Row> {
    Some(match errno {
        Errno::EPERM | Errno::EBUSY => (
            Busy,
            "held",
            "a VM has the vGPU, and its parameters are read when a VM starts",
            "stop the VM first",
        ),
        Errno::EINVAL | Errno::EIO => (
            KernelRefused,
            "params-refused",
            "NVIDIA's driver refused the parameters",
            "use parameters that this type and scheduler have; the driver's reason is in dmesg",
        ),
        Errno::ENOENT | Errno::ENODEV => (
            NotSupported,
            "no-params",
            "the VF carries no vGPU, or its driver has no parameters",
            "look again with vgpuctl list",
        ),
        _ => return None,
    })
}

fn remove(errno: Errno) -> Option<Row> {
    Some(match errno {
        Errno::EAGAIN | Errno::ENODEV => (
            Busy,
            "removal-race",
            "it is being removed by someone else",
            "look again with vgpuctl list",
        ),
        Errno::ENOENT => {
            (ErrorKind::NoSuchVgpu, "already-gone", "it is gone already", "nothing is left to do")
        }
        _ => return None,
    })
}

fn vf_count(errno: Errno, context: Context) -> Option<Row> {
    Some(match errno {
        Errno::ENOENT if !context.has_driver => (
            NotSupported,
            "no-driver",
            "no driver is bound to the GPU, and VFs are enabled by its driver",
            "load the GPU's driver",
        ),
        Errno::ENOENT => (
            NotSupported,
            "driver-without-sriov",
            "the GPU's driver does not enable VFs through sysfs",
            "use the vendor's own way (for AMD's GIM the module option vf_num), or a driver with \
             SR-IOV support",
        ),
        Errno::ERANGE => (
            InvalidArgument,
            "too-many-functions",
            "the hardware or its driver has fewer VFs",
            "ask for at most VfTotal; the driver's own limit can be lower and is in dmesg",
        ),
        // Also i915 until it has set up the GPU (i915_sriov_pf_status).
        Errno::EBUSY => (
            Busy,
            "functions-enabled",
            "other VFs are enabled already, or the driver is not ready to enable any",
            "set the count to 0 first; where it is 0, try again in a moment",
        ),
        Errno::ENOMEM => (
            KernelRefused,
            "no-mmio-space",
            "the firmware left not enough memory space or bus numbers for the VFs",
            "turn on SR-IOV, Above 4G Decoding and ARI in the firmware, or boot with pci=realloc",
        ),
        Errno::EINVAL => (
            KernelRefused,
            "count-refused",
            "the driver does not take this number of VFs",
            "try another number; the driver's reason is in dmesg",
        ),
        Errno::ENOSPC => (
            NoCapacity,
            "no-resources",
            "the GPU's firmware has no resources left for so many VFs",
            "ask for fewer",
        ),
        // xe: xe_sriov_pf_control and its provisioning, drivers/gpu/drm/xe.
        Errno::EUCLEAN => (
            KernelRefused,
            "provisioning-unclean",
            "what the driver has given the VFs earlier is left in disorder",
            "reset the quotas under sriov_admin or bind the driver anew; its reason is in dmesg",
        ),
        Errno::ETIMEDOUT => (
            KernelRefused,
            "firmware-silent",
            "the GPU's firmware did not answer its driver in time",
            "reset the GPU or bind its driver anew; the driver's reason is in dmesg",
        ),
        // i915: intel_iov_provisioning_verify, of Intel's driver for data centers.
        Errno::ENOKEY => (
            KernelRefused,
            "quotas-incomplete",
            "a VF was given some quotas by hand and lacks others, so the driver enables none",
            "give each VF all of them or none (prelim_iov/vf*/gt*/*_quota of the GPU's card)",
        ),
        Errno::EIO | Errno::ENODEV | Errno::ENOSYS => (
            KernelRefused,
            "enable-failed",
            "the hardware did not enable SR-IOV",
            "turn on SR-IOV in the firmware; the kernel's reason is in dmesg",
        ),
        _ => return None,
    })
}

/// NVIDIA's `nvidia/current_vgpu_type`.
fn vendor_type(errno: Errno) -> Option<Row> {
    Some(match errno {
        Errno::EPERM => (
            Busy,
            "held",
            "a VM uses the vGPU, so the driver does not take its type away",
            "stop the guest that uses it",
        ),
        Errno::EIO => (
            NoCapacity,
            "driver-rule",
            "NVIDIA's driver refused the type: it no longer fits beside the vGPUs on the GPU, or \
             its vGPU manager does not run",
            "see vgpuctl profiles for what fits; the driver's reason is in dmesg (NVRM), and \
             nvidia-vgpu-mgr must run",
        ),
        Errno::ENOENT | Errno::ENODEV => (
            NoSuchGpu,
            "function-gone",
            "the VF is gone, or has lost NVIDIA's driver",
            "see vgpuctl show for the GPU's VFs",
        ),
        Errno::EINVAL => (
            NotSupported,
            "type-gone",
            "the driver does not know this type",
            "see vgpuctl profiles for what it offers now",
        ),
        _ => return None,
    })
}

fn driver_override(errno: Errno) -> Option<Row> {
    (errno == Errno::EINVAL).then_some((
        InvalidArgument,
        "driver-name-too-long",
        "the driver's name is too long",
        "use a driver's name",
    ))
}

fn drivers_probe(errno: Errno) -> Option<Row> {
    Some(match errno {
        Errno::ENODEV => {
            (NoSuchGpu, "device-gone", "the device is gone", "look again with vgpuctl gpus")
        }
        Errno::EINVAL => (
            KernelRefused,
            "probe-refused",
            "the VFIO driver does not take this device as it is",
            "see dmesg; a GPU with VFs cannot go to VFIO whole",
        ),
        Errno::EBUSY => (
            Busy,
            "probe-busy",
            "the VFIO driver found the device in use, or with VFs enabled",
            "set the VFs to 0 first",
        ),
        _ => return None,
    })
}

fn bind(errno: Errno) -> Option<Row> {
    Some(match errno {
        Errno::ENODEV => (
            KernelRefused,
            "driver-does-not-match",
            "the driver does not know this device and no override names it, or the device is gone",
            "set driver_override first",
        ),
        Errno::EBUSY => {
            (Busy, "already-bound", "a driver is bound to it already", "unbind that one first")
        }
        Errno::EAGAIN => (
            Busy,
            "probe-deferred",
            "the driver waits for another one",
            "load what it waits for; see /sys/kernel/debug/devices_deferred",
        ),
        Errno::ENOENT => {
            (NotSupported, "no-such-driver", "the driver is not loaded", "load it with modprobe")
        }
        _ => return None,
    })
}

fn unbind(errno: Errno) -> Option<Row> {
    Some(match errno {
        Errno::ENODEV => (
            ErrorKind::BadState,
            "not-bound",
            "that driver is not bound to it (any more)",
            "look again with vgpuctl show",
        ),
        Errno::ENOENT => (
            NotSupported,
            "no-such-driver",
            "the driver is not loaded",
            "look again with vgpuctl show",
        ),
        _ => return None,
    })
}

fn node(errno: Errno) -> Option<Row> {
    Some(match errno {
        Errno::EBUSY => (
            Busy,
            "held",
            "a process has it open, or has opened the same device by its other node",
            "stop the guest that uses it; see vgpuctl show",
        ),
        Errno::EPERM => (
            NotSupported,
            "no-iommu",
            "the device is in no-IOMMU mode, or its group is not viable",
            "turn the IOMMU on and bind all devices of the group to VFIO",
        ),
        Errno::ENODEV | Errno::ENXIO | Errno::ENOENT => (
            ErrorKind::BadState,
            "node-missing",
            "the VFIO node has no device behind it",
            "bind it to a VFIO driver; see vgpuctl doctor",
        ),
        Errno::EACCES => (
            KernelRefused,
            "node-denied",
            "the service may not open the node",
            "let the unit's DeviceAllow cover char-vfio and load the vfio modules before it starts",
        ),
        _ => return None,
    })
}

fn general(errno: Errno) -> Row {
    match errno {
        Errno::EACCES | Errno::EPERM | Errno::EROFS => (
            KernelRefused,
            "denied",
            "the service may not write this",
            "run it as root, with /sys writable (ReadWritePaths=/sys/devices /sys/bus)",
        ),
        Errno::ENOENT => (
            NotSupported,
            "missing",
            "the kernel has no such file: the device is gone or its driver does not do this",
            "look again with vgpuctl gpus",
        ),
        Errno::ENODEV => {
            (NoSuchGpu, "device-gone", "the device is gone", "look again with vgpuctl gpus")
        }
        _ => {
            (KernelRefused, "refused", "the kernel or the driver refused", "its reason is in dmesg")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path, errno, whether a driver is bound, whether instances are free; kind
    /// and code.
    type Case = (&'static str, Errno, bool, bool, ErrorKind, &'static str);

    const CASES: &[Case] = &[
        ("/sys/x/create", Errno::EEXIST, true, true, Busy, "uuid-exists"),
        ("/sys/x/create", Errno::EUSERS, true, false, NoCapacity, "no-instances"),
        ("/sys/x/create", Errno::ENOSPC, true, false, NoCapacity, "no-space"),
        ("/sys/x/create", Errno::EINVAL, true, true, NoCapacity, "driver-rule"),
        ("/sys/x/create", Errno::EIO, true, true, NoCapacity, "driver-rule"),
        ("/sys/x/create", Errno::EINVAL, true, false, KernelRefused, "driver-refused"),
        ("/sys/x/create", Errno::ENODEV, true, true, NoSuchGpu, "parent-going"),
        ("/sys/x/remove", Errno::EAGAIN, true, true, Busy, "removal-race"),
        ("/sys/x/sriov_numvfs", Errno::ENOENT, false, false, NotSupported, "no-driver"),
        ("/sys/x/sriov_numvfs", Errno::ENOENT, true, false, NotSupported, "driver-without-sriov"),
        ("/sys/x/sriov_numvfs", Errno::ERANGE, true, false, InvalidArgument, "too-many-functions"),
        ("/sys/x/sriov_numvfs", Errno::EBUSY, true, false, Busy, "functions-enabled"),
        ("/sys/x/sriov_numvfs", Errno::ENOMEM, true, false, KernelRefused, "no-mmio-space"),
        ("/sys/x/sriov_numvfs", Errno::EINVAL, true, false, KernelRefused, "count-refused"),
        ("/sys/x/sriov_numvfs", Errno::EUCLEAN, true, false, KernelRefused, "provisioning-unclean"),
        ("/sys/x/sriov_numvfs", Errno::ETIMEDOUT, true, false, KernelRefused, "firmware-silent"),
        ("/sys/x/sriov_numvfs", Errno::ENOKEY, true, false, KernelRefused, "quotas-incomplete"),
        ("/sys/x/sriov_numvfs", Errno::EIO, true, false, KernelRefused, "enable-failed"),
        (
            "/sys/x/driver_override",
            Errno::EINVAL,
            true,
            false,
            InvalidArgument,
            "driver-name-too-long",
        ),
        ("/sys/bus/pci/drivers_probe", Errno::ENODEV, true, false, NoSuchGpu, "device-gone"),
        ("/sys/bus/pci/drivers_probe", Errno::EINVAL, true, false, KernelRefused, "probe-refused"),
        ("/sys/bus/pci/drivers_probe", Errno::EBUSY, true, false, Busy, "probe-busy"),
        (
            "/sys/bus/pci/drivers/vfio-pci/bind",
            Errno::ENODEV,
            true,
            false,
            KernelRefused,
            "driver-does-not-match",
        ),
        ("/sys/bus/pci/drivers/vfio-pci/bind", Errno::EBUSY, true, false, Busy, "already-bound"),
        (
            "/sys/bus/pci/drivers/vfio-pci/unbind",
            Errno::ENODEV,
            true,
            false,
            ErrorKind::BadState,
            "not-bound",
        ),
        ("/dev/vfio/12", Errno::EBUSY, true, false, Busy, "held"),
        ("/dev/vfio/12", Errno::EPERM, true, false, NotSupported, "no-iommu"),
        ("/sys/x/sriov_numvfs", Errno::EACCES, true, false, KernelRefused, "denied"),
        ("/sys/x/whatever", Errno::EPROTO, true, false, KernelRefused, "refused"),
    ];

    #[test]
    fn each_errno_has_its_kind_code_cause_and_remedy() {
        for (path, errno, has_driver, has_free_instances, kind, code) in CASES {
            let context =
                Context { has_driver: *has_driver, has_free_instances: *has_free_instances };
            let is = explain(path, *errno, context);
            assert_eq!((is.kind, is.code), (*kind, *code), "{path} {errno:?}");
            assert!(!is.cause.is_empty() && !is.remedy.is_empty(), "{path} {errno:?}");
        }
    }
}
