//! VFIO: registration, nodes, who holds them, and the probe.

use std::{fs::File, os::fd::OwnedFd, sync::Arc};

use nix::errno::Errno;

use crate::{
    model::Holder,
    sys::{HolderQuery, NodePath, ProbeFailure, ProbeReport, ProbeTarget, Region},
};

use super::{
    core::Core,
    state::{Hold, Member, NodeKey, Role, State, VfioDevice},
    tree::{Dir, Entry},
};

/// Drivers besides VFIO's that do not keep a group from being viable
/// (drivers/vfio/vfio_main.c and their `driver_managed_dma`).
const HARMLESS: [&str; 2] = ["pci-stub", "pcieport"];

/// Keeps a node open for a simulated process, until dropped.
#[must_use = "the node is let go when this is dropped"]
pub struct HoldGuard {
    core: Arc<Core>,
    key: NodeKey,
    id: u64,
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        self.core.release(&self.key, self.id);
    }
}

impl NodeKey {
    /// The node of a path below `/dev`.
    pub(super) fn parse(path: &str) -> Option<Self> {
        match path {
            "vfio/vfio" => return Some(Self::Container),
            "iommu" => return Some(Self::Iommu),
            _ => {}
        }
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| n.to_string() == text);
        let cdev = path.strip_prefix("vfio/devices/vfio").and_then(number).map(Self::Cdev);
        let group = || path.strip_prefix("vfio/").and_then(number).map(Self::Group);
        let card = || path.strip_prefix("dri/card").and_then(number).map(Self::Card);
        cdev.or_else(group).or_else(card)
    }

    pub(super) fn path(&self) -> String {
        match self {
            Self::Group(number) => format!("vfio/{number}"),
            Self::Cdev(number) => format!("vfio/devices/vfio{number}"),
            Self::Card(number) => format!("dri/card{number}"),
            Self::Container => "vfio/vfio".into(),
            Self::Iommu => "iommu".into(),
        }
    }
}

/// Registers a device with VFIO, in whose group it is.
pub(super) fn register(core: &Core, member: Member) -> Result<(), Errno> {
    let mut state = core.state();
    let group = state.group_of(member).ok_or(Errno::EINVAL)?;
    let first = state.vfio.groups && !state.has_group_node(group);
    let number = state.vfio_numbers.take();
    state.vfio_devices.insert(number, member);
    state.set_vfio(member, Some(VfioDevice { number, live: true }));
    let group = first.then(|| state.node_event("add", "vfio", Dir::VfioGroup(group)));
    let device = state.node_event("add", "vfio-dev", Dir::VfioDevice(member));
    drop(state);
    group.into_iter().chain([device]).for_each(|event| core.emit(event));
    Ok(())
}

/// Unregisters it: blocks while somebody holds it.
pub(super) fn unregister(core: &Core, member: Member) -> Result<(), Errno> {
    let mut state = core.state();
    let Some(VfioDevice { number, .. }) = state.vfio_of(member) else { return Ok(()) };
    let gone = state.node_event("remove", "vfio-dev", Dir::VfioDevice(member));
    state.set_vfio(member, Some(VfioDevice { number, live: false }));
    drop(state);
    core.emit(gone);
    core.wait(|state| (!state.is_held(member)).then_some(()))?;
    let mut state = core.state();
    state.vfio_devices.remove(&number);
    state.vfio_numbers.give_back(number);
    state.owners.remove(&NodeKey::Cdev(number));
    let group = state.group_of(member);
    let event = group.map(|group| state.node_event("remove", "vfio", Dir::VfioGroup(group)));
    state.set_vfio(member, None);
    let last = group.filter(|group| state.vfio.groups && !state.has_group_node(*group));
    if let Some(group) = last {
        state.owners.remove(&NodeKey::Group(group));
    }
    drop(state);
    if let (Some(event), Some(_)) = (event, last) {
        core.emit(event);
    }
    Ok(())
}

impl State {
    fn set_vfio(&mut self, member: Member, vfio: Option<VfioDevice>) {
        match member {
            Member::Pci(address) => {
                if let Some(device) = self.pci.get_mut(&address) {
                    device.vfio = vfio;
                }
            }
            Member::Mdev(uuid) => {
                if let Some(mdev) = self.mdevs.get_mut(&uuid) {
                    mdev.vfio = vfio;
                }
            }
        }
    }

    /// Whether a group has its node: from its first device's registration until
    /// its last one's user lets go.
    pub(super) fn has_group_node(&self, number: u32) -> bool {
        self.vfio.groups
            && self
                .groups
                .get(&number)
                .is_some_and(|group| group.members.iter().any(|m| self.vfio_of(*m).is_some()))
    }

    /// The device that is `vfio<number>`, while it is registered.
    pub(super) fn live_vfio(&self, number: u32) -> Option<Member> {
        let member = *self.vfio_devices.get(&number)?;
        self.live_vfio_of(member).map(|_| member)
    }

    pub(super) fn live_vfio_of(&self, member: Member) -> Option<u32> {
        self.vfio_of(member).filter(|vfio| vfio.live).map(|vfio| vfio.number)
    }

    fn is_open(&self, key: &NodeKey) -> bool {
        self.holds.contains_key(key)
    }

    /// Whether somebody has a device open, through its group or its own node.
    pub(super) fn is_held(&self, member: Member) -> bool {
        let group = self.group_of(member).is_some_and(|n| self.is_open(&NodeKey::Group(n)));
        group || self.vfio_of(member).is_some_and(|vfio| self.is_open(&NodeKey::Cdev(vfio.number)))
    }

    /// Whether user space owns a group's DMA.
    pub(super) fn is_group_open(&self, number: u32) -> bool {
        self.is_open(&NodeKey::Group(number)) || self.is_member_bound(number)
    }

    /// Whether a cdev of the group is bound to an iommufd.
    fn is_member_bound(&self, number: u32) -> bool {
        let members = self.groups.get(&number).into_iter().flat_map(|group| &group.members);
        members.filter_map(|member| self.vfio_of(*member)).any(|vfio| {
            let holds = self.holds.get(&NodeKey::Cdev(vfio.number));
            holds.is_some_and(|holds| holds.iter().any(|hold| hold.bound))
        })
    }

    /// The member that keeps a group from being viable, with its driver.
    fn intruder(&self, number: u32) -> Option<(Member, &str)> {
        let members = &self.groups.get(&number)?.members;
        members.iter().find_map(|member| {
            let Member::Pci(address) = member else { return None };
            let device = self.pci.get(address)?;
            let driver = self.driver_of(device)?;
            let is_vfio = driver.vfio || device.vendor.is_some();
            let harmless = is_vfio || HARMLESS.contains(&&*driver.name);
            (!harmless).then_some((*member, &*driver.name))
        })
    }

    /// Whether a node can be opened now; a cdev is to be bound as well only if
    /// `bind`.
    fn may_open(&self, key: &NodeKey, bind: bool) -> Result<(), Errno> {
        if !self.node_exists(key) {
            return Err(Errno::ENOENT);
        }
        match key {
            // A legacy group opens once, and not while a member's cdev is bound.
            NodeKey::Group(number) if self.is_group_open(*number) => Err(Errno::EBUSY),
            NodeKey::Cdev(number) if bind => {
                let member = self.live_vfio(*number).ok_or(Errno::ENODEV)?;
                let holds = self.holds.get(key);
                let group = self.group_of(member).ok_or(Errno::ENODEV)?;
                if holds.is_some_and(|holds| holds.iter().any(|hold| hold.bound)) {
                    Err(Errno::EINVAL)
                } else if self.is_open(&NodeKey::Group(group)) || self.intruder(group).is_some() {
                    Err(Errno::EBUSY)
                } else {
                    Ok(())
                }
            }
            _ => Ok(()),
        }
    }
}

impl Core {
    /// Opens a node for a simulated process.
    pub(super) fn hold(
        self: &Arc<Self>,
        key: NodeKey,
        holder: (u32, &str),
        bind: bool,
    ) -> Result<HoldGuard, Errno> {
        let id = self.take_hold(&key, holder, bind)?;
        Ok(HoldGuard { core: self.clone(), key, id })
    }

    /// Opens a node for a process that never lets go.
    pub(super) fn take_hold(
        &self,
        key: &NodeKey,
        (pid, command): (u32, &str),
        bind: bool,
    ) -> Result<u64, Errno> {
        let mut state = self.state();
        state.may_open(key, bind)?;
        state.last_hold += 1;
        let id = state.last_hold;
        let hold = Hold { id, pid, command: command.into(), bound: bind };
        state.holds.entry(key.clone()).or_default().push(hold);
        Ok(id)
    }

    fn release(&self, key: &NodeKey, id: u64) {
        let mut state = self.state();
        if let Some(holds) = state.holds.get_mut(key) {
            holds.retain(|hold| hold.id != id);
            if holds.is_empty() {
                state.holds.remove(key);
            }
        }
        drop(state);
        self.wake();
    }

    /// Opens a node for the caller. Its closing cannot be seen: the node counts
    /// as open for this moment only.
    #[allow(clippy::disallowed_methods)] // a descriptor to hand out
    pub(super) fn open(&self, node: &NodePath) -> Result<OwnedFd, Errno> {
        let key = NodeKey::parse(node.as_str()).ok_or(Errno::ENOENT)?;
        self.state().may_open(&key, false)?;
        let file = File::options().read(true).write(true).open("/dev/null");
        file.map(OwnedFd::from)
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    pub(super) fn chown(&self, node: &NodePath, uid: u32) -> Result<(), Errno> {
        let key = NodeKey::parse(node.as_str()).ok_or(Errno::ENOENT)?;
        let mut state = self.state();
        if !state.node_exists(&key) {
            return Err(Errno::ENOENT);
        }
        state.owners.insert(key, uid);
        Ok(())
    }

    pub(super) fn owner(&self, node: &NodePath) -> Option<u32> {
        let key = NodeKey::parse(node.as_str())?;
        let state = self.state();
        state.node_exists(&key).then(|| state.owners.get(&key).copied().unwrap_or(0))
    }

    pub(super) fn holders(&self, query: &HolderQuery) -> Vec<Holder> {
        let state = self.state();
        let keys = query.nodes.iter().filter_map(|node| NodeKey::parse(node.as_str()));
        keys.flat_map(|key| {
            let holds = state.holds.get(&key).into_iter().flatten();
            let wanted = holds.filter(|hold| query.pid.is_none_or(|pid| pid == hold.pid));
            wanted
                .map(|hold| Holder {
                    pid: hold.pid,
                    command: hold.command.to_string(),
                    device: key.path(),
                    node: format!("/dev/{}", key.path()),
                })
                .collect::<Vec<_>>()
        })
        .collect()
    }

    pub(super) fn probe(&self, target: &ProbeTarget) -> Result<ProbeReport, ProbeFailure> {
        let failed = |message: String, errno| ProbeFailure { message, errno: Some(errno) };
        let state = self.state();
        let member = match state.resolve(target.device.as_str(), true) {
            Ok(Entry::Dir(Dir::Pci(address))) => Member::Pci(address),
            Ok(Entry::Dir(Dir::Mdev(uuid))) => Member::Mdev(uuid),
            _ => return Err(failed(format!("there is no {}", target.device), Errno::ENODEV)),
        };
        let cdev = target.cdev.as_ref().filter(|_| state.vfio.cdevs);
        let (node, interface) = match (cdev, &target.group) {
            (Some(cdev), _) => (cdev, "cdev"),
            (None, Some(group)) => (group, "group"),
            (None, None) => {
                return Err(failed(format!("{} has no VFIO node", target.device), Errno::ENODEV));
            }
        };
        let key = NodeKey::parse(node.as_str());
        let open = key.ok_or(Errno::ENOENT).and_then(|key| state.may_open(&key, true));
        open.map_err(|errno| failed(format!("opening {node}: {errno:?}"), errno))?;
        if state.live_vfio_of(member).is_none() {
            let message = format!("{} is not bound to a VFIO driver", target.device);
            return Err(failed(message, Errno::ENODEV));
        }
        let group = state.group_of(member).unwrap_or_default();
        if let Some((other, driver)) = state.intruder(group) {
            let message = format!(
                "group {group} is not viable: /sys/{} is bound to {driver}",
                state.path(other.dir())
            );
            return Err(failed(message, Errno::EPERM));
        }
        Ok(report(&state, member, interface))
    }
}

/// What a guest would see of the device.
fn report(state: &State, member: Member, interface: &str) -> ProbeReport {
    let region = |index, size, flags| Region { index, size, flags, readable: Some(true) };
    let config = region(7, 4096, 3);
    let mut report = ProbeReport {
        interface: interface.into(),
        can_reset: true,
        reset: Some(true),
        dma_map: true,
        ..ProbeReport::default()
    };
    match member {
        Member::Pci(address) => {
            let Some(device) = state.pci.get(&address) else { return report };
            let is_vf = matches!(device.role, Role::Vf { .. });
            report.can_reset = !device.facts.reset_methods.is_empty();
            report.reset = report.can_reset.then_some(true);
            report.regions = vec![region(0, 16 << 20, 7), region(2, 256 << 20, 7), config];
            report.interrupts = vec![(0, u32::from(!is_vf)), (1, 1), (2, 4), (3, 1), (4, 1)];
            report.pci_ids = Some((device.facts.vendor, device.facts.device));
            let variant = state.driver_of(device).is_some_and(|driver| *driver.name != *"vfio-pci");
            if variant {
                report.migration = vec!["stop-copy".into(), "p2p".into()];
            }
        }
        Member::Mdev(uuid) => {
            let parent = state.mdevs.get(&uuid).and_then(|mdev| state.parent(mdev.parent));
            report.regions = vec![region(0, 4096, 3), config];
            report.interrupts = vec![(0, 1), (1, 1)];
            report.pci_ids = parent.and_then(|parent| parent.kind.guest_ids);
        }
    }
    report
}
