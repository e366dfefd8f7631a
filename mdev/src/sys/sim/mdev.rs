//! Mediated devices: drivers/vfio/mdev of Linux 6.12.

use nix::errno::Errno;
use uuid::Uuid;

use super::{
    core::Core,
    number::unsigned,
    nvidia::Misfit,
    spec::ErrnoName,
    state::{Mdev, Member, ParentKey, Stage, State},
    tree::Dir,
    vfio,
};

impl State {
    /// What `available_instances` reads.
    pub(super) fn available(&self, key: ParentKey, index: u16) -> u64 {
        let Some(parent) = self.parent(key) else { return 0 };
        let kind = &*parent.kind;
        let own = kind.per_parent.map_or(u64::MAX, u64::from);
        let own_left = own.saturating_sub(parent.members.len() as u64);
        self.left_in(parent.pool, kind, index).min(own_left)
    }

    /// Takes a place for an mdev that is on its parent's list already.
    fn count(&mut self, uuid: Uuid, key: ParentKey, index: u16) -> Result<(), Errno> {
        let parent = self.parent(key).ok_or(Errno::ENODEV)?;
        let kind = parent.kind.clone();
        let members = parent.members.len() as u64;
        let pool = parent.pool;
        let taken = match kind.per_parent {
            Some(most) if members > u64::from(most) => Err(Misfit::Full),
            _ => self.take_in(pool, &kind, index, Member::Mdev(uuid)),
        };
        taken.map_err(|misfit| match misfit {
            Misfit::Mismatch => kind.mismatch.0,
            Misfit::Full => kind.full.0,
        })?;
        if let Some(mdev) = self.mdevs.get_mut(&uuid) {
            mdev.counted = true;
        }
        Ok(())
    }

    /// Takes an mdev out of all lists.
    fn forget(&mut self, uuid: Uuid) {
        self.leave_group(Member::Mdev(uuid));
        let Some(mdev) = self.mdevs.remove(&uuid) else { return };
        let Some(parent) = self.parent_mut(mdev.parent) else { return };
        parent.members.remove(&(mdev.type_index, uuid));
        let (kind, pool) = (parent.kind.clone(), parent.pool);
        if mdev.counted {
            self.give_back_in(pool, &kind, mdev.type_index, Member::Mdev(uuid));
        }
    }
}

/// `create`: `mdev_device_create` and, before it, `create_store`.
pub(super) fn create(core: &Core, key: ParentKey, index: u16, value: &str) -> Result<(), Errno> {
    if !(36..=37).contains(&value.len()) {
        return Err(Errno::EINVAL);
    }
    let text = value.get(..36).ok_or(Errno::EINVAL)?;
    let uuid = Uuid::try_parse(text).map_err(|_| Errno::EINVAL)?;
    let core_counts = begin(core, key, index, uuid)?;
    let added = core.state().event("add", "mdev", Dir::Mdev(uuid));
    core.emit(added);
    if let Err(errno) = probe(core, key, index, uuid, core_counts) {
        let gone = core.state().event("remove", "mdev", Dir::Mdev(uuid));
        core.emit(gone);
        core.state().forget(uuid);
        core.wake();
        return Err(errno);
    }
    let mut bound = core.state().event("bind", "mdev", Dir::Mdev(uuid));
    let driver = core.state().mdev_driver(uuid).map(str::to_owned);
    bound.properties.extend(driver.map(|driver| ("DRIVER".to_owned(), driver)));
    // `mdev_type` and the type's `devices/` entry come after `bind`
    // (mdev_create_sysfs_files follows device_driver_attach).
    core.emit(bound);
    if let Some(mdev) = core.state().mdevs.get_mut(&uuid) {
        mdev.stage = Stage::Active;
    }
    core.wake();
    Ok(())
}

/// Puts the device on the bus; says whether the core counted it.
fn begin(core: &Core, key: ParentKey, index: u16, uuid: Uuid) -> Result<bool, Errno> {
    let mut state = core.state();
    if state.mdevs.contains_key(&uuid) {
        return Err(Errno::EEXIST);
    }
    let (kind, _) = state.mdev_type(key, index).ok_or(Errno::ENODEV)?;
    let core_counts = kind.full == ErrnoName(Errno::EUSERS);
    if core_counts && state.available(key, index) == 0 {
        return Err(Errno::EUSERS);
    }
    if state.parent(key).is_none_or(|parent| parent.going) {
        return Err(Errno::ENODEV);
    }
    let inode = state.next_inode();
    let (stage, group, vfio) = (Stage::Added, None, None);
    let (counted, params) = (false, String::new());
    let mdev = Mdev { parent: key, type_index: index, inode, stage, group, vfio, counted, params };
    state.mdevs.insert(uuid, mdev);
    if let Some(parent) = state.parent_mut(key) {
        parent.members.insert((index, uuid));
    }
    if core_counts && let Err(errno) = state.count(uuid, key, index) {
        state.forget(uuid);
        return Err(errno);
    }
    Ok(core_counts)
}

/// NVIDIA's `vgpu_params`: a blank clears them.
pub(super) fn set_params(core: &Core, uuid: Uuid, value: &str) -> Result<(), Errno> {
    let mut state = core.state();
    let mdev = state.mdevs.get_mut(&uuid).ok_or(Errno::ENODEV)?;
    mdev.params = value.trim().to_owned();
    Ok(())
}

/// The driver's probe.
fn probe(core: &Core, key: ParentKey, index: u16, uuid: Uuid, counted: bool) -> Result<(), Errno> {
    let mut state = core.state();
    if !counted {
        state.count(uuid, key, index)?;
    }
    let group = state.join_group(Member::Mdev(uuid), None);
    if let Some(mdev) = state.mdevs.get_mut(&uuid) {
        mdev.group = Some(group);
        mdev.stage = Stage::Bound;
    }
    drop(state);
    vfio::register(core, Member::Mdev(uuid))
}

/// `remove`: blocks while the mdev is open.
pub(super) fn remove(core: &Core, uuid: Uuid, value: &str) -> Result<(), Errno> {
    if unsigned(value).map_err(|_| Errno::EINVAL)? == 0 {
        return Ok(());
    }
    {
        let mut state = core.state();
        let mdev = state.mdevs.get(&uuid).ok_or(Errno::ENODEV)?;
        match mdev.stage {
            Stage::Active => {}
            Stage::Added | Stage::Bound => return Err(Errno::EAGAIN),
            Stage::Removing => return Err(Errno::ENODEV),
        }
        if state.parent(mdev.parent).is_none_or(|parent| parent.going) {
            return Err(Errno::ENODEV);
        }
        if let Some(mdev) = state.mdevs.get_mut(&uuid) {
            mdev.stage = Stage::Removing;
        }
    }
    take_down(core, uuid)
}

/// From off the bus to gone. Measured on Linux 6.12: while it blocks, the
/// directory, the group and its node, the slot and the UUID are still there.
fn take_down(core: &Core, uuid: Uuid) -> Result<(), Errno> {
    vfio::unregister(core, Member::Mdev(uuid))?;
    let unbound = core.state().event("unbind", "mdev", Dir::Mdev(uuid));
    core.emit(unbound);
    {
        let mut state = core.state();
        state.leave_group(Member::Mdev(uuid));
        if let Some(mdev) = state.mdevs.get_mut(&uuid) {
            mdev.group = None;
        }
    }
    // Sent before the directory goes (device_del, drivers/base/core.c).
    let removed = core.state().event("remove", "mdev", Dir::Mdev(uuid));
    core.emit(removed);
    core.state().forget(uuid);
    core.wake();
    Ok(())
}

/// Says that a parent offers its types from now on.
pub(super) fn announce(core: &Core, key: ParentKey, registered: bool) {
    let mut state = core.state();
    state.mdev_class |= registered;
    let event = match key {
        ParentKey::Pci(address) => state.pci_event("change", address),
        ParentKey::Virtual(_) => state.event("change", "", key.dir()),
    };
    drop(state);
    let word = if registered { "registered" } else { "unregistered" };
    let mut event = event;
    event.properties.insert(0, ("MDEV_STATE".into(), word.into()));
    if let ParentKey::Virtual(_) = key {
        event.subsystem = core.state().parent_name(key);
    }
    core.emit(event);
}

/// Takes a parent back with all its mdevs: blocks while one is open.
pub(super) fn unregister(core: &Core, key: ParentKey) -> Result<(), Errno> {
    // Those that are being made or removed are let finish (unreg_sem).
    if let Some(parent) = core.state().parent_mut(key) {
        parent.going = true;
    }
    loop {
        let next = core.wait(|state| {
            let first = state.parent(key).and_then(|parent| parent.members.first().copied());
            let Some((_, uuid)) = first else { return Some(None) };
            let mdev = state.mdevs.get_mut(&uuid)?;
            (mdev.stage == Stage::Active).then(|| {
                mdev.stage = Stage::Removing;
                Some(uuid)
            })
        })?;
        match next {
            Some(uuid) => take_down(core, uuid)?,
            None => return Ok(()),
        }
    }
}
