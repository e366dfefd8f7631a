//! The conformance cases through a mount: the layer for the real kernel on the
//! lab's host, with groups only and with cdevs. All of them run: what a mounted
//! sysfs does not have, the nodes and who holds them, the simulation adds.

mod stock {
    vgpu_tests::conformance!(vgpu_tests::simulated::mounted_lab);
}

mod cdev {
    vgpu_tests::conformance!(vgpu_tests::simulated::mounted_lab_with_cdevs);
}
