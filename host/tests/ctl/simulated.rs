//! vgpuctl and vgpu-hostd together, on the built-in simulated host.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    process::{Child, Command, Output},
    time::Duration,
};

use insta::assert_snapshot;
use serde_json::Value;
use tempfile::TempDir;

use crate::{bus::Bus, monitor, said, vgpuctl};

const MDEV: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";
const VF: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1002";
const WHOLE: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1003";
const OTHER: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1004";

/// The service on a bus of its own; both end with the test.
pub(crate) struct Host {
    bus: Bus,
    service: Child,
    dir: TempDir,
    /// Read until it is ready, open until it ends.
    notify: UnixDatagram,
}

impl Host {
    /// Starts it on the built-in host and waits until it says that it is ready.
    fn start() -> Self {
        Self::start_on(&[])
    }

    /// The same on a described host.
    pub(crate) fn described(name: &str) -> Self {
        Self::start_on(&[&format!("{}/../tests/hosts/{name}.toml", env!("CARGO_MANIFEST_DIR"))])
    }

    fn start_on(file: &[&str]) -> Self {
        let bus = Bus::start();
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("host.toml"), "[passthrough]\nallow = [\"0000:81:00.0\"]\n").unwrap();
        fs::create_dir(at("run")).unwrap();
        let ready = UnixDatagram::bind(at("notify")).unwrap();
        ready.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let service = Command::new(env!("CARGO_BIN_EXE_vgpu-hostd"))
            .arg("--simulate")
            .args(file)
            .args(["--log", "error", "--bus", &bus.address, "--config"])
            .arg(at("host.toml"))
            .arg("--run-dir")
            .arg(at("run"))
            .env("NOTIFY_SOCKET", at("notify"))
            .spawn()
            .unwrap();
        let host = Self { bus, service, dir, notify: ready };
        let mut message = [0; 256];
        loop {
            let length = host.notify.recv(&mut message).expect("the service does not say READY=1");
            if message[..length].split(|byte| *byte == b'\n').any(|line| line == b"READY=1") {
                return host;
            }
        }
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        vgpuctl(&self.bus.address, arguments).output().unwrap()
    }

    /// What a command that succeeds prints.
    pub(crate) fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (code, out, err) = said(&output);
        assert_eq!(code, 0, "{arguments:?} failed: {err}");
        out.to_owned()
    }

    /// Exit code and message of a command that fails.
    pub(crate) fn bad(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (code, out, err) = said(&output);
        assert!(code != 0 && out.is_empty(), "{arguments:?} succeeded: {out}");
        format!("exit {code}\n{err}")
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// One vGPU of each framework.
    fn create_three(&self) {
        self.good(&["create", "t4-2q", "--uuid", MDEV, "--name", "desktop"]);
        self.good(&["set-vfs", "41:00.0", "2"]);
        let vf = self.profile_of("0000:41:00.0");
        self.good(&["create", &vf, "--uuid", VF, "--name", "render", "--owner-uid", "1000"]);
        let whole = self.profile_of("0000:81:00.0");
        self.good(&["create", &whole, "--uuid", WHOLE, "--name", "whole"]);
    }

    /// How many vGPUs are claimed in the service's folder.
    fn claims(&self) -> usize {
        fs::read_dir(self.dir.path().join("run/claims")).unwrap().count()
    }

    fn profile_of(&self, gpu: &str) -> String {
        let profiles = self.json(&["profiles", gpu]);
        profiles[0]["short_name"].as_str().unwrap().to_owned()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.service.kill().unwrap();
        self.service.wait().unwrap();
    }
}

#[test]
fn an_untouched_host() {
    let host = Host::start();
    assert_snapshot!("gpus", host.good(&["gpus"]));
    assert_snapshot!("profiles", host.good(&["profiles"]));
    assert_snapshot!("profiles_of_one", host.good(&["profiles", "mtty"]));
    assert_snapshot!("show_gpu", host.good(&["show", "81:00.0"]));
    assert_eq!(host.json(&["list"]), Value::Array(Vec::new()));
    assert_eq!(host.json(&["profiles", "mtty"])[0]["framebuffer"], Value::Null, "nobody says");
    let gpus = host.json(&["gpus"]);
    let ids: Vec<_> =
        gpus.as_array().unwrap().iter().map(|gpu| gpu["id"].as_str().unwrap()).collect();
    assert_eq!(
        ids,
        ["0000:02:00.0", "0000:3b:00.0", "0000:41:00.0", "0000:81:00.0", "mbochs", "mdpy", "mtty"]
    );
}

#[test]
fn three_frameworks_and_back() {
    let host = Host::start();
    let before = host.json(&["profiles"]);
    host.create_three();
    assert_snapshot!("list", host.good(&["list"]));
    assert_snapshot!("list_json", host.good(&["list", "--json"]));
    assert_snapshot!("show_vgpu", host.good(&["show", "whole"]));
    assert_snapshot!("show_vgpu_json", host.good(&["show", VF, "--json"]));
    assert_snapshot!("show_gpu_with_functions", host.good(&["show", "41:00.0"]));
    assert_snapshot!("probe", host.good(&["probe", "render"]));
    assert_eq!(host.json(&["list", "--owner-uid", "1000"]).as_array().unwrap().len(), 1);
    assert_eq!(host.json(&["list", "--gpu", "3b:00.0"])[0]["uuid"], MDEV);
    assert_eq!(host.json(&["list", "--foreign"]), Value::Array(Vec::new()));

    for vgpu in ["desktop", VF, "whole"] {
        assert_eq!(host.good(&["remove", vgpu]), "");
    }
    host.good(&["set-vfs", "41:00.0", "0"]);
    assert_eq!(host.json(&["list"]), Value::Array(Vec::new()));
    assert_eq!(host.json(&["profiles"]), before, "all that was on offer is on offer again");
    assert_eq!(host.claims(), 0, "claims are left");
}

#[test]
fn create_again_is_no_error() {
    let host = Host::start();
    let first = host.json(&["create", "mtty-1", "--uuid", MDEV]);
    assert_eq!((&first["created"], &first["uuid"]), (&Value::Bool(true), &Value::from(MDEV)));
    assert_eq!((&first["gpu"], &first["profile"]), (&Value::from("mtty"), &Value::from("mtty-1")));
    let second = host.json(&["create", "GRID T4-2Q"]);
    assert_eq!(
        (&second["profile"], &second["profile_id"]),
        (&"t4-2q".into(), &"nvidia-231".into())
    );
    let again = host.json(&["create", "MTTY-1", "--uuid", MDEV]);
    assert_eq!(again["created"], Value::Bool(false));
}

#[test]
fn failures_have_words_and_exit_codes() {
    let host = Host::start();
    host.create_three();
    for (name, arguments) in [
        ("no_such_vgpu", vec!["remove", "nobody"]),
        ("no_such_gpu", vec!["set-vfs", "99:00.0", "1"]),
        ("no_such_profile", vec!["create", "t4-3q"]),
        ("neither_vgpu_nor_gpu", vec!["show", "nobody"]),
        ("no_vfs", vec!["set-vfs", "mtty", "1"]),
        ("vfs_in_use", vec!["set-vfs", "41:00.0", "0"]),
        ("too_many_vfs", vec!["set-vfs", "41:00.0", "64"]),
        ("name_taken", vec!["create", "mtty-1", "--name", "desktop", "--uuid", OTHER]),
        ("uuid_of_another_profile", vec!["create", "mtty-1", "--uuid", MDEV]),
        ("malformed_uuid", vec!["create", "mtty-1", "--uuid", "83b8f4f2"]),
        ("malformed_name", vec!["create", "mtty-1", "--name", "a\u{1b}[2J"]),
        ("not_of_that_gpu", vec!["create", "t4-16q", "--gpu", "81:00.0"]),
        ("no_capacity", vec!["create", "t4-16q"]),
    ] {
        assert_snapshot!(name, host.bad(&arguments));
    }
    assert_eq!(host.json(&["list"]).as_array().unwrap().len(), 3, "a failure changed something");
}

#[test]
fn plan_shows_the_choice_the_steps_and_what_remains() {
    let host = Host::start();
    let out = |arguments: &[&str]| {
        let output = host.run(arguments);
        let (code, out, err) = said(&output);
        assert_eq!(code, 0, "{err}");
        out.to_owned()
    };
    assert_snapshot!("plan", out(&["plan", "t4-4qx2", "mtty-2"]));
    assert_eq!(out(&["list"]), "", "it made something");
    let json: Value = serde_json::from_str(&out(&["--json", "plan", "t4-8q"])).unwrap();
    assert_eq!(json["choices"][0]["gpu"], "0000:3b:00.0");
    assert_eq!(json["choices"][0]["function"], Value::Null);
    let left = json["remaining"].as_array().unwrap();
    let of = |profile: &str| left.iter().find(|row| row["profile"] == profile).unwrap().clone();
    assert_eq!(
        (of("t4-8c")["now"].as_u64(), of("t4-8c")["afterwards"].as_u64()),
        (Some(2), Some(1))
    );
    assert_eq!(of("t4-4q")["afterwards"], 0);
    for (arguments, code, text) in [
        (&["plan", "t4-8qx3"][..], 4, "2 of 3 t4-8q would fit together"),
        (&["plan", "t4-8q", "--pool", "render"], 2, "there is no pool render, nor any other"),
        (&["plan", "t4-8q", "--placement", "tight"], 2, "write pack or spread"),
        (&["plan", "t4-8q", "--numa-node", "7"], 4, "not on NUMA node 7"),
        (&["plan", "t4-8qx0"], 2, "asks for 0 vGPUs"),
        (&["plan", "t4-7q"], 3, "no profile is called so"),
    ] {
        let refused = host.run(arguments);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(text), "{arguments:?}: {said}");
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {said}");
    }
}

#[test]
fn a_gpu_of_another_maker_sets_its_vfs_alone() {
    let host = Host::start();
    host.good(&["configure", "41:00.0", "--vfs", "all"]);
    assert_eq!(host.json(&["show", "41:00.0"])["vf_count"], 31);
    host.good(&["configure", "41:00.0", "--vfs", "none"]);
    assert_eq!(host.json(&["show", "41:00.0"])["vf_count"], 0);
    host.good(&["create", "mtty-1", "--uuid", MDEV]);
    assert_eq!(host.json(&["show", MDEV])["nvidia"], Value::Null);
    for (name, arguments) in [
        ("no_modes", vec!["configure", "41:00.0", "--mig", "on"]),
        ("configure_no_vfs", vec!["configure", "mtty", "--vfs", "all"]),
        ("no_parameters", vec!["set-params", MDEV, "enable_uvm=1"]),
    ] {
        assert_snapshot!(name, host.bad(&arguments));
    }
}

#[test]
fn explain_says_why() {
    let host = Host::start();
    let vf = host.profile_of("0000:41:00.0");
    assert_snapshot!("explain", host.good(&["explain", "41:00.0", &vf]));
}

#[test]
fn monitor_sees_a_vgpu_come_and_go() {
    let host = Host::start();
    let (mut child, lines) = monitor::start(&host.bus.address, &["monitor", "--json"]);
    host.good(&["create", "mtty-1", "--uuid", MDEV]);
    host.good(&["remove", MDEV]);
    let path = format!("/org/vgpu/Host1/vgpus/{}", MDEV.replace('-', "_"));
    let events = lines.map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let mut of_it = events.filter(|event| event["path"] == path.as_str());
    assert_eq!(of_it.next().unwrap()["event"], "added");
    let last = of_it.find(|event| event["event"] != "changed").unwrap();
    assert_eq!(last["event"], "removed");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_stopped_service_leaves_all_as_it_is() {
    let mut host = Host::start();
    host.good(&["create", "mtty-1", "--uuid", MDEV]);
    let (child, mut lines) = monitor::start(&host.bus.address, &["monitor"]);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(host.service.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(host.service.wait().unwrap().success());
    assert!(lines.any(|line| line == "service  stopped"), "nothing else is told");
    assert!(host.bad(&["list"]).starts_with("exit 7\n"));
    assert_eq!(host.claims(), 1, "the claim outlives the service");
    drop(host);
    let _ = child.wait_with_output().unwrap();
}
