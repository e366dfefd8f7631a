//! `vgpu-hostd` on a private bus of the type of the system bus, over a
//! simulated kernel. The tests act as several users and so have to run as root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs
)]

mod access;
mod authority;
mod bad_input;
mod bus;
mod contract;
mod daemon;
mod jobs;
mod lifecycle;
mod nvidia;
mod scale;
mod served;
mod signals;
mod xml;
