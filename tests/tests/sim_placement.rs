//! Which GPU carries a new vGPU, and plans of many.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use vgpu_mdev::{
    error::ErrorKind,
    placement::Policy,
    request::{Control, CreateRequest, PlanRequest},
};
use vgpu_tests::{conformance::Picture, simulated::Simulated};

/// Two T4s on node 0 and one on node 1, and an L40S with vendor-specific VFIO.
fn host(config: &str) -> Simulated {
    let t4 = |address: &str, node: u32| {
        format!(
            "[[pci]]\naddress = '{address}'\nvendor = 0x10de\ndevice = 0x1eb8\nclass = 0x030200\n\
             driver = 'nvidia'\nnuma-node = {node}\nmdev = 't4'\n"
        )
    };
    let spec = format!(
        "[vfio]\ngroups = true\n[[vfio-driver]]\nname = 'vfio-pci'\n\
         [mdev-kind.t4]\ndriver = 'nvidia-vgpu-vfio'\ncatalog = 'T4'\n\
         [mdev-kind.l40s]\ndriver = 'nvidia'\ncatalog = 'L40S'\n{}{}{}\
         [[pci]]\naddress = '0000:41:00.0'\nvendor = 0x10de\ndevice = 0x26b9\nclass = 0x030200\n\
         driver = 'nvidia'\nnuma-node = 1\n[pci.sriov]\ntotal-vfs = 32\noffset = 4\n\
         vf-device = 0x26b9\nvf-driver = 'nvidia'\ncallback = false\nenabled = 32\nvendor = 'l40s'\n",
        t4("0000:01:00.0", 0),
        t4("0000:02:00.0", 0),
        t4("0000:03:00.0", 1)
    );
    Simulated::described(&spec, config)
}

fn create(host: &Simulated, request: CreateRequest) -> Result<String, vgpu_mdev::error::Error> {
    let uuid = host.engine.create(&request, &Control::default())?.uuid;
    Ok(host.vgpu(uuid).unwrap().gpu.to_string())
}

fn wish(profile: &str) -> CreateRequest {
    CreateRequest { profile: profile.into(), ..CreateRequest::default() }
}

fn spread(profile: &str) -> CreateRequest {
    CreateRequest { placement: Some(Policy::Spread), ..wish(profile) }
}

#[test]
fn packing_fills_a_gpu_before_it_begins_another() {
    let host = host("");
    let gpus: Vec<_> = (0..5).map(|_| create(&host, wish("t4-4q")).unwrap()).collect();
    assert_eq!(
        gpus,
        ["0000:01:00.0", "0000:01:00.0", "0000:01:00.0", "0000:01:00.0", "0000:02:00.0"]
    );
    // The one that is begun takes 4 GiB alone: another size gets a GPU of its own.
    assert_eq!(create(&host, wish("t4-8q")).unwrap(), "0000:03:00.0");
    assert_eq!(create(&host, wish("t4-4c")).unwrap(), "0000:02:00.0");
    let refused = create(&host, wish("t4-16q")).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "locked-to-size"));
}

#[test]
fn spreading_is_asked_for_or_configured() {
    let asked = host("");
    let gpus: Vec<_> = (0..4).map(|_| create(&asked, spread("t4-4q")).unwrap()).collect();
    assert_eq!(gpus, ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:01:00.0"]);
    let configured = host("[placement]\npolicy = 'spread'\n");
    let gpus: Vec<_> = (0..2).map(|_| create(&configured, wish("t4-4q")).unwrap()).collect();
    assert_eq!(gpus, ["0000:01:00.0", "0000:02:00.0"]);
    let packed = CreateRequest { placement: Some(Policy::Pack), ..wish("t4-4q") };
    assert_eq!(create(&configured, packed).unwrap(), "0000:01:00.0");
}

#[test]
fn node_and_pool_are_filters() {
    let host = host("[pools.render]\ngpus = ['0000:02:00.0', '10de:26b9']\n");
    let on_node = CreateRequest { numa_node: Some(1), ..wish("t4-4q") };
    assert_eq!(create(&host, on_node).unwrap(), "0000:03:00.0");
    let pool = || Some("render".parse().unwrap());
    assert_eq!(
        create(&host, CreateRequest { pool: pool(), ..wish("t4-4q") }).unwrap(),
        "0000:02:00.0"
    );
    let both = CreateRequest { pool: pool(), numa_node: Some(1), ..wish("t4-4q") };
    let refused = create(&host, both).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "filtered-out"));
    for excluded in [
        "GPU 0000:01:00.0 is not on NUMA node 1 and not in the pool render; ",
        "GPU 0000:02:00.0 is not on NUMA node 1; ",
        "GPU 0000:03:00.0 is not in the pool render",
    ] {
        assert!(refused.to_string().contains(excluded), "{refused}");
    }
    assert!(!refused.to_string().contains("0000:41:00.0"), "it has no such profile: {refused}");
    let unknown = CreateRequest { pool: Some("compute".parse().unwrap()), ..wish("t4-4q") };
    let refused = create(&host, unknown).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::InvalidArgument, "no-such-pool"));
    assert!(refused.to_string().contains("there are render"), "{refused}");
}

#[test]
fn a_pool_takes_in_parents_that_are_no_pci_devices() {
    let spec = "[mdev-kind.k]\ndriver = 'vfio_k'\nunits = 2\ntypes = [{ id = 'k-1', size = 1 }]\n\
                [[virtual-parent]]\nname = 'k0'\nmdev = 'k'\n\
                [[virtual-parent]]\nname = 'k1'\nmdev = 'k'\n";
    let host = Simulated::described(spec, "[pools.second]\ngpus = ['mdev:k1']\n");
    let pooled = || CreateRequest { pool: Some("second".parse().unwrap()), ..wish("k-1") };
    assert_eq!(create(&host, pooled()).unwrap(), "k1");
    assert_eq!(create(&host, pooled()).unwrap(), "k1");
    assert_eq!(create(&host, pooled()).unwrap_err().kind(), ErrorKind::NoCapacity);
    assert_eq!(create(&host, wish("k-1")).unwrap(), "k0");
}

#[test]
fn a_plan_shows_all_and_changes_nothing() {
    let host = host("");
    host.create("t4-4q").unwrap();
    let before = (Picture::of(&host.kernel), host.picture());
    let request = PlanRequest {
        wishes: vec![("t4-4q".into(), 3), ("T4-8C".into(), 2), ("l40s-24q".into(), 2)],
        ..PlanRequest::default()
    };
    host.kernel.record_writes();
    let planned = host.engine.plan_vgpus(&request).unwrap();
    assert_eq!(host.kernel.writes(), []);
    assert_eq!((Picture::of(&host.kernel), host.picture()), before);
    let on: Vec<_> = planned.choices.iter().map(|c| format!("{} {}", c.profile, c.gpu)).collect();
    assert_eq!(
        on,
        [
            "t4-4q 0000:01:00.0",
            "t4-4q 0000:01:00.0",
            "t4-4q 0000:01:00.0",
            "t4-8c 0000:02:00.0",
            "t4-8c 0000:02:00.0",
            "l40s-24q 0000:41:00.0",
            "l40s-24q 0000:41:00.0",
        ]
    );
    let words = |n: usize| planned.choices[n].steps.join("; ");
    assert_eq!(
        words(0),
        "write \"<new UUID>\" to /sys/class/mdev_bus/0000:01:00.0/mdev_supported_types/nvidia-232/create"
    );
    assert_eq!(
        words(5),
        "write \"1155\" to /sys/bus/pci/devices/0000:41:00.4/nvidia/current_vgpu_type"
    );
    assert_eq!(
        words(6),
        "write \"1155\" to /sys/bus/pci/devices/0000:41:00.5/nvidia/current_vgpu_type"
    );
    let left: BTreeMap<(String, &str), (u32, u32)> = planned
        .remaining
        .iter()
        .map(|(gpu, profile, now, then)| ((gpu.to_string(), profile.as_str()), (*now, *then)))
        .collect();
    assert_eq!(left[&("0000:01:00.0".into(), "t4-4q")], (3, 0));
    assert_eq!(left[&("0000:02:00.0".into(), "t4-16q")], (1, 0));
    assert_eq!(left[&("0000:41:00.0".into(), "l40s-48q")], (1, 0));
    assert!(left.keys().all(|(gpu, _)| gpu != "0000:03:00.0"), "nothing is taken of it");

    // What was planned comes to be, as long as nothing changed.
    let mut made = Vec::new();
    for choice in &planned.choices {
        let request = CreateRequest { gpu: Some(choice.gpu.clone()), ..wish(&choice.profile) };
        made.push(host.engine.create(&request, &Control::default()).unwrap().uuid);
    }
    let addresses = host.vgpu(made[5]).unwrap().addresses;
    assert_eq!(Some(addresses[0]), planned.choices[5].function);
    for ((gpu, profile), (_, then)) in left {
        let snapshot = host.engine.snapshot();
        let gpu = snapshot.gpu(&gpu.parse().unwrap()).unwrap();
        assert_eq!(gpu.profiles_called(profile).next().unwrap().available, then, "{profile}");
    }
}

#[test]
fn what_does_not_fit_says_how_much_would() {
    let host = host("");
    let request = |wishes: &[(&str, u32)]| PlanRequest {
        wishes: wishes.iter().map(|(profile, n)| ((*profile).into(), *n)).collect(),
        ..PlanRequest::default()
    };
    let refused = host.engine.plan_vgpus(&request(&[("t4-16q", 2), ("t4-8q", 3)])).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NoCapacity, "no-room"));
    assert!(refused.to_string().contains("2 of 2 t4-16q, 2 of 3 t4-8q would fit"), "{refused}");
    // One size that fits nowhere hides nothing of what does.
    for _ in 0..3 {
        create(&host, spread("t4-4q")).unwrap();
    }
    let refused = host.engine.plan_vgpus(&request(&[("t4-16q", 1), ("t4-4q", 2)])).unwrap_err();
    assert!(refused.to_string().contains("0 of 1 t4-16q, 2 of 2 t4-4q would fit"), "{refused}");
    let refused = host.engine.plan_vgpus(&request(&[("t4-5q", 1)])).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSuchProfile);
    let refused = host.engine.plan_vgpus(&request(&[("t4-1q", u32::MAX)])).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::InvalidArgument, "too-many"));
}
