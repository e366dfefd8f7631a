//! What the kernel and its drivers write, and `modules.alias`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vgpu_mdev::scan::text;

fuzz_target!(|input: (&str, &str)| {
    let (one, other) = input;
    let _ = (text::hex(one), text::pci_id(one), text::count(one), text::numa_node(one));
    let _ =
        (text::driver_override(one), text::virtfn(one), text::mdev_name(one), text::pci_name(one));
    let _ = (text::framebuffer(one), text::max_instance(one), text::framebuffer_of_name(one));
    for (id, name) in text::creatable_types(one) {
        assert!(id != 0 && !name.is_empty());
    }
    let short = text::short_name(one, other);
    assert_eq!(short, short.to_lowercase());
    let _ = text::vfio_variant(one, other);
});
