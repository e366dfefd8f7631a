//! Any sequence of writes leaves a whole tree, and can be undone.

use proptest::prelude::*;

use super::*;

const T4: &str = "class/mdev_bus/0000:3b:00.0";

/// Writes that work, that fail, and that make little sense.
fn write() -> impl Strategy<Value = (String, String)> {
    let uuid = (0..4u8).prop_map(|n| format!("83b8f4f2-509f-382f-3c1e-e6bfe0fa100{n}"));
    let address = prop::sample::select(vec!["0000:41:00.0", "0000:41:00.1", "0000:3b:00.0", "x"]);
    let driver = prop::sample::select(vec!["i915", "vfio-pci", "nvidia", "none"]);
    let count = prop::sample::select(vec!["0", "1", "2", "31", "32", "-1"]);
    let parent = prop::sample::select(vec![
        format!("{MTTY}/mdev_supported_types/mtty-2"),
        format!("{T4}/mdev_supported_types/nvidia-230"),
        format!("{T4}/mdev_supported_types/nvidia-234"),
    ]);
    prop_oneof![
        count.prop_map(|count| (format!("{PF}/sriov_numvfs"), count.to_owned())),
        "[01x]".prop_map(|text| (format!("{PF}/sriov_drivers_autoprobe"), text)),
        (address.clone(), driver.clone()).prop_map(|(address, driver)| {
            (format!("bus/pci/devices/{address}/driver_override"), format!("{driver}\n"))
        }),
        address.clone().prop_map(|a| (format!("bus/pci/devices/{a}/driver_override"), "\n".into())),
        (address.clone(), driver, prop::sample::select(vec!["bind", "unbind"])).prop_map(
            |(address, driver, verb)| (format!("bus/pci/drivers/{driver}/{verb}"), address.into())
        ),
        address.prop_map(|address| ("bus/pci/drivers_probe".into(), address.to_owned())),
        (parent, uuid.clone()).prop_map(|(parent, uuid)| (format!("{parent}/create"), uuid)),
        uuid.prop_map(|uuid| (format!("bus/mdev/devices/{uuid}/remove"), "1".into())),
    ]
}

/// All paths and what they read, numbers that are handed out and the count of
/// uevents aside.
fn picture(sim: &SimKernel) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut below = vec![String::new()];
    while let Some(dir) = below.pop() {
        for name in sim.list(&dir) {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            match sim.entry(&path).unwrap() {
                super::super::EntryKind::Directory => below.push(path),
                super::super::EntryKind::Link => {
                    let text = sim.link_text(&path).unwrap();
                    found.push((path, text));
                }
                super::super::EntryKind::Attribute(_) if path == "kernel/uevent_seqnum" => {}
                super::super::EntryKind::Attribute(_) => {
                    let text = sim.text(&path).unwrap_or_default();
                    found.push((path, text));
                }
            }
        }
    }
    found.sort();
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_leaves_a_whole_tree_and_can_be_undone(
        writes in prop::collection::vec(write(), 0..40)
    ) {
        let sim = builtin();
        let before = picture(&sim);
        for (path, value) in &writes {
            let _ = sim.put(path, value);
        }
        // Reads everything that is listed, and fails where something is missing.
        picture(&sim);
        for uuid in sim.list("bus/mdev/devices") {
            sim.put(&format!("bus/mdev/devices/{uuid}/remove"), "1").unwrap();
        }
        for (address, driver) in [("0000:41:00.0", "i915"), ("0000:3b:00.0", "nvidia")] {
            let device = format!("bus/pci/devices/{address}");
            if let Ok(other) = sim.link(&format!("{device}/driver")) {
                // VFs go with their PF's driver.
                sim.put(&format!("bus/pci/drivers/{other}/unbind"), address).unwrap();
            }
            sim.put(&format!("{device}/driver_override"), "\n").unwrap();
            // In the order of the boot, so that cards get their numbers back.
            prop_assert!(!sim.has(&format!("{device}/driver")), "{} {}", address, driver);
        }
        for (address, driver) in [("0000:3b:00.0", "nvidia"), ("0000:41:00.0", "i915")] {
            sim.put(&format!("bus/pci/drivers/{driver}/bind"), address).unwrap();
        }
        sim.put(&format!("{PF}/sriov_drivers_autoprobe"), "1").unwrap();
        prop_assert_eq!(before, picture(&sim));
    }

    #[test]
    fn no_path_and_no_text_make_it_panic(path in "[a-z0-9:._/-]{1,60}", text in ".{0,60}") {
        let sim = builtin();
        let _ = sim.read(&path, ReadKind::Text);
        if let Ok(path) = SysPath::new(path) {
            let _ = sim.write(&path, &text);
        }
        for attribute in ["sriov_numvfs", "driver_override", "reset", "uevent", "remove"] {
            let _ = sim.put(&format!("{PF}/{attribute}"), &text);
        }
        let _ = sim.make(MTTY, "mtty-1", &text);
        let _ = HostSpec::parse(&text, "x");
    }
}

#[test]
fn many_threads_at_once_end() {
    let sim = builtin();
    let work = |seed: u8| {
        let sim = sim.clone();
        move || {
            for n in 0..200u8 {
                let uuid = format!("83b8f4f2-509f-382f-3c1e-e6bfe0fa10{:02}", (n ^ seed) % 8);
                let _ = sim.put(&format!("{PF}/sriov_numvfs"), if n % 2 == 0 { "2" } else { "0" });
                let _ = sim.make(T4, "nvidia-230", &uuid);
                let _ = sim.put("bus/pci/drivers/i915/unbind", "0000:41:00.0");
                let _ = sim.text(&format!("{VF}/driver_override"));
                let _ = sim.put("bus/pci/drivers/nvidia/unbind", "0000:3b:00.0");
                let _ = sim.put(&format!("bus/mdev/devices/{uuid}/remove"), "1");
                let _ = sim.put("bus/pci/drivers_probe", "0000:3b:00.0");
                let _ = sim.put("bus/pci/drivers_probe", "0000:41:00.0");
            }
        }
    };
    let threads: Vec<_> = (0..4).map(|seed| start(work(seed))).collect();
    threads.into_iter().for_each(Running::end);
    picture(&sim);
}
