//! The description of a host to simulate.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vgpu_mdev::sys::sim::{HostSpec, SimKernel};

fuzz_target!(|text: &str| {
    if let Ok(spec) = HostSpec::parse(text, "host.toml") {
        let _ = SimKernel::new(&spec);
    }
});
