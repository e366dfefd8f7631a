//! Test support of vgpu-host: engines on simulated hosts, and a simulated
//! sysfs over FUSE.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

pub mod simfs;
pub mod simulated;
