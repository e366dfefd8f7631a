//! udevadm: finds devices and their variables in the tree, and asks for events.

use vgpu_mdev::sys::sim::HostSpec;

use super::Host;

const T4: &str = "0000:3b:00.0";

#[test]
fn udevadm_finds_every_device() {
    let host = Host::new(&HostSpec::builtin().unwrap());
    let uuid = host.create(T4, "t4-2q").unwrap();
    let found = |subsystem: &str| {
        let said = host.tools.run(
            "udevadm",
            &["trigger", "--dry-run", "--verbose", &format!("--subsystem-match={subsystem}")],
        );
        said.unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let device = |path: &str| format!("/sys/devices/pci0000:00/{path}");
    let functions = ["0000:02:00.0", T4, "0000:41:00.0", "0000:81:00.0", "0000:81:00.1"];
    assert_eq!(found("pci"), functions.map(device));
    assert_eq!(found("mdev"), [device(&format!("{T4}/{uuid}"))]);
}

#[test]
fn udevadm_reads_a_function_and_asks_for_its_event() {
    let host = Host::new(&HostSpec::builtin().unwrap());
    let path = format!("/sys/bus/pci/devices/{T4}");
    let said = host.tools.run("udevadm", &["info", "--query=property", &path]).unwrap();
    for line in [
        "DEVPATH=/devices/pci0000:00/0000:3b:00.0",
        "SUBSYSTEM=pci",
        "DRIVER=nvidia",
        "PCI_CLASS=30200",
        "PCI_ID=10DE:1EB8",
        "PCI_SUBSYS_ID=10DE:12A2",
        "PCI_SLOT_NAME=0000:3b:00.0",
    ] {
        assert!(said.lines().any(|said| said == line), "no {line} in {said}");
    }
    let (heard, events) = std::sync::mpsc::channel();
    host.mounted.simulation.on_event(Box::new(move |event| {
        let _ = heard.send(event.clone());
    }));
    host.tools.run("udevadm", &["trigger", "--action=change", &path]).unwrap();
    let event = events.try_recv().unwrap();
    assert_eq!((&*event.action, &*event.subsystem), ("change", "pci"));
    assert_eq!(event.devpath, "/devices/pci0000:00/0000:3b:00.0");
    let [(path, value)] = &host.writes()[..] else { panic!("{:?}", host.writes()) };
    assert_eq!(path, "devices/pci0000:00/0000:3b:00.0/uevent");
    assert!(value.starts_with("change"), "{value:?}");
}
