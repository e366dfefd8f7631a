//! `host.toml`, and the selectors in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vgpu_mdev::config::{Config, Selector};

fuzz_target!(|text: &str| {
    if let Err(error) = Config::parse(text, "host.toml") {
        assert!(error.to_string().starts_with("host.toml: "));
    }
    if let Ok(selector) = text.parse::<Selector>() {
        assert_eq!(selector.to_string().parse(), Ok(selector));
    }
});
