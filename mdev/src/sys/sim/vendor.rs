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
    spec::{MdevKind, MdevType},
    state::{Member, State},
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
    /// What reading an attribute of the folder gives.
    pub(super) fn show_vendor(&self, vf: PciAddress, attr: Attr) -> Result<String, Errno> {
        let vendor = self.function(vf)?.vendor.as_deref().ok_or(Errno::ENODEV)?;
        let carried = vendor.current.and_then(|index| vendor.kind.types.get(usize::from(index)));
        Ok(match attr {
            Attr::CreatableVgpuTypes => {
                let mut text = String::from("ID    : vGPU Name\n");
                let types = vendor.kind.types.iter().enumerate();
                for (index, ty) in types.filter(|_| carried.is_none()) {
                    if self.left_of(vendor, index as u16, ty) > 0 {
                        let name = ty.name.as_deref().unwrap_or_default();
                        text.push_str(&format!("{:<6}: {name}\n", number_of(ty)));
                    }
                }
                text
            }
            Attr::CurrentVgpuType => format!("{}\n", carried.map_or(0, number_of)),
            Attr::GpuInstanceId | Attr::PlacementId if carried.is_none() => {
                return Err(Errno::ENXIO);
            }
            Attr::VgpuParams => format!("{}\n", vendor.params),
            _ => "0\n".into(),
        })
    }

    fn left_of(&self, vendor: &Vendor, index: u16, ty: &MdevType) -> u64 {
        self.pools.get(vendor.pool).map_or(0, |pool| pool.left(&vendor.kind, index, ty))
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
        let size = kind.types.get(usize::from(index)).map_or(0, |ty| ty.size);
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.give_back(index, size);
        }
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
    // The driver's log says: Failed to add vgpu create request.
    let (index, ty) = found.filter(|_| vendor.current.is_none()).ok_or(Errno::EIO)?;
    let index = u16::try_from(index).map_err(|_| Errno::EIO)?;
    let pool = state.pools.get_mut(pool).ok_or(Errno::EIO)?;
    if pool.left(&kind, index, ty) == 0 {
        return Err(Errno::EIO);
    }
    pool.take(index, ty);
    if let Some(vendor) = state.function_mut(vf)?.vendor.as_mut() {
        vendor.current = Some(index);
    }
    Ok(())
}
