//! NVIDIA's vendor-specific VFIO: a VF's folder `nvidia/`, as real hosts with
//! vGPU 17 on Linux 6.8 show it. A VF on NVIDIA's driver is registered with VFIO,
//! and carries a vGPU while a type's number stands in `current_vgpu_type`.

use std::sync::Arc;

use nix::errno::Errno;

use crate::model::PciAddress;

use super::{
    attr::Attr,
    core::Core,
    number::unsigned,
    nvidia::ListOrder,
    spec::{MdevKind, MdevType},
    state::{Member, Role, State},
};

/// What a VF carries.
pub(super) struct Vendor {
    kind: Arc<MdevKind>,
    pool: usize,
    current: Option<u16>,
    params: String,
}

impl Vendor {
    pub(super) fn new(kind: Arc<MdevKind>, pool: usize) -> Self {
        Self { kind, pool, current: None, params: String::new() }
    }
}

/// The number in a type's id.
fn number_of(ty: &MdevType) -> u64 {
    ty.id.strip_prefix("nvidia-").and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl State {
    /// The types that a VF can carry now, as the driver lists them.
    fn creatable(&self, vf: PciAddress, vendor: &Vendor) -> String {
        let pf = match self.pci.get(&vf).map(|device| &device.role) {
            Some(Role::Vf { pf, .. }) => self.nvidia.get(pf),
            _ => None,
        };
        let name_first = pf.is_some_and(|pf| pf.list_order() == ListOrder::NameFirst);
        let mut text = String::from(match name_first {
            true => "vGPU Name      ID\n",
            false => "ID    : vGPU Name\n",
        });
        for (index, ty) in vendor.kind.types.iter().enumerate() {
            if vendor.current.is_none() && self.left_in(vendor.pool, &vendor.kind, index as u16) > 0
            {
                let (number, name) = (number_of(ty), ty.name.as_deref().unwrap_or_default());
                text.push_str(&match name_first {
                    true => format!("{name}   {number}\n"),
                    false => format!("{number:<6}: {name}\n"),
                });
            }
        }
        text
    }

    /// What reading an attribute of the folder gives.
    pub(super) fn show_vendor(&self, vf: PciAddress, attr: Attr) -> Result<String, Errno> {
        let vendor = self.function(vf)?.vendor.as_deref().ok_or(Errno::ENODEV)?;
        let carried = vendor.current.and_then(|index| vendor.kind.types.get(usize::from(index)));
        Ok(match attr {
            Attr::CreatableVgpuTypes => self.creatable(vf, vendor),
            Attr::CurrentVgpuType => format!("{}\n", carried.map_or(0, number_of)),
            Attr::GpuInstanceId | Attr::PlacementId if carried.is_none() => {
                return Err(Errno::ENXIO);
            }
            Attr::GpuInstanceId => {
                let instance = self.nvidia_place(vf).and_then(|(_, instance)| instance);
                format!("{}\n", instance.unwrap_or(0))
            }
            Attr::PlacementId => {
                let start = self.nvidia_place(vf).map_or(0, |(start, _)| start);
                format!("{start}\n")
            }
            Attr::VgpuParams => format!("{}\n", vendor.params),
            _ => "0\n".into(),
        })
    }

    /// Takes off what a VF carries.
    pub(super) fn clear_vendor(&mut self, vf: PciAddress) {
        let Some(vendor) = self.pci.get_mut(&vf).and_then(|device| device.vendor.as_mut()) else {
            return;
        };
        vendor.params.clear();
        let (Some(index), kind, pool) = (vendor.current.take(), vendor.kind.clone(), vendor.pool)
        else {
            return;
        };
        self.give_back_in(pool, &kind, index, Member::Pci(vf));
    }
}

/// A write below the folder.
pub(super) fn store(core: &Core, vf: PciAddress, attr: Attr, value: &str) -> Result<(), Errno> {
    let mut state = core.state();
    let held = state.is_held(Member::Pci(vf));
    let vendor = state.function_mut(vf)?.vendor.as_mut().ok_or(Errno::ENODEV)?;
    match attr {
        Attr::VgpuParams if vendor.current.is_some() => {
            vendor.params = value.trim().to_owned();
            return Ok(());
        }
        Attr::CurrentVgpuType => {}
        _ => return Err(Errno::EIO),
    }
    let wanted = unsigned(value).map_err(|_| Errno::EINVAL)?;
    if wanted == 0 {
        // A VM has it.
        if held {
            return Err(Errno::EPERM);
        }
        state.clear_vendor(vf);
        return Ok(());
    }
    let (kind, pool) = (vendor.kind.clone(), vendor.pool);
    let found = kind.types.iter().enumerate().find(|(_, ty)| number_of(ty) == wanted);
    if vendor.current.is_some() {
        state.refuse_second();
        return Err(Errno::EIO);
    }
    let (index, _) = found.ok_or(Errno::EIO)?;
    let index = u16::try_from(index).map_err(|_| Errno::EIO)?;
    // Why it does not fit stands in the kernel's log alone.
    state.take_in(pool, &kind, index, Member::Pci(vf)).map_err(|_| Errno::EIO)?;
    if let Some(vendor) = state.function_mut(vf)?.vendor.as_mut() {
        vendor.current = Some(index);
    }
    Ok(())
}
