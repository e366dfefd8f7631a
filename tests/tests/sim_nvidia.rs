//! NVIDIA's GPUs whose VFs carry vGPUs: an L40S with vendor-specific VFIO, where a
//! type on a VF is a vGPU, and an A2 with mdev on its VFs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use vgpu_mdev::{
    error::ErrorKind,
    model::{Framework, FunctionState, Gpu, VgpuState},
    sys::{Kernel as _, NodePath, Read, ReadBatch, SysPath},
};
use vgpu_tests::simulated::Simulated;

const L40S: &str = "0000:41:00.0";
const A2: &str = "0000:08:00.0";

fn described(name: &str) -> Simulated {
    let path = format!("{}/hosts/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    Simulated::described(&std::fs::read_to_string(path).unwrap(), "")
}

fn host() -> Simulated {
    described("l40s")
}

fn gpu(host: &Simulated) -> Gpu {
    (**host.engine.snapshot().gpu(&L40S.parse().unwrap()).unwrap()).clone()
}

/// What is available of a profile, and the reason's code.
fn offer(host: &Simulated, profile: &str) -> (u32, &'static str) {
    let gpu = gpu(host);
    let found = gpu.profiles_called(profile).next().unwrap();
    (found.available, found.reason_code())
}

fn current(host: &Simulated, function: &str) -> String {
    let base = SysPath::new(format!("bus/pci/devices/{function}/nvidia")).unwrap();
    let batch = ReadBatch { base, reads: vec![Read::text("current_vgpu_type")] };
    match host.kernel.read_batch(&batch).pop().unwrap().unwrap() {
        vgpu_mdev::sys::Value::Text(text) => text.trim().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_type_on_a_function_is_a_vgpu_and_locks_the_gpu_to_its_size() {
    let host = host();
    let before = host.picture();
    assert_eq!(gpu(&host).framework, Framework::NvidiaVf);
    assert_eq!(offer(&host, "l40s-1q"), (32, "ok"));
    assert_eq!(offer(&host, "l40s-48q"), (1, "ok"));

    let uuid = host.create("l40s-24q").unwrap();
    let vgpu = host.vgpu(uuid).unwrap();
    let [function] = vgpu.addresses[..] else { panic!("{:?}", vgpu.addresses) };
    assert_eq!((vgpu.framework, vgpu.state), (Framework::NvidiaVf, VgpuState::Active));
    assert_eq!(vgpu.profile.unwrap().as_str(), "nvidia-1155");
    assert_eq!(current(&host, &function.to_string()), "1155");
    let shown = gpu(&host);
    let carrier = shown.functions.iter().find(|f| f.address == function).unwrap();
    assert_eq!((carrier.state, carrier.vgpu), (FunctionState::Vgpu, Some(uuid)));
    assert_eq!(carrier.driver.as_deref(), Some("nvidia"), "it was bound to another driver");

    assert_eq!(offer(&host, "l40s-24q"), (1, "ok"));
    assert_eq!(offer(&host, "l40s-24a"), (1, "ok"));
    assert_eq!(offer(&host, "l40s-1q"), (0, "locked-to-size"));
    let why = host.engine.explain(&L40S.parse().unwrap(), "l40s-1q").unwrap();
    assert_eq!(
        why,
        format!(
            "none of l40s-1q available: vGPU on VF {function} locks the GPU to profiles of 24 GiB, as \
             the driver puts only one size on a GPU; remove what is there, or use such a profile"
        )
    );
    let refused = host.create("l40s-1q").unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "locked-to-size"));

    let other = host.create("l40s-24q").unwrap();
    // Every list has shrunk to its header: names are known all the same.
    assert_eq!(offer(&host, "l40s-24q"), (0, "full"));
    assert_eq!(gpu(&host).profiles.len(), 23);
    let refused = host.create("l40s-24q").unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "full"), "{refused}");
    host.remove(uuid).unwrap();
    host.remove(other).unwrap();
    assert_eq!(host.picture(), before);
}

#[test]
fn names_outlive_a_restart_while_the_lists_are_empty() {
    let mut host = host();
    let uuid = host.create("l40s-48q").unwrap();
    let before = host.picture();
    host.restart();
    assert_eq!(host.picture(), before);
    assert_eq!(offer(&host, "l40s-48q"), (0, "full"));
    host.remove(uuid).unwrap();
    assert_eq!(offer(&host, "l40s-48q"), (1, "ok"));
}

#[test]
fn a_held_one_is_not_removed_and_its_holder_is_named() {
    let host = host();
    let uuid = host.create("l40s-4q").unwrap();
    let vgpu = host.vgpu(uuid).unwrap();
    assert!(!vgpu.nodes.is_empty());
    for node in &vgpu.nodes {
        let path = NodePath::new(node.path.clone()).unwrap();
        let guard = host.kernel.hold(&path, 4242, "qemu-system-x86").unwrap();
        let refused = host.remove(uuid).unwrap_err();
        assert_eq!((refused.kind(), refused.code()), (ErrorKind::Busy, "held"), "{refused}");
        let holder = refused.holder().unwrap();
        assert_eq!((holder.pid, &*holder.command), (4242, "qemu-system-x86"));
        assert_eq!(current(&host, &vgpu.parent), "1150");
        drop(guard);
    }
    host.remove(uuid).unwrap();
    assert_eq!(current(&host, &vgpu.parent), "0");
}

#[test]
fn a_function_that_someone_reused_is_not_taken_from_them() {
    let host = host();
    let uuid = host.create("l40s-4q").unwrap();
    let function = host.vgpu(uuid).unwrap().parent;
    let attr = format!("bus/pci/devices/{function}/nvidia/current_vgpu_type");
    host.write(&attr, "0").unwrap();
    host.write(&attr, "1160").unwrap();
    // No event tells of it: the removal looks.
    let refused = host.remove(uuid).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::BadState, "other-generation"));
    assert_eq!(current(&host, &function), "1160", "the other's vGPU was taken");
    let snapshot = host.engine.snapshot();
    let [other] = &snapshot.vgpus().collect::<Vec<_>>()[..] else { panic!("not one vGPU") };
    assert_eq!((other.managed, other.profile.as_ref().unwrap().as_str()), (false, "nvidia-1160"));
    assert_ne!(other.uuid, uuid);
    let refused = host.remove(other.uuid).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NotManaged, "foreign"));
}

#[test]
fn three_of_four_gib_leave_one_of_their_size_and_are_named() {
    let host = described("a2");
    let before = host.picture();
    let made: Vec<_> = (0..3).map(|_| host.create("a2-4q").unwrap()).collect();
    let gpu = || (**host.engine.snapshot().gpu(&A2.parse().unwrap()).unwrap()).clone();
    for profile in gpu().profiles {
        let same = ["a2-4q", "a2-4a", "a2-4c"].contains(&&*profile.short_name);
        assert_eq!(profile.available, u32::from(same), "{}", profile.short_name);
        assert_eq!(profile.reason_code(), if same { "ok" } else { "locked-to-size" });
        if let Some(reason) = profile.reason {
            assert!(made.iter().all(|uuid| reason.text.contains(&uuid.to_string())), "{reason:?}");
            assert!(reason.text.contains("lock the GPU to profiles of 4 GiB"), "{reason:?}");
        }
    }
    // Each VF takes one, so all four lie on VFs of their own.
    let last = host.create("a2-4c").unwrap();
    let parents: std::collections::BTreeSet<String> =
        made.iter().chain([&last]).map(|uuid| host.vgpu(*uuid).unwrap().parent).collect();
    assert_eq!(parents.len(), 4);
    assert!(gpu().profiles.iter().all(|profile| profile.available == 0));
    let refused = host.create("a2-4q").unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "full"), "{refused}");
    for uuid in made.into_iter().chain([last]) {
        host.remove(uuid).unwrap();
    }
    assert_eq!(host.picture(), before);
}

#[test]
fn what_the_driver_refuses_is_explained_and_leaves_nothing() {
    use nix::errno::Errno;
    use vgpu_mdev::sys::sim::{Calls, FaultOn};
    let host = host();
    let before = host.picture();
    for (errno, kind, code) in [
        (Errno::EIO, ErrorKind::NoCapacity, "driver-rule"),
        (Errno::EPERM, ErrorKind::Busy, "held"),
        (Errno::EINVAL, ErrorKind::NotSupported, "type-gone"),
        (Errno::ENODEV, ErrorKind::NoSuchGpu, "function-gone"),
    ] {
        host.kernel.fail("*/nvidia/current_vgpu_type", FaultOn::Write(Calls::Nth(1)), errno);
        let request = vgpu_mdev::request::CreateRequest {
            profile: "l40s-2q".into(),
            gpu: Some(L40S.parse().unwrap()),
            ..Default::default()
        };
        let refused = host.engine.create(&request, &Default::default()).unwrap_err();
        assert_eq!((refused.kind(), refused.code()), (kind, code), "{refused}");
        assert_eq!(refused.errno(), Some(errno));
        host.kernel.clear_faults();
        assert_eq!(host.picture(), before, "{errno} left something");
    }
    // The driver says success and does nothing.
    host.kernel.lie("*/nvidia/current_vgpu_type", FaultOn::Write(Calls::Nth(1)));
    let refused = host.create("l40s-2q").unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::RolledBack, "kernel-did-less"));
    host.kernel.clear_faults();
    assert_eq!(host.picture(), before);
}

/// Without its driver, or without an IOMMU, nothing is on offer, and the reason
/// says which.
#[test]
fn what_the_host_lacks_is_the_reason() {
    let text = std::fs::read_to_string(format!("{}/hosts/l40s.toml", env!("CARGO_MANIFEST_DIR")));
    let text = text.unwrap();
    let codes = |host: &Simulated| {
        let gpu = gpu(host);
        let codes: std::collections::BTreeSet<_> =
            gpu.profiles.iter().map(|p| (p.available, p.reason_code())).collect();
        codes.into_iter().collect::<Vec<_>>()
    };
    let without = Simulated::described(&format!("iommu = false\n{text}"), "");
    assert_eq!(codes(&without), [(0, "iommu-off")]);
    let refused = without.create("l40s-8q").unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "iommu-off"));
    let bare = text.replacen("driver = \"nvidia\"\n", "", 1).replace("enabled = 32\n", "");
    let bare = Simulated::described(&bare, "");
    assert_eq!(codes(&bare), [(0, "driver-missing")]);
    let refused = bare.set_vfs(L40S, 32).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NotSupported, "vendor-driver"));
}

#[test]
fn parameters_are_set_where_the_driver_has_them_and_go_with_the_vgpu() {
    use vgpu_mdev::request::Control;
    for (name, profile) in [("l40s", "l40s-8q"), ("a2", "a2-4q")] {
        let host = described(name);
        let uuid = host.create(profile).unwrap();
        let params = || host.vgpu(uuid).unwrap().nvidia.unwrap().params;
        let set =
            |text: &str| host.engine.set_params(uuid, &text.parse().unwrap(), &Control::default());
        assert_eq!(params(), "", "{name}");
        set("enable_uvm=1 disable_vnc=1").unwrap();
        assert_eq!(params(), "enable_uvm=1,disable_vnc=1", "{name}");
        set("").unwrap();
        assert_eq!(params(), "", "{name}");
        set("frame_rate_limiter=0").unwrap();
        host.remove(uuid).unwrap();
        let next = host.create(profile).unwrap();
        assert_eq!(host.vgpu(next).unwrap().nvidia.unwrap().params, "", "{name}");
    }
    let lab = described("lab");
    let mtty = lab.create("mtty-1").unwrap();
    let refused = lab.engine.set_params(mtty, &Default::default(), &Control::default());
    let refused = refused.unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NotSupported, "no-params"));
}
