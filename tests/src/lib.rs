//! Test support of vgpu-host: engines on simulated hosts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

pub mod simulated;
