//! What is learnt of a GPU's types where its driver does not say, or not always:
//! how many an empty GPU takes, as the most that was ever seen available since the
//! host booted, and what NVIDIA's types are called. Kept in `/run`,
//! since after a restart of the service the GPU may not be empty.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    framework::nvidia,
    model::{GpuId, TypeId},
    scan::{GpuFacts, text},
    store::{Store, StoreError},
};

/// The totals of all GPUs.
pub struct Totals {
    seen: Mutex<BTreeMap<GpuId, Entry>>,
    store: Store<Entry>,
}

/// The totals of one GPU, as they are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    gpu: GpuId,
    totals: BTreeMap<TypeId, u32>,
    /// What NVIDIA's types are called: a VF lists only those that still fit.
    #[serde(default)]
    seen: SeenTypes,
}

/// The types that NVIDIA's VFs have listed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SeenTypes {
    /// Their names.
    pub names: BTreeMap<TypeId, String>,
    /// Whether the GPU was seen without vGPUs, so that these are all time-sliced
    /// ones there are.
    pub complete: bool,
}

impl Totals {
    /// Loads what was seen before.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn load(store: Store<Entry>) -> Result<Self, StoreError> {
        let loaded = store.load()?;
        for (path, why) in loaded.broken {
            tracing::warn!("{} is left out: {why}", path.display());
        }
        let seen =
            loaded.entries.into_iter().map(|(_, entry)| (entry.gpu.clone(), entry)).collect();
        Ok(Self { seen: Mutex::new(seen), store })
    }

    /// Takes note of what a GPU has available now, of the types whose driver does
    /// not say how many fit, and of what its VFs call their types.
    pub fn learn(&self, facts: &GpuFacts) {
        let mut available: BTreeMap<&TypeId, u32> = BTreeMap::new();
        for (id, (of_type, count)) in facts.parents.iter().flat_map(|parent| &parent.types) {
            if text::max_instance(&of_type.description).is_none() {
                let sum = available.entry(id).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        let vendor = facts.functions.iter().filter_map(|function| function.vendor.as_ref());
        let listed: BTreeMap<u32, &String> =
            vendor.flat_map(|vendor| &vendor.creatable).map(|(id, name)| (*id, name)).collect();
        if available.is_empty() && listed.is_empty() {
            return;
        }
        let mut vendor = facts.functions.iter().filter_map(|function| function.vendor.as_ref());
        let is_time_sliced = |name: &String| text::instance_of_name(name).is_none();
        let is_complete = vendor.all(|vendor| vendor.current == 0)
            && listed.values().copied().any(is_time_sliced);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen.entry(facts.id.clone()).or_insert_with(|| Entry {
            gpu: facts.id.clone(),
            totals: BTreeMap::new(),
            seen: SeenTypes::default(),
        });
        let mut changed = false;
        for (id, count) in available {
            if known.totals.get(id).is_none_or(|most| *most < count) {
                known.totals.insert(id.clone(), count);
                changed = true;
            }
        }
        for (number, name) in listed {
            if let Some(id) = nvidia::type_id(number)
                && known.seen.names.get(&id) != Some(name)
            {
                known.seen.names.insert(id, name.clone());
                changed = true;
            }
        }
        if is_complete && !known.seen.complete {
            known.seen.complete = true;
            changed = true;
        }
        if changed {
            let key = Uuid::new_v5(&Uuid::NAMESPACE_OID, facts.id.to_string().as_bytes());
            if let Err(error) = self.store.put(key, known) {
                tracing::warn!("{error}");
            }
        }
    }

    /// The most of a type that a GPU was seen to have available.
    pub fn of(&self, gpu: &GpuId, id: &TypeId) -> u32 {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(gpu).and_then(|known| known.totals.get(id)).copied().unwrap_or(0)
    }

    /// The types that a GPU's VFs were seen to list.
    pub fn seen_types(&self, gpu: &GpuId) -> SeenTypes {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(gpu).map(|known| known.seen.clone()).unwrap_or_default()
    }
}
