#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

#[test]
fn paths_look_as_documented() {
    assert_eq!(gpu("0000:41:00.0"), "/org/vgpu/Host1/gpus/pci_0000_41_00_0");
    assert_eq!(gpu("10000:e1:00.0"), "/org/vgpu/Host1/gpus/pci_10000_e1_00_0");
    assert_eq!(gpu("mtty"), "/org/vgpu/Host1/gpus/mdev_mtty");
    assert_eq!(gpu("my-parent_1"), "/org/vgpu/Host1/gpus/mdev_my_2dparent_5f1");
    assert_eq!(
        vgpu("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"),
        "/org/vgpu/Host1/vgpus/83b8f4f2_509f_382f_3c1e_e6bfe0fa1001"
    );
    assert_eq!(job(7), "/org/vgpu/Host1/jobs/7");
    assert_eq!(none(), "/");
}

#[test]
fn other_paths_name_nothing() {
    for path in [
        "/",
        "/org/vgpu/Host1/gpus",
        "/org/vgpu/Host1/gpus/0000_41_00_0",
        "/org/vgpu/Host1/gpus/pci_0000_41_00",
        "/org/vgpu/Host1/gpus/pci_0000_41_00_0_0",
        "/org/vgpu/Host1/gpus/pci_0000_4G_00_0",
        "/org/vgpu/Host1/gpus/mdev__2",
        "/org/vgpu/Host1/gpus/mdev__zz",
        "/org/vgpu/Host1/gpus/mdev__ff",
        "/org/vgpu/Host1/gpus/mdev__61",
        "/org/vgpu/Host1/jobs/07",
        "/org/vgpu/Host1/jobs/99999999999",
        "/org/vgpu/Host1/other/7",
    ] {
        assert_eq!(parse(path), None, "{path}");
    }
    assert_eq!(parse(names::ROOT), Some(Object::Manager));
}

proptest! {
    #[test]
    fn a_gpu_comes_back(id in "\\PC{1,40}|[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\\.[0-7]") {
        prop_assert_eq!(parse(gpu(&id).as_str()), Some(Object::Gpu(id)));
    }

    #[test]
    fn a_job_comes_back(id: u32) {
        prop_assert_eq!(parse(job(id).as_str()), Some(Object::Job(id)));
    }

    #[test]
    fn no_text_makes_it_panic(text in "(/org/vgpu/Host1/(gpus|vgpus|jobs)/)?.{0,40}") {
        if let Some(object) = parse(&text) {
            let again = match &object {
                Object::Manager => names::ROOT.to_owned(),
                Object::Gpu(id) => gpu(id).to_string(),
                Object::Vgpu(uuid) => vgpu(uuid).to_string(),
                Object::Job(id) => job(*id).to_string(),
            };
            prop_assert_eq!(again, text);
        }
    }
}
