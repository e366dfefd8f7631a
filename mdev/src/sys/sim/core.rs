//! The lock, the waiting and the locks of the simulated kernel.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use crate::{model::PciAddress, sys::KernelEvent};

use super::{events::Events, fault::Faults, state::State};

/// What all handles and guards share.
#[derive(Default)]
pub(super) struct Core {
    state: Mutex<State>,
    changed: Condvar,
    pub(super) events: Events,
    pub(super) faults: Faults,
}

impl Core {
    /// The state, for a moment: never kept while an event is sent.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits, as a system call does, until `ready` gives something.
    ///
    /// # Errors
    /// EDEADLK for a listener that would wait for the call that it listens to.
    pub(super) fn wait<T>(
        &self,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Errno> {
        let mut state = self.state();
        if let Some(value) = ready(&mut state) {
            return Ok(value);
        }
        if self.events.delivering_here() {
            return Err(Errno::EDEADLK);
        }
        drop(state);
        self.events.settle();
        let mut state = self.state();
        loop {
            if let Some(value) = ready(&mut state) {
                return Ok(value);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes those who wait.
    pub(super) fn wake(&self) {
        // Under the lock, so that nobody is between looking and waiting.
        drop(self.state());
        self.changed.notify_all();
    }

    /// Sends an event at this point of the sequence.
    pub(super) fn emit(&self, event: KernelEvent) {
        let mut state = self.state();
        state.uevents += 1;
        let sequence = state.uevents;
        drop(state);
        self.events.emit(event, sequence);
    }

    /// Takes a function's device lock.
    pub(super) fn lock_device(&self, address: PciAddress) -> Result<Lock<'_>, Errno> {
        self.wait(|state| {
            if !state.pci.contains_key(&address) {
                return Some(Err(Errno::ENODEV));
            }
            state.locked.insert(address).then_some(Ok(()))
        })??;
        Ok(Lock { core: self, device: Some(address) })
    }

    /// Takes the PCI rescan-remove lock, which is the host's.
    pub(super) fn lock_host(&self) -> Result<Lock<'_>, Errno> {
        self.wait(|state| (!std::mem::replace(&mut state.host_locked, true)).then_some(()))?;
        Ok(Lock { core: self, device: None })
    }
}

/// A lock of the simulated kernel, until dropped.
pub(super) struct Lock<'a> {
    core: &'a Core,
    device: Option<PciAddress>,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        match self.device {
            Some(address) => {
                self.core.state().locked.remove(&address);
            }
            None => self.core.state().host_locked = false,
        }
        self.core.wake();
    }
}

/// A poisoned lock is one whose holder panicked between two plain assignments:
/// its data is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
