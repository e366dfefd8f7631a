//! The rules by which NVIDIA's drivers divide a GPU, the same with mdev and with
//! vendor-specific VFIO: one size at a time, sizes side by side, or MIG. What
//! stands against a type is told from them, since the driver only says 0.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    catalog::{self, CatalogType},
    framebuffer::Run,
    model::{Framework, GpuId, Profile, Reason, ReasonCode, TypeId},
    plan::{Expect, Step, StepOp, Undo},
    room::{self, Kind, Room, Rule, Shape, Slot},
    scan::{GpuFacts, GpuInstance, SmiFacts, text},
    sys::{InvalidPath, LaneKey, SysPath, WriteAttr},
};

use super::{Offer, View, names};

/// NVIDIA's PCI vendor id.
pub const VENDOR: u16 = 0x10de;

/// The host driver of its GPUs and VFs.
const DRIVER: &str = "nvidia";

/// At most so many vGPUs are named in a reason.
const NAMED: usize = 4;

/// How a GPU is divided now.
pub(super) struct Division<'a> {
    /// The GPU.
    pub(super) gpu: &'a GpuId,
    /// What NVIDIA's program says, where it was asked.
    pub(super) smi: Option<&'a SmiFacts>,
    /// The model, as the catalog has it.
    pub(super) model: Option<&'static catalog::Model>,
    /// The vGPUs that are there.
    pub(super) placed: Vec<Placed>,
    /// The VFs, all and free ones; `None` where the GPU itself carries vGPUs.
    pub(super) functions: Option<Functions>,
    /// Whether the functions, where they carry vGPUs, can go to a guest.
    pub(super) has_iommu: bool,
    /// Whether MIG is on, where that is known: what is listed tells, before
    /// NVIDIA's program does, whose word can be out of date.
    pub(super) mig: Option<bool>,
    /// Whether the driver lists any type.
    pub(super) lists: bool,
    /// Whether the vGPUs are named by the VFs that carry them.
    pub(super) is_named_by_functions: bool,
}

/// The VFs of a GPU.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    pub(super) all: u32,
    pub(super) free: u32,
    /// How many the hardware has.
    pub(super) total: u32,
}

/// A vGPU that is there.
pub(super) struct Placed {
    /// Its UUID, or the address of the VF that carries it.
    pub(super) who: String,
    pub(super) id: TypeId,
    /// Its framebuffer in bytes.
    pub(super) size: u64,
    /// The GPU instance that it is in, where the driver says.
    pub(super) instance: Option<u32>,
    /// Where it lies in the framebuffer, where the driver says.
    pub(super) placement: Option<u32>,
}

/// Whether a GPU is NVIDIA's, on NVIDIA's driver, and carries its vGPUs on VFs.
pub fn has_functions(facts: &GpuFacts) -> bool {
    facts.pci.as_ref().is_some_and(|pci| {
        pci.ids.0 == VENDOR && pci.total_vfs > 0 && pci.driver.as_deref() == Some(DRIVER)
    })
}

/// Whether a GPU is in an IOMMU group, which its VFs need.
pub(super) fn has_iommu(facts: &GpuFacts) -> bool {
    facts.pci.as_ref().is_some_and(|pci| pci.group.is_some())
}

/// The model of a GPU in the catalog.
pub(super) fn model(facts: &GpuFacts) -> Option<&'static catalog::Model> {
    let pci = facts.pci.as_ref()?;
    catalog::model(&names::model(pci.ids, pci.subsystem))
}

/// The type id for a number, as mdev would name it.
pub fn type_id(number: u32) -> Option<TypeId> {
    format!("nvidia-{number}").parse().ok()
}

/// The types of a model by their ids.
pub(super) fn catalog_types(
    model: Option<&'static catalog::Model>,
) -> BTreeMap<TypeId, CatalogType> {
    let types = model.into_iter().flat_map(catalog::Model::types);
    types.filter_map(|ty| Some((type_id(ty.number)?, ty))).collect()
}

/// A profile as the catalog knows it, nothing of it available.
pub(super) fn catalog_profile(id: TypeId, ty: &CatalogType, framework: Framework) -> Profile {
    Profile {
        short_name: text::short_name(id.as_str(), &ty.name),
        id,
        name: ty.name.clone(),
        framework,
        description: String::new(),
        device_api: super::VFIO_PCI.into(),
        framebuffer: u64::from(ty.gib) << 30,
        total: ty.max,
        available: 0,
        reason: None,
    }
}

/// What a GPU would offer whose VFs do not exist, or carry no types: what the
/// catalog has for its model.
pub(super) fn offer_without_types(facts: &GpuFacts, view: View<'_>, framework: Framework) -> Offer {
    let model = model(facts);
    let division = Division {
        gpu: &facts.id,
        smi: view.smi.get(&facts.id),
        model,
        placed: Vec::new(),
        functions: facts.pci.as_ref().map(|pci| Functions {
            all: facts.functions.len() as u32,
            free: facts.functions.len() as u32,
            total: pci.total_vfs,
        }),
        has_iommu: has_iommu(facts),
        mig: None,
        lists: false,
        is_named_by_functions: false,
    };
    let profiles = catalog_types(model)
        .into_iter()
        .map(|(id, ty)| (catalog_profile(id, &ty, framework), 0))
        .collect();
    division.offer(profiles)
}

/// The steps that set the parameters of a vGPU, a VF or an mdev. A blank clears
/// them all (NVIDIA's documents); an empty write would do nothing.
pub(super) fn plan_params(
    lane: LaneKey,
    device: SysPath,
    old: &str,
    new: &str,
) -> Result<Vec<Step>, InvalidPath> {
    let path = device.join("nvidia/vgpu_params")?;
    let write = |text: &str| WriteAttr {
        path: path.clone(),
        value: if text.is_empty() { " ".into() } else { text.to_owned() },
    };
    Ok(vec![Step {
        lane: lane.clone(),
        op: StepOp::Write(write(new)),
        expect: Expect::Text { path: path.clone(), text: new.to_owned() },
        undo: vec![Undo::write(lane, write(old))],
    }])
}

impl Division<'_> {
    /// The offer of these profiles, each with how many of it the driver lists.
    pub(super) fn offer(self, profiles: Vec<(Profile, u32)>) -> Offer {
        let is_mig_backed = |profile: &Profile| text::instance_of_name(&profile.name).is_some();
        let listed = profiles.iter().find(|(_, listed)| *listed > 0);
        let mig = listed.map(|(profile, _)| is_mig_backed(profile));
        Self { mig: mig.or(self.mig_by_smi()), ..self }.offer_as_listed(profiles)
    }

    fn offer_as_listed(&self, profiles: Vec<(Profile, u32)>) -> Offer {
        let kinds: Vec<Kind> = profiles
            .iter()
            .map(|(profile, listed)| {
                let instance = text::instance_of_name(&profile.name);
                let (size, total) = (profile.framebuffer, profile.total);
                let offered = match self.contradicts(instance.is_some()) || !self.has_iommu {
                    true => 0,
                    false => (*listed).min(self.most(profile)),
                };
                Kind { id: profile.id.clone(), size, total, offered, whole: false, instance }
            })
            .collect();
        let rule = self.rule(&kinds);
        let room = Room::ruled(kinds, rule, self.functions.map(|functions| functions.free));
        let mut profiles: Vec<Profile> = profiles.into_iter().map(|(profile, _)| profile).collect();
        for (place, (profile, kind)) in profiles.iter_mut().zip(room.kinds()).enumerate() {
            profile.available = room.available(place);
            profile.reason = (profile.available == 0).then(|| self.reason(room.kinds(), kind));
        }
        Offer { profiles, room }
    }

    /// Whether MIG being on or off rules a type out.
    fn contradicts(&self, is_mig_backed: bool) -> bool {
        self.mig.is_some_and(|on| on != is_mig_backed)
    }

    fn mig_by_smi(&self) -> Option<bool> {
        self.smi.map(|smi| smi.mig.as_ref().is_some_and(|mig| mig.current))
    }

    fn nominal(&self, kinds: &[Kind]) -> u64 {
        let known = self.model.map_or(0, |model| u64::from(model.framebuffer_gib) << 30);
        kinds.iter().map(|kind| kind.size).fold(known, u64::max)
    }

    fn rule(&self, kinds: &[Kind]) -> Rule {
        let nominal = self.nominal(kinds);
        let instances = |smi| Rule::Instances(self.slots(smi, kinds));
        if let Some(rule) = self.smi.filter(|_| self.mig == Some(true)).map(instances)
            && self.is_borne_out(&rule, kinds)
        {
            return rule;
        }
        let mut placed = BTreeMap::new();
        for vgpu in &self.placed {
            *placed.entry(vgpu.size).or_insert(0u32) += 1;
        }
        if let Some(rule) = self.model.filter(|_| self.is_mixed()).map(|m| self.places(m, kinds))
            && self.is_borne_out(&rule, kinds)
        {
            return rule;
        }
        if self.is_mixed() {
            return Rule::Mixed { left: nominal.saturating_sub(self.used()) };
        }
        let one_size = Rule::OneSize { nominal, placed };
        if self.is_borne_out(&one_size, kinds) {
            return one_size;
        }
        // The driver offers another size than is there: not one size at a time.
        let left = |kind: &Kind| kind.size.saturating_mul(u64::from(kind.offered));
        Rule::Mixed { left: kinds.iter().map(left).max().unwrap_or(0) }
    }

    /// The GPU instances with what they carry; where the driver does not say in
    /// which one a vGPU is, it is taken to be in the first that takes it.
    fn slots(&self, smi: &SmiFacts, kinds: &[Kind]) -> Vec<Slot> {
        let shared = self.model.is_some_and(catalog::Model::shares_instances);
        let slot =
            |instance: &GpuInstance| Slot { shape: instance.shape.clone(), carries: None, shared };
        let mut slots: Vec<Slot> = smi.instances.iter().map(slot).collect();
        for vgpu in &self.placed {
            let Some(kind) = kinds.iter().find(|kind| kind.id == vgpu.id) else { continue };
            let known = smi.instances.iter().position(|found| Some(found.id) == vgpu.instance);
            let place = known.or_else(|| slots.iter().position(|slot| slot.takes(kind) > 0));
            if let Some(slot) = place.and_then(|place| slots.get_mut(place)) {
                slot.add(kind);
            }
        }
        slots
    }

    fn places(&self, model: &catalog::Model, kinds: &[Kind]) -> Rule {
        Rule::Placed { framebuffer: model.framebuffer(), taken: self.runs(model, kinds) }
    }

    /// Whether a rule has room for all that the driver offers. It may not where it
    /// is not known how the vGPUs lie, or what nvidia-smi said is out of date.
    fn is_borne_out(&self, rule: &Rule, kinds: &[Kind]) -> bool {
        let room = Room::ruled(kinds.to_vec(), rule.clone(), None);
        let denied = |(place, kind): (usize, &Kind)| kind.offered > 0 && room.available(place) == 0;
        !kinds.iter().enumerate().any(denied)
    }

    /// What the vGPUs take of the framebuffer; where the driver does not say, they
    /// are taken to lie where it puts them.
    fn runs(&self, model: &catalog::Model, kinds: &[Kind]) -> Vec<Run> {
        let framebuffer = model.framebuffer();
        let mut runs = Vec::with_capacity(self.placed.len());
        for vgpu in &self.placed {
            let Some(kind) = kinds.iter().find(|kind| kind.id == vgpu.id) else { continue };
            let size = framebuffer.size((kind.size >> 30) as u32);
            let known = vgpu.placement.map(|start| Run { start, size });
            runs.extend(known.or_else(|| room::places(&framebuffer, &runs, kind).next()));
        }
        runs
    }

    /// Whether sizes are known to lie side by side.
    fn is_mixed(&self) -> bool {
        self.smi.is_some_and(|smi| smi.heterogeneous == Some(true))
    }

    /// How many more the driver's own maximum leaves: of all of a size, of a
    /// MIG-backed type alone. It does not hold for sizes side by side.
    fn most(&self, profile: &Profile) -> u32 {
        if self.is_mixed() || profile.total == 0 {
            return u32::MAX;
        }
        let is_mig_backed = text::instance_of_name(&profile.name).is_some();
        let same = |vgpu: &&Placed| match is_mig_backed {
            true => vgpu.id == profile.id,
            false => vgpu.size == profile.framebuffer,
        };
        profile.total.saturating_sub(self.placed.iter().filter(same).count() as u32)
    }

    fn used(&self) -> u64 {
        self.placed.iter().map(|vgpu| vgpu.size).sum()
    }

    /// Why none of a kind is available.
    fn reason(&self, kinds: &[Kind], kind: &Kind) -> Reason {
        let gpu = self.gpu;
        let why = |code, text: String| Reason { code, text };
        if !self.has_iommu {
            return super::iommu_off();
        }
        if self.contradicts(kind.instance.is_some()) {
            return match &kind.instance {
                Some(_) => why(
                    ReasonCode::MigOff,
                    format!(
                        "the type needs a MIG GPU instance, and MIG is off on the GPU{}; run \
                         vgpuctl configure {gpu} --mig on",
                        self.pending()
                    ),
                ),
                None => why(
                    ReasonCode::MigOn,
                    format!(
                        "MIG is on, and the type is time-sliced{}; use a MIG-backed type, or run \
                         vgpuctl configure {gpu} --mig off",
                        self.pending()
                    ),
                ),
            };
        }
        if let Some(functions) = self.functions {
            if functions.all == 0 {
                let text = format!(
                    "no VF is enabled, and NVIDIA's driver enables all or none; run vgpuctl \
                     set-vfs {gpu} {}",
                    functions.total
                );
                return why(ReasonCode::NoFunctionsEnabled, text);
            }
            if !self.lists && self.placed.is_empty() && self.mig != Some(true) {
                return why(
                    ReasonCode::NoTypes,
                    "the driver lists no type on any VF: its edition may have none for this GPU, \
                     or NVIDIA's vGPU manager is not there; see dmesg and journalctl -u \
                     nvidia-vgpu-mgr"
                        .into(),
                );
            }
        }
        if let Some(shape) = &kind.instance
            && let Some(reason) = self.no_instance(kinds, kind, shape)
        {
            return reason;
        }
        if let Some(other) = self.placed.iter().find(|vgpu| vgpu.size != kind.size)
            && !self.is_mixed()
            && kind.instance.is_none()
        {
            let text = format!(
                "{} {} the GPU to profiles of {} GiB, as the driver puts only one size on a GPU; \
                 remove what is there, or use such a profile",
                self.those_there(|_| true),
                if self.placed.len() == 1 { "locks" } else { "lock" },
                other.size >> 30
            );
            return why(ReasonCode::LockedToSize, text);
        }
        if let Some(functions) = self.functions.filter(|functions| functions.free == 0) {
            let text = format!("none of {} VFs is free; remove a vGPU", functions.all);
            return why(ReasonCode::NoFreeFunction, text);
        }
        why(ReasonCode::Full, self.full())
    }

    fn full(&self) -> String {
        let nominal = self.model.map(|model| model.framebuffer_gib);
        match (self.placed.is_empty(), nominal) {
            (true, _) => "the driver offers none, although no vGPU is on the GPU: another \
                          process may use it; see dmesg"
                .into(),
            (false, Some(gib)) => format!(
                "{} {} {} of {gib} GiB, and the driver offers no more; remove one",
                self.those_there(|_| true),
                if self.placed.len() == 1 { "takes" } else { "take" },
                self.used() >> 30,
            ),
            (false, None) => format!(
                "{} {} its place, and the driver offers no more; remove one",
                self.those_there(|_| true),
                if self.placed.len() == 1 { "takes" } else { "take" },
            ),
        }
    }

    /// Why a MIG-backed type has no GPU instance to be in.
    fn no_instance(&self, kinds: &[Kind], kind: &Kind, shape: &Shape) -> Option<Reason> {
        let gpu = self.gpu;
        let Some(smi) = self.smi else {
            let text = format!(
                "the type needs a MIG GPU instance of {} compute slices, and the driver offers \
                 none: MIG is off, or there is no such instance; vgpuctl show {gpu} tells \
                 where NVIDIA's nvidia-smi is installed",
                shape.slices
            );
            return Some(Reason { code: ReasonCode::NoGpuInstance, text });
        };
        let empty = |slot: &Slot| Slot { carries: None, ..slot.clone() }.takes(kind) > 0;
        let slots = self.slots(smi, kinds);
        if slots.iter().any(empty) {
            let fitting: BTreeSet<u32> = smi
                .instances
                .iter()
                .zip(&slots)
                .filter(|(_, slot)| empty(slot))
                .map(|(instance, _)| instance.id)
                .collect();
            let there =
                self.those_there(|vgpu| vgpu.instance.is_some_and(|id| fitting.contains(&id)));
            let text = if there.is_empty() {
                "the driver offers none, although a GPU instance of its shape is there; see dmesg"
                    .into()
            } else {
                format!("{there} fill the GPU instances of its shape; remove one, or make another")
            };
            return Some(Reason { code: ReasonCode::Full, text });
        }
        let has: Vec<String> = smi.instances.iter().map(|found| found.shape.to_string()).collect();
        let text = format!(
            "no GPU instance of {} compute slices fits the type ({}); run vgpuctl configure \
             {gpu} --instances with such a one",
            shape.slices,
            if has.is_empty() {
                "there is none".to_owned()
            } else {
                format!("there are {}", has.join(", "))
            }
        );
        Some(Reason { code: ReasonCode::NoGpuInstance, text })
    }

    /// What is said of a MIG mode that waits for a reset.
    fn pending(&self) -> &'static str {
        match self.smi.and_then(|smi| smi.mig.as_ref()) {
            Some(mig) if mig.pending != mig.current && mig.pending => {
                " (it is to be on after the GPU's next reset)"
            }
            Some(mig) if mig.pending != mig.current => {
                " (it is to be off after the GPU's next reset)"
            }
            _ => "",
        }
    }

    /// The vGPUs in words: `vGPU …`, `the vGPUs on …`.
    fn those_there(&self, wanted: impl Fn(&Placed) -> bool) -> String {
        let all: Vec<&str> =
            self.placed.iter().filter(|vgpu| wanted(vgpu)).map(|vgpu| vgpu.who.as_str()).collect();
        let named = all.get(..NAMED.min(all.len())).unwrap_or_default().join(", ");
        let what = match (all.len(), self.is_named_by_functions) {
            (0, _) => return String::new(),
            (1, false) => "vGPU",
            (1, true) => "vGPU on VF",
            (_, false) => "vGPUs",
            (_, true) => "vGPUs on the VFs",
        };
        match all.len().saturating_sub(NAMED) {
            0 => format!("{what} {named}"),
            more => format!("{what} {named} and {more} more"),
        }
    }
}
