//! Why the engine could not do what was asked, in words that help.

use std::fmt;

use nix::errno::Errno;

use crate::{model::Holder, sys::OpError};

/// What kind of failure it is; each is one error name on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No GPU of that id.
    NoSuchGpu,
    /// No profile of that name, or an ambiguous name.
    NoSuchProfile,
    /// No vGPU of that UUID or name.
    NoSuchVgpu,
    /// Nothing is available.
    NoCapacity,
    /// Somebody uses it, or is working on it.
    Busy,
    /// It is not in a state in which this can be done.
    BadState,
    /// It belongs to someone else: foreign, or used by the host.
    NotManaged,
    /// The hardware, kernel or configuration does not do this.
    NotSupported,
    /// The kernel refused.
    KernelRefused,
    /// The kernel hangs.
    Stuck,
    /// The kernel did less than it said; all was undone.
    RolledBack,
    /// It failed, and undoing it failed as well.
    Degraded,
    /// An argument makes no sense.
    InvalidArgument,
    /// The job was cancelled; all was undone.
    Cancelled,
}

/// A failure: what was tried, on which path, the kernel's answer, the likely
/// cause and the remedy.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    tried: String,
    cause: String,
    code: &'static str,
    path: Option<String>,
    errno: Option<Errno>,
    remedy: Option<String>,
    holder: Option<Holder>,
    /// What could not be undone, in words.
    undo_failures: Vec<String>,
    source: Option<Box<OpError>>,
}

/// The result of the engine's calls.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure of `kind` while `tried`, because of `cause`; `code` is stable.
    pub(crate) fn new(
        kind: ErrorKind,
        code: &'static str,
        tried: impl Into<String>,
        cause: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            tried: tried.into(),
            cause: cause.into(),
            code,
            path: None,
            errno: None,
            remedy: None,
            holder: None,
            undo_failures: Vec::new(),
            source: None,
        }
    }

    /// Says what would help.
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Names the path that it was about.
    pub(crate) fn at(mut self, path: impl fmt::Display) -> Self {
        self.path = Some(path.to_string());
        self
    }

    /// Names the process that is in the way.
    pub(crate) fn held_by(mut self, holder: Holder) -> Self {
        self.holder = Some(holder);
        self
    }

    /// Keeps the operation's own error as source, with its path and errno.
    pub(crate) fn because(mut self, source: OpError) -> Self {
        if let OpError::Kernel { path, errno, .. } = &source {
            self.path = Some(path.clone());
            self.errno = Some(*errno);
        } else {
            self.errno = source.errno();
        }
        self.source = Some(Box::new(source));
        self
    }

    /// Adds what could not be undone; the first error stays what it was.
    pub(crate) fn undo_failed(mut self, failures: Vec<String>) -> Self {
        if !failures.is_empty() {
            // That the kernel hangs says more, and explains the rest.
            if self.kind != ErrorKind::Stuck {
                self.kind = ErrorKind::Degraded;
            }
            self.undo_failures = failures;
        }
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A stable code that tells causes of one kind apart.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The path that it was about.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// The kernel's answer.
    pub fn errno(&self) -> Option<Errno> {
        self.errno
    }

    /// The process that is in the way.
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// How the text of an error names the process in the way.
    pub fn holder_words(holder: &Holder) -> String {
        format!(" (held by process {}, {})", holder.pid, holder.command)
    }

    /// What could not be undone.
    pub fn undo_failures(&self) -> &[String] {
        &self.undo_failures
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tried)?;
        if let Some(path) = &self.path {
            write!(f, " ({path}")?;
            match &self.errno {
                Some(errno) => write!(f, ": {errno:?})")?,
                None => f.write_str(")")?,
            }
        } else if let Some(errno) = &self.errno {
            write!(f, " ({errno:?})")?;
        }
        write!(f, ": {}", self.cause)?;
        if let Some(holder) = &self.holder {
            f.write_str(&Self::holder_words(holder))?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        for failure in &self.undo_failures {
            write!(f, "; could not be undone: {failure}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
