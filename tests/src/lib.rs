//! What the tests of vgpu-host share: fixtures of real hosts, engines on them
//! and on simulated hosts, the simulated sysfs as a file system, other people's
//! programs on it, and the conformance cases, which run on the simulated kernel
//! and on a real one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

pub mod conformance;
pub mod fixture;
pub mod generated;
pub mod lab;
pub mod namespace;

pub mod render;
pub mod simfs;
pub mod simulated;
pub mod start;
pub mod watch;
