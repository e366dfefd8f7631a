//! The parameters of an NVIDIA vGPU.

use std::{fmt, str::FromStr};

/// What NVIDIA's documents let a vGPU be told (Virtual GPU Software User Guide,
/// "Setting vGPU plugin parameters"); each is on or off.
const KNOWN: [&str; 5] =
    ["disable_vnc", "enable_debugging", "enable_profiling", "enable_uvm", "frame_rate_limiter"];

/// Parameters of a vGPU (`vgpu_params`), checked: the driver takes any text and
/// passes over what it does not know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VgpuParams(Vec<(&'static str, bool)>);

/// A text that is no list of parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidParams {
    /// One is not `name=0` or `name=1`.
    #[error("{0:?} is no parameter: write name=0 or name=1, several separated by commas")]
    Form(String),
    /// One has another name.
    #[error("NVIDIA's driver has no parameter {name:?}; it has {known}", name = .0, known = KNOWN.join(", "))]
    Unknown(String),
    /// One stands twice.
    #[error("the parameter {0:?} stands twice")]
    Twice(String),
}

impl FromStr for VgpuParams {
    type Err = InvalidParams;

    /// Parses `name=value` separated by commas or spaces; an empty text clears.
    fn from_str(text: &str) -> Result<Self, InvalidParams> {
        let shown = |text: &str| text.chars().take(64).collect::<String>();
        let mut params: Vec<(&'static str, bool)> = Vec::new();
        for part in text.split([',', ' ', '\n']).filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| InvalidParams::Form(shown(part)))?;
            let known = KNOWN.iter().find(|known| **known == name);
            let name = *known.ok_or_else(|| InvalidParams::Unknown(shown(name)))?;
            let on = match value {
                "1" => true,
                "0" => false,
                _ => return Err(InvalidParams::Form(shown(part))),
            };
            if params.iter().any(|(there, _)| *there == name) {
                return Err(InvalidParams::Twice(name.into()));
            }
            params.push((name, on));
        }
        Ok(Self(params))
    }
}

impl fmt::Display for VgpuParams {
    /// As the kernel's parser takes them: separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (name, on)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={}", if n == 0 { "" } else { "," }, u8::from(*on))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_driver_knows_is_taken() {
        let text = |text: &str| text.parse::<VgpuParams>().map(|params| params.to_string());
        assert_eq!(
            text("frame_rate_limiter=0, disable_vnc=1").as_deref(),
            Ok("frame_rate_limiter=0,disable_vnc=1")
        );
        assert_eq!(text(" \n").as_deref(), Ok(""));
        assert_eq!(text("enable_uvm"), Err(InvalidParams::Form("enable_uvm".into())));
        assert_eq!(text("enable_uvm=2"), Err(InvalidParams::Form("enable_uvm=2".into())));
        assert_eq!(
            text("enable_uvm=1,enable_uvm=0"),
            Err(InvalidParams::Twice("enable_uvm".into()))
        );
        let unknown = text("framerate=1").unwrap_err().to_string();
        assert!(unknown.contains("\"framerate\"") && unknown.contains("frame_rate_limiter"));
    }
}
