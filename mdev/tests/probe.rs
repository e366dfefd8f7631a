//! The probe as the program that it is.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::{process::Command, time::Duration};

use nix::errno::Errno;
use vgpu_mdev::{
    sys::{
        Kernel, NodePath, ProbeTarget, SysPath,
        real::{Programs, RealKernel, Roots},
    },
    vfio::{Answer, Refusal},
};

const PROBE: &str = env!("CARGO_BIN_EXE_vgpu-vfio-probe");

#[test]
fn a_missing_device_is_named() {
    let programs = Programs { probe: PROBE.into(), ..Programs::default() };
    let kernel = RealKernel::new(&Roots::default(), programs).unwrap();
    let target = ProbeTarget {
        device: SysPath::new("bus/pci/devices/ffff:ff:1f.7").unwrap(),
        group: None,
        cdev: Some(NodePath::new("vfio/devices/vfio-none").unwrap()),
    };
    let failure = kernel.probe(&target, Duration::from_secs(60)).unwrap_err();
    assert_eq!(failure.errno, Some(Errno::ENOENT), "{failure}");
    assert!(failure.message.starts_with("cannot open /dev/"), "{failure}");
}

#[test]
fn wrong_arguments_are_answered_in_json() {
    let output = Command::new(PROBE).args(["--device", "/etc/passwd"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let Answer::Error(Refusal { message, errno: None }) =
        serde_json::from_slice(&output.stdout).unwrap()
    else {
        unreachable!("{output:?}")
    };
    assert!(message.contains("/etc/passwd"), "{message}");
}

#[test]
fn help_is_for_people() {
    let output = Command::new(PROBE).arg("--help").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nUsage: vgpu-vfio-probe --device "), "{text}");
}

#[test]
fn the_default_probe_is_found_beside_us() {
    assert_eq!(Programs::default().probe, std::path::Path::new(PROBE));
}
