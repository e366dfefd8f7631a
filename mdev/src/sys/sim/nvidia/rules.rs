//! Which vGPU types fit: `kernel_vgpu_mgr.c` of NVIDIA's open-gpu-kernel-modules
//! (595.45.04). A GPU without a `[pci.nvidia]` table keeps to its kind's own rule.

use crate::{
    framebuffer::{Framebuffer, Run, free_starts},
    model::PciAddress,
};

use super::{
    super::{
        spec::{MdevKind, MdevType},
        state::{Member, State},
    },
    Carried, Nvidia,
    mig::Instance,
};

/// Why a type does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Misfit {
    /// It cannot follow what is there.
    Mismatch,
    /// Nothing is left.
    Full,
}

/// The driver's statuses (`nvstatuscodes.h`).
mod status {
    pub(super) const INSUFFICIENT_RESOURCES: u32 = 0x1a;
    pub(super) const INVALID_OPERATION: u32 = 0x38;
    pub(super) const INVALID_STATE: u32 = 0x40;
    pub(super) const NOT_SUPPORTED: u32 = 0x56;
}

impl State {
    /// How many more of a type fit.
    pub(in super::super) fn left_in(&self, pool: usize, kind: &MdevKind, index: u16) -> u64 {
        let (Some(pool), Some(ty)) = (self.pools.get(pool), kind.types.get(usize::from(index)))
        else {
            return 0;
        };
        match pool.ruled_by.and_then(|gpu| self.nvidia.get(&gpu)) {
            None => pool.left(kind, index, ty),
            Some(nvidia) => nvidia.left(kind, ty),
        }
    }

    /// Takes a place for `member`.
    pub(in super::super) fn take_in(
        &mut self,
        pool: usize,
        kind: &MdevKind,
        index: u16,
        member: Member,
    ) -> Result<(), Misfit> {
        let ty = kind.types.get(usize::from(index)).ok_or(Misfit::Mismatch)?;
        let pool = self.pools.get_mut(pool).ok_or(Misfit::Full)?;
        let Some(gpu) = pool.ruled_by else {
            if !pool.admits(kind, index, ty) {
                return Err(Misfit::Mismatch);
            }
            if pool.left(kind, index, ty) == 0 {
                return Err(Misfit::Full);
            }
            pool.take(index, ty);
            return Ok(());
        };
        let nvidia = self.nvidia.get_mut(&gpu).ok_or(Misfit::Full)?;
        match nvidia.place(kind, ty) {
            Ok(carried) => {
                nvidia.carried.insert(member, carried);
                Ok(())
            }
            Err(status) => {
                self.log_refusal(status);
                let mismatch = status == status::NOT_SUPPORTED;
                Err(if mismatch { Misfit::Mismatch } else { Misfit::Full })
            }
        }
    }

    /// Gives back what `member` took.
    pub(in super::super) fn give_back_in(
        &mut self,
        pool: usize,
        kind: &MdevKind,
        index: u16,
        member: Member,
    ) {
        let Some(pool) = self.pools.get_mut(pool) else { return };
        match pool.ruled_by.and_then(|gpu| self.nvidia.get_mut(&gpu)) {
            None => {
                let size = kind.types.get(usize::from(index)).map_or(0, |ty| ty.size);
                pool.give_back(index, size);
            }
            Some(nvidia) => {
                nvidia.carried.remove(&member);
            }
        }
    }

    /// The driver's line for a creation that it refuses, as it reads in the
    /// kernel's log.
    fn log_refusal(&mut self, status: u32) {
        self.log.push(format!("NVRM: Failed to add vgpu create request: 0x{status:x}"));
    }

    /// Notes that a VF which carries a vGPU was asked for another.
    pub(in super::super) fn refuse_second(&mut self) {
        self.log_refusal(status::INVALID_OPERATION);
    }

    /// Where a VF's vGPU lies: its start, and the GPU instance that it is in.
    pub(in super::super) fn nvidia_place(&self, vf: PciAddress) -> Option<(u32, Option<u32>)> {
        let carried = self.nvidia.values().find_map(|gpu| gpu.carried.get(&Member::Pci(vf)))?;
        Some((carried.run.start, carried.instance))
    }
}

impl Nvidia {
    /// How many more of a type fit.
    fn left(&self, kind: &MdevKind, ty: &MdevType) -> u64 {
        let free = match (self.mig, backed(ty)) {
            (true, Some(wanted)) => {
                self.instances.keys().map(|id| self.free_in(*id, &wanted, ty).len()).sum()
            }
            (false, None) if self.mixed => self.free(kind, ty).len(),
            (false, None) => match self.size() {
                Some(size) if size != ty.size => 0,
                _ => self.free(kind, ty).len(),
            },
            _ => 0,
        };
        free as u64
    }

    /// Where the driver puts a type, or its status where it does not.
    fn place(&self, kind: &MdevKind, ty: &MdevType) -> Result<Carried, u32> {
        let framebuffer = self.framebuffer(kind);
        let gib = gib(ty);
        let carried =
            |start, size, instance| Carried { gib: ty.size, run: Run { start, size }, instance };
        match (self.mig, backed(ty)) {
            (true, _) if self.instances.is_empty() => Err(status::INVALID_OPERATION),
            // The lowest that takes it (kvgpumgrGetSwizzId).
            (true, Some(wanted)) => {
                let fit = |id: &u32| Some((*id, *self.free_in(*id, &wanted, ty).first()?));
                let (id, start) =
                    self.instances.keys().find_map(fit).ok_or(status::INVALID_STATE)?;
                Ok(carried(start, gib, Some(id)))
            }
            (true, None) | (false, Some(_)) => Err(status::INVALID_OPERATION),
            (false, None) => {
                let size = framebuffer.size(gib);
                let locked = !self.mixed && self.size().is_some_and(|there| there != ty.size);
                if locked {
                    return Err(status::NOT_SUPPORTED);
                }
                let none = match self.mixed {
                    true => status::NOT_SUPPORTED,
                    false => status::INSUFFICIENT_RESOURCES,
                };
                let start = *self.free(kind, ty).first().ok_or(none)?;
                Ok(carried(start, size, None))
            }
        }
    }

    /// The starts that are free for a time-sliced type.
    fn free(&self, kind: &MdevKind, ty: &MdevType) -> Vec<u32> {
        let framebuffer = self.framebuffer(kind);
        let gib = gib(ty);
        let size = framebuffer.size(gib);
        let fit = framebuffer.gib.checked_div(size).unwrap_or(0);
        let most = ty.max.unwrap_or(fit).min(fit);
        let starts = match self.mixed {
            true => framebuffer.mixed_starts(gib, most),
            false => framebuffer.alike_starts(gib, most),
        };
        let taken: Vec<_> = self.carried.values().map(|carried| carried.run).collect();
        free_starts(&starts, size, &taken).collect()
    }

    /// The starts that are free in a GPU instance for a type that is backed by
    /// such a one: those of one size share it.
    fn free_in(&self, id: u32, wanted: &Backing, ty: &MdevType) -> Vec<u32> {
        let Some(instance) = self.instances.get(&id) else { return Vec::new() };
        let most = self.most_in(instance, wanted);
        let inside = || self.carried.values().filter(|carried| carried.instance == Some(id));
        if inside().any(|carried| carried.gib != ty.size) {
            return Vec::new();
        }
        let taken: Vec<_> = inside().map(|carried| carried.run.start).collect();
        (0..most).map(|n| n * wanted.gib).filter(|start| !taken.contains(start)).collect()
    }

    /// How many of a backed type an instance takes.
    fn most_in(&self, instance: &Instance, wanted: &Backing) -> u32 {
        let profile = instance.profile;
        // Where a profile exists with graphics, vGPUs are backed by that.
        let graphics = self
            .layout()
            .is_some_and(|layout| layout.profiles.iter().any(|other| other.extra() == "gfx"));
        let extra = match (wanted.media, graphics) {
            (true, _) => "me",
            (false, true) => "gfx",
            (false, false) => "",
        };
        if profile.slices != wanted.slices || profile.extra() != extra {
            return 0;
        }
        let fit = profile.gib.checked_div(wanted.gib).unwrap_or(0);
        match self.spec.vgpus_per_instance {
            0 | 1 => u32::from(profile.gib == wanted.gib),
            most => fit.min(most),
        }
    }

    fn framebuffer(&self, kind: &MdevKind) -> Framebuffer {
        let gib = u32::try_from(kind.units).unwrap_or(u32::MAX);
        Framebuffer { gib, generation: self.spec.generation.into() }
    }

    /// The size that those there have in common.
    fn size(&self) -> Option<u64> {
        self.carried.values().map(|carried| carried.gib).next()
    }
}

fn gib(ty: &MdevType) -> u32 {
    u32::try_from(ty.size).unwrap_or(u32::MAX)
}

/// The GPU instance that a MIG-backed type needs.
struct Backing {
    slices: u32,
    gib: u32,
    media: bool,
}

/// What a type's name says of it: `A100-3-20C`, `A100-1-5CME`; `None` for a
/// time-sliced one.
fn backed(ty: &MdevType) -> Option<Backing> {
    let mut parts = ty.name.as_deref()?.rsplit('-');
    let (memory, slices) = (parts.next()?, parts.next()?);
    let series = memory.trim_start_matches(|c: char| c.is_ascii_digit());
    let gib = memory.strip_suffix(series)?.parse().ok()?;
    Some(Backing { slices: slices.parse().ok()?, gib, media: series.ends_with("ME") })
}
