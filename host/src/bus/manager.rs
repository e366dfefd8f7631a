//! `org.vgpu.Host1.Manager`.

use std::{borrow::Cow, collections::HashMap};

use uuid::Uuid;
use vgpu_host_api::{
    error,
    names::{self, option},
    path,
    wire::{ChoiceEntry, GpuEntry, ProfileEntry, RemainingEntry, VgpuEntry, flag},
};
use vgpu_mdev::{
    config::PoolName,
    model::{Framework, Gpu, GpuId, Snapshot, Vgpu, VgpuName, parse_uuid},
    placement::{InvalidPolicy, Policy},
    request::{CreateRequest, PlanRequest},
};
use vgpu_polkit::{Action, Details, Rule};
use zbus::{Message, OwnedVariant};

use super::{
    call::Call,
    error::Fault,
    options::{self, Options, echo},
    properties::{Emits, Interface, Property, Shown},
    service::{Asker, Service},
    work::{self, Work},
};

impl Shown for Service {
    const INTERFACES: &'static [Interface<Self>] = &[Interface::always(names::MANAGER, PROPERTIES)];
}

const PROPERTIES: &[Property<Service>] = &[
    Property {
        name: "Version",
        signature: "s",
        emits: Emits::Never,
        get: |_| env!("CARGO_PKG_VERSION").into(),
    },
    Property {
        name: "Simulated",
        signature: "b",
        emits: Emits::Never,
        get: |service| service.simulated.into(),
    },
    Property {
        name: "Frameworks",
        signature: "as",
        emits: Emits::Never,
        get: |_| Framework::ALL.map(Framework::as_str).to_vec().into(),
    },
];

/// Answers `ListGpus`.
pub(crate) fn list_gpus(picture: &Snapshot, call: &Call) -> Result<Message, Fault> {
    let entries = picture.gpus().map(|gpu| GpuEntry {
        id: gpu.id.to_string().into(),
        vendor: gpu.vendor.as_str().into(),
        model: gpu.model.as_str().into(),
        framework: gpu.framework.as_str().into(),
        driver: gpu.driver.as_deref().unwrap_or_default().into(),
        state: gpu.state.as_str().into(),
        vf_count: gpu.vf_count,
        vf_total: gpu.vf_total,
        vgpus: u32::try_from(picture.vgpu_count_of(&gpu.id)).unwrap_or(u32::MAX),
    });
    call.reply(&(entries.collect::<Vec<_>>(),))
}

/// Answers `ListProfiles`.
pub(crate) fn list_profiles(picture: &Snapshot, call: &Call) -> Result<Message, Fault> {
    let (filter,): (HashMap<String, OwnedVariant>,) = call.args()?;
    let mut filter = Options::new("ListProfiles", filter, &[option::GPU])?;
    let only = gpu_option(&mut filter)?;
    if let Some(id) = &only {
        known_gpu(picture, id)?;
    }
    let gpus = picture.gpus().filter(|gpu| only.as_ref().is_none_or(|only| *only == gpu.id));
    let entries = gpus.flat_map(|gpu| {
        gpu.profiles.iter().map(|profile| ProfileEntry {
            gpu: gpu.id.to_string().into(),
            id: profile.id.as_str().into(),
            name: profile.name.as_str().into(),
            short_name: profile.short_name.as_str().into(),
            framework: profile.framework.as_str().into(),
            framebuffer: profile.framebuffer,
            total: profile.total,
            available: profile.available,
            reason: profile.reason_code().into(),
        })
    });
    call.reply(&(entries.collect::<Vec<_>>(),))
}

/// Answers `ListVgpus`.
pub(crate) fn list_vgpus(picture: &Snapshot, call: &Call) -> Result<Message, Fault> {
    let (filter,): (HashMap<String, OwnedVariant>,) = call.args()?;
    let mut filter =
        Options::new("ListVgpus", filter, &[option::GPU, option::OWNER_UID, option::MANAGED])?;
    let gpu = gpu_option(&mut filter)?;
    let owner = filter.number(option::OWNER_UID)?;
    let managed = filter.flag(option::MANAGED)?;
    if let Some(id) = &gpu {
        known_gpu(picture, id)?;
    }
    let passes = |vgpu: &Vgpu| {
        gpu.as_ref().is_none_or(|gpu| *gpu == vgpu.gpu)
            && owner.is_none_or(|owner| owner == vgpu.owner_uid)
            && managed.is_none_or(|managed| managed == vgpu.managed)
    };
    let vgpus = picture.vgpus().filter(|vgpu| passes(vgpu));
    call.reply(&(vgpus.map(|vgpu| entry(picture, vgpu)).collect::<Vec<_>>(),))
}

fn entry<'a>(picture: &'a Snapshot, vgpu: &'a Vgpu) -> VgpuEntry<'a> {
    VgpuEntry {
        uuid: vgpu.uuid.to_string().into(),
        name: vgpu.name.as_ref().map_or("", |name| name.as_str()).into(),
        profile: short_name(picture, vgpu),
        state: vgpu.state.as_str().into(),
        gpu: vgpu.gpu.to_string().into(),
        owner_uid: vgpu.owner_uid,
        flags: if vgpu.managed { flag::MANAGED } else { 0 },
    }
}

/// The short name of a vGPU's profile; its id when its GPU no longer offers it.
fn short_name<'a>(picture: &'a Snapshot, vgpu: &'a Vgpu) -> Cow<'a, str> {
    let Some(id) = &vgpu.profile else {
        return "".into();
    };
    let profiles = picture.gpu(&vgpu.gpu).map_or(&[][..], |gpu| &gpu.profiles[..]);
    let profile = profiles.iter().find(|profile| profile.id == *id);
    profile.map_or(id.as_str(), |profile| &profile.short_name).into()
}

/// Answers `GetGpu`.
pub(crate) fn get_gpu(picture: &Snapshot, call: &Call) -> Result<Message, Fault> {
    let (name,): (String,) = call.args()?;
    let id: GpuId = options::text("the GPU's name", name)?.parse()?;
    call.reply(&(path::gpu(&known_gpu(picture, &id)?.id.to_string()),))
}

/// Answers `GetVgpu`.
pub(crate) fn get_vgpu(picture: &Snapshot, call: &Call) -> Result<Message, Fault> {
    let (name,): (String,) = call.args()?;
    let name = options::text("the vGPU's name", name)?;
    let vgpu = match parse_uuid(&name) {
        Ok(uuid) => picture.vgpu(uuid),
        Err(_) => {
            let name: VgpuName = name.parse()?;
            picture.vgpus().find(|vgpu| vgpu.name.as_ref() == Some(&name))
        }
    };
    match vgpu {
        Some(vgpu) => call.reply(&(path::vgpu(&vgpu.uuid.to_string()),)),
        None => Err(Fault::new(
            error::NO_SUCH_VGPU,
            format!(
                "no vGPU has the UUID or name {}; vgpuctl list shows those that exist",
                echo(&name)
            ),
        )),
    }
}

/// Answers `GetVgpuByPid`.
pub(crate) async fn get_vgpu_by_pid(
    service: &Service,
    picture: &Snapshot,
    call: &Call,
    rule: Rule,
) -> Result<Message, Fault> {
    let (pid,): (u32,) = call.args()?;
    let asker = service.asker(call).await?;
    asker.may(rule, None, &Details::new()).await?;
    let engine = service.engine.clone();
    let held = work::blocking(move || engine.held_by(pid)).await?;
    match held.iter().find_map(|uuid| picture.vgpu(*uuid)) {
        Some(vgpu) => call.reply(&(path::vgpu(&vgpu.uuid.to_string()),)),
        None => Err(Fault::new(
            error::NO_SUCH_VGPU,
            format!("process {pid} has no vGPU open, or there is no such process"),
        )),
    }
}

/// Answers `PlanVgpus`.
pub(crate) async fn plan_vgpus(service: &Service, call: &Call) -> Result<Message, Fault> {
    /// More kinds than any host has.
    const MOST_WISHES: usize = 256;
    let (wishes, options): (Vec<(String, u32)>, HashMap<String, OwnedVariant>) = call.args()?;
    if wishes.is_empty() || wishes.len() > MOST_WISHES {
        return Err(Fault::invalid(format!(
            "PlanVgpus takes 1 to {MOST_WISHES} wishes, not {}",
            wishes.len()
        )));
    }
    let known = [option::GPU, option::NUMA_NODE, option::POOL, option::PLACEMENT];
    let mut options = Options::new("PlanVgpus", options, &known)?;
    let named = |(name, count)| Ok((profile_name(name)?, count));
    let request = PlanRequest {
        wishes: wishes.into_iter().map(named).collect::<Result<_, Fault>>()?,
        gpu: gpu_option(&mut options)?,
        numa_node: options.number(option::NUMA_NODE)?,
        pool: pool_option(&mut options)?,
        placement: placement_option(&mut options)?,
    };
    let engine = service.engine.clone();
    let planned = work::blocking(move || engine.plan_vgpus(&request)).await?;
    let choices = planned.choices.iter().map(|choice| ChoiceEntry {
        profile: choice.profile.as_str().into(),
        gpu: choice.gpu.to_string().into(),
        function: choice.function.map(|function| function.to_string()).unwrap_or_default().into(),
        steps: choice.steps.iter().map(|step| step.as_str().into()).collect(),
    });
    let remaining =
        planned.remaining.iter().map(|(gpu, profile, now, afterwards)| RemainingEntry {
            gpu: gpu.to_string().into(),
            profile: profile.as_str().into(),
            now: *now,
            afterwards: *afterwards,
        });
    call.reply(&(choices.collect::<Vec<_>>(), remaining.collect::<Vec<_>>()))
}

/// Answers `Rescan`.
pub(crate) async fn rescan(service: &Service, call: &Call, rule: Rule) -> Result<Message, Fault> {
    let asker = service.asker(call).await?;
    asker.may(rule, None, &Details::new()).await?;
    let engine = service.engine.clone();
    work::blocking(move || engine.rescan()).await?;
    call.reply(&())
}

/// Answers `CreateVgpu`.
pub(crate) async fn create_vgpu(
    service: &Service,
    picture: &Snapshot,
    call: &Call,
    rule: Rule,
) -> Result<Option<Message>, Fault> {
    let (profile, options): (String, HashMap<String, OwnedVariant>) = call.args()?;
    let (mut request, owner) = create_request(profile, options)?;
    let asker = service.asker(call).await?;
    request.owner_uid = owner.unwrap_or(asker.uid);
    // The reply of a job names the object before it is there.
    let uuid = *request.uuid.get_or_insert_with(Uuid::new_v4);
    may_create(&asker, picture, &request, rule).await?;

    let place = request.gpu.as_ref().map(|gpu| format!(" on {gpu}")).unwrap_or_default();
    let operation = format!("creating {uuid}, {}{place}", echo(&request.profile));
    let work = Work::new(asker.uid, operation);
    let (engine, control) = (service.engine.clone(), work.control());
    work.run(
        service,
        call,
        move || engine.create(&request, &control),
        |made, job| {
            let uuid = made.as_ref().map_or(uuid, |made| made.uuid);
            let created = made.as_ref().is_none_or(|made| made.created);
            call.reply(&(path::vgpu(&uuid.to_string()), created, job))
        },
    )
    .await
}

/// What is to be created, and for whom when that is said.
fn create_request(
    profile: String,
    options: HashMap<String, OwnedVariant>,
) -> Result<(CreateRequest, Option<u32>), Fault> {
    let known = [
        option::GPU,
        option::UUID,
        option::NAME,
        option::OWNER_UID,
        option::FUNCTION,
        option::NUMA_NODE,
        option::POOL,
        option::PLACEMENT,
        option::ENABLE_VFS,
    ];
    let profile = profile_name(profile)?;
    let mut options = Options::new("CreateVgpu", options, &known)?;
    let uuid = options.text(option::UUID)?.map(|text| parse_uuid(&text)).transpose()?;
    let name = options.text(option::NAME)?.map(|text| text.parse()).transpose()?;
    let function = options.text(option::FUNCTION)?.map(|text| text.parse()).transpose();
    let request = CreateRequest {
        profile,
        gpu: gpu_option(&mut options)?,
        uuid,
        name,
        owner_uid: 0,
        function: function.map_err(|error: vgpu_mdev::model::ParseAddressError| {
            Fault::invalid(error.to_string())
        })?,
        numa_node: options.number(option::NUMA_NODE)?,
        pool: pool_option(&mut options)?,
        placement: placement_option(&mut options)?,
        enable_vfs: options.flag(option::ENABLE_VFS)?.unwrap_or(false),
    };
    let owner = options.number(option::OWNER_UID)?;
    // To chown(2) it means "as it is".
    if owner == Some(u32::MAX) {
        return Err(Fault::invalid(format!("{} is no user's id", u32::MAX)));
    }
    Ok((request, owner))
}

/// Making one's own needs `create`; for another user, or under the UUID of
/// another's, manage-others; changing the GPU itself, configure-gpu.
async fn may_create(
    asker: &Asker<'_>,
    picture: &Snapshot,
    request: &CreateRequest,
    rule: Rule,
) -> Result<(), Fault> {
    let mut details = Details::from([("profile", request.profile.clone())]);
    if let Some(gpu) = &request.gpu {
        details.insert("gpu", gpu.to_string());
    }
    if let Some(uuid) = request.uuid {
        details.insert("uuid", uuid.to_string());
    }
    asker.may(rule, None, &details).await?;
    let existing = request.uuid.and_then(|uuid| picture.vgpu(uuid));
    if request.owner_uid != asker.uid || existing.is_some_and(|vgpu| vgpu.owner_uid != asker.uid) {
        asker.may(Rule::Needs(Action::ManageOthers), None, &details).await?;
    }
    if request.enable_vfs || may_take_whole_gpu(picture, request) {
        asker.may(Rule::Needs(Action::ConfigureGpu), None, &details).await?;
    }
    Ok(())
}

/// Whether a profile of that name stands for a whole GPU.
fn may_take_whole_gpu(picture: &Snapshot, request: &CreateRequest) -> bool {
    let gpus = picture.gpus().filter(|gpu| request.gpu.as_ref().is_none_or(|id| *id == gpu.id));
    gpus.flat_map(|gpu| gpu.profiles_called(&request.profile))
        .any(|profile| profile.framework == Framework::Passthrough)
}

fn profile_name(name: String) -> Result<String, Fault> {
    let name = options::text("the profile", name)?;
    if name.is_empty() || name.contains(char::is_control) {
        return Err(Fault::invalid(format!(
            "{} is not a profile's name; vgpuctl profiles lists them",
            echo(&name)
        )));
    }
    Ok(name)
}

fn pool_option(options: &mut Options) -> Result<Option<PoolName>, Fault> {
    options.text(option::POOL)?.map(|text| text.parse()).transpose().map_err(Fault::invalid)
}

fn placement_option(options: &mut Options) -> Result<Option<Policy>, Fault> {
    let parsed = options.text(option::PLACEMENT)?.map(|text| text.parse()).transpose();
    parsed.map_err(|error: InvalidPolicy| Fault::invalid(error.to_string()))
}

fn gpu_option(options: &mut Options) -> Result<Option<GpuId>, Fault> {
    Ok(options.text(option::GPU)?.map(|text| text.parse()).transpose()?)
}

fn known_gpu<'a>(picture: &'a Snapshot, id: &GpuId) -> Result<&'a Gpu, Fault> {
    picture.gpu(id).map(|gpu| &**gpu).ok_or_else(|| {
        Fault::new(
            error::NO_SUCH_GPU,
            format!(
                "no GPU is called {}; vgpuctl gpus lists those that exist",
                echo(&id.to_string())
            ),
        )
    })
}
