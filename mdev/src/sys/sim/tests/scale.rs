//! Many of everything, and many at once.

use uuid::Uuid;

use super::*;

fn one_parent(capacity: u32) -> SimKernel {
    host(&format!(
        "[mdev-kind.k]\ndriver = \"d\"\nunits = {capacity}\ntypes = [{{ id = \"t\", size = 1 }}]\n\
         [[virtual-parent]]\nname = \"p\"\nmdev = \"k\"\n"
    ))
}

#[test]
fn one_parent_takes_thousands() {
    let sim = one_parent(4096);
    let uuid = |n| Uuid::from_u128(n).to_string();
    (0..4096).for_each(|n| sim.make("class/mdev_bus/p", "t", &uuid(n)).unwrap());
    assert_eq!(sim.make("class/mdev_bus/p", "t", &uuid(5000)), Err(Errno::ENOSPC));
    assert_eq!(sim.list("bus/mdev/devices").len(), 4096);
    assert_eq!(sim.list("class/vfio").len(), 4096);
    (0..4096).for_each(|n| sim.put(&format!("bus/mdev/devices/{}/remove", uuid(n)), "1").unwrap());
    assert!(sim.list("bus/mdev/devices").is_empty() && sim.list("class/vfio").is_empty());
}

#[test]
fn threads_that_race_for_the_last_slots_get_each_once() {
    let sim = one_parent(10);
    let racers: Vec<_> = (0..4u128)
        .map(|racer| {
            let sim = sim.clone();
            start(move || {
                let uuid = |n| Uuid::from_u128(racer << 64 | n).to_string();
                (0..10).filter(|n| sim.make("class/mdev_bus/p", "t", &uuid(*n)).is_ok()).count()
            })
        })
        .collect();
    let made: usize = racers.into_iter().map(Running::end).sum();
    assert_eq!((made, sim.list("bus/mdev/devices").len()), (10, 10));
    assert_eq!(sim.left("class/mdev_bus/p", "t"), "0");
}

#[test]
fn many_cycles_leave_nothing_behind() {
    let sim = builtin();
    let mut before = Vec::new();
    let walk = |found: &mut Vec<String>| {
        for dir in ["kernel/iommu_groups", "class/vfio", "class/vfio-dev", "bus/pci/devices", MTTY]
        {
            found.extend(sim.list(dir));
        }
    };
    walk(&mut before);
    for _ in 0..1000 {
        sim.make(MTTY, "mtty-1", UUID).unwrap();
        sim.put(&format!("{MTTY}/{UUID}/remove"), "1").unwrap();
    }
    for _ in 0..20 {
        sim.put(&format!("{PF}/sriov_numvfs"), "31").unwrap();
        sim.put(&format!("{PF}/sriov_numvfs"), "0").unwrap();
    }
    let mut after = Vec::new();
    walk(&mut after);
    assert_eq!(before, after);
}
