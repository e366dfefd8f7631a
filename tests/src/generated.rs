//! Large hosts for the benchmarks, as trees.

use crate::fixture::{Entry, Tree};

/// A host of GPUs whose VFs carry mdev types, as NVIDIA's of Ampere and Ada do.
#[derive(Debug, Clone, Copy)]
pub struct BigHost {
    /// How many GPUs.
    pub gpus: u32,
    /// VFs of each.
    pub functions: u32,
    /// Types of each VF.
    pub types: u32,
    /// mdevs in all, spread over the VFs.
    pub mdevs: u32,
}

impl BigHost {
    /// The tree of this host.
    ///
    /// # Errors
    /// When two entries have one path: a defect of this function.
    pub fn tree(self) -> Result<Tree, String> {
        let mut tree = Tree::default();
        for driver in ["nvidia", "pcieport", "vfio-pci"] {
            tree.put(&format!("bus/pci/drivers/{driver}"), Entry::Dir)?;
        }
        for dir in ["bus/mdev/drivers/nvidia-vgpu-vfio", "bus/mdev/devices", "class/vfio"] {
            tree.put(dir, Entry::Dir)?;
        }
        let mut group = 0;
        for gpu in 0..self.gpus {
            let bridge = format!("devices/pci{gpu:04x}:00/{gpu:04x}:00:01.0");
            group += 1;
            device(&mut tree, &bridge, "0x060400", "pcieport", group)?;
            let pf = format!("{bridge}/{gpu:04x}:01:00.0");
            group += 1;
            device(&mut tree, &pf, "0x030200", "nvidia", group)?;
            file(&mut tree, &pf, "sriov_totalvfs", self.functions)?;
            file(&mut tree, &pf, "sriov_numvfs", self.functions)?;
            for number in 0..self.functions {
                let rid = 4 + number;
                let vf = format!("{bridge}/{gpu:04x}:01:{:02x}.{}", rid >> 3, rid & 7);
                group += 1;
                device(&mut tree, &vf, "0x030200", "nvidia", group)?;
                file(&mut tree, &vf, "sriov_vf_msix_count", 0)?;
                tree.put(&format!("{vf}/physfn"), Entry::Link(format!("/{pf}")))?;
                tree.put(&format!("{pf}/virtfn{number}"), Entry::Link(format!("/{vf}")))?;
                let name = vf.rsplit('/').next().unwrap_or_default();
                tree.put(&format!("class/mdev_bus/{name}"), Entry::Link(format!("/{vf}")))?;
                self.types(&mut tree, &vf)?;
            }
        }
        self.mdevs(&mut tree, group)?;
        Ok(tree)
    }

    fn types(self, tree: &mut Tree, parent: &str) -> Result<(), String> {
        for n in 0..self.types {
            let of_type = format!("{parent}/mdev_supported_types/nvidia-{}", 500 + n);
            file(tree, &of_type, "name", format!("NVIDIA A40-{n}Q"))?;
            let description = format!(
                "num_heads=4, frl_config=60, framebuffer={}M, max_resolution=7680x4320, \
                 max_instance={}",
                1024 * (n + 1),
                self.functions
            );
            file(tree, &of_type, "description", description)?;
            file(tree, &of_type, "device_api", "vfio-pci")?;
            file(tree, &of_type, "available_instances", 1)?;
            tree.put(&format!("{of_type}/create"), Entry::WriteOnly)?;
            tree.put(&format!("{of_type}/devices"), Entry::Dir)?;
        }
        Ok(())
    }

    fn mdevs(self, tree: &mut Tree, mut group: u32) -> Result<(), String> {
        for n in 0..self.mdevs {
            let (gpu, number) = (n % self.gpus, n / self.gpus % self.functions);
            let rid = 4 + number;
            let parent = format!(
                "devices/pci{gpu:04x}:00/{gpu:04x}:00:01.0/{gpu:04x}:01:{:02x}.{}",
                rid >> 3,
                rid & 7
            );
            let uuid = format!("0f5c1a52-7d20-4b5e-9a00-{n:012x}");
            let mdev = format!("{parent}/{uuid}");
            let of_type = format!("{parent}/mdev_supported_types/nvidia-{}", 500 + n % self.types);
            tree.put(&format!("{mdev}/mdev_type"), Entry::Link(format!("/{of_type}")))?;
            tree.put(
                &format!("{mdev}/driver"),
                Entry::Link("/bus/mdev/drivers/nvidia-vgpu-vfio".into()),
            )?;
            tree.put(&format!("{mdev}/remove"), Entry::WriteOnly)?;
            file(tree, &format!("{mdev}/nvidia"), "vm_name", "")?;
            group += 1;
            in_group(tree, &mdev, group)?;
            file(tree, &format!("devices/virtual/vfio/{group}"), "dev", format!("511:{group}"))?;
            let node = Entry::Link(format!("/devices/virtual/vfio/{group}"));
            tree.put(&format!("class/vfio/{group}"), node)?;
            tree.put(&format!("bus/mdev/devices/{uuid}"), Entry::Link(format!("/{mdev}")))?;
        }
        Ok(())
    }
}

fn device(
    tree: &mut Tree,
    path: &str,
    class: &str,
    driver: &str,
    group: u32,
) -> Result<(), String> {
    let values = [
        ("class", class),
        ("vendor", "0x10de"),
        ("device", "0x2235"),
        ("subsystem_vendor", "0x10de"),
        ("subsystem_device", "0x145a"),
        ("numa_node", "0"),
        ("modalias", "pci:v000010DEd00002235sv000010DEsd0000145Abc03sc02i00"),
        ("driver_override", "(null)"),
        ("reset_method", "flr bus"),
        ("irq", "180"),
    ];
    for (name, value) in values {
        file(tree, path, name, value)?;
    }
    tree.put(&format!("{path}/power"), Entry::Dir)?;
    tree.put(&format!("{path}/driver"), Entry::Link(format!("/bus/pci/drivers/{driver}")))?;
    let name = path.rsplit('/').next().unwrap_or_default();
    tree.put(&format!("bus/pci/devices/{name}"), Entry::Link(format!("/{path}")))?;
    in_group(tree, path, group)
}

fn in_group(tree: &mut Tree, path: &str, group: u32) -> Result<(), String> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let of_group = format!("kernel/iommu_groups/{group}");
    file(tree, &of_group, "type", "DMA-FQ")?;
    tree.put(&format!("{of_group}/devices/{name}"), Entry::Link(format!("/{path}")))?;
    tree.put(&format!("{path}/iommu_group"), Entry::Link(format!("/{of_group}")))
}

fn file(tree: &mut Tree, dir: &str, name: &str, value: impl ToString) -> Result<(), String> {
    tree.put(&format!("{dir}/{name}"), Entry::File(format!("{}\n", value.to_string())))
}
