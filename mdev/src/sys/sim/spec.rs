//! The described host: what a simulated kernel finds at boot.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc};

use nix::errno::Errno;
use serde::Deserialize;
use uuid::Uuid;

use crate::model::PciAddress;

use super::{gim::GimSpec, gvt::Aperture, i915::I915Spec, nvidia::NvidiaSpec, xe::XeSpec};

/// A host, as it is described in TOML or built by a test.
///
/// ```toml
/// [[pci]]
/// address = "0000:41:00.0"
/// vendor = 0x8086
/// device = 0x56c0
/// class = 0x030000
/// driver = "i915"
/// sriov = { total-vfs = 31, vf-device = 0x56c0, vf-driver = "i915" }
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct HostSpec {
    /// The kernel's boot id.
    pub boot_id: Uuid,
    /// Whether the IOMMU is on.
    pub iommu: bool,
    /// Which of VFIO's interfaces the kernel was built with.
    pub vfio: VfioSpec,
    /// The VFIO drivers that the kernel has.
    #[serde(rename = "vfio-driver")]
    pub vfio_drivers: Vec<VfioDriverSpec>,
    /// Kinds of mdev parents, by a name that devices refer to.
    #[serde(rename = "mdev-kind")]
    pub mdev_kinds: BTreeMap<String, Arc<MdevKind>>,
    /// The PCI functions present at boot; VFs follow from `sriov`.
    pub pci: Vec<PciSpec>,
    /// Parents without hardware: `/sys/devices/virtual/<name>/<name>`.
    #[serde(rename = "virtual-parent")]
    pub virtual_parents: Vec<VirtualParentSpec>,
    /// Mdevs that somebody made already.
    #[serde(rename = "mdev")]
    pub mdevs: Vec<MdevSpec>,
    /// Processes that hold a node.
    #[serde(rename = "holder")]
    pub holders: Vec<HolderSpec>,
}

/// VFIO's interfaces.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VfioSpec {
    /// `/dev/vfio/<group>`.
    pub groups: bool,
    /// `/dev/vfio/devices/vfio<n>` and `/dev/iommu`.
    pub cdevs: bool,
}

/// A VFIO driver for PCI functions.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VfioDriverSpec {
    /// Its name: `vfio-pci`, `xe-vfio-pci`.
    pub name: String,
    /// Whether its module is loaded at boot; otherwise `modprobe` loads it.
    #[serde(default = "yes")]
    pub loaded: bool,
    /// The `vvvv:dddd` that a variant driver is for (its `vfio_pci:` aliases).
    #[serde(default)]
    pub ids: Vec<String>,
    /// Whether it was loaded with `enable_sriov=1`.
    #[serde(default)]
    pub enable_sriov: bool,
}

/// A PCI function.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PciSpec {
    /// Its address.
    pub address: PciAddress,
    /// Its vendor id.
    pub vendor: u16,
    /// Its device id.
    pub device: u16,
    /// The board's vendor id.
    #[serde(default)]
    pub subsystem_vendor: u16,
    /// The board's id.
    #[serde(default)]
    pub subsystem_device: u16,
    /// Its class, 24 bits.
    pub class: u32,
    /// Its revision.
    #[serde(default)]
    pub revision: u8,
    /// The host driver that matches it.
    pub driver: Option<String>,
    /// What it is bound to at boot where that is not `driver`: a VFIO driver,
    /// by override, or `none`.
    pub bound: Option<String>,
    /// Its NUMA node, -1 for unknown.
    #[serde(default = "unknown_node")]
    pub numa_node: i32,
    /// Its IOMMU group; functions that name the same one share it. The lowest
    /// free one by default.
    pub iommu_group: Option<u32>,
    /// The bridge above it, when that is among the described functions.
    pub behind: Option<PciAddress>,
    /// Whether the firmware used it as the console.
    #[serde(default)]
    pub boot_vga: bool,
    /// How it can be reset, in the kernel's order; empty when it cannot.
    #[serde(default = "flr")]
    pub reset_methods: Vec<String>,
    /// Its SR-IOV capability.
    pub sriov: Option<SriovSpec>,
    /// The kind of mdev parent that it is while bound to `driver`.
    pub mdev: Option<String>,
    /// What AMD's GIM makes of it, when that is its driver.
    pub gim: Option<GimSpec>,
    /// What NVIDIA's driver and programs know of it; its driver then decides what
    /// fits, and changes no VF count through sysfs.
    pub nvidia: Option<NvidiaSpec>,
}

/// An SR-IOV capability and what the PF's driver makes of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SriovSpec {
    /// `sriov_totalvfs`.
    pub total_vfs: u16,
    /// The first VF's distance from the PF in routing ids.
    #[serde(default = "one")]
    pub offset: u16,
    /// The distance between VFs.
    #[serde(default = "one")]
    pub stride: u16,
    /// The VFs' device id.
    pub vf_device: u16,
    /// The VFs' class, the PF's by default.
    pub vf_class: Option<u32>,
    /// How a VF can be reset.
    #[serde(default = "flr")]
    pub vf_reset_methods: Vec<String>,
    /// The host driver that takes VFs where autoprobe lets it.
    pub vf_driver: Option<String>,
    /// The driver's own limit (`pci_sriov_set_totalvfs`).
    pub driver_limit: Option<u16>,
    /// Whether the driver can change the count through sysfs.
    #[serde(default = "yes")]
    pub callback: bool,
    /// The driver enables at most so many and says success.
    pub short_count: Option<u16>,
    /// The driver refuses to enable any.
    pub errno: Option<ErrnoName>,
    /// `sriov_drivers_autoprobe` at boot.
    #[serde(default = "yes")]
    pub autoprobe: bool,
    /// Whether all VFs lie in the PF's IOMMU group (no ACS).
    #[serde(default)]
    pub share_group: bool,
    /// VFs that are on at boot.
    #[serde(default)]
    pub enabled: u16,
    /// Of those, the ones bound to something else than `vf-driver`.
    #[serde(default)]
    pub vf: Vec<VfSpec>,
    /// The kind of mdev parent that each VF is; all share the PF's capacity.
    pub mdev: Option<String>,
    /// The kind whose types each VF carries in NVIDIA's folder, without mdev; all
    /// share the PF's capacity.
    pub vendor: Option<String>,
    /// What i915 has for VFs, and offers in `prelim_iov/`.
    pub i915: Option<I915Spec>,
    /// What xe has for VFs, and offers in `sriov_admin/`.
    pub xe: Option<XeSpec>,
}

/// A VF that is bound at boot.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VfSpec {
    /// Which one, from 0.
    pub index: u16,
    /// A VFIO driver, by override, or `none`.
    pub bound: String,
}

/// What an mdev parent offers.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "super::kind::Described")]
pub struct MdevKind {
    /// The driver that its mdevs are bound to.
    pub driver: String,
    /// What its types share, in units of their `size`.
    pub units: u64,
    /// What GVT-g leaves of the graphics memory for guests; `units` is then its
    /// low part.
    pub aperture: Option<Aperture>,
    /// What `create` gives when nothing is left: EUSERS where the mdev core
    /// counts, ENOSPC or another where the driver does.
    pub full: ErrnoName,
    /// Only types of the size, or only the one, of the first mdev can follow it.
    pub homogeneous: Option<Homogeneous>,
    /// What `create` gives for a type that cannot follow.
    pub mismatch: ErrnoName,
    /// Mdevs that one parent takes, however much the GPU has left.
    pub per_parent: Option<u32>,
    /// PCI vendor and device id that a guest sees.
    pub guest_ids: Option<(u16, u16)>,
    /// Its types.
    pub types: Vec<MdevType>,
}

/// What can follow the first mdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Homogeneous {
    /// Types of the same size.
    Size,
    /// The same type.
    Id,
}

/// One mdev type.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "super::kind::DescribedType")]
pub struct MdevType {
    /// Its directory's name: `nvidia-558`, `mtty-2`.
    pub id: String,
    /// Its `name`; some drivers have none.
    pub name: Option<String>,
    /// Its `description`; some drivers have none.
    pub description: Option<String>,
    /// Its `device_api`.
    pub device_api: String,
    /// The units that one takes.
    pub size: u64,
    /// What one takes of GVT-g's graphics memory.
    pub aperture: Option<Aperture>,
    /// The most of its size that one GPU takes, however many units are left.
    pub max: Option<u32>,
}

/// A parent without hardware.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VirtualParentSpec {
    /// Its name: `mtty`.
    pub name: String,
    /// Its kind.
    pub mdev: String,
}

/// An mdev that exists at boot.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MdevSpec {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its parent: an address or the name of a virtual parent.
    pub parent: String,
    /// Its type's id.
    #[serde(rename = "type")]
    pub type_id: String,
}

/// A process that holds a node at boot, for as long as the kernel runs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HolderSpec {
    /// The device: an address or an mdev's UUID.
    pub device: String,
    /// Its own node or its group's.
    #[serde(default)]
    pub node: HeldNode,
    /// The process.
    pub pid: u32,
    /// Its command name.
    pub command: String,
}

/// Which of a device's nodes is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeldNode {
    /// `/dev/vfio/<group>`.
    #[default]
    Group,
    /// `/dev/vfio/devices/vfio<n>`, bound to an iommufd.
    Cdev,
    /// `/dev/dri/card<n>`: a process that draws on it.
    Drm,
}

/// An errno by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ErrnoName(pub Errno);

impl TryFrom<String> for ErrnoName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        (1..134)
            .map(Errno::from_raw)
            .find(|errno| *errno != Errno::UnknownErrno && format!("{errno:?}") == name)
            .map(Self)
            .ok_or_else(|| format!("{name:?} is no errno's name; write for example ENOSPC"))
    }
}

/// A description that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct SpecError {
    path: Option<PathBuf>,
    line: Option<usize>,
    message: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl SpecError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { path: None, line: None, message: message.into() }
    }
}

impl HostSpec {
    /// Parses and checks the text of the file at `path` (used in errors only).
    ///
    /// # Errors
    /// Names the file, the line and what is wrong.
    pub fn parse(text: &str, path: impl Into<PathBuf>) -> Result<Self, SpecError> {
        let path = path.into();
        let spec: Self = toml::from_str(text).map_err(|error| SpecError {
            path: Some(path.clone()),
            line: None,
            message: error.to_string().trim_end().to_owned(),
        })?;
        match super::check::fault(&spec) {
            None => Ok(spec),
            Some(fault) => {
                let line = text.lines().position(|line| line.contains(&fault.value));
                Err(SpecError {
                    path: Some(path),
                    line: line.map(|line| line + 1),
                    message: fault.message,
                })
            }
        }
    }

    /// The small host that is simulated when none is described.
    ///
    /// # Errors
    /// Never, as the tests prove.
    pub fn builtin() -> Result<Self, SpecError> {
        Self::parse(include_str!("builtin.toml"), "builtin.toml")
    }
}

impl Default for HostSpec {
    /// A host without devices, with IOMMU and vfio-pci.
    fn default() -> Self {
        Self {
            boot_id: Uuid::from_u128(0x5a31_c0de_0000_4000_8000_0000_0000_0001),
            iommu: true,
            vfio: VfioSpec::default(),
            vfio_drivers: vec![VfioDriverSpec {
                name: "vfio-pci".into(),
                loaded: true,
                ids: Vec::new(),
                enable_sriov: false,
            }],
            mdev_kinds: BTreeMap::new(),
            pci: Vec::new(),
            virtual_parents: Vec::new(),
            mdevs: Vec::new(),
            holders: Vec::new(),
        }
    }
}

impl Default for VfioSpec {
    fn default() -> Self {
        Self { groups: true, cdevs: false }
    }
}

fn yes() -> bool {
    true
}

fn one() -> u16 {
    1
}

fn unknown_node() -> i32 {
    -1
}

fn flr() -> Vec<String> {
    vec!["flr".into()]
}
