//! One consistent picture of a host, and what differs between two.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use uuid::Uuid;

use super::{Gpu, GpuId, Vgpu};

/// One immutable picture of the host. Copies share what did not change: a new
/// picture after one event costs the same with 16 vGPUs as with 4,096.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    revision: u64,
    gpus: OrdMap<GpuId, Arc<Gpu>>,
    vgpus: OrdMap<Uuid, Arc<Vgpu>>,
    by_gpu: OrdMap<GpuId, OrdSet<Uuid>>,
}

impl Snapshot {
    /// Rises by one with each change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All GPUs, by id.
    pub fn gpus(&self) -> impl Iterator<Item = &Arc<Gpu>> {
        self.gpus.values()
    }

    /// All vGPUs, by UUID.
    pub fn vgpus(&self) -> impl Iterator<Item = &Arc<Vgpu>> {
        self.vgpus.values()
    }

    /// The GPU of that id.
    pub fn gpu(&self, id: &GpuId) -> Option<&Arc<Gpu>> {
        self.gpus.get(id)
    }

    /// The vGPU of that UUID.
    pub fn vgpu(&self, uuid: Uuid) -> Option<&Arc<Vgpu>> {
        self.vgpus.get(&uuid)
    }

    /// The vGPUs of one GPU, by UUID.
    pub fn vgpus_of<'a>(&'a self, gpu: &GpuId) -> impl Iterator<Item = &'a Arc<Vgpu>> {
        let members = self.by_gpu.get(gpu);
        members.into_iter().flatten().filter_map(|uuid| self.vgpus.get(uuid))
    }

    /// How many GPUs there are.
    pub fn gpu_count(&self) -> usize {
        self.gpus.len()
    }

    /// How many vGPUs there are.
    pub fn vgpu_count(&self) -> usize {
        self.vgpus.len()
    }

    /// How many vGPUs one GPU has.
    pub fn vgpu_count_of(&self, gpu: &GpuId) -> usize {
        self.by_gpu.get(gpu).map_or(0, OrdSet::len)
    }

    /// Puts a GPU in; says what that changed.
    pub(crate) fn put_gpu(&mut self, gpu: Gpu) -> Option<Event> {
        let id = gpu.id.clone();
        match self.gpus.get(&id) {
            Some(old) if **old == gpu => None,
            Some(_) => {
                self.gpus.insert(id.clone(), Arc::new(gpu));
                Some(Event::GpuChanged(id))
            }
            None => {
                self.gpus.insert(id.clone(), Arc::new(gpu));
                Some(Event::GpuAdded(id))
            }
        }
    }

    /// Takes a GPU out; its vGPUs must be out already.
    pub(crate) fn drop_gpu(&mut self, id: &GpuId) -> Option<Event> {
        self.by_gpu.remove(id);
        self.gpus.remove(id).map(|_| Event::GpuRemoved(id.clone()))
    }

    /// Puts a vGPU in; says what that changed.
    pub(crate) fn put_vgpu(&mut self, vgpu: Vgpu) -> Option<Event> {
        let uuid = vgpu.uuid;
        let event = match self.vgpus.get(&uuid) {
            Some(old) if **old == vgpu => return None,
            Some(old) => {
                let old_gpu = old.gpu.clone();
                if old_gpu != vgpu.gpu {
                    self.unlist(&old_gpu, uuid);
                }
                Event::VgpuChanged(uuid)
            }
            None => Event::VgpuAdded(uuid),
        };
        self.by_gpu.entry(vgpu.gpu.clone()).or_default().insert(uuid);
        self.vgpus.insert(uuid, Arc::new(vgpu));
        Some(event)
    }

    /// Takes a vGPU out.
    pub(crate) fn drop_vgpu(&mut self, uuid: Uuid) -> Option<Event> {
        let old = self.vgpus.remove(&uuid)?;
        self.unlist(&old.gpu, uuid);
        Some(Event::VgpuRemoved(uuid))
    }

    /// Counts one change.
    pub(crate) fn next_revision(&mut self) {
        self.revision += 1;
    }

    fn unlist(&mut self, gpu: &GpuId, uuid: Uuid) {
        if let Some(members) = self.by_gpu.get_mut(gpu) {
            members.remove(&uuid);
        }
    }
}

/// What happened between two pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A GPU appeared.
    GpuAdded(GpuId),
    /// A GPU's facts changed.
    GpuChanged(GpuId),
    /// A GPU is gone.
    GpuRemoved(GpuId),
    /// A vGPU appeared.
    VgpuAdded(Uuid),
    /// A vGPU's facts changed.
    VgpuChanged(Uuid),
    /// A vGPU is gone.
    VgpuRemoved(Uuid),
}

/// A change of the picture: before, after, and what happened between.
#[derive(Debug, Clone)]
pub struct Change {
    /// The picture before.
    pub before: Arc<Snapshot>,
    /// The picture after.
    pub after: Arc<Snapshot>,
    /// What happened, removals first, then GPUs, then vGPUs.
    pub events: Vec<Event>,
}
