//! How an MI300X is divided between its VFs: its accelerators and its memory, for
//! all GPUs of a hive alike (mi300_gpumon.c and mi300_nbio.c of 8.0.0.K).

use nix::errno::Errno;

use crate::model::PciAddress;

use super::{
    super::{attr::Attr, core::Core, state::State},
    Gpu,
};

/// The attributes that tell and change it.
pub(super) const ATTRS: [Attr; 5] = [
    Attr::AcceleratorPartitionProfile,
    Attr::MemoryPartitionMode,
    Attr::SpatialPartitionMode,
    Attr::MemoryPartitionConfig,
    Attr::SpatialPartitionCaps,
];

/// The accelerators of an MI300X: the partitions of CPX.
const ALL: u16 = 8;
/// Its memory in bytes, 192 GiB.
const MEMORY: u64 = 192 << 30;
/// HBM3 (`AMDGV_GPUMON_DGPU_VRAM_TYPE__HBM3`).
const HBM3: u32 = 0x80;

/// A GPU's partition modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Partition {
    /// Into how many its accelerators are divided; 0 where that is not known.
    accelerators: u16,
    /// Into how many NUMA nodes its memory is.
    memory: u16,
}

impl Partition {
    /// The modes that the driver begins with.
    pub(super) fn of(vfs: u16) -> Self {
        Self { accelerators: default_of(vfs, 1).unwrap_or(0), memory: 1 }
    }

    /// What an attribute reads; a failure is told by a text.
    pub(super) fn show(&self, vfs: u16, attr: Attr) -> Option<String> {
        match attr {
            Attr::AcceleratorPartitionProfile => Some(self.profile(vfs)),
            Attr::MemoryPartitionMode => Some(self.memory_mode()),
            Attr::SpatialPartitionMode => Some(match name(self.accelerators) {
                Some(name) => format!("{name}\n"),
                None => "failed to get current sp mode\n".into(),
            }),
            Attr::MemoryPartitionConfig => Some("NPS1 NPS4 \n".into()),
            Attr::SpatialPartitionCaps => {
                Some(format!("num_xcc={ALL} num_sdma=16 num_vcn=4 num_jpeg=8\n"))
            }
            _ => None,
        }
    }

    fn profile(&self, vfs: u16) -> String {
        let index = profiles(vfs).position(|partitions| partitions == self.accelerators);
        let (Some(index), Some(name)) = (index, name(self.accelerators)) else {
            return "failed to get current accelerator partition profile\n".into();
        };
        let mut text = String::new();
        for column in ["profile_index", "profile_type", "num_of_partitions", "num_of_resources"] {
            text.push_str(&format!("{column:<20}"));
        }
        text.push_str("resource_index_in_resource_profiles\n");
        let (partitions, resources) = (self.accelerators, 2);
        text.push_str(&format!("{index:<20}{name:<20}{partitions:<20}{resources:<20}["));
        // The accelerators and the decoders of one, as rows of the driver's table.
        let first = 3 - partitions.trailing_zeros();
        let one = format!("[{first} {} ]", first + 4);
        text.push_str(&one.repeat(usize::from(partitions)));
        text.push_str("]\n");
        text
    }

    fn memory_mode(&self) -> String {
        let count = u64::from(self.memory);
        let mut text = format!("memory_partition_mode: NPS{count}\nnuma_count: {count}\n");
        for (node, size) in (0..count).map(|node| (node, MEMORY / count)) {
            let (start, end) = (node * size, (node + 1) * size - 1);
            text.push_str(&format!(
                "NUMA{node} type={HBM3} start=0x{start:016x} end=0x{end:016x}\n"
            ));
        }
        text
    }
}

/// The name of a division of the accelerators.
fn name(partitions: u16) -> Option<&'static str> {
    [(1, "SPX"), (2, "DPX"), (4, "QPX"), (ALL, "CPX")]
        .into_iter()
        .find_map(|(of, name)| (of == partitions).then_some(name))
}

/// The divisions that a number of VFs can have, by their index: one for each VF,
/// or all apart.
fn profiles(vfs: u16) -> impl Iterator<Item = u16> {
    let own = name(vfs).map(|_| vfs);
    own.into_iter().chain((own.is_some() && vfs != ALL).then_some(ALL))
}

/// The division that comes with a memory mode.
fn default_of(vfs: u16, memory: u16) -> Option<u16> {
    match (vfs, memory) {
        (1 | 2 | 4 | ALL, 1) | (4 | ALL, 4) => Some(vfs),
        (1, 4) => Some(ALL),
        _ => None,
    }
}

/// `accelerator_partition_profile`: success even when nothing changes.
pub(in super::super) fn set_profile(core: &Core, pf: PciAddress, value: &str) -> Result<(), Errno> {
    let value = value.trim_start();
    let digits = value.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
    let index: u32 = digits.parse().map_err(|_| Errno::EINVAL)?;
    core.state().change_hive(pf, |vfs, now| {
        let wanted = profiles(vfs).nth(index as usize)?;
        let fits = wanted >= now.memory;
        fits.then_some(Partition { accelerators: wanted, ..now })
    });
    Ok(())
}

/// `memory_partition_mode`: an unknown name is refused, all else succeeds even
/// when nothing changes.
pub(in super::super) fn set_memory(core: &Core, pf: PciAddress, value: &str) -> Result<(), Errno> {
    let word = value.split_ascii_whitespace().next().unwrap_or_default();
    let memory = match word.get(..4).unwrap_or_default().to_ascii_uppercase().as_str() {
        "NPS1" => 1,
        "NPS2" => 2,
        // Taken for NPS4 (gim_mon_get_memory_partition_mode).
        "NPS4" | "NPS8" => 4,
        _ => return Err(Errno::EINVAL),
    };
    core.state().change_hive(pf, |vfs, now| {
        let accelerators = default_of(vfs, memory)?;
        (memory != now.memory).then_some(Partition { accelerators, memory })
    });
    Ok(())
}

impl State {
    /// Changes the modes of all GPUs of a hive for which there is one to change
    /// to, unless a VF of any is in use.
    fn change_hive(
        &mut self,
        pf: PciAddress,
        change: impl Fn(u16, Partition) -> Option<Partition>,
    ) {
        let Some(hive) = self.gim.gpus.get(&pf).map(|gpu| gpu.spec.hive) else { return };
        let is_member = |gpu: &Gpu| gpu.spec.hive == hive && gpu.vfs.is_some();
        let members = self.gim.gpus.iter().filter(|(_, gpu)| is_member(gpu));
        if members.map(|(pf, _)| *pf).any(|member| self.gim_is_used(member)) {
            return;
        }
        for gpu in self.gim.gpus.values_mut().filter(|gpu| is_member(gpu)) {
            if let Some(partition) = gpu.vfs.and_then(|vfs| change(vfs, gpu.partition)) {
                gpu.partition = partition;
            }
        }
    }
}
