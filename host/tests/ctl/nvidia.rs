//! vgpuctl on described hosts with NVIDIA's GPUs: making them ready, and their
//! vGPUs' parameters.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::{said, simulated::Host};

const CARD: &str = "41:00.0";
const UUID: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";

const TWO_INSTANCES: [&str; 8] =
    ["configure", CARD, "--mig", "on", "--vfs", "all", "--instances", "3g.20gb,3g.20gb"];

#[test]
fn an_a100_is_configured_as_its_dry_run_said() {
    let host = Host::described("a100");
    let dry = [&TWO_INSTANCES[..], &["--dry-run"]].concat();
    let steps = "\
1. run nvidia-smi -i 0000:41:00.0 -mig 1
2. run sriov-manage -e 0000:41:00.0
3. run nvidia-smi mig -i 0000:41:00.0 -cgi 3g.20gb,3g.20gb -C
";
    assert_eq!(host.good(&dry), steps);
    let gpu = host.json(&["show", CARD]);
    assert_eq!(gpu["mig"], json!({ "current": false, "pending": false, "instances": [] }));
    assert_eq!((&gpu["heterogeneous"], &gpu["vf_count"]), (&json!(false), &json!(0)));

    assert_eq!(host.good(&TWO_INSTANCES), "");
    let gpu = host.json(&["show", CARD]);
    let instances = json!([{ "id": 1, "shape": "3g.20gb" }, { "id": 2, "shape": "3g.20gb" }]);
    assert_eq!(gpu["mig"], json!({ "current": true, "pending": true, "instances": instances }));
    assert_eq!(gpu["vf_count"], json!(16));
    let shown = host.good(&["show", CARD]);
    let head: String = shown.lines().take_while(|line| !line.is_empty()).map(with_break).collect();
    assert_snapshot!("configured_a100", head);

    let again = host.run(&dry);
    assert_eq!(said(&again), (0, "", "it is so already; nothing would be done\n"));
    assert_eq!(host.json(&dry), json!({ "steps": [] }));
    assert_eq!(host.json(&TWO_INSTANCES), json!({ "done": true }));

    // What the reasons and remedies tell people to run.
    host.good(&["configure", CARD, "--instances", "none"]);
    let why = host.good(&["explain", CARD, "a100-3-20c"]);
    assert!(why.contains("run vgpuctl configure 0000:41:00.0 --instances"), "{why}");
    host.good(&["configure", CARD, "--mig", "off", "--heterogeneous", "on"]);
    assert!(host.good(&["show", CARD]).contains("\nHeterogeneous:  on\n"));
    assert_eq!(host.json(&["show", CARD])["heterogeneous"], json!(true));
    let why = host.good(&["explain", CARD, "a100-3-20c"]);
    assert!(why.contains("run vgpuctl configure 0000:41:00.0 --mig on"), "{why}");
    host.good(&["set-vfs", CARD, "0"]);
    let why = host.good(&["explain", CARD, "a100-4c"]);
    assert!(why.contains("vgpuctl set-vfs 0000:41:00.0 16"), "{why}");
    host.good(&["set-vfs", "0000:41:00.0", "16"]);
}

fn with_break(line: &str) -> String {
    format!("{line}\n")
}

#[test]
fn what_cannot_be_configured_says_why() {
    let host = Host::described("a100");
    host.good(&TWO_INSTANCES);
    host.good(&["create", "a100-3-20c", "--uuid", UUID]);
    for (name, arguments) in [
        ("configure_would_end", &["--mig", "off"][..]),
        ("configure_some_vfs", &["--vfs", "4"]),
        ("configure_both", &["--heterogeneous", "on"]),
        ("configure_shape", &["--instances", "3g20gb"]),
        ("configure_none_and_some", &["--instances", "none,3g.20gb"]),
    ] {
        let arguments = [&["configure", CARD], arguments].concat();
        let refused = host.bad(&arguments);
        assert_snapshot!(name, refused);
        let dry = host.bad(&[&arguments[..], &["--dry-run"]].concat());
        assert_eq!(dry.replace("planning: ", ""), refused, "the plan knows it as well");
    }
    assert_eq!(host.json(&["list"])[0]["uuid"], json!(UUID));
    let vgpu = host.bad(&["configure", "99:00.0", "--mig", "on"]);
    assert!(vgpu.starts_with("exit 3\n"), "{vgpu}");
    for arguments in [&[][..], &["--mig", "maybe"], &["--vfs", "-1"], &["--vfs", "some"]] {
        let output = host.run(&[&["configure", CARD], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_gpu_without_modes_shows_none() {
    let host = Host::described("l40s");
    let off = host.good(&["configure", CARD, "--vfs", "none", "--dry-run"]);
    assert_eq!(off, "1. run sriov-manage -d 0000:41:00.0\n");
    let gpu = host.json(&["show", CARD]);
    assert_eq!((&gpu["mig"], &gpu["heterogeneous"]), (&Value::Null, &Value::Null));
    let shown = host.good(&["show", CARD]);
    assert!(!shown.contains("MIG") && !shown.contains("Heterogeneous"), "{shown}");
    assert_snapshot!("configure_without_mig", host.bad(&["configure", CARD, "--mig", "on"]));
}

#[test]
fn parameters_are_set_and_cleared() {
    let host = Host::described("l40s");
    host.good(&["create", "l40s-24q", "--uuid", UUID, "--name", "desktop"]);
    let shown = || host.json(&["show", "desktop"])["nvidia"].clone();
    assert_eq!(shown(), json!({ "gpu_instance": null, "placement": 0, "params": null }));
    let set = ["set-params", "desktop", "frame_rate_limiter=0", "disable_vnc=1"];
    assert_eq!(host.good(&set), "");
    assert_eq!(shown()["params"], "frame_rate_limiter=0,disable_vnc=1");
    let text = host.good(&["show", "desktop"]);
    assert!(text.contains("\nParameters:   frame_rate_limiter=0,disable_vnc=1\n"), "{text}");
    assert!(text.contains("\nPlacement:    0\n") && !text.contains("GPU instance"), "{text}");
    let refused = host.bad(&["set-params", "desktop", "framerate=1"]);
    assert_snapshot!("unknown_parameter", refused);
    assert_eq!(host.json(&["set-params", "desktop"]), json!({ "done": true }));
    assert_eq!(shown()["params"], Value::Null);
}

#[test]
fn a_vgpu_in_a_gpu_instance_shows_it() {
    let host = Host::described("rtx-pro-6000");
    let card = "02:00.0";
    host.good(&["configure", card, "--mig", "on", "--vfs", "all", "--instances", "1g.24gb+gfx"]);
    host.good(&["create", "dc-1-24q", "--name", "desktop"]);
    let instance = host.json(&["show", card])["mig"]["instances"][0]["id"].clone();
    assert!(instance.is_u64(), "{instance}");
    assert_eq!(host.json(&["show", "desktop"])["nvidia"]["gpu_instance"], instance);
    let shown = host.good(&["show", "desktop"]);
    assert!(shown.contains(&format!("\nGPU instance:  {instance}\n")), "{shown}");
}
