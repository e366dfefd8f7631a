//! The bus: one loop that answers calls and sends signals.
//!
//! zbus is used as a message library only. Objects exist because the engine's
//! snapshot says so, and replies are written straight from it: 4,096 objects of
//! an object server, and maps of owned values for them, would cost tens of MiB.
//!
//! The loop keeps the picture that it has told the bus of. Changes and the
//! replies of finished work come through one queue, in the order in which they
//! were put there, so a client always has the signals of what its call changed
//! before the reply, and no getter is ahead of the signals.

mod call;
mod configure;
mod contract;
mod error;
mod gpu;
mod introspect;
mod jobs;
mod limits;
mod manager;
mod memory;
mod nvidia;
mod objects;
mod options;
mod peer;
mod properties;
mod server;
mod service;
mod signals;
mod vgpu;
mod work;

pub use limits::IN_ALL as MOST_AT_WORK;
pub use server::{Host, ServeError, Server};
