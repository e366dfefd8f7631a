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
pub struct Error(Box<Details>);

/// What an error tells, in a box: results are small, and errors rare.
#[derive(Debug, Clone)]
struct Details {
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
        Self(Box::new(Details {
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
        }))
    }

    /// Says what would help.
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// Names the path that it was about.
    pub(crate) fn at(mut self, path: impl fmt::Display) -> Self {
        self.0.path = Some(path.to_string());
        self
    }

    /// Names the process that is in the way.
    pub(crate) fn held_by(mut self, holder: Holder) -> Self {
        self.0.holder = Some(holder);
        self
    }

    /// Keeps the operation's own error as source, with its path and errno.
    pub(crate) fn because(mut self, source: OpError) -> Self {
        if let OpError::Kernel { path, errno, .. } | OpError::Tool { program: path, errno, .. } =
            &source
        {
            self.0.path = Some(path.clone());
            self.0.errno = Some(*errno);
        } else {
            self.0.errno = source.errno();
        }
        self.0.source = Some(Box::new(source));
        self
    }

    /// Adds what could not be undone; the first error stays what it was.
    pub(crate) fn undo_failed(mut self, failures: Vec<String>) -> Self {
        if !failures.is_empty() {
            // That the kernel hangs says more, and explains the rest.
            if self.0.kind != ErrorKind::Stuck {
                self.0.kind = ErrorKind::Degraded;
            }
            self.0.undo_failures = failures;
        }
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// A stable code that tells causes of one kind apart.
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// The path that it was about.
    pub fn path(&self) -> Option<&str> {
        self.0.path.as_deref()
    }

    /// The kernel's answer.
    pub fn errno(&self) -> Option<Errno> {
        self.0.errno
    }

    /// The process that is in the way.
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    /// How the text of an error names the process in the way.
    pub fn holder_words(holder: &Holder) -> String {
        format!(" (held by process {}, {})", holder.pid, holder.command)
    }

    /// What could not be undone.
    pub fn undo_failures(&self) -> &[String] {
        &self.0.undo_failures
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.tried)?;
        if let Some(path) = &self.0.path {
            write!(f, " ({path}")?;
            match &self.0.errno {
                Some(errno) => write!(f, ": {errno:?})")?,
                None => f.write_str(")")?,
            }
        } else if let Some(errno) = &self.0.errno {
            write!(f, " ({errno:?})")?;
        }
        write!(f, ": {}", self.0.cause)?;
        if let Some(holder) = &self.0.holder {
            f.write_str(&Self::holder_words(holder))?;
        }
        if let Some(remedy) = &self.0.remedy {
            write!(f, "; {remedy}")?;
        }
        for failure in &self.0.undo_failures {
            write!(f, "; could not be undone: {failure}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
