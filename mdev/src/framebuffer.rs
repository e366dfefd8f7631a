//! Where in a GPU's framebuffer NVIDIA's driver places vGPUs: the arithmetic of
//! `kernel_vgpu_mgr.c` in NVIDIA's open-gpu-kernel-modules (595.45.04).
//!
//! A vGPU takes a run of GiB. Where it may start follows from its size, from how
//! many of its type the GPU takes, and from the mode: all of one size, or sizes
//! side by side (heterogeneous mode).

/// How a driver divides: by the generation of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// Ampere and what went before it.
    Ampere,
    /// Ada and Hopper, whose firmware does part of the driver's work.
    Ada,
    /// Blackwell and later.
    Blackwell,
}

/// A framebuffer that is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Framebuffer {
    /// Its nominal size in GiB.
    pub gib: u32,
    /// Who divides it.
    pub generation: Generation,
}

/// A run of GiB that a vGPU takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Its first GiB: the placement id.
    pub start: u32,
    /// How many.
    pub size: u32,
}

/// The most vGPUs of a GPU that have a place (`MAX_VGPU_DEVICES_PER_PGPU`).
const MOST: u32 = 32;

/// The smallest part that is divided once more: two of them fill the GPU's places.
const SMALLEST_PART: u32 = MOST / 2;

/// Starts at which a vGPU of all of 1 GiB would reach into its neighbours
/// (`_kvgpumgrIsPlacementValid`).
const DENIED_ON_AMPERE: &[u32] = &[8, 32];
const DENIED_ON_ADA: &[u32] = &[2, 3, 8, 9, 14, 15, 20, 21, 26, 27, 32, 33, 38, 39, 44, 45];

impl Framebuffer {
    /// What a type of a nominal size takes: on 96 GiB, one of 2 GiB takes 3, since
    /// no more than 32 have channels (`_kvgpumgrGetplacementSize`).
    pub fn size(&self, gib: u32) -> u32 {
        if (self.gib, gib) == (96, 2) { 3 } else { gib }
    }

    /// Where a type may start while all are of one size, `most` of them at once:
    /// at multiples of the size (`_kvgpumgrSetHomogeneousResources`).
    pub fn alike_starts(&self, gib: u32, most: u32) -> Vec<u32> {
        let most = most.min(MOST);
        match (self.generation, self.size(gib)) {
            (_, 0) => Vec::new(),
            (Generation::Blackwell, _) => self.even_starts(most),
            (_, size) => {
                (0..most.min(self.gib / size)).map(|place| place.saturating_mul(size)).collect()
            }
        }
    }

    /// Where a type may start in heterogeneous mode, of which an empty GPU takes
    /// `most` while all are of one size; ascending.
    pub fn mixed_starts(&self, gib: u32, most: u32) -> Vec<u32> {
        let most = most.min(MOST);
        match (self.generation, self.size(gib)) {
            (_, 0) => Vec::new(),
            (Generation::Blackwell, _) => self.even_starts(most),
            (_, size) => {
                let mut starts = Vec::new();
                halve(Part { from: 0, to: self.gib, of: 1, left: true }, size, most, &mut starts);
                starts.retain(|start| !self.denied(size, most).contains(start));
                starts
            }
        }
    }

    /// Every instance has its part (`_kvgpumgrSetHeterogeneousResources_GB100`).
    fn even_starts(&self, most: u32) -> Vec<u32> {
        let start = |place: u32| u64::from(self.gib) * u64::from(place) / u64::from(most.max(1));
        (0..most).map(|place| start(place) as u32).collect()
    }

    fn denied(&self, size: u32, most: u32) -> &'static [u32] {
        // Only where the driver takes nothing off that GiB for itself.
        let whole = size == 1 && most < self.gib;
        match self.generation {
            Generation::Ampere if whole => DENIED_ON_AMPERE,
            Generation::Ada if whole => DENIED_ON_ADA,
            _ => &[],
        }
    }
}

/// One of `of` equal parts of the framebuffer.
#[derive(Clone, Copy)]
struct Part {
    from: u32,
    to: u32,
    of: u32,
    /// Whether it is the left half of the part around it.
    left: bool,
}

/// `_kvgpumgrSetHeterogeneousResources`: where two fit into a part, one begins at
/// its start and one ends at its end; where only one does, it lies at the side
/// that is away from the part's other half.
fn halve(part: Part, size: u32, most: u32, starts: &mut Vec<u32>) {
    if part.of > SMALLEST_PART {
        return;
    }
    let power = if most == 0 { 0 } else { 1 << most.ilog2() };
    let two = part.of * 2 == most;
    let one = (power < most && power == part.of) || (part.of == 1 && most == 1);
    if two || (one && part.left) {
        starts.push(part.from);
    }
    if (two || (one && !part.left))
        && let Some(start) = part.to.checked_sub(size)
    {
        starts.push(start);
    }
    let middle = part.from.midpoint(part.to);
    let of = part.of * 2;
    halve(Part { from: part.from, to: middle, of, left: true }, size, most, starts);
    halve(Part { from: middle, to: part.to, of, left: false }, size, most, starts);
}

impl Run {
    /// Whether they have a GiB in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.start.saturating_add(other.size)
            && other.start < self.start.saturating_add(self.size)
    }
}

/// The starts at which a size overlaps nothing that is taken: as many more fit,
/// since the starts of one type lie clear of each other. The driver takes the
/// first.
pub fn free_starts<'a>(
    starts: &'a [u32],
    size: u32,
    taken: &'a [Run],
) -> impl Iterator<Item = u32> + 'a {
    let free = move |start: &u32| {
        let run = Run { start: *start, size };
        !taken.iter().any(|other| run.overlaps(*other))
    };
    starts.iter().copied().filter(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A40: Framebuffer = Framebuffer { gib: 48, generation: Generation::Ampere };
    const L40S: Framebuffer = Framebuffer { gib: 48, generation: Generation::Ada };
    const RTX_PRO_6000: Framebuffer = Framebuffer { gib: 96, generation: Generation::Blackwell };

    #[test]
    fn alike_ones_start_at_multiples_of_their_size() {
        assert_eq!(A40.alike_starts(16, 3), [0, 16, 32]);
        assert_eq!(A40.alike_starts(48, 1), [0]);
        let a100 = Framebuffer { gib: 40, generation: Generation::Ampere };
        assert_eq!(a100.alike_starts(4, 10), [0, 4, 8, 12, 16, 20, 24, 28, 32, 36]);
        // No more than the type's count.
        assert_eq!(A40.alike_starts(1, 32).last(), Some(&31));
        assert_eq!(A40.alike_starts(1, u32::MAX).len(), 32);
        assert!(A40.alike_starts(0, 5).is_empty());
    }

    #[test]
    fn mixed_ones_start_where_halving_leads() {
        // Counts that are powers of two fill the whole.
        assert_eq!(A40.mixed_starts(48, 1), [0]);
        assert_eq!(A40.mixed_starts(24, 2), [0, 24]);
        assert_eq!(A40.mixed_starts(12, 4), [0, 12, 24, 36]);
        assert_eq!(A40.mixed_starts(6, 8), [0, 6, 12, 18, 24, 30, 36, 42]);
        // Others take the next power below.
        assert_eq!(A40.mixed_starts(16, 3), [0, 32]);
        assert_eq!(A40.mixed_starts(8, 6), [0, 16, 24, 40]);
        assert_eq!(A40.mixed_starts(4, 12), [0, 8, 12, 20, 24, 32, 36, 44]);
        let two = A40.mixed_starts(2, 24);
        assert_eq!((two.len(), &two[..6]), (16, &[0, 4, 6, 10, 12, 16][..]));
    }

    #[test]
    fn a_whole_gib_is_kept_from_where_it_reaches_into_others() {
        // The driver's own example: A40-8Q at 0 does not go with A40-1Q at 8, nor
        // one at 24 with one at 32.
        let ampere = A40.mixed_starts(1, 32);
        assert_eq!(ampere.len(), 30);
        assert!(!ampere.contains(&8) && !ampere.contains(&32) && ampere.contains(&9));
        let ada = L40S.mixed_starts(1, 32);
        assert_eq!(ada, [0, 5, 6, 11, 12, 17, 18, 23, 24, 29, 30, 35, 36, 41, 42, 47]);
        // Where the driver takes its part of each, there is no such trouble.
        let a16 = Framebuffer { gib: 16, generation: Generation::Ampere };
        assert_eq!(a16.mixed_starts(1, 16), (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn blackwell_gives_every_instance_its_part() {
        // As many as without mixing (NVIDIA's tables of the RTX PRO 6000).
        for (gib, most) in [(96, 1), (48, 2), (32, 3), (12, 8), (4, 24), (3, 32), (2, 32)] {
            let starts = RTX_PRO_6000.mixed_starts(gib, most);
            assert_eq!(starts.len() as u32, most, "{gib}");
            assert_eq!(starts, RTX_PRO_6000.alike_starts(gib, most));
            let step = RTX_PRO_6000.size(gib);
            assert_eq!(starts, (0..most).map(|place| place * step).collect::<Vec<_>>(), "{gib}");
        }
    }

    #[test]
    fn what_overlaps_is_not_free() {
        let taken = [Run { start: 0, size: 16 }, Run { start: 24, size: 8 }];
        let free = |gib, most| {
            let starts = A40.mixed_starts(gib, most);
            free_starts(&starts, gib, &taken).collect::<Vec<_>>()
        };
        assert_eq!(free(16, 3), [32]);
        assert_eq!(free(8, 6), [16, 40]);
        assert_eq!(free(12, 4), [36]);
        assert!(free(24, 2).is_empty());
        assert_eq!(free(4, 12), [20, 32, 36, 44]);
    }

    #[test]
    fn starts_of_one_type_lie_clear_of_each_other_and_within() {
        for generation in [Generation::Ampere, Generation::Ada, Generation::Blackwell] {
            for total in [16, 24, 40, 48, 80, 96] {
                let framebuffer = Framebuffer { gib: total, generation };
                for gib in (1..=total).filter(|gib| total / gib <= 32) {
                    let size = framebuffer.size(gib);
                    for starts in [
                        framebuffer.alike_starts(gib, total / size),
                        framebuffer.mixed_starts(gib, total / size),
                    ] {
                        assert!(!starts.is_empty(), "{framebuffer:?} {gib}");
                        assert!(starts.windows(2).all(|pair| pair[0] + size <= pair[1]));
                        assert!(starts.last().unwrap() + size <= total);
                    }
                }
            }
        }
    }
}
