//! Many cycles in the simulated kernel leave nothing behind. Alone in its
//! program, since it counts what the process has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;

use uuid::Uuid;
use vgpu_mdev::request::{Control, CreateRequest};
use vgpu_tests::{
    conformance::{Picture, open_descriptors},
    simulated::Simulated,
};

const FLEX: &str = "0000:41:00.0";

/// Few, used again and again: the lane of each lives on for a while.
const UUIDS: u128 = 8;

fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Creates a vGPU of each framework under one of the UUIDs, and removes it.
fn cycle(host: &Simulated, n: u128) {
    let profiles = [("mtty", "mtty-2"), ("mdpy", "mdpy-hd"), (FLEX, "flex-140-vf")];
    let (gpu, profile) = profiles[usize::try_from(n).unwrap() % profiles.len()];
    let uuid = Uuid::from_u128(0x83b8_f4f2_509f_4000_8000_0000_0000_0000 + n % UUIDS);
    let request = CreateRequest {
        profile: profile.into(),
        gpu: Some(gpu.parse().unwrap()),
        uuid: Some(uuid),
        ..CreateRequest::default()
    };
    assert!(host.engine.create(&request, &Control::default()).unwrap().created);
    host.remove(uuid).unwrap();
}

#[test]
fn a_thousand_cycles_leave_nothing() {
    let host = Simulated::builtin();
    host.set_vfs(FLEX, 2).unwrap();
    // By then every lane has its thread, and the allocator what it needs.
    (0..200).for_each(|n| cycle(&host, n));
    let tree = Picture::of(&host.kernel);
    let (picture, descriptors, memory) = (host.picture(), open_descriptors(), resident());
    (0..1000).for_each(|n| cycle(&host, n));
    assert_eq!(tree.difference(&Picture::of(&host.kernel)), Vec::<String>::new());
    assert_eq!(picture, host.picture());
    assert_eq!(descriptors, open_descriptors(), "descriptors are left open");
    // 1,000 vGPUs that were not given back would be some MB: a claim, a vGPU, a
    // directory and its attributes are more than 2 KiB. Threads that come and
    // go move the figure by less than half of that.
    let grown = resident().saturating_sub(memory);
    assert!(grown < 1 << 20, "{grown} bytes more, after {memory}");
}
