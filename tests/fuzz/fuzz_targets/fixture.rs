//! The tree of a host, as users may send it.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The file alone: its crate brings all that the other tests need.
#[allow(dead_code)]
#[path = "../../src/fixture.rs"]
mod fixture;

fuzz_target!(|text: &str| {
    let _ = fixture::Tree::parse(text);
});
