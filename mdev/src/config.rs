//! `host.toml`: what the host's administrator decided.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    model::{Gpu, GpuId, ParentName, PciAddress},
    placement::Policy,
    sys::ToolId,
};

/// The content of `/etc/vgpu-host/host.toml`; a missing file means defaults.
///
/// ```toml
/// [discovery]
/// add = ["8086:10c9", "class:0108", "0000:02:00.0"]  # devices beyond GPUs
/// exclude = ["0000:41:00.0"]
///
/// [passthrough]
/// allow = ["0000:81:00.0"]  # whole GPUs that may be given away
///
/// [limits]
/// vgpus-per-user = 16
///
/// [placement]  # which GPU carries a new vGPU: pack (the default) or spread
/// policy = "spread"
///
/// [pools.render]  # GPUs that can be asked for by a name
/// gpus = ["10de:2235", "0000:41:00.0", "mdev:mtty"]
///
/// [tools]  # where the programs are that the service runs
/// modprobe = "/sbin/modprobe"
/// nvidia-smi = "/usr/bin/nvidia-smi"
/// sriov-manage = "/usr/lib/nvidia/sriov-manage"
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Config {
    /// Which devices are GPUs.
    pub discovery: Discovery,
    /// Which GPUs may be given away whole.
    pub passthrough: Passthrough,
    /// How much one user may have.
    pub limits: Limits,
    /// Where the programs are.
    pub tools: Tools,
    /// Which GPU carries a new vGPU.
    pub placement: Placement,
    /// GPUs by the name of their pool.
    pub pools: BTreeMap<PoolName, Pool>,
}

/// Which GPU carries a new vGPU, where the request does not say.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Placement {
    /// By this rule.
    pub policy: Policy,
}

/// GPUs that can be asked for together.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// These; a GPU can be in several pools.
    pub gpus: Vec<Selector>,
}

/// The name of a pool: lower-case letters, digits and `-`, at most 32.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct PoolName(Box<str>);

impl FromStr for PoolName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if (1..=32).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('-') {
            return Ok(Self(text.into()));
        }
        Err(format!(
            "{:?} names no pool: use 1 to 32 lower-case letters, digits and '-'",
            text.chars().take(64).collect::<String>()
        ))
    }
}

impl TryFrom<String> for PoolName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pool {
    /// Whether a GPU is in it.
    pub fn holds(&self, gpu: &Gpu) -> bool {
        self.gpus.iter().any(|selector| match (&gpu.id, gpu.pci_ids) {
            (GpuId::Mdev(name), _) => *selector == Selector::Mdev(name.clone()),
            // The class of a GPU is not in the picture: selectors by class are
            // refused when the file is read.
            (GpuId::Pci(address), Some((vendor, device))) => {
                selector.matches(*address, vendor, device, 0)
            }
            (GpuId::Pci(_), None) => false,
        })
    }
}

/// Which devices are GPUs: display controllers (class 0x03) and processing
/// accelerators (0x1200), less `exclude`, with `add`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Discovery {
    /// Devices to take in.
    pub add: Vec<Selector>,
    /// Devices to leave out; wins over `add`.
    pub exclude: Vec<Selector>,
}

/// Which GPUs may be given away whole.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Passthrough {
    /// These.
    pub allow: Vec<Selector>,
}

/// How much one user may have.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Limits {
    /// vGPUs that a user other than root may own; `None` means no limit.
    pub vgpus_per_user: Option<u32>,
}

/// Where the programs are that the service runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Tools {
    /// Loads modules.
    #[serde(deserialize_with = "absolute")]
    pub modprobe: PathBuf,
    /// Configures NVIDIA's GPUs.
    #[serde(deserialize_with = "absolute")]
    pub nvidia_smi: PathBuf,
    /// Enables the VFs of NVIDIA's GPUs.
    #[serde(deserialize_with = "absolute")]
    pub sriov_manage: PathBuf,
}

impl Default for Tools {
    /// Where distributions and NVIDIA's packages put them.
    fn default() -> Self {
        Self {
            modprobe: "/sbin/modprobe".into(),
            nvidia_smi: "/usr/bin/nvidia-smi".into(),
            sriov_manage: "/usr/lib/nvidia/sriov-manage".into(),
        }
    }
}

impl Tools {
    /// The path of a program.
    pub fn path(&self, tool: ToolId) -> &Path {
        match tool {
            ToolId::Modprobe => &self.modprobe,
            ToolId::NvidiaSmi => &self.nvidia_smi,
            ToolId::SriovManage => &self.sriov_manage,
        }
    }
}

/// A path that means the same whatever the working directory is.
fn absolute<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(from)?;
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(D::Error::custom(format!("{:?} is no absolute path of a program", path.display())))
    }
}

/// Names PCI devices: `vvvv:dddd`, `class:cc[ss[pp]]`, or an address; in a pool also
/// an mdev parent that is none: `mdev:mtty`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Selector {
    /// By vendor and device id.
    Ids(u16, u16),
    /// By the leading digits of the class: value and how many of its 24 bits.
    Class(u32, u32),
    /// By address.
    Address(PciAddress),
    /// An mdev parent that is no PCI device, by name.
    Mdev(ParentName),
}

/// A broken `host.toml`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct ConfigError {
    path: PathBuf,
    message: String,
}

impl Config {
    /// Parses the text of the file at `path` (used in the error only).
    ///
    /// # Errors
    /// Names the file, line and what is wrong.
    pub fn parse(text: &str, path: impl Into<PathBuf>) -> Result<Self, ConfigError> {
        let path = path.into();
        let config: Self = toml::from_str(text).map_err(|error| ConfigError {
            path: path.clone(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        for (name, pool) in &config.pools {
            if pool.gpus.iter().any(|selector| matches!(selector, Selector::Class(..))) {
                let message = format!(
                    "the pool {name} has a class among its gpus: write vvvv:dddd or an address"
                );
                return Err(ConfigError { path, message });
            }
        }
        for (key, selectors) in [
            ("add of [discovery]", &config.discovery.add),
            ("exclude of [discovery]", &config.discovery.exclude),
            ("allow of [passthrough]", &config.passthrough.allow),
        ] {
            if let Some(parent) = selectors.iter().find(|s| matches!(s, Selector::Mdev(_))) {
                let message = format!("{key} has {parent}: only pools take what is no PCI device");
                return Err(ConfigError { path, message });
            }
        }
        Ok(config)
    }
}

impl Selector {
    /// Whether a PCI device of that address, ids and class is meant.
    pub fn matches(&self, address: PciAddress, vendor: u16, device: u16, class: u32) -> bool {
        match self {
            Self::Ids(v, d) => (*v, *d) == (vendor, device),
            Self::Class(value, bits) => class >> (24 - bits) == *value,
            Self::Address(a) => *a == address,
            Self::Mdev(_) => false,
        }
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{:?} selects nothing: write vvvv:dddd, class:cc[ss[pp]], an address such as 0000:41:00.0 or, in a pool, mdev:NAME",
                text.chars().take(64).collect::<String>()
            )
        };
        let hex = |digits: &str| {
            let all_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
            all_hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
        };
        if let Some(name) = text.strip_prefix("mdev:") {
            return match name.parse() {
                Ok(GpuId::Mdev(name)) => Ok(Self::Mdev(name)),
                // A PCI device is known by its address alone.
                Ok(GpuId::Pci(_)) | Err(_) => Err(wrong()),
            };
        }
        if let Some(digits) = text.strip_prefix("class:") {
            return match (digits.len(), hex(digits)) {
                (2 | 4 | 6, Some(value)) => Ok(Self::Class(value, digits.len() as u32 * 4)),
                _ => Err(wrong()),
            };
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        match text.split_once(':') {
            Some((v, d)) if v.len() == 4 && d.len() == 4 => match (hex(v), hex(d)) {
                (Some(v), Some(d)) => Ok(Self::Ids(v as u16, d as u16)),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Selector {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ids(vendor, device) => write!(f, "{vendor:04x}:{device:04x}"),
            Self::Class(value, bits) => {
                write!(f, "class:{value:0width$x}", width = *bits as usize / 4)
            }
            Self::Address(address) => address.fmt(f),
            Self::Mdev(name) => write!(f, "mdev:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_take_four_forms() {
        let a = "0000:02:00.0".parse().unwrap();
        let m =
            |text: &str| text.parse::<Selector>().unwrap().matches(a, 0x8086, 0x10c9, 0x02_00_00);
        assert!(m("8086:10c9") && m("class:02") && m("class:0200") && m("0000:02:00.0"));
        assert!(!m("8086:10ca") && !m("class:03") && !m("class:020001"));
        assert_eq!("mdev:mtty".parse(), Ok(Selector::Mdev("mtty".parse().unwrap())));
        assert!(!m("mdev:0000_02_00"));
        for text in [
            "",
            "class:",
            "class:3",
            "8086",
            "zzzz:0000",
            "8086:10c9:1",
            "+086:10c9",
            "mdev:",
            "mdev:a/b",
            "mdev:0000:02:00.0",
        ] {
            assert!(text.parse::<Selector>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn tools_are_absolute_and_each_has_a_default() {
        let tools = |text: &str| Config::parse(text, "x").map(|config| config.tools);
        let moved = tools("[tools]\nsriov-manage = \"/opt/nvidia/sriov-manage\"\n").unwrap();
        assert_eq!(moved.path(ToolId::SriovManage), Path::new("/opt/nvidia/sriov-manage"));
        assert_eq!(moved.path(ToolId::NvidiaSmi), Path::new("/usr/bin/nvidia-smi"));
        assert_eq!(moved.path(ToolId::Modprobe), Path::new("/sbin/modprobe"));
        let relative = tools("[tools]\nnvidia-smi = \"nvidia-smi\"\n").unwrap_err().to_string();
        assert!(
            relative.contains("line 2") && relative.contains("\"nvidia-smi\" is no absolute path"),
            "{relative}"
        );
        assert!(tools("[tools]\nnvidia_smi = \"/usr/bin/nvidia-smi\"\n").is_err());
    }

    #[test]
    fn pools_name_gpus_and_no_classes() {
        let text = "[placement]\npolicy = 'spread'\n[pools.render]\ngpus = ['10de:2235']\n";
        let config = Config::parse(text, "x").unwrap();
        assert_eq!(config.placement.policy, Policy::Spread);
        assert_eq!(config.pools.keys().next().unwrap().to_string(), "render");
        for wrong in [
            "[pools.Render]\ngpus = []",
            "[pools.a]\ngpus = ['class:03']",
            "[pools.a]\n",
            "[discovery]\nadd = ['mdev:mtty']",
            "[discovery]\nexclude = ['mdev:mtty']",
            "[passthrough]\nallow = ['mdev:mtty']",
            "[placement]\npolicy = 'tight'",
        ] {
            assert!(Config::parse(wrong, "x").is_err(), "{wrong} was taken");
        }
    }

    #[test]
    fn a_broken_file_says_where() {
        let error =
            Config::parse("[discovery]\nadd = [\"nonsense\"]\n", "/etc/vgpu-host/host.toml");
        let text = error.unwrap_err().to_string();
        assert!(
            text.starts_with("/etc/vgpu-host/host.toml: ") && text.contains("line 2"),
            "{text}"
        );
        assert!(Config::parse("surprise = 1", "x").is_err());
        assert_eq!(Config::parse("", "x"), Ok(Config::default()));
    }
}
