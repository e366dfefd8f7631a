//! What the tests of vgpu-host share: fixtures of real hosts, and how a picture
//! is written down to be compared.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod fixture;
pub mod generated;
pub mod render;
pub mod start;
