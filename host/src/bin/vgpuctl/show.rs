//! `show` and `explain`: all about one vGPU or GPU.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use vgpu_host_api::{
    names,
    proxy::{Facts, GpuProxy, VgpuProxy},
    wire::ProfileFacts,
};
use zbus::OwnedObjectPath;

use crate::{
    failure::{Code, Failure, Result},
    json::{self, some},
    list::{Profile, fetch_profiles},
    output::{Output, facts, table},
    service::Service,
};

/// `vgpuctl show`
pub(crate) async fn run(service: &Service, output: &Output, name: &str) -> Result<()> {
    // A colon stands in every PCI address and in no vGPU's name.
    if name.contains(':') {
        return gpu(service, output, &service.gpu(name).await?).await;
    }
    match service.vgpu(name).await {
        Ok(found) => vgpu(service, output, &found).await,
        Err(missing) if matches!(missing.code(), Some(Code::NoSuchThing | Code::Usage)) => {
            match service.gpu(name).await {
                Ok(found) => gpu(service, output, &found).await,
                Err(failure) if failure.code() == Some(Code::NoSuchThing) => Err(Failure::new(
                    Code::NoSuchThing,
                    format!(
                        "no vGPU and no GPU is called {name:?}; see vgpuctl list and vgpuctl gpus"
                    ),
                )),
                Err(failure) => Err(failure),
            }
        }
        Err(failure) => Err(failure),
    }
}

/// `vgpuctl explain`
pub(crate) async fn explain(
    service: &Service,
    output: &Output,
    gpu: &str,
    profile: &str,
) -> Result<()> {
    #[derive(Serialize)]
    struct Explanation<'a> {
        gpu: &'a str,
        profile: &'a str,
        text: String,
    }
    let text = service.said(service.gpu(gpu).await?.explain(profile).await)?;
    output
        .print(&Explanation { gpu, profile, text }, |explanation| format!("{}\n", explanation.text))
}

/// All about one vGPU.
#[derive(Serialize)]
pub(crate) struct Vgpu {
    pub(crate) uuid: String,
    name: Option<String>,
    gpu: String,
    /// Its short name; its type id when the GPU no longer offers it.
    profile: Option<String>,
    profile_id: Option<String>,
    framework: String,
    state: String,
    addresses: Vec<String>,
    iommu_group: Option<u32>,
    nodes: Vec<Node>,
    owner_uid: u32,
    managed: bool,
    in_use: String,
    /// What NVIDIA's driver tells of it besides.
    nvidia: Option<Nvidia>,
}

#[derive(Serialize)]
struct Nvidia {
    gpu_instance: Option<u32>,
    placement: Option<u32>,
    params: Option<String>,
}

#[derive(Serialize)]
struct Node {
    kind: String,
    path: String,
}

async fn vgpu(service: &Service, output: &Output, found: &VgpuProxy<'_>) -> Result<()> {
    output.print(&Vgpu::fetch(service, found).await?, Vgpu::text)
}

impl Vgpu {
    /// Reads it in three calls: its properties, NVIDIA's, and those of its GPU.
    pub(crate) async fn fetch(service: &Service, found: &VgpuProxy<'_>) -> Result<Self> {
        let inner = found.inner();
        let path = inner.path().as_str();
        let mut held = service.properties(path, names::VGPU).await?;
        let nvidia = service.properties_if_any(path, names::NVIDIA_VGPU).await?;
        let gpu: OwnedObjectPath = take(&mut held, "Gpu")?;
        let gpu = service.gpu_at(gpu).await?;
        let inner = gpu.inner();
        let mut of_gpu = service.properties(inner.path().as_str(), names::GPU).await?;
        let mut offered: HashMap<String, ProfileFacts> = take(&mut of_gpu, "Profiles")?;
        let profile_id = some(take(&mut held, "Profile")?);
        let profile = profile_id.clone().map(|id| match offered.remove(&id) {
            Some((_, short_name, ..)) => short_name,
            None => id,
        });
        let nodes: Vec<(String, String)> = take(&mut held, "Nodes")?;
        Ok(Self {
            uuid: take(&mut held, "Uuid")?,
            name: some(take(&mut held, "Name")?),
            gpu: take(&mut of_gpu, "Address")?,
            profile,
            profile_id,
            framework: take(&mut held, "Framework")?,
            state: take(&mut held, "State")?,
            addresses: take(&mut held, "Address")?,
            iommu_group: u32::try_from(take::<i32>(&mut held, "IommuGroup")?).ok(),
            nodes: nodes.into_iter().map(|(kind, path)| Node { kind, path }).collect(),
            owner_uid: take(&mut held, "OwnerUid")?,
            managed: take(&mut held, "Managed")?,
            in_use: take(&mut held, "InUse")?,
            nvidia: nvidia.map(|mut held| Nvidia::of(&mut held)).transpose()?,
        })
    }

    fn text(&self) -> String {
        let nodes: Vec<_> =
            self.nodes.iter().map(|node| format!("{} ({})", node.path, node.kind)).collect();
        let number = |get: fn(&Nvidia) -> Option<u32>| {
            self.nvidia.as_ref().and_then(get).map(|n| n.to_string()).unwrap_or_default()
        };
        let params = self.nvidia.as_ref().and_then(|nvidia| nvidia.params.clone());
        let params = params.unwrap_or_default();
        facts([
            ("UUID", self.uuid.clone()),
            ("Name", self.name.clone().unwrap_or_default()),
            ("GPU", self.gpu.clone()),
            ("Profile", self.profile.clone().unwrap_or_default()),
            ("Profile id", self.profile_id.clone().unwrap_or_default()),
            ("Framework", self.framework.clone()),
            ("State", self.state.clone()),
            ("In use", self.in_use.clone()),
            ("Addresses", self.addresses.join(", ")),
            ("IOMMU group", self.iommu_group.map(|group| group.to_string()).unwrap_or_default()),
            ("Nodes", nodes.join(", ")),
            ("Owner", self.owner_uid.to_string()),
            ("Managed", if self.managed { "yes" } else { "no, made by someone else" }.to_owned()),
            ("GPU instance", number(|nvidia| nvidia.gpu_instance)),
            ("Placement", number(|nvidia| nvidia.placement)),
            ("Parameters", params),
        ])
    }
}

impl Nvidia {
    fn of(held: &mut Facts) -> Result<Self> {
        Ok(Self {
            gpu_instance: u32::try_from(take::<i32>(held, "GpuInstance")?).ok(),
            placement: u32::try_from(take::<i32>(held, "Placement")?).ok(),
            params: some(take(held, "Params")?),
        })
    }
}

#[derive(Serialize)]
struct Gpu {
    id: String,
    vendor: String,
    model: String,
    driver: Option<String>,
    numa_node: Option<u32>,
    framework: String,
    state: String,
    vf_count: u32,
    vf_total: u32,
    mig: Option<Mig>,
    heterogeneous: Option<bool>,
    profiles: Vec<Profile>,
    functions: Vec<Function>,
    problems: Vec<Problem>,
}

#[derive(Serialize)]
struct Mig {
    current: bool,
    pending: bool,
    instances: Vec<Instance>,
}

#[derive(Serialize)]
struct Instance {
    id: u32,
    shape: String,
}

#[derive(Serialize)]
struct Function {
    address: String,
    driver: Option<String>,
    state: String,
    vgpu: Option<String>,
}

#[derive(Serialize)]
struct Problem {
    code: String,
    text: String,
}

async fn gpu(service: &Service, output: &Output, found: &GpuProxy<'_>) -> Result<()> {
    let path = found.inner().path().as_str();
    let mut held = service.properties(path, names::GPU).await?;
    let mig = service.properties_if_any(path, names::MIG).await?;
    let heterogeneous = service.properties_if_any(path, names::HETEROGENEOUS).await?;
    let id: String = take(&mut held, "Address")?;
    let profiles = fetch_profiles(service, Some(&id)).await?;
    let mut functions = Vec::new();
    for mut function in take::<Vec<Facts>>(&mut held, "Functions")? {
        let vgpu: OwnedObjectPath = take(&mut function, "Vgpu")?;
        let vgpu = match vgpu.as_str() {
            names::NONE => None,
            _ => Some(service.said(service.vgpu_at(vgpu).await?.uuid().await)?),
        };
        functions.push(Function {
            address: take(&mut function, "Address")?,
            driver: some(take(&mut function, "Driver")?),
            state: take(&mut function, "State")?,
            vgpu,
        });
    }
    let problems: Vec<(String, String)> = take(&mut held, "Problems")?;
    let gpu = Gpu {
        id,
        vendor: take(&mut held, "Vendor")?,
        model: take(&mut held, "Model")?,
        driver: some(take(&mut held, "Driver")?),
        numa_node: u32::try_from(take::<i32>(&mut held, "NumaNode")?).ok(),
        framework: take(&mut held, "Framework")?,
        state: take(&mut held, "State")?,
        vf_count: take(&mut held, "VfCount")?,
        vf_total: take(&mut held, "VfTotal")?,
        mig: mig.map(|mut held| Mig::of(&mut held)).transpose()?,
        heterogeneous: heterogeneous.map(|mut held| take(&mut held, "Enabled")).transpose()?,
        profiles,
        functions,
        problems: problems.into_iter().map(|(code, text)| Problem { code, text }).collect(),
    };
    output.print(&gpu, Gpu::text)
}

impl Gpu {
    fn text(&self) -> String {
        let vfs = match self.vf_total {
            0 => String::new(),
            total => format!("{} of {total}", self.vf_count),
        };
        let mut text = facts([
            ("GPU", self.id.clone()),
            ("Vendor", self.vendor.clone()),
            ("Model", self.model.clone()),
            ("Driver", self.driver.clone().unwrap_or_else(|| "none".to_owned())),
            ("NUMA node", self.numa_node.map(|node| node.to_string()).unwrap_or_default()),
            ("Framework", self.framework.clone()),
            ("State", self.state.clone()),
            ("VFs", vfs),
            ("MIG", self.mig.as_ref().map(Mig::mode).unwrap_or_default()),
            ("GPU instances", self.mig.as_ref().map(Mig::instances).unwrap_or_default()),
            ("Heterogeneous", self.heterogeneous.map(on_or_off).unwrap_or_default().to_owned()),
        ]);
        text.push_str(&facts(
            self.problems.iter().map(|problem| ("Problem", problem.text.clone())),
        ));
        if !self.profiles.is_empty() {
            text.push('\n');
            let headings = ["PROFILE", "TYPE", ">MEMORY", ">AVAILABLE", ">TOTAL", "REASON"];
            text.push_str(&table(headings, self.profiles.iter().map(Profile::short_row)));
        }
        if !self.functions.is_empty() {
            text.push('\n');
            let row = |function: &Function| {
                let Function { address, driver, state, vgpu } = function;
                let or_none = |text: &Option<String>| text.clone().unwrap_or_default();
                [address.clone(), or_none(driver), state.clone(), or_none(vgpu)]
            };
            text.push_str(&table(
                ["FUNCTION", "DRIVER", "STATE", "VGPU"],
                self.functions.iter().map(row),
            ));
        }
        text
    }
}

impl Mig {
    fn of(held: &mut Facts) -> Result<Self> {
        let instances: Vec<(u32, String)> = take(held, "Instances")?;
        Ok(Self {
            current: take(held, "Current")?,
            pending: take(held, "Pending")?,
            instances: instances.into_iter().map(|(id, shape)| Instance { id, shape }).collect(),
        })
    }

    fn mode(&self) -> String {
        let now = on_or_off(self.current);
        match self.pending == self.current {
            true => now.to_owned(),
            false => format!("{now}, {} after the GPU's next reset", on_or_off(self.pending)),
        }
    }

    /// Empty while there can be none.
    fn instances(&self) -> String {
        let shown = |instance: &Instance| format!("{} ({})", instance.id, instance.shape);
        match (self.current, self.instances.is_empty()) {
            (true, true) => "none".to_owned(),
            _ => self.instances.iter().map(shown).collect::<Vec<_>>().join(", "),
        }
    }
}

fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Takes a fact that the contract promises.
pub(crate) fn take<T>(facts: &mut Facts, name: &str) -> Result<T>
where
    T: TryFrom<zbus::OwnedVariant>,
    T::Error: std::fmt::Display,
{
    let unlike =
        |why: String| Failure::other(format!("the service's answer has no proper {name}: {why}"));
    let held = facts.remove(name).ok_or_else(|| unlike("it is missing".to_owned()))?;
    T::try_from(held).map_err(|error| unlike(error.to_string()))
}

/// What is left of some facts, as JSON.
pub(crate) fn rest(facts: &Facts) -> serde_json::Map<String, Value> {
    json::facts(facts.iter().map(|(name, held)| (name.as_str(), &**held)))
}
