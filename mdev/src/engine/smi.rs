//! What NVIDIA's program says of its GPUs. No event tells of it, and it takes
//! seconds: it is asked when the service starts, with every rescan that somebody
//! asks for, and around our own changes.

use std::{collections::BTreeMap, sync::Arc};

use nix::errno::Errno;

use crate::{
    execute::{self, Cause},
    framework::nvidia,
    model::{GpuId, PciAddress},
    sys::{Deadline, OpError},
};

use super::{Engine, lock};

impl Engine {
    /// Asks about all of NVIDIA's GPUs that carry vGPUs on VFs, and publishes what
    /// changed.
    pub(super) fn ask_smi(&self) {
        let snapshot = self.snapshot();
        let asked: Vec<PciAddress> = snapshot
            .gpus()
            .filter(|gpu| {
                self.publisher.facts(&gpu.id).is_some_and(|facts| nvidia::has_functions(&facts))
            })
            .filter_map(|gpu| gpu.id.pci())
            .collect();
        for address in asked {
            if let Err(cause) = self.ask_smi_about(address) {
                tracing::warn!("MIG and heterogeneous mode of {address} are not known: {cause}");
                // What is missing is missing for all.
                if matches!(&cause, Cause::Op(OpError::Tool { errno: Errno::ENOENT, .. })) {
                    break;
                }
            }
        }
    }

    /// Asks about one GPU, and publishes what changed.
    pub(super) fn ask_smi_about(&self, address: PciAddress) -> Result<(), Cause> {
        let gpu = GpuId::Pci(address);
        // Until another's answer is published, as ours would find no change.
        let _asking = lock(&self.asking);
        let answer = execute::ask(&*self.executor, address, Deadline::after(self.timing.tool));
        let (found, result) = match answer {
            Ok(found) => (Some(found), Ok(())),
            Err(cause) => (None, Err(cause)),
        };
        let mut changed = false;
        self.smi.rcu(|known| {
            changed = known.get(&gpu) != found.as_ref();
            let mut next: BTreeMap<_, _> = (**known).clone();
            match &found {
                Some(facts) => next.insert(gpu.clone(), facts.clone()),
                None => next.remove(&gpu),
            };
            Arc::new(next)
        });
        if changed {
            self.scan_gpu(&gpu);
        }
        result
    }
}
