//! The manual pages against what they are made of: the arguments of `vgpuctl`
//! and the XML of the bus. With VGPU_UPDATE_MAN=1 the generated ones are
//! written anew.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test that runs a program and reads files of the tree"
)]

mod contract;

use std::{fs, path::PathBuf, process::Command};

use contract::Interface;

const INTERFACES: [&str; 7] = [
    include_str!("../../api/interfaces/org.vgpu.Host1.Manager.xml"),
    include_str!("../../api/interfaces/org.vgpu.Host1.Gpu.xml"),
    include_str!("../../api/interfaces/org.vgpu.Host1.Mig1.xml"),
    include_str!("../../api/interfaces/org.vgpu.Host1.Heterogeneous1.xml"),
    include_str!("../../api/interfaces/org.vgpu.Host1.Vgpu.xml"),
    include_str!("../../api/interfaces/org.vgpu.Host1.NvidiaVgpu1.xml"),
    include_str!("../../api/interfaces/org.vgpu.Host1.Job.xml"),
];

fn page(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("man").join(name)
}

/// Compares a page with what it should be, or writes it.
fn compare(name: &str, wanted: &str) {
    let path = page(name);
    if std::env::var_os("VGPU_UPDATE_MAN").is_some() {
        fs::write(&path, wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    if found == wanted {
        return;
    }
    let differs = found.lines().zip(wanted.lines()).position(|(found, wanted)| found != wanted);
    let line = differs.unwrap_or_else(|| found.lines().count().min(wanted.lines().count()));
    panic!(
        "{name} is out of date from line {}; run VGPU_UPDATE_MAN=1 cargo test -p vgpu-host --test man\n  has   {:?}\n  wants {:?}",
        line + 1,
        found.lines().nth(line),
        wanted.lines().nth(line),
    );
}

#[test]
fn the_page_of_vgpuctl_is_that_of_its_arguments() {
    let output = Command::new(env!("CARGO_BIN_EXE_vgpuctl")).arg("man").output().unwrap();
    assert!(output.status.success());
    compare("vgpuctl.1", &String::from_utf8(output.stdout).unwrap());
}

#[test]
fn the_page_of_the_bus_is_the_contract() {
    let interfaces = INTERFACES.map(Interface::parse);
    for (interface, xml) in interfaces.iter().zip(INTERFACES) {
        let tags = ["<method ", "<signal ", "<property "].map(|tag| xml.matches(tag).count());
        assert_eq!(interface.members.len(), tags.iter().sum::<usize>(), "{}", interface.name);
    }
    for member in interfaces.iter().flat_map(|interface| &interface.members) {
        let said = !member.text.is_empty() || member.kind == contract::Kind::Property;
        assert!(said, "{} has no comment in the XML", member.name);
    }
    compare("org.vgpu.Host1.5", &contract::page(&interfaces));
}

#[test]
fn the_page_of_the_daemon_has_its_options() {
    let output = Command::new(env!("CARGO_BIN_EXE_vgpu-hostd")).arg("--help").output().unwrap();
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    let page = fs::read_to_string(page("vgpu-hostd.8")).unwrap();
    let page =
        ["\\fB", "\\fI", "\\fR", "\\"].iter().fold(page, |page, mark| page.replace(mark, ""));
    let options = |text: &str| -> std::collections::BTreeSet<String> {
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '-'));
        words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned).collect()
    };
    let told = page.split(".SH OPTIONS").nth(1).unwrap().split(".SH").next().unwrap();
    assert!(options(&help).contains("--simulate"));
    assert_eq!(options(told), options(&help));
}
