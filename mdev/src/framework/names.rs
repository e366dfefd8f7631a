//! Names of makers and models: data, for people and for profile names only.

/// The maker; its id when unknown.
pub(super) fn vendor(id: u16) -> String {
    match id {
        0x10de => "NVIDIA".into(),
        0x1002 => "AMD".into(),
        0x8086 => "Intel".into(),
        0x1b36 => "Red Hat".into(),
        _ => format!("{id:04x}"),
    }
}

/// The model; `vvvv:dddd` when unknown. A16 and A2 share a device id: their
/// subsystem tells them apart.
pub(super) fn model(ids: (u16, u16), subsystem: (u16, u16)) -> String {
    let known = match (ids, subsystem.1) {
        ((0x10de, 0x25b6), 0x14a9) => Some("A16"),
        ((0x10de, 0x25b6), _) => Some("A2"),
        _ => MODELS.iter().find(|(known, _)| *known == ids).map(|(_, name)| *name),
    };
    known.map_or_else(|| format!("{:04x}:{:04x}", ids.0, ids.1), str::to_owned)
}

/// PCI ids of physical functions (the PCI ID Repository; AMD's from GIM).
const MODELS: &[((u16, u16), &str)] = &[
    ((0x10de, 0x15f8), "P100"),
    ((0x10de, 0x1db4), "V100"),
    ((0x10de, 0x1eb8), "T4"),
    ((0x10de, 0x2235), "A40"),
    ((0x10de, 0x2236), "A10"),
    ((0x10de, 0x20f1), "A100"),
    ((0x10de, 0x20b5), "A100D"),
    ((0x10de, 0x20b7), "A30"),
    ((0x10de, 0x26b9), "L40S"),
    ((0x10de, 0x27b8), "L4"),
    ((0x10de, 0x2331), "H100"),
    ((0x10de, 0x2bb5), "RTX PRO 6000"),
    ((0x1002, 0x6929), "S7150"),
    ((0x1002, 0x6860), "MI25"),
    ((0x1002, 0x6864), "V340"),
    ((0x1002, 0x7360), "V520"),
    ((0x1002, 0x73a1), "V620"),
    ((0x1002, 0x7408), "MI250X"),
    ((0x1002, 0x740c), "MI250"),
    ((0x1002, 0x740f), "MI210"),
    ((0x1002, 0x74a1), "MI300X"),
    ((0x1002, 0x74a9), "MI300X"),
    ((0x1002, 0x74a2), "MI308X"),
    ((0x1002, 0x74a8), "MI308X"),
    ((0x1002, 0x74a5), "MI325X"),
    ((0x1002, 0x75a0), "MI350X"),
    ((0x1002, 0x75a3), "MI355X"),
    ((0x1002, 0x7460), "V710"),
    ((0x8086, 0x56c0), "Flex 170"),
    ((0x8086, 0x56c1), "Flex 140"),
    ((0x8086, 0x56c2), "Flex 170"),
    ((0x8086, 0x0bd5), "Max 1550"),
    ((0x8086, 0x0bda), "Max 1100"),
    ((0x8086, 0xe211), "Arc Pro B60"),
    ((0x8086, 0xe212), "Arc Pro B50"),
    ((0x8086, 0xe222), "Arc Pro B65"),
    ((0x8086, 0xe223), "Arc Pro B70"),
];
