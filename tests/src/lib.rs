//! What the tests of vgpu-host share: the conformance cases, which run on the
//! simulated kernel and on a real one, and what they need of either.

pub mod conformance;
pub mod lab;
