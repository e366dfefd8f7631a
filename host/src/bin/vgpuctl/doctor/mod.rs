//! `doctor`: can this host run vGPUs, and what to do where it cannot.

mod host;

use serde::Serialize;

use crate::{
    failure::{Code, Failure, Result},
    output::{Output, plain},
    service::Service,
};

use host::Host;

/// One finding.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Check {
    check: &'static str,
    status: Status,
    finding: String,
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warn,
    Fail,
}

/// `vgpuctl doctor`
pub(crate) async fn run(output: &Output, bus: Option<&str>) -> Result<()> {
    let mut checks = of_host(&Host::real());
    checks.extend(of_service(bus).await);
    output.print(&checks, |checks| checks.iter().map(Check::text).collect())?;
    match checks.iter().any(|check| check.status == Status::Fail) {
        true => Err(Failure::Silent(Code::Other)),
        false => Ok(()),
    }
}

impl Check {
    fn ok(check: &'static str, finding: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, finding: finding.into(), remedy: None }
    }

    fn warn(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, status: Status::Warn, finding: finding.into(), remedy: Some(remedy.into()) }
    }

    fn fail(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, status: Status::Fail, finding: finding.into(), remedy: Some(remedy.into()) }
    }

    fn text(&self) -> String {
        let status = match self.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "fail",
        };
        let mut text = format!("{status:<5} {:<13} {}\n", self.check, plain(&self.finding));
        if let Some(remedy) = &self.remedy {
            text.push_str(&format!("{:20}-> {}\n", "", plain(remedy)));
        }
        text
    }
}

/// What the host itself shows.
fn of_host(host: &Host) -> Vec<Check> {
    vec![iommu(host), groups(host), vfio(host), vfio_pci(host), mdev(host), memlock(host)]
}

fn iommu(host: &Host) -> Check {
    match host.entries("sys/class/iommu") {
        0 => Check::fail(
            "iommu",
            "no IOMMU is in use: VFIO cannot protect the host's memory",
            "turn VT-d or AMD-Vi on in the firmware; on Intel also boot with intel_iommu=on",
        ),
        n => Check::ok("iommu", format!("in use, {}", counted(n, "unit"))),
    }
}

fn groups(host: &Host) -> Check {
    match host.entries("sys/kernel/iommu_groups") {
        0 => Check::fail(
            "iommu-groups",
            "no device is in an IOMMU group",
            "boot without iommu=off, and look for DMAR or AMD-Vi in dmesg",
        ),
        n => Check::ok("iommu-groups", counted(n, "group")),
    }
}

/// The classes are there from the moment VFIO's core is, as a module or built
/// in (`drivers/vfio/group.c`, `drivers/vfio/device_cdev.c`).
fn vfio(host: &Host) -> Check {
    match (host.exists("sys/class/vfio"), host.exists("sys/class/vfio-dev")) {
        (false, false) => Check::fail(
            "vfio",
            "VFIO is not loaded",
            "modprobe vfio-pci, and list it in /etc/modules-load.d to keep it",
        ),
        (_, true) if host.exists("dev/iommu") => {
            Check::ok("vfio", "loaded, with device nodes of their own (iommufd)")
        }
        _ => Check::ok("vfio", "loaded, with group nodes"),
    }
}

fn vfio_pci(host: &Host) -> Check {
    if host.exists("sys/bus/pci/drivers/vfio-pci") {
        return Check::ok("vfio-pci", "loaded");
    }
    Check::fail(
        "vfio-pci",
        "the driver is not loaded: neither a virtual function nor a whole GPU can be passed on",
        "modprobe vfio-pci, and list it in /etc/modules-load.d to keep it",
    )
}

fn mdev(host: &Host) -> Check {
    match host.entries("sys/class/mdev_bus") {
        0 => Check::ok("mdev", "no driver offers mediated devices here; only some GPUs need one"),
        n => Check::ok("mdev", counted(n, "parent")),
    }
}

/// VFIO counts each page that it pins for a guest against this limit, unless
/// the caller has CAP_IPC_LOCK (`drivers/vfio/vfio_iommu_type1.c`,
/// `vfio_lock_acct`).
fn memlock(host: &Host) -> Check {
    match host.memlock() {
        _ if host.may_lock_all() => {
            Check::ok("memlock", "the caller may lock any amount (CAP_IPC_LOCK)")
        }
        None => Check::ok("memlock", "unlimited"),
        Some(bytes) => Check::warn(
            "memlock",
            format!("the caller may lock {}: a VMM needs the guest's whole memory", locked(bytes)),
            "raise it for whoever starts VMMs: LimitMEMLOCK= in its unit, or limits.conf",
        ),
    }
}

/// What the service shows.
async fn of_service(bus: Option<&str>) -> Vec<Check> {
    let facts = async {
        let service = Service::connect(bus).await?;
        let manager = service.manager().await?;
        let version = service.said(manager.version().await)?;
        let simulated = service.said(manager.simulated().await)?;
        let mut gpus = Vec::new();
        for gpu in service.said(manager.list_gpus().await)? {
            let id = gpu.id.into_owned();
            let problems = service.said(service.gpu(&id).await?.problems().await)?;
            gpus.push((id, problems));
        }
        Ok((version, simulated, gpus))
    };
    let facts: Result<_> = facts.await;
    match facts {
        Ok((version, simulated, gpus)) => {
            let kernel = if simulated { ", on a simulated kernel" } else { "" };
            let mut checks =
                vec![Check::ok("service", format!("vgpu-hostd {version} answers{kernel}"))];
            checks.push(match gpus.len() {
                0 => Check::warn(
                    "gpus",
                    "no GPU that can be divided",
                    "install its vGPU driver, or take other devices in with [discovery] add in host.toml",
                ),
                n => Check::ok("gpus", counted(n, "GPU")),
            });
            let problems = gpus.into_iter().flat_map(|(id, problems)| {
                problems.into_iter().map(move |(code, text)| {
                    let (finding, remedy) = match text.split_once("; ") {
                        Some((finding, remedy)) => (finding, remedy.to_owned()),
                        None => (text.as_str(), format!("vgpuctl show {id}")),
                    };
                    Check::warn("gpu", format!("{id}: {finding} ({code})"), remedy)
                })
            });
            checks.extend(problems);
            checks
        }
        Err(Failure::Said { message, .. }) => {
            let (finding, remedy) = match message.rsplit_once("; ") {
                Some((finding, remedy)) => (finding.to_owned(), remedy.to_owned()),
                None => (message, "see journalctl -u vgpu-hostd".to_owned()),
            };
            vec![Check::fail("service", finding, remedy)]
        }
        Err(_) => Vec::new(),
    }
}

fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn locked(bytes: u64) -> String {
    match bytes {
        0 => "nothing".to_owned(),
        bytes => crate::output::size(bytes),
    }
}

#[cfg(test)]
mod tests;
