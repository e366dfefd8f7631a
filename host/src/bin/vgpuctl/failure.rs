//! Why a command failed, and its exit code.

use std::{io, process::ExitCode};

use vgpu_host_api::error::{self, standard};

use crate::output::{note, plain};

/// The result of a command.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// The exit codes; the manual page lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Other = 1,
    Usage = 2,
    NoSuchThing = 3,
    NoCapacity = 4,
    Busy = 5,
    NotAuthorised = 6,
    Unreachable = 7,
    NotPossible = 8,
    Kernel = 9,
    Cancelled = 130,
}

/// Each exit code with its meaning, as the manual page has them.
pub(crate) const MEANINGS: [(u8, &str); 11] = [
    (0, "Done."),
    (Code::Other as u8, "It failed for another reason; for doctor: a check failed."),
    (Code::Usage as u8, "The command line, or a value on it, makes no sense."),
    (Code::NoSuchThing as u8, "There is no such GPU, profile or vGPU."),
    (Code::NoCapacity as u8, "Nothing of that profile is available."),
    (Code::Busy as u8, "Somebody uses it or is working on it."),
    (Code::NotAuthorised as u8, "The caller may not do this."),
    (Code::Unreachable as u8, "The service, or the bus, does not answer."),
    (
        Code::NotPossible as u8,
        "The thing is in no state for this, does not do it, or belongs to someone else.",
    ),
    (Code::Kernel as u8, "The kernel refused, hangs, or did less than it said."),
    (Code::Cancelled as u8, "It was cancelled; all was undone."),
];

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// With words for people.
    Said { code: Code, message: String },
    /// All is printed already.
    Silent(Code),
    /// The reader of the output went away: no failure.
    NoReader,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self::Said { code, message: message.into() }
    }

    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self::new(Code::Other, message)
    }

    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Said { code, .. } | Self::Silent(code) => Some(*code),
            Self::NoReader => None,
        }
    }

    /// From an error's D-Bus name and text.
    pub(crate) fn named(name: &str, text: &str) -> Self {
        let message = if text.is_empty() { name } else { text };
        Self::new(code_of(name), message)
    }

    /// Says it on standard error; the exit code of the process.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Said { code, message } => {
                note(&line(message));
                ExitCode::from(*code as u8)
            }
            Self::Silent(code) => ExitCode::from(*code as u8),
            Self::NoReader => ExitCode::SUCCESS,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::NoReader,
            _ => Self::other(format!("cannot write: {error}")),
        }
    }
}

/// A failure as it is said: it may repeat what a process calls itself.
fn line(message: &str) -> String {
    format!("vgpuctl: {}", plain(message))
}

fn code_of(name: &str) -> Code {
    match name {
        error::NO_SUCH_GPU | error::NO_SUCH_PROFILE | error::NO_SUCH_VGPU => Code::NoSuchThing,
        error::NO_CAPACITY => Code::NoCapacity,
        error::BUSY => Code::Busy,
        error::BAD_STATE | error::NOT_MANAGED | error::NOT_SUPPORTED => Code::NotPossible,
        error::KERNEL_REFUSED | error::STUCK | error::ROLLED_BACK | error::DEGRADED => Code::Kernel,
        error::CANCELLED => Code::Cancelled,
        standard::INVALID_ARGS => Code::Usage,
        standard::UNKNOWN_OBJECT => Code::NoSuchThing,
        standard::ACCESS_DENIED | standard::INTERACTIVE_AUTHORIZATION_REQUIRED => {
            Code::NotAuthorised
        }
        _ => match name.strip_prefix("org.freedesktop.DBus.Error.") {
            // Of the bus, when nobody is there to answer.
            Some("ServiceUnknown" | "NameHasNoOwner" | "NoReply" | "Disconnected" | "TimedOut") => {
                Code::Unreachable
            }
            Some(spawn) if spawn.starts_with("Spawn.") => Code::Unreachable,
            _ => Code::Other,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_does_not_drive_the_terminal() {
        let said = line("a process uses it (held by process 7, a\u{1b}[2J)");
        assert_eq!(said, "vgpuctl: a process uses it (held by process 7, a\u{fffd}[2J)");
    }

    #[test]
    fn each_error_name_has_its_exit_code() {
        for (name, code) in [
            ("org.vgpu.Host1.Error.NoSuchGpu", 3),
            ("org.vgpu.Host1.Error.NoSuchProfile", 3),
            ("org.vgpu.Host1.Error.NoSuchVgpu", 3),
            ("org.vgpu.Host1.Error.NoCapacity", 4),
            ("org.vgpu.Host1.Error.Busy", 5),
            ("org.vgpu.Host1.Error.BadState", 8),
            ("org.vgpu.Host1.Error.NotManaged", 8),
            ("org.vgpu.Host1.Error.NotSupported", 8),
            ("org.vgpu.Host1.Error.KernelRefused", 9),
            ("org.vgpu.Host1.Error.Stuck", 9),
            ("org.vgpu.Host1.Error.RolledBack", 9),
            ("org.vgpu.Host1.Error.Degraded", 9),
            ("org.vgpu.Host1.Error.Cancelled", 130),
            ("org.freedesktop.DBus.Error.InvalidArgs", 2),
            ("org.freedesktop.DBus.Error.AccessDenied", 6),
            ("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", 6),
            ("org.freedesktop.DBus.Error.ServiceUnknown", 7),
            ("org.freedesktop.DBus.Error.LimitsExceeded", 1),
        ] {
            assert_eq!(code_of(name) as u8, code, "{name}");
        }
    }
}
