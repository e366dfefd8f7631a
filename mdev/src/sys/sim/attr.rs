//! The attributes and what they read.

use nix::errno::Errno;

use crate::model::PciAddress;

use super::{
    intel::Setting,
    state::{Member, NodeKey, PciDevice, Role, Sriov, State},
    tree::Dir,
};

/// A file of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Attr {
    // A PCI function.
    Vendor,
    Device,
    SubsystemVendor,
    SubsystemDevice,
    Class,
    Revision,
    NumaNode,
    Modalias,
    DriverOverride,
    BootVga,
    Reset,
    ResetMethod,
    RemoveFunction,
    SriovTotalvfs,
    SriovNumvfs,
    SriovOffset,
    SriovStride,
    SriovVfDevice,
    SriovAutoprobe,
    SriovVfTotalMsix,
    SriovVfMsixCount,
    // The PCI bus and its drivers.
    DriversProbe,
    Bind,
    Unbind,
    // mdev.
    Create,
    Name,
    Description,
    DeviceApi,
    AvailableInstances,
    RemoveMdev,
    // NVIDIA's folder.
    CreatableVgpuTypes,
    CurrentVgpuType,
    GpuInstanceId,
    PlacementId,
    VgpuParams,
    WarmUpdate,
    // AMD's GIM.
    AcceleratorPartitionProfile,
    MemoryPartitionMode,
    SpatialPartitionMode,
    MemoryPartitionConfig,
    SpatialPartitionCaps,
    VfNum,
    ResetGpu,
    PspVbflash,
    PspVbflashStatus,
    XgmiHiveId,
    // The folders of Intel's drivers.
    Intel(Setting),
    // Others.
    Uevent,
    UeventSeqnum,
    Dev,
    GroupType,
    ReservedRegions,
}

impl Attr {
    /// Its name and mode.
    const fn info(self) -> (&'static str, u16) {
        match self {
            Self::Vendor => ("vendor", 0o444),
            Self::Device => ("device", 0o444),
            Self::SubsystemVendor => ("subsystem_vendor", 0o444),
            Self::SubsystemDevice => ("subsystem_device", 0o444),
            Self::Class => ("class", 0o444),
            Self::Revision => ("revision", 0o444),
            Self::NumaNode => ("numa_node", 0o444),
            Self::Modalias => ("modalias", 0o444),
            Self::DriverOverride => ("driver_override", 0o644),
            Self::BootVga => ("boot_vga", 0o444),
            Self::Reset => ("reset", 0o200),
            Self::ResetMethod => ("reset_method", 0o444),
            Self::RemoveFunction | Self::RemoveMdev => ("remove", 0o200),
            Self::SriovTotalvfs => ("sriov_totalvfs", 0o444),
            Self::SriovNumvfs => ("sriov_numvfs", 0o644),
            Self::SriovOffset => ("sriov_offset", 0o444),
            Self::SriovStride => ("sriov_stride", 0o444),
            Self::SriovVfDevice => ("sriov_vf_device", 0o444),
            Self::SriovAutoprobe => ("sriov_drivers_autoprobe", 0o644),
            Self::SriovVfTotalMsix => ("sriov_vf_total_msix", 0o444),
            Self::SriovVfMsixCount => ("sriov_vf_msix_count", 0o200),
            Self::DriversProbe => ("drivers_probe", 0o200),
            Self::Bind => ("bind", 0o200),
            Self::Unbind => ("unbind", 0o200),
            Self::Create => ("create", 0o200),
            Self::Name => ("name", 0o444),
            Self::Description => ("description", 0o444),
            Self::DeviceApi => ("device_api", 0o444),
            Self::AvailableInstances => ("available_instances", 0o444),
            Self::CreatableVgpuTypes => ("creatable_vgpu_types", 0o444),
            Self::CurrentVgpuType => ("current_vgpu_type", 0o644),
            Self::GpuInstanceId => ("gpu_instance_id", 0o644),
            Self::PlacementId => ("placement_id", 0o644),
            Self::VgpuParams => ("vgpu_params", 0o644),
            Self::WarmUpdate => ("warm_update", 0o644),
            Self::AcceleratorPartitionProfile => ("accelerator_partition_profile", 0o600),
            Self::MemoryPartitionMode => ("memory_partition_mode", 0o600),
            Self::SpatialPartitionMode => ("spatial_partition_mode", 0o400),
            Self::MemoryPartitionConfig => ("memory_partition_config", 0o400),
            Self::SpatialPartitionCaps => ("spatial_partition_caps", 0o400),
            Self::VfNum => ("vf_num", 0o444),
            Self::ResetGpu => ("reset_gpu", 0o400),
            Self::PspVbflash => ("psp_vbflash", 0o664),
            Self::PspVbflashStatus => ("psp_vbflash_status", 0o444),
            Self::XgmiHiveId => ("xgmi_hive_id", 0o444),
            Self::Intel(Setting { item, mode }) => (item.name(), mode),
            Self::Uevent => ("uevent", 0o644),
            Self::UeventSeqnum => ("uevent_seqnum", 0o444),
            Self::Dev => ("dev", 0o444),
            Self::GroupType => ("type", 0o644),
            Self::ReservedRegions => ("reserved_regions", 0o444),
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.info().0
    }

    /// Its permissions.
    pub(super) fn mode(self) -> u16 {
        self.info().1
    }
}

const FUNCTION: &[Attr] = &[
    Attr::Vendor,
    Attr::Device,
    Attr::SubsystemVendor,
    Attr::SubsystemDevice,
    Attr::Class,
    Attr::Revision,
    Attr::NumaNode,
    Attr::Modalias,
    Attr::DriverOverride,
    Attr::RemoveFunction,
    Attr::Uevent,
];
const VENDOR: &[Attr] = &[
    Attr::CreatableVgpuTypes,
    Attr::CurrentVgpuType,
    Attr::GpuInstanceId,
    Attr::PlacementId,
    Attr::VgpuParams,
    Attr::WarmUpdate,
];
const PF: &[Attr] = &[
    Attr::SriovTotalvfs,
    Attr::SriovNumvfs,
    Attr::SriovOffset,
    Attr::SriovStride,
    Attr::SriovVfDevice,
    Attr::SriovAutoprobe,
    Attr::SriovVfTotalMsix,
];

impl State {
    /// The attributes of a directory.
    pub(super) fn attrs(&self, dir: Dir) -> Vec<Attr> {
        match dir {
            Dir::Kernel => vec![Attr::UeventSeqnum],
            Dir::PciBus => vec![Attr::DriversProbe],
            Dir::PciDriver(_) => vec![Attr::Bind, Attr::Unbind, Attr::Uevent],
            Dir::Pci(address) => {
                let mut attrs = self.pci.get(&address).map_or_else(Vec::new, function);
                attrs.extend(self.gim.attrs(address));
                attrs
            }
            Dir::Hive(_) => vec![Attr::XgmiHiveId],
            Dir::Parameters(_) => vec![Attr::VfNum],
            Dir::Mdev(uuid) if !self.is_removing(uuid) => vec![Attr::RemoveMdev, Attr::Uevent],
            Dir::Type(key, index) => {
                let mut attrs = vec![Attr::Create, Attr::DeviceApi, Attr::AvailableInstances];
                if let Some((_, ty)) = self.mdev_type(key, index) {
                    attrs.extend(ty.name.is_some().then_some(Attr::Name));
                    attrs.extend(ty.description.is_some().then_some(Attr::Description));
                }
                attrs
            }
            Dir::Vendor(_) => VENDOR.to_vec(),
            Dir::MdevVendor(_) => vec![Attr::VgpuParams],
            Dir::Intel(pf, place) => {
                self.intel_attrs(pf, place).into_iter().map(Attr::Intel).collect()
            }
            Dir::VfioDevice(_) if self.vfio.cdevs => vec![Attr::Dev, Attr::Uevent],
            Dir::VfioDevice(_) => vec![Attr::Uevent],
            Dir::VfioGroup(_) | Dir::Card(_) => vec![Attr::Dev, Attr::Uevent],
            Dir::IommuGroup(number) => {
                let name = self.is_emulated(number).then_some(Attr::Name);
                [Attr::GroupType, Attr::ReservedRegions].into_iter().chain(name).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What reading an attribute gives.
    pub(super) fn show(&self, dir: Dir, attr: Attr) -> Result<String, Errno> {
        if attr.mode() & 0o444 == 0 {
            return Err(Errno::EACCES);
        }
        match dir {
            Dir::Pci(address) => self.show_function(address, attr),
            Dir::Vendor(vf) => self.show_vendor(vf, attr),
            Dir::MdevVendor(uuid) => Ok(line(&self.mdevs.get(&uuid).ok_or(Errno::ENODEV)?.params)),
            Dir::Hive(pf) => self.gim.show(pf, attr).ok_or(Errno::ENODEV),
            Dir::Parameters(_) => Ok(self.gim.parameter()),
            Dir::Intel(pf, place) => match attr {
                Attr::Intel(setting) => self.show_intel(pf, place, setting.item),
                _ => Err(Errno::EIO),
            },
            Dir::Type(key, index) => {
                let (_, ty) = self.mdev_type(key, index).ok_or(Errno::ENODEV)?;
                Ok(match attr {
                    Attr::Name => line(ty.name.as_deref().unwrap_or_default()),
                    Attr::Description => line(ty.description.as_deref().unwrap_or_default()),
                    Attr::DeviceApi => line(&ty.device_api),
                    Attr::AvailableInstances => line(self.available(key, index)),
                    _ => String::new(),
                })
            }
            Dir::VfioDevice(member) => {
                let number = self.vfio_of(member).ok_or(Errno::ENODEV)?.number;
                let (node, device) = (format!("vfio/devices/vfio{number}"), (511, number));
                Ok(match (attr, self.vfio.cdevs) {
                    (Attr::Uevent, false) => String::new(),
                    _ => character_device(attr, &node, device),
                })
            }
            Dir::VfioGroup(number) => {
                Ok(character_device(attr, &format!("vfio/{number}"), (244, number)))
            }
            Dir::Card(address) => {
                let card = self.function(address)?.card.ok_or(Errno::ENODEV)?;
                Ok(character_device(attr, &format!("dri/card{card}"), (226, card)))
            }
            Dir::IommuGroup(number) => self.show_group(number, attr),
            Dir::Kernel => Ok(line(self.uevents)),
            Dir::Mdev(uuid) => {
                let driver = self.mdev_driver(uuid);
                Ok(driver.map_or_else(String::new, |driver| format!("DRIVER={driver}\n")))
            }
            _ => Ok(String::new()),
        }
    }

    fn show_function(&self, address: PciAddress, attr: Attr) -> Result<String, Errno> {
        let device = self.function(address)?;
        let facts = &device.facts;
        if let Role::Pf(sriov) = &device.role
            && let Some(text) = show_sriov(sriov, attr)
        {
            return Ok(text);
        }
        if let Some(text) = self.gim.show(address, attr) {
            return Ok(text);
        }
        Ok(match attr {
            Attr::Vendor => format!("0x{:04x}\n", facts.vendor),
            Attr::Device => format!("0x{:04x}\n", facts.device),
            Attr::SubsystemVendor => format!("0x{:04x}\n", facts.subsystem.0),
            Attr::SubsystemDevice => format!("0x{:04x}\n", facts.subsystem.1),
            Attr::Class => format!("0x{:06x}\n", facts.class),
            Attr::Revision => format!("0x{:02x}\n", facts.revision),
            Attr::NumaNode => line(facts.numa_node),
            Attr::Modalias => line(modalias(device)),
            Attr::DriverOverride => line(device.driver_override.as_deref().unwrap_or("(null)")),
            Attr::BootVga => line(u8::from(facts.boot_vga)),
            Attr::ResetMethod => line(facts.reset_methods.join(" ")),
            Attr::Uevent => self
                .function_variables(address)
                .into_iter()
                .map(|(key, value)| format!("{key}={value}\n"))
                .collect(),
            _ => String::new(),
        })
    }

    /// The variables of a function's uevents, in the kernel's order.
    pub(super) fn function_variables(&self, address: PciAddress) -> Vec<(String, String)> {
        let Some(device) = self.pci.get(&address) else { return Vec::new() };
        let facts = &device.facts;
        let driver = self.driver_of(device).map(|driver| ("DRIVER", driver.name.to_string()));
        let fixed = [
            ("PCI_CLASS", format!("{:04X}", facts.class)),
            ("PCI_ID", format!("{:04X}:{:04X}", facts.vendor, facts.device)),
            ("PCI_SUBSYS_ID", format!("{:04X}:{:04X}", facts.subsystem.0, facts.subsystem.1)),
            ("PCI_SLOT_NAME", address.to_string()),
            ("MODALIAS", modalias(device)),
        ];
        driver.into_iter().chain(fixed).map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Whether a group is an mdev's, with no IOMMU behind it.
    fn is_emulated(&self, group: u32) -> bool {
        let first = self.groups.get(&group).and_then(|group| group.members.first());
        matches!(first, Some(Member::Mdev(_)))
    }

    fn show_group(&self, number: u32, attr: Attr) -> Result<String, Errno> {
        let emulated = self.is_emulated(number);
        Ok(match attr {
            // Also where there is an IOMMU: the name of all groups that VFIO
            // makes (drivers/vfio/group.c, vfio_noiommu_group_alloc).
            Attr::Name => "vfio-noiommu\n".into(),
            Attr::GroupType if emulated => "unknown\n".into(),
            Attr::GroupType => "DMA-FQ\n".into(),
            _ if emulated => String::new(),
            _ => "0x00000000fee00000 0x00000000feefffff msi\n".into(),
        })
    }

    /// Whether a node of `/dev` exists now.
    pub(super) fn node_exists(&self, key: &NodeKey) -> bool {
        match key {
            NodeKey::Group(number) => self.has_group_node(*number),
            NodeKey::Cdev(number) => self.vfio.cdevs && self.live_vfio(*number).is_some(),
            NodeKey::Card(number) => self.pci.values().any(|device| device.card == Some(*number)),
            NodeKey::Container => self.vfio.groups,
            NodeKey::Iommu => self.vfio.cdevs,
        }
    }
}

fn function(device: &PciDevice) -> Vec<Attr> {
    let mut attrs = FUNCTION.to_vec();
    if device.facts.class >> 16 == 3 {
        attrs.push(Attr::BootVga);
    }
    if !device.facts.reset_methods.is_empty() {
        attrs.extend([Attr::Reset, Attr::ResetMethod]);
    }
    match &device.role {
        Role::Plain => {}
        Role::Pf(_) => attrs.extend(PF),
        Role::Vf { .. } => attrs.push(Attr::SriovVfMsixCount),
    }
    attrs
}

fn show_sriov(sriov: &Sriov, attr: Attr) -> Option<String> {
    Some(match attr {
        Attr::SriovTotalvfs => line(sriov.total()),
        Attr::SriovNumvfs => line(sriov.count),
        Attr::SriovOffset => line(sriov.spec.offset),
        Attr::SriovStride => line(sriov.spec.stride),
        Attr::SriovVfDevice => format!("{:x}\n", sriov.spec.vf_device),
        Attr::SriovAutoprobe => line(u8::from(sriov.autoprobe)),
        Attr::SriovVfTotalMsix => line(0),
        _ => return None,
    })
}

fn modalias(device: &PciDevice) -> String {
    let facts = &device.facts;
    let [_, base, sub, interface] = facts.class.to_be_bytes();
    format!(
        "pci:v{:08X}d{:08X}sv{:08X}sd{:08X}bc{base:02X}sc{sub:02X}i{interface:02X}",
        facts.vendor, facts.device, facts.subsystem.0, facts.subsystem.1
    )
}

fn character_device(attr: Attr, node: &str, (major, minor): (u32, u32)) -> String {
    match attr {
        Attr::Dev => format!("{major}:{minor}\n"),
        Attr::Uevent => format!("MAJOR={major}\nMINOR={minor}\nDEVNAME={node}\n"),
        _ => String::new(),
    }
}

fn line(value: impl ToString) -> String {
    let mut text = value.to_string();
    text.push('\n');
    text
}
