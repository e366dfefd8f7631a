//! What NVIDIA's program prints, and what people write of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vgpu_mdev::{model::VgpuParams, room::Shape, scan::nvidia_smi};

fuzz_target!(|text: &str| {
    if let Some(gpus) = nvidia_smi::query(text) {
        for gpu in gpus.keys() {
            assert_eq!(nvidia_smi::address(&gpu.to_string()), Some(*gpu));
        }
    }
    let _ = nvidia_smi::address(text);
    for shape in (nvidia_smi::instances(text).into_iter().map(|found| found.shape))
        .chain(nvidia_smi::instance_profiles(text).into_iter().map(|found| found.shape))
        .chain(text.parse::<Shape>())
    {
        assert_eq!(shape.to_string().parse::<Shape>().as_ref(), Ok(&shape));
    }
    if let Ok(params) = text.parse::<VgpuParams>() {
        assert_eq!(params.to_string().parse::<VgpuParams>().as_ref(), Ok(&params));
    }
});
