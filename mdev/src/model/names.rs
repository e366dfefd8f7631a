//! Names: of GPUs, types, vGPUs and frameworks. Each is checked where it
//! enters, since most end up in a sysfs path.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::PciAddress;

/// Text that cannot be a name of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}: {rule}")]
pub struct InvalidName {
    kind: &'static str,
    text: String,
    rule: &'static str,
}

impl InvalidName {
    fn new(kind: &'static str, text: &str, rule: &'static str) -> Self {
        Self { kind, text: text.chars().take(64).collect(), rule }
    }
}

/// How a GPU is divided into vGPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Framework {
    /// Mediated devices: NVIDIA GRID, Intel GVT-g, any mdev parent.
    Mdev,
    /// NVIDIA's vendor-specific VFIO: a type on each VF, and no mdev.
    NvidiaVf,
    /// Plain SR-IOV virtual functions bound to a VFIO driver.
    Sriov,
    /// The whole device, bound to a VFIO driver.
    Passthrough,
}

impl Framework {
    /// All frameworks, in the order in which they are offered.
    pub const ALL: [Self; 4] = [Self::Mdev, Self::NvidiaVf, Self::Sriov, Self::Passthrough];

    /// The word used on the bus and by `vgpuctl`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mdev => "mdev",
            Self::NvidiaVf => "nvidia-vf",
            Self::Sriov => "sriov",
            Self::Passthrough => "passthrough",
        }
    }
}

impl fmt::Display for Framework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The device name of a virtual mdev parent, such as `mtty`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ParentName(Box<str>);

/// The kernel's id of a kind of vGPU: `nvidia-558`, `mtty-2`, `mi300x-vf`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TypeId(Box<str>);

/// The optional name that its creator gave a vGPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VgpuName(Box<str>);

/// One path element that sysfs can hold and that cannot leave its directory.
fn is_element(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 255
        && text != "."
        && text != ".."
        && text.chars().all(|c| c != '/' && !c.is_control())
}

fn is_vgpu_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

macro_rules! checked_name {
    ($name:ident, $kind:literal, $check:path, $rule:literal) => {
        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                if $check(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(InvalidName::new($kind, text, $rule))
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

checked_name!(
    ParentName,
    "device name",
    is_element,
    "one path element of at most 255 bytes, without control characters"
);
checked_name!(
    TypeId,
    "type id",
    is_element,
    "one path element of at most 255 bytes, without control characters"
);
checked_name!(
    VgpuName,
    "vGPU name",
    is_vgpu_name,
    "1 to 64 of A-Z a-z 0-9 . _ - and a letter or digit first"
);

/// What a GPU is known by: its PCI address, or the name of a virtual mdev
/// parent (the kernel's sample drivers).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum GpuId {
    /// A physical function.
    Pci(PciAddress),
    /// An mdev parent that is no PCI device.
    Mdev(ParentName),
}

impl GpuId {
    /// The PCI address, where the GPU has one.
    pub fn pci(&self) -> Option<PciAddress> {
        match self {
            Self::Pci(address) => Some(*address),
            Self::Mdev(_) => None,
        }
    }
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => address.fmt(f),
            Self::Mdev(name) => name.fmt(f),
        }
    }
}

impl FromStr for GpuId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Pci(address));
        }
        text.parse().map(Self::Mdev).map_err(|_| {
            InvalidName::new(
                "GPU",
                text,
                "a PCI address such as 0000:41:00.0 or an mdev parent's name",
            )
        })
    }
}

impl TryFrom<String> for GpuId {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<GpuId> for String {
    fn from(id: GpuId) -> Self {
        id.to_string()
    }
}

/// A vGPU's UUID in the one form that the kernel takes: 36 characters with
/// hyphens (`drivers/vfio/mdev/mdev_sysfs.c`, `create_store`). The nil UUID is
/// nobody's.
///
/// # Errors
/// When the text has another form or is the nil UUID.
pub fn parse_uuid(text: &str) -> Result<Uuid, InvalidName> {
    let wrong = || {
        InvalidName::new("UUID", text, "write it as 8-4-4-4-12 hexadecimal digits, not all zero")
    };
    if text.len() != 36 {
        return Err(wrong());
    }
    match Uuid::try_parse(text) {
        Ok(uuid) if !uuid.is_nil() => Ok(uuid),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_an_address_or_a_parent() {
        assert!(matches!("0000:41:00.0".parse(), Ok(GpuId::Pci(_))));
        assert!(matches!("mtty".parse(), Ok(GpuId::Mdev(_))));
        for text in ["", "..", "a/b", "a\nb", &"x".repeat(256)] {
            assert!(text.parse::<GpuId>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn a_uuid_has_one_form() {
        assert!(parse_uuid("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001").is_ok());
        for text in [
            "",
            "83b8f4f2509f382f3c1ee6bfe0fa1001",
            "{83b8f4f2-509f-382f-3c1e-e6bfe0fa1001}",
            "83b8f4f2-509f-382f-3c1e-e6bfe0fa100g",
            "00000000-0000-0000-0000-000000000000",
            "../../../../../../../../etc/passwd__",
        ] {
            assert!(parse_uuid(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn a_vgpu_name_is_plain() {
        assert!("guest-1.gpu_0".parse::<VgpuName>().is_ok());
        for text in ["", "-a", "a b", "a\u{7}", "ä", &"x".repeat(65)] {
            assert!(text.parse::<VgpuName>().is_err(), "{text:?} was taken");
        }
    }
}
