//! Test support of vgpu-host: engines on simulated hosts, the simulated sysfs
//! over FUSE, and the conformance cases, which run on the simulated kernel and
//! on a real one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

pub mod conformance;
pub mod lab;
pub mod simfs;
pub mod simulated;
