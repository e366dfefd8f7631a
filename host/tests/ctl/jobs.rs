//! Work that outlives its call.

use std::{collections::HashMap, process::Stdio};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use zbus::Variant;

use crate::{
    fake::{Answer, Fake, JOB, UUID, VGPU, answer, job_removed, path, reply},
    run, said, vgpuctl,
};

/// CreateVgpu leaves a job, whose end follows at once.
fn create_ending(result: &'static str, details: HashMap<&'static str, Variant<'static>>) -> Answer {
    Box::new(move |call| {
        let running = reply(call, &(path(VGPU), true, path(JOB)));
        vec![running, job_removed(result, &details)]
    })
}

fn create_running() -> Answer {
    answer((path(VGPU), true, path(JOB)))
}

fn uuid() -> Answer {
    Box::new(|call| vec![reply(call, &Variant::from(UUID))])
}

#[test]
fn create_waits_for_its_job() {
    let fake =
        Fake::start(vec![("CreateVgpu", create_ending("done", HashMap::new())), ("Get", uuid())]);
    let output = run(&fake, &["create", "a40-2q"]);
    assert_eq!(said(&output), (0, &*format!("{UUID}\n"), ""));
}

#[test]
fn create_that_is_done_at_once_waits_for_nothing() {
    let done = answer((path(VGPU), false, path("/")));
    let fake = Fake::start(vec![("CreateVgpu", done), ("Get", uuid())]);
    let output = run(&fake, &["create", "a40-2q", "--uuid", UUID]);
    assert_eq!(said(&output), (0, &*format!("{UUID}\n"), "it was there already\n"));
    assert_eq!(fake.calls(), ["CreateVgpu", "Get"]);
}

#[test]
fn a_failed_job_is_a_failed_call() {
    let details = HashMap::from([
        ("Error", Variant::from("org.vgpu.Host1.Error.Stuck")),
        ("Message", Variant::from("removing the VF (x): the kernel hangs")),
    ]);
    let fake = Fake::start(vec![("CreateVgpu", create_ending("failed", details))]);
    let output = run(&fake, &["create", "a40-2q"]);
    assert_eq!(said(&output), (9, "", "vgpuctl: removing the VF (x): the kernel hangs\n"));
}

#[test]
fn no_wait_prints_the_job() {
    let fake = Fake::start(vec![("CreateVgpu", create_running())]);
    assert_eq!(said(&run(&fake, &["create", "x", "--no-wait"])), (0, &*format!("{JOB}\n"), ""));
    let json = format!("{{\n  \"job\": \"{JOB}\"\n}}\n");
    assert_eq!(said(&run(&fake, &["create", "x", "--no-wait", "--json"])), (0, &*json, ""));
}

#[test]
fn ctrl_c_cancels_the_job() {
    let cancel: Answer =
        Box::new(|call| vec![reply(call, &()), job_removed("cancelled", &HashMap::new())]);
    let fake = Fake::start(vec![("CreateVgpu", create_running()), ("Cancel", cancel)]);
    let mut command = vgpuctl(&fake.bus.address, &["create", "a40-2q"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    fake.wait_for("CreateVgpu");
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let (code, out, err) = said(&output);
    assert_eq!((code, out), (130, ""));
    assert!(
        err.ends_with(
            "cancelling; waiting until all is undone\nvgpuctl: cancelled; all was undone\n"
        ),
        "{err}"
    );
    assert_eq!(fake.calls(), ["CreateVgpu", "Cancel"]);
}

#[test]
fn remove_and_set_vfs_are_silent() {
    let fake = Fake::start(vec![
        ("GetVgpu", answer((path(VGPU),))),
        ("Remove", answer((path("/"),))),
        ("GetGpu", answer((path(crate::fake::GPU),))),
        ("SetVfCount", answer((path("/"),))),
    ]);
    assert_eq!(said(&run(&fake, &["remove", "guest-1"])), (0, "", ""));
    assert_eq!(said(&run(&fake, &["set-vfs", "41:00.0", "4"])), (0, "", ""));
    assert_eq!(
        said(&run(&fake, &["set-vfs", "41:00.0", "4", "--json"])),
        (0, "{\n  \"done\": true\n}\n", "")
    );
}
