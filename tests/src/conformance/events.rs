//! Events and their order.

use uuid::Uuid;

use super::{
    NVME, Rig,
    count::{device, enable, raw_count},
    mdev::{raw_create, raw_remove},
};

/// What happened after `mark` to what `concerns` names: (subsystem, action,
/// device).
fn seen(rig: &Rig, mark: usize, concerns: impl Fn(&str) -> bool) -> Vec<[String; 3]> {
    rig.settle();
    let events = rig.events.since(mark).into_iter().filter(|event| concerns(&event.devpath));
    events
        .map(|event| {
            let last = event.devpath.rsplit('/').next().unwrap().to_owned();
            [event.subsystem, event.action, last]
        })
        .collect()
}

fn pairs(seen: &[[String; 3]]) -> Vec<(&str, &str)> {
    seen.iter().map(|[subsystem, action, _]| (&**subsystem, &**action)).collect()
}

/// An mdev is added before its driver has it; its VFIO device and group come
/// and go in between.
pub fn of_an_mdev(rig: &Rig) {
    rig.settle();
    let uuid = Uuid::new_v4();
    let concerns = |devpath: &str| {
        devpath.contains(&*uuid.to_string()) || devpath.starts_with("/devices/virtual/vfio/")
    };
    let mark = rig.events.mark();
    raw_create(rig, "mtty", "mtty-1", uuid).unwrap();
    assert_eq!(
        pairs(&seen(rig, mark, concerns)),
        [("mdev", "add"), ("vfio", "add"), ("vfio-dev", "add"), ("mdev", "bind")]
    );
    let mark = rig.events.mark();
    raw_remove(rig, "mtty", uuid).unwrap();
    assert_eq!(
        pairs(&seen(rig, mark, concerns)),
        [("vfio-dev", "remove"), ("vfio", "remove"), ("mdev", "unbind"), ("mdev", "remove")]
    );
}

/// Each VF is added before it is linked and changed after; the PF comes last.
/// When they go the PF says nothing.
pub fn of_functions(rig: &Rig) {
    rig.settle();
    let mark = rig.events.mark();
    let vfs = enable(rig, NVME, 2);
    let [a, b] = &vfs[..] else { panic!("{vfs:?}") };
    let concerns = |devpath: &str| {
        let last = devpath.rsplit('/').next().unwrap();
        [a, b, NVME].contains(&last)
    };
    let expected = [(&**a, "add"), (a, "change"), (b, "add"), (b, "change"), (NVME, "change")];
    let of = |mark| {
        let seen = seen(rig, mark, concerns);
        assert!(seen.iter().all(|[subsystem, ..]| subsystem == "pci"), "{seen:?}");
        seen.into_iter().map(|[_, action, device]| (device, action)).collect::<Vec<_>>()
    };
    let owned = |list: &[(&str, &str)]| -> Vec<_> {
        list.iter().map(|(device, action)| ((*device).to_owned(), (*action).to_owned())).collect()
    };
    assert_eq!(of(mark), owned(&expected));

    rig.write(format!("{}/driver_override", device(a)), "vfio-pci\n").unwrap();
    let mark = rig.events.mark();
    rig.write("bus/pci/drivers_probe", a).unwrap();
    assert_eq!(of(mark), owned(&[(a, "bind")]));

    let mark = rig.events.mark();
    raw_count(rig, NVME, "0").unwrap();
    assert_eq!(of(mark), owned(&[(a, "unbind"), (a, "remove"), (b, "remove")]));
    rig.write(format!("{}/sriov_drivers_autoprobe", device(NVME)), "1").unwrap();
}
