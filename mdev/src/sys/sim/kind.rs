//! Kinds of mdev parents as they are described: type by type, or by the name of a
//! model in the catalog.

use nix::errno::Errno;
use serde::Deserialize;

use crate::catalog;

use super::spec::{ErrnoName, Homogeneous, MdevKind, MdevType};

/// A kind, as TOML has it.
///
/// ```toml
/// [mdev-kind.a40]
/// driver = "nvidia-vgpu-vfio"
/// catalog = "A40" # its types, in GiB of its framebuffer, one size on a GPU
/// per-parent = 1
/// ```
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Described {
    driver: String,
    catalog: Option<String>,
    units: Option<u64>,
    full: Option<ErrnoName>,
    homogeneous: Option<Homogeneous>,
    mismatch: Option<ErrnoName>,
    per_parent: Option<u32>,
    guest_ids: Option<(u16, u16)>,
    #[serde(default)]
    types: Vec<MdevType>,
}

impl TryFrom<Described> for MdevKind {
    type Error = String;

    fn try_from(said: Described) -> Result<Self, String> {
        let model = match &said.catalog {
            None => None,
            Some(name) => Some(catalog::model(name).ok_or_else(|| {
                let known: Vec<_> = catalog::models().map(|model| model.name).collect();
                format!("the catalog has no {name:?}; it has {}", known.join(", "))
            })?),
        };
        let units = said.units.or(model.map(|model| u64::from(model.framebuffer_gib)));
        let mut types: Vec<MdevType> =
            model.iter().flat_map(|model| model.types()).map(of_catalog).collect();
        types.extend(said.types);
        Ok(Self {
            driver: said.driver,
            units: units.ok_or("an mdev-kind needs units, or the catalog's name of a model")?,
            full: said.full.unwrap_or(ErrnoName(Errno::ENOSPC)),
            homogeneous: said.homogeneous.or(model.map(|_| Homogeneous::Size)),
            mismatch: said.mismatch.unwrap_or(ErrnoName(Errno::EINVAL)),
            per_parent: said.per_parent,
            guest_ids: said.guest_ids,
            types,
        })
    }
}

/// A type as NVIDIA's driver describes it.
fn of_catalog(ty: catalog::CatalogType) -> MdevType {
    let description = format!(
        "num_heads=4, frl_config=60, framebuffer={}M, max_resolution=7680x4320, max_instance={}",
        u64::from(ty.gib) << 10,
        ty.max
    );
    MdevType {
        id: format!("nvidia-{}", ty.number),
        name: Some(ty.name),
        description: Some(description),
        device_api: "vfio-pci".into(),
        size: u64::from(ty.gib),
        max: Some(ty.max),
    }
}
