//! The tree of a host, as users may send it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vgpu_tests::fixture::Tree;

fuzz_target!(|text: &str| {
    let _ = Tree::parse(text);
});
