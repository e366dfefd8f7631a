//! Framework `passthrough`: the whole GPU, with the functions of its slot that
//! share its IOMMU group, bound to a VFIO driver. Opt-in for each GPU in
//! `host.toml`: the management VGA of a server must never be on offer.

use crate::{
    model::{Framework, GpuId, PciAddress, Profile, Reason, ReasonCode, Vgpu},
    room::Kind,
    scan::{FunctionFacts, GpuFacts, PciFacts},
};

use super::{VFIO_PCI, View};

/// The profile of a GPU that may be given away whole.
pub fn profile(facts: &GpuFacts, view: View<'_>, slug: &str) -> Option<Profile> {
    let pci = facts.pci.as_ref().filter(|pci| allowed(pci, view))?;
    let reason = obstacle(pci, view);
    let id = format!("{slug}-full");
    Some(Profile {
        id: id.parse().ok()?,
        name: format!("{slug} whole device"),
        short_name: id,
        framework: Framework::Passthrough,
        description: String::new(),
        device_api: VFIO_PCI.into(),
        framebuffer: 0,
        total: 1,
        available: u32::from(reason.is_none()),
        reason,
    })
}

/// What it takes of the GPU: all.
pub fn kind(profile: &Profile) -> Kind {
    Kind {
        id: profile.id.clone(),
        size: 0,
        total: 1,
        offered: profile.available,
        whole: true,
        instance: None,
    }
}

/// Whether the administrator allows it.
pub fn allowed(pci: &PciFacts, view: View<'_>) -> bool {
    let allow = &view.config.passthrough.allow;
    allow.iter().any(|s| s.matches(pci.address, pci.ids.0, pci.ids.1, pci.class))
}

/// What stands against giving a GPU away whole, as far as its facts tell: that
/// no process uses it is looked at when it is asked for.
pub fn obstacle(pci: &PciFacts, view: View<'_>) -> Option<Reason> {
    let why = |code, text: String| Some(Reason { code, text });
    if super::is_given_away(pci, view) {
        why(ReasonCode::Full, "the GPU is given away already".into())
    } else if !pci.functions.is_empty() {
        why(
            ReasonCode::Divided,
            format!("the GPU has {} VFs; set them to 0 first", pci.functions.len()),
        )
    } else if pci.boot_vga {
        why(
            ReasonCode::UsedByHost,
            "the host's console is on it (boot_vga); choose another primary GPU in the firmware"
                .into(),
        )
    } else if pci.group.is_none() {
        Some(super::iommu_off())
    } else if !pci.strangers.is_empty() {
        let names: Vec<String> = pci.strangers.iter().map(ToString::to_string).collect();
        why(
            ReasonCode::GroupNotViable,
            format!(
                "its IOMMU group holds other devices ({}), which would go to the guest with it; \
                 use a slot with ACS",
                names.join(", ")
            ),
        )
    } else if !view.drivers.contains(VFIO_PCI) {
        Some(super::vfio_driver_missing())
    } else {
        None
    }
}

/// The functions that go along: those of its slot in its group, itself first.
pub fn members(pci: &PciFacts) -> Vec<PciAddress> {
    let others = pci
        .group_members
        .iter()
        .copied()
        .filter(|member| *member != pci.address && member.same_slot(pci.address));
    std::iter::once(pci.address).chain(others).collect()
}

/// A whole GPU as a vGPU: when it is claimed, or on a VFIO driver.
pub fn vgpu(gpu: &GpuId, pci: &PciFacts, view: View<'_>, slug: &str) -> Option<Vgpu> {
    let function = FunctionFacts {
        address: pci.address,
        driver: pci.driver.clone(),
        group: pci.group,
        linked: true,
        vfio_device: pci.vfio_device.clone(),
        has_cdev: pci.has_cdev,
        inode: pci.inode,
        vendor: None,
    };
    let profile = format!("{slug}-full");
    super::pci_vgpu(gpu, &function, view, Framework::Passthrough, &profile, members(pci))
}
