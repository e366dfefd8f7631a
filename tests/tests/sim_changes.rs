//! Any changes in the simulated kernel, ours and others': what the engine shows
//! is what is there, and holds together.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::{prelude::*, sample::Index};
use uuid::Uuid;
use vgpu_mdev::{
    error::ErrorKind,
    model::{FunctionState, Snapshot},
    request::{Control, CreateRequest, RemoveOptions},
};
use vgpu_tests::{conformance::Picture, simulated::Simulated};

const FLEX: &str = "0000:41:00.0";

/// One change, of whatever is there when it is made.
#[derive(Debug, Clone)]
enum Change {
    Create(&'static str, &'static str),
    Remove(Index),
    SetCount(u32),
    /// Somebody else creates, or removes what is there, ours or not.
    CreateForeign,
    RemoveRaw(Index),
    Restart,
}

fn change() -> impl Strategy<Value = Change> {
    let profiles = [
        ("mtty", "mtty-1"),
        ("mtty", "mtty-2"),
        ("mdpy", "mdpy-vga"),
        ("mbochs", "mbochs-large"),
        ("0000:3b:00.0", "t4-4q"),
        ("0000:3b:00.0", "t4-8q"),
        (FLEX, "flex-140-vf"),
        (FLEX, "flex-140-vf"),
        ("0000:81:00.0", "1002-73bf-full"),
    ];
    prop_oneof![
        6 => prop::sample::select(profiles.to_vec()).prop_map(|(gpu, id)| Change::Create(gpu, id)),
        4 => any::<Index>().prop_map(Change::Remove),
        2 => (0u32..4).prop_map(Change::SetCount),
        1 => Just(Change::CreateForeign),
        1 => any::<Index>().prop_map(Change::RemoveRaw),
        1 => Just(Change::Restart),
    ]
}

/// Makes a change; a refusal must be one that people can do something about.
fn make(host: &mut Simulated, change: &Change) {
    let snapshot = host.engine.snapshot();
    let uuids: Vec<Uuid> = snapshot.vgpus().map(|vgpu| vgpu.uuid).collect();
    let result = match change {
        Change::Create(gpu, profile) => {
            let request = CreateRequest {
                profile: (*profile).into(),
                gpu: Some(gpu.parse().unwrap()),
                ..CreateRequest::default()
            };
            host.engine.create(&request, &Control::default()).map(drop)
        }
        Change::Remove(index) if !uuids.is_empty() => {
            host.engine.remove(*index.get(&uuids), RemoveOptions::default(), &Control::default())
        }
        Change::SetCount(count) => host.set_vfs(FLEX, *count),
        Change::CreateForeign => {
            let uuid = Uuid::from_u128(0xf0e1 << 64 | uuids.len() as u128);
            let create = "class/mdev_bus/mtty/mdev_supported_types/mtty-1/create";
            // Refused where none is left, or that one is there.
            let _refused = host.write(create, &uuid.to_string());
            Ok(())
        }
        Change::RemoveRaw(index) if !uuids.is_empty() => {
            let vgpu = snapshot.vgpu(*index.get(&uuids)).unwrap();
            if vgpu.addresses.is_empty() {
                let path = format!("class/mdev_bus/{}/{}/remove", vgpu.parent, vgpu.uuid);
                host.write(&path, "1").unwrap();
            } else {
                // Refused where it is not bound any more.
                let _unbound = host.write("bus/pci/drivers/vfio-pci/unbind", &vgpu.parent);
            }
            Ok(())
        }
        Change::Restart => {
            host.restart();
            Ok(())
        }
        Change::Remove(_) | Change::RemoveRaw(_) => Ok(()),
    };
    if let Err(error) = result {
        let expected = matches!(
            error.kind(),
            ErrorKind::NoCapacity | ErrorKind::Busy | ErrorKind::NotManaged | ErrorKind::BadState
        );
        assert!(expected, "{change:?}: {error}");
    }
}

/// What must hold of every picture.
fn check(snapshot: &Snapshot) {
    for gpu in snapshot.gpus() {
        assert_eq!(gpu.vf_count as usize, gpu.functions.len());
        for function in &gpu.functions {
            let carried = function.vgpu.map(|uuid| snapshot.vgpu(uuid).expect("it is listed"));
            assert_eq!(function.state == FunctionState::Vgpu, carried.is_some());
            assert!(carried.is_none_or(|vgpu| vgpu.addresses.contains(&function.address)));
        }
        for profile in &gpu.profiles {
            assert_eq!(profile.available == 0, profile.reason.is_some(), "{profile:?}");
            assert!(profile.total == 0 || profile.available <= profile.total, "{profile:?}");
        }
    }
    for vgpu in snapshot.vgpus() {
        assert!(snapshot.gpu(&vgpu.gpu).is_some());
        assert!(snapshot.vgpus_of(&vgpu.gpu).any(|listed| listed.uuid == vgpu.uuid));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// After any changes: the picture holds together, a new engine on the same
    /// claims shows the same, and all of ours can be removed, which leaves what
    /// was there at first.
    #[test]
    fn any_changes_leave_one_true_picture(changes in prop::collection::vec(change(), 1..25)) {
        let mut host = Simulated::builtin();
        let tree = Picture::of(&host.kernel);
        for change in &changes {
            make(&mut host, change);
            host.engine.rescan().unwrap();
            check(&host.engine.snapshot());
        }
        let picture = host.picture();
        host.restart();
        prop_assert_eq!(picture, host.picture());

        let snapshot = host.engine.snapshot();
        for vgpu in snapshot.vgpus() {
            if vgpu.managed {
                host.remove(vgpu.uuid).unwrap();
            } else {
                let path = format!("class/mdev_bus/{}/{}/remove", vgpu.parent, vgpu.uuid);
                host.write(&path, "1").unwrap();
            }
        }
        host.engine.rescan().unwrap();
        host.set_vfs(FLEX, 0).unwrap();
        prop_assert_eq!(host.engine.snapshot().vgpu_count(), 0);
        prop_assert_eq!(tree.difference(&Picture::of(&host.kernel)), Vec::<String>::new());
    }
}
