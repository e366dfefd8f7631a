//! `org.vgpu.Host1.Gpu`.

use std::collections::{BTreeMap, HashMap};

use vgpu_host_api::{names, path, wire::ProfileFacts};
use vgpu_mdev::model::{Function, Gpu};
use vgpu_polkit::{Details, Rule};
use zbus::{Message, OwnedVariant, Variant};

use super::{
    call::Call,
    error::Fault,
    nvidia,
    options::{self, Options},
    properties::{Emits, Interface, Property, Shown},
    service::Service,
    work::{self, Work},
};

impl Shown for Gpu {
    const INTERFACES: &'static [Interface<Self>] =
        &[Interface::always(names::GPU, PROPERTIES), nvidia::MIG, nvidia::HETEROGENEOUS];
}

const PROPERTIES: &[Property<Gpu>] = &[
    Property {
        name: "Address",
        signature: "s",
        emits: Emits::Never,
        get: |gpu| gpu.id.to_string().into(),
    },
    Property {
        name: "Vendor",
        signature: "s",
        emits: Emits::Change,
        get: |gpu| gpu.vendor.as_str().into(),
    },
    Property {
        name: "Model",
        signature: "s",
        emits: Emits::Change,
        get: |gpu| gpu.model.as_str().into(),
    },
    Property {
        name: "Driver",
        signature: "s",
        emits: Emits::Change,
        get: |gpu| gpu.driver.as_deref().unwrap_or_default().into(),
    },
    Property {
        name: "NumaNode",
        signature: "i",
        emits: Emits::Change,
        get: |gpu| signed(gpu.numa_node).into(),
    },
    Property {
        name: "Framework",
        signature: "s",
        emits: Emits::Change,
        get: |gpu| gpu.framework.as_str().into(),
    },
    Property {
        name: "State",
        signature: "s",
        emits: Emits::Change,
        get: |gpu| gpu.state.as_str().into(),
    },
    Property {
        name: "VfTotal",
        signature: "u",
        emits: Emits::Change,
        get: |gpu| gpu.vf_total.into(),
    },
    Property {
        name: "VfCount",
        signature: "u",
        emits: Emits::Change,
        get: |gpu| gpu.vf_count.into(),
    },
    Property { name: "Profiles", signature: "a{s(sstu)}", emits: Emits::Change, get: profiles },
    Property { name: "Capacity", signature: "a{s(us)}", emits: Emits::Change, get: capacity },
    Property { name: "Problems", signature: "a(ss)", emits: Emits::Change, get: problems },
    Property { name: "Functions", signature: "aa{sv}", emits: Emits::Change, get: functions },
];

fn profiles(gpu: &Gpu) -> Variant<'_> {
    let facts = gpu.profiles.iter().map(|profile| {
        let facts: ProfileFacts =
            (profile.name.clone(), profile.short_name.clone(), profile.framebuffer, profile.total);
        (profile.id.as_str(), facts)
    });
    facts.collect::<BTreeMap<_, _>>().into()
}

fn capacity(gpu: &Gpu) -> Variant<'_> {
    let facts = gpu
        .profiles
        .iter()
        .map(|profile| (profile.id.as_str(), (profile.available, profile.reason_code())));
    facts.collect::<BTreeMap<_, _>>().into()
}

fn problems(gpu: &Gpu) -> Variant<'_> {
    gpu.problems
        .iter()
        .map(|problem| (problem.code, problem.text.as_str()))
        .collect::<Vec<_>>()
        .into()
}

fn functions(gpu: &Gpu) -> Variant<'_> {
    gpu.functions.iter().map(function).collect::<Vec<_>>().into()
}

fn function(function: &Function) -> BTreeMap<&'static str, Variant<'_>> {
    let vgpu = function.vgpu.map_or_else(path::none, |uuid| path::vgpu(&uuid.to_string()));
    BTreeMap::from([
        ("Address", function.address.to_string().into()),
        ("Driver", function.driver.as_deref().unwrap_or_default().into()),
        ("State", function.state.as_str().into()),
        ("Vgpu", vgpu.into()),
    ])
}

/// A number that is -1 where there is none, as the kernel does.
pub(crate) fn signed(number: Option<u32>) -> i32 {
    number.and_then(|number| i32::try_from(number).ok()).unwrap_or(-1)
}

/// Answers `Explain`.
pub(crate) async fn explain(service: &Service, call: &Call, gpu: &Gpu) -> Result<Message, Fault> {
    let (profile,): (String,) = call.args()?;
    let profile = options::text("the profile", profile)?;
    let (engine, gpu) = (service.engine.clone(), gpu.id.clone());
    let text = work::blocking(move || engine.explain(&gpu, &profile)).await?;
    call.reply(&(text,))
}

/// Answers `SetVfCount`.
pub(crate) async fn set_vf_count(
    service: &Service,
    call: &Call,
    gpu: &Gpu,
    rule: Rule,
) -> Result<Option<Message>, Fault> {
    let (count, options): (u32, HashMap<String, OwnedVariant>) = call.args()?;
    Options::new("SetVfCount", options, &[])?;
    let asker = service.asker(call).await?;
    asker.may(rule, None, &Details::from([("gpu", gpu.id.to_string())])).await?;
    let work = Work::new(asker.uid, format!("setting the VFs of {} to {count}", gpu.id));
    let (engine, gpu, control) = (service.engine.clone(), gpu.id.clone(), work.control());
    work.run(
        service,
        call,
        move || engine.set_vf_count(&gpu, count, &control),
        |_, job| call.reply(&(job,)),
    )
    .await
}
