//! driverctl on the VFs of the built-in host's Flex 140.

use std::collections::BTreeMap;

use vgpu_mdev::{
    error::ErrorKind,
    model::{FunctionState, VgpuState},
    request::Control,
    sys::sim::HostSpec,
};
use vgpu_tests::watch;

use super::Host;

const PF: &str = "0000:41:00.0";
const VF: &str = "0000:41:00.1";
const OTHER: &str = "0000:41:00.2";

/// With two VFs, which the GPU's own driver has taken.
fn host() -> Host {
    let host = Host::new(&HostSpec::builtin().unwrap());
    let count = host.mounted.sys().join("bus/pci/devices").join(PF).join("sriov_numvfs");
    std::fs::write(count, "2").unwrap();
    watch::until(&host.engine, |snapshot| {
        let gpu = snapshot.gpu(&PF.parse().unwrap()).unwrap();
        gpu.functions.iter().filter(|f| f.driver.as_deref() == Some("i915")).count() == 2
    });
    host
}

impl Host {
    fn driverctl(&self, args: &[&str]) -> Result<String, String> {
        self.tools.run("driverctl", args)
    }

    /// `driverctl list-devices`: each with its driver, `[*]` after an override.
    fn devices(&self) -> BTreeMap<String, String> {
        let said = self.driverctl(&["list-devices"]).unwrap();
        let line = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
        said.lines().map(|said| line(said).unwrap()).collect()
    }

    /// What the engine shows of the same.
    fn assert_agrees(&self, overridden: &[&str]) {
        let listed = self.devices();
        let mut known = 0;
        for gpu in self.engine.snapshot().gpus() {
            let functions = gpu.functions.iter().map(|f| (f.address.to_string(), &f.driver));
            let itself = gpu.pci_ids.map(|_| (gpu.id.to_string(), &gpu.driver));
            for (address, driver) in itself.into_iter().chain(functions) {
                let mut shown = driver.clone().unwrap_or_else(|| "(none)".into());
                if overridden.contains(&&*address) {
                    shown += " [*]";
                }
                assert_eq!(listed[&address], shown, "{address}");
                known += 1;
            }
        }
        // The Radeon's audio function belongs to it.
        assert_eq!((listed.len(), known), (7, 6), "{listed:?}");
    }

    fn function(&self, address: &str) -> (FunctionState, Option<String>) {
        let gpu = self.gpu(PF);
        let function = gpu.functions.iter().find(|f| f.address.to_string() == address).unwrap();
        (function.state, function.driver.clone())
    }
}

#[test]
fn a_function_on_vfio_pci_is_foreign_until_driverctl_lets_go() {
    let host = host();
    host.assert_agrees(&[]);
    let by_host = (FunctionState::UsedByHost, Some("i915".to_owned()));
    assert_eq!(host.function(VF), by_host);

    host.driverctl(&["set-override", VF, "vfio-pci"]).unwrap();
    let snapshot = watch::until(&host.engine, |snapshot| {
        snapshot.vgpus().any(|vgpu| vgpu.state == VgpuState::Active && !vgpu.nodes.is_empty())
    });
    let vgpu = snapshot.vgpus().next().unwrap();
    assert!(!vgpu.managed);
    assert_eq!((vgpu.gpu.to_string(), &vgpu.addresses), (PF.into(), &vec![VF.parse().unwrap()]));
    assert_eq!(host.function(VF), (FunctionState::Vgpu, Some("vfio-pci".into())));
    assert_eq!(host.function(OTHER), by_host);
    host.assert_agrees(&[VF]);
    assert_eq!(host.driverctl(&["list-overrides"]).unwrap(), format!("{VF} vfio-pci\n"));
    let refused = host.remove(vgpu.uuid).unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::NotManaged, "foreign"));
    let gpu = PF.parse().unwrap();
    let refused = host.engine.set_vf_count(&gpu, 0, &Control::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);

    host.driverctl(&["unset-override", VF]).unwrap();
    watch::until(&host.engine, |snapshot| snapshot.vgpus().next().is_none());
    watch::until(&host.engine, |_| host.function(VF) == by_host);
    host.assert_agrees(&[]);
}

/// The engine gives each VF that it makes an override, so that no driver of the
/// host takes it; driverctl shows that too.
#[test]
fn driverctl_lists_what_we_make() {
    let host = Host::new(&HostSpec::builtin().unwrap());
    host.engine.set_vf_count(&PF.parse().unwrap(), 2, &Control::default()).unwrap();
    let overridden = [VF, OTHER];
    for function in overridden {
        let path = format!("bus/pci/devices/{function}/driver_override");
        assert_eq!(host.read(&path), "vfio-pci", "{function}");
    }
    host.assert_agrees(&overridden);
    let profile = host.gpu(PF).profiles[0].id.to_string();
    let uuid = host.create(PF, &profile).unwrap();
    assert_eq!(host.engine.snapshot().vgpu(uuid).unwrap().addresses, [VF.parse().unwrap()]);
    let said = host.driverctl(&["list-overrides"]).unwrap();
    assert_eq!(said, format!("{VF} vfio-pci\n{OTHER} (none)\n"));
    host.assert_agrees(&overridden);
    host.remove(uuid).unwrap();
    assert_eq!(host.devices()[VF], "(none) [*]");
    host.assert_agrees(&overridden);
}

#[test]
fn a_module_that_is_not_there_changes_nothing() {
    let host = host();
    let before = (host.gpu(PF), host.writes());
    let said = host.driverctl(&["set-override", VF, "nosuch"]).unwrap_err();
    assert_eq!(said, "driverctl: no such module: nosuch\n");
    assert_eq!((host.gpu(PF), host.writes()), before);
}

/// driverctl unbinds before it sets the override, and does not look at what the
/// function is used for.
#[test]
fn what_driverctl_writes_is_recorded_in_order() {
    let host = host();
    host.driverctl(&["set-override", VF, "vfio-pci"]).unwrap();
    host.driverctl(&["unset-override", VF]).unwrap();
    let over = format!("devices/pci0000:00/{VF}/driver_override");
    let expected = [
        (&*format!("devices/pci0000:00/{PF}/sriov_numvfs"), "2"),
        ("bus/pci/drivers/i915/unbind", &*format!("{VF}\n")),
        (&over, "vfio-pci\n"),
        ("bus/pci/drivers_probe", &format!("{VF}\n")),
        ("bus/pci/drivers/vfio-pci/unbind", &format!("{VF}\n")),
        (&over, "\n"),
        ("bus/pci/drivers_probe", &format!("{VF}\n")),
    ];
    assert_eq!(host.writes(), expected.map(|(path, value)| (path.into(), value.into())));
}
