//! What people and the bus write: addresses, UUIDs, names, object paths.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vgpu_mdev::{
    model::{GpuId, PciAddress, TypeId, VgpuName, parse_uuid},
    sys::{NodePath, SysPath},
};

fuzz_target!(|text: &str| {
    if let Ok(address) = text.parse::<PciAddress>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
    if let Ok(gpu) = text.parse::<GpuId>() {
        assert_eq!(gpu.to_string().parse(), Ok(gpu));
    }
    if let Ok(uuid) = parse_uuid(text) {
        assert_eq!(uuid.to_string(), text.to_lowercase());
    }
    for below_its_root in [SysPath::new(text).map(drop), NodePath::new(text).map(drop)] {
        assert!(below_its_root.is_err() || !text.split('/').any(|element| element == ".."));
    }
    let _ = (text.parse::<TypeId>(), text.parse::<VgpuName>());
    let _ = vgpu_host_api::path::parse(text);
});
