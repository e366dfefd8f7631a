//! Framework `sriov`: VFs bound to `vfio-pci`, or to its variant driver for the
//! device, by `driver_override`. Never by `new_id`: it binds every unbound
//! device of those ids, and a VF's are often its PF's.

use crate::{
    claims::ClaimedFunction,
    model::{
        Framework, Function, FunctionState, GpuId, PciAddress, Profile, Reason, ReasonCode, Vgpu,
    },
    plan::{Expect, Step, StepOp, Undo},
    room::{Kind, Room},
    scan::{FunctionFacts, GpuFacts, text},
    sys::{InvalidPath, LaneKey, SysPath, WriteAttr},
};

use super::{Offer, VFIO_PCI, View};

/// What a GPU offers that is divided into plain VFs: one profile.
pub fn offer(facts: &GpuFacts, view: View<'_>, functions: &[Function], slug: &str) -> Offer {
    let profiles: Vec<Profile> = profile(facts, view, functions, slug).into_iter().collect();
    let kinds = profiles
        .iter()
        .map(|profile| Kind {
            id: profile.id.clone(),
            size: 0,
            total: profile.total,
            offered: profile.available,
            whole: false,
            instance: None,
        })
        .collect();
    let free = profiles.first().map(|profile| profile.available);
    Offer { profiles, room: Room::shared(kinds, free) }
}

fn profile(
    facts: &GpuFacts,
    view: View<'_>,
    functions: &[Function],
    slug: &str,
) -> Option<Profile> {
    let pci = facts.pci.as_ref()?;
    let free = functions.iter().filter(|f| f.state == FunctionState::Free).count() as u32;
    let by_host = functions.iter().filter(|f| f.state == FunctionState::UsedByHost).count();
    let why = |code, text: String| Some(Reason { code, text });
    let reason = if super::is_given_away(pci, view) {
        why(
            ReasonCode::PassedThrough,
            "the whole GPU is passed through; remove that vGPU first".into(),
        )
    } else if pci.group.is_none() {
        Some(super::iommu_off())
    } else if !view.drivers.contains(VFIO_PCI) {
        Some(super::vfio_driver_missing())
    } else if functions.is_empty() && pci.driver.is_none() && !super::comes_with_gim(pci) {
        why(
            ReasonCode::DriverMissing,
            "no driver is bound to the GPU, and VFs are enabled by its driver; load it and see \
             dmesg for why it did not bind"
                .into(),
        )
    } else if functions.is_empty() {
        why(
            ReasonCode::NoFunctionsEnabled,
            format!(
                "no VF is enabled; run vgpuctl set-vfs {} N with N from 1 to {}",
                facts.id, pci.total_vfs
            ),
        )
    } else if free == 0 && by_host > 0 {
        why(
            ReasonCode::UsedByHost,
            format!(
                "drivers of the host use {by_host} of {} VFs and vGPUs the others; unbind one",
                functions.len()
            ),
        )
    } else if free == 0 {
        why(
            ReasonCode::Full,
            match functions.len() {
                1 => "the one VF carries a vGPU; remove it, or enable more VFs".into(),
                all => format!("all {all} VFs carry vGPUs; remove one of them"),
            },
        )
    } else {
        None
    };
    let id = format!("{slug}-vf");
    Some(Profile {
        id: id.parse().ok()?,
        name: format!("{slug} virtual function"),
        short_name: id,
        framework: Framework::Sriov,
        description: String::new(),
        device_api: VFIO_PCI.into(),
        framebuffer: 0,
        total: pci.total_vfs,
        available: if reason.is_some() { 0 } else { free },
        reason,
    })
}

/// A VF as a vGPU: when it is claimed, or on a VFIO driver.
pub fn vgpu(gpu: &GpuId, function: &FunctionFacts, view: View<'_>, slug: &str) -> Option<Vgpu> {
    let profile = format!("{slug}-vf");
    super::pci_vgpu(gpu, function, view, Framework::Sriov, &profile, vec![function.address])
}

/// The steps that bind a function to a VFIO driver. `before` is what it had:
/// undoing gives it back.
///
/// # Errors
/// Never, unless a driver's name is no path element.
pub fn plan_bind(before: &ClaimedFunction, driver: &str) -> Result<Vec<Step>, InvalidPath> {
    let lane = LaneKey::Function(before.address);
    let device = device(before.address)?;
    let mut steps = Vec::with_capacity(3);
    if let Some(old) = before.driver.as_deref() {
        steps.push(Step {
            lane: lane.clone(),
            op: StepOp::Write(unbind(before.address, old)?),
            expect: Expect::NoLink { path: device.join("driver")? },
            undo: vec![Undo::write(lane.clone(), probe(before.address)?)],
        });
    }
    steps.push(Step {
        lane: lane.clone(),
        op: StepOp::Write(set_override(before.address, Some(driver))?),
        expect: override_is(before.address, Some(driver))?,
        undo: vec![Undo::write(
            lane.clone(),
            set_override(before.address, before.driver_override.as_deref())?,
        )],
    });
    steps.push(Step {
        lane: lane.clone(),
        op: StepOp::Write(probe(before.address)?),
        // The store succeeds even when no driver takes the device
        // (drivers/base/bus.c, drivers_probe_store): only the link tells.
        expect: Expect::Link { path: device.join("driver")?, name: Some(driver.to_owned()) },
        undo: vec![Undo::write(lane, unbind(before.address, driver)?)],
    });
    Ok(steps)
}

/// The steps that give a function back: unbound from VFIO, its override as it
/// was, and its old driver bound again where it had one.
///
/// # Errors
/// Never, unless a driver's name is no path element.
pub fn plan_unbind(
    before: &ClaimedFunction,
    bound_to: Option<&str>,
) -> Result<Vec<Step>, InvalidPath> {
    let lane = LaneKey::Function(before.address);
    let device = device(before.address)?;
    let mut steps = Vec::with_capacity(3);
    if let Some(driver) = bound_to {
        steps.push(Step {
            lane: lane.clone(),
            op: StepOp::Write(unbind(before.address, driver)?),
            expect: Expect::NoLink { path: device.join("driver")? },
            undo: vec![Undo::write(lane.clone(), probe(before.address)?)],
        });
    }
    steps.push(Step {
        lane: lane.clone(),
        op: StepOp::Write(set_override(before.address, before.driver_override.as_deref())?),
        expect: override_is(before.address, before.driver_override.as_deref())?,
        undo: match bound_to {
            Some(driver) => {
                vec![Undo::write(lane.clone(), set_override(before.address, Some(driver))?)]
            }
            None => Vec::new(),
        },
    });
    if let Some(driver) = &before.driver {
        steps.push(Step {
            lane: lane.clone(),
            op: StepOp::Write(probe(before.address)?),
            expect: Expect::Link { path: device.join("driver")?, name: Some(driver.clone()) },
            undo: vec![Undo::write(lane, unbind(before.address, driver)?)],
        });
    }
    Ok(steps)
}

/// The steps that change how many VFs a PF has: `functions` are the VFs that
/// exist, with their drivers and overrides, which undoing gives back.
///
/// VFs are unbound one by one before the count goes to 0, so that a hang costs
/// one VF and not the host's lock (Linux 6.12, `pci_disable_sriov` under
/// `pci_lock_rescan_remove`). Autoprobe is off while VFs appear, so that no
/// driver of the host takes them, and back once each has its override.
///
/// # Errors
/// Never, unless a driver's name is no path element.
pub fn plan_vf_count(
    pf: PciAddress,
    functions: &[ClaimedFunction],
    autoprobe: bool,
    count: u32,
) -> Result<Vec<Step>, InvalidPath> {
    let device = device(pf)?;
    let old = functions.len() as u32;
    let overrides = functions
        .iter()
        .filter(|function| function.driver_override.is_some())
        .map(|function| {
            Ok(Undo::write(
                LaneKey::Function(function.address),
                set_override(function.address, function.driver_override.as_deref())?,
            ))
        })
        .collect::<Result<Vec<_>, InvalidPath>>()?;
    let set = |count: u32, undo: u32| -> Result<Step, InvalidPath> {
        let write = |count: u32| -> Result<WriteAttr, InvalidPath> {
            Ok(WriteAttr { path: device.join("sriov_numvfs")?, value: count.to_string() })
        };
        Ok(Step {
            lane: LaneKey::Host,
            op: StepOp::Write(write(count)?),
            expect: Expect::Functions { pf: device.clone(), count },
            undo: vec![Undo::write(LaneKey::Host, write(undo)?)],
        })
    };
    let mut steps = Vec::new();
    if count == old {
        return Ok(steps);
    }
    // Before autoprobe is off: undoing gives them their driver back once it is
    // on again.
    for function in functions {
        if let Some(driver) = &function.driver {
            let before = ClaimedFunction { driver: None, ..function.clone() };
            steps.extend(plan_unbind(&before, Some(driver))?);
        }
    }
    if autoprobe {
        steps.push(auto(pf, false)?);
    }
    if old > 0 {
        // A count changes only by way of 0 (drivers/pci/pci-sysfs.c: EBUSY).
        let mut none = set(0, old)?;
        none.undo.extend(overrides);
        steps.push(none);
    }
    if count > 0 {
        steps.push(set(count, 0)?);
        steps.push(Step {
            lane: LaneKey::Gpu(GpuId::Pci(pf)),
            op: StepOp::OverrideFunctions { pf, driver: VFIO_PCI.into() },
            expect: Expect::Nothing,
            undo: Vec::new(),
        });
    }
    if autoprobe {
        steps.push(auto(pf, true)?);
    }
    Ok(steps)
}

/// The step that turns `sriov_drivers_autoprobe` on or off, where it is the other.
///
/// # Errors
/// Never: an address is a path element.
pub fn auto(pf: PciAddress, on: bool) -> Result<Step, InvalidPath> {
    let path = device(pf)?.join("sriov_drivers_autoprobe")?;
    let write = |on: bool| WriteAttr { path: path.clone(), value: u8::from(on).to_string() };
    let lane = LaneKey::Function(pf);
    Ok(Step {
        lane: lane.clone(),
        op: StepOp::Write(write(on)),
        expect: Expect::Text { path: path.clone(), text: u8::from(on).to_string() },
        undo: vec![Undo::write(lane, write(!on))],
    })
}

/// A device's directory.
///
/// # Errors
/// Never: an address is a path element.
pub fn device(address: PciAddress) -> Result<SysPath, InvalidPath> {
    SysPath::new(format!("bus/pci/devices/{address}"))
}

/// Sets or clears `driver_override`. A new line clears it; an empty write would
/// do nothing (`drivers/base/driver.c`, `driver_set_override`).
///
/// # Errors
/// Never: an address is a path element.
pub fn set_override(address: PciAddress, driver: Option<&str>) -> Result<WriteAttr, InvalidPath> {
    Ok(WriteAttr {
        path: device(address)?.join("driver_override")?,
        value: format!("{}\n", driver.unwrap_or_default()),
    })
}

/// What `driver_override` must read after that.
///
/// # Errors
/// Never: an address is a path element.
pub fn override_is(address: PciAddress, driver: Option<&str>) -> Result<Expect, InvalidPath> {
    Ok(Expect::Text {
        path: device(address)?.join("driver_override")?,
        text: driver.unwrap_or(text::NO_OVERRIDE).to_owned(),
    })
}

fn probe(address: PciAddress) -> Result<WriteAttr, InvalidPath> {
    Ok(WriteAttr { path: SysPath::new("bus/pci/drivers_probe")?, value: address.to_string() })
}

fn unbind(address: PciAddress, driver: &str) -> Result<WriteAttr, InvalidPath> {
    Ok(WriteAttr {
        path: SysPath::new(format!("bus/pci/drivers/{driver}/unbind"))?,
        value: address.to_string(),
    })
}
