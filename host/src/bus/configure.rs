//! `Configure` and `PlanConfiguration` of a GPU.

use std::collections::HashMap;

use vgpu_host_api::names::option;
use vgpu_mdev::{model::Gpu, request::Configure, room::Shape};
use vgpu_polkit::{Details, Rule};
use zbus::{Message, OwnedVariant};

use super::{
    call::Call,
    error::Fault,
    options::Options,
    service::Service,
    work::{self, Work},
};

/// Answers `Configure`.
pub(crate) async fn configure(
    service: &Service,
    call: &Call,
    gpu: &Gpu,
    rule: Rule,
) -> Result<Option<Message>, Fault> {
    let wish = wish(call)?;
    let asker = service.asker(call).await?;
    asker.may(rule, None, &Details::from([("gpu", gpu.id.to_string())])).await?;
    let work = Work::new(asker.uid, format!("configuring {}", gpu.id));
    let (engine, gpu, control) = (service.engine.clone(), gpu.id.clone(), work.control());
    work.run(
        service,
        call,
        move || engine.configure(&gpu, &wish, &control),
        |_, job| call.reply(&(job,)),
    )
    .await
}

/// Answers `PlanConfiguration`.
pub(crate) async fn plan_configuration(
    service: &Service,
    call: &Call,
    gpu: &Gpu,
) -> Result<Message, Fault> {
    let wish = wish(call)?;
    // It waits for the GPU and runs a program: each user has only so many at once.
    let _asker = service.asker(call).await?;
    let (engine, gpu) = (service.engine.clone(), gpu.id.clone());
    let steps = work::blocking(move || engine.plan_configuration(&gpu, &wish)).await?;
    call.reply(&(steps,))
}

/// What the options of a call ask for.
fn wish(call: &Call) -> Result<Configure, Fault> {
    const KNOWN: [&str; 4] = [option::VFS, option::MIG, option::INSTANCES, option::HETEROGENEOUS];
    let (options,): (HashMap<String, OwnedVariant>,) = call.args()?;
    let method = call.method().member;
    if options.is_empty() {
        let known = KNOWN.join(", ");
        return Err(Fault::invalid(format!("{method} needs an option; it takes {known}")));
    }
    let mut options = Options::new(method, options, &KNOWN)?;
    let shapes = options.texts(option::INSTANCES)?;
    let parse = |shapes: Vec<String>| shapes.iter().map(|shape| shape.parse::<Shape>()).collect();
    let instances: Option<Result<_, _>> = shapes.map(parse);
    Ok(Configure {
        functions: options.number(option::VFS)?,
        mig: options.flag(option::MIG)?,
        instances: instances.transpose().map_err(|error| Fault::invalid(error.to_string()))?,
        heterogeneous: options.flag(option::HETEROGENEOUS)?,
    })
}
