//! `org.vgpu.Host1.Vgpu`.

use std::{collections::HashMap, sync::Arc};

use vgpu_host_api::{
    error,
    names::{self, option},
    path,
    wire::{HolderEntry, RegionFacts},
};
use vgpu_mdev::{
    model::{InUse, NodeKind, Vgpu},
    request::RemoveOptions,
    sys::ProbeReport,
};
use vgpu_polkit::{Action, Details, Rule};
use zbus::{Message, ObjectPath, OwnedFd, OwnedVariant, Variant};

use super::{
    call::Call,
    error::Fault,
    gpu::signed,
    nvidia,
    options::Options,
    properties::{Emits, Interface, Property, Shown},
    service::{Asker, Service},
    work::{self, Work},
};

/// A vGPU with what is known of its use.
pub(crate) struct VgpuObject {
    pub(crate) vgpu: Arc<Vgpu>,
    pub(crate) in_use: InUse,
}

impl VgpuObject {
    /// Its object's path.
    pub(crate) fn path(&self) -> ObjectPath<'static> {
        path::vgpu(&self.vgpu.uuid.to_string())
    }
}

impl Shown for VgpuObject {
    const INTERFACES: &'static [Interface<Self>] =
        &[Interface::always(names::VGPU, PROPERTIES), nvidia::VGPU];
}

const PROPERTIES: &[Property<VgpuObject>] = &[
    Property {
        name: "Uuid",
        signature: "s",
        emits: Emits::Never,
        get: |o| o.vgpu.uuid.to_string().into(),
    },
    Property {
        name: "Name",
        signature: "s",
        emits: Emits::Change,
        get: |o| o.vgpu.name.as_ref().map_or("", |name| name.as_str()).into(),
    },
    Property {
        name: "Gpu",
        signature: "o",
        emits: Emits::Change,
        get: |o| path::gpu(&o.vgpu.gpu.to_string()).into(),
    },
    Property {
        name: "Profile",
        signature: "s",
        emits: Emits::Change,
        get: |o| o.vgpu.profile.as_ref().map_or("", |profile| profile.as_str()).into(),
    },
    Property {
        name: "Framework",
        signature: "s",
        emits: Emits::Change,
        get: |o| o.vgpu.framework.as_str().into(),
    },
    Property {
        name: "State",
        signature: "s",
        emits: Emits::Change,
        get: |o| o.vgpu.state.as_str().into(),
    },
    Property {
        name: "Address",
        signature: "as",
        emits: Emits::Change,
        get: |o| o.vgpu.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().into(),
    },
    Property {
        name: "IommuGroup",
        signature: "i",
        emits: Emits::Change,
        get: |o| signed(o.vgpu.iommu_group).into(),
    },
    Property { name: "Nodes", signature: "a(ss)", emits: Emits::Change, get: nodes },
    Property {
        name: "OwnerUid",
        signature: "u",
        emits: Emits::Change,
        get: |o| o.vgpu.owner_uid.into(),
    },
    Property {
        name: "Managed",
        signature: "b",
        emits: Emits::Change,
        get: |o| o.vgpu.managed.into(),
    },
    Property {
        name: "InUse",
        signature: "s",
        emits: Emits::Nothing,
        get: |o| o.in_use.as_str().into(),
    },
];

fn nodes(object: &VgpuObject) -> Variant<'_> {
    let nodes = object.vgpu.nodes.iter();
    nodes.map(|node| (kind(node.kind), format!("/dev/{}", node.path))).collect::<Vec<_>>().into()
}

fn kind(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Group => "group",
        NodeKind::Cdev => "cdev",
    }
}

/// What a polkit rule can look at.
fn details(vgpu: &Vgpu) -> Details {
    let mut details =
        Details::from([("gpu", vgpu.gpu.to_string()), ("uuid", vgpu.uuid.to_string())]);
    if let Some(profile) = &vgpu.profile {
        details.insert("profile", profile.to_string());
    }
    details
}

/// While the caller was asked for a password, the vGPU may have gone and another
/// user's have come under its UUID.
fn still_the_same(service: &Service, vgpu: &Vgpu) -> Result<(), Fault> {
    let now = service.engine.snapshot();
    match now.vgpu(vgpu.uuid) {
        Some(now) if (now.owner_uid, now.inode) == (vgpu.owner_uid, vgpu.inode) => Ok(()),
        _ => Err(Fault::new(
            error::BUSY,
            format!("vGPU {} has changed meanwhile; look at it again", vgpu.uuid),
        )),
    }
}

/// Answers `Remove`.
pub(crate) async fn remove(
    service: &Service,
    call: &Call,
    vgpu: &Vgpu,
    rule: Rule,
) -> Result<Option<Message>, Fault> {
    let (options,): (HashMap<String, OwnedVariant>,) = call.args()?;
    let mut options = Options::new("Remove", options, &[option::FORCE])?;
    let force = options.flag(option::FORCE)?.unwrap_or(false);
    let asker = service.asker(call).await?;
    let (owner, details) = (Some(vgpu.owner_uid), details(vgpu));
    asker.may(rule, owner, &details).await?;
    if force {
        asker.may(Rule::OwnerNeeds(Action::Force), owner, &details).await?;
    }
    still_the_same(service, vgpu)?;
    let work = Work::new(asker.uid, format!("removing {} from {}", vgpu.uuid, vgpu.gpu));
    let (engine, uuid, control) = (service.engine.clone(), vgpu.uuid, work.control());
    work.run(
        service,
        call,
        move || engine.remove(uuid, RemoveOptions { force }, &control),
        |_, job| call.reply(&(job,)),
    )
    .await
}

/// Who asks, when they may: looked at again afterwards, since a password dialog
/// takes time. Dropping it frees their place among the calls under way.
pub(crate) async fn who_may<'a>(
    service: &'a Service,
    call: &'a Call,
    vgpu: &Vgpu,
    rule: Rule,
) -> Result<Asker<'a>, Fault> {
    let asker = service.asker(call).await?;
    asker.may(rule, Some(vgpu.owner_uid), &details(vgpu)).await?;
    still_the_same(service, vgpu)?;
    Ok(asker)
}

/// Answers `Probe`.
pub(crate) async fn probe(
    service: &Service,
    call: &Call,
    vgpu: &Vgpu,
    rule: Rule,
) -> Result<Message, Fault> {
    let _asker = who_may(service, call, vgpu, rule).await?;
    let (engine, uuid) = (service.engine.clone(), vgpu.uuid);
    let report = work::blocking(move || engine.probe(uuid)).await?;
    call.reply(&report_of(&report))
}

fn report_of(report: &ProbeReport) -> HashMap<&'static str, Variant<'static>> {
    let reset = match report.reset {
        Some(true) => "ok",
        Some(false) => "failed",
        None => "none",
    };
    let regions = report.regions.iter().map(|region| -> RegionFacts {
        (region.index, region.size, u64::from(region.readable == Some(true)), region.flags)
    });
    let ids = report
        .pci_ids
        .map_or_else(String::new, |(vendor, device)| format!("{vendor:04x}:{device:04x}"));
    HashMap::from([
        ("Interface", report.interface.clone().into()),
        ("CanReset", report.can_reset.into()),
        ("Reset", reset.into()),
        ("DmaMap", report.dma_map.into()),
        ("Regions", regions.collect::<Vec<_>>().into()),
        ("Interrupts", report.interrupts.clone().into()),
        ("Migration", report.migration.clone().into()),
        ("PciIds", ids.into()),
    ])
}

/// Answers `OpenDevice`.
pub(crate) async fn open_device(
    service: &Service,
    call: &Call,
    vgpu: &Vgpu,
    rule: Rule,
) -> Result<Message, Fault> {
    let (options,): (HashMap<String, OwnedVariant>,) = call.args()?;
    let mut options = Options::new("OpenDevice", options, &[option::GROUP])?;
    let group = options.flag(option::GROUP)?.unwrap_or(false);
    let asker = who_may(service, call, vgpu, rule).await?;
    let (engine, uuid) = (service.engine.clone(), vgpu.uuid);
    let opened = work::blocking(move || engine.open_device(uuid, group)).await?;
    tracing::info!(uid = asker.uid, %uuid, "opened {}", opened.node);
    let address = match vgpu.addresses.first() {
        Some(address) => address.to_string(),
        None => uuid.to_string(),
    };
    let info: HashMap<&str, Variant<'_>> = HashMap::from([
        ("Node", format!("/dev/{}", opened.node).into()),
        ("Address", address.into()),
        ("MemlockNote", MEMLOCK_NOTE.into()),
    ]);
    let fds = opened.fds.into_iter().map(|(name, fd)| (name, OwnedFd::from(fd)));
    call.reply(&(fds.collect::<HashMap<_, _>>(), info))
}

const MEMLOCK_NOTE: &str = "VFIO pins the guest's whole memory: the process that maps it needs \
    RLIMIT_MEMLOCK of at least the guest's memory for each device it opens";

/// Answers `GetHolders`.
pub(crate) async fn get_holders(
    service: &Service,
    call: &Call,
    vgpu: &Vgpu,
    rule: Rule,
) -> Result<Message, Fault> {
    let _asker = who_may(service, call, vgpu, rule).await?;
    let (engine, uuid) = (service.engine.clone(), vgpu.uuid);
    let holders = work::blocking(move || engine.holders(uuid)).await?;
    let entries = holders.into_iter().map(|holder| HolderEntry {
        pid: holder.pid,
        command: holder.command,
        node: holder.node,
    });
    call.reply(&(entries.collect::<Vec<_>>(),))
}
