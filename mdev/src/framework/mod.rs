//! The frameworks: what a GPU's facts mean, and the plans that make and remove
//! vGPUs. One file each; everything here is pure.

pub mod enable;
pub mod gim;
pub mod mdev;
pub mod nvidia;
pub mod nvidia_vf;
pub mod passthrough;
pub mod sriov;

mod names;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use uuid::Uuid;

use crate::{
    claims::{Claim, Claims, Phase},
    config::Config,
    model::{
        Framework, Function, FunctionState, Gpu, GpuId, GpuState, MigState, Node, NodeKind,
        PciAddress, Problem, Profile, Reason, ReasonCode, Vgpu, VgpuState,
    },
    room::Room,
    scan::{FunctionFacts, GpuFacts, GpuInstance, PciFacts, SmiFacts},
    totals::Totals,
};

/// The name space of the UUIDs under which foreign VFs are shown.
const FOREIGN: Uuid = Uuid::from_u128(0x6f9b_2d1c_58e4_4c6e_9a71_0d3f_b85e_c214);

/// What the facts of a GPU are seen through.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// What the administrator decided.
    pub config: &'a Config,
    /// Whose is what.
    pub claims: &'a Claims,
    /// How many of each type an empty GPU takes.
    pub totals: &'a Totals,
    /// What NVIDIA's program says of its GPUs, where it was asked.
    pub smi: &'a BTreeMap<GpuId, SmiFacts>,
    /// Whether the kernel has the mdev bus.
    pub has_mdev: bool,
    /// The PCI drivers that are loaded.
    pub drivers: &'a BTreeSet<String>,
    /// The VFIO variant drivers of this kernel (`modules.alias`).
    pub module_aliases: &'a str,
}

impl View<'_> {
    /// The VFIO driver for a device: its variant driver where that is loaded,
    /// else `vfio-pci`.
    pub fn vfio_driver(&self, modalias: &str) -> &str {
        let same = |driver: &str, module: &str| {
            driver.len() == module.len()
                && driver
                    .bytes()
                    .zip(module.bytes())
                    .all(|(a, b)| a == b || (a == b'-' && b == b'_'))
        };
        crate::scan::text::vfio_variant(self.module_aliases, modalias)
            .and_then(|module| self.drivers.iter().find(|driver| same(driver, module)))
            .map_or(VFIO_PCI, String::as_str)
    }

    /// Whether a driver is of VFIO: `vfio-pci`, or one of its variants.
    pub fn is_vfio_driver(&self, driver: &str) -> bool {
        driver == VFIO_PCI
            || self.module_aliases.lines().any(|line| {
                line.strip_prefix("alias vfio_pci:")
                    .and_then(|alias| alias.split_whitespace().next_back())
                    .is_some_and(|module| module.replace('_', "-") == driver.replace('_', "-"))
            })
    }
}

/// The generic VFIO driver for PCI.
pub const VFIO_PCI: &str = "vfio-pci";

/// Whether what a GPU offers depends on which vGPUs are on it beyond what its
/// driver counts: where its VFs carry mdevs, and with NVIDIA's rule of one size.
/// Such a GPU has few; another parent can have thousands.
pub fn needs_vgpus(facts: &GpuFacts) -> bool {
    let is_nvidia = facts.pci.as_ref().is_some_and(|pci| pci.ids.0 == nvidia::VENDOR);
    !facts.parents.is_empty() && (is_nvidia || !facts.functions.is_empty())
}

/// What a GPU offers: its profiles, sorted by id, and the room that they share,
/// whose kinds are in the same order.
pub struct Offer {
    /// The profiles, with what is available of each.
    pub profiles: Vec<Profile>,
    /// What their capacity follows from.
    pub room: Room,
}

/// A GPU as its facts show it; `vgpus` are those on it, where it
/// [needs](needs_vgpus) them.
pub fn gpu(facts: &GpuFacts, view: View<'_>, vgpus: &[Arc<Vgpu>]) -> Gpu {
    let framework = framework(facts, view);
    let functions = functions(facts, view, vgpus);
    let (ids, vendor) = match &facts.pci {
        Some(pci) => (Some(pci.ids), names::vendor(pci.ids.0)),
        None => (None, "virtual".to_owned()),
    };
    let Offer { profiles, room } = offer_of(facts, view, vgpus, &functions);
    let problems = problems(facts, framework, view);
    let smi = view.smi.get(&facts.id);
    Gpu {
        id: facts.id.clone(),
        vendor,
        model: model(facts),
        pci_ids: ids,
        driver: facts.pci.as_ref().and_then(|pci| pci.driver.clone()),
        numa_node: facts.pci.as_ref().and_then(|pci| pci.numa_node),
        iommu_group: facts.pci.as_ref().and_then(|pci| pci.group),
        framework,
        state: GpuState::Ready,
        vf_total: facts.pci.as_ref().map_or(0, |pci| pci.total_vfs),
        vf_count: facts.pci.as_ref().map_or(0, |pci| pci.functions.len() as u32),
        profiles,
        room,
        functions,
        problems,
        mig: smi.and_then(|smi| {
            let mig = smi.mig?;
            let name = |found: &GpuInstance| (found.id, found.shape.to_string());
            let instances = smi.instances.iter().map(name).collect();
            Some(MigState { current: mig.current, pending: mig.pending, instances })
        }),
        heterogeneous: smi.and_then(|smi| smi.heterogeneous),
    }
}

fn offer_of(
    facts: &GpuFacts,
    view: View<'_>,
    vgpus: &[Arc<Vgpu>],
    functions: &[Function],
) -> Offer {
    let slug = model_slug(facts);
    let mut offer = match framework(facts, view) {
        Framework::Mdev => mdev::offer(facts, view, vgpus),
        Framework::NvidiaVf => nvidia_vf::offer(facts, view, functions),
        Framework::Sriov => sriov::offer(facts, view, functions, &slug),
        Framework::Passthrough => {
            Offer { profiles: Vec::new(), room: Room::shared(Vec::new(), None) }
        }
    };
    if let Some(whole) = passthrough::profile(facts, view, &slug) {
        offer.room = offer.room.with_whole(passthrough::kind(&whole));
        offer.profiles.push(whole);
    }
    offer
}

/// How a GPU is divided: by NVIDIA's own VFIO where a VF has its folder, by mdev
/// where it or a VF of it is an mdev parent, by SR-IOV where it has that, else
/// not at all. Before their VFs exist, NVIDIA's GPUs of the first two kinds look
/// alike: there it is mdev where the kernel has its bus.
pub fn framework(facts: &GpuFacts, view: View<'_>) -> Framework {
    match &facts.pci {
        _ if facts.functions.iter().any(|f| f.vendor.is_some()) => Framework::NvidiaVf,
        _ if !facts.parents.is_empty() => Framework::Mdev,
        Some(_) if nvidia::has_functions(facts) && view.has_mdev => Framework::Mdev,
        Some(_) if nvidia::has_functions(facts) => Framework::NvidiaVf,
        Some(pci) if pci.total_vfs > 0 => Framework::Sriov,
        Some(_) => Framework::Passthrough,
        None => Framework::Mdev,
    }
}

/// The vGPUs that are PCI functions: claimed ones, and foreign ones on a VFIO
/// driver.
pub fn function_vgpus(facts: &GpuFacts, view: View<'_>, model_slug: &str) -> Vec<Vgpu> {
    let Some(pci) = &facts.pci else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for function in &facts.functions {
        found.extend(match function.vendor {
            Some(_) => nvidia_vf::vgpu(&facts.id, function, view),
            None => sriov::vgpu(&facts.id, function, view, model_slug),
        });
    }
    found.extend(passthrough::vgpu(&facts.id, pci, view, model_slug));
    found
}

/// GPUs whose changes must not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hive {
    /// An XGMI hive by its id (`xgmi_hive_info/xgmi_hive_id`).
    Xgmi(String),
    /// The GPUs of one model on AMD's GIM, which does not tell its hives.
    Gim(u16),
}

/// The hive of a GPU.
pub fn hive(facts: &GpuFacts) -> Option<Hive> {
    let pci = facts.pci.as_ref()?;
    match &pci.hive {
        Some(id) => Some(Hive::Xgmi(id.clone())),
        None => (pci.driver.as_deref() == Some(gim::DRIVER)).then_some(Hive::Gim(pci.ids.1)),
    }
}

/// Whether GIM is the driver of a GPU, or may be once it is loaded.
pub fn comes_with_gim(pci: &PciFacts) -> bool {
    const AMD: u16 = 0x1002;
    pci.ids.0 == AMD
        && pci.total_vfs > 0
        && pci.driver.as_deref().is_none_or(|driver| driver == gim::DRIVER)
}

/// The model in the form that profile names take.
pub fn model_slug(facts: &GpuFacts) -> String {
    slug(&model(facts))
}

fn model(facts: &GpuFacts) -> String {
    match &facts.pci {
        Some(pci) => names::model(pci.ids, pci.subsystem),
        None => facts.id.to_string(),
    }
}

fn slug(model: &str) -> String {
    model.to_lowercase().replace([' ', ':', '/'], "-")
}

/// Whether a GPU has been given away whole, by us or by someone else.
fn is_given_away(pci: &PciFacts, view: View<'_>) -> bool {
    view.claims.of_function(pci.address).is_some()
        || pci.driver.as_deref().is_some_and(|driver| view.is_vfio_driver(driver))
}

/// Why nothing of a GPU outside any IOMMU group is on offer.
fn iommu_off() -> Reason {
    Reason {
        code: ReasonCode::IommuOff,
        text: "the GPU is in no IOMMU group; turn on VT-d or AMD-Vi in the firmware and boot with \
               intel_iommu=on or amd_iommu=on"
            .into(),
    }
}

/// Why no function is on offer where the VFIO driver is not loaded.
fn vfio_driver_missing() -> Reason {
    let text = "vfio-pci is not loaded; run modprobe vfio-pci".into();
    Reason { code: ReasonCode::VfioDriverMissing, text }
}

/// A function, or a whole GPU by its first one, as a vGPU: when it is claimed,
/// or on a VFIO driver.
fn pci_vgpu(
    gpu: &GpuId,
    function: &FunctionFacts,
    view: View<'_>,
    framework: Framework,
    profile: &str,
    addresses: Vec<PciAddress>,
) -> Option<Vgpu> {
    let on_vfio = function.driver.as_deref().is_some_and(|driver| view.is_vfio_driver(driver));
    let claim = view.claims.of_function(function.address);
    if claim.is_none() && !on_vfio {
        return None;
    }
    let parent = function.address.to_string();
    Some(Vgpu {
        uuid: claim.as_ref().map_or_else(|| foreign_uuid(gpu, &parent), |claim| claim.uuid),
        name: claim.as_ref().and_then(|claim| claim.name.clone()),
        gpu: gpu.clone(),
        profile: profile.parse().ok(),
        framework,
        state: state(claim.as_ref(), on_vfio),
        addresses,
        parent,
        iommu_group: function.group,
        nodes: nodes(
            function.group.filter(|_| on_vfio),
            function.vfio_device.as_deref(),
            function.has_cdev,
        ),
        owner_uid: claim.as_ref().map_or(0, |claim| claim.owner_uid),
        managed: claim.is_some(),
        inode: function.inode,
        nvidia: None,
    })
}

fn functions(facts: &GpuFacts, view: View<'_>, vgpus: &[Arc<Vgpu>]) -> Vec<Function> {
    let is_parent = |function: &FunctionFacts| {
        let name = function.address.to_string();
        facts.parents.iter().any(|parent| parent.name == name)
    };
    facts
        .functions
        .iter()
        .map(|function| {
            let name = function.address.to_string();
            let claim = view.claims.of_function(function.address);
            let mut vgpu = claim.as_ref().map(|claim| claim.uuid);
            if vgpu.is_none() {
                vgpu = vgpus.iter().find(|vgpu| vgpu.parent == name).map(|vgpu| vgpu.uuid);
            }
            let state = match &function.driver {
                _ if vgpu.is_some() => FunctionState::Vgpu,
                _ if !function.linked => FunctionState::Changing,
                Some(_) if function.vendor.as_ref().is_some_and(|v| v.current == 0) => {
                    FunctionState::Free
                }
                Some(_) if function.vendor.is_some() => FunctionState::Vgpu,
                None => FunctionState::Free,
                Some(driver) if view.is_vfio_driver(driver) => FunctionState::Vgpu,
                Some(_) if is_parent(function) => FunctionState::Free,
                Some(_) => FunctionState::UsedByHost,
            };
            if vgpu.is_none() && state == FunctionState::Vgpu {
                vgpu = Some(match &function.vendor {
                    Some(v) => foreign_uuid(&facts.id, &format!("{name}/{}", v.current)),
                    None => foreign_uuid(&facts.id, &name),
                });
            }
            Function { address: function.address, driver: function.driver.clone(), state, vgpu }
        })
        .collect()
}

fn problems(facts: &GpuFacts, framework: Framework, view: View<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    let Some(pci) = &facts.pci else { return found };
    if framework == Framework::Sriov && pci.group.is_none() {
        found.push(Problem {
            code: "iommu-off",
            text: "the GPU is in no IOMMU group, so its VFs cannot be given to a guest; turn on \
                   VT-d or AMD-Vi in the firmware and boot with intel_iommu=on or amd_iommu=on"
                .into(),
        });
    }
    if framework == Framework::Sriov && !view.drivers.contains(VFIO_PCI) {
        found.push(Problem {
            code: "vfio-driver-missing",
            text: "the driver vfio-pci is not loaded; run modprobe vfio-pci".into(),
        });
    }
    if let Some(mig) = view.smi.get(&facts.id).and_then(|smi| smi.mig)
        && mig.pending != mig.current
    {
        let text = format!(
            "MIG mode is {} and is to be {} after the GPU's next reset; run nvidia-smi --gpu-reset -i {} \
             while nothing uses the GPU, or reboot",
            if mig.current { "on" } else { "off" },
            if mig.pending { "on" } else { "off" },
            pci.address
        );
        found.push(Problem { code: "mig-pending", text });
    }
    if pci.driver.as_deref() == Some(gim::DRIVER) && pci.functions.is_empty() {
        found.push(Problem {
            code: "gim-without-functions",
            text: "gim is bound and enabled no VF: vf_num may exceed what the GPU can have, of \
                   which gim does not tell; see dmesg, and set a smaller number"
                .into(),
        });
    }
    if pci.driver.is_none() && framework != Framework::Passthrough {
        found.push(Problem {
            code: "driver-missing",
            text: "no driver is bound to the GPU; load its driver and see dmesg for why it did not bind"
                .into(),
        });
    }
    found
}

/// The UUID under which a foreign VF-backed vGPU is shown: the same as long as
/// it is the same GPU and function.
pub fn foreign_uuid(gpu: &GpuId, function: &str) -> Uuid {
    Uuid::new_v5(&FOREIGN, format!("{gpu}/{function}").as_bytes())
}

/// The VFIO nodes of a device.
fn nodes(group: Option<u32>, vfio_device: Option<&str>, has_cdev: bool) -> Vec<Node> {
    let group = group.map(|n| Node { kind: NodeKind::Group, path: format!("vfio/{n}") });
    let cdev = vfio_device
        .filter(|_| has_cdev)
        .map(|name| Node { kind: NodeKind::Cdev, path: format!("vfio/devices/{name}") });
    cdev.into_iter().chain(group).collect()
}

/// The state of a vGPU whose device is `ready` or not.
fn state(claim: Option<&Claim>, ready: bool) -> VgpuState {
    match claim.map(|claim| claim.phase) {
        Some(Phase::Reserved) => VgpuState::Creating,
        Some(Phase::Removing) => VgpuState::Removing,
        Some(Phase::Active) | None if ready => VgpuState::Active,
        Some(Phase::Active) | None => VgpuState::Broken,
    }
}
