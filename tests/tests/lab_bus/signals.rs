//! Signals, as `busctl monitor` sees them.

use std::{
    io::{BufRead as _, BufReader, Lines},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::Value;
use vgpu_host_api::names;

use crate::service::Service;

/// A running `busctl monitor`.
struct Monitor {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Monitor {
    fn start() -> Self {
        let mut child = Command::new("busctl")
            .args(["--system", "--json=short", "monitor"])
            .arg("--match=type='signal',path_namespace='/org/vgpu/Host1'")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("Monitoring bus"), "{said}");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_vgpu_comes_and_goes_in_order() {
    let service = Service::start().await;
    let gpu = service.manager().await.get_gpu("mtty").await.unwrap();
    let mut monitor = Monitor::start();
    let vgpu = service.create("mtty", "mtty-2").await;
    service.remove(&vgpu).await;
    let mut about_vgpu = Vec::new();
    let mut available = Vec::new();
    while about_vgpu.last().is_none_or(|member| member != "InterfacesRemoved") {
        let signal = monitor.next();
        let text = |key: &str| signal[key].as_str().unwrap().to_owned();
        let data = &signal["payload"]["data"];
        match (text("member").as_str(), text("path")) {
            (member @ ("InterfacesAdded" | "InterfacesRemoved"), root) => {
                assert_eq!(root, names::ROOT);
                assert_eq!(data[0], vgpu.as_str());
                about_vgpu.push(member.to_owned());
            }
            (member @ "PropertiesChanged", path) if path == vgpu.as_str() => {
                assert_eq!(data[0], names::VGPU);
                about_vgpu.push(member.to_owned());
            }
            ("PropertiesChanged", path) => {
                assert_eq!((path, &data[0]), (gpu.to_string(), &Value::from(names::GPU)));
                let capacity = &data[1]["Capacity"]["data"];
                available.push(capacity["mtty-2"][0].as_u64().unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    // Where a change was seen half-way it is told as well; never out of order,
    // and none twice.
    assert_eq!(about_vgpu.first().unwrap(), "InterfacesAdded");
    let changes = about_vgpu.iter().filter(|member| *member == "PropertiesChanged").count();
    assert_eq!(changes, about_vgpu.len() - 2, "{about_vgpu:?}");
    if available.last() == Some(&11) {
        // The GPU's change can follow the vGPU's going.
        let signal = monitor.next();
        let capacity = &signal["payload"]["data"][1]["Capacity"]["data"];
        available.push(capacity["mtty-2"][0].as_u64().unwrap());
    }
    assert_eq!(available, [11, 12]);
    drop(monitor);
    service.stop().await;
}
