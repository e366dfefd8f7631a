//! Which user sent a message.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use zbus::{Connection, message::Header, names::OwnedUniqueName};

/// How many callers are remembered.
const REMEMBERED: usize = 256;

/// The users behind the callers' unique names, as the bus says.
///
/// A bus never gives a unique name twice (D-Bus specification, "Unique
/// Connection Name"), so a remembered one cannot become wrong: there is no need
/// to wake up for every client that leaves the bus, only to forget the oldest.
pub struct Callers {
    bus: Connection,
    known: Mutex<VecDeque<(OwnedUniqueName, u32)>>,
}

/// The bus does not say which user a caller is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the bus does not say which user the caller is: {0}")]
pub struct UnknownCaller(String);

impl Callers {
    /// Callers on that bus; none is known yet.
    pub fn new(bus: Connection) -> Self {
        Self { bus, known: Mutex::default() }
    }

    /// The uid of a message's sender.
    ///
    /// # Errors
    /// When the message has no sender, or the sender has left the bus.
    pub async fn uid(&self, header: &Header<'_>) -> Result<u32, UnknownCaller> {
        let sender =
            header.sender().ok_or_else(|| UnknownCaller("the message has no sender".into()))?;
        if let Some(uid) = self.recall(sender.as_str()) {
            return Ok(uid);
        }
        let reply = self
            .bus
            .call_method(
                Some("org.freedesktop.DBus"),
                "/org/freedesktop/DBus",
                Some("org.freedesktop.DBus"),
                "GetConnectionUnixUser",
                &sender,
            )
            .await
            .map_err(|error| UnknownCaller(error.to_string()))?;
        let uid = reply.body().deserialize().map_err(|error| UnknownCaller(error.to_string()))?;
        self.remember(sender.to_owned().into(), uid);
        Ok(uid)
    }

    fn recall(&self, sender: &str) -> Option<u32> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().rev().find(|(name, _)| name.as_str() == sender).map(|(_, uid)| *uid)
    }

    fn remember(&self, sender: OwnedUniqueName, uid: u32) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.pop_front();
        }
        known.push_back((sender, uid));
    }
}
