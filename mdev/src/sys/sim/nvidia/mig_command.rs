//! `nvidia-smi mig`: GPU instances, each with the one compute instance that fills
//! it.

use super::{
    super::state::State,
    Answer, Nvidia,
    mig::{Instance, Layout},
    smi::{Gpu, IN_USE, INSUFFICIENT_RESOURCES, INVALID_ARGUMENT, NOT_FOUND},
};

/// What is asked of the GPUs in MIG mode.
pub(super) enum Request<'a> {
    /// `-lgip`
    Profiles,
    /// `-lgi`
    List,
    /// `-cgi 9,3g.20gb`, with `-C` also their compute instances.
    Create(Vec<&'a str>, bool),
    /// `-dci`, `-dgi`: of one GPU instance or of all.
    Destroy(What, Option<u32>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Compute,
    Gpu,
}

pub(super) fn parse<'a>(options: &[&'a str]) -> Option<Request<'a>> {
    Some(match options {
        ["-lgip"] => Request::Profiles,
        ["-lgi"] => Request::List,
        ["-cgi", wanted] => Request::Create(wanted.split(',').collect(), false),
        ["-cgi", wanted, "-C"] | ["-C", "-cgi", wanted] => {
            Request::Create(wanted.split(',').collect(), true)
        }
        ["-dci"] => Request::Destroy(What::Compute, None),
        ["-dgi"] => Request::Destroy(What::Gpu, None),
        ["-dci", "-gi", id] => Request::Destroy(What::Compute, Some(id.parse().ok()?)),
        ["-dgi", "-gi", id] => Request::Destroy(What::Gpu, Some(id.parse().ok()?)),
        _ => return None,
    })
}

pub(super) fn run(state: &mut State, gpus: &[Gpu], request: &Request<'_>) -> Answer {
    let with = |state: &State, wanted: fn(&Nvidia) -> bool| -> Vec<Gpu> {
        let is = |gpu: &&Gpu| state.nvidia.get(&gpu.address).is_some_and(wanted);
        gpus.iter().filter(is).copied().collect()
    };
    // Profiles are listed whatever the mode is.
    if let Request::Profiles = request {
        let able = with(state, |nvidia| nvidia.spec.mig.is_some());
        if able.is_empty() {
            return Answer::failed(NOT_FOUND, "No MIG-supported devices found.\n");
        }
        return Answer { text: profiles(state, &able), status: 0 };
    }
    let enabled = with(state, |nvidia| nvidia.mig);
    if enabled.is_empty() {
        return Answer::failed(NOT_FOUND, "No MIG-enabled devices found.\n");
    }
    match request {
        Request::Create(wanted, compute) => create(state, &enabled, wanted, *compute),
        Request::Destroy(what, id) => destroy(state, &enabled, *what, *id),
        Request::List | Request::Profiles => list(state, &enabled),
    }
}

/// The table of possible instances.
fn profiles(state: &State, gpus: &[Gpu]) -> String {
    let rows: Vec<(Gpu, &Nvidia, &'static Layout)> = gpus
        .iter()
        .filter_map(|gpu| {
            let nvidia = state.nvidia.get(&gpu.address)?;
            Some((*gpu, nvidia, nvidia.layout()?))
        })
        .collect();
    let long = rows.iter().flat_map(|(.., layout)| layout.profiles).any(|p| p.name.len() > 10);
    let name = if long { 19 } else { 17 };
    let width = name + 60;
    let mut table = format!("+{:-<width$}+\n", "");
    for row in [
        "| GPU instance profiles:".to_owned(),
        format!(
            "| GPU   {:<name$}{:<6}{:<12}{:<11}{:<7}{:<6}{:<6}{}",
            "Name", "ID", "Instances", "Memory", "P2P", "SM", "DEC", "ENC"
        ),
        format!("|{:name$}{:13}Free/Total   {:<17}{:<6}JPEG  OFA", "", "", "GiB", "CE"),
    ] {
        table.push_str(&format!("{row:<end$}|\n", end = width + 1));
    }
    table.push_str(&format!("|{:=<width$}|\n", ""));
    for (gpu, nvidia, layout) in rows {
        for profile in layout.profiles {
            let free = if nvidia.mig { layout.free(&nvidia.instances, profile) } else { 0 };
            let [dec, enc, jpeg, ofa] = profile.engines;
            table.push_str(&format!(
                "|{:>4}  {:<name$}{:>3}{:>8}        {:<11}No{:>7}{dec:>6}{enc:>6}   |\n",
                gpu.index,
                format!("MIG {}", profile.name),
                profile.id,
                format!("{free}/{}", profile.most),
                profile.memory,
                profile.multiprocessors,
            ));
            let engines = name + 45;
            table.push_str(&format!("|{:>engines$}{jpeg:>6}{ofa:>6}   |\n", profile.slices));
            table.push_str(&format!("+{:-<width$}+\n", ""));
        }
    }
    table
}

/// The table of instances.
fn list(state: &State, gpus: &[Gpu]) -> Answer {
    let mut table = format!(
        "+{0:-<55}+\n\
         | GPU instances:                                        |\n\
         | GPU   Name             Profile  Instance   Placement  |\n\
         |                          ID       ID       Start:Size |\n\
         |{0:=<55}|\n",
        ""
    );
    let mut rows = 0;
    for gpu in gpus {
        let Some(nvidia) = state.nvidia.get(&gpu.address) else { continue };
        let mut instances: Vec<_> = nvidia.instances.iter().collect();
        // As the program lists them: by profile, as the numbers of their table are
        // descending, then by number.
        let place = |wanted: u32| {
            let all = nvidia.layout().map_or(&[][..], |layout| layout.profiles);
            all.iter().position(|profile| profile.id == wanted)
        };
        instances.sort_by_key(|(id, instance)| (place(instance.profile.id), **id));
        for (id, Instance { profile, start, .. }) in instances {
            rows += 1;
            table.push_str(&format!(
                "|{:>4}  {:<17}{:>5}{id:>9}{:>13}     |\n+{:-<55}+\n",
                gpu.index,
                format!("MIG {}", profile.name),
                profile.id,
                format!("{start}:{}", profile.size),
                ""
            ));
        }
    }
    if rows == 0 {
        return Answer::failed(NOT_FOUND, "No GPU instances found: Not Found\n");
    }
    Answer { text: table, status: 0 }
}

/// Makes instances in the order given; those made before one that fails stay.
fn create(state: &mut State, gpus: &[Gpu], wanted: &[&str], compute: bool) -> Answer {
    let mut answer = Answer::default();
    for gpu in gpus {
        let Some(nvidia) = state.nvidia.get_mut(&gpu.address) else { continue };
        let Some(layout) = nvidia.layout() else { continue };
        for called in wanted {
            let made = layout
                .profile(called)
                .ok_or((INVALID_ARGUMENT, "Invalid Argument"))
                .and_then(|profile| {
                    let room = layout.place(&nvidia.instances, profile);
                    room.ok_or((INSUFFICIENT_RESOURCES, "Insufficient Resources"))
                });
            let (id, instance) = match made {
                Ok(made) => made,
                Err((status, why)) => {
                    answer.line(format!(
                        "Unable to create a GPU instance on GPU {:>2} using profile {called}: {why}",
                        gpu.index
                    ));
                    answer.line(format!("Failed to create GPU instances: {why}"));
                    answer.status = status;
                    return answer;
                }
            };
            let profile = instance.profile;
            nvidia.instances.insert(id, Instance { compute, ..instance });
            answer.line(format!(
                "Successfully created GPU instance ID {id:>2} on GPU {:>2} using profile MIG {} (ID {:>2})",
                gpu.index, profile.name, profile.id
            ));
            if compute {
                answer.line(format!(
                    "Successfully created compute instance ID  0 on GPU {:>2} GPU instance ID {id:>2} \
                     using profile MIG {} (ID {:>2})",
                    gpu.index,
                    profile.name,
                    profile.compute_profile()
                ));
            }
        }
    }
    answer
}

/// Destroys instances in the order of their numbers, until one is in use: a GPU
/// instance by its compute instance, and either by a vGPU.
fn destroy(state: &mut State, gpus: &[Gpu], what: What, only: Option<u32>) -> Answer {
    let mut answer = Answer::default();
    let (name, nothing) = match what {
        What::Compute => ("compute", "No compute instances found: Not Found\n"),
        What::Gpu => ("GPU", "No GPU instances found: Not Found\n"),
    };
    let mut met = false;
    for gpu in gpus {
        let Some(nvidia) = state.nvidia.get_mut(&gpu.address) else { continue };
        let asked = |id: &u32| only.is_none_or(|only| only == *id);
        let ids: Vec<u32> = nvidia
            .instances
            .iter()
            .filter(|(id, instance)| asked(id) && (what == What::Gpu || instance.compute))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            met = true;
            let carries = nvidia.carried.values().any(|carried| carried.instance == Some(id));
            let computes = nvidia.instances.get(&id).is_some_and(|instance| instance.compute);
            let which = match what {
                What::Compute => {
                    format!(
                        "compute instance ID  0 from GPU {:>2} GPU instance ID {id:>2}",
                        gpu.index
                    )
                }
                What::Gpu => format!("GPU instance ID {id:>2} from GPU {:>2}", gpu.index),
            };
            if carries || (what == What::Gpu && computes) {
                answer.line(format!("Unable to destroy {which}: In use by another client"));
                answer
                    .line(format!("Failed to destroy {name} instances: In use by another client"));
                answer.status = IN_USE;
                return answer;
            }
            match what {
                What::Gpu => drop(nvidia.instances.remove(&id)),
                What::Compute => {
                    if let Some(instance) = nvidia.instances.get_mut(&id) {
                        instance.compute = false;
                    }
                }
            }
            answer.line(format!("Successfully destroyed {which}"));
        }
    }
    if met { answer } else { Answer::failed(NOT_FOUND, nothing) }
}
