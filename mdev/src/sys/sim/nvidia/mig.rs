//! MIG: which GPU instances a GPU takes, and where. Profiles, sizes and possible
//! starts as `nvidia-smi mig -lgip` and `-lgipp` print them on these GPUs.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The GPUs whose instances are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Geometry {
    /// A100 with 40 GB.
    #[serde(rename = "a100-40gb")]
    A100With40,
    /// A100 with 80 GB.
    #[serde(rename = "a100-80gb")]
    A100With80,
    /// A30.
    #[serde(rename = "a30")]
    A30,
    /// H100 with 80 GB.
    #[serde(rename = "h100-80gb")]
    H100With80,
    /// RTX PRO 6000 Blackwell Server Edition.
    #[serde(rename = "rtx-pro-6000")]
    RtxPro6000,
}

/// How a GPU is divided into instances.
pub(super) struct Layout {
    /// Compute slices.
    pub(super) slices: u32,
    /// Memory slices: starts and sizes are in these.
    pub(super) slots: u32,
    pub(super) profiles: &'static [Profile],
}

/// A kind of GPU instance.
#[derive(Debug, PartialEq)]
pub(super) struct Profile {
    pub(super) id: u32,
    /// `3g.20gb`
    pub(super) name: &'static str,
    /// Compute slices, which the name begins with.
    pub(super) slices: u32,
    /// Memory in GiB, as the name has it.
    pub(super) gib: u32,
    /// Memory slices.
    pub(super) size: u32,
    pub(super) starts: &'static [u32],
    pub(super) most: u32,
    /// What remains of the memory, as the table shows it.
    pub(super) memory: &'static str,
    pub(super) multiprocessors: u32,
    /// Decoders, encoders, JPEG engines, optical flow accelerators.
    pub(super) engines: [u32; 4],
}

/// A GPU instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Instance {
    pub(super) profile: &'static Profile,
    pub(super) start: u32,
    /// Whether it has its compute instance.
    pub(super) compute: bool,
}

impl Geometry {
    pub(super) fn layout(self) -> &'static Layout {
        match self {
            Self::A100With40 => &A100_40,
            Self::A100With80 => &A100_80,
            Self::A30 => &A30,
            Self::H100With80 => &H100_80,
            Self::RtxPro6000 => &RTX_PRO_6000,
        }
    }
}

impl Layout {
    /// The profile that a number or a name (`9`, `3g.20gb`, `MIG 3g.20gb`) means.
    pub(super) fn profile(&self, called: &str) -> Option<&'static Profile> {
        let name = called.strip_prefix("MIG ").unwrap_or(called);
        self.profiles.iter().find(|p| p.name == name || p.id.to_string() == called)
    }

    /// How many more of a profile fit.
    pub(super) fn free(&self, there: &BTreeMap<u32, Instance>, wanted: &'static Profile) -> u32 {
        let mut there = there.clone();
        let mut free = 0;
        while let Some((id, instance)) = self.place(&there, wanted) {
            there.insert(id, instance);
            free += 1;
        }
        free
    }

    /// Where the driver puts an instance, with its number: where most placements
    /// of all profiles remain possible, the lowest of those. That is how every
    /// example of NVIDIA's MIG guide comes out.
    pub(super) fn place(
        &self,
        there: &BTreeMap<u32, Instance>,
        wanted: &'static Profile,
    ) -> Option<(u32, Instance)> {
        let candidates = wanted.starts.iter().filter(|start| self.fits(there, wanted, **start));
        let place = |start: &u32| Instance { profile: wanted, start: *start, compute: false };
        let best = candidates.map(place).min_by_key(|instance| {
            let mut after = there.clone();
            after.insert(self.number(instance), *instance);
            (std::cmp::Reverse(self.possible(&after)), instance.start)
        })?;
        Some((self.number(&best), best))
    }

    /// How many placements are possible, of whatever profile.
    fn possible(&self, there: &BTreeMap<u32, Instance>) -> usize {
        let of = |p: &'static Profile| {
            p.starts.iter().filter(|start| self.fits(there, p, **start)).count()
        };
        self.profiles.iter().map(of).sum()
    }

    fn fits(&self, there: &BTreeMap<u32, Instance>, wanted: &Profile, start: u32) -> bool {
        let clear = |other: &Instance| {
            start >= other.start + other.profile.size || other.start >= start + wanted.size
        };
        let slices: u32 = there.values().map(|other| other.profile.slices).sum();
        let same = there.values().filter(|other| other.profile.id == wanted.id).count();
        there.values().all(clear)
            && slices + wanted.slices <= self.slices
            && (same as u32) < wanted.most
    }

    /// An instance's number: those of one size follow on those of the next larger
    /// one, in the order of their starts.
    fn number(&self, instance: &Instance) -> u32 {
        let size = instance.profile.size.max(1);
        (self.slots / size).saturating_sub(1) + instance.start / size
    }
}

impl Profile {
    /// What the name adds: `me`, `gfx`, empty for nothing.
    pub(super) fn extra(&self) -> &'static str {
        self.name.split_once("gb").map_or("", |(_, rest)| rest.trim_start_matches('+'))
    }

    /// The number of the compute instance profile that fills it.
    pub(super) fn compute_profile(&self) -> u32 {
        match self.slices {
            7 => 4,
            slices => slices.saturating_sub(1),
        }
    }
}

const EIGHTHS: &[u32] = &[0, 1, 2, 3, 4, 5, 6];
const EIGHT: &[u32] = &[0];

#[rustfmt::skip] // tables
static A100_40: Layout = Layout { slices: 7, slots: 8, profiles: &[
    Profile { id: 19, name: "1g.5gb", slices: 1, gib: 5, size: 1, starts: EIGHTHS, most: 7, memory: "4.75", multiprocessors: 14, engines: [0, 0, 0, 0] },
    Profile { id: 20, name: "1g.5gb+me", slices: 1, gib: 5, size: 1, starts: EIGHTHS, most: 1, memory: "4.75", multiprocessors: 14, engines: [1, 0, 1, 1] },
    Profile { id: 15, name: "1g.10gb", slices: 1, gib: 10, size: 2, starts: &[0, 2, 4, 6], most: 4, memory: "9.62", multiprocessors: 14, engines: [1, 0, 0, 0] },
    Profile { id: 14, name: "2g.10gb", slices: 2, gib: 10, size: 2, starts: &[0, 2, 4], most: 3, memory: "9.62", multiprocessors: 28, engines: [1, 0, 0, 0] },
    Profile { id: 9, name: "3g.20gb", slices: 3, gib: 20, size: 4, starts: &[0, 4], most: 2, memory: "19.50", multiprocessors: 42, engines: [2, 0, 0, 0] },
    Profile { id: 5, name: "4g.20gb", slices: 4, gib: 20, size: 4, starts: &[0], most: 1, memory: "19.50", multiprocessors: 56, engines: [2, 0, 0, 0] },
    Profile { id: 0, name: "7g.40gb", slices: 7, gib: 40, size: 8, starts: EIGHT, most: 1, memory: "39.25", multiprocessors: 98, engines: [5, 0, 1, 1] },
] };

#[rustfmt::skip] // tables
static A100_80: Layout = Layout { slices: 7, slots: 8, profiles: &[
    Profile { id: 19, name: "1g.10gb", slices: 1, gib: 10, size: 1, starts: EIGHTHS, most: 7, memory: "9.50", multiprocessors: 14, engines: [0, 0, 0, 0] },
    Profile { id: 20, name: "1g.10gb+me", slices: 1, gib: 10, size: 1, starts: EIGHTHS, most: 1, memory: "9.50", multiprocessors: 14, engines: [1, 0, 1, 1] },
    Profile { id: 15, name: "1g.20gb", slices: 1, gib: 20, size: 2, starts: &[0, 2, 4, 6], most: 4, memory: "19.50", multiprocessors: 14, engines: [1, 0, 0, 0] },
    Profile { id: 14, name: "2g.20gb", slices: 2, gib: 20, size: 2, starts: &[0, 2, 4], most: 3, memory: "19.50", multiprocessors: 28, engines: [1, 0, 0, 0] },
    Profile { id: 9, name: "3g.40gb", slices: 3, gib: 40, size: 4, starts: &[0, 4], most: 2, memory: "39.25", multiprocessors: 42, engines: [2, 0, 0, 0] },
    Profile { id: 5, name: "4g.40gb", slices: 4, gib: 40, size: 4, starts: &[0], most: 1, memory: "39.25", multiprocessors: 56, engines: [2, 0, 0, 0] },
    Profile { id: 0, name: "7g.80gb", slices: 7, gib: 80, size: 8, starts: EIGHT, most: 1, memory: "79.00", multiprocessors: 98, engines: [5, 0, 1, 1] },
] };

#[rustfmt::skip] // tables
static H100_80: Layout = Layout { slices: 7, slots: 8, profiles: &[
    Profile { id: 19, name: "1g.10gb", slices: 1, gib: 10, size: 1, starts: EIGHTHS, most: 7, memory: "9.62", multiprocessors: 16, engines: [1, 0, 1, 0] },
    Profile { id: 20, name: "1g.10gb+me", slices: 1, gib: 10, size: 1, starts: EIGHTHS, most: 1, memory: "9.62", multiprocessors: 16, engines: [1, 0, 1, 1] },
    Profile { id: 15, name: "1g.20gb", slices: 1, gib: 20, size: 2, starts: &[0, 2, 4, 6], most: 4, memory: "19.50", multiprocessors: 26, engines: [1, 0, 1, 0] },
    Profile { id: 14, name: "2g.20gb", slices: 2, gib: 20, size: 2, starts: &[0, 2, 4], most: 3, memory: "19.50", multiprocessors: 32, engines: [2, 0, 2, 0] },
    Profile { id: 9, name: "3g.40gb", slices: 3, gib: 40, size: 4, starts: &[0, 4], most: 2, memory: "39.50", multiprocessors: 60, engines: [3, 0, 3, 0] },
    Profile { id: 5, name: "4g.40gb", slices: 4, gib: 40, size: 4, starts: &[0], most: 1, memory: "39.50", multiprocessors: 64, engines: [4, 0, 4, 0] },
    Profile { id: 0, name: "7g.80gb", slices: 7, gib: 80, size: 8, starts: EIGHT, most: 1, memory: "79.25", multiprocessors: 132, engines: [7, 0, 7, 1] },
] };

#[rustfmt::skip] // tables
static A30: Layout = Layout { slices: 4, slots: 4, profiles: &[
    Profile { id: 14, name: "1g.6gb", slices: 1, gib: 6, size: 1, starts: &[0, 1, 2, 3], most: 4, memory: "5.81", multiprocessors: 14, engines: [1, 0, 0, 0] },
    Profile { id: 21, name: "1g.6gb+me", slices: 1, gib: 6, size: 1, starts: &[0, 1, 2, 3], most: 1, memory: "5.81", multiprocessors: 14, engines: [1, 0, 1, 1] },
    Profile { id: 5, name: "2g.12gb", slices: 2, gib: 12, size: 2, starts: &[0, 2], most: 2, memory: "11.69", multiprocessors: 28, engines: [2, 0, 0, 0] },
    Profile { id: 6, name: "2g.12gb+me", slices: 2, gib: 12, size: 2, starts: &[0, 2], most: 1, memory: "11.69", multiprocessors: 28, engines: [2, 0, 1, 1] },
    Profile { id: 0, name: "4g.24gb", slices: 4, gib: 24, size: 4, starts: &[0], most: 1, memory: "23.44", multiprocessors: 56, engines: [4, 0, 1, 1] },
] };

#[rustfmt::skip] // tables
static RTX_PRO_6000: Layout = Layout { slices: 4, slots: 4, profiles: &[
    Profile { id: 14, name: "1g.24gb", slices: 1, gib: 24, size: 1, starts: &[0, 1, 2, 3], most: 4, memory: "23.62", multiprocessors: 46, engines: [1, 1, 1, 0] },
    Profile { id: 21, name: "1g.24gb+me", slices: 1, gib: 24, size: 1, starts: &[0, 1, 2, 3], most: 1, memory: "23.62", multiprocessors: 46, engines: [1, 1, 1, 1] },
    Profile { id: 47, name: "1g.24gb+gfx", slices: 1, gib: 24, size: 1, starts: &[0, 1, 2, 3], most: 4, memory: "23.62", multiprocessors: 46, engines: [1, 1, 1, 0] },
    Profile { id: 65, name: "1g.24gb+me.all", slices: 1, gib: 24, size: 1, starts: &[0, 1, 2, 3], most: 1, memory: "23.62", multiprocessors: 46, engines: [4, 4, 4, 1] },
    Profile { id: 67, name: "1g.24gb-me", slices: 1, gib: 24, size: 1, starts: &[0, 1, 2, 3], most: 4, memory: "23.62", multiprocessors: 46, engines: [0, 0, 0, 0] },
    Profile { id: 5, name: "2g.48gb", slices: 2, gib: 48, size: 2, starts: &[0, 2], most: 2, memory: "47.38", multiprocessors: 94, engines: [2, 2, 2, 0] },
    Profile { id: 35, name: "2g.48gb+gfx", slices: 2, gib: 48, size: 2, starts: &[0, 2], most: 2, memory: "47.38", multiprocessors: 94, engines: [2, 2, 2, 0] },
    Profile { id: 64, name: "2g.48gb+me.all", slices: 2, gib: 48, size: 2, starts: &[0, 2], most: 1, memory: "47.38", multiprocessors: 94, engines: [4, 4, 4, 1] },
    Profile { id: 66, name: "2g.48gb-me", slices: 2, gib: 48, size: 2, starts: &[0, 2], most: 2, memory: "47.38", multiprocessors: 94, engines: [0, 0, 0, 0] },
    Profile { id: 0, name: "4g.96gb", slices: 4, gib: 96, size: 4, starts: &[0], most: 1, memory: "95.00", multiprocessors: 188, engines: [4, 4, 4, 1] },
    Profile { id: 32, name: "4g.96gb+gfx", slices: 4, gib: 96, size: 4, starts: &[0], most: 1, memory: "95.00", multiprocessors: 188, engines: [4, 4, 4, 1] },
] };
