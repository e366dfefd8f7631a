//! vgpuctl against a service that answers as each test says: what it prints,
//! its exit codes, and what it asks of the bus.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test that runs programs"
)]

mod bus;
mod fake;
mod jobs;
mod monitor;
mod nvidia;
mod simulated;

use std::process::{Command, Output, Stdio};

use bus::Bus;
use fake::{Fake, answer, refuse};

type Vgpus = Vec<(&'static str, &'static str, &'static str, &'static str, &'static str, u32, u32)>;

fn vgpuctl(address: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpuctl"));
    command.args(["--bus", address]).args(arguments).stdin(Stdio::null()).env_remove("VGPU_BUS");
    command
}

fn run(fake: &Fake, arguments: &[&str]) -> Output {
    vgpuctl(&fake.bus.address, arguments).output().unwrap()
}

/// Exit code, standard output and standard error.
fn said(output: &Output) -> (i32, &str, &str) {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn two_vgpus() -> Vgpus {
    vec![
        (fake::UUID, "guest-1", "a40-2q", "active", "0000:41:00.0", 1000, 1),
        ("a5ab8e3a-5b53-4ab9-9e08-bd5ee8a5b0ad", "", "", "removing\u{1b}[2J", "mtty", 0, 0),
    ]
}

#[test]
fn list_prints_a_table_after_one_call() {
    let fake = Fake::start(vec![("ListVgpus", answer((two_vgpus(),)))]);
    let table = "\
UUID                                  NAME     PROFILE  GPU           STATE         OWNER  MANAGED
83b8f4f2-509f-382f-3c1e-e6bfe0fa1001  guest-1  a40-2q   0000:41:00.0  active         1000  yes
a5ab8e3a-5b53-4ab9-9e08-bd5ee8a5b0ad  -        -        mtty          removing\u{fffd}[2J      0  no
";
    assert_eq!(said(&run(&fake, &["list"])), (0, table, ""));
    assert_eq!(fake.calls(), ["ListVgpus"], "one call and nothing else");
}

#[test]
fn list_prints_json() {
    let fake = Fake::start(vec![("ListVgpus", answer((two_vgpus(),)))]);
    let output = run(&fake, &["list", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        json,
        serde_json::json!([
            {
                "uuid": fake::UUID, "name": "guest-1", "profile": "a40-2q", "state": "active",
                "gpu": "0000:41:00.0", "owner_uid": 1000, "managed": true,
            },
            {
                "uuid": "a5ab8e3a-5b53-4ab9-9e08-bd5ee8a5b0ad", "name": null, "profile": null,
                "state": "removing\u{1b}[2J", "gpu": "mtty", "owner_uid": 0, "managed": false,
            },
        ])
    );
}

#[test]
fn an_empty_list_says_so_beside_the_output() {
    let fake = Fake::start(vec![("ListVgpus", answer((Vgpus::new(),)))]);
    assert_eq!(said(&run(&fake, &["list"])), (0, "", "no vGPUs\n"));
    assert_eq!(said(&run(&fake, &["list", "--json"])), (0, "[]\n", ""));
}

#[test]
fn filters_reach_the_service() {
    let check: fake::Answer = Box::new(|call| {
        let body = call.body();
        let (filter,): (std::collections::HashMap<String, zbus::Variant<'_>>,) =
            body.deserialize().unwrap();
        assert_eq!(filter.len(), 3);
        assert_eq!(filter["gpu"], zbus::Variant::from("41:00.0"));
        assert_eq!(filter["owner-uid"], zbus::Variant::from(7_u32));
        assert_eq!(filter["managed"], zbus::Variant::from(false));
        vec![fake::reply(call, &(Vgpus::new(),))]
    });
    let fake = Fake::start(vec![("ListVgpus", check)]);
    let output = run(&fake, &["list", "--gpu", "41:00.0", "--owner-uid", "7", "--foreign"]);
    assert_eq!(said(&output).0, 0);
}

#[test]
fn errors_are_said_as_they_are_and_have_their_exit_code() {
    for (name, code) in [
        ("org.vgpu.Host1.Error.NoSuchVgpu", 3),
        ("org.vgpu.Host1.Error.NoCapacity", 4),
        ("org.vgpu.Host1.Error.Busy", 5),
        ("org.freedesktop.DBus.Error.AccessDenied", 6),
        ("org.vgpu.Host1.Error.NotManaged", 8),
        ("org.vgpu.Host1.Error.KernelRefused", 9),
        ("org.freedesktop.DBus.Error.InvalidArgs", 2),
        ("org.freedesktop.DBus.Error.Failed", 1),
    ] {
        let fake =
            Fake::start(vec![("GetVgpu", refuse(name, "tried this (path: EBUSY): cause; remedy"))]);
        let output = run(&fake, &["remove", "guest-1"]);
        assert_eq!(
            said(&output),
            (code, "", "vgpuctl: tried this (path: EBUSY): cause; remedy\n"),
            "{name}"
        );
    }
}

#[test]
fn a_usage_error_is_no_other_error() {
    let output = vgpuctl("unix:path=/nowhere", &["create"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_missing_command_is_none_of_the_hidden_ones() {
    let output = vgpuctl("unix:path=/nowhere", &[]).output().unwrap();
    let (code, _, err) = said(&output);
    assert_eq!(code, 2);
    assert!(err.contains("doctor, gpus, ") && !err.contains("man]"), "{err}");
}

#[test]
fn without_the_service_it_says_how_to_start_it() {
    let bus = Bus::start();
    let output = vgpuctl(&bus.address, &["list"]).output().unwrap();
    let (code, out, err) = said(&output);
    assert_eq!((code, out), (7, ""));
    assert!(err.starts_with("vgpuctl: vgpu-hostd does not answer: "), "{err}");
    let remedy = format!("; start it, from the libexec folder, with --bus {}\n", bus.address);
    assert!(err.ends_with(&remedy), "{err}");
}

#[test]
fn without_a_bus_it_names_the_address() {
    let output = vgpuctl("unix:path=/nowhere/bus", &["list"]).output().unwrap();
    let (code, _, err) = said(&output);
    assert_eq!(code, 7);
    assert!(err.contains("/nowhere/bus"), "{err}");
    assert!(err.ends_with("; start that bus, or name another with --bus or VGPU_BUS\n"), "{err}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let fake = Fake::start(vec![("ListVgpus", answer((two_vgpus(),)))]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = vgpuctl(&fake.bus.address, &["list"]).stdout(writer).output().unwrap();
    assert_eq!(said(&output), (0, "", ""));
}

#[test]
fn doctor_shows_what_the_service_finds_wrong() {
    type Problems = Vec<(&'static str, &'static str)>;
    let gpus = vec![("0000:41:00.0", "NVIDIA", "A40", "mdev", "", "ready", 0_u32, 0_u32, 0_u32)];
    let get: fake::Answer = Box::new(|call| {
        let body = call.body();
        let (_, name): (String, String) = body.deserialize().unwrap();
        vec![match name.as_str() {
            "Version" => fake::reply(call, &zbus::Variant::from("0.1.0")),
            "Simulated" => fake::reply(call, &zbus::Variant::from(true)),
            "Problems" => {
                let problems: Problems =
                    vec![("driver-missing", "no driver is bound; install the vGPU driver")];
                fake::reply(call, &zbus::Variant::new(problems))
            }
            other => panic!("{other} was read"),
        }]
    });
    let fake = Fake::start(vec![
        ("Get", get),
        ("ListGpus", answer((gpus,))),
        ("GetGpu", answer((fake::path(fake::GPU),))),
    ]);
    let output = run(&fake, &["doctor", "--json"]);
    let checks: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let of = |name: &str| checks.iter().find(|check| check["check"] == name).unwrap();
    assert_eq!(of("service")["finding"], "vgpu-hostd 0.1.0 answers, on a simulated kernel");
    assert_eq!(of("gpus")["status"], "ok");
    assert_eq!(of("gpu")["finding"], "0000:41:00.0: no driver is bound (driver-missing)");
    assert_eq!(of("gpu")["remedy"], "install the vGPU driver");
    let fails = checks.iter().any(|check| check["status"] == "fail");
    assert_eq!(output.status.code(), Some(i32::from(fails)));
}
