//! A bus of one's own.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

/// A dbus-daemon that ends with the test.
pub(crate) struct Bus {
    pub(crate) address: String,
    daemon: Child,
    _dir: TempDir,
}

const CONFIG: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>custom</type>
  <listen>unix:path=DIR/bus</listen>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
  </policy>
</busconfig>"#;

impl Bus {
    pub(crate) fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let config = dir.path().join("bus.conf");
        fs::write(&config, CONFIG.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        let mut daemon = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--nopidfile", "--print-address=1"])
            .stdout(Stdio::piped())
            // It complains of a limit that it may not raise.
            .stderr(Stdio::null())
            .spawn()
            .expect("dbus-daemon is needed for this test");
        let mut address = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut address).unwrap();
        assert!(address.starts_with("unix:"), "dbus-daemon said {address:?}");
        Self { address: address.trim_end().to_owned(), daemon, _dir: dir }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }
}
