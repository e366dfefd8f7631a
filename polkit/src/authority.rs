//! Who decides: polkit, or, where there is none, nobody but root.

use std::{collections::HashMap, future::Future, pin::Pin};

use zbus::Connection;
use zbus_polkit::policykit1::{AuthorizationResult, CheckAuthorizationFlags, Subject};

use crate::{Action, Caller};

/// What a polkit rule can look at besides the user: `gpu`, `profile`, `uuid`.
pub type Details = HashMap<&'static str, String>;

/// The answer of an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Allowed.
    Yes,
    /// Refused.
    No,
    /// Refused for now: the caller could authenticate, had its message allowed
    /// to ask.
    Challenge,
}

/// The authority could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Nobody has its name on the bus, nor can the bus start it.
    #[error("polkit does not run, so that only root may do this; start polkit")]
    NotRunning,
    /// It did not answer, or not as it should.
    #[error("polkit cannot be asked, so that only root may do this: {0}; see polkit's log")]
    Failed(String),
}

/// A check on its way.
pub type Checking<'a> = Pin<Box<dyn Future<Output = Result<Verdict, Unavailable>> + Send + 'a>>;

/// Decides for callers other than root.
pub trait Authority: Send + Sync {
    /// Whether the caller may do this.
    fn check<'a>(
        &'a self,
        caller: Caller<'a>,
        action: Action,
        details: &'a Details,
    ) -> Checking<'a>;
}

/// polkit, on the bus on which we serve.
pub struct Polkit {
    bus: Connection,
}

impl Polkit {
    /// Asks polkit on that bus, which starts it where it is not running.
    pub fn new(bus: Connection) -> Self {
        Self { bus }
    }

    async fn ask(
        &self,
        caller: Caller<'_>,
        action: Action,
        details: &Details,
    ) -> Result<Verdict, Unavailable> {
        let unavailable = |error: &dyn std::fmt::Display| Unavailable::Failed(error.to_string());
        let subject =
            Subject::new_for_message_header(caller.call).map_err(|error| unavailable(&error))?;
        let mut flags = CheckAuthorizationFlags::empty();
        if caller.interactive {
            flags |= CheckAuthorizationFlags::ALLOW_USER_INTERACTION;
        }
        let reply = self
            .bus
            .call_method(
                Some("org.freedesktop.PolicyKit1"),
                "/org/freedesktop/PolicyKit1/Authority",
                Some("org.freedesktop.PolicyKit1.Authority"),
                "CheckAuthorization",
                &(subject, action.id(), details, flags, ""),
            )
            .await
            .map_err(|error| match is_nobody(&error) {
                true => Unavailable::NotRunning,
                false => unavailable(&error),
            })?;
        let result: AuthorizationResult =
            reply.body().deserialize().map_err(|error| unavailable(&error))?;
        Ok(match (result.is_authorized, result.is_challenge) {
            (true, _) => Verdict::Yes,
            (false, true) => Verdict::Challenge,
            (false, false) => Verdict::No,
        })
    }
}

/// Whether the bus says that nobody is there to ask.
fn is_nobody(error: &zbus::Error) -> bool {
    let name = match error {
        zbus::Error::MethodError(name, ..) => name.to_string(),
        zbus::Error::FDO(error) => zbus::DBusError::name(&**error).to_string(),
        _ => return false,
    };
    match name.strip_prefix("org.freedesktop.DBus.Error.") {
        Some("ServiceUnknown" | "NameHasNoOwner") => true,
        Some(other) => other.starts_with("Spawn."),
        None => false,
    }
}

impl Authority for Polkit {
    fn check<'a>(
        &'a self,
        caller: Caller<'a>,
        action: Action,
        details: &'a Details,
    ) -> Checking<'a> {
        Box::pin(self.ask(caller, action, details))
    }
}

/// Nobody but root.
pub struct RootOnly;

impl Authority for RootOnly {
    fn check<'a>(&'a self, _: Caller<'a>, _: Action, _: &'a Details) -> Checking<'a> {
        Box::pin(async { Ok(Verdict::No) })
    }
}
