//! The conformance cases on the lab's real kernel.

vgpu_tests::conformance!(vgpu_tests::lab::Lab::boxed);
