//! Kinds of mdev parents as they are described: type by type, or by the name of a
//! model in the catalog.

use nix::errno::Errno;
use serde::Deserialize;

use crate::catalog;

use super::{
    gvt::{self, Aperture},
    spec::{ErrnoName, Homogeneous, MdevKind, MdevType},
};

/// A kind, as TOML has it.
///
/// ```toml
/// [mdev-kind.a40]
/// driver = "nvidia-vgpu-vfio"
/// catalog = "A40" # its types, in GiB of its framebuffer, one size on a GPU
/// per-parent = 1
///
/// [mdev-kind.gvt]
/// driver = "intel_vgpu_mdev"
/// aperture = { low-mb = 128, high-mb = 3456, fences = 28 } # left for guests
/// types = [{ id = "i915-GVTg_V5_8", low-mb = 64, high-mb = 384, fence = 4, … }]
/// ```
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Described {
    driver: String,
    catalog: Option<String>,
    units: Option<u64>,
    aperture: Option<Aperture>,
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
        let units = said
            .units
            .or(model.map(|model| u64::from(model.framebuffer_gib)))
            .or(said.aperture.map(|aperture| aperture.low_mb.into()));
        let mut types: Vec<MdevType> =
            model.iter().flat_map(|model| model.types()).map(of_catalog).collect();
        types.extend(said.types);
        if let Some(all) = said.aperture {
            // Types are offered up to the first that is too large for the
            // aperture (intel_gvt_init_vgpu_types, gvt/vgpu.c).
            let fits = |ty: &MdevType| ty.aperture.is_none_or(|one| one.low_mb <= all.low_mb);
            let fitting = types.iter().take_while(|ty| fits(ty)).count();
            types.truncate(fitting);
        }
        Ok(Self {
            driver: said.driver,
            units: units
                .ok_or("an mdev-kind needs units, an aperture, or the catalog's name of a model")?,
            aperture: said.aperture,
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
        aperture: None,
        max: Some(ty.max),
    }
}

/// A type, as TOML has it: with the size of one, or with what one takes of the
/// graphics memory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct DescribedType {
    id: String,
    name: Option<String>,
    description: Option<String>,
    device_api: Option<String>,
    size: Option<u64>,
    max: Option<u32>,
    low_mb: Option<u32>,
    high_mb: Option<u32>,
    fence: Option<u32>,
    weight: Option<u32>,
    resolution: Option<String>,
}

impl TryFrom<DescribedType> for MdevType {
    type Error = String;

    fn try_from(said: DescribedType) -> Result<Self, String> {
        let takes = match (said.low_mb, said.high_mb, said.fence) {
            (Some(low_mb), Some(high_mb), Some(fences)) => {
                Some(Aperture { low_mb, high_mb, fences })
            }
            _ => None,
        };
        let of_gvt = takes.zip(said.weight).zip(said.resolution.as_deref()).map(
            |((takes, weight), resolution)| (takes, gvt::description(takes, resolution, weight)),
        );
        let (size, aperture, description) = match (said.size, of_gvt) {
            (Some(size), None) => (size, None, said.description),
            (None, Some((takes, text))) => (takes.low_mb.into(), Some(takes), Some(text)),
            _ => {
                return Err(format!(
                    "{} needs either a size, or low-mb, high-mb, fence, weight and resolution",
                    said.id
                ));
            }
        };
        Ok(Self {
            id: said.id,
            name: said.name,
            description,
            device_api: said.device_api.unwrap_or_else(|| "vfio-pci".into()),
            size,
            aperture,
            max: said.max,
        })
    }
}
