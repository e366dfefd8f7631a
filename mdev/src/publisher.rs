//! The one publisher: it merges a lane's new facts into an immutable snapshot
//! that shares the unchanged GPUs, and tells the listeners what changed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use uuid::Uuid;

use crate::{
    framework::{self, View},
    model::{Change, Event, Framework, GpuId, GpuState, Snapshot, Vgpu},
    scan::{GpuFacts, MdevFacts},
};

type Listener = Box<dyn Fn(&Change) + Send + Sync>;

/// Holds the latest snapshot and the facts that it was made of.
#[derive(Default)]
pub struct Publisher {
    current: ArcSwap<Snapshot>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    facts: BTreeMap<GpuId, Arc<GpuFacts>>,
    listeners: Vec<Listener>,
}

impl Publisher {
    /// The latest snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// The facts of a GPU that its last scan gave.
    pub fn facts(&self, gpu: &GpuId) -> Option<Arc<GpuFacts>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).facts.get(gpu).cloned()
    }

    /// Calls `listener` with every change from now on.
    pub fn subscribe(&self, listener: Listener) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).listeners.push(listener);
    }

    /// A whole GPU was scanned, with all its mdevs.
    pub fn put_gpu(&self, facts: GpuFacts, mdevs: &[MdevFacts], view: View<'_>) {
        self.publish(|next, all, events| {
            let mut kept: Vec<Uuid> = Vec::with_capacity(mdevs.len());
            let mut vgpus: Vec<Vgpu> = mdevs
                .iter()
                .map(|mdev| {
                    framework::mdev::vgpu(&facts.id, mdev, view.claims.get(mdev.uuid).as_ref())
                })
                .collect();
            vgpus.extend(framework::function_vgpus(&facts, view, &framework::model_slug(&facts)));
            kept.extend(vgpus.iter().map(|vgpu| vgpu.uuid));
            kept.sort_unstable();
            let gone: Vec<Uuid> = next
                .vgpus_of(&facts.id)
                .map(|vgpu| vgpu.uuid)
                .filter(|uuid| kept.binary_search(uuid).is_err())
                .collect();
            events.extend(gone.into_iter().filter_map(|uuid| next.drop_vgpu(uuid)));
            put_vgpus_and_gpu(next, events, &facts, view, vgpus);
            all.insert(facts.id.clone(), Arc::new(facts));
        });
    }

    /// One mdev was looked at, and what its GPU's parents offer.
    pub fn put_mdev(&self, facts: GpuFacts, uuid: Uuid, mdev: Option<&MdevFacts>, view: View<'_>) {
        self.publish(|next, all, events| {
            let vgpu = mdev
                .map(|mdev| framework::mdev::vgpu(&facts.id, mdev, view.claims.get(uuid).as_ref()));
            if vgpu.is_none() && next.vgpu(uuid).is_some_and(|old| old.gpu == facts.id) {
                events.extend(next.drop_vgpu(uuid));
            }
            put_vgpus_and_gpu(next, events, &facts, view, vgpu.into_iter().collect());
            all.insert(facts.id.clone(), Arc::new(facts));
        });
    }

    /// The functions of a GPU were looked at; its mdevs were not.
    pub fn put_functions(&self, facts: GpuFacts, view: View<'_>) {
        self.publish(|next, all, events| {
            let vgpus = framework::function_vgpus(&facts, view, &framework::model_slug(&facts));
            let gone: Vec<Uuid> = next
                .vgpus_of(&facts.id)
                .filter(|old| old.framework != Framework::Mdev)
                .map(|old| old.uuid)
                .filter(|uuid| vgpus.iter().all(|vgpu| vgpu.uuid != *uuid))
                .collect();
            events.extend(gone.into_iter().filter_map(|uuid| next.drop_vgpu(uuid)));
            put_vgpus_and_gpu(next, events, &facts, view, vgpus);
            all.insert(facts.id.clone(), Arc::new(facts));
        });
    }

    /// A GPU is gone, with its vGPUs.
    pub fn drop_gpu(&self, gpu: &GpuId) {
        self.publish(|next, all, events| {
            let vgpus: Vec<Uuid> = next.vgpus_of(gpu).map(|vgpu| vgpu.uuid).collect();
            events.extend(vgpus.into_iter().filter_map(|uuid| next.drop_vgpu(uuid)));
            events.extend(next.drop_gpu(gpu));
            all.remove(gpu);
        });
    }

    /// The kernel hangs on a GPU: it keeps its last facts, marked stale.
    pub fn mark_stale(&self, gpu: &GpuId) {
        self.publish(|next, _, events| {
            if let Some(old) = next.gpu(gpu)
                && old.state != GpuState::Stale
            {
                let stale = crate::model::Gpu { state: GpuState::Stale, ..(**old).clone() };
                events.extend(next.put_gpu(stale));
            }
        });
    }

    fn publish(
        &self,
        change: impl FnOnce(&mut Snapshot, &mut BTreeMap<GpuId, Arc<GpuFacts>>, &mut Vec<Event>),
    ) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.current.load_full();
        let mut next = (*before).clone();
        let mut events = Vec::new();
        change(&mut next, &mut inner.facts, &mut events);
        if events.is_empty() {
            return;
        }
        next.next_revision();
        let after = Arc::new(next);
        self.current.store(after.clone());
        let change = Change { before, after, events };
        for listener in &inner.listeners {
            listener(&change);
        }
    }
}

fn put_vgpus_and_gpu(
    next: &mut Snapshot,
    events: &mut Vec<Event>,
    facts: &GpuFacts,
    view: View<'_>,
    vgpus: Vec<Vgpu>,
) {
    let mut put: Vec<Event> = vgpus.into_iter().filter_map(|vgpu| next.put_vgpu(vgpu)).collect();
    let vgpus: Vec<Arc<Vgpu>> = if framework::needs_vgpus(facts) {
        next.vgpus_of(&facts.id).cloned().collect()
    } else {
        Vec::new()
    };
    let gpu = framework::gpu(facts, view, &vgpus);
    events.extend(next.put_gpu(gpu));
    events.append(&mut put);
}
