//! `vgpu-hostd`: the daemon that serves the engine on D-Bus.
//!
//! [`daemon`] starts and stops it, [`bus`] answers calls and sends signals,
//! [`kernel`] chooses what is below the engine.

pub mod bus;
pub mod daemon;
mod files;
pub mod kernel;
