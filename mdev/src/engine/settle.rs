//! Claims held against what is there.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::{
    claims::{Claim, Phase},
    framework::nvidia_vf,
    model::Framework,
    scan::{GpuFacts, MdevFacts},
};

use super::{Engine, lock};

impl Engine {
    /// Holds the claims on a GPU against what is there.
    ///
    /// `began` is what the claims' clock said before the look began: of what was
    /// claimed since, it tells nothing.
    pub(super) fn settle_claims(&self, facts: &GpuFacts, mdevs: &[MdevFacts], began: u64) {
        let by_uuid: BTreeMap<Uuid, &MdevFacts> =
            mdevs.iter().map(|mdev| (mdev.uuid, mdev)).collect();
        for claim in self.claims.on_gpu(&facts.id) {
            if claim.framework == Framework::Mdev {
                let mdev = by_uuid.get(&claim.uuid);
                let device = mdev.map(|mdev| (mdev.inode, mdev.driver.is_some()));
                self.settle(&claim, device, began);
            }
        }
        self.settle_claims_on_functions(facts, began);
    }

    pub(super) fn settle_claims_on_functions(&self, facts: &GpuFacts, began: u64) {
        let vfio = |driver: &Option<String>| {
            driver
                .as_deref()
                .is_some_and(|driver| self.with_view(|view| view.is_vfio_driver(driver)))
        };
        let functions = facts.functions.iter().map(|f| (f.address, f.inode, vfio(&f.driver)));
        let pf = facts.pci.iter().map(|pci| (pci.address, pci.inode, vfio(&pci.driver)));
        for (address, inode, on_vfio) in functions.chain(pf) {
            if let Some(claim) = self.claims.of_function(address)
                && claim.functions.first().is_some_and(|first| first.address == address)
            {
                // A VF without the claim's type no longer carries its vGPU, and
                // what it carries by now is someone else's.
                let gone = claim.framework == Framework::NvidiaVf
                    && !nvidia_vf::carries(facts, address, &claim.profile);
                self.settle(&claim, (!gone).then_some((inode, on_vfio)), began);
            }
        }
        // Claims on functions that are gone.
        let exists = |address| {
            facts.pci.as_ref().is_some_and(|pci| pci.address == address)
                || facts.functions.iter().any(|f| f.address == address)
        };
        if facts.pci.is_some() {
            for claim in self.claims.on_gpu(&facts.id) {
                if claim.functions.first().is_some_and(|first| !exists(first.address)) {
                    self.settle(&claim, None, began);
                }
            }
        }
    }

    /// Ends a claim whose device is gone or is another one by now, and ends the
    /// waiting of one that nobody works on. `device` is its inode, and whether
    /// its driver has it.
    pub(super) fn settle(&self, claim: &Claim, device: Option<(u64, bool)>, began: u64) {
        if lock(&self.at_work).contains(&claim.uuid) || self.claims.is_newer(claim.uuid, began) {
            return;
        }
        let is_other =
            |inode| claim.generation.as_ref().is_some_and(|known| *known != self.generation(inode));
        let ended = match (claim.phase, device) {
            (_, None) => true,
            (_, Some((inode, _))) if is_other(inode) => true,
            (Phase::Active, _) => false,
            // Left by an earlier run of the service, or by a kernel that hung:
            // what exists is ours, and what does not never came to be. A
            // function that is not bound has an override and lacks its driver:
            // it shows as broken, and removing it gives them back.
            (Phase::Reserved, Some((inode, _))) => {
                let generation = Some(self.generation(inode));
                if let Err(error) = self.claims.advance(claim.uuid, Phase::Active, generation) {
                    tracing::error!("{error}");
                }
                false
            }
            (Phase::Removing, Some(_)) => {
                self.end_hung_removal(claim);
                false
            }
        };
        if ended {
            tracing::info!("vGPU {} is gone; its claim ends", claim.uuid);
            self.claims.release_as_of(claim.uuid, began);
        }
    }
}
