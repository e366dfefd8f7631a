//! `nvidia-smi`: the command lines by which vGPU hosts are configured. Texts are
//! those of public captures, statuses NVML's return codes: what it exits with.

use crate::model::PciAddress;

use super::{
    super::{core::Core, state::State},
    Answer, DRIVER, Nvidia, mig_command, query,
};

/// NVML's return codes.
pub(super) const INVALID_ARGUMENT: i32 = 2;
pub(super) const NOT_SUPPORTED: i32 = 3;
pub(super) const NOT_FOUND: i32 = 6;
const DRIVER_NOT_LOADED: i32 = 9;
pub(super) const IN_USE: i32 = 19;
pub(super) const INSUFFICIENT_RESOURCES: i32 = 23;

const NO_DRIVER: &str = "\
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. \
Make sure that the latest NVIDIA driver is installed and running.\n\n";
const USAGE: &str = "\
Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n";

/// A GPU as the program counts them.
#[derive(Clone, Copy)]
pub(super) struct Gpu {
    pub(super) index: usize,
    pub(super) address: PciAddress,
}

impl Gpu {
    /// Its address with a domain of eight digits.
    pub(super) fn id(&self) -> String {
        let at = self.address.to_string().to_uppercase();
        let (domain, rest) = at.split_once(':').unwrap_or(("", &at));
        format!("{domain:0>8}:{rest}")
    }

    fn is_called(&self, text: &str) -> bool {
        let text = text.to_uppercase();
        let id = self.id();
        let domain = |text: &str| text.trim_start_matches('0').to_owned();
        let same = match (id.split_once(':'), text.split_once(':')) {
            (Some((ours, at)), Some((domain_asked, asked))) if asked.contains(':') => {
                at == asked && domain(ours) == domain(domain_asked)
            }
            (Some((ours, at)), _) => at == text && domain(ours).is_empty(),
            _ => false,
        };
        same || text == self.index.to_string()
    }
}

/// What was asked for, after the GPU was taken out.
enum Request<'a> {
    Query,
    Mig(bool),
    Reset,
    Mixed(bool),
    Instances(mig_command::Request<'a>),
}

pub(super) fn run(core: &Core, args: &[String]) -> Answer {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some((wanted, request)) = parse(&args) else { return Answer::failed(1, USAGE) };
    let mut state = core.state();
    if !state.drivers.iter().any(|driver| *driver.name == *DRIVER && driver.loaded) {
        return Answer::failed(DRIVER_NOT_LOADED, NO_DRIVER);
    }
    let all: Vec<Gpu> = state
        .nvidia
        .keys()
        .filter(|gpu| state.is_on_nvidia(**gpu))
        .enumerate()
        .map(|(index, address)| Gpu { index, address: *address })
        .collect();
    let gpus: Vec<Gpu> =
        all.into_iter().filter(|gpu| wanted.is_none_or(|text| gpu.is_called(text))).collect();
    if gpus.is_empty() {
        return Answer::failed(NOT_FOUND, "No devices were found\n");
    }
    match request {
        Request::Query => query::run(&state, &gpus),
        Request::Mig(on) => each(&mut state, &gpus, |state, gpu, answer| {
            set_mig(state, gpu, on, answer);
        }),
        Request::Reset => each(&mut state, &gpus, reset),
        Request::Mixed(on) => {
            let mut answer = Answer::default();
            gpus.iter().for_each(|gpu| set_mixed(&mut state, *gpu, on, &mut answer));
            answer
        }
        Request::Instances(request) => mig_command::run(&mut state, &gpus, &request),
    }
}

/// The GPU that is named, and what is asked for.
fn parse<'a>(args: &[&'a str]) -> Option<(Option<&'a str>, Request<'a>)> {
    let (command, options) = match args {
        ["mig", options @ ..] => (Some("mig"), options),
        ["vgpu", options @ ..] => (Some("vgpu"), options),
        options => (None, options),
    };
    let (wanted, rest) = take_gpu(options)?;
    let boolean = |text: &str| match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    };
    let request = match (command, &rest[..]) {
        (None, ["-q", "-x"] | ["-x", "-q"]) => Request::Query,
        (None, ["-mig", on]) => Request::Mig(boolean(on)?),
        (None, ["-r" | "--gpu-reset"]) => Request::Reset,
        (Some("vgpu"), ["-shm", on]) => Request::Mixed(boolean(on)?),
        (Some("mig"), rest) => Request::Instances(mig_command::parse(rest)?),
        _ => return None,
    };
    Some((wanted, request))
}

/// Takes `-i GPU` out of the options.
fn take_gpu<'a>(options: &[&'a str]) -> Option<(Option<&'a str>, Vec<&'a str>)> {
    let mut rest = options.to_vec();
    let Some(at) = rest.iter().position(|option| *option == "-i") else {
        return Some((None, rest));
    };
    let mut taken = rest.splice(at..rest.len().min(at + 2), []);
    let gpu = taken.nth(1)?;
    drop(taken);
    (!rest.contains(&"-i")).then_some((Some(gpu), rest))
}

/// Does something to each GPU, until one refuses.
fn each(
    state: &mut State,
    gpus: &[Gpu],
    mut act: impl FnMut(&mut State, Gpu, &mut Answer),
) -> Answer {
    let mut answer = Answer::default();
    for gpu in gpus {
        act(state, *gpu, &mut answer);
        if answer.status != 0 {
            answer.line("Terminating early due to previous errors.");
            return answer;
        }
    }
    answer.line("All done.");
    answer
}

/// `-mig`. Ampere needs a reset, which the program does itself unless somebody
/// uses the GPU or it cannot be reset; then the mode is pending (NVIDIA's MIG
/// guide, "Enable MIG Mode"). Not while there are VFs, as measured by others, nor
/// while there are instances.
fn set_mig(state: &mut State, gpu: Gpu, on: bool, answer: &mut Answer) {
    let (verb, done) = if on { ("enable", "Enabled") } else { ("disable", "Disabled") };
    let id = gpu.id();
    let has_vfs = state.vf_count(gpu.address) != 0;
    let in_use = state.is_in_use(gpu.address);
    let Some(nvidia) = state.nvidia.get_mut(&gpu.address) else { return };
    if nvidia.spec.mig.is_none() {
        answer.line(format!("Unable to {verb} MIG Mode for GPU {id}: Not Supported"));
        return answer.line("Treating as warning and moving on.");
    }
    if nvidia.mig == on && nvidia.pending == on {
        return answer.line(format!("{done} MIG Mode for GPU {id}"));
    }
    if has_vfs || !nvidia.instances.is_empty() {
        answer.status = IN_USE;
        return answer
            .line(format!("Unable to {verb} MIG Mode for GPU {id}: In use by another client"));
    }
    nvidia.pending = on;
    let because = match (in_use, nvidia.spec.mig_reset_needed && nvidia.mig != on) {
        (true, _) => "In use by another client",
        (false, true) => "Not Supported",
        (false, false) => {
            nvidia.reset();
            return answer.line(format!("{done} MIG Mode for GPU {id}"));
        }
    };
    answer.line(format!("Warning: MIG mode is in pending {verb} state for GPU {id}:{because}"));
    answer.line(match in_use {
        true => format!(
            "{id} is currently being used by one or more other processes (e.g. CUDA application \
             or a monitoring application such as another instance of nvidia-smi). Please first \
             kill all processes using the device and retry the command or reboot the system to \
             make MIG mode effective."
        ),
        false => format!(
            "Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU {id}"
        ),
    });
}

/// `--gpu-reset`.
fn reset(state: &mut State, gpu: Gpu, answer: &mut Answer) {
    let id = gpu.id();
    if state.vf_count(gpu.address) != 0 || state.is_in_use(gpu.address) {
        answer.status = IN_USE;
        return answer.line(format!(
            "The following GPUs could not be reset:\n  GPU {id}: In use by another client\n"
        ));
    }
    if let Some(nvidia) = state.nvidia.get_mut(&gpu.address) {
        nvidia.reset();
    }
    answer.line(format!("GPU {id} was successfully reset."));
}

/// `vgpu -shm`: not on a GPU in MIG mode, and not while it carries vGPUs.
fn set_mixed(state: &mut State, gpu: Gpu, on: bool, answer: &mut Answer) {
    let id = gpu.id();
    let Some(nvidia) = state.nvidia.get_mut(&gpu.address) else { return };
    let refused = match nvidia {
        Nvidia { mig: true, .. } => Some((NOT_SUPPORTED, "Not Supported")),
        nvidia if !nvidia.spec.heterogeneous => Some((NOT_SUPPORTED, "Not Supported")),
        nvidia if !nvidia.carried.is_empty() => Some((IN_USE, "In use by another client")),
        nvidia => {
            nvidia.mixed = on;
            None
        }
    };
    let (verb, done) = if on { ("enable", "Enabled") } else { ("disable", "Disabled") };
    match refused {
        None => answer.line(format!("{done} vGPU heterogeneous mode for GPU {id}")),
        Some((status, why)) => {
            answer.status = status;
            answer.line(format!("Unable to {verb} vGPU heterogeneous mode for GPU {id}: {why}"));
        }
    }
}
