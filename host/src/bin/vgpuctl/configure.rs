//! `configure`: making a GPU ready for vGPUs.

use std::collections::HashMap;

use serde::Serialize;
use vgpu_host_api::{
    names::option,
    proxy::{GpuProxy, Options},
};
use zbus::Variant;

use crate::{
    args::{Configure, Switch, Vfs, Wish},
    change::end,
    failure::Result,
    job::finish,
    output::{Output, note, plain, print},
    service::Service,
};

/// `vgpuctl configure`
pub(crate) async fn run(service: &Service, output: &Output, wanted: &Configure) -> Result<()> {
    let gpu = service.gpu(&wanted.gpu).await?;
    let options = options(service, &gpu, &wanted.wish).await?;
    if wanted.dry_run {
        return show_steps(output, service.said(gpu.plan_configuration(&options).await)?);
    }
    let call = async { Ok(((), gpu.configure(&options).await?)) };
    end(output, finish(service, wanted.wait, call).await?)
}

async fn options<'a>(service: &Service, gpu: &GpuProxy<'_>, wish: &'a Wish) -> Result<Options<'a>> {
    let mut options = HashMap::new();
    if let Some(vfs) = wish.vfs {
        let count = match vfs {
            Vfs::All => service.said(gpu.vf_total().await)?,
            Vfs::Count(count) => count,
        };
        options.insert(option::VFS, Variant::from(count));
    }
    if let Some(shapes) = &wish.instances {
        let shapes: Vec<&str> = match &shapes[..] {
            [none] if none == "none" => Vec::new(),
            shapes => shapes.iter().map(String::as_str).collect(),
        };
        options.insert(option::INSTANCES, Variant::from(shapes));
    }
    let switches = [(option::MIG, wish.mig), (option::HETEROGENEOUS, wish.heterogeneous)];
    for (key, switch) in switches {
        if let Some(switch) = switch {
            options.insert(key, Variant::from(switch == Switch::On));
        }
    }
    Ok(options)
}

/// The steps one per line, numbered; a word on standard error where there is
/// nothing to do.
fn show_steps(output: &Output, steps: Vec<String>) -> Result<()> {
    #[derive(Serialize)]
    struct Planned {
        steps: Vec<String>,
    }
    if output.is_json() {
        return output.print(&Planned { steps }, |_| String::new());
    }
    if steps.is_empty() {
        note("it is so already; nothing would be done");
        return Ok(());
    }
    let line = |(n, step): (usize, &String)| format!("{}. {}\n", n + 1, plain(step));
    print(&steps.iter().enumerate().map(line).collect::<String>())
}
