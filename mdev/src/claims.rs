//! The one admission point: who may have which UUID, name, function and share
//! of a quota. A claim is reserved *before* anything reaches a lane, since
//! lanes alone cannot keep one UUID off two GPUs, and it outlives the daemon in
//! `/run`, since a VF's address says nothing about whose it is.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    config::Limits,
    error::{Error, ErrorKind, Result},
    model::{Framework, GpuId, PciAddress, TypeId, VgpuName},
    store::{Store, StoreError},
};

/// A claim on a vGPU of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name.
    pub name: Option<VgpuName>,
    /// The GPU that it is part of.
    pub gpu: GpuId,
    /// Its profile.
    pub profile: TypeId,
    /// Its framework.
    pub framework: Framework,
    /// The user who owns it.
    pub owner_uid: u32,
    /// The functions that it takes: one VF, or those of a whole GPU.
    pub functions: Vec<ClaimedFunction>,
    /// How far it is.
    pub phase: Phase,
    /// Which creation of the device it is about; none while reserved.
    pub generation: Option<Generation>,
}

/// A function that a claim takes, and what it gets back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedFunction {
    /// The function.
    pub address: PciAddress,
    /// The driver that it had.
    pub driver: Option<String>,
    /// The `driver_override` that it had.
    pub driver_override: Option<String>,
}

/// How far a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Reserved: its plan runs.
    Reserved,
    /// The vGPU exists.
    Active,
    /// It is being removed.
    Removing,
}

/// Tells a device from a later one at the same address: sysfs gives a new
/// inode at each re-creation (measured on Linux 6.12).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// The kernel's boot id.
    pub boot_id: String,
    /// The inode of the device's directory.
    pub inode: u64,
}

/// The claims table.
pub struct Claims {
    table: Mutex<Table>,
    store: Store<Claim>,
    limits: Limits,
}

#[derive(Default)]
struct Table {
    claims: BTreeMap<Uuid, Claim>,
    names: BTreeMap<VgpuName, Uuid>,
    functions: BTreeMap<PciAddress, Uuid>,
    by_owner: BTreeMap<u32, u32>,
    /// How many claims have been reserved or become active, and where in that
    /// count each last was.
    clock: u64,
    touched: BTreeMap<Uuid, u64>,
}

impl Table {
    fn touch(&mut self, uuid: Uuid) {
        self.clock += 1;
        self.touched.insert(uuid, self.clock);
    }

    fn insert(&mut self, claim: Claim) {
        if let Some(name) = &claim.name {
            self.names.insert(name.clone(), claim.uuid);
        }
        for function in &claim.functions {
            self.functions.insert(function.address, claim.uuid);
        }
        *self.by_owner.entry(claim.owner_uid).or_default() += 1;
        self.claims.insert(claim.uuid, claim);
    }

    fn remove(&mut self, uuid: Uuid) -> Option<Claim> {
        let claim = self.claims.remove(&uuid)?;
        self.touched.remove(&uuid);
        if let Some(name) = &claim.name {
            self.names.remove(name);
        }
        for function in &claim.functions {
            self.functions.remove(&function.address);
        }
        if let Some(count) = self.by_owner.get_mut(&claim.owner_uid) {
            *count -= 1;
            if *count == 0 {
                self.by_owner.remove(&claim.owner_uid);
            }
        }
        Some(claim)
    }
}

impl Claims {
    /// Loads the claims of this boot; what is broken or of another boot is
    /// logged, and of another boot dropped.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn load(
        store: Store<Claim>,
        boot_id: &str,
        limits: Limits,
    ) -> std::result::Result<Self, StoreError> {
        let loaded = store.load()?;
        for (path, why) in loaded.broken {
            tracing::error!("claim {} is left out: {why}", path.display());
        }
        let mut table = Table::default();
        for (uuid, claim) in loaded.entries {
            if claim.generation.as_ref().is_some_and(|generation| generation.boot_id != boot_id) {
                store.remove(uuid)?;
            } else {
                table.insert(claim);
            }
        }
        Ok(Self { table: Mutex::new(table), store, limits })
    }

    /// Reserves a claim: its UUID, name, functions and one of its owner's
    /// quota, all or none, and on disk before it returns.
    ///
    /// # Errors
    /// Says what is taken, and by whom.
    pub fn reserve(&self, claim: Claim) -> Result<()> {
        let mut table = self.lock();
        let tried = format!("creating vGPU {}", claim.uuid);
        if table.claims.contains_key(&claim.uuid) {
            return Err(Error::new(ErrorKind::Busy, "uuid-taken", tried, "its UUID is taken")
                .remedy("choose another UUID or leave it out"));
        }
        if let Some(name) = &claim.name
            && let Some(other) = table.names.get(name)
        {
            return Err(Error::new(
                ErrorKind::Busy,
                "name-taken",
                format!("creating a vGPU named {name}"),
                format!("vGPU {other} has that name"),
            )
            .remedy("choose another name"));
        }
        for function in &claim.functions {
            if let Some(other) = table.functions.get(&function.address) {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "function-taken",
                    tried,
                    format!("function {} belongs to vGPU {other}", function.address),
                ));
            }
        }
        let owned = table.by_owner.get(&claim.owner_uid).copied().unwrap_or(0);
        if let Some(limit) = self.limits.vgpus_per_user
            && claim.owner_uid != 0
            && owned >= limit
        {
            return Err(Error::new(
                ErrorKind::NoCapacity,
                "quota",
                tried,
                format!("user {} owns {owned} vGPUs, which is the limit", claim.owner_uid),
            )
            .remedy("remove one, or raise limits.vgpus-per-user in host.toml"));
        }
        self.write(&claim)?;
        let uuid = claim.uuid;
        table.insert(claim);
        table.touch(uuid);
        Ok(())
    }

    /// Moves a claim on to another phase.
    ///
    /// # Errors
    /// When there is no such claim or it cannot be written.
    pub fn advance(&self, uuid: Uuid, phase: Phase, generation: Option<Generation>) -> Result<()> {
        let mut table = self.lock();
        let Some(claim) = table.claims.get_mut(&uuid) else {
            return Err(Error::new(
                ErrorKind::NoSuchVgpu,
                "no-claim",
                format!("changing the claim on vGPU {uuid}"),
                "there is none",
            ));
        };
        let mut next = claim.clone();
        next.phase = phase;
        if generation.is_some() {
            next.generation = generation;
        }
        self.write(&next)?;
        *claim = next;
        table.touch(uuid);
        Ok(())
    }

    /// Counts what was reserved or became active. A look at the kernel that began
    /// before tells nothing of it.
    pub fn clock(&self) -> u64 {
        self.lock().clock
    }

    /// Whether a claim was reserved or became active since the clock stood so.
    pub fn is_newer(&self, uuid: Uuid, than: u64) -> bool {
        self.lock().touched.get(&uuid).is_some_and(|touched| *touched > than)
    }

    /// Marks a vGPU as being removed, unless somebody does that already.
    ///
    /// # Errors
    /// Busy, when it is not active.
    pub fn begin_removal(&self, uuid: Uuid) -> Result<Claim> {
        let mut table = self.lock();
        let tried = || format!("removing vGPU {uuid}");
        let Some(claim) = table.claims.get_mut(&uuid) else {
            return Err(Error::new(
                ErrorKind::NoSuchVgpu,
                "no-such-vgpu",
                tried(),
                "it is gone meanwhile",
            )
            .remedy("nothing is left to do"));
        };
        match claim.phase {
            Phase::Active => {
                claim.phase = Phase::Removing;
                Ok(claim.clone())
            }
            Phase::Reserved => Err(Error::new(
                ErrorKind::Busy,
                "being-created",
                tried(),
                "it is still being created",
            )),
            Phase::Removing => Err(Error::new(
                ErrorKind::Busy,
                "being-removed",
                tried(),
                "it is being removed already",
            )),
        }
    }

    /// A removal failed: the vGPU is still there. On disk it always was.
    pub fn end_removal(&self, uuid: Uuid) {
        if let Some(claim) = self.lock().claims.get_mut(&uuid) {
            claim.phase = Phase::Active;
        }
    }

    /// Ends a claim, unless it was reserved or became active since the clock stood
    /// so.
    pub fn release_as_of(&self, uuid: Uuid, clock: u64) -> Option<Claim> {
        let table = self.lock();
        let is_newer = table.touched.get(&uuid).is_some_and(|touched| *touched > clock);
        if is_newer { None } else { self.release_in(table, uuid) }
    }

    /// Ends a claim.
    pub fn release(&self, uuid: Uuid) -> Option<Claim> {
        self.release_in(self.lock(), uuid)
    }

    fn release_in(&self, mut table: MutexGuard<'_, Table>, uuid: Uuid) -> Option<Claim> {
        let claim = table.remove(uuid)?;
        // Under the lock, so that it is never the file of the UUID's next claim.
        if let Err(error) = self.store.remove(uuid) {
            // After a restart it is back, until a scan finds its device gone;
            // a function that is still there shows as broken and is removed again.
            tracing::warn!("claim of vGPU {uuid}: {error}");
        }
        Some(claim)
    }

    /// The claim on a vGPU.
    pub fn get(&self, uuid: Uuid) -> Option<Claim> {
        self.lock().claims.get(&uuid).cloned()
    }

    /// Whether a vGPU is ours and nobody makes or removes it.
    pub fn is_active(&self, uuid: Uuid) -> bool {
        self.lock().claims.get(&uuid).is_some_and(|claim| claim.phase == Phase::Active)
    }

    /// The claim on a function.
    pub fn of_function(&self, address: PciAddress) -> Option<Claim> {
        let table = self.lock();
        table.functions.get(&address).and_then(|uuid| table.claims.get(uuid)).cloned()
    }

    /// The UUID that a name belongs to.
    pub fn named(&self, name: &VgpuName) -> Option<Uuid> {
        self.lock().names.get(name).copied()
    }

    /// The claims on one GPU.
    pub fn on_gpu(&self, gpu: &GpuId) -> Vec<Claim> {
        self.lock().claims.values().filter(|claim| claim.gpu == *gpu).cloned().collect()
    }

    /// All claims.
    pub fn all(&self) -> Vec<Claim> {
        self.lock().claims.values().cloned().collect()
    }

    fn write(&self, claim: &Claim) -> Result<()> {
        self.store.put(claim.uuid, claim).map_err(|error| {
            let source =
                std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            Error::new(
                ErrorKind::KernelRefused,
                "claim-not-written",
                format!("writing the claim on vGPU {}", claim.uuid),
                source,
            )
            .at(error.path().display())
            .remedy("make room in /run/vgpu-host and see that it can be written")
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(n: u128) -> Claim {
        Claim {
            uuid: Uuid::from_u128(n),
            name: None,
            gpu: "mtty".parse().unwrap(),
            profile: "mtty-1".parse().unwrap(),
            framework: Framework::Mdev,
            owner_uid: 1000,
            functions: Vec::new(),
            phase: Phase::Reserved,
            generation: None,
        }
    }

    fn open(dir: &std::path::Path, limit: Option<u32>) -> Claims {
        let store = Store::open(dir).unwrap();
        Claims::load(store, "boot-1", Limits { vgpus_per_user: limit }).unwrap()
    }

    fn code(result: Result<()>) -> &'static str {
        result.unwrap_err().code()
    }

    #[test]
    fn nothing_is_given_twice() {
        let dir = tempfile::tempdir().unwrap();
        let claims = open(dir.path(), None);
        let function = ClaimedFunction {
            address: "0000:41:00.1".parse().unwrap(),
            driver: None,
            driver_override: None,
        };
        let first = Claim {
            name: Some("one".parse().unwrap()),
            functions: vec![function.clone()],
            ..claim(1)
        };
        claims.reserve(first.clone()).unwrap();
        assert_eq!(code(claims.reserve(first.clone())), "uuid-taken");
        assert_eq!(
            code(claims.reserve(Claim { name: first.name.clone(), ..claim(2) })),
            "name-taken"
        );
        assert_eq!(
            code(claims.reserve(Claim { functions: vec![function], ..claim(2) })),
            "function-taken"
        );
        claims.release(first.uuid);
        claims.reserve(first).unwrap();
    }

    #[test]
    fn a_quota_holds_and_root_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let claims = open(dir.path(), Some(1));
        claims.reserve(claim(1)).unwrap();
        assert_eq!(code(claims.reserve(claim(2))), "quota");
        claims.reserve(Claim { owner_uid: 0, ..claim(3) }).unwrap();
        claims.reserve(Claim { owner_uid: 0, ..claim(4) }).unwrap();
        claims.release(Uuid::from_u128(1));
        claims.reserve(claim(2)).unwrap();
    }

    #[test]
    fn claims_outlive_the_daemon_but_not_the_boot() {
        let dir = tempfile::tempdir().unwrap();
        let generation = |boot: &str| Some(Generation { boot_id: boot.into(), inode: 7 });
        let claims = open(dir.path(), None);
        claims.reserve(claim(1)).unwrap();
        claims.reserve(claim(2)).unwrap();
        claims.advance(Uuid::from_u128(1), Phase::Active, generation("boot-1")).unwrap();
        claims.advance(Uuid::from_u128(2), Phase::Active, generation("boot-0")).unwrap();
        drop(claims);
        let claims = open(dir.path(), None);
        assert_eq!(claims.get(Uuid::from_u128(1)).unwrap().phase, Phase::Active);
        assert!(claims.get(Uuid::from_u128(2)).is_none());
    }

    #[test]
    fn one_removal_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let claims = open(dir.path(), None);
        let uuid = Uuid::from_u128(1);
        assert_eq!(claims.begin_removal(uuid).unwrap_err().kind(), ErrorKind::NoSuchVgpu);
        claims.reserve(claim(1)).unwrap();
        assert_eq!(claims.begin_removal(uuid).unwrap_err().code(), "being-created");
        claims.advance(uuid, Phase::Active, None).unwrap();
        claims.begin_removal(uuid).unwrap();
        assert_eq!(claims.begin_removal(uuid).unwrap_err().code(), "being-removed");
    }
}
