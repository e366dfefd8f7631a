//! The table from method to rule, and how a rule is applied.

use zbus::message::{Flags, Header};

use crate::{Action, Authority, Details, Unavailable, Verdict};

/// What a method needs of a caller other than root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Nothing: reading is for everyone.
    Everyone,
    /// The action.
    Needs(Action),
    /// The action, and of those who do not own the object manage-others too.
    OwnerNeeds(Action),
    /// Nothing of the owner, the action of everybody else.
    OwnerOr(Action),
}

/// Every method and its rule; what is not here is refused.
pub const TABLE: &[(&str, &str, Rule)] = &[
    ("org.vgpu.Host1.Manager", "CreateVgpu", Rule::Needs(Action::Create)),
    ("org.vgpu.Host1.Manager", "GetGpu", Rule::Everyone),
    ("org.vgpu.Host1.Manager", "GetVgpu", Rule::Everyone),
    ("org.vgpu.Host1.Manager", "GetVgpuByPid", Rule::Needs(Action::Inspect)),
    ("org.vgpu.Host1.Manager", "ListGpus", Rule::Everyone),
    ("org.vgpu.Host1.Manager", "ListProfiles", Rule::Everyone),
    ("org.vgpu.Host1.Manager", "ListVgpus", Rule::Everyone),
    ("org.vgpu.Host1.Manager", "PlanVgpus", Rule::Everyone),
    ("org.vgpu.Host1.Manager", "Rescan", Rule::Needs(Action::ConfigureGpu)),
    ("org.vgpu.Host1.Gpu", "Explain", Rule::Everyone),
    ("org.vgpu.Host1.Gpu", "SetVfCount", Rule::Needs(Action::ConfigureGpu)),
    ("org.vgpu.Host1.Gpu", "Configure", Rule::Needs(Action::ConfigureGpu)),
    ("org.vgpu.Host1.Gpu", "PlanConfiguration", Rule::Everyone),
    ("org.vgpu.Host1.Vgpu", "GetHolders", Rule::OwnerOr(Action::Inspect)),
    ("org.vgpu.Host1.Vgpu", "OpenDevice", Rule::OwnerNeeds(Action::OpenDevice)),
    ("org.vgpu.Host1.Vgpu", "Probe", Rule::OwnerNeeds(Action::OpenDevice)),
    ("org.vgpu.Host1.Vgpu", "Remove", Rule::OwnerNeeds(Action::Remove)),
    // Who may set them could as well remove it and make it anew.
    ("org.vgpu.Host1.NvidiaVgpu1", "SetParams", Rule::OwnerNeeds(Action::Remove)),
    ("org.vgpu.Host1.Job", "Cancel", Rule::OwnerOr(Action::ManageOthers)),
];

/// The rule of a method, `None` when it has none and is to be refused.
pub fn rule(interface: &str, member: &str) -> Option<Rule> {
    TABLE.iter().find(|(i, m, _)| (*i, *m) == (interface, member)).map(|(.., rule)| *rule)
}

/// Who calls.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// The user.
    pub uid: u32,
    /// The header of the call.
    pub call: &'a Header<'a>,
    /// Whether polkit may ask the user for a password meanwhile.
    pub interactive: bool,
}

impl<'a> Caller<'a> {
    /// The caller of that message; interactive when the message allows it.
    pub fn new(uid: u32, call: &'a Header<'a>) -> Self {
        let interactive = call.primary().flags().contains(Flags::ALLOW_INTERACTIVE_AUTH);
        Self { uid, call, interactive }
    }

    /// The same caller, not to be asked for a password.
    pub fn quietly(self) -> Self {
        Self { interactive: false, ..self }
    }
}

/// A caller may not do what it asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The authority refused.
    #[error(
        "user {uid} lacks the authorization {action}; an administrator can grant it with a polkit rule"
    )]
    Refused {
        /// The user.
        uid: u32,
        /// What it lacks.
        action: Action,
    },
    /// The caller could authenticate, had its message allowed to ask.
    #[error("user {uid} has to authenticate for {action}, and the call does not allow to ask")]
    Interactive {
        /// The user.
        uid: u32,
        /// What it lacks.
        action: Action,
    },
    /// The authority could not be asked: root alone may.
    #[error("user {uid} lacks the authorization {action}: {source}")]
    Unavailable {
        /// The user.
        uid: u32,
        /// What it lacks.
        action: Action,
        /// Why.
        source: Unavailable,
    },
}

/// Applies a rule to a caller and an object's owner (`None`: nobody's).
///
/// # Errors
/// When the caller may not.
pub async fn authorize(
    authority: &dyn Authority,
    caller: Caller<'_>,
    rule: Rule,
    owner: Option<u32>,
    details: &Details,
) -> Result<(), Denied> {
    let uid = caller.uid;
    let owns = owner == Some(uid);
    let needed: &[Action] = match rule {
        _ if uid == 0 => &[],
        Rule::Everyone => &[],
        Rule::OwnerOr(_) if owns => &[],
        Rule::Needs(action) | Rule::OwnerOr(action) => &[action],
        Rule::OwnerNeeds(action) if owns => &[action],
        Rule::OwnerNeeds(action) => &[action, Action::ManageOthers],
    };
    for &action in needed {
        match authority.check(caller, action, details).await {
            Ok(Verdict::Yes) => {}
            Ok(Verdict::No) => return Err(Denied::Refused { uid, action }),
            Ok(Verdict::Challenge) => return Err(Denied::Interactive { uid, action }),
            Err(source) => {
                return Err(Denied::Unavailable { uid, action, source });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
