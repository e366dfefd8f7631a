//! `create`, `remove`, `set-vfs` and `set-params`.

use std::collections::HashMap;

use serde::Serialize;
use vgpu_host_api::names::option;
use zbus::{OwnedObjectPath, Variant};

use crate::{
    args::{Among, Create, Wait},
    failure::{Code, Failure, Result},
    job::{Outcome, finish},
    output::{Output, note},
    service::Service,
    show::Vgpu,
};

/// Work that goes on after the command.
#[derive(Serialize)]
struct Running {
    job: OwnedObjectPath,
}

/// `vgpuctl create`
pub(crate) async fn create(service: &Service, output: &Output, create: &Create) -> Result<()> {
    #[derive(Serialize)]
    struct Created {
        created: bool,
        #[serde(flatten)]
        vgpu: Vgpu,
    }
    let manager = service.manager().await?;
    let options = options(create);
    let call = async {
        let (vgpu, created, job) = manager.create_vgpu(&create.profile, &options).await?;
        Ok(((vgpu, created), job))
    };
    let (path, created) = match finish(service, create.wait, call).await? {
        Outcome::Done(answer) => answer,
        Outcome::Running(_, job) => return running(output, job),
    };
    let vgpu = service.vgpu_at(path).await?;
    if output.is_json() {
        let vgpu = Vgpu::fetch(service, &vgpu).await?;
        return output.print(&Created { created, vgpu }, |_| String::new());
    }
    if !created {
        note("it was there already");
    }
    let uuid = service.said(vgpu.uuid().await)?;
    crate::output::print(&format!("{uuid}\n"))
}

fn options(create: &Create) -> HashMap<&str, Variant<'_>> {
    let mut options = HashMap::new();
    let texts = [
        (option::GPU, &create.gpu),
        (option::UUID, &create.uuid),
        (option::NAME, &create.name),
        (option::FUNCTION, &create.function),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            options.insert(key, Variant::from(text.as_str()));
        }
    }
    if let Some(uid) = create.owner_uid {
        options.insert(option::OWNER_UID, Variant::from(uid));
    }
    options.extend(among(&create.among));
    if create.enable_vfs {
        options.insert(option::ENABLE_VFS, Variant::from(true));
    }
    options
}

/// Among which GPUs one is chosen, and how, as options of a call.
pub(crate) fn among(among: &Among) -> impl Iterator<Item = (&str, Variant<'_>)> {
    let node = among.numa_node.map(|node| (option::NUMA_NODE, Variant::from(node)));
    let texts = [(option::POOL, &among.pool), (option::PLACEMENT, &among.placement)];
    let texts =
        texts.into_iter().filter_map(|(key, text)| Some((key, Variant::from(text.as_deref()?))));
    node.into_iter().chain(texts)
}

/// `vgpuctl remove`
pub(crate) async fn remove(
    service: &Service,
    output: &Output,
    vgpu: &str,
    force: bool,
    wait: Wait,
) -> Result<()> {
    let vgpu = service.vgpu(vgpu).await?;
    let options =
        if force { HashMap::from([(option::FORCE, Variant::from(true))]) } else { HashMap::new() };
    let call = async { Ok(((), vgpu.remove(&options).await?)) };
    end(output, finish(service, wait, call).await?)
}

/// `vgpuctl set-vfs`
pub(crate) async fn set_vfs(
    service: &Service,
    output: &Output,
    gpu: &str,
    count: u32,
    wait: Wait,
) -> Result<()> {
    let gpu = service.gpu(gpu).await?;
    let none = HashMap::new();
    let call = async { Ok(((), gpu.set_vf_count(count, &none).await?)) };
    end(output, finish(service, wait, call).await?)
}

/// `vgpuctl set-params`
pub(crate) async fn set_params(
    service: &Service,
    output: &Output,
    vgpu: &str,
    params: &[String],
    wait: Wait,
) -> Result<()> {
    let path = service.vgpu(vgpu).await?.inner().path().to_owned();
    let Some(found) = service.nvidia_vgpu_at(path).await? else {
        return Err(Failure::new(
            Code::NotPossible,
            format!(
                "vGPU {vgpu:?} has no parameters: they exist with NVIDIA's vendor-specific VFIO; \
                 see vgpuctl show for its framework"
            ),
        ));
    };
    let params = params.join(",");
    let call = async { Ok(((), found.set_params(&params).await?)) };
    end(output, finish(service, wait, call).await?)
}

/// Silence is success; JSON always says something.
pub(crate) fn end(output: &Output, outcome: Outcome<()>) -> Result<()> {
    #[derive(Serialize)]
    struct Done {
        done: bool,
    }
    match outcome {
        Outcome::Done(()) => output.print(&Done { done: true }, |_| String::new()),
        Outcome::Running((), job) => running(output, job),
    }
}

fn running(output: &Output, job: OwnedObjectPath) -> Result<()> {
    output.print(&Running { job }, |running| format!("{}\n", running.job.as_str()))
}
