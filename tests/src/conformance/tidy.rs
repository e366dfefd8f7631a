//! What a case that failed may have left.

use uuid::Uuid;
use vgpu_mdev::sys::{Kernel, ReadKind, SysPath, Value};

use super::{IGB, NVME, picture::read};

/// Makes the host as it was, as far as that goes.
pub(super) fn tidy(kernel: &dyn Kernel) {
    let write = |path: String, value: &str| {
        if let Err(errno) = kernel.write(&SysPath::new(&*path).unwrap(), value) {
            eprintln!("tidying {path}: {errno:?}");
        }
    };
    for parent in ["mtty", "mdpy", "mbochs"] {
        let base = format!("class/mdev_bus/{parent}");
        let Ok(Value::Names(names)) = read(kernel, &base, ReadKind::Names) else { continue };
        for uuid in names.iter().filter(|name| Uuid::try_parse(name).is_ok()) {
            write(format!("{base}/{uuid}/remove"), "1");
        }
    }
    for (pf, driver) in [(IGB, "igb"), (NVME, "nvme")] {
        let device = format!("bus/pci/devices/{pf}");
        let bound = read(kernel, &format!("{device}/driver"), ReadKind::Link);
        if bound != Ok(Value::Link(driver.into())) {
            if let Ok(Value::Link(other)) = bound {
                write(format!("bus/pci/drivers/{other}/unbind"), pf);
            }
            write(format!("{device}/driver_override"), "\n");
            write("bus/pci/drivers_probe".into(), pf);
        }
        write(format!("{device}/sriov_numvfs"), "0");
        write(format!("{device}/sriov_drivers_autoprobe"), "1");
    }
}
