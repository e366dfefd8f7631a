//! `vgpu-hostd`: the daemon that serves the engine on D-Bus.
//!
//! [`daemon`] starts and stops it, [`bus`] answers calls and sends signals.

pub mod bus;
pub mod daemon;
