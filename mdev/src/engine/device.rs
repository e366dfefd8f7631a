//! Opening, probing and finding the holders of a vGPU.

use std::time::Instant;

use nix::errno::Errno;
use uuid::Uuid;

use crate::{
    error::{Error, ErrorKind, Result},
    framework::{mdev, sriov},
    model::{Framework, Holder, InUse, NodeKind, Vgpu, VgpuState},
    request::OpenedDevice,
    scan::{Reader, text},
    sys::{
        Deadline, HolderQuery, LaneKey, NodePath, Observed, Op, ProbeReport, ProbeTarget, Read,
        SysPath,
    },
};

use super::{Engine, failure, lock};

impl Engine {
    /// Opens a vGPU through VFIO, looks, resets if it can, and closes.
    ///
    /// # Errors
    /// When it is held or VFIO refuses.
    pub fn probe(&self, uuid: Uuid) -> Result<ProbeReport> {
        let tried = format!("probing vGPU {uuid}");
        let vgpu = self.ready(uuid, &tried)?;
        if let Some(holder) = self.known_holder(&vgpu, &tried)? {
            return Err(Error::new(
                ErrorKind::Busy,
                "held",
                tried,
                "a process uses it, and a probe resets it",
            )
            .held_by(holder)
            .remedy("stop the guest that uses it"));
        }
        let path_of =
            |kind| vgpu.nodes.iter().find(|node| node.kind == kind).map(|node| &*node.path);
        let path = |kind| path_of(kind).map(|path| node(path, &tried)).transpose();
        let target = ProbeTarget {
            device: device(&vgpu, &tried)?,
            group: path(NodeKind::Group)?,
            cdev: path(NodeKind::Cdev)?,
        };
        match self.executor.run(&lane(&vgpu), Op::Probe(target), Deadline::after(self.timing.probe))
        {
            Ok(Observed::Probed(report)) => Ok(report),
            Ok(_) => Err(confused(tried)),
            Err(error) => Err(failure::of_op(tried, error)),
        }
    }

    /// Opens a vGPU for a VMM: its cdev with `/dev/iommu`, or, only where
    /// `allow_group`, its group.
    ///
    /// # Errors
    /// NotSupported where there are only groups and they were not asked for.
    pub fn open_device(&self, uuid: Uuid, allow_group: bool) -> Result<OpenedDevice> {
        let tried = format!("opening vGPU {uuid}");
        let vgpu = self.ready(uuid, &tried)?;
        self.refuse_shared_group(&vgpu, &tried)?;
        let find = |kind| vgpu.nodes.iter().find(|node| node.kind == kind);
        let (names, nodes, path): (&[&'static str], _, _) = match (
            find(NodeKind::Cdev),
            find(NodeKind::Group),
        ) {
            (Some(cdev), _) if !allow_group => (
                &["device", "iommu"],
                vec![node(&cdev.path, &tried)?, node("iommu", &tried)?],
                &cdev.path,
            ),
            (_, Some(group)) if allow_group => {
                (&["group"], vec![node(&group.path, &tried)?], &group.path)
            }
            (_, group) => {
                let node =
                    group.map_or_else(|| "its group node".into(), |g| format!("/dev/{}", g.path));
                return Err(Error::new(
                    ErrorKind::NotSupported,
                    "groups-only",
                    tried,
                    "this kernel has VFIO groups only, and VMMs such as QEMU take no group by descriptor",
                )
                .remedy(format!(
                    "open {node} by path: it belongs to the vGPU's owner; or ask for it with the option group"
                )));
            }
        };
        match self.executor.run(
            &lane(&vgpu),
            Op::OpenVfio { nodes },
            Deadline::after(self.timing.read),
        ) {
            // A removal that began since has looked for holders before this.
            Ok(Observed::Opened(_)) if !self.claims.is_active(uuid) => {
                Err(Error::new(ErrorKind::Busy, "being-removed", tried, "it is being removed"))
            }
            Ok(Observed::Opened(opened)) => Ok(OpenedDevice {
                fds: names.iter().copied().zip(opened.fds).collect(),
                node: path.clone(),
            }),
            Ok(_) => Err(confused(tried)),
            Err(error) => Err(failure::of_op(tried, error)),
        }
    }

    /// The processes that hold a vGPU.
    ///
    /// # Errors
    /// When there is no such vGPU or `/proc` cannot be read.
    pub fn holders(&self, uuid: Uuid) -> Result<Vec<Holder>> {
        let tried = format!("finding the holders of vGPU {uuid}");
        match self.snapshot().vgpu(uuid) {
            Some(vgpu) => self.find_holders(vgpu, &tried),
            None => Err(failure::no_such_vgpu(tried)),
        }
    }

    /// The vGPUs that a process holds.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn held_by(&self, pid: u32) -> Result<Vec<Uuid>> {
        let tried = format!("finding what process {pid} holds");
        let snapshot = self.snapshot();
        let mut nodes = Vec::new();
        for vgpu in snapshot.vgpus() {
            for path in vgpu.nodes.iter().map(|node| &node.path) {
                nodes.push(node(path, &tried)?);
            }
        }
        let op = Op::Holders(HolderQuery { nodes, pid: Some(pid) });
        let held = match self.executor.run(&LaneKey::Host, op, Deadline::after(self.timing.read)) {
            Ok(Observed::Holders(holders)) => holders,
            Ok(_) => return Err(confused(tried)),
            Err(error) => return Err(failure::of_op(tried, error)),
        };
        let holds = |vgpu: &Vgpu| {
            vgpu.nodes.iter().any(|node| held.iter().any(|holder| holder.device == node.path))
        };
        Ok(snapshot.vgpus().filter(|vgpu| holds(vgpu)).map(|vgpu| vgpu.uuid).collect())
    }

    /// A holder of a vGPU, as far as descriptors can be seen: where a process
    /// is closed to us, the kernel's own refusal has to do.
    pub(super) fn known_holder(&self, vgpu: &Vgpu, tried: &str) -> Result<Option<Holder>> {
        match self.find_holders(vgpu, tried) {
            Ok(holders) => Ok(holders.into_iter().next()),
            Err(error) if matches!(error.errno(), Some(Errno::EACCES | Errno::EPERM)) => {
                tracing::warn!("the holders of vGPU {} are not all seen: {error}", vgpu.uuid);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn find_holders(&self, vgpu: &Vgpu, tried: &str) -> Result<Vec<Holder>> {
        let nodes = vgpu.nodes.iter().map(|n| node(&n.path, tried)).collect::<Result<Vec<_>>>()?;
        if nodes.is_empty() {
            return Ok(Vec::new());
        }
        let op = Op::Holders(HolderQuery { nodes, pid: None });
        match self.executor.run(&lane(vgpu), op, Deadline::after(self.timing.read)) {
            Ok(Observed::Holders(holders)) => {
                self.note_use(vgpu.uuid, if holders.is_empty() { InUse::No } else { InUse::Yes });
                Ok(holders)
            }
            Ok(_) => Err(confused(tried)),
            Err(error) => Err(failure::of_op(tried, error)),
        }
    }

    pub(super) fn note_use(&self, uuid: Uuid, seen: InUse) {
        let snapshot = self.snapshot();
        let mut looks = lock(&self.looks);
        looks.retain(|uuid, _| snapshot.vgpu(*uuid).is_some());
        looks.insert(uuid, (seen, Instant::now()));
    }

    /// A vGPU that is ours and usable.
    fn ready(&self, uuid: Uuid, tried: &str) -> Result<std::sync::Arc<Vgpu>> {
        let snapshot = self.snapshot();
        let Some(vgpu) = snapshot.vgpu(uuid) else {
            return Err(failure::no_such_vgpu(tried));
        };
        if !vgpu.managed {
            return Err(failure::foreign(tried, vgpu));
        }
        if vgpu.state != VgpuState::Active || vgpu.nodes.is_empty() {
            return Err(Error::new(
                ErrorKind::BadState,
                "not-active",
                tried,
                format!("it is {} and has {} VFIO nodes", vgpu.state.as_str(), vgpu.nodes.len()),
            )
            .remedy("see vgpuctl show and vgpuctl doctor"));
        }
        Ok(vgpu.clone())
    }

    /// Whoever has one device of a group can reach all of it: it is handed out
    /// only when every other member is a bridge or this vGPU's own.
    fn refuse_shared_group(&self, vgpu: &Vgpu, tried: &str) -> Result<()> {
        let lane = lane(vgpu);
        let reader = Reader::new(&*self.executor, &lane, Deadline::after(self.timing.read));
        let mut r = reader
            .read(
                &device(vgpu, tried)?,
                vec![Read::names("iommu_group/devices"), Read::text("iommu_group/name")],
            )
            .map_err(|error| failure::of_scan(tried, error))?;
        let members = r.names();
        // VFIO names the group of every mdev so (drivers/vfio/group.c,
        // vfio_noiommu_group_alloc); their drivers reach pinned pages only.
        let is_mdev = vgpu.framework == Framework::Mdev;
        if !is_mdev && r.text().as_deref() == Some("vfio-noiommu") {
            return Err(Error::new(
                ErrorKind::NotSupported,
                "no-iommu",
                tried,
                "its group is in no-IOMMU mode: whoever has it can write all memory",
            )
            .remedy("turn the IOMMU on"));
        }
        let strangers: Vec<String> = members
            .into_iter()
            .filter(|name| *name != vgpu.parent && *name != vgpu.uuid.to_string())
            .filter(|name| {
                text::pci_name(name).is_none_or(|address| !vgpu.addresses.contains(&address))
            })
            .collect();
        for name in strangers {
            let class = SysPath::new(format!("bus/pci/devices/{name}"))
                .map_err(Into::into)
                .and_then(|device| reader.read(&device, vec![Read::text("class")]))
                .map_err(|error| failure::of_scan(tried, error))?
                .text();
            let is_bridge =
                class.as_deref().and_then(text::hex).is_some_and(|class| class >> 16 == 0x06);
            if !is_bridge {
                return Err(Error::new(
                    ErrorKind::NotSupported,
                    "group-not-viable",
                    tried,
                    format!("its IOMMU group also holds {name}, which would be handed out with it"),
                )
                .remedy("use a slot with ACS"));
            }
        }
        Ok(())
    }
}

/// The lane that a hang on the device would take.
pub(super) fn lane(vgpu: &Vgpu) -> LaneKey {
    match (vgpu.framework, vgpu.addresses.first()) {
        (Framework::Mdev, _) | (_, None) => LaneKey::Mdev(vgpu.uuid),
        (_, Some(address)) => LaneKey::Function(*address),
    }
}

/// The device's directory.
fn device(vgpu: &Vgpu, tried: &str) -> Result<SysPath> {
    match vgpu.addresses.first() {
        Some(address) => sriov::device(*address),
        None => mdev::device(&vgpu.parent, vgpu.uuid),
    }
    .map_err(|error| failure::of_scan(tried, error.into()))
}

/// A node below `/dev`.
pub(super) fn node(path: &str, tried: &str) -> Result<NodePath> {
    NodePath::new(path).map_err(|error| failure::of_scan(tried, error.into()))
}

fn confused(tried: impl Into<String>) -> Error {
    Error::new(
        ErrorKind::KernelRefused,
        "confused",
        tried,
        "the executor gave an answer of the wrong kind, which is a defect",
    )
}
