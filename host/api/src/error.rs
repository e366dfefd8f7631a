//! Error names, and what an error reply of ours carries: `(s text, a{sv}
//! details)`.

use std::{collections::HashMap, fmt};

use zbus::OwnedVariant;

/// No GPU of that name.
pub const NO_SUCH_GPU: &str = "org.vgpu.Host1.Error.NoSuchGpu";
/// No profile of that name, or an ambiguous name.
pub const NO_SUCH_PROFILE: &str = "org.vgpu.Host1.Error.NoSuchProfile";
/// No vGPU of that UUID or name.
pub const NO_SUCH_VGPU: &str = "org.vgpu.Host1.Error.NoSuchVgpu";
/// Nothing is available.
pub const NO_CAPACITY: &str = "org.vgpu.Host1.Error.NoCapacity";
/// Somebody uses it, or is working on it.
pub const BUSY: &str = "org.vgpu.Host1.Error.Busy";
/// It is not in a state in which this can be done.
pub const BAD_STATE: &str = "org.vgpu.Host1.Error.BadState";
/// It belongs to someone else: foreign, or used by the host.
pub const NOT_MANAGED: &str = "org.vgpu.Host1.Error.NotManaged";
/// The hardware, kernel or configuration does not do this.
pub const NOT_SUPPORTED: &str = "org.vgpu.Host1.Error.NotSupported";
/// The kernel refused.
pub const KERNEL_REFUSED: &str = "org.vgpu.Host1.Error.KernelRefused";
/// The kernel hangs.
pub const STUCK: &str = "org.vgpu.Host1.Error.Stuck";
/// The kernel did less than it said; all was undone.
pub const ROLLED_BACK: &str = "org.vgpu.Host1.Error.RolledBack";
/// It failed, and undoing it failed as well.
pub const DEGRADED: &str = "org.vgpu.Host1.Error.Degraded";
/// The job was cancelled; all was undone.
pub const CANCELLED: &str = "org.vgpu.Host1.Error.Cancelled";

/// The standard errors that the service answers.
pub mod standard {
    /// The caller lacks an authorization.
    pub const ACCESS_DENIED: &str = "org.freedesktop.DBus.Error.AccessDenied";
    /// The caller could authenticate, had its message allowed it.
    pub const INTERACTIVE_AUTHORIZATION_REQUIRED: &str =
        "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired";
    /// A failure of the service itself.
    pub const FAILED: &str = "org.freedesktop.DBus.Error.Failed";
    /// An argument makes no sense.
    pub const INVALID_ARGS: &str = "org.freedesktop.DBus.Error.InvalidArgs";
    /// Too much at once.
    pub const LIMITS_EXCEEDED: &str = "org.freedesktop.DBus.Error.LimitsExceeded";
    /// Properties are changed by methods.
    pub const PROPERTY_READ_ONLY: &str = "org.freedesktop.DBus.Error.PropertyReadOnly";
    /// No such interface on the object.
    pub const UNKNOWN_INTERFACE: &str = "org.freedesktop.DBus.Error.UnknownInterface";
    /// No such method on the interface.
    pub const UNKNOWN_METHOD: &str = "org.freedesktop.DBus.Error.UnknownMethod";
    /// No such object.
    pub const UNKNOWN_OBJECT: &str = "org.freedesktop.DBus.Error.UnknownObject";
    /// No such property on the interface.
    pub const UNKNOWN_PROPERTY: &str = "org.freedesktop.DBus.Error.UnknownProperty";
}

/// Keys of the details of an error, and of `JobRemoved`.
pub mod detail {
    /// `s`: a stable code that tells causes of one name apart.
    pub const CODE: &str = "Code";
    /// `s`: the path that it was about.
    pub const PATH: &str = "Path";
    /// `s`: the name of the kernel's answer: `EBUSY`.
    pub const ERRNO: &str = "Errno";
    /// `(us)`: pid and command of the process in the way; for those alone who
    /// may see holders.
    pub const HOLDER: &str = "Holder";
    /// `s`, of `JobRemoved`: the error's name.
    pub const ERROR: &str = "Error";
    /// `s`, of `JobRemoved`: the error's text.
    pub const MESSAGE: &str = "Message";
}

/// An error reply, as a client reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The error's name on the bus.
    pub name: String,
    /// What was tried, the cause and the remedy.
    pub text: String,
    /// A stable code that tells causes of one name apart.
    pub code: Option<String>,
    /// The path that it was about.
    pub path: Option<String>,
    /// The name of the kernel's answer.
    pub errno: Option<String>,
    /// Pid and command of the process in the way.
    pub holder: Option<(u32, String)>,
}

impl Failure {
    /// The failure that an error reply tells of; `None` when `error` is no error
    /// reply (the connection failed, a reply had the wrong type).
    pub fn of(error: &zbus::Error) -> Option<Self> {
        match error {
            zbus::Error::MethodError(name, text, message) => {
                let details = message
                    .body()
                    .deserialize::<(String, HashMap<String, OwnedVariant>)>()
                    .map(|(_, details)| details)
                    .unwrap_or_default();
                let text_of = |key| {
                    details.get(key).and_then(|value| value.try_clone().ok()?.try_into().ok())
                };
                Some(Self {
                    name: name.to_string(),
                    text: text.clone().unwrap_or_default(),
                    code: text_of(detail::CODE),
                    path: text_of(detail::PATH),
                    errno: text_of(detail::ERRNO),
                    holder: details
                        .get(detail::HOLDER)
                        .and_then(|value| value.try_clone().ok()?.try_into().ok()),
                })
            }
            zbus::Error::FDO(error) => {
                let text = zbus::DBusError::description(&**error).unwrap_or_default().to_owned();
                let name = zbus::DBusError::name(&**error).to_string();
                Some(Self { name, text, code: None, path: None, errno: None, holder: None })
            }
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() { f.write_str(&self.name) } else { f.write_str(&self.text) }
    }
}
