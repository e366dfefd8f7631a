//! mdev parents, their types, and the mdevs on them.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use uuid::Uuid;

use crate::{
    model::TypeId,
    sys::{Read, ReadBatch, SysPath},
};

use super::{
    Reader, Readings, ScanError, path, text,
    uevent::{take_uevent_count, uevent_count},
};

/// A device that mdevs can be created on: a PF, a VF or a virtual device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentFacts {
    /// Its name in `/sys/class/mdev_bus`.
    pub name: String,
    /// What it offers, with how many it can make now.
    pub types: BTreeMap<TypeId, (Arc<TypeFacts>, u32)>,
}

/// What does not change about a type while its driver is loaded; shared by the
/// parents of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeFacts {
    /// `name`; some older drivers have none.
    pub name: Option<String>,
    /// `description`, empty where there is none.
    pub description: String,
    /// `device_api`.
    pub device_api: String,
}

/// An mdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MdevFacts {
    /// Its UUID.
    pub uuid: Uuid,
    /// The parent that it is on.
    pub parent: String,
    /// Its type; none until it is made, nor while it is being removed.
    pub type_id: Option<TypeId>,
    /// The bound driver; none until it is ready.
    pub driver: Option<String>,
    /// Its IOMMU group.
    pub group: Option<u32>,
    /// Whether the group has a node.
    pub has_group_node: bool,
    /// The name of its VFIO device.
    pub vfio_device: Option<String>,
    /// Whether that has a node of its own.
    pub has_cdev: bool,
    /// The inode of its directory.
    pub inode: u64,
    /// NVIDIA's parameters (`nvidia/vgpu_params`), where its type has them.
    pub params: Option<String>,
}

impl MdevFacts {
    /// Whether it is neither being made nor being removed.
    pub fn is_whole(&self) -> bool {
        self.type_id.is_some()
    }
}

/// Reads the types of a GPU's parents. Names and descriptions are read once a
/// type, not once a parent: a type belongs to the driver, and the VFs of a GPU
/// all have one.
///
/// # Errors
/// When the lane fails.
pub fn read_parents(reader: Reader<'_>, names: &[String]) -> Result<Vec<ParentFacts>, ScanError> {
    let mut batches = Vec::with_capacity(names.len());
    for name in names {
        let reads = vec![Read::names("mdev_supported_types")];
        batches.push(ReadBatch { base: parent(name)?, reads });
    }
    let mut listed = reader.read_each(batches)?;
    let mut offered: Vec<Vec<TypeId>> = Vec::with_capacity(names.len());
    let mut known: BTreeMap<TypeId, usize> = BTreeMap::new();
    for first in 0..names.len() {
        let mut types: Vec<TypeId> =
            listed.names().into_iter().filter_map(|id| id.parse().ok()).collect();
        types.sort_unstable();
        for id in &types {
            known.entry(id.clone()).or_insert(first);
        }
        offered.push(types);
    }
    let mut batches = Vec::with_capacity(known.len());
    for (id, first) in &known {
        let Some(name) = names.get(*first) else { continue };
        batches.push(ReadBatch {
            base: parent(name)?.join(&format!("mdev_supported_types/{id}"))?,
            reads: vec![Read::text("name"), Read::text("description"), Read::text("device_api")],
        });
    }
    let mut r = reader.read_each(batches)?;
    let mut types = BTreeMap::new();
    for id in known.into_keys() {
        let facts = TypeFacts {
            name: r.text().filter(|name| !name.is_empty()),
            description: r.text().unwrap_or_default(),
            device_api: r.text().unwrap_or_default(),
        };
        types.insert(id, Arc::new(facts));
    }
    let mut parents: Vec<ParentFacts> = names
        .iter()
        .zip(offered)
        .map(|(name, offered)| ParentFacts {
            name: name.clone(),
            types: offered
                .into_iter()
                .filter_map(|id| types.get(&id).map(|facts| (id, (facts.clone(), 0))))
                .collect(),
        })
        .collect();
    read_available(reader, &mut parents)?;
    Ok(parents)
}

/// Reads how many of each type the parents can make.
fn read_available(reader: Reader<'_>, parents: &mut [ParentFacts]) -> Result<(), ScanError> {
    let mut r = reader.read_each(available_of(parents)?)?;
    take_available(&mut r, parents);
    Ok(())
}

fn available_of(parents: &[ParentFacts]) -> Result<Vec<ReadBatch>, ScanError> {
    let mut batches = Vec::with_capacity(parents.len());
    for facts in parents {
        let available = |id| Read::text(format!("{id}/available_instances"));
        batches.push(ReadBatch {
            base: parent(&facts.name)?.join("mdev_supported_types")?,
            reads: facts.types.keys().map(available).collect(),
        });
    }
    Ok(batches)
}

fn take_available(r: &mut Readings, parents: &mut [ParentFacts]) {
    for (_, available) in parents.iter_mut().flat_map(|parent| parent.types.values_mut()) {
        *available = r.text().as_deref().and_then(text::count).unwrap_or(0);
    }
}

/// Reads the mdevs on some parents, all in two rounds: there can be hundreds of
/// parents.
///
/// # Errors
/// When the lane fails.
pub fn read_mdevs(
    reader: Reader<'_>,
    kinds: &NodeKinds,
    parents: &[ParentFacts],
) -> Result<Vec<MdevFacts>, ScanError> {
    let mut batches = Vec::with_capacity(parents.len());
    for facts in parents {
        batches.push(ReadBatch { base: parent(&facts.name)?, reads: vec![Read::names("")] });
    }
    let mut listed = reader.read_each(batches)?;
    let mdevs: Vec<(&str, Vec<Uuid>)> = parents
        .iter()
        .map(|parent| {
            let names = listed.names();
            (&*parent.name, names.iter().filter_map(|name| text::mdev_name(name)).collect())
        })
        .collect();
    let mut batches = Vec::with_capacity(mdevs.len());
    for (parent, uuids) in mdevs.iter().filter(|(_, uuids)| !uuids.is_empty()) {
        batches.push(mdevs_of(parent, uuids)?);
    }
    let mut r = reader.read_each(batches)?;
    let mut found = Vec::new();
    for (parent, uuids) in mdevs {
        found.extend(uuids.iter().filter_map(|uuid| take_mdev(&mut r, parent, *uuid)));
    }
    name_types(reader, &mut found)?;
    read_params(reader, &mut found)?;
    read_nodes(reader, kinds, &mut found)?;
    Ok(found)
}

/// Reads one mdev, `None` when it is gone, and again how many of each type the
/// parents of its GPU can make: a vGPU on one VF changes what its siblings
/// offer. Answers also how many uevents there had been before.
///
/// # Errors
/// When the lane fails.
pub fn read_mdev(
    reader: Reader<'_>,
    kinds: &NodeKinds,
    parent: &str,
    uuid: Uuid,
    parents: &mut [ParentFacts],
) -> Result<(Option<MdevFacts>, Option<u64>), ScanError> {
    let mut batches = vec![uevent_count()?, mdevs_of(parent, &[uuid])?];
    batches.append(&mut available_of(parents)?);
    let mut r = reader.read_each(batches)?;
    let uevents = take_uevent_count(&mut r);
    let mut found: Vec<MdevFacts> = take_mdev(&mut r, parent, uuid).into_iter().collect();
    take_available(&mut r, parents);
    name_types(reader, &mut found)?;
    read_params(reader, &mut found)?;
    read_nodes(reader, kinds, &mut found)?;
    Ok((found.pop(), uevents))
}

fn mdevs_of(parent: &str, uuids: &[Uuid]) -> Result<ReadBatch, ScanError> {
    let mut reads = Vec::with_capacity(uuids.len() * 5);
    for uuid in uuids {
        reads.push(Read::inode(uuid.to_string()));
        reads.push(Read::link(format!("{uuid}/mdev_type")));
        reads.push(Read::link(format!("{uuid}/driver")));
        reads.push(Read::link(format!("{uuid}/iommu_group")));
        reads.push(Read::names(format!("{uuid}/vfio-dev")));
    }
    Ok(ReadBatch { base: self::parent(parent)?, reads })
}

/// An mdev whose directory is gone is gone; one without `mdev_type` is still
/// there.
fn take_mdev(r: &mut Readings, parent: &str, uuid: Uuid) -> Option<MdevFacts> {
    let inode = r.inode();
    let mdev = MdevFacts {
        uuid,
        parent: parent.to_owned(),
        type_id: r.link().and_then(|id| id.parse().ok()),
        driver: r.link(),
        group: r.link().as_deref().and_then(text::count),
        has_group_node: false,
        vfio_device: r.names().into_iter().next(),
        has_cdev: false,
        inode: inode.unwrap_or(0),
        params: None,
    };
    inode.map(|_| mdev)
}

/// Which VFIO nodes this kernel makes: a matter of its configuration
/// (`CONFIG_VFIO_GROUP`, `CONFIG_VFIO_DEVICE_CDEV`), learnt from the first mdev
/// that has its driver.
#[derive(Debug, Default)]
pub struct NodeKinds {
    groups: OnceLock<bool>,
    cdevs: OnceLock<bool>,
}

/// Finds which nodes mdevs have: by a look at the first that tells, while that
/// is not known yet, and then without one for those that have their driver.
fn read_nodes(
    reader: Reader<'_>,
    kinds: &NodeKinds,
    mdevs: &mut [MdevFacts],
) -> Result<(), ScanError> {
    let telling = mdevs.iter().position(tells_nodes).filter(|_| kinds.groups.get().is_none());
    if let Some(first) = telling.and_then(|at| mdevs.get_mut(at..=at)) {
        look_at_nodes(reader, kinds, first)?;
    }
    look_at_nodes(reader, kinds, mdevs)
}

/// Whether an mdev shows which nodes there can be.
fn tells_nodes(mdev: &MdevFacts) -> bool {
    mdev.driver.is_some() && mdev.group.is_some() && mdev.vfio_device.is_some()
}

fn look_at_nodes(
    reader: Reader<'_>,
    kinds: &NodeKinds,
    mdevs: &mut [MdevFacts],
) -> Result<(), ScanError> {
    // Taken once: what is learnt below must not change what was asked for.
    let (groups, cdevs) = (kinds.groups.get().copied(), kinds.cdevs.get().copied());
    // Without its driver an mdev may have lost its nodes.
    let known = |mdev: &MdevFacts, kind: Option<bool>| kind.filter(|_| mdev.driver.is_some());
    let mut reads = Vec::new();
    for mdev in mdevs.iter() {
        if let (Some(group), None) = (mdev.group, known(mdev, groups)) {
            reads.push(Read::inode(format!("vfio/{group}")));
        }
        if let (Some(device), None) = (&mdev.vfio_device, known(mdev, cdevs)) {
            reads.push(Read::inode(format!("vfio-dev/{device}/dev")));
        }
    }
    let mut r = reader.read(&path("class")?, reads)?;
    for mdev in mdevs {
        if mdev.group.is_some() {
            mdev.has_group_node = known(mdev, groups).unwrap_or_else(|| r.inode().is_some());
        }
        if mdev.vfio_device.is_some() {
            mdev.has_cdev = known(mdev, cdevs).unwrap_or_else(|| r.inode().is_some());
        }
        if tells_nodes(mdev) {
            let _ = (kinds.groups.set(mdev.has_group_node), kinds.cdevs.set(mdev.has_cdev));
        }
    }
    Ok(())
}

/// Reads the types of mdevs that have a driver but no `mdev_type` yet: the
/// kernel makes that link right after the last event (Linux 6.12,
/// `mdev_device_create`), so no other event tells to look again.
fn name_types(reader: Reader<'_>, found: &mut [MdevFacts]) -> Result<(), ScanError> {
    const LOOKS: usize = 8;
    for _ in 0..LOOKS {
        let appearing = |mdev: &&mut MdevFacts| mdev.driver.is_some() && mdev.type_id.is_none();
        let mut nameless: Vec<&mut MdevFacts> = found.iter_mut().filter(appearing).collect();
        let mut batches = Vec::with_capacity(nameless.len());
        for mdev in &nameless {
            let reads = vec![Read::link(format!("{}/mdev_type", mdev.uuid))];
            batches.push(ReadBatch { base: parent(&mdev.parent)?, reads });
        }
        if batches.is_empty() {
            break;
        }
        let mut r = reader.read_each(batches)?;
        for mdev in &mut nameless {
            mdev.type_id = r.link().and_then(|id| id.parse().ok());
        }
    }
    Ok(())
}

/// Reads the parameters of those that are NVIDIA's.
fn read_params(reader: Reader<'_>, found: &mut [MdevFacts]) -> Result<(), ScanError> {
    let is_nvidia = |mdev: &&mut MdevFacts| {
        mdev.type_id.as_ref().is_some_and(|id| id.as_str().starts_with("nvidia-"))
    };
    let mut theirs: Vec<&mut MdevFacts> = found.iter_mut().filter(is_nvidia).collect();
    let mut batches = Vec::with_capacity(theirs.len());
    for mdev in &theirs {
        let reads = vec![Read::text(format!("{}/nvidia/vgpu_params", mdev.uuid))];
        batches.push(ReadBatch { base: parent(&mdev.parent)?, reads });
    }
    if batches.is_empty() {
        return Ok(());
    }
    let mut r = reader.read_each(batches)?;
    for mdev in &mut theirs {
        mdev.params = r.text().map(|params| params.trim().to_owned());
    }
    Ok(())
}

/// A parent's directory.
fn parent(name: &str) -> Result<SysPath, ScanError> {
    path(format!("class/mdev_bus/{name}"))
}
