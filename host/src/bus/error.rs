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
    code: Option<&'static str>,
    path: Option<String>,
    errno: Option<String>,
    holder: Option<Holder>,
}

impl Fault {
    /// A failure of that name and text.
    pub(crate) fn new(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, text: text.into(), code: None, path: None, errno: None, holder: None }
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
        self.holder.is_some()
    }

    /// The same without the process that it names.
    pub(crate) fn without_process(mut self) -> Self {
        if let Some(holder) = self.holder.take() {
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
        let mut details: HashMap<&str, Variant<'_>> = HashMap::new();
        if let Some(code) = self.code {
            details.insert(detail::CODE, code.into());
        }
        if let Some(path) = &self.path {
            details.insert(detail::PATH, path.as_str().into());
        }
        if let Some(errno) = &self.errno {
            details.insert(detail::ERRNO, errno.as_str().into());
        }
        if let Some(holder) = &self.holder {
            details.insert(detail::HOLDER, (holder.pid, holder.command.as_str()).into());
        }
        Message::error(&call.header(), self.name).build(&(&self.text, details))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self {
            name: name_of(error.kind()),
            text: error.to_string(),
            code: Some(error.code()),
            path: error.path().map(str::to_owned),
            errno: error.errno().map(|errno| format!("{errno:?}")),
            holder: error.holder().cloned(),
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
