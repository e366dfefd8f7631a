//! The conformance cases on the simulated kernel: the lab's host, with groups
//! only and with cdevs.

mod stock {
    vgpu_tests::conformance!(vgpu_tests::simulated::lab);
}

mod cdev {
    vgpu_tests::conformance!(vgpu_tests::simulated::lab_with_cdevs);
}
