//! The executor in this process: one thread and one bounded queue a lane.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::errno::Errno;

use super::{
    Deadline, Executor, Kernel, LaneKey, Observed, Op, OpError, Opened, ReadBatch, Reading,
};

/// How many operations may wait for one lane.
const QUEUE: usize = 64;
/// How long a lane of one function or mdev keeps its thread without work; a
/// lane of a GPU keeps it for good.
const IDLE: Duration = Duration::from_secs(10);

/// Runs operations on a [`Kernel`], each lane on a thread of its own, so that a
/// call which the kernel never finishes costs that lane alone.
pub struct Lanes<K> {
    kernel: Arc<K>,
    lanes: Arc<Mutex<BTreeMap<LaneKey, Arc<Lane>>>>,
}

struct Lane {
    key: LaneKey,
    state: Mutex<LaneState>,
    work: Condvar,
}

#[derive(Default)]
struct LaneState {
    queue: VecDeque<Task>,
    /// What runs now, since when, and whether somebody gave up on it.
    running: Option<Running>,
    closed: bool,
}

struct Running {
    op: Arc<Op>,
    hung: bool,
}

struct Task {
    op: Arc<Op>,
    deadline: Deadline,
    answer: Arc<Answer>,
}

#[derive(Default)]
struct Answer {
    result: Mutex<Option<Result<Observed, OpError>>>,
    ready: Condvar,
}

impl<K: Kernel> Lanes<K> {
    /// Lanes over a kernel; each starts with its first operation.
    pub fn new(kernel: Arc<K>) -> Self {
        Self { kernel, lanes: Arc::default() }
    }

    /// Queues a task on its lane, starting the lane where there is none.
    fn enqueue(&self, key: &LaneKey, mut task: Task) -> Result<Arc<Lane>, OpError> {
        let mut lanes = lock(&self.lanes);
        if let Some(lane) = lanes.get(key) {
            let mut state = lock(&lane.state);
            if let Some(Running { op, hung: true }) = &state.running {
                return Err(OpError::Stuck {
                    what: task.op.to_string(),
                    lane: key.clone(),
                    hung: op.to_string(),
                });
            }
            if state.queue.len() >= QUEUE {
                return Err(OpError::Overloaded { what: task.op.to_string(), lane: key.clone() });
            }
            if !state.closed {
                state.queue.push_back(task);
                // Woken before, it would at once wait for the lock.
                drop(state);
                lane.work.notify_one();
                return Ok(lane.clone());
            }
        }
        let lane =
            Arc::new(Lane { key: key.clone(), state: Mutex::default(), work: Condvar::new() });
        let op = task.op.clone();
        task.deadline = Deadline::after(task.deadline.left());
        lock(&lane.state).queue.push_back(task);
        let (kernel, all, worker) = (self.kernel.clone(), self.lanes.clone(), lane.clone());
        let idle = match key {
            LaneKey::Host | LaneKey::Gpu(_) => None,
            LaneKey::Function(_) | LaneKey::Mdev(_) => Some(IDLE),
        };
        thread::Builder::new()
            .name("vgpu-lane".into())
            .stack_size(256 * 1024)
            .spawn(move || work(&*kernel, &worker, idle, &all))
            .map_err(|error| OpError::Kernel {
                what: op.to_string(),
                path: format!("the thread of {key}"),
                errno: Errno::from_raw(error.raw_os_error().unwrap_or(libc::EAGAIN)),
            })?;
        lanes.insert(key.clone(), lane.clone());
        Ok(lane)
    }
}

impl<K: Kernel> Executor for Lanes<K> {
    fn run(&self, key: &LaneKey, op: Op, deadline: Deadline) -> Result<Observed, OpError> {
        let started = Instant::now();
        let answer = Arc::new(Answer::default());
        let op = Arc::new(op);
        let task = Task { op: op.clone(), deadline, answer: answer.clone() };
        let lane = self.enqueue(key, task)?;
        let mut result = lock(&answer.result);
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            let left = deadline.left();
            if left.is_zero() {
                break;
            }
            result =
                answer.ready.wait_timeout(result, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(result);
        let mut state = lock(&lane.state);
        // Only a task that has started can hang its lane; one that still waits
        // is taken back, so that it never runs after its caller gave up.
        match state.queue.iter().position(|task| Arc::ptr_eq(&task.answer, &answer)) {
            Some(waiting) => {
                state.queue.remove(waiting);
            }
            None => {
                if let Some(result) = lock(&answer.result).take() {
                    return result;
                }
                if let Some(running) = &mut state.running {
                    running.hung = true;
                }
            }
        }
        Err(OpError::Deadline { what: op.to_string(), waited: started.elapsed() })
    }
}

impl<K> Drop for Lanes<K> {
    fn drop(&mut self) {
        for lane in lock(&self.lanes).values() {
            lock(&lane.state).closed = true;
            lane.work.notify_all();
        }
    }
}

/// The life of a lane's thread.
fn work<K: Kernel>(
    kernel: &K,
    lane: &Arc<Lane>,
    idle: Option<Duration>,
    all: &Mutex<BTreeMap<LaneKey, Arc<Lane>>>,
) {
    loop {
        let task = {
            let mut state = lock(&lane.state);
            loop {
                if let Some(task) = state.queue.pop_front() {
                    state.running = Some(Running { op: task.op.clone(), hung: false });
                    break task;
                }
                if state.closed {
                    return;
                }
                state = match idle {
                    None => lane.work.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(idle) => {
                        let (state, waited) = lane
                            .work
                            .wait_timeout(state, idle)
                            .unwrap_or_else(PoisonError::into_inner);
                        if waited.timed_out() && state.queue.is_empty() {
                            drop(state);
                            if retire(lane, all) {
                                return;
                            }
                            lock(&lane.state)
                        } else {
                            state
                        }
                    }
                };
            }
        };
        let result = perform(kernel, &task.op, task.deadline);
        // Under the lane's lock, so that a caller who gives up now either finds
        // the answer or marks an operation that truly still runs.
        let mut state = lock(&lane.state);
        *lock(&task.answer.result) = Some(result);
        state.running = None;
        drop(state);
        task.answer.ready.notify_one();
    }
}

/// Ends an idle lane unless work has arrived meanwhile.
fn retire(lane: &Arc<Lane>, all: &Mutex<BTreeMap<LaneKey, Arc<Lane>>>) -> bool {
    let mut lanes = lock(all);
    let mut state = lock(&lane.state);
    if !state.queue.is_empty() {
        return false;
    }
    state.closed = true;
    if lanes.get(&lane.key).is_some_and(|listed| Arc::ptr_eq(listed, lane)) {
        lanes.remove(&lane.key);
    }
    true
}

fn perform<K: Kernel>(kernel: &K, op: &Op, deadline: Deadline) -> Result<Observed, OpError> {
    let refused = |path: String, errno| OpError::Kernel { what: op.to_string(), path, errno };
    match op {
        Op::ReadBatch(batches) => {
            let read = read(kernel, batches);
            read.map(Observed::Read).map_err(|(path, errno)| refused(path, errno))
        }
        Op::WriteAttr(write, batches) => kernel
            .write(&write.path, &write.value)
            .map(|()| match read(kernel, batches) {
                Ok(readings) if !batches.is_empty() => Observed::Read(readings),
                // What was written stays written: the caller looks again.
                _ => Observed::Done,
            })
            .map_err(|errno| refused(write.path.to_string(), errno)),
        Op::OpenVfio { nodes } => nodes
            .iter()
            .map(|node| kernel.open_node(node).map_err(|errno| refused(node.to_string(), errno)))
            .collect::<Result<_, _>>()
            .map(|fds| Observed::Opened(Opened { fds })),
        Op::Probe(target) => {
            kernel.probe(target, deadline.left()).map(Observed::Probed).map_err(|failure| {
                OpError::Probe {
                    what: op.to_string(),
                    message: failure.message,
                    errno: failure.errno,
                }
            })
        }
        Op::Chown { node, uid } => kernel
            .chown(node, *uid)
            .map(|()| Observed::Done)
            .map_err(|errno| refused(node.to_string(), errno)),
        Op::Holders(query) => kernel
            .holders(query)
            .map(Observed::Holders)
            .map_err(|errno| refused("/proc".into(), errno)),
        Op::RunTool { tool, args } => kernel
            .run_tool(*tool, args, deadline.left())
            .map(Observed::Tool)
            .map_err(|errno| refused(tool.to_string(), errno)),
    }
}

/// Reads all, or gives the path at which that failed, and why.
fn read<K: Kernel>(kernel: &K, batches: &[ReadBatch]) -> Result<Vec<Reading>, (String, Errno)> {
    let mut readings = Vec::with_capacity(batches.iter().map(|batch| batch.reads.len()).sum());
    for batch in batches {
        for (reading, read) in kernel.read_batch(batch).into_iter().zip(&batch.reads) {
            match reading {
                Err(errno) if tells_nothing(errno) => {
                    return Err((format!("{}/{}", batch.base, read.path), errno));
                }
                reading => readings.push(reading),
            }
        }
    }
    Ok(readings)
}

/// Whether an errno is about this process or the system's memory and says
/// nothing about what was to be read: taken for an absence, it would end the
/// claims of vGPUs that are there.
fn tells_nothing(errno: Errno) -> bool {
    matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EINTR)
}

/// A poisoned lock is one whose holder panicked between two plain assignments:
/// its data is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
