//! Faults that a test scripts, and the record of what was done.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use nix::errno::Errno;

use crate::sys::{ReadKind, Value};

use super::core::lock;

/// Which calls a fault meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultOn {
    /// Reading an attribute, link or directory.
    Read(Calls),
    /// Writing an attribute.
    Write(Calls),
    /// Opening a node.
    Open(Calls),
    /// Running a program.
    Run(Calls),
}

/// Which of the matching calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Every one.
    All,
    /// The nth from now on, counted from 1.
    Nth(u32),
    /// The nth from now on and every later one.
    From(u32),
}

/// A write that was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedWrite {
    /// Below `/sys`, as it was asked for.
    pub path: String,
    /// The text.
    pub value: String,
    /// The kernel's answer; `None` while it blocks.
    pub result: Option<Result<(), Errno>>,
}

/// What kind of call it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Write,
    Open,
    Run,
}

/// What a fault does to a call.
#[derive(Clone)]
enum Effect {
    Fail(Errno),
    Block(Arc<Gate>),
    Lie,
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    open: bool,
    /// How many calls have come to it.
    met: u32,
}

struct Fault {
    pattern: String,
    call: Call,
    calls: Calls,
    seen: u32,
    effect: Effect,
}

/// How a call goes on.
pub(super) enum Verdict {
    Proceed,
    /// Say success and do nothing.
    Pretend,
}

#[derive(Default)]
pub(super) struct Faults {
    scripted: Mutex<Vec<Fault>>,
    forbidden: Mutex<Forbidden>,
    harmful: Mutex<Forbidden>,
    reads: Mutex<Option<BTreeMap<String, u64>>>,
    writes: Mutex<Option<Vec<RecordedWrite>>>,
    changes: Mutex<Option<Vec<String>>>,
}

#[derive(Default)]
struct Forbidden {
    patterns: Vec<String>,
    read: Vec<String>,
}

impl Forbidden {
    fn add(&mut self, pattern: &str) {
        if !self.patterns.iter().any(|known| known == pattern) {
            self.patterns.push(pattern.into());
        }
    }

    /// Notes a read of what is forbidden.
    fn note(&mut self, path: &str) {
        if self.patterns.iter().any(|pattern| matches(pattern, path)) {
            self.read.push(path.into());
        }
    }
}

/// Blocks matching calls until dropped.
#[must_use = "the block ends when this is dropped"]
pub struct BlockGuard {
    gate: Arc<Gate>,
}

impl BlockGuard {
    /// Waits until a call blocks here; false when none has come within `limit`.
    pub fn wait_met(&self, limit: Duration) -> bool {
        let waited = self
            .gate
            .changed
            .wait_timeout_while(lock(&self.gate.state), limit, |gate| gate.met == 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.met > 0
    }
}

impl Drop for BlockGuard {
    fn drop(&mut self) {
        lock(&self.gate.state).open = true;
        self.gate.changed.notify_all();
    }
}

impl Gate {
    /// Blocks until the guard is dropped.
    fn pass(&self) {
        let mut state = lock(&self.state);
        state.met += 1;
        self.changed.notify_all();
        while !state.open {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Faults {
    pub(super) fn fail(&self, pattern: &str, on: FaultOn, errno: Errno) {
        self.script(pattern, on, Effect::Fail(errno));
    }

    pub(super) fn lie(&self, pattern: &str, on: FaultOn) {
        self.script(pattern, on, Effect::Lie);
    }

    pub(super) fn block(&self, pattern: &str, on: FaultOn) -> BlockGuard {
        let gate = Arc::<Gate>::default();
        self.script(pattern, on, Effect::Block(gate.clone()));
        BlockGuard { gate }
    }

    /// How many of the scripted faults have met a call.
    pub(super) fn met(&self) -> usize {
        let met = |fault: &&Fault| match fault.calls {
            Calls::All => fault.seen > 0,
            Calls::Nth(n) | Calls::From(n) => fault.seen >= n,
        };
        lock(&self.scripted).iter().filter(met).count()
    }

    /// Takes back all that was scripted; what blocks goes on blocking.
    pub(super) fn clear(&self) {
        lock(&self.scripted).clear();
    }

    pub(super) fn forbid(&self, pattern: &str) {
        lock(&self.forbidden).add(pattern);
    }

    pub(super) fn forbidden_reads(&self) -> Vec<String> {
        lock(&self.forbidden).read.clone()
    }

    /// Lets reading what matches do harm.
    pub(super) fn make_harmful(&self, pattern: &str) {
        lock(&self.harmful).add(pattern);
    }

    pub(super) fn harm_done(&self) -> Vec<String> {
        lock(&self.harmful).read.clone()
    }

    pub(super) fn record_reads(&self) {
        lock(&self.reads).get_or_insert_default();
    }

    pub(super) fn reads(&self) -> BTreeMap<String, u64> {
        lock(&self.reads).clone().unwrap_or_default()
    }

    /// Notes a read below `/sys`; only reading a text does harm.
    pub(super) fn note_read(&self, path: &str, kind: ReadKind) {
        if kind == ReadKind::Text {
            lock(&self.harmful).note(path);
        }
        if let Some(reads) = lock(&self.reads).as_mut() {
            *reads.entry(path.into()).or_default() += 1;
        }
    }

    pub(super) fn record(&self) {
        lock(&self.writes).get_or_insert_default();
        lock(&self.changes).get_or_insert_default();
    }

    pub(super) fn changes(&self) -> Vec<String> {
        lock(&self.changes).clone().unwrap_or_default()
    }

    /// Notes that a program runs.
    pub(super) fn note_run(&self, command: &str) {
        self.note_change(|| format!("run {command}"));
    }

    fn note_change(&self, change: impl FnOnce() -> String) {
        if let Some(changes) = lock(&self.changes).as_mut() {
            changes.push(change());
        }
    }

    pub(super) fn writes(&self) -> Vec<RecordedWrite> {
        lock(&self.writes).clone().unwrap_or_default()
    }

    /// Notes a write; gives its place in the record.
    pub(super) fn begin_write(&self, path: &str, value: &str) -> Option<usize> {
        self.note_change(|| format!("write {value:?} to {path}"));
        let mut writes = lock(&self.writes);
        let writes = writes.as_mut()?;
        writes.push(RecordedWrite { path: path.into(), value: value.into(), result: None });
        Some(writes.len() - 1)
    }

    pub(super) fn end_write(&self, place: Option<usize>, result: Result<(), Errno>) {
        let mut writes = lock(&self.writes);
        let noted = place.and_then(|place| writes.as_mut()?.get_mut(place));
        if let Some(noted) = noted {
            noted.result = Some(result);
        }
    }

    /// Meets a call with what was scripted for it.
    pub(super) fn meet(&self, call: Call, path: &str) -> Result<Verdict, Errno> {
        if call == Call::Read {
            lock(&self.forbidden).note(path);
        }
        match self.effect(call, path) {
            None => Ok(Verdict::Proceed),
            Some(Effect::Fail(errno)) => Err(errno),
            Some(Effect::Lie) => Ok(Verdict::Pretend),
            Some(Effect::Block(gate)) => {
                gate.pass();
                Ok(Verdict::Proceed)
            }
        }
    }

    fn script(&self, pattern: &str, on: FaultOn, effect: Effect) {
        let (call, calls) = match on {
            FaultOn::Read(calls) => (Call::Read, calls),
            FaultOn::Write(calls) => (Call::Write, calls),
            FaultOn::Open(calls) => (Call::Open, calls),
            FaultOn::Run(calls) => (Call::Run, calls),
        };
        let pattern = pattern.into();
        lock(&self.scripted).push(Fault { pattern, call, calls, seen: 0, effect });
    }

    /// The first effect that applies; every matching fault counts the call.
    fn effect(&self, call: Call, path: &str) -> Option<Effect> {
        let mut scripted = lock(&self.scripted);
        let mut found = None;
        for fault in scripted.iter_mut() {
            if fault.call != call || !matches(&fault.pattern, path) {
                continue;
            }
            fault.seen = fault.seen.saturating_add(1);
            let applies = match fault.calls {
                Calls::All => true,
                Calls::Nth(n) => fault.seen == n,
                Calls::From(n) => fault.seen >= n,
            };
            if applies && found.is_none() {
                found = Some(fault.effect.clone());
            }
        }
        found
    }
}

/// What a lying read gives.
pub(super) fn nothing(kind: ReadKind) -> Value {
    match kind {
        ReadKind::Text => Value::Text(String::new()),
        ReadKind::Link => Value::Link(String::new()),
        ReadKind::Names => Value::Names(Vec::new()),
        ReadKind::Inode => Value::Inode(0),
    }
}

/// Whether a path is what a pattern names, in which `*` stands for any text.
fn matches(pattern: &str, path: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| path.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, path) in [("a/b", "a/b"), ("*", "x"), ("*/c", "a/b/c"), ("a*c*e", "abcde")] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [("a/b", "a/bc"), ("*/c", "a/b"), ("a*c*e", "abde"), ("a*a", "a")] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }
}
