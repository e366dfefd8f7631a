//! The vGPU types of NVIDIA's models, as data: what a driver lists only while it
//! fits, or not before the VFs exist. What the kernel says goes before it.
//!
//! Ids from public captures and documents; they can differ by board and driver
//! line, so they are compared by name once the kernel lists them.

use crate::framebuffer::{Framebuffer, Generation};

/// A model of GPU and the types that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// The model, as [`crate::model::Gpu::model`] has it.
    pub name: &'static str,
    /// What its types' full names begin with: `NVIDIA A40`.
    pub prefix: &'static str,
    /// The nominal framebuffer in GiB, which its types divide.
    pub framebuffer_gib: u32,
    /// By which its driver divides it.
    pub generation: Generation,
    rows: &'static [Row],
}

/// A type of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogType {
    /// Its number: of `nvidia-558` the 558.
    pub number: u32,
    /// Its full name: `NVIDIA A40-2Q`.
    pub name: String,
    /// Its framebuffer in GiB.
    pub gib: u32,
    /// How many a GPU takes.
    pub max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    /// Time-sliced types in a row: first id, framebuffers in GiB, series.
    Run(u32, &'static [u32], &'static str),
    /// A MIG-backed type: id, suffix of the name, framebuffer in GiB, how many.
    Mig(u32, &'static str, u32, u32),
}

use Row::{Mig, Run};

/// The most vGPUs of one GPU, whatever their size (NVIDIA's documents:
/// `max_instance` of 1 GiB types on 48 GiB GPUs).
const MOST: u32 = 32;

const SIXTEEN: &[u32] = &[1, 2, 4, 8, 16];
const TWENTY_FOUR: &[u32] = &[1, 2, 3, 4, 6, 8, 12, 24];
const FORTY_EIGHT: &[u32] = &[1, 2, 3, 4, 6, 8, 12, 16, 24, 48];

const MODELS: &[Model] = &[
    Model {
        name: "T4",
        prefix: "GRID T4",
        framebuffer_gib: 16,
        generation: Generation::Ampere,
        rows: &[
            Run(222, &[1, 2], "B"),
            Run(225, SIXTEEN, "A"),
            Run(230, SIXTEEN, "Q"),
            Run(319, &[4, 8, 16], "C"),
        ],
    },
    Model {
        name: "V100",
        prefix: "GRID V100",
        framebuffer_gib: 16,
        generation: Generation::Ampere,
        rows: &[
            Run(105, SIXTEEN, "Q"),
            Run(110, SIXTEEN, "A"),
            Run(115, &[1], "B"),
            Run(163, &[2], "B"),
            Run(299, &[4, 8, 16], "C"),
        ],
    },
    Model {
        name: "A40",
        prefix: "NVIDIA A40",
        framebuffer_gib: 48,
        generation: Generation::Ampere,
        rows: &[
            Run(555, &[1, 2], "B"),
            Run(557, FORTY_EIGHT, "Q"),
            Run(567, FORTY_EIGHT, "A"),
            Run(581, &[4, 6, 8, 12, 16, 24, 48], "C"),
        ],
    },
    Model {
        name: "A16",
        prefix: "NVIDIA A16",
        framebuffer_gib: 16,
        generation: Generation::Ampere,
        rows: &[
            Run(709, &[1, 2], "B"),
            Run(711, SIXTEEN, "Q"),
            Run(716, SIXTEEN, "A"),
            Run(721, &[4, 8, 16], "C"),
        ],
    },
    Model {
        name: "A10",
        prefix: "NVIDIA A10",
        framebuffer_gib: 24,
        generation: Generation::Ampere,
        rows: &[
            Run(588, &[1, 2], "B"),
            Run(590, TWENTY_FOUR, "Q"),
            Run(598, TWENTY_FOUR, "A"),
            Run(610, &[4, 6, 8, 12, 24], "C"),
        ],
    },
    Model {
        name: "A2",
        prefix: "NVIDIA A2",
        framebuffer_gib: 16,
        generation: Generation::Ampere,
        rows: &[
            Run(742, &[1, 2], "B"),
            Run(744, SIXTEEN, "Q"),
            Run(749, SIXTEEN, "A"),
            Run(754, &[4, 8, 16], "C"),
        ],
    },
    Model {
        name: "L4",
        prefix: "NVIDIA L4",
        framebuffer_gib: 24,
        generation: Generation::Ada,
        rows: &[Run(908, &[1, 2], "B"), Run(910, TWENTY_FOUR, "Q"), Run(918, TWENTY_FOUR, "A")],
    },
    Model {
        name: "L40S",
        prefix: "NVIDIA L40S",
        framebuffer_gib: 48,
        generation: Generation::Ada,
        rows: &[
            Run(1145, &[1, 2], "B"),
            Run(1147, FORTY_EIGHT, "Q"),
            Run(1157, FORTY_EIGHT, "A"),
            Run(2164, &[3], "B"),
        ],
    },
    Model {
        name: "A100",
        prefix: "GRID A100",
        framebuffer_gib: 40,
        generation: Generation::Ampere,
        rows: &[
            Run(468, &[4, 5, 8, 10, 20, 40], "C"),
            Mig(474, "1-5C", 5, 7),
            Mig(475, "2-10C", 10, 3),
            Mig(476, "3-20C", 20, 2),
            Mig(477, "4-20C", 20, 1),
            Mig(478, "7-40C", 40, 1),
            Mig(706, "1-5CME", 5, 1),
        ],
    },
    Model {
        name: "A100D",
        prefix: "NVIDIA A100D",
        framebuffer_gib: 80,
        generation: Generation::Ampere,
        rows: &[
            Run(692, &[4, 8, 10, 16, 20, 40, 80], "C"),
            Mig(699, "1-10C", 10, 7),
            Mig(700, "2-20C", 20, 3),
            Mig(701, "3-40C", 40, 2),
            Mig(702, "4-40C", 40, 1),
            Mig(703, "7-80C", 80, 1),
        ],
    },
    Model {
        name: "A30",
        prefix: "NVIDIA A30",
        framebuffer_gib: 24,
        generation: Generation::Ampere,
        rows: &[
            Run(684, &[4, 6, 8, 12, 24], "C"),
            Mig(689, "1-6C", 6, 4),
            Mig(690, "2-12C", 12, 2),
            Mig(691, "4-24C", 24, 1),
        ],
    },
    // Its ids are not public.
    Model {
        name: "H100",
        prefix: "NVIDIA H100",
        framebuffer_gib: 80,
        generation: Generation::Ada,
        rows: &[],
    },
    // Of its many types, those whose ids are public.
    Model {
        name: "RTX PRO 6000",
        prefix: "NVIDIA RTX Pro 6000 Blackwell DC",
        framebuffer_gib: 96,
        generation: Generation::Blackwell,
        rows: &[
            Run(1518, &[2], "B"),
            Run(1521, &[4], "Q"),
            Run(1540, &[48], "Q"),
            Mig(1546, "1-2Q", 2, 48),
            Mig(1561, "1-24Q", 24, 4),
        ],
    },
];

/// The model of that name.
pub fn model(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.name == name)
}

/// All models.
pub fn models() -> impl Iterator<Item = &'static Model> {
    MODELS.iter()
}

impl Model {
    /// Whether several vGPUs can share a GPU instance.
    pub fn shares_instances(&self) -> bool {
        self.generation == Generation::Blackwell
    }

    /// The framebuffer that its types divide.
    pub fn framebuffer(&self) -> Framebuffer {
        Framebuffer { gib: self.framebuffer_gib, generation: self.generation }
    }

    /// Its types.
    pub fn types(&self) -> impl Iterator<Item = CatalogType> + '_ {
        self.rows.iter().flat_map(|row| match *row {
            Run(first, sizes, series) => {
                let of_size = |(number, gib): (u32, &u32)| CatalogType {
                    number,
                    name: format!("{}-{gib}{series}", self.prefix),
                    gib: *gib,
                    max: (self.framebuffer_gib / gib).min(MOST),
                };
                (first..).zip(sizes).map(of_size).collect::<Vec<_>>()
            }
            Mig(number, suffix, gib, max) => {
                let name = format!("{}-{suffix}", self.prefix);
                vec![CatalogType { number, name, gib, max }]
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn find(model_name: &str, number: u32) -> (String, u32, u32) {
        let found = model(model_name).unwrap().types().find(|ty| ty.number == number).unwrap();
        (found.name, found.gib, found.max)
    }

    #[test]
    fn ids_names_and_counts_are_those_of_the_documents() {
        assert_eq!(find("T4", 232), ("GRID T4-4Q".into(), 4, 4));
        assert_eq!(find("T4", 222), ("GRID T4-1B".into(), 1, 16));
        assert_eq!(find("A40", 555), ("NVIDIA A40-1B".into(), 1, 32));
        assert_eq!(find("A40", 558), ("NVIDIA A40-2Q".into(), 2, 24));
        assert_eq!(find("A40", 587), ("NVIDIA A40-48C".into(), 48, 1));
        assert_eq!(find("A10", 597), ("NVIDIA A10-24Q".into(), 24, 1));
        assert_eq!(find("L40S", 1155), ("NVIDIA L40S-24Q".into(), 24, 2));
        assert_eq!(find("L40S", 2164), ("NVIDIA L40S-3B".into(), 3, 16));
        assert_eq!(find("A100", 476), ("GRID A100-3-20C".into(), 20, 2));
        assert_eq!(find("A100D", 695), ("NVIDIA A100D-16C".into(), 16, 5));
        assert_eq!(find("RTX PRO 6000", 1546).2, 48);
        assert_eq!(find("RTX PRO 6000", 1518).2, 32);
    }

    #[test]
    fn an_id_means_one_type() {
        let mut seen = BTreeSet::new();
        for ty in models().flat_map(Model::types) {
            assert!(seen.insert(ty.number), "{} is twice", ty.number);
            assert_eq!(crate::scan::text::framebuffer_of_name(&ty.name) >> 30, u64::from(ty.gib));
        }
        assert!(seen.len() > 150, "{}", seen.len());
    }
}
