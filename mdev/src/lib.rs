//! The engine of vgpu-host: it discovers the GPUs of a host that can be
//! divided, plans, creates and removes vGPUs on them, and keeps one consistent
//! picture of it all. It knows nothing of D-Bus, polkit or async.
//!
//! ```text
//! up:    kernel (sysfs, udev) -> lane -> scan -> Snapshot -> diff -> Event
//! down:  request -> admit (claims) -> plan (steps with undo) -> lane -> read back -> rescan
//! ```
//!
//! Start reading at [`engine::Engine`]; the words are in [`model`].

pub mod catalog;
pub mod claims;
pub mod config;
pub mod engine;
pub mod error;
pub mod execute;
pub mod framebuffer;
pub mod framework;
pub mod hub;
pub mod journal;
pub mod model;
pub mod placement;
pub mod plan;
pub mod publisher;
pub mod refusal;
pub mod request;
pub mod room;
pub mod scan;
pub mod store;
pub mod sys;
pub mod totals;
pub mod vfio;
