//! The shape of the tree.

use nix::errno::Errno;

use super::{super::EntryKind, *};

/// Every path below `dir`, links not followed.
fn walk(sim: &SimKernel, dir: &str, found: &mut Vec<(String, EntryKind)>) {
    for name in sim.list(dir) {
        let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        let kind = sim.entry(&path).unwrap_or_else(|errno| panic!("{path}: {errno}"));
        found.push((path.clone(), kind));
        if kind == EntryKind::Directory {
            walk(sim, &path, found);
        }
    }
}

#[test]
fn whatever_is_listed_can_be_read() {
    let sim = builtin().with_vf_on_vfio();
    sim.make(MTTY, "mtty-1", UUID).unwrap();
    assert!(read_all(&sim) > 400);
    for text in [
        include_str!("../../../../../tests/hosts/flex170.toml"),
        include_str!("../../../../../tests/hosts/arc-pro-b60.toml"),
    ] {
        let sim = host(&text.replace("[pci.sriov]", "[pci.sriov]\nenabled = 2"));
        let all = read_all(&sim);
        assert!(all > 450, "{all}");
    }
}

/// Reads everything, and says how much there is.
fn read_all(sim: &SimKernel) -> usize {
    let mut found = Vec::new();
    walk(sim, "", &mut found);
    let all = found.len();
    for (path, kind) in found {
        match kind {
            EntryKind::Directory => assert!(sim.read(&path, ReadKind::Inode).is_ok(), "{path}"),
            EntryKind::Attribute(mode) => {
                let text = sim.text(&path);
                let refused = mode & 0o444 == 0;
                assert_eq!(text.as_ref().err(), refused.then_some(&Errno::EACCES), "{path}");
            }
            EntryKind::Link => {
                // The text leads, from where the link lies, to a directory.
                let text = sim.link_text(&path).unwrap();
                let mut at: Vec<_> = path.split('/').collect();
                at.pop();
                for element in text.split('/') {
                    if element == ".." {
                        at.pop().unwrap();
                    } else {
                        at.push(element);
                    }
                }
                let target = at.join("/");
                assert_eq!(sim.entry(&target), Ok(EntryKind::Directory), "{path} -> {text}");
                assert_eq!(
                    sim.read(&target, ReadKind::Inode),
                    sim.read(&path, ReadKind::Inode),
                    "{path} -> {text}"
                );
            }
        }
    }
    all
}

#[test]
fn paths_through_links_lead_to_the_same_place() {
    let sim = builtin();
    assert_eq!(
        sim.link_text("bus/pci/devices/0000:41:00.0").unwrap(),
        "../../../devices/pci0000:00/0000:41:00.0"
    );
    assert_eq!(sim.link_text(&format!("{PF}/driver")).unwrap(), "../../../bus/pci/drivers/i915");
    assert_eq!(sim.text("bus/pci/drivers/i915/0000:41:00.0/device").unwrap(), "0x56c1\n");
    assert_eq!(sim.link_text("class/mdev_bus/mtty").unwrap(), "../../devices/virtual/mtty/mtty");
}

#[test]
fn the_errnos_are_those_of_the_file_system() {
    let sim = builtin();
    assert_eq!(sim.text("bus/pci/devices/0000:99:00.0/vendor"), Err(Errno::ENOENT));
    assert_eq!(sim.text(&format!("{PF}/vendor/x")), Err(Errno::ENOTDIR));
    assert_eq!(sim.text(PF), Err(Errno::EISDIR));
    assert_eq!(sim.link(&format!("{PF}/vendor")), Err(Errno::EINVAL));
    assert_eq!(sim.put(&format!("{PF}/vendor"), "1"), Err(Errno::EACCES));
    assert_eq!(sim.put(&format!("{PF}/nothing"), "1"), Err(Errno::ENOENT));
    assert_eq!(sim.text("bus/pci/drivers_probe"), Err(Errno::EACCES));
    // Names are matched as they are written, not as addresses are understood.
    assert_eq!(sim.text("bus/pci/devices/41:00.0/vendor"), Err(Errno::ENOENT));
}

#[test]
fn a_host_without_anything_has_no_mdev_class() {
    let sim = host("");
    assert!(!sim.has("class/mdev_bus") && !sim.has("bus/mdev"));
    assert!(sim.list("bus/pci/devices").is_empty());
}

#[test]
fn bridges_hold_what_lies_behind_them() {
    let sim = host(
        r#"
        [[pci]]
        address = "10000:e0:06.0"
        vendor = 0x8086
        device = 0x1
        class = 0x060400
        driver = "pcieport"

        [[pci]]
        address = "10000:e1:00.0"
        vendor = 0x8086
        device = 0x0bd5
        class = 0x038000
        behind = "10000:e0:06.0"
        "#,
    );
    let text = sim.link_text("bus/pci/devices/10000:e1:00.0").unwrap();
    assert_eq!(text, "../../../devices/pci10000:00/10000:e0:06.0/10000:e1:00.0");
}
