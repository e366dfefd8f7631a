//! Probing a device through VFIO, as a VMM would open it: with vfio-ioctls and
//! vm-memory. It runs in a child process (`vgpu-vfio-probe`), since an open or
//! a reset may hang, and its end lets go of everything.

use std::{error::Error, fs::File, io, path::PathBuf, sync::Arc};

use iommufd_ioctls::IommuFd;
use nix::{
    errno::Errno,
    sys::uio::pread,
    unistd::{SysconfVar, sysconf},
};
use serde::{Deserialize, Serialize};
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_MIGRATION_P2P, VFIO_MIGRATION_PRE_COPY,
    VFIO_MIGRATION_STOP_COPY, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_REGION_INFO_FLAG_READ,
};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError, VfioIommufd, VfioOps};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::sys::{
    Kernel, NodePath, ProbeReport, ProbeTarget, Read, ReadBatch, Region, SysPath, Value, raw,
};

/// What the probe prints: one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// What it saw.
    Ok(ProbeReport),
    /// Why it could not look.
    Error(Refusal),
}

/// Why the probe could not look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What failed, in words.
    pub message: String,
    /// The kernel's answer, where it was the kernel.
    pub errno: Option<i32>,
}

/// The probe's arguments for a target.
pub fn arguments(target: &ProbeTarget) -> Vec<String> {
    let ProbeTarget { device, group, cdev } = target;
    let mut args = vec!["--device".into(), device.to_string()];
    for (option, node) in [("--group", group), ("--cdev", cdev)] {
        if let Some(node) = node {
            args.extend([option.into(), node.to_string()]);
        }
    }
    args
}

/// The target that the probe's arguments name.
///
/// # Errors
/// Says which argument is wrong.
pub fn target(args: impl IntoIterator<Item = String>) -> Result<ProbeTarget, String> {
    let (mut device, mut group, mut cdev) = (None, None, None);
    let mut args = args.into_iter();
    while let Some(option) = args.next() {
        let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
        let below = |root| {
            value
                .strip_prefix(root)
                .ok_or_else(|| format!("{option} {value:?}: it is not below {root}"))
        };
        let node = || NodePath::new(below("/dev/")?).map(Some).map_err(|error| error.to_string());
        match option.as_str() {
            "--device" => {
                device = Some(SysPath::new(below("/sys/")?).map_err(|error| error.to_string())?);
            }
            "--group" => group = node()?,
            "--cdev" => cdev = node()?,
            _ => {
                return Err(format!(
                    "{option:?} is unknown; there are --device, --group and --cdev"
                ));
            }
        }
    }
    let device = device.ok_or("--device /sys/… is missing")?;
    if group.is_none() && cdev.is_none() {
        return Err(
            "neither --group /dev/vfio/N nor --cdev /dev/vfio/devices/vfioN is given".into()
        );
    }
    Ok(ProbeTarget { device, group, cdev })
}

/// Opens a device, looks at it, resets it if it can be, and closes it.
///
/// # Errors
/// When it cannot be opened: what refused, why, and the errno.
pub fn probe(kernel: &impl Kernel, target: &ProbeTarget) -> Result<ProbeReport, Refusal> {
    look(&open(kernel, target)?)
}

/// Opens a device as a VMM does: through its cdev, bound to an iommufd, or
/// through its group.
///
/// # Errors
/// As for [`probe`].
pub fn open(kernel: &impl Kernel, target: &ProbeTarget) -> Result<Opened, Refusal> {
    match (&target.cdev, &target.group) {
        (Some(cdev), None) => open_cdev(kernel, cdev, open_iommu(kernel)?),
        (Some(cdev), Some(group)) => match open_iommu(kernel) {
            Ok(iommu) => open_cdev(kernel, cdev, iommu),
            Err(refusal) if refusal.is_missing() => open_group(kernel, target, group),
            Err(refusal) => Err(refusal),
        },
        (None, Some(group)) => open_group(kernel, target, group),
        (None, None) => Err(Refusal::new("the device has no VFIO node", None)),
    }
}

/// A device as a VMM holds it, until this is dropped.
pub struct Opened {
    interface: &'static str,
    device: VfioDevice,
    ops: Arc<dyn VfioOps>,
}

fn open_iommu(kernel: &impl Kernel) -> Result<File, Refusal> {
    let refused = |errno| Refusal::new(format!("cannot open /dev/iommu: {errno}"), Some(errno));
    let node = NodePath::new("iommu").map_err(|error| Refusal::new(error, None))?;
    kernel.open_node(&node).map(File::from).map_err(refused)
}

fn open_cdev(kernel: &impl Kernel, cdev: &NodePath, iommu: File) -> Result<Opened, Refusal> {
    let file = kernel
        .open_node(cdev)
        .map_err(|errno| Refusal::new(format!("cannot open {cdev}: {errno}"), Some(errno)))?;
    bind_named(&cdev.to_string(), file.into(), iommu)
}

/// Binds an opened cdev to an opened `/dev/iommu`, as a VMM does with what it
/// was handed.
///
/// # Errors
/// When the kernel refuses.
pub fn bind(device: File, iommu: File) -> Result<Opened, Refusal> {
    bind_named("the device", device, iommu)
}

fn bind_named(name: &str, device: File, iommu: File) -> Result<Opened, Refusal> {
    let iommufd = Arc::new(IommuFd::new_from_fd(iommu));
    let ops = VfioIommufd::new(iommufd, None, None)
        .map_err(|error| Refusal::because("cannot make an address space in /dev/iommu", &error))?;
    let ops = Arc::new(ops);
    let device = VfioDevice::new_from_fd(device, ops.clone(), true).map_err(|error| {
        let refusal = Refusal::because(format!("cannot bind {name} to an iommufd"), &error);
        refusal
            .hint(Errno::EINVAL, "another process may have bound it already")
            .hint(Errno::EBUSY, "another process has its group open")
    })?;
    Ok(Opened { interface: "cdev", device, ops })
}

fn open_group(
    kernel: &impl Kernel,
    target: &ProbeTarget,
    group: &NodePath,
) -> Result<Opened, Refusal> {
    let container = VfioContainer::new(None)
        .map_err(|error| Refusal::because("cannot open a container in /dev/vfio/vfio", &error))?;
    let ops = Arc::new(container);
    // vfio-ioctls finds the group through the device's `iommu_group` link.
    let path = PathBuf::from(target.device.to_string());
    let device = VfioDevice::new(&path, ops.clone(), false).map_err(|error| match error {
        VfioError::GroupViable => {
            Refusal::new(format!("group {group} is not viable: {}", blockers(kernel, target)), None)
        }
        VfioError::InvalidPath => Refusal::new(
            format!("{} is gone, or has no IOMMU group", target.device),
            Some(Errno::ENODEV),
        ),
        error => {
            Refusal::because(format!("cannot open {} in group {group}", target.device), &error)
                .hint(Errno::EBUSY, "another process has the group or a device of it open")
                .hint(Errno::EACCES, "its physical function is on vfio-pci and asks for a VF token")
        }
    })?;
    Ok(Opened { interface: "group", device, ops })
}

/// The members of the device's group that keep it from being viable: those on
/// a host driver (`drivers/iommu/iommu.c`, `iommu_group_claim_dma_owner`).
fn blockers(kernel: &impl Kernel, target: &ProbeTarget) -> String {
    let read = || {
        let base = target.device.join("iommu_group/devices").ok()?;
        let batch = ReadBatch { base: base.clone(), reads: vec![Read::names("")] };
        let Ok(Value::Names(members)) = kernel.read_batch(&batch).pop()? else {
            return None;
        };
        let reads = members.iter().map(|member| Read::link(format!("{member}/driver"))).collect();
        let drivers = kernel.read_batch(&ReadBatch { base, reads });
        let blocking = members.iter().zip(drivers).filter_map(|(member, driver)| match driver {
            Ok(Value::Link(driver)) if !is_harmless(&driver) => {
                Some(format!("{member} is bound to {driver}"))
            }
            _ => None,
        });
        Some(blocking.collect::<Vec<_>>().join(", "))
    };
    let rule = "every device of it must be on a VFIO driver or on none";
    match read().filter(|blocking| !blocking.is_empty()) {
        Some(blocking) => format!("{blocking}; {rule}"),
        None => rule.into(),
    }
}

fn is_harmless(driver: &str) -> bool {
    driver.contains("vfio") || matches!(driver, "pci-stub" | "pcieport")
}

fn look(opened: &Opened) -> Result<ProbeReport, Refusal> {
    let Opened { interface, device, ops } = opened;
    let fd = raw::vfio_device_fd(device);
    let refused = |what: &str, errno| Refusal::new(format!("{what}: {errno}"), Some(errno));
    let info = raw::vfio_device_info(fd)
        .map_err(|errno| refused("cannot read the device's information", errno))?;
    let is_pci = info.flags & VFIO_DEVICE_FLAGS_PCI != 0;
    let mut report = ProbeReport {
        interface: (*interface).into(),
        can_reset: info.flags & VFIO_DEVICE_FLAGS_RESET != 0,
        dma_map: map_a_page(&**ops),
        ..ProbeReport::default()
    };
    for index in 0..info.num_regions {
        // Devices without a VGA region answer EINVAL for it
        // (`drivers/vfio/pci/vfio_pci_core.c`).
        let region = match raw::vfio_region_info(fd, index) {
            Err(Errno::EINVAL) => continue,
            region => region
                .map_err(|errno| refused(&format!("cannot read about region {index}"), errno))?,
        };
        if region.size == 0 {
            continue;
        }
        let is_config = is_pci && index == VFIO_PCI_CONFIG_REGION_INDEX;
        let tried = is_config && region.flags & VFIO_REGION_INFO_FLAG_READ != 0;
        let ids = tried.then(|| pci_ids(device, region.offset)).flatten();
        if tried {
            report.pci_ids = ids;
        }
        report.regions.push(Region {
            index,
            size: region.size,
            flags: region.flags,
            readable: tried.then_some(ids.is_some()),
        });
    }
    report.interrupts = (0..info.num_irqs)
        .filter_map(|index| device.get_irq_info(index).map(|irq| (index, irq.count)))
        .collect();
    report.migration =
        device.query_migration_support().ok().flatten().map(migration_features).unwrap_or_default();
    if report.can_reset {
        let reset = raw::vfio_device_reset(fd);
        report.reset = Some(reset.is_ok());
        report.reset_errno = reset.err().map(|errno| errno as i32);
    }
    Ok(report)
}

/// Where the page is mapped: above what firmware and MSI windows reserve low
/// in memory, below any aperture's end.
const PAGE_AT: GuestAddress = GuestAddress(0x0100_0000);

fn map_a_page(ops: &dyn VfioOps) -> bool {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    let size = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(4096);
    GuestMemoryMmap::from_ranges(&[(PAGE_AT, size)])
        .is_ok_and(|memory| raw::map_and_unmap(ops, &memory).is_ok())
}

/// Vendor and device id, the first four bytes of the config region.
fn pci_ids(device: &VfioDevice, offset: u64) -> Option<(u16, u16)> {
    let mut bytes = [0; 4];
    let read = pread(raw::vfio_device_fd(device), &mut bytes, i64::try_from(offset).ok()?).ok()?;
    let [v0, v1, d0, d1] = bytes;
    (read == 4).then_some((u16::from_le_bytes([v0, v1]), u16::from_le_bytes([d0, d1])))
}

fn migration_features(flags: u64) -> Vec<String> {
    [
        (VFIO_MIGRATION_STOP_COPY, "stop-copy"),
        (VFIO_MIGRATION_P2P, "p2p"),
        (VFIO_MIGRATION_PRE_COPY, "pre-copy"),
    ]
    .into_iter()
    .filter(|(flag, _)| flags & u64::from(*flag) != 0)
    .map(|(_, name)| name.into())
    .collect()
}

impl Refusal {
    fn new(message: impl ToString, errno: Option<Errno>) -> Self {
        Self { message: message.to_string(), errno: errno.map(|errno| errno as i32) }
    }

    fn because(what: impl std::fmt::Display, error: &(dyn Error + 'static)) -> Self {
        let mut message = format!("{what}: {error}");
        let mut errno = None;
        let mut next = Some(error);
        while let Some(error) = next {
            let text = error.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            let io = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
            let sys = error.downcast_ref::<vmm_sys_util::errno::Error>();
            errno = errno.or(io).or(sys.map(|sys| sys.errno()));
            next = error.source();
        }
        Self { message, errno }
    }

    /// Adds the likely cause when the kernel's answer was `errno`.
    fn hint(mut self, errno: Errno, cause: &str) -> Self {
        if self.errno == Some(errno as i32) {
            self.message = format!("{} ({cause})", self.message);
        }
        self
    }

    fn is_missing(&self) -> bool {
        [Errno::ENOENT, Errno::ENODEV].iter().any(|errno| self.errno == Some(*errno as i32))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn args(line: &str) -> Result<ProbeTarget, String> {
        target(line.split_whitespace().map(String::from))
    }

    #[test]
    fn arguments_name_their_target() {
        let line = "--device /sys/bus/pci/devices/0000:41:00.4 --group /dev/vfio/12 --cdev /dev/vfio/devices/vfio3";
        let target = args(line).unwrap();
        assert_eq!(target.device.as_str(), "bus/pci/devices/0000:41:00.4");
        assert_eq!(target.group.as_ref().unwrap().as_str(), "vfio/12");
        assert_eq!(target.cdev.as_ref().unwrap().as_str(), "vfio/devices/vfio3");
        assert_eq!(arguments(&target).join(" "), line);
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (line, wrong) in [
            ("", "--device"),
            ("--device /sys/a", "neither --group"),
            ("--device /sys/a --group", "--group needs a value"),
            ("--device /etc/a --group /dev/vfio/1", "/etc/a"),
            ("--device /sys/../etc --group /dev/vfio/1", "../etc"),
            ("--device /sys/a --group /dev/../etc/1", "../etc/1"),
            ("--device /sys/a --cdev /sys/b", "not below /dev/"),
            ("--verbose yes", "--verbose"),
        ] {
            let error = args(line).unwrap_err();
            assert!(error.contains(wrong), "{line}: {error}");
        }
    }

    #[test]
    fn an_answer_is_one_line_with_ok_or_error() {
        let refusal = Refusal { message: "a\nb".into(), errno: Some(16) };
        let line = serde_json::to_string(&Answer::Error(refusal)).unwrap();
        assert_eq!(line, r#"{"error":{"message":"a\nb","errno":16}}"#);
        let line = serde_json::to_string(&Answer::Ok(ProbeReport::default())).unwrap();
        assert!(line.starts_with(r#"{"ok":{"interface":"","#), "{line}");
    }

    #[test]
    fn a_refusal_keeps_the_errno_at_the_bottom() {
        let busy = io::Error::from_raw_os_error(libc::EBUSY);
        let refusal = Refusal::because("opening", &VfioError::OpenGroup(busy, "12".into()));
        assert_eq!(refusal.errno, Some(libc::EBUSY));
        assert!(refusal.message.contains("/dev/vfio/12"), "{}", refusal.message);
        let hinted = refusal.clone().hint(Errno::EBUSY, "held").hint(Errno::EPERM, "no");
        assert_eq!(hinted.message, format!("{} (held)", refusal.message));
        let again = vmm_sys_util::errno::Error::new(libc::EINVAL);
        let refusal = Refusal::because("binding", &VfioError::VfioDeviceBindIommufd(again));
        assert_eq!(refusal.errno, Some(libc::EINVAL));
    }

    #[test]
    fn migration_flags_have_names() {
        assert_eq!(migration_features(0b101), ["stop-copy", "pre-copy"]);
        assert_eq!(migration_features(0b010), ["p2p"]);
    }
}
