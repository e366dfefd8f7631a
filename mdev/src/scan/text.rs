//! Parsers of what the kernel and its drivers write: pure, and never failing
//! with more than `None`.

use uuid::Uuid;

use crate::{model::PciAddress, room::Shape};

/// A hexadecimal number with `0x` (`vendor`, `class`) or without
/// (`sriov_vf_device`).
pub fn hex(text: &str) -> Option<u32> {
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, 16).ok())?
}

/// A 16-bit PCI id.
pub fn pci_id(text: &str) -> Option<u16> {
    hex(text).and_then(|id| id.try_into().ok())
}

/// A decimal count.
pub fn count(text: &str) -> Option<u32> {
    let digits = text.trim();
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// `numa_node`: -1 means that the kernel does not know.
pub fn numa_node(text: &str) -> Option<u32> {
    count(text)
}

/// What an unset `driver_override` reads (`drivers/pci/pci-sysfs.c`,
/// `driver_override_show`).
pub const NO_OVERRIDE: &str = "(null)";

/// The value of `driver_override`.
pub fn driver_override(text: &str) -> Option<&str> {
    match text.trim_end_matches('\n') {
        "" | NO_OVERRIDE => None,
        name => Some(name),
    }
}

/// The VF number of a `virtfn<n>` link.
pub fn virtfn(name: &str) -> Option<u32> {
    count(name.strip_prefix("virtfn").filter(|number| !number.is_empty())?)
}

/// The UUID of an mdev's directory: the kernel names it in lower case.
pub fn mdev_name(name: &str) -> Option<Uuid> {
    (name.len() == 36).then(|| Uuid::try_parse(name).ok())?
}

/// The framebuffer in bytes that a driver's description tells:
/// `framebuffer=2048M` (NVIDIA), `4 MB video memory` (mbochs), and
/// `low_gm_size: 128MB` with `high_gm_size: 512MB` (GVT-g: the graphics memory
/// that the guest sees is their sum). 0 when it tells none.
pub fn framebuffer(description: &str) -> u64 {
    const MIB: u64 = 1 << 20;
    let leading = |text: &str| -> Option<u64> {
        let text = text.trim_start();
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text.get(..end)?.parse().ok()
    };
    let after = |key: &str| {
        let (_, value) = description.split_once(key)?;
        leading(value)
    };
    if let Some(mib) = after("framebuffer=") {
        return mib.saturating_mul(MIB);
    }
    if let (Some(low), Some(high)) = (after("low_gm_size:"), after("high_gm_size:")) {
        return low.saturating_add(high).saturating_mul(MIB);
    }
    let words: Vec<&str> = description.split([' ', ',', '\n']).collect();
    words
        .windows(4)
        .find_map(|w| match w {
            [mib, "MB", "video", "memory"] => leading(mib),
            _ => None,
        })
        .unwrap_or(0)
        .saturating_mul(MIB)
}

/// How many instances of a type fit an empty GPU, where the description tells:
/// `max_instance=8`.
pub fn max_instance(description: &str) -> Option<u32> {
    let (_, value) = description.split_once("max_instance=")?;
    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    count(value.get(..end).filter(|digits| !digits.is_empty())?)
}

/// The rows of `creatable_vgpu_types`: number and name, in either order (the
/// driver writes `1145  : NVIDIA L40S-1B`, its documents show the name first).
/// A row without a number or a name, such as the header, is none.
pub fn creatable_types(text: &str) -> Vec<(u32, String)> {
    let number = |text: &str| count(text).filter(|number| *number != 0 && !text.is_empty());
    text.lines()
        .filter_map(|row| {
            let row = row.trim();
            if let Some((id, name)) = row.split_once(':')
                && let Some(id) = number(id.trim())
            {
                return Some((id, name.trim().to_owned()));
            }
            let (name, id) = row.rsplit_once(|c: char| c.is_whitespace() || c == ':')?;
            let name = name.trim_end_matches(|c: char| c.is_whitespace() || c == ':');
            Some((number(id)?, name.to_owned()))
        })
        .filter(|(_, name)| !name.is_empty())
        .collect()
}

/// The framebuffer in bytes that an NVIDIA type's name tells: `NVIDIA L40S-2Q`
/// and `NVIDIA A100-3-20C` end in GiB and a letter; `0` stands for 512 MiB.
/// 0 when it tells none.
pub fn framebuffer_of_name(name: &str) -> u64 {
    let last = name.rsplit('-').next().unwrap_or_default();
    let end = last.find(|c: char| !c.is_ascii_digit()).unwrap_or(last.len());
    match last.get(..end).filter(|digits| !digits.is_empty()).and_then(count) {
        Some(0) => 512 << 20,
        Some(gib) => u64::from(gib) << 30,
        None => 0,
    }
}

/// What a type of Intel GVT-g takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aperture {
    /// Graphics memory in the aperture, in MB.
    pub low_mb: u32,
    /// Graphics memory beyond it, in MB.
    pub high_mb: u32,
    /// Fence registers.
    pub fences: u32,
}

/// What the description of a type of Intel GVT-g says that it takes: lines
/// `low_gm_size: 128MB`, `high_gm_size: 512MB`, `fence: 4`.
pub fn aperture(description: &str) -> Option<Aperture> {
    let value = |key: &str| {
        let line = description.lines().find_map(|line| line.trim().strip_prefix(key))?;
        count(line.trim().trim_end_matches("MB"))
    };
    Some(Aperture {
        low_mb: value("low_gm_size:")?,
        high_mb: value("high_gm_size:")?,
        fences: value("fence:")?,
    })
}

/// The GPU instance that a MIG-backed type of NVIDIA's needs, by its name:
/// `A100-3-20C` has three compute slices and 20 GiB, `A100-1-5CME` one with the
/// media engines, `DC-1-24Q` one with graphics; `None` for a time-sliced type.
pub fn instance_of_name(name: &str) -> Option<Shape> {
    let mut parts = name.rsplit('-');
    let (last, middle) = (parts.next()?, parts.next()?);
    parts.next()?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let slices = count(middle).filter(|_| digits(middle))?;
    let end = last.find(|c: char| !c.is_ascii_digit())?;
    let (gib, series) = last.split_at_checked(end)?;
    let extra = match series {
        "CME" => "me",
        _ if series.starts_with('C') => "",
        _ => "gfx",
    };
    Some(Shape { slices, gib: count(gib)?, extra: extra.into() })
}

/// The short name of an mdev type: for NVIDIA the full name's last token in
/// lower case, elsewhere the type id in lower case.
pub fn short_name(type_id: &str, name: &str) -> String {
    let last = name.split_whitespace().next_back();
    match last {
        Some(last) if type_id.starts_with("nvidia-") => last.to_lowercase(),
        _ => type_id.to_lowercase(),
    }
}

/// A name of `/sys/bus/pci/devices`.
pub fn pci_name(name: &str) -> Option<PciAddress> {
    let address: PciAddress = name.parse().ok()?;
    (address.to_string() == name).then_some(address)
}

/// The VFIO variant driver's module for a device, from `modules.alias`: lines
/// `alias vfio_pci:v…d…sv…sd…bc…sc…i… module` (`drivers/vfio/pci`, override-only
/// ids). The one with the fewest wild cards wins.
pub fn vfio_variant<'a>(aliases: &'a str, modalias: &str) -> Option<&'a str> {
    let device = modalias.trim().strip_prefix("pci:")?;
    aliases
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some("alias"), Some(pattern), Some(module)) => {
                    let pattern = pattern.strip_prefix("vfio_pci:")?;
                    glob(pattern, device).then_some((pattern.matches('*').count(), module))
                }
                _ => None,
            }
        })
        .min_by_key(|(wild, _)| *wild)
        .map(|(_, module)| module)
}

/// Whether a pattern with `*` matches the whole of a text.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or(""),
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_as_the_kernel_writes_them() {
        assert_eq!(hex("0x10de\n"), Some(0x10de));
        assert_eq!(hex("25b6\n"), Some(0x25b6));
        assert_eq!(pci_id("0x030000"), None);
        assert_eq!(numa_node("-1\n"), None);
        assert_eq!(numa_node("1\n"), Some(1));
        assert_eq!(count("+1"), None);
        assert_eq!(virtfn("virtfn12"), Some(12));
        assert_eq!(virtfn("virtfn"), None);
    }

    #[test]
    fn an_unset_override_is_none() {
        assert_eq!(driver_override("(null)\n"), None);
        assert_eq!(driver_override("\n"), None);
        assert_eq!(driver_override("vfio-pci\n"), Some("vfio-pci"));
    }

    #[test]
    fn framebuffers_of_three_drivers() {
        let grid = "num_heads=4, frl_config=45, framebuffer=2048M, max_resolution=5120x2880, max_instance=8";
        assert_eq!(framebuffer(grid), 2048 << 20);
        assert_eq!(max_instance(grid), Some(8));
        assert_eq!(framebuffer("virtual display, 4 MB video memory"), 4 << 20);
        assert_eq!(framebuffer("low_gm_size: 128MB\nhigh_gm_size: 512MB\nfence: 4\n"), 640 << 20);
        assert_eq!(framebuffer("virtual display, 640x480 framebuffer"), 0);
        assert_eq!(framebuffer(&format!("framebuffer={}M", u64::MAX)), u64::MAX);
    }

    #[test]
    fn creatable_types_in_both_orders() {
        let driver = "ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n2164  : NVIDIA L40S-3B\n";
        assert_eq!(
            creatable_types(driver),
            [(1145, "NVIDIA L40S-1B".into()), (2164, "NVIDIA L40S-3B".into())]
        );
        let documents = "vGPU Name      ID\nNVIDIA A40-2Q   558\nNVIDIA A40-4Q : 560\n";
        assert_eq!(
            creatable_types(documents),
            [(558, "NVIDIA A40-2Q".into()), (560, "NVIDIA A40-4Q".into())]
        );
        for text in ["", "ID    : vGPU Name\n", "0 : none\n", "558\n", ": :\n", "558 :\n"] {
            assert_eq!(creatable_types(text), [], "{text:?}");
        }
    }

    #[test]
    fn framebuffers_in_names() {
        let gib = |name| framebuffer_of_name(name) >> 20;
        assert_eq!(gib("NVIDIA L40S-2Q"), 2048);
        assert_eq!(gib("NVIDIA A100-3-20C"), 20 * 1024);
        assert_eq!(gib("NVIDIA A100-1-5CME"), 5 * 1024);
        assert_eq!(gib("GRID M10-0Q"), 512);
        assert_eq!(gib("Single port serial"), 0);
        assert_eq!(gib(""), 0);
    }

    #[test]
    fn apertures() {
        let text =
            "low_gm_size: 128MB\nhigh_gm_size: 512MB\nfence: 4\nresolution: 1920x1200\nweight: 4\n";
        assert_eq!(aperture(text), Some(Aperture { low_mb: 128, high_mb: 512, fences: 4 }));
        assert_eq!(aperture("num_heads=4, framebuffer=2048M"), None);
        assert_eq!(aperture("low_gm_size: 128MB\nhigh_gm_size: xMB\nfence: 4\n"), None);
    }

    #[test]
    fn instances_in_names() {
        let shape = |name| instance_of_name(name).map(|shape| shape.to_string());
        assert_eq!(shape("GRID A100-3-20C").as_deref(), Some("3g.20gb"));
        assert_eq!(shape("NVIDIA A100-1-5CME").as_deref(), Some("1g.5gb+me"));
        assert_eq!(shape("NVIDIA RTX Pro 6000 Blackwell DC-1-2Q").as_deref(), Some("1g.2gb+gfx"));
        for name in ["NVIDIA A40-2Q", "GRID V100D-32Q", "", "3-20C", "A-B-C", "A100-3-C"] {
            assert_eq!(shape(name), None, "{name}");
        }
    }

    #[test]
    fn short_names() {
        assert_eq!(short_name("nvidia-558", "NVIDIA A40-2Q"), "a40-2q");
        assert_eq!(short_name("mtty-1", "Single port serial"), "mtty-1");
        assert_eq!(short_name("i915-GVTg_V5_4", ""), "i915-gvtg_v5_4");
        assert_eq!(short_name("nvidia-558", ""), "nvidia-558");
    }

    #[test]
    fn the_most_exact_variant_driver_wins() {
        let aliases = "# Aliases\n\
            alias pci:v00008086d000010C9sv*sd*bc*sc*i* igb\n\
            alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n\
            alias vfio_pci:v00008086d0000E211sv*sd*bc03sc*i* xe_vfio_pci\n";
        let b60 = "pci:v00008086d0000E211sv00008086sd00001100bc03sc00i00\n";
        assert_eq!(vfio_variant(aliases, b60), Some("xe_vfio_pci"));
        let igb = "pci:v00008086d000010CAsv0000sd0000bc02sc00i00";
        assert_eq!(vfio_variant(aliases, igb), Some("vfio_pci"));
        assert_eq!(vfio_variant("", igb), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in ".{0,80}", other in ".{0,80}") {
            let _ = (hex(&text), pci_id(&text), count(&text), driver_override(&text));
            let _ = (framebuffer(&text), max_instance(&text), short_name(&text, &other));
            let _ = (virtfn(&text), mdev_name(&text), pci_name(&text), vfio_variant(&text, &other));
        }

        #[test]
        fn a_glob_matches_what_it_was_made_of(parts in prop::collection::vec("[a-c]{0,3}", 1..5), fill in "[a-c]{0,3}") {
            prop_assert!(glob(&parts.join("*"), &parts.join(&fill)));
        }
    }
}
