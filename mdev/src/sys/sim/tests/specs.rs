//! Descriptions of hosts, good and bad.

use super::*;

#[track_caller]
fn refused(text: &str, line: usize, words: &str) {
    let error = HostSpec::parse(text, "/tmp/host.toml").unwrap_err().to_string();
    assert!(error.starts_with("/tmp/host.toml: "), "{error}");
    assert!(error.contains(&format!("line {line}")) && error.contains(words), "{error}");
}

const FUNCTION: &str = "[[pci]]\naddress = \"0000:41:00.0\"\nvendor = 1\ndevice = 2\nclass = 3\n";

#[test]
fn a_bad_description_says_where_and_what() {
    refused("surprise = 1", 1, "unknown field `surprise`");
    refused("[[pci]]\naddress = \"41\"\n", 2, "is not a PCI address");
    refused(&format!("{FUNCTION}mdev = \"t5\"\n"), 6, "there is no [mdev-kind.t5]");
    refused(&format!("{FUNCTION}{FUNCTION}"), 2, "described twice");
    refused(&format!("{FUNCTION}bound = \"xe-vfio-pci\"\n"), 6, "nor a loaded vfio-driver");
    refused(&format!("{FUNCTION}iommu-group = 70000\n"), 2, "above 65535");
    refused(&format!("{FUNCTION}behind = \"0000:40:00.0\"\n"), 6, "described before it");
    refused(&format!("{FUNCTION}driver = \"../x\"\n"), 6, "cannot name a driver");
    let sriov =
        |text: &str| format!("{FUNCTION}driver = \"d\"\nsriov = {{ vf-device = 3, {text} }}\n");
    refused(&sriov("total-vfs = 2, errno = \"ENOWAY\""), 7, "no errno's name");
    refused(&sriov("total-vfs = 2, enabled = 3"), 2, "3 VFs enabled of 2");
    refused(&sriov("total-vfs = 2, stride = 0"), 2, "offset or stride");
    let second = FUNCTION.replace("00.0", "00.1");
    refused(&format!("{}{second}", sriov("total-vfs = 2")), 2, "belongs to 0000:41:00.1");
    refused(
        "[mdev-kind.k]\ndriver = \"d\"\nunits = 1\ntypes = [\n{ id = \"t\", size = 0 }]",
        5,
        "is 0",
    );
}

#[test]
fn what_only_the_kernel_refuses_is_told_at_boot() {
    let boot = |text: &str| {
        SimKernel::new(&HostSpec::parse(text, "x").unwrap()).err().unwrap().to_string()
    };
    let bound = format!("iommu = false\n{FUNCTION}bound = \"vfio-pci\"\n");
    assert!(boot(&bound).contains("refused by the kernel: EINVAL"), "{}", boot(&bound));
    let mdev =
        "[[mdev]]\nuuid = \"83b8f4f2-509f-382f-3c1e-e6bfe0fa1001\"\nparent = \"x\"\ntype = \"y\"\n";
    assert!(boot(mdev).contains("x offers no type y"), "{}", boot(mdev));
}

#[test]
fn the_builtin_host_has_a_gpu_of_each_framework() {
    let sim = builtin();
    assert_eq!(sim.list("class/mdev_bus"), ["0000:3b:00.0", "mbochs", "mdpy", "mtty"]);
    assert_eq!(sim.text(&format!("{PF}/sriov_totalvfs")).unwrap(), "31\n");
    assert_eq!(sim.list("kernel/iommu_groups/40/devices"), ["0000:81:00.0", "0000:81:00.1"]);
    assert_eq!(sim.list("class/mdev_bus/0000:3b:00.0/mdev_supported_types").len(), 15);
}

#[test]
fn what_exists_at_boot_is_there() {
    let sim = host(
        r#"
        [[pci]]
        address = "0000:41:00.0"
        vendor = 0x8086
        device = 0x56c0
        class = 0x030000
        driver = "i915"

        [pci.sriov]
        total-vfs = 4
        vf-device = 0x56c0
        vf-driver = "i915"
        enabled = 3
        vf = [{ index = 0, bound = "vfio-pci" }, { index = 1, bound = "none" }]

        [mdev-kind.tty]
        driver = "vfio_mtty"
        units = 2
        types = [{ id = "mtty-1", size = 1 }]

        [[virtual-parent]]
        name = "mtty"
        mdev = "tty"

        [[mdev]]
        uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
        parent = "mtty"
        type = "mtty-1"

        [[holder]]
        device = "0000:41:00.1"
        pid = 99
        command = "qemu"
        "#,
    );
    let driver = |n: u8| sim.link(&format!("bus/pci/devices/0000:41:00.{n}/driver")).ok();
    assert_eq!(
        [driver(1), driver(2), driver(3)],
        [Some("vfio-pci".into()), None, Some("i915".into())]
    );
    assert_eq!(sim.left(MTTY, "mtty-1"), "1");
    assert!(!sim.has(&format!("{MTTY}/mdev_supported_types/mtty-1/name")), "some have no name");
    assert_eq!(sim.open_node(&sim.group_node(VF)).err(), Some(Errno::EBUSY));
}

#[test]
fn a_function_can_be_plugged_and_unplugged() {
    let spec = HostSpec::builtin().unwrap();
    let sim = SimKernel::new(&spec).unwrap();
    let gpu = spec.pci.iter().find(|pci| pci.sriov.is_some()).unwrap();
    sim.put(&format!("{PF}/sriov_numvfs"), "2").unwrap();
    sim.put(&format!("{PF}/remove"), "1").unwrap();
    assert!(!sim.has(PF) && !sim.has(VF));
    let heard = sim.heard();
    sim.plug(&spec, gpu).unwrap();
    assert_eq!(*heard.lock().unwrap(), ["add pci:0000:41:00.0", "bind pci:0000:41:00.0"]);
    assert!(sim.plug(&spec, gpu).unwrap_err().to_string().contains("is taken"));
}

#[test]
fn variant_drivers_appear_in_the_aliases() {
    let sim =
        host("[[vfio-driver]]\nname = \"xe-vfio-pci\"\nids = [\"8086:e211\"]\nloaded = false\n");
    assert_eq!(
        sim.module_aliases(),
        "alias vfio_pci:v00008086d0000E211sv*sd*bc*sc*i* xe_vfio_pci\n"
    );
}
