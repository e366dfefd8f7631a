//! GVT-g: types that divide the graphics memory.

use nix::errno::Errno;

use super::*;

const GPU: &str = "class/mdev_bus/0000:00:02.0";
const V5_8: &str = "i915-GVTg_V5_8";
const V5_4: &str = "i915-GVTg_V5_4";

fn gvt() -> SimKernel {
    host(include_str!("../../../../../tests/hosts/gvtg.toml"))
}

fn uuid(n: u32) -> String {
    format!("83b8f4f2-509f-382f-3c1e-e6bfe0fa{n:04}")
}

/// Types that take so much, beside what is left for guests.
fn divided(aperture: &str, types: &[(&str, &str)]) -> String {
    let types: Vec<String> = types
        .iter()
        .map(|(id, takes)| {
            format!("{{ id = \"{id}\", {takes}, weight = 2, resolution = \"1024x768\" }}")
        })
        .collect();
    format!(
        "[[virtual-parent]]\nname = \"gpu\"\nmdev = \"gvt\"\n\
         [mdev-kind.gvt]\ndriver = \"intel_vgpu_mdev\"\naperture = {{ {aperture} }}\n\
         types = [{}]\n",
        types.join(", ")
    )
}

#[test]
fn an_aperture_of_256_mb_offers_two_small_ones_or_a_larger_one() {
    let sim = gvt();
    assert_eq!(sim.list(&format!("{GPU}/mdev_supported_types")), [V5_4, V5_8]);
    assert_eq!((sim.left(GPU, V5_8), sim.left(GPU, V5_4)), ("2".into(), "1".into()));
    sim.make(GPU, V5_8, &uuid(1)).unwrap();
    assert_eq!((sim.left(GPU, V5_8), sim.left(GPU, V5_4)), ("1".into(), "0".into()));
    assert_eq!(sim.make(GPU, V5_4, &uuid(2)), Err(Errno::ENOSPC));
    sim.make(GPU, V5_8, &uuid(2)).unwrap();
    assert_eq!(sim.make(GPU, V5_8, &uuid(3)), Err(Errno::ENOSPC));
    assert_eq!(
        sim.link(&format!("bus/mdev/devices/{}/driver", uuid(1))).unwrap(),
        "intel_vgpu_mdev"
    );
    for n in [1, 2] {
        sim.put(&format!("{GPU}/{}/remove", uuid(n)), "1").unwrap();
    }
    assert_eq!((sim.left(GPU, V5_8), sim.left(GPU, V5_4)), ("2".into(), "1".into()));
}

#[test]
fn a_description_says_what_one_takes_in_five_lines() {
    let sim = gvt();
    let read = |ty: &str, attr: &str| {
        sim.text(&format!("{GPU}/mdev_supported_types/{ty}/{attr}")).unwrap()
    };
    assert_eq!(
        read(V5_4, "description"),
        "low_gm_size: 128MB\nhigh_gm_size: 512MB\nfence: 4\nresolution: 1920x1200\nweight: 4\n"
    );
    assert_eq!(
        read(V5_8, "description"),
        "low_gm_size: 64MB\nhigh_gm_size: 384MB\nfence: 4\nresolution: 1024x768\nweight: 2\n"
    );
    assert_eq!(read(V5_8, "name"), "GVTg_V5_8\n");
    assert_eq!(read(V5_8, "device_api"), "vfio-pci\n");
}

#[test]
fn each_of_the_three_can_be_what_is_short() {
    let takes = "low-mb = 64, high-mb = 384, fence = 4";
    for (aperture, left) in [
        ("low-mb = 640, high-mb = 3456, fences = 28", "7"),
        ("low-mb = 640, high-mb = 1200, fences = 28", "3"),
        ("low-mb = 300, high-mb = 3456, fences = 28", "4"),
    ] {
        let sim = host(&divided(aperture, &[("t", takes)]));
        assert_eq!(sim.left("class/mdev_bus/gpu", "t"), left, "{aperture}");
    }
    // What one type takes beyond the aperture, another lacks.
    let big = "low-mb = 64, high-mb = 1000, fence = 4";
    let sim =
        host(&divided("low-mb = 640, high-mb = 1200, fences = 28", &[("t", takes), ("big", big)]));
    sim.make("class/mdev_bus/gpu", "big", UUID).unwrap();
    assert_eq!(sim.left("class/mdev_bus/gpu", "t"), "0");
    assert_eq!(sim.make("class/mdev_bus/gpu", "t", &uuid(1)), Err(Errno::ENOSPC));
}

#[test]
fn a_type_has_a_size_or_takes_graphics_memory() {
    let refused = |text: &str| HostSpec::parse(text, "host.toml").unwrap_err().to_string();
    let aperture = "low-mb = 128, high-mb = 3456, fences = 28";
    let words = refused(&divided(aperture, &[("t", "low-mb = 64, fence = 4")]));
    assert!(words.contains("t needs either a size, or low-mb"), "{words}");
    let text = "[mdev-kind.k]\ndriver = \"d\"\naperture = { low-mb = 1, high-mb = 1, fences = 1 }\n\
                types = [{ id = \"t\", size = 1 }]\n";
    assert!(refused(text).contains("t in mdev-kind k needs its low-mb"), "{}", refused(text));
}
