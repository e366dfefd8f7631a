//! AMD's GIM, as its sources of 8.0.0.K have it: no `sriov_configure`, so the VFs
//! come and go with the module, for all of its GPUs at once, as many as `vf_num`
//! says. A GPU that cannot have so many is bound all the same, without VFs.

mod partition;

use std::collections::BTreeMap;

use nix::errno::Errno;
use serde::Deserialize;

use crate::{model::PciAddress, sys::ToolOutput};

use super::{
    SimKernel,
    attr::Attr,
    core::Core,
    number::unsigned,
    pci,
    spec::{HostSpec, PciSpec},
    sriov,
    state::{Member, Role, State},
};

pub(super) use partition::{set_memory, set_profile};

/// The driver's and the module's name.
const DRIVER: &str = "gim";
/// The most VFs of one GPU (`VF_NUMBER__MAX`, gim_config.h).
const MOST: u16 = 31;
/// The most numbers that `vf_num` takes (`AMDGV_MAX_GPU_NUM`).
const MOST_GPUS: usize = 32;
/// What nobody may read: it resets the GPU, writes its flash, or asks how far
/// that is (gim_monitor.c).
const HARMFUL: [Attr; 3] = [Attr::ResetGpu, Attr::PspVbflash, Attr::PspVbflashStatus];

/// A GPU of GIM, in `[pci.gim]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GimSpec {
    /// Its XGMI hive: partition modes change for all GPUs of one.
    pub hive: u64,
    /// Whether `xgmi_hive_info/xgmi_hive_id` tells the hive.
    #[serde(default)]
    pub hive_file: bool,
    /// The most VFs that it can have.
    pub limit: u16,
    /// The VFs at boot; 0 on all GPUs for a module that is not loaded.
    #[serde(default)]
    pub vf_num: u16,
}

/// The module and its GPUs.
#[derive(Default)]
pub(super) struct Gim {
    gpus: BTreeMap<PciAddress, Gpu>,
    /// The parameter `vf_num` of the module as it was loaded.
    given: Vec<u32>,
    /// What became of it, which outlives the module in `/etc/gim_config`.
    numbers: Vec<u16>,
    /// The GPUs probed since the module was loaded.
    probed: usize,
}

struct Gpu {
    spec: GimSpec,
    /// The VFs, while the driver runs the GPU.
    vfs: Option<u16>,
    /// How often it was reset by reading `reset_gpu`.
    resets: u32,
    partition: partition::Partition,
}

/// What is wrong with a GPU that is described to be GIM's.
pub(super) fn fault(host: &HostSpec, function: &PciSpec) -> Option<String> {
    let (address, gim) = (function.address, function.gim.as_ref()?);
    let at_boot = |function: &PciSpec| function.gim.as_ref().map(|gim| gim.vf_num > 0);
    let plain = |sriov: &super::SriovSpec| !sriov.callback && sriov.enabled == 0;
    let Some(sriov) = function.sriov.as_ref().filter(|sriov| plain(sriov)) else {
        return Some(format!(
            "{address} has [pci.gim]: its [pci.sriov] needs callback = false and no enabled VFs"
        ));
    };
    if function.driver.as_deref() != Some(DRIVER) {
        return Some(format!("{address} has [pci.gim], but another driver than {DRIVER}"));
    }
    let most = sriov.total_vfs.min(MOST);
    if !(1..=most).contains(&gim.limit) || gim.vf_num > MOST {
        return Some(format!("limit of {address} is from 1 to {most}, and vf-num at most {MOST}"));
    }
    let differs = |other: &PciSpec| at_boot(other).is_some_and(|other| other != (gim.vf_num > 0));
    host.pci.iter().any(differs).then(|| {
        format!("vf-num of {address}: the module is loaded at boot for all GPUs or for none")
    })
}

/// Makes a described GPU known to the driver, before it is added.
pub(super) fn describe(core: &Core, function: &PciSpec) {
    let Some(spec) = &function.gim else { return };
    for attr in HARMFUL {
        core.faults.make_harmful(&format!("*/{}", attr.name()));
    }
    let mut state = core.state();
    if spec.vf_num > 0 && function.bound.is_none() {
        state.gim.given.push(spec.vf_num.into());
        state.gim.numbers.push(valid(spec.vf_num.into()));
    }
    if spec.vf_num == 0
        && let Some(driver) = state.drivers.iter_mut().find(|driver| *driver.name == *DRIVER)
        && driver.devices.is_empty()
    {
        driver.loaded = false;
    }
    let gpu = Gpu { spec: spec.clone(), vfs: None, resets: 0, partition: Default::default() };
    state.gim.gpus.insert(function.address, gpu);
}

/// The driver's probe, which succeeds whatever becomes of the GPU (`gim_probe`);
/// the function's lock is held.
pub(super) fn probe(core: &Core, pf: PciAddress) {
    let count = {
        let mut state = core.state();
        let gim = &mut state.gim;
        let Some(gpu) = gim.gpus.get(&pf) else { return };
        let limit = gpu.spec.limit;
        // The last number is that of all GPUs to follow.
        let last = gim.numbers.len().saturating_sub(1);
        let number = gim.numbers.get(gim.probed.min(last)).copied().unwrap_or(1);
        gim.probed += 1;
        if number > limit {
            let text =
                format!("gim {pf}: VF number {number} to be enabled exceeds the vf limit {limit}.");
            state.log.push(text);
        }
        (number <= limit).then_some(number)
    };
    let (Some(count), Ok(_host)) = (count, core.lock_host()) else { return };
    let enabled = sriov::enable(core, pf, count).is_ok();
    if let Some(gpu) = core.state().gim.gpus.get_mut(&pf).filter(|_| enabled) {
        gpu.vfs = Some(count);
        gpu.partition = partition::Partition::of(count);
    }
}

/// `modprobe` of this module; `None` for any other.
pub(super) fn modprobe(core: &Core, args: &[String]) -> Option<ToolOutput> {
    let (options, words): (Vec<_>, Vec<_>) =
        args.iter().map(String::as_str).partition(|arg| arg.starts_with('-'));
    let (module, params) = words.split_first()?;
    if *module != DRIVER || core.state().gim.gpus.is_empty() {
        return None;
    }
    let unloads = options.iter().any(|option| ["-r", "--remove"].contains(option));
    let (done, verb) =
        if unloads { (unload(core), "remove") } else { (load(core, params), "insert") };
    Some(match done {
        Ok(()) => ToolOutput { status: Some(0), output: String::new() },
        Err(errno) => ToolOutput {
            status: Some(1),
            output: format!("modprobe: ERROR: could not {verb} '{DRIVER}': {}\n", errno.desc()),
        },
    })
}

fn load(core: &Core, params: &[&str]) -> Result<(), Errno> {
    let given = params.iter().find_map(|param| param.strip_prefix("vf_num="));
    let given = given.map(parse).transpose()?;
    let gpus: Vec<PciAddress> = {
        let mut state = core.state();
        let driver = state.drivers.iter_mut().find(|driver| *driver.name == *DRIVER);
        let was = driver.map(|driver| std::mem::replace(&mut driver.loaded, true));
        if was != Some(false) {
            return Ok(());
        }
        // Without a parameter it takes what it had last time.
        if let Some(given) = &given {
            state.gim.numbers = given.iter().copied().map(valid).collect();
        }
        state.gim.given = given.unwrap_or_default();
        state.gim.probed = 0;
        state.gim.gpus.keys().copied().collect()
    };
    for pf in gpus {
        // One that was unplugged is passed over.
        let Ok(_device) = core.lock_device(pf) else { continue };
        let unbound = core.state().function(pf).is_ok_and(|device| device.driver.is_none());
        if unbound {
            pci::attach_any(core, pf);
        }
    }
    Ok(())
}

/// The numbers of `vf_num=`: what is none keeps the module out (`param_array`,
/// kernel/params.c).
fn parse(text: &str) -> Result<Vec<u32>, Errno> {
    let number = |text| u32::try_from(unsigned(text)?).map_err(|_| Errno::ERANGE);
    let numbers = text.split(',').map(number).collect::<Result<Vec<_>, Errno>>()?;
    if numbers.len() > MOST_GPUS { Err(Errno::EINVAL) } else { Ok(numbers) }
}

/// What is out of range becomes 1 (`set_array_value`, gim_config.c).
fn valid(number: u32) -> u16 {
    u16::try_from(number).ok().filter(|number| (1..=MOST).contains(number)).unwrap_or(1)
}

/// Unloads the module: everything stays as it is for as long as a VF is in use,
/// which the driver looks at every 5 s (`gim_exit`).
fn unload(core: &Core) -> Result<(), Errno> {
    core.wait(|state| (!state.gim.gpus.keys().any(|pf| state.gim_is_used(*pf))).then_some(()))?;
    let gpus = {
        let mut state = core.state();
        let driver = state.drivers.iter_mut().find(|driver| *driver.name == *DRIVER);
        let Some(driver) = driver.filter(|driver| driver.loaded) else { return Ok(()) };
        driver.loaded = false;
        driver.devices.clone()
    };
    for pf in gpus.into_iter().rev() {
        let _device = core.lock_device(pf)?;
        let _host = core.lock_host()?;
        pci::detach(core, pf)?;
    }
    Ok(())
}

impl State {
    /// Whether a driver is this one, with GPUs to run.
    pub(super) fn is_gim(&self, driver: usize) -> bool {
        let named = self.drivers.get(driver).is_some_and(|driver| *driver.name == *DRIVER);
        named && !self.gim.gpus.is_empty()
    }

    /// Whether a VF of a GPU is enabled: a process has it open, or a driver of the
    /// host is on it.
    fn gim_is_used(&self, pf: PciAddress) -> bool {
        self.pci.iter().any(|(address, device)| {
            let is_of = matches!(device.role, Role::Vf { pf: of, .. } if of == pf);
            let by_host = || self.driver_of(device).is_some_and(|driver| !driver.vfio);
            is_of && (self.is_held(Member::Pci(*address)) || by_host())
        })
    }
}

impl SimKernel {
    /// How often a GPU of AMD's GIM was reset, by reading its `reset_gpu`.
    pub fn resets(&self, gpu: PciAddress) -> u32 {
        self.core.state().gim.gpus.get(&gpu).map_or(0, |gpu| gpu.resets)
    }
}

impl Gim {
    /// The driver lets go of a function.
    pub(super) fn unbound(&mut self, pf: PciAddress) {
        if let Some(gpu) = self.gpus.get_mut(&pf) {
            gpu.vfs = None;
        }
    }

    /// What `parameters/vf_num` reads: as it was given (`param_array_get`,
    /// kernel/params.c), so nothing where it was not.
    pub(super) fn parameter(&self) -> String {
        let given: Vec<String> = self.given.iter().map(ToString::to_string).collect();
        if given.is_empty() { String::new() } else { format!("{}\n", given.join(",")) }
    }

    /// Somebody read an attribute of a function's.
    pub(super) fn note_read(&mut self, pf: PciAddress, attr: Attr) {
        if attr == Attr::ResetGpu
            && let Some(gpu) = self.gpus.get_mut(&pf)
        {
            gpu.resets += 1;
        }
    }

    /// Whether a GPU has the folder of its hive.
    pub(super) fn tells_hive(&self, pf: PciAddress) -> bool {
        self.gpus.get(&pf).is_some_and(|gpu| gpu.vfs.is_some() && gpu.spec.hive_file)
    }

    /// The attributes that the driver gives a function.
    pub(super) fn attrs(&self, pf: PciAddress) -> Vec<Attr> {
        let runs = self.gpus.get(&pf).is_some_and(|gpu| gpu.vfs.is_some());
        if runs { [&partition::ATTRS[..], &HARMFUL].concat() } else { Vec::new() }
    }

    /// What they read; `None` for any other.
    pub(super) fn show(&self, pf: PciAddress, attr: Attr) -> Option<String> {
        let gpu = self.gpus.get(&pf)?;
        let vfs = gpu.vfs?;
        match attr {
            Attr::XgmiHiveId => Some(format!("{}\n", gpu.spec.hive)),
            Attr::ResetGpu => Some(format!("dev({pf}) reset completed\n")),
            Attr::PspVbflash => Some(String::new()),
            Attr::PspVbflashStatus => Some("0x0\n".into()),
            _ => gpu.partition.show(vfs, attr),
        }
    }
}
