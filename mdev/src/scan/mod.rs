//! From text to facts: what is read of the kernel, and what it means.
//!
//! [`text`] parses and touches nothing; the other modules name what to read and
//! put the facts together. Everything is read on the lane of the GPU it is
//! about.

mod gpu;
mod host;
mod mdev;
pub mod nvidia_smi;
mod pci;
pub mod text;
mod uevent;
mod vendor;

use crate::sys::{
    Deadline, Executor, InvalidPath, LaneKey, Observed, Op, OpError, Read, ReadBatch, Reading,
    SysPath, Value,
};

pub use gpu::{GpuFacts, read_gpu};
pub use host::{HostFacts, enumerate};
pub use mdev::{MdevFacts, NodeKinds, ParentFacts, TypeFacts, read_mdev, read_mdevs, read_parents};
pub use nvidia_smi::{GpuInstance, Mig, SmiFacts};
pub use pci::{FunctionFacts, PciFacts, read_function, read_functions, read_pci};
pub use uevent::read_uevent_count;
pub use vendor::VendorFacts;

/// Why something could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The lane refused or hangs.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The kernel named something that is no path element.
    #[error(transparent)]
    Path(#[from] InvalidPath),
    /// The executor answered another operation than was asked: a defect.
    #[error("the executor gave an answer of the wrong kind for reading")]
    Confused,
}

/// Reads on one lane.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    executor: &'a dyn Executor,
    lane: &'a LaneKey,
    deadline: Deadline,
}

impl<'a> Reader<'a> {
    /// A reader on `lane`, each of its batches until `deadline`.
    pub fn new(executor: &'a dyn Executor, lane: &'a LaneKey, deadline: Deadline) -> Self {
        Self { executor, lane, deadline }
    }

    /// Reads a batch below `base`.
    ///
    /// # Errors
    /// When the lane fails; a missing attribute is a [`Reading`].
    pub fn read(&self, base: &SysPath, reads: Vec<Read>) -> Result<Readings, ScanError> {
        let batch = ReadBatch { base: base.clone(), reads };
        self.read_each(vec![batch])
    }

    /// Reads several batches at once. A device's directory is the base of its
    /// own batch: from `/sys/bus` and `/sys/class` each path would lead through
    /// a link that leaves the base.
    ///
    /// # Errors
    /// As for [`Reader::read`].
    pub fn read_each(&self, batches: Vec<ReadBatch>) -> Result<Readings, ScanError> {
        if batches.iter().all(|batch| batch.reads.is_empty()) {
            return Ok(Readings(Vec::new().into_iter()));
        }
        match self.executor.run(self.lane, Op::ReadBatch(batches), self.deadline)? {
            Observed::Read(readings) => Ok(Readings(readings.into_iter())),
            _ => Err(ScanError::Confused),
        }
    }
}

/// The readings of a batch, taken in the order in which they were asked for.
/// What is missing, or of another kind, is `None`.
pub struct Readings(std::vec::IntoIter<Reading>);

impl Readings {
    /// What an operation read, if it did.
    pub fn of(observed: Observed) -> Option<Self> {
        match observed {
            Observed::Read(readings) => Some(Self(readings.into_iter())),
            _ => None,
        }
    }

    /// The next one as text, without the white space around it. A NUL, which a
    /// driver may write, is replaced: a bus ends the connection of who sends one.
    pub fn text(&mut self) -> Option<String> {
        match self.0.next() {
            Some(Ok(Value::Text(mut text))) => {
                text.truncate(text.trim_end().len());
                Some(if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text })
            }
            _ => None,
        }
    }

    /// The next one as a link's last element.
    pub fn link(&mut self) -> Option<String> {
        match self.0.next() {
            Some(Ok(Value::Link(name))) => Some(name),
            _ => None,
        }
    }

    /// The next one as names; a missing directory has none.
    pub fn names(&mut self) -> Vec<String> {
        match self.0.next() {
            Some(Ok(Value::Names(names))) => names,
            _ => Vec::new(),
        }
    }

    /// The next one as an inode.
    pub fn inode(&mut self) -> Option<u64> {
        match self.0.next() {
            Some(Ok(Value::Inode(inode))) => Some(inode),
            _ => None,
        }
    }
}

/// A path of this program's own making.
fn path(text: impl Into<String>) -> Result<SysPath, ScanError> {
    Ok(SysPath::new(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_nul_comes_out_of_a_text() {
        let texts = ["GRID\0 T4\n", "plain\n"].map(|text| Ok(Value::Text(text.into())));
        let mut readings = Readings(Vec::from(texts).into_iter());
        assert_eq!(readings.text().as_deref(), Some("GRID\u{fffd} T4"));
        assert_eq!(readings.text().as_deref(), Some("plain"));
    }
}
