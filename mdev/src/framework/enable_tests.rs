use crate::scan::Mig;

use super::*;

const GPU: &str = "0000:41:00.0";

fn smi(mig: Option<bool>, heterogeneous: Option<bool>, shapes: &[&str]) -> SmiFacts {
    let instances = shapes.iter().enumerate().map(|(n, shape)| GpuInstance {
        id: n as u32 + 1,
        shape: shape.parse().unwrap(),
        profile: 0,
    });
    SmiFacts {
        mig: mig.map(|on| Mig { current: on, pending: on }),
        heterogeneous,
        instances: instances.collect(),
    }
}

fn now<'a>(smi: &'a SmiFacts, functions: u32, vgpus: &'a [(Uuid, Option<u32>)]) -> Now<'a> {
    Now { gpu: GPU.parse().unwrap(), functions, all_functions: 16, smi: Some(smi), vgpus }
}

fn shapes(names: &[&str]) -> Option<Vec<Shape>> {
    Some(names.iter().map(|name| name.parse().unwrap()).collect())
}

fn words(now: Now<'_>, wish: &Wish) -> Vec<String> {
    plan(now, wish).unwrap().iter().map(|step| step.op.to_string()).collect()
}

#[test]
fn the_order_is_mig_then_functions_then_instances() {
    let bare = smi(Some(false), None, &[]);
    let wish = Wish {
        functions: Some(true),
        mig: Some(true),
        instances: shapes(&["1g.5gb", "3g.20gb", "3g.20gb"]),
        heterogeneous: None,
    };
    assert_eq!(
        words(now(&bare, 0, &[]), &wish),
        [
            "run nvidia-smi -i 0000:41:00.0 -mig 1",
            "run sriov-manage -e 0000:41:00.0",
            "run nvidia-smi mig -i 0000:41:00.0 -cgi 3g.20gb,3g.20gb,1g.5gb -C",
        ]
    );
    let done = smi(Some(true), None, &["3g.20gb", "1g.5gb", "3g.20gb"]);
    assert_eq!(words(now(&done, 16, &[]), &wish), [""; 0], "it is so already");
}

#[test]
fn mig_mode_changes_only_without_functions() {
    let on = smi(Some(true), None, &["7g.40gb"]);
    let wish = Wish { mig: Some(false), ..Wish::default() };
    assert_eq!(
        words(now(&on, 16, &[]), &wish),
        [
            "run sriov-manage -d 0000:41:00.0",
            "destroy the GPU instances 1 of 0000:41:00.0",
            "run nvidia-smi -i 0000:41:00.0 -mig 0",
            "run sriov-manage -e 0000:41:00.0",
        ]
    );
}

#[test]
fn enabling_functions_gives_back_what_it_wipes() {
    let on = smi(Some(true), None, &["3g.20gb"]);
    let wish = Wish { functions: Some(true), ..Wish::default() };
    // Some are missing: they are made anew.
    assert_eq!(
        words(now(&on, 12, &[]), &wish),
        [
            "run sriov-manage -d 0000:41:00.0",
            "run sriov-manage -e 0000:41:00.0",
            "run nvidia-smi mig -i 0000:41:00.0 -cgi 3g.20gb -C",
        ]
    );
    let mixed = smi(None, Some(true), &[]);
    assert_eq!(
        words(now(&mixed, 0, &[]), &Wish { heterogeneous: None, ..wish }),
        ["run sriov-manage -e 0000:41:00.0", "run nvidia-smi vgpu -i 0000:41:00.0 -shm 1",]
    );
}

#[test]
fn heterogeneous_mode_is_not_told_while_mig_is_on() {
    let on = smi(Some(true), None, &[]);
    let wish = Wish { mig: Some(false), heterogeneous: Some(true), ..Wish::default() };
    assert_eq!(
        words(now(&on, 16, &[]), &wish),
        [
            "run sriov-manage -d 0000:41:00.0",
            "run nvidia-smi -i 0000:41:00.0 -mig 0",
            "run sriov-manage -e 0000:41:00.0",
            "run nvidia-smi vgpu -i 0000:41:00.0 -shm 1",
        ]
    );
    let both = Wish { mig: None, ..wish };
    let refused = plan(now(&on, 16, &[]), &both).unwrap_err();
    assert!(matches!(refused, Obstacle::Contradiction(_)), "{refused}");
}

#[test]
fn functions_go_although_there_are_instances_or_sizes_are_mixed() {
    let off = Wish { functions: Some(false), ..Wish::default() };
    for there in [smi(Some(true), None, &["3g.20gb"]), smi(Some(false), Some(true), &[])] {
        let steps = words(now(&there, 16, &[]), &off);
        assert_eq!(steps, ["run sriov-manage -d 0000:41:00.0"]);
    }
    let there = smi(Some(true), None, &[]);
    let wish = Wish { instances: shapes(&["3g.20gb"]), ..off };
    let refused = plan(now(&there, 16, &[]), &wish).unwrap_err();
    assert!(matches!(refused, Obstacle::Contradiction(_)), "{refused}");
}

#[test]
fn instances_that_are_wanted_stay_with_their_vgpus() {
    let on = smi(Some(true), None, &["3g.20gb", "1g.5gb", "1g.5gb"]);
    let vgpu = Uuid::from_u128(7);
    let wish = Wish { instances: shapes(&["3g.20gb", "2g.10gb"]), ..Wish::default() };
    assert_eq!(
        words(now(&on, 16, &[(vgpu, Some(1))]), &wish),
        [
            "destroy the GPU instances 2, 3 of 0000:41:00.0",
            "run nvidia-smi mig -i 0000:41:00.0 -cgi 2g.10gb -C",
        ]
    );
    for at in [Some(3), None] {
        let refused = plan(now(&on, 16, &[(vgpu, at)]), &wish).unwrap_err();
        let what = "destroying GPU instances";
        assert_eq!(refused, Obstacle::Wipes { what, vgpus: vec![vgpu] });
    }
}

#[test]
fn nothing_that_ends_a_vgpu_is_planned() {
    let on = smi(Some(true), Some(false), &[]);
    let vgpu = Uuid::from_u128(7);
    let there = [(vgpu, None)];
    for wish in [
        Wish { functions: Some(false), ..Wish::default() },
        Wish { mig: Some(false), ..Wish::default() },
        Wish { mig: Some(false), heterogeneous: Some(true), ..Wish::default() },
    ] {
        let refused = plan(now(&on, 16, &there), &wish).unwrap_err();
        assert!(matches!(&refused, Obstacle::Wipes { vgpus, .. } if *vgpus == [vgpu]), "{refused}");
        assert!(refused.to_string().contains(&vgpu.to_string()));
    }
    let off = smi(None, Some(false), &[]);
    let wish = Wish { heterogeneous: Some(true), ..Wish::default() };
    assert!(matches!(plan(now(&off, 16, &there), &wish), Err(Obstacle::Wipes { .. })));
}

#[test]
fn what_cannot_be_is_refused() {
    let none = smi(None, None, &[]);
    let refused = |smi: &SmiFacts, wish: Wish| plan(now(smi, 16, &[]), &wish).unwrap_err();
    let mig = Wish { mig: Some(true), ..Wish::default() };
    assert_eq!(refused(&none, mig.clone()), Obstacle::Unable("MIG"));
    let mixed = Wish { heterogeneous: Some(true), ..Wish::default() };
    assert_eq!(refused(&none, mixed), Obstacle::Unable("heterogeneous mode"));
    let off = smi(Some(false), Some(false), &[]);
    let instances = Wish { instances: shapes(&["3g.20gb"]), ..Wish::default() };
    assert!(matches!(refused(&off, instances.clone()), Obstacle::Contradiction(_)));
    let both = Wish { heterogeneous: Some(true), ..mig.clone() };
    assert!(matches!(refused(&off, both), Obstacle::Contradiction(_)));
    let bare = Wish { mig: Some(true), functions: Some(false), ..instances };
    assert!(matches!(refused(&off, bare), Obstacle::Contradiction(_)));
    let unknown = Now { smi: None, ..now(&off, 16, &[]) };
    assert_eq!(plan(unknown, &mig), Err(Obstacle::Unknown));
    // VFs alone need no word of NVIDIA's program.
    let off = Wish { functions: Some(false), ..Wish::default() };
    assert_eq!(words(unknown, &off), ["run sriov-manage -d 0000:41:00.0"]);
}

#[test]
fn of_instances_of_one_shape_those_that_carry_vgpus_stay() {
    let there = smi(Some(true), None, &["3g.20gb", "3g.20gb"]);
    let vgpus = [(Uuid::from_u128(1), Some(2))];
    let wish = Wish { instances: shapes(&["3g.20gb"]), ..Wish::default() };
    assert_eq!(
        words(now(&there, 16, &vgpus), &wish),
        ["destroy the GPU instances 1 of 0000:41:00.0"]
    );
}

#[test]
fn instances_that_nobody_spoke_of_are_not_destroyed() {
    // MIG is on and goes with the next reset.
    let mut there = smi(Some(true), Some(false), &["3g.20gb"]);
    there.mig = Some(Mig { current: true, pending: false });
    for wish in [
        Wish { mig: Some(false), ..Wish::default() },
        Wish { functions: Some(true), ..Wish::default() },
    ] {
        assert_eq!(words(now(&there, 16, &[]), &wish), [""; 0], "{wish:?}");
    }
}
