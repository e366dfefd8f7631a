//! `gpus`, `profiles` and `list`: one call of the bus each.

use std::collections::HashMap;

use serde::Serialize;
use vgpu_host_api::{
    names::option,
    wire::{GpuEntry, ProfileEntry, VgpuEntry, flag},
};
use zbus::Variant;

use crate::{
    args::Filter,
    failure::Result,
    json::some,
    output::{Output, size, table},
    service::Service,
};

#[derive(Serialize)]
struct Gpu {
    id: String,
    vendor: String,
    model: String,
    framework: String,
    driver: Option<String>,
    state: String,
    vf_count: u32,
    vf_total: u32,
    vgpus: u32,
}

/// `vgpuctl gpus`
pub(crate) async fn gpus(service: &Service, output: &Output) -> Result<()> {
    let rows = service.said(service.manager().await?.list_gpus().await)?;
    let gpus: Vec<Gpu> = rows.into_iter().map(Gpu::from).collect();
    output.rows(&gpus, "no GPU that can be divided; see vgpuctl doctor", |gpus| {
        let headings = ["GPU", "VENDOR", "MODEL", "FRAMEWORK", "DRIVER", ">VFS", ">VGPUS", "STATE"];
        table(headings, gpus.iter().map(Gpu::row))
    })
}

impl From<GpuEntry<'_>> for Gpu {
    fn from(entry: GpuEntry<'_>) -> Self {
        Self {
            id: entry.id.into_owned(),
            vendor: entry.vendor.into_owned(),
            model: entry.model.into_owned(),
            framework: entry.framework.into_owned(),
            driver: some(entry.driver.into_owned()),
            state: entry.state.into_owned(),
            vf_count: entry.vf_count,
            vf_total: entry.vf_total,
            vgpus: entry.vgpus,
        }
    }
}

impl Gpu {
    fn row(&self) -> [String; 8] {
        let vfs = match self.vf_total {
            0 => String::new(),
            total => format!("{}/{total}", self.vf_count),
        };
        [
            self.id.clone(),
            self.vendor.clone(),
            self.model.clone(),
            self.framework.clone(),
            self.driver.clone().unwrap_or_default(),
            vfs,
            self.vgpus.to_string(),
            self.state.clone(),
        ]
    }
}

/// A profile of a GPU.
#[derive(Serialize)]
pub(crate) struct Profile {
    gpu: String,
    id: String,
    name: String,
    short_name: String,
    framework: String,
    framebuffer: Option<u64>,
    total: Option<u32>,
    available: u32,
    reason: Option<String>,
}

/// `vgpuctl profiles`
pub(crate) async fn profiles(service: &Service, output: &Output, gpu: Option<&str>) -> Result<()> {
    let profiles = fetch_profiles(service, gpu).await?;
    let nothing = match gpu {
        Some(gpu) => format!("{gpu} offers no profiles; see vgpuctl show {gpu}"),
        None => "no profiles; see vgpuctl gpus and vgpuctl doctor".to_owned(),
    };
    output.rows(&profiles, &nothing, |profiles| {
        let headings = [
            "GPU",
            "PROFILE",
            "TYPE",
            "NAME",
            "FRAMEWORK",
            ">MEMORY",
            ">AVAILABLE",
            ">TOTAL",
            "REASON",
        ];
        table(headings, profiles.iter().map(Profile::row))
    })
}

/// The profiles of all GPUs, or of one.
pub(crate) async fn fetch_profiles(service: &Service, gpu: Option<&str>) -> Result<Vec<Profile>> {
    let filter = gpu.map(|gpu| (option::GPU, Variant::from(gpu))).into_iter().collect();
    let rows = service.said(service.manager().await?.list_profiles(&filter).await)?;
    Ok(rows.into_iter().map(Profile::from).collect())
}

impl From<ProfileEntry<'_>> for Profile {
    fn from(entry: ProfileEntry<'_>) -> Self {
        Self {
            gpu: entry.gpu.into_owned(),
            id: entry.id.into_owned(),
            name: entry.name.into_owned(),
            short_name: entry.short_name.into_owned(),
            framework: entry.framework.into_owned(),
            framebuffer: (entry.framebuffer != 0).then_some(entry.framebuffer),
            total: (entry.total != 0).then_some(entry.total),
            available: entry.available,
            reason: (entry.reason != "ok").then(|| entry.reason.into_owned()),
        }
    }
}

impl Profile {
    fn row(&self) -> [String; 9] {
        [
            self.gpu.clone(),
            self.short_name.clone(),
            self.id.clone(),
            self.name.clone(),
            self.framework.clone(),
            self.framebuffer.map(size).unwrap_or_default(),
            self.available.to_string(),
            self.total.map(|total| total.to_string()).unwrap_or_default(),
            self.reason.clone().unwrap_or_default(),
        ]
    }

    /// The columns that say what it is where the GPU is known.
    pub(crate) fn short_row(&self) -> [String; 6] {
        let [_, short_name, id, _, _, memory, available, total, reason] = self.row();
        [short_name, id, memory, available, total, reason]
    }
}

#[derive(Serialize)]
struct Vgpu {
    uuid: String,
    name: Option<String>,
    profile: Option<String>,
    state: String,
    gpu: String,
    owner_uid: u32,
    managed: bool,
}

/// `vgpuctl list`
pub(crate) async fn vgpus(service: &Service, output: &Output, filter: &Filter) -> Result<()> {
    let rows = service.said(service.manager().await?.list_vgpus(&wanted(filter)).await)?;
    let vgpus: Vec<Vgpu> = rows.into_iter().map(Vgpu::from).collect();
    output.rows(&vgpus, "no vGPUs", |vgpus| {
        let headings = ["UUID", "NAME", "PROFILE", "GPU", "STATE", ">OWNER", "MANAGED"];
        table(headings, vgpus.iter().map(Vgpu::row))
    })
}

fn wanted(filter: &Filter) -> HashMap<&str, Variant<'_>> {
    let mut wanted = HashMap::new();
    if let Some(gpu) = &filter.gpu {
        wanted.insert(option::GPU, Variant::from(gpu.as_str()));
    }
    if let Some(uid) = filter.owner_uid {
        wanted.insert(option::OWNER_UID, Variant::from(uid));
    }
    if filter.managed || filter.foreign {
        wanted.insert(option::MANAGED, Variant::from(filter.managed));
    }
    wanted
}

impl From<VgpuEntry<'_>> for Vgpu {
    fn from(entry: VgpuEntry<'_>) -> Self {
        Self {
            uuid: entry.uuid.into_owned(),
            name: some(entry.name.into_owned()),
            profile: some(entry.profile.into_owned()),
            state: entry.state.into_owned(),
            gpu: entry.gpu.into_owned(),
            owner_uid: entry.owner_uid,
            managed: entry.flags & flag::MANAGED != 0,
        }
    }
}

impl Vgpu {
    fn row(&self) -> [String; 7] {
        [
            self.uuid.clone(),
            self.name.clone().unwrap_or_default(),
            self.profile.clone().unwrap_or_default(),
            self.gpu.clone(),
            self.state.clone(),
            self.owner_uid.to_string(),
            if self.managed { "yes" } else { "no" }.to_owned(),
        ]
    }
}
