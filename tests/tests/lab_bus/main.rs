//! The whole service on a real kernel: `vgpu-hostd` on the guest's system bus,
//! with the real udevd, dbus-daemon and polkitd.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod access;
mod lifecycle;
mod ownership;
mod service;
mod signals;
mod work;
