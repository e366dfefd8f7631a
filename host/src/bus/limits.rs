//! How many calls may be at work: in all, and of one sender.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vgpu_host_api::error::{self, standard};

use super::error::Fault;

/// Calls at work of one sender.
const OF_ONE: usize = 16;
/// Calls at work of one user other than root, who can have many connections.
const OF_ONE_USER: usize = 32;
/// Calls at work in all; each may take a thread.
pub const IN_ALL: usize = 64;

/// Counts the calls that take longer than looking into the snapshot.
#[derive(Clone)]
pub(crate) struct Limits {
    all: Arc<Semaphore>,
    by_sender: Arc<Mutex<HashMap<String, usize>>>,
    by_user: Arc<Mutex<HashMap<u32, usize>>>,
    closed: Arc<AtomicBool>,
}

/// A call of a user at work, until it is dropped.
pub(crate) struct UserPermit {
    uid: u32,
    by_user: Arc<Mutex<HashMap<u32, usize>>>,
}

/// A call at work, until it is dropped.
pub(crate) struct Permit {
    sender: String,
    by_sender: Arc<Mutex<HashMap<String, usize>>>,
    _one_of_all: OwnedSemaphorePermit,
}

impl Limits {
    /// Nothing at work.
    pub(crate) fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(IN_ALL)),
            by_sender: Arc::default(),
            by_user: Arc::default(),
            closed: Arc::default(),
        }
    }

    /// Lets a call of that sender begin.
    ///
    /// # Errors
    /// LimitsExceeded when too many are at work, Busy when the service stops.
    pub(crate) fn begin(&self, sender: String) -> Result<Permit, Fault> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Fault::new(error::BUSY, "the service is stopping; try again in a moment"));
        }
        let too_many = |text: String| Fault::new(standard::LIMITS_EXCEEDED, text);
        let mut by_sender = lock(&self.by_sender);
        let of_one = by_sender.entry(sender.clone()).or_default();
        if *of_one >= OF_ONE {
            return Err(too_many(format!(
                "{OF_ONE} calls of yours are at work; wait until one has been answered"
            )));
        }
        let Ok(permit) = self.all.clone().try_acquire_owned() else {
            if *of_one == 0 {
                by_sender.remove(&sender);
            }
            return Err(too_many(format!("{IN_ALL} calls are at work; try again later")));
        };
        *of_one += 1;
        drop(by_sender);
        Ok(Permit { sender, by_sender: self.by_sender.clone(), _one_of_all: permit })
    }

    /// Counts a call that has begun as one of its user's.
    ///
    /// # Errors
    /// LimitsExceeded when too many are at work.
    pub(crate) fn of_user(&self, uid: u32) -> Result<UserPermit, Fault> {
        let mut by_user = lock(&self.by_user);
        let of_one = by_user.entry(uid).or_default();
        if uid != 0 && *of_one >= OF_ONE_USER {
            return Err(Fault::new(
                standard::LIMITS_EXCEEDED,
                format!("{OF_ONE_USER} calls of user {uid} are at work; wait until one has ended"),
            ));
        }
        *of_one += 1;
        Ok(UserPermit { uid, by_user: self.by_user.clone() })
    }

    /// Lets no more calls begin.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Returns when nothing is at work.
    pub(crate) async fn idle(&self) {
        // An error would mean a closed semaphore, and nobody closes it.
        let _ = self.all.acquire_many(IN_ALL as u32).await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut by_sender = lock(&self.by_sender);
        if let Some(count) = by_sender.get_mut(&self.sender) {
            *count -= 1;
            if *count == 0 {
                by_sender.remove(&self.sender);
            }
        }
    }
}

impl Drop for UserPermit {
    fn drop(&mut self) {
        let mut by_user = lock(&self.by_user);
        if let Some(count) = by_user.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                by_user.remove(&self.uid);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn one_sender_cannot_take_it_all() {
        let limits = Limits::new();
        let mut held: Vec<_> = (0..OF_ONE).map(|_| limits.begin(":1.1".into()).unwrap()).collect();
        assert_eq!(limits.begin(":1.1".into()).err().unwrap().name, standard::LIMITS_EXCEEDED);
        let other = limits.begin(":1.2".into()).unwrap();
        held.pop();
        assert!(limits.begin(":1.1".into()).is_ok());
        drop((held, other));
        assert!(lock(&limits.by_sender).is_empty());
    }

    #[test]
    fn one_user_with_many_connections_cannot_take_it_all() {
        let limits = Limits::new();
        let mut held: Vec<_> = (0..OF_ONE_USER).map(|_| limits.of_user(1000).unwrap()).collect();
        assert_eq!(limits.of_user(1000).err().unwrap().name, standard::LIMITS_EXCEEDED);
        let others: Vec<_> = (0..=OF_ONE_USER).map(|_| limits.of_user(0).unwrap()).collect();
        held.pop();
        assert!(limits.of_user(1000).is_ok());
        drop((held, others));
        assert!(lock(&limits.by_user).is_empty());
    }

    #[test]
    fn all_together_are_limited() {
        let limits = Limits::new();
        let held: Vec<_> = (0..IN_ALL).map(|n| limits.begin(format!(":1.{n}")).unwrap()).collect();
        let fault = limits.begin(":1.999".into()).err().unwrap();
        assert!(fault.text.starts_with("64 calls are at work"), "{}", fault.text);
        drop(held);
        assert!(limits.begin(":1.999".into()).is_ok());
        limits.close();
        assert_eq!(limits.begin(":1.999".into()).err().unwrap().name, error::BUSY);
        assert!(lock(&limits.by_sender).is_empty());
    }
}
