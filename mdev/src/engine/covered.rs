//! Which uevents the last looks have covered already.
//!
//! The kernel numbers its uevents and counts them in `/sys/kernel/uevent_seqnum`
//! (`lib/kobject_uevent.c`: the number is taken when the event is sent, after
//! what it tells has happened). A look that began when the count stood at N has
//! seen all that the events up to N tell: they need no other look, as those of
//! our own changes, which udev brings when we have long looked.
//!
//! But an mdev gets its type after its last event, and loses its directory after
//! that (`mdev_device_create`, `drivers/vfio/mdev/mdev_core.c`; `device_del`,
//! `drivers/base/core.c`): a look at one that is on its way covers nothing.

use std::collections::{BTreeMap, VecDeque};

use uuid::Uuid;

use crate::{model::GpuId, sys::KernelEvent};

use super::Hint;

/// How many mdevs are remembered: those of which events may still be under way.
const MDEVS: usize = 64;

/// The counts at which the last looks began.
#[derive(Debug, Default)]
pub(super) struct Covered {
    gpus: BTreeMap<GpuId, u64>,
    mdevs: VecDeque<(Uuid, u64)>,
}

impl Covered {
    /// A whole GPU was looked at.
    pub(super) fn gpu(&mut self, gpu: &GpuId, count: Option<u64>) {
        if let Some(count) = count {
            self.gpus.insert(gpu.clone(), count);
        }
    }

    /// An mdev was looked at.
    pub(super) fn mdev(&mut self, uuid: Uuid, count: Option<u64>) {
        let Some(count) = count else { return };
        self.mdevs.retain(|(known, _)| *known != uuid);
        self.mdevs.truncate(MDEVS - 1);
        self.mdevs.push_front((uuid, count));
    }

    /// Whether what an event hints at was looked at after it was sent.
    pub(super) fn covers(&self, hint: &Hint, event: &KernelEvent) -> bool {
        let number = event.properties.iter().find(|(key, _)| key == "SEQNUM");
        let Some(number) = number.and_then(|(_, number)| number.parse::<u64>().ok()) else {
            return false;
        };
        let by_gpu = |gpu| self.gpus.get(gpu).is_some_and(|count| number <= *count);
        match hint {
            Hint::All | Hint::Host | Hint::NvidiaSmi => false,
            Hint::Gpu(gpu) | Hint::Function(gpu, _) => by_gpu(gpu),
            Hint::Mdev(gpu, _, uuid) => {
                let mdev = self.mdevs.iter().find(|(known, _)| known == uuid);
                mdev.is_some_and(|(_, count)| number <= *count) || by_gpu(gpu)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_after_the_look_is_not_covered() {
        let gpu: GpuId = "mtty".parse().unwrap();
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut covered = Covered::default();
        let event = |number: &str| KernelEvent {
            properties: vec![("SEQNUM".into(), number.into())],
            ..KernelEvent::default()
        };
        let of = |uuid| Hint::Mdev(gpu.clone(), "mtty".into(), uuid);
        covered.mdev(one, Some(7));
        assert!(covered.covers(&of(one), &event("7")));
        assert!(!covered.covers(&of(one), &event("8")));
        assert!(!covered.covers(&of(other), &event("7")));
        assert!(!covered.covers(&Hint::Gpu(gpu.clone()), &event("7")));
        covered.gpu(&gpu, Some(9));
        assert!(covered.covers(&of(other), &event("9")));
        assert!(!covered.covers(&Hint::All, &event("1")));
        assert!(!covered.covers(&of(one), &event("x")));
        assert!(!covered.covers(&of(one), &KernelEvent::default()));
        for n in 10..10 + MDEVS as u128 {
            covered.mdev(Uuid::from_u128(n), Some(20));
        }
        assert_eq!(covered.mdevs.len(), MDEVS);
    }
}
