//! Error replies.

use std::collections::HashMap;

use vgpu_host_api::error::{self, detail, standard};
use vgpu_mdev::{
    error::{Error, ErrorKind},
    model::{Holder, InvalidName},
};
use vgpu_polkit::{Denied, UnknownCaller};
use zbus::{Message, Variant};

/// Why a call failed: an error's name on the bus, its text and its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    details: Option<Box<FaultDetails>>,
}

/// What the engine says of a failure besides its text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FaultDetails {
    code: &'static str,
    path: Option<String>,
    errno: Option<String>,
    holder: Option<Holder>,
}

impl Fault {
    /// A failure of that name and text.
    pub(crate) fn new(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, text: text.into(), details: None }
    }

    /// An argument makes no sense.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(standard::INVALID_ARGS, text)
    }

    /// A failure of the service itself.
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::new(standard::FAILED, text)
    }

    /// Whether it names a process.
    pub(crate) fn names_a_process(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.holder.is_some())
    }

    /// The same without the process that it names.
    pub(crate) fn without_process(mut self) -> Self {
        if let Some(holder) = self.details.as_mut().and_then(|details| details.holder.take()) {
            let words = Error::holder_words(&holder);
            self.text = self.text.replace(&words, " (held by a process)");
        }
        self
    }

    /// The error reply to a call.
    ///
    /// # Errors
    /// When the text is too large for a message.
    pub(crate) fn reply(&self, call: &Message) -> zbus::Result<Message> {
        Message::error(&call.header(), self.name).build(&(&self.text, self.details_map()))
    }

    fn details_map(&self) -> HashMap<&'static str, Variant<'_>> {
        let Some(details) = &self.details else {
            return HashMap::new();
        };
        let mut map = HashMap::from([(detail::CODE, details.code.into())]);
        if let Some(path) = &details.path {
            map.insert(detail::PATH, path.as_str().into());
        }
        if let Some(errno) = &details.errno {
            map.insert(detail::ERRNO, errno.as_str().into());
        }
        if let Some(holder) = &details.holder {
            let holder = (holder.pid, holder.command.as_str());
            map.insert(detail::HOLDER, holder.into());
        }
        map
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let details = FaultDetails {
            code: error.code(),
            path: error.path().map(str::to_owned),
            errno: error.errno().map(|errno| format!("{errno:?}")),
            holder: error.holder().cloned(),
        };
        Self {
            name: name_of(error.kind()),
            text: error.to_string(),
            details: Some(Box::new(details)),
        }
    }
}

impl From<Denied> for Fault {
    fn from(denied: Denied) -> Self {
        let name = match denied {
            Denied::Interactive { .. } => standard::INTERACTIVE_AUTHORIZATION_REQUIRED,
            Denied::Refused { .. } | Denied::Unavailable { .. } => standard::ACCESS_DENIED,
        };
        Self::new(name, denied.to_string())
    }
}

impl From<UnknownCaller> for Fault {
    fn from(error: UnknownCaller) -> Self {
        Self::new(standard::ACCESS_DENIED, error.to_string())
    }
}

impl From<InvalidName> for Fault {
    fn from(error: InvalidName) -> Self {
        Self::invalid(error.to_string())
    }
}

/// The bus's name for a kind of failure.
pub(crate) fn name_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NoSuchGpu => error::NO_SUCH_GPU,
        ErrorKind::NoSuchProfile => error::NO_SUCH_PROFILE,
        ErrorKind::NoSuchVgpu => error::NO_SUCH_VGPU,
        ErrorKind::NoCapacity => error::NO_CAPACITY,
        ErrorKind::Busy => error::BUSY,
        ErrorKind::BadState => error::BAD_STATE,
        ErrorKind::NotManaged => error::NOT_MANAGED,
        ErrorKind::NotSupported => error::NOT_SUPPORTED,
        ErrorKind::KernelRefused => error::KERNEL_REFUSED,
        ErrorKind::Stuck => error::STUCK,
        ErrorKind::RolledBack => error::ROLLED_BACK,
        ErrorKind::Degraded => error::DEGRADED,
        ErrorKind::InvalidArgument => standard::INVALID_ARGS,
        ErrorKind::Cancelled => error::CANCELLED,
    }
}
