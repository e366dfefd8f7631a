//! What the tests of vgpu-host share: fixtures of real hosts, engines on them and
//! on simulated hosts, and how a picture is written down to be compared.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

pub mod fixture;
pub mod generated;
pub mod render;
pub mod simulated;
pub mod start;
