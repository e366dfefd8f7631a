//! Intel's GPUs: GVT-g, which divides the graphics memory, and the VFs of i915 and
//! xe, which their drivers give their shares. And a server with GPUs of all kinds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nix::errno::Errno;
use vgpu_mdev::{
    error::ErrorKind,
    model::{Framework, FunctionState, Gpu, VgpuState},
    request::CreateRequest,
    sys::{
        ReadKind, Value,
        sim::{Calls, FaultOn},
    },
};
use vgpu_tests::simulated::Simulated;

const IGPU: &str = "0000:00:02.0";
const FLEX: &str = "0000:4d:00.0";
const B60: &str = "0000:03:00.0";
const OTHER_B60: &str = "0000:83:00.0";
const MI300X: &str = "0000:c3:00.0";
const MB: u64 = 1 << 20;

fn described(name: &str) -> Simulated {
    let path = format!("{}/hosts/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    Simulated::described(&std::fs::read_to_string(path).unwrap(), "")
}

fn gpu(host: &Simulated, gpu: &str) -> Gpu {
    (**host.engine.snapshot().gpu(&gpu.parse().unwrap()).unwrap()).clone()
}

/// What is available of a profile, and the reason's code.
fn offer(host: &Simulated, of: &str, profile: &str) -> (u32, &'static str) {
    let gpu = gpu(host, of);
    let found = gpu.profiles_called(profile).next().unwrap();
    (found.available, found.reason_code())
}

fn create_on(
    host: &Simulated,
    gpu: &str,
    profile: &str,
) -> Result<uuid::Uuid, vgpu_mdev::error::Error> {
    let request = CreateRequest {
        profile: profile.into(),
        gpu: Some(gpu.parse().unwrap()),
        ..CreateRequest::default()
    };
    host.engine.create(&request, &Default::default()).map(|created| created.uuid)
}

fn text(host: &Simulated, path: &str) -> String {
    match host.kernel.read(path, ReadKind::Text) {
        Ok(Value::Text(text)) => text.trim_end().to_owned(),
        other => panic!("{path}: {other:?}"),
    }
}

/// Creates until the GPU refuses, and gives back what was made and the refusal.
fn fill(host: &Simulated, gpu: &str, profile: &str) -> (Vec<uuid::Uuid>, vgpu_mdev::error::Error) {
    let mut made = Vec::new();
    loop {
        match create_on(host, gpu, profile) {
            Ok(uuid) => made.push(uuid),
            Err(refused) => return (made, refused),
        }
    }
}

#[test]
fn gvt_g_is_full_when_the_aperture_is() {
    let host = described("gvtg");
    let before = host.picture();
    let (small, large) = ("i915-gvtg_v5_8", "i915-gvtg_v5_4");
    assert_eq!(gpu(&host, IGPU).framework, Framework::Mdev);
    assert_eq!((offer(&host, IGPU, small), offer(&host, IGPU, large)), ((2, "ok"), (1, "ok")));

    let first = host.create(small).unwrap();
    assert_eq!(host.vgpu(first).unwrap().state, VgpuState::Active);
    assert_eq!(
        (offer(&host, IGPU, small), offer(&host, IGPU, large)),
        ((1, "ok"), (0, "aperture"))
    );
    let why = host.engine.explain(&IGPU.parse().unwrap(), large).unwrap();
    let takes = "128 MB of the aperture, 512 MB of graphics memory beyond it and 4 fences";
    assert!(why.contains(takes), "{why}");
    let refused = host.create(large).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "aperture"));

    let (made, refused) = fill(&host, IGPU, small);
    assert_eq!(made.len(), 1);
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "aperture"));
    let takes = "64 MB of the aperture, 384 MB of graphics memory beyond it and 4 fences";
    assert!(refused.to_string().contains(takes), "{refused}");

    host.remove(first).unwrap();
    made.into_iter().for_each(|uuid| host.remove(uuid).unwrap());
    assert_eq!(host.picture(), before);
    let uuid = host.create(large).unwrap();
    assert_eq!(
        (offer(&host, IGPU, small), offer(&host, IGPU, large)),
        ((0, "aperture"), (0, "aperture"))
    );
    host.remove(uuid).unwrap();
    assert_eq!(host.picture(), before);
}

#[test]
fn a_flex_170_gives_away_its_vfs_and_takes_them_back() {
    let host = described("flex170");
    let before = host.picture();
    let profile = "flex-170-vf";
    let lmem = format!("bus/pci/devices/{FLEX}/drm/card0/prelim_iov/vf3/gt/lmem_quota");
    assert_eq!(gpu(&host, FLEX).framework, Framework::Sriov);
    assert_eq!(offer(&host, FLEX, profile), (0, "no-functions-enabled"));
    let refused = host.set_vfs(FLEX, 32).unwrap_err();
    assert_eq!(
        (refused.kind(), refused.code()),
        (ErrorKind::InvalidArgument, "too-many-functions")
    );

    host.set_vfs(FLEX, 3).unwrap();
    assert_eq!(offer(&host, FLEX, profile), (3, "ok"));
    assert_eq!(text(&host, &lmem), (4906 * MB).to_string());
    let shown = gpu(&host, FLEX);
    // i915 has not taken them.
    assert!(shown.functions.iter().all(|f| f.state == FunctionState::Free && f.driver.is_none()));

    let (made, refused) = fill(&host, FLEX, profile);
    assert_eq!(made.len(), 3);
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "full"), "{refused}");
    for uuid in &made {
        let vgpu = host.vgpu(*uuid).unwrap();
        assert_eq!((vgpu.framework, vgpu.state), (Framework::Sriov, VgpuState::Active));
        let driver = host.kernel.link_text(&format!("bus/pci/devices/{}/driver", vgpu.parent));
        assert!(driver.unwrap().ends_with("/vfio-pci"));
    }
    let refused = host.set_vfs(FLEX, 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    for uuid in made {
        host.remove(uuid).unwrap();
    }
    assert_eq!(offer(&host, FLEX, profile), (3, "ok"));
    host.set_vfs(FLEX, 0).unwrap();
    assert_eq!(text(&host, &lmem), "0");
    assert_eq!(host.picture(), before);
}

#[test]
fn quotas_that_a_vf_has_in_part_keep_all_vfs_off_and_the_reason_is_told() {
    let host = described("flex170");
    let before = host.picture();
    let quota = format!("bus/pci/devices/{FLEX}/drm/card0/prelim_iov/vf2/gt/lmem_quota");
    host.write(&quota, &(1024 * MB).to_string()).unwrap();
    let refused = host.set_vfs(FLEX, 2).unwrap_err();
    assert_eq!(
        (refused.kind(), refused.code()),
        (ErrorKind::KernelRefused, "quotas-incomplete"),
        "{refused}"
    );
    assert_eq!(host.picture(), before);
    // The first VF has none at all, and none is asked of it.
    host.set_vfs(FLEX, 1).unwrap();
    host.set_vfs(FLEX, 0).unwrap();
    host.write(&quota, "0").unwrap();
    host.set_vfs(FLEX, 31).unwrap();
    assert_eq!(offer(&host, FLEX, "flex-170-vf"), (31, "ok"));
    host.set_vfs(FLEX, 0).unwrap();
    assert_eq!(host.picture(), before);
}

#[test]
fn a_flex_170_that_is_not_ready_yet_has_no_vfs_until_it_is_asked_again() {
    let host = described("flex170");
    let before = host.picture();
    // i915_sriov_pf_status, until the driver has set up all of the GPU.
    host.kernel.fail("*/sriov_numvfs", FaultOn::Write(Calls::Nth(1)), Errno::EBUSY);
    let refused = host.set_vfs(FLEX, 2).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Busy, "functions-enabled"));
    assert!(refused.to_string().contains("the driver is not ready"), "{refused}");
    assert_eq!((host.kernel.faults_met(), host.picture()), (1, before.clone()));
    host.set_vfs(FLEX, 2).unwrap();
    assert_eq!(offer(&host, FLEX, "flex-170-vf"), (2, "ok"));
    host.set_vfs(FLEX, 0).unwrap();
    assert_eq!(host.picture(), before);
}

#[test]
fn the_vfs_of_a_b60_go_to_the_driver_that_migrates() {
    let host = described("arc-pro-b60");
    let before = host.picture();
    let profile = "arc-pro-b60-vf";
    assert_eq!(offer(&host, B60, profile), (0, "no-functions-enabled"));
    host.set_vfs(B60, 24).unwrap();
    assert_eq!(offer(&host, B60, profile), (24, "ok"));
    assert_eq!(offer(&host, OTHER_B60, profile), (0, "no-functions-enabled"));
    let vram = format!("bus/pci/devices/{B60}/sriov_admin/vf24/profile/vram_quota");
    assert_eq!(text(&host, &vram), (512 * MB).to_string());

    // Whichever GPU has one.
    let first = host.create(profile).unwrap();
    let (mut made, refused) = fill(&host, B60, profile);
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "full"), "{refused}");
    made.push(first);
    assert_eq!(made.len(), 24);
    let shown = gpu(&host, B60);
    assert_eq!(shown.functions.len(), 24);
    for function in &shown.functions {
        assert_eq!(function.driver.as_deref(), Some("xe-vfio-pci"), "{}", function.address);
        assert_eq!(function.state, FunctionState::Vgpu);
        assert!(function.vgpu.is_some_and(|uuid| made.contains(&uuid)));
    }
    let refused = create_on(&host, OTHER_B60, profile).unwrap_err();
    assert_eq!(refused.code(), "no-functions-enabled", "{refused}");
    for uuid in made {
        host.remove(uuid).unwrap();
    }
    host.set_vfs(B60, 0).unwrap();
    assert_eq!(text(&host, &vram), "0");
    assert_eq!(host.picture(), before);
}

#[test]
fn a_server_with_gpus_of_all_kinds_shows_each_with_its_own() {
    let host = described("mixed");
    let before = host.picture();
    assert_eq!(host.engine.snapshot().gpus().count(), 7);
    for (at, model, framework, vfs) in [
        (IGPU, "8086:1912", Framework::Mdev, (0, 0)),
        ("0000:02:00.0", "1a03:2000", Framework::Passthrough, (0, 0)),
        ("0000:3b:00.0", "T4", Framework::Mdev, (0, 0)),
        ("0000:41:00.0", "L40S", Framework::NvidiaVf, (32, 32)),
        (FLEX, "Flex 170", Framework::Sriov, (0, 31)),
        (OTHER_B60, "Arc Pro B60", Framework::Sriov, (0, 24)),
        (MI300X, "MI300X", Framework::Sriov, (1, 8)),
    ] {
        let gpu = gpu(&host, at);
        assert_eq!((&*gpu.model, gpu.framework), (model, framework), "{at}");
        assert_eq!((gpu.vf_count, gpu.vf_total), vfs, "{at}");
        assert!(gpu.problems.is_empty(), "{at}: {:?}", gpu.problems);
    }

    // One of each, side by side.
    host.set_vfs(FLEX, 2).unwrap();
    host.set_vfs(OTHER_B60, 2).unwrap();
    let mut made = Vec::new();
    for (at, profile) in [
        (IGPU, "i915-gvtg_v5_4"),
        ("0000:3b:00.0", "t4-4q"),
        ("0000:41:00.0", "l40s-24q"),
        (FLEX, "flex-170-vf"),
        (OTHER_B60, "arc-pro-b60-vf"),
        (MI300X, "mi300x-vf"),
    ] {
        let uuid = host.create(profile).unwrap();
        assert_eq!(host.vgpu(uuid).unwrap().gpu.to_string(), at);
        made.push(uuid);
    }
    for uuid in made {
        host.remove(uuid).unwrap();
    }
    host.set_vfs(FLEX, 0).unwrap();
    host.set_vfs(OTHER_B60, 0).unwrap();
    assert_eq!(host.picture(), before);
}
