//! What a host looks like, less what the kernel numbers anew each time.

use std::collections::BTreeMap;

use vgpu_mdev::sys::{Kernel, Read, ReadBatch, ReadKind, Reading, SysPath, Value};

/// The part of sysfs that vGPUs leave traces in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture(BTreeMap<String, String>);

impl Picture {
    /// Reads it.
    pub fn of(kernel: &dyn Kernel) -> Self {
        let mut lines = BTreeMap::new();
        let mut note = |path: &str, kind| {
            let text = describe(read(kernel, path, kind));
            lines.insert(path.to_owned(), text);
        };
        note("bus/pci/devices", ReadKind::Names);
        note("bus/pci/drivers/vfio-pci", ReadKind::Names);
        for device in names(kernel, "bus/pci/devices") {
            let base = format!("bus/pci/devices/{device}");
            note(&base, ReadKind::Names);
            if names(kernel, &base).iter().any(|name| name == "nvidia") {
                for attribute in ["current_vgpu_type", "vgpu_params", "creatable_vgpu_types"] {
                    note(&format!("{base}/nvidia/{attribute}"), ReadKind::Text);
                }
            }
            note(&format!("{base}/driver"), ReadKind::Link);
            for attribute in ["driver_override", "sriov_numvfs", "sriov_drivers_autoprobe"] {
                note(&format!("{base}/{attribute}"), ReadKind::Text);
            }
        }
        for parent in names(kernel, "class/mdev_bus") {
            let base = format!("class/mdev_bus/{parent}");
            note(&base, ReadKind::Names);
            for id in names(kernel, &format!("{base}/mdev_supported_types")) {
                let base = format!("{base}/mdev_supported_types/{id}");
                note(&format!("{base}/available_instances"), ReadKind::Text);
                note(&format!("{base}/devices"), ReadKind::Names);
            }
        }
        // These stay once a first parent has been there.
        for path in ["bus/mdev/devices", "class/mdev_bus"] {
            let mut members = names(kernel, path);
            members.sort_unstable();
            lines.insert(path.to_owned(), members.join(" "));
        }
        // Numbers are given anew: how many there are must be the same.
        for path in ["class/vfio", "class/vfio-dev", "kernel/iommu_groups"] {
            let count = names(kernel, path).len();
            lines.insert(path.to_owned(), format!("{count} entries"));
        }
        Self(lines)
    }

    /// What is another in `after`, in words.
    pub fn difference(&self, after: &Self) -> Vec<String> {
        let paths = self.0.keys().chain(after.0.keys()).collect::<std::collections::BTreeSet<_>>();
        paths
            .into_iter()
            .filter(|path| self.0.get(*path) != after.0.get(*path))
            .map(|path| {
                let [before, after] = [self, after].map(|p| p.0.get(path).map_or("-", |s| s));
                format!("{path}: {before} -> {after}")
            })
            .collect()
    }
}

/// How many descriptors this process has open.
///
/// # Panics
/// Without `/proc`.
pub fn open_descriptors() -> usize {
    // Less the one that lists them.
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

fn describe(reading: Reading) -> String {
    match reading {
        Ok(Value::Text(text) | Value::Link(text)) => text.trim_end().to_owned(),
        Ok(Value::Names(mut names)) => {
            names.sort_unstable();
            names.join(" ")
        }
        Ok(Value::Inode(_)) => String::new(),
        Err(errno) => format!("{errno:?}"),
    }
}

fn names(kernel: &dyn Kernel, path: &str) -> Vec<String> {
    match read(kernel, path, ReadKind::Names) {
        Ok(Value::Names(names)) => names,
        _ => Vec::new(),
    }
}

/// Reads one thing below `/sys`.
pub(super) fn read(kernel: &dyn Kernel, path: &str, kind: ReadKind) -> Reading {
    let (base, last) = match kind {
        // A directory is read through the link that leads to it.
        ReadKind::Names => (path, ""),
        _ => path.rsplit_once('/').unwrap_or((path, "")),
    };
    let reads = vec![Read { path: last.to_owned().into(), kind }];
    let batch = ReadBatch { base: SysPath::new(base).unwrap(), reads };
    kernel.read_batch(&batch).pop().unwrap()
}
