//! A claim as an earlier run left it, and the answer of the probe.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vgpu_mdev::{claims::Claim, vfio::Answer};

fuzz_target!(|text: &[u8]| {
    if let Ok(claim) = serde_json::from_slice::<Claim>(text) {
        let again = serde_json::to_vec(&claim).unwrap();
        assert_eq!(serde_json::from_slice::<Claim>(&again).unwrap(), claim);
    }
    let _ = serde_json::from_slice::<Answer>(text);
});
