//! A bus of our own and the service on it.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// The service, and the bus where it is a private one; both end with this.
pub(crate) struct Service {
    /// The bus's address.
    pub(crate) address: String,
    host: Child,
    bus: Child,
}

impl Service {
    /// Starts a bus that everybody may use and the service on it, and waits
    /// until it is ready. `work` is a directory that every user can enter.
    pub(crate) fn start(work: &Path, arguments: &[&str]) -> Result<Self> {
        let socket = work.join("bus");
        let config = work.join("bus.conf");
        let text = format!(
            "<busconfig><type>custom</type><listen>unix:path={}</listen>\
             <policy context='default'><allow user='*'/><allow send_destination='*'/>\
             <allow receive_sender='*'/><allow own='*'/></policy>\
             <limit name='max_replies_per_connection'>100000</limit></busconfig>",
            socket.display()
        );
        fs::write(&config, text)?;
        let mut bus = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--nopidfile", "--print-address=1"])
            .stdout(Stdio::piped())
            .spawn()
            .context("dbus-daemon")?;
        let mut address = String::new();
        BufReader::new(bus.stdout.take().context("its output")?).read_line(&mut address)?;
        let address = address.trim().to_owned();
        let run_dir = work.join("run");
        let host = Command::new(program("vgpu-hostd")?)
            .args(["--bus", &address, "--log", "error", "--config"])
            .arg(work.join("no-config"))
            .arg("--run-dir")
            .arg(&run_dir)
            .args(arguments)
            .spawn()
            .context("vgpu-hostd")?;
        let service = Self { address, host, bus };
        let waited = Command::new("gdbus")
            .args(["wait", "--address", &service.address, "--timeout", "120", "org.vgpu.Host1"])
            .status()
            .context("gdbus")?;
        ensure!(waited.success(), "the service did not start");
        Ok(service)
    }

    /// Its resident memory in MiB.
    pub(crate) fn resident(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.host.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 =
            line.and_then(|value| value.split_whitespace().next()).context("VmRSS")?.parse()?;
        Ok(kib / 1024.0)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for child in [&mut self.host, &mut self.bus] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One of our programs, built before.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let found = own.ancestors().skip(1).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("{name} is not built; run tests/bench/run.sh"))
}
