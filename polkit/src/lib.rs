//! Who may do what: the actions, one table from method to rule, and the
//! authorities that are asked.
//!
//! A method that is not in the table is refused. Root may do everything and
//! nobody is asked. Everyone else needs what the [`Rule`] says of an
//! [`Authority`], which is polkit. The caller is known by the message's sender
//! on the bus, never by a pid: a pid can be another process by the time that
//! somebody looks.

mod action;
mod authority;
mod callers;
mod rule;

pub use action::Action;
pub use authority::{Authority, Checking, Details, Polkit, RootOnly, Unavailable, Verdict};
pub use callers::{Callers, UnknownCaller};
pub use rule::{Caller, Denied, Rule, TABLE, authorize, rule};
