//! The conformance cases: what the engine and its tests take for granted about
//! a kernel, and what the engine makes of it. The same cases run on the
//! simulated kernel (`tests/hosts/lab.toml`), in process and through its mounted
//! sysfs, and on a real one in the lab, which has the same devices: so they are
//! proven equal.
//!
//! A case gets a [`Rig`]: the kernel itself, an engine over it, the events, and
//! somebody who holds devices. Each leaves the host as it found it; that is
//! checked after each.

pub mod count;
pub mod events;
pub mod function;
mod host;
pub mod mdev;
pub mod ownership;
pub mod passthrough;
mod picture;
mod recorder;
mod rig;
mod tidy;
pub mod usage;

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{Mutex, PoisonError},
};

pub use host::{Held, Host};
pub use picture::{Picture, open_descriptors};
pub use recorder::Recorder;
pub use rig::{CONFIG, IGB, NVME, Rig};

/// Cases share what they count (descriptors, and the one real host): one at a
/// time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a case on a host and checks that it leaves nothing behind.
///
/// # Panics
/// When the case fails or the host is not as it was.
pub fn run(host: impl FnOnce() -> Box<dyn Host>, case: fn(&Rig)) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let host = host();
    let before = Picture::of(&*host.kernel());
    let descriptors = open_descriptors();
    let rig = Rig::new(host);
    let result = panic::catch_unwind(AssertUnwindSafe(|| case(&rig)));
    if let Err(failed) = result {
        // So that the next case does not fail for what this one left.
        tidy::tidy(&*rig.end().kernel());
        panic::resume_unwind(failed);
    }
    let host = rig.end();
    let after = Picture::of(&*host.kernel());
    assert_eq!(before.difference(&after), Vec::<String>::new(), "the tree is not as it was");
    assert_eq!(descriptors, open_descriptors(), "descriptors are left open");
}

/// Makes a test of every case, on the host that the function `$host` gives.
#[macro_export]
macro_rules! conformance {
    ($host:path) => {
        $crate::conformance!($host;
            mdev {
                created_and_removed
                a_uuid_exists_once
                malformed_uuids_are_refused
                ports_run_out
                displays_run_out
                video_memory_runs_out
                a_removal_waits_for_the_holder
                removing_takes_a_number
            }
            count {
                every_refusal_has_its_errno
                a_driver_is_needed
                functions_lead_to_each_other
                autoprobe_gives_way_to_an_override
                the_engine_sets_it
            }
            function {
                an_override_is_set_and_cleared
                probing_says_success_without_a_driver
                only_a_matching_driver_binds
                unbinding_takes_the_right_driver
                a_vgpu_gives_back_what_it_took
                a_function_is_given_once
            }
            passthrough {
                a_whole_device_goes_and_comes_back
                not_while_it_is_divided
            }
            events {
                of_an_mdev
                of_functions
            }
            usage {
                a_group_opens_once
                a_cdev_excludes_its_group
                a_held_function_stays
                an_open_node_counts
                nodes_go_to_their_owner
                a_probe_sees_the_device
            }
            ownership {
                a_foreign_mdev_is_shown_and_refused
                a_foreign_function_is_shown_and_refused
                a_restart_shows_the_same
                what_others_remove_is_no_longer_ours
            }
        );
    };
    ($host:path; $($topic:ident { $($case:ident)* })*) => {
        $(mod $topic {
            $(#[test]
            fn $case() {
                $crate::conformance::run($host, $crate::conformance::$topic::$case);
            })*
        })*
    };
}
