//! PCI addresses.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A PCI address `domain:bus:device.function`.
///
/// The domain has 32 bits: Intel VMD and Hyper-V use domains above `0xffff`
/// (`drivers/pci/controller/vmd.c`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// Text that is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a PCI address; write it as in sysfs, for example 0000:41:00.0")]
pub struct ParseAddressError {
    text: String,
}

impl PciAddress {
    /// An address from its parts, or `None` where the device is above 31 or the
    /// function above 7.
    pub fn new(domain: u32, bus: u8, device: u8, function: u8) -> Option<Self> {
        (device < 32 && function < 8).then_some(Self { domain, bus, device, function })
    }

    /// The PCI domain (segment).
    pub fn domain(self) -> u32 {
        self.domain
    }

    /// The bus number.
    pub fn bus(self) -> u8 {
        self.bus
    }

    /// The device (slot) number, 0 to 31.
    pub fn device(self) -> u8 {
        self.device
    }

    /// The function number, 0 to 7.
    pub fn function(self) -> u8 {
        self.function
    }

    /// Whether both are functions of one slot, as a GPU and its audio function.
    pub fn same_slot(self, other: Self) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }

    /// The address `offset` routing ids further, as SR-IOV places its VFs: they
    /// may lie on another bus (PCIe 6.0, 9.3.3.9).
    pub fn offset_by(self, offset: u32) -> Option<Self> {
        let rid = u32::from(self.bus) << 8 | u32::from(self.device) << 3 | u32::from(self.function);
        let rid = rid.checked_add(offset)?;
        Self::new(
            self.domain,
            u8::try_from(rid >> 8).ok()?,
            (rid >> 3 & 0x1f) as u8,
            (rid & 7) as u8,
        )
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PciAddress {
    type Err = ParseAddressError;

    /// Takes the sysfs form, with or without the domain, in either case; the
    /// 8-digit domains of `nvidia-smi` are the same number.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (slot, function) = text.rsplit_once('.')?;
            let mut fields = slot.rsplit(':');
            let device = hex(fields.next()?, 1..=2)?;
            let bus = hex(fields.next()?, 1..=2)?;
            let domain = match fields.next() {
                Some(domain) => hex(domain, 1..=8)?,
                None => 0,
            };
            if fields.next().is_some() {
                return None;
            }
            let function = hex(function, 1..=1)?;
            Self::new(
                domain,
                u8::try_from(bus).ok()?,
                u8::try_from(device).ok()?,
                u8::try_from(function).ok()?,
            )
        };
        parse().ok_or_else(|| ParseAddressError { text: text.chars().take(64).collect() })
    }
}

impl TryFrom<String> for PciAddress {
    type Error = ParseAddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let all_hex = text.bytes().all(|b| b.is_ascii_hexdigit());
    (all_hex && digits.contains(&text.len())).then(|| u32::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    #[test]
    fn takes_the_forms_people_write() {
        assert_eq!(address("0000:41:00.0"), address("41:00.0"));
        assert_eq!(address("00000000:C1:00.3"), address("0000:c1:00.3"));
        assert_eq!(address("10000:e1:00.0").to_string(), "10000:e1:00.0");
    }

    #[test]
    fn refuses_what_is_no_address() {
        for text in
            ["", "41:00", "41:00.8", "41:20.0", "0:0:41:00.0", "+41:00.0", "41:00.0/..", "x"]
        {
            assert!(text.parse::<PciAddress>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn vfs_carry_into_the_next_bus() {
        assert_eq!(address("0000:08:00.0").offset_by(4), Some(address("0000:08:00.4")));
        assert_eq!(address("0000:08:1f.7").offset_by(1), Some(address("0000:09:00.0")));
        assert_eq!(address("0000:ff:1f.7").offset_by(1), None);
    }

    proptest! {
        #[test]
        fn display_and_parse_agree(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let made = PciAddress::new(domain, bus, device, function).unwrap();
            prop_assert_eq!(made.to_string().parse::<PciAddress>().unwrap(), made);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}") {
            let _ = text.parse::<PciAddress>();
        }
    }
}
