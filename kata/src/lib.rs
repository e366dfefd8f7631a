//! The Kata Containers and Kubernetes side of vgpu-host.
//!
//! This crate does nothing yet: it compiles, and holds the place of the
//! container side (CDI, device plugin, KubeVirt), which will be a D-Bus client
//! of `vgpu-hostd` and never link the engine.
