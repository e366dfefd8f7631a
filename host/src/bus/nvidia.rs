//! What NVIDIA's GPUs and vGPUs have beyond others: `org.vgpu.Host1.Mig1`,
//! `org.vgpu.Host1.Heterogeneous1` and `org.vgpu.Host1.NvidiaVgpu1`, each there
//! only where it applies.

use vgpu_host_api::names;
use vgpu_mdev::model::{Gpu, InvalidParams, NvidiaVgpu, Vgpu, VgpuParams};
use vgpu_polkit::Rule;
use zbus::{Message, Variant};

use super::{
    call::Call,
    error::Fault,
    gpu::signed,
    options,
    properties::{Emits, Interface, Property},
    service::Service,
    vgpu::{self, VgpuObject},
    work::Work,
};

/// MIG of a GPU.
pub(crate) const MIG: Interface<Gpu> = Interface {
    name: names::MIG,
    is_there: |gpu| gpu.mig.is_some(),
    properties: &[
        Property {
            name: "Current",
            signature: "b",
            emits: Emits::Change,
            get: |gpu| gpu.mig.as_ref().is_some_and(|mig| mig.current).into(),
        },
        Property {
            name: "Pending",
            signature: "b",
            emits: Emits::Change,
            get: |gpu| gpu.mig.as_ref().is_some_and(|mig| mig.pending).into(),
        },
        Property { name: "Instances", signature: "a(us)", emits: Emits::Change, get: instances },
    ],
};

fn instances(gpu: &Gpu) -> Variant<'_> {
    let instances = gpu.mig.iter().flat_map(|mig| &mig.instances);
    instances.map(|(id, shape)| (*id, shape.as_str())).collect::<Vec<_>>().into()
}

/// Heterogeneous mode of a GPU.
pub(crate) const HETEROGENEOUS: Interface<Gpu> = Interface {
    name: names::HETEROGENEOUS,
    is_there: |gpu| gpu.heterogeneous.is_some(),
    properties: &[Property {
        name: "Enabled",
        signature: "b",
        emits: Emits::Change,
        get: |gpu| gpu.heterogeneous.unwrap_or_default().into(),
    }],
};

/// What NVIDIA's driver tells of a vGPU.
pub(crate) const VGPU: Interface<VgpuObject> = Interface {
    name: names::NVIDIA_VGPU,
    is_there: |o| o.vgpu.nvidia.is_some(),
    properties: &[
        Property {
            name: "GpuInstance",
            signature: "i",
            emits: Emits::Change,
            get: |o| number(o, |told| told.gpu_instance),
        },
        Property {
            name: "Placement",
            signature: "i",
            emits: Emits::Change,
            get: |o| number(o, |told| told.placement),
        },
        Property {
            name: "Params",
            signature: "s",
            emits: Emits::Change,
            get: |o| o.vgpu.nvidia.as_ref().map_or("", |told| told.params.as_str()).into(),
        },
    ],
};

fn number(object: &VgpuObject, get: fn(&NvidiaVgpu) -> Option<u32>) -> Variant<'_> {
    signed(object.vgpu.nvidia.as_ref().and_then(get)).into()
}

/// Answers `SetParams`.
pub(crate) async fn set_params(
    service: &Service,
    call: &Call,
    vgpu: &Vgpu,
    rule: Rule,
) -> Result<Option<Message>, Fault> {
    let (params,): (String,) = call.args()?;
    let params: VgpuParams = options::text("params", params)?
        .parse()
        .map_err(|error: InvalidParams| Fault::invalid(error.to_string()))?;
    let asker = vgpu::who_may(service, call, vgpu, rule).await?;
    let work = Work::new(asker.uid, format!("setting the parameters of {}", vgpu.uuid));
    let (engine, uuid, control) = (service.engine.clone(), vgpu.uuid, work.control());
    work.run(
        service,
        call,
        move || engine.set_params(uuid, &params, &control),
        |_, job| call.reply(&(job,)),
    )
    .await
}
