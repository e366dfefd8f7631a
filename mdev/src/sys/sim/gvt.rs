//! GVT-g: mdev types that take a part of the graphics memory. i915 divides it in
//! `drivers/gpu/drm/i915/gvt` of Linux 6.12: guests share the mappable aperture
//! (low), what lies beyond it (high), and the fence registers.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::spec::{MdevKind, MdevType};

/// Graphics memory and fences: what is left for guests, or what one takes.
///
/// The host itself keeps 128 MB, 384 MB and 4 of them (`HOST_LOW_GM_SIZE`,
/// `HOST_HIGH_GM_SIZE` and `HOST_FENCE` of gvt.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Aperture {
    /// Graphics memory in the aperture, in MB.
    pub low_mb: u32,
    /// Graphics memory beyond it, in MB.
    pub high_mb: u32,
    /// Fence registers.
    pub fences: u32,
}

/// A type's description (`intel_vgpu_show_description` of kvmgt.c).
pub(super) fn description(takes: Aperture, resolution: &str, weight: u32) -> String {
    let Aperture { low_mb, high_mb, fences } = takes;
    format!(
        "low_gm_size: {low_mb}MB\nhigh_gm_size: {high_mb}MB\nfence: {fences}\n\
         resolution: {resolution}\nweight: {weight}"
    )
}

/// How many more of a type fit: `intel_vgpu_get_available` of kvmgt.c. No limit
/// where the types do not divide an aperture.
pub(super) fn left(kind: &MdevKind, counts: &BTreeMap<u16, u32>, wanted: &MdevType) -> u64 {
    let (Some(all), Some(takes)) = (kind.aperture, wanted.aperture) else { return u64::MAX };
    let fit = |of: fn(Aperture) -> u32| {
        let used: u64 = counts
            .iter()
            .filter_map(|(index, count)| {
                let one = kind.types.get(usize::from(*index))?.aperture?;
                Some(u64::from(of(one)) * u64::from(*count))
            })
            .sum();
        u64::from(of(all)).saturating_sub(used).checked_div(of(takes).into()).unwrap_or(u64::MAX)
    };
    fit(|a| a.low_mb).min(fit(|a| a.high_mb)).min(fit(|a| a.fences))
}
