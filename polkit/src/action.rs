//! The polkit actions.

use std::fmt;

/// What an administrator can allow; declared in `org.vgpu.host1.policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Store, change and delete definitions of one's own vGPUs.
    Define,
    /// Make vGPUs for oneself.
    Create,
    /// Remove one's own vGPUs, or change their parameters.
    Remove,
    /// Remove although it is held.
    Force,
    /// Change a GPU: its VFs, giving it away whole, looking at the host again.
    ConfigureGpu,
    /// Open one's own vGPUs.
    OpenDevice,
    /// See which processes hold a vGPU.
    Inspect,
    /// Do with vGPUs of others what one may do with one's own.
    ManageOthers,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 8] = [
        Self::Define,
        Self::Create,
        Self::Remove,
        Self::Force,
        Self::ConfigureGpu,
        Self::OpenDevice,
        Self::Inspect,
        Self::ManageOthers,
    ];

    /// Its id in polkit.
    pub fn id(self) -> &'static str {
        match self {
            Self::Define => "org.vgpu.host1.define",
            Self::Create => "org.vgpu.host1.create",
            Self::Remove => "org.vgpu.host1.remove",
            Self::Force => "org.vgpu.host1.force",
            Self::ConfigureGpu => "org.vgpu.host1.configure-gpu",
            Self::OpenDevice => "org.vgpu.host1.open-device",
            Self::Inspect => "org.vgpu.host1.inspect",
            Self::ManageOthers => "org.vgpu.host1.manage-others",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}
