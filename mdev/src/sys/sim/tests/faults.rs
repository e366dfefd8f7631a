//! Scripted faults and the record.

use nix::errno::Errno;

use super::{
    super::{Calls, FaultOn, RecordedWrite},
    *,
};

const NUMVFS: &str = "bus/pci/devices/0000:41:00.0/sriov_numvfs";

#[test]
fn the_nth_call_fails_and_no_other() {
    let sim = builtin();
    sim.fail("*/0000:41:00.0/sriov_numvfs", FaultOn::Write(Calls::Nth(2)), Errno::EIO);
    assert_eq!(sim.put(NUMVFS, "1"), Ok(()));
    assert_eq!(sim.put(NUMVFS, "0"), Err(Errno::EIO));
    assert_eq!(sim.put(NUMVFS, "0"), Ok(()));
    sim.fail("*/vendor", FaultOn::Read(Calls::All), Errno::EIO);
    assert_eq!(sim.text(&format!("{PF}/vendor")), Err(Errno::EIO));
    sim.clear_faults();
    assert_eq!(sim.text(&format!("{PF}/vendor")).unwrap(), "0x8086\n");
    sim.fail("vfio/vfio", FaultOn::Open(Calls::All), Errno::EPERM);
    assert_eq!(sim.open_node(&node("vfio/vfio")).err(), Some(Errno::EPERM));
}

#[test]
fn a_lie_says_success_and_does_nothing() {
    let sim = builtin();
    sim.lie("*/sriov_numvfs", FaultOn::Write(Calls::All));
    assert_eq!(sim.put(NUMVFS, "4"), Ok(()));
    assert_eq!(sim.text(NUMVFS).unwrap(), "0\n");
}

#[test]
fn a_block_lasts_until_it_is_dropped() {
    let sim = builtin();
    let block = sim.block("*/sriov_numvfs", FaultOn::Read(Calls::Nth(1)));
    let clone = sim.clone();
    let read = start(move || clone.text(NUMVFS));
    assert!(block.wait_met(SOON) && read.is_blocked());
    assert_eq!(sim.text(NUMVFS).unwrap(), "0\n", "the second call is free");
    drop(block);
    assert_eq!(read.end().unwrap(), "0\n");
}

#[test]
fn writes_are_recorded_with_their_answers() {
    let sim = builtin();
    sim.put(NUMVFS, "1").unwrap();
    assert!(sim.writes().is_empty(), "nothing was asked to be recorded");
    sim.record_writes();
    let _ = sim.put(NUMVFS, "99");
    let blocked = sim.block("*/remove", FaultOn::Write(Calls::All));
    let clone = sim.clone();
    let remove = start(move || clone.put(&format!("{VF}/remove"), "1"));
    assert!(blocked.wait_met(SOON));
    let write = |path: &str, value: &str, result| RecordedWrite {
        path: path.into(),
        value: value.into(),
        result,
    };
    let refused = write(NUMVFS, "99", Some(Err(Errno::ERANGE)));
    assert_eq!(sim.writes(), [refused, write(&format!("{VF}/remove"), "1", None)]);
    drop(blocked);
    assert_eq!(remove.end(), Ok(()));
    assert_eq!(sim.writes()[1].result, Some(Ok(())));
}

#[test]
fn forbidden_reads_are_noticed() {
    let sim = builtin();
    sim.forbid_reading("*/reset_gpu");
    let _ = sim.text(&format!("{PF}/vendor"));
    assert!(sim.forbidden_reads().is_empty());
    assert_eq!(sim.text(&format!("{PF}/reset_gpu")), Err(Errno::ENOENT));
    assert_eq!(sim.forbidden_reads(), [format!("{PF}/reset_gpu")]);
}
