//! Delivery of uevents: in the kernel's order, one at a time.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, ThreadId},
};

use nix::errno::Errno;

use crate::{model::PciAddress, sys::KernelEvent};

use super::{core::lock, state::State, tree::Dir};

type Listener = Arc<dyn Fn(&KernelEvent) + Send + Sync>;
type Overrun = Arc<dyn Fn() + Send + Sync>;

/// Who hears an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Audience {
    /// At the very moment at which the kernel sends it.
    Kernel,
    /// When the system call that caused it has returned or blocks, as udevd's
    /// listeners do.
    Udev,
}

#[derive(Default)]
pub(super) struct Events {
    queue: Mutex<Queue>,
    delivered: Condvar,
    listeners: Mutex<Vec<(Audience, Listener)>>,
    overruns: Mutex<Vec<Overrun>>,
}

#[derive(Default)]
struct Queue {
    /// Numbered in the order of their arrival.
    waiting: VecDeque<(u64, Audience, KernelEvent)>,
    arrivals: u64,
    held: bool,
    /// Who calls the listeners now, and with which event.
    deliverer: Option<ThreadId>,
    in_flight: Option<u64>,
    /// What each thread's system call has caused so far.
    unsettled: HashMap<ThreadId, Vec<KernelEvent>>,
}

impl Events {
    /// Adds a listener that hears events at the moment they are sent.
    pub(super) fn listen(&self, listener: Listener) {
        lock(&self.listeners).push((Audience::Kernel, listener));
    }

    /// Adds a listener that hears events when the tree has settled.
    pub(super) fn listen_settled(&self, listener: Listener) {
        lock(&self.listeners).push((Audience::Udev, listener));
    }

    /// Adds a listener for lost events.
    pub(super) fn listen_overrun(&self, listener: Overrun) {
        lock(&self.overruns).push(listener);
    }

    /// Says that events were lost.
    pub(super) fn overrun(&self) {
        let listeners = lock(&self.overruns).clone();
        for listener in listeners {
            listener();
        }
    }

    /// Sends an event; returns when the kernel's listeners have heard it.
    pub(super) fn emit(&self, mut event: KernelEvent, sequence: u64) {
        let (kernel, udev) = self.audiences();
        event.properties.push(("SEQNUM".into(), sequence.to_string()));
        let mut queue = lock(&self.queue);
        if udev {
            queue.unsettled.entry(thread::current().id()).or_default().push(event.clone());
        }
        drop(queue);
        if kernel {
            self.deliver([(Audience::Kernel, event)]);
        }
    }

    /// Lets udev's listeners hear what this thread's system call has caused.
    pub(super) fn settle(&self) {
        let events = lock(&self.queue).unsettled.remove(&thread::current().id());
        if let Some(events) = events {
            self.deliver(events.into_iter().map(|event| (Audience::Udev, event)));
        }
    }

    /// Keeps events back until [`Events::release`].
    pub(super) fn hold(&self) {
        lock(&self.queue).held = true;
    }

    /// Delivers what was kept back, after `edit` has dropped, reordered or
    /// doubled some of it.
    pub(super) fn release(&self, edit: impl FnOnce(&mut Vec<KernelEvent>)) {
        let mut queue = lock(&self.queue);
        queue.held = false;
        let kept: Vec<_> = queue.waiting.drain(..).collect();
        drop(queue);
        self.delivered.notify_all();
        let (kernel, udev): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|(_, audience, _)| *audience == Audience::Kernel);
        let (kernel_heard, udev_heard) = self.audiences();
        // Both audiences hear the same edited sequence.
        let heard = if kernel.is_empty() { udev } else { kernel };
        let mut events: Vec<_> = heard.into_iter().map(|(_, _, event)| event).collect();
        edit(&mut events);
        for (audience, wanted) in [(Audience::Kernel, kernel_heard), (Audience::Udev, udev_heard)] {
            if wanted {
                self.deliver(events.iter().cloned().map(|event| (audience, event)));
            }
        }
    }

    /// Whether this thread is calling a listener.
    pub(super) fn delivering_here(&self) -> bool {
        lock(&self.queue).deliverer == Some(thread::current().id())
    }

    fn audiences(&self) -> (bool, bool) {
        let listeners = lock(&self.listeners);
        let some = |wanted| listeners.iter().any(|(audience, _)| *audience == wanted);
        (some(Audience::Kernel), some(Audience::Udev))
    }

    fn deliver(&self, events: impl IntoIterator<Item = (Audience, KernelEvent)>) {
        let mut queue = lock(&self.queue);
        for (audience, event) in events {
            queue.arrivals += 1;
            let number = queue.arrivals;
            queue.waiting.push_back((number, audience, event));
        }
        let ours = queue.arrivals;
        while !queue.held && queue.is_pending(ours) {
            match queue.deliverer {
                // Called by a listener: the call around it delivers the rest.
                Some(thread) if thread == thread::current().id() => return,
                Some(_) => {
                    queue = self.delivered.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                None => {
                    queue.deliverer = Some(thread::current().id());
                    drop(queue);
                    self.drain();
                    queue = lock(&self.queue);
                }
            }
        }
    }

    /// Calls the listeners, one event at a time.
    fn drain(&self) {
        let _done = Delivering(self);
        loop {
            let mut queue = lock(&self.queue);
            if queue.held {
                return;
            }
            let Some((number, audience, event)) = queue.waiting.pop_front() else { return };
            queue.in_flight = Some(number);
            drop(queue);
            let listeners = lock(&self.listeners).clone();
            for (_, listener) in listeners.iter().filter(|(heard, _)| *heard == audience) {
                listener(&event);
            }
            lock(&self.queue).in_flight = None;
        }
    }
}

impl Queue {
    /// Whether an event up to that number has not been heard by all.
    fn is_pending(&self, number: u64) -> bool {
        let next = self.waiting.front().map(|(waiting, ..)| *waiting);
        self.in_flight.into_iter().chain(next).any(|pending| pending <= number)
    }
}

/// Ends the turn of the thread that delivers, also when a listener panics.
struct Delivering<'a>(&'a Events);

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        queue.deliverer = None;
        queue.in_flight = None;
        drop(queue);
        self.0.delivered.notify_all();
    }
}

impl State {
    /// An event about a PCI function as it is now.
    pub(super) fn pci_event(&self, action: &str, address: PciAddress) -> KernelEvent {
        let mut event = self.event(action, "pci", Dir::Pci(address));
        event.properties = self.function_variables(address);
        if action == "unbind" {
            // Measured on Linux 6.12: carries neither DRIVER nor MODALIAS.
            event.properties.retain(|(key, _)| key != "DRIVER" && key != "MODALIAS");
        }
        event
    }

    /// An event about any directory, without variables of its own.
    pub(super) fn event(&self, action: &str, subsystem: &str, dir: Dir) -> KernelEvent {
        KernelEvent {
            action: action.into(),
            subsystem: subsystem.into(),
            devpath: format!("/{}", self.path(dir)),
            properties: Vec::new(),
        }
    }

    /// An event about a device that has a node below `/dev`.
    pub(super) fn node_event(&self, action: &str, subsystem: &str, dir: Dir) -> KernelEvent {
        let mut event = self.event(action, subsystem, dir);
        let text = self.show(dir, super::attr::Attr::Uevent).unwrap_or_default();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        event.properties = pairs.map(|(key, value)| (key.into(), value.into())).collect();
        event
    }

    /// The event that a write to `uevent` asks for.
    pub(super) fn synthetic_event(&self, dir: Dir, value: &str) -> Result<KernelEvent, Errno> {
        let action = value.split_whitespace().next().unwrap_or_default();
        if !["add", "remove", "change", "move", "online", "offline", "bind", "unbind"]
            .contains(&action)
        {
            return Err(Errno::EINVAL);
        }
        Ok(match dir {
            Dir::Pci(address) => self.pci_event(action, address),
            Dir::Mdev(_) => self.event(action, "mdev", dir),
            Dir::VfioDevice(_) => self.node_event(action, "vfio-dev", dir),
            Dir::VfioGroup(_) => self.node_event(action, "vfio", dir),
            Dir::Card(_) => self.node_event(action, "drm", dir),
            _ => self.event(action, "drivers", dir),
        })
    }
}
