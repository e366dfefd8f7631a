//! The executor in this process: a bounded queue for each lane, and threads that
//! serve them, at most one a lane.
//!
//! A call that the kernel never finishes keeps its lane and one thread; the
//! other lanes get another. Lanes are made and forgotten with their work, so
//! that there can be one for each function and mdev.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::errno::Errno;

use super::{Deadline, Executor, Kernel, LaneKey, Observed, Op, OpError, perform::perform};

/// How many operations may wait for one lane.
const QUEUE: usize = 64;
/// How many threads stay when there is nothing to do.
const KEPT: usize = 4;
/// How long the others wait for more.
const IDLE: Duration = Duration::from_secs(10);

/// Runs operations on a [`Kernel`], those of one lane in order.
pub struct Lanes<K> {
    pool: Arc<Pool<K>>,
}

type Listener = Arc<dyn Fn(&LaneKey) + Send + Sync>;

struct Pool<K> {
    kernel: Arc<K>,
    state: Mutex<State>,
    work: Condvar,
    recoveries: Mutex<Vec<Listener>>,
}

#[derive(Default)]
struct State {
    /// The lanes that have work, running or waiting.
    lanes: BTreeMap<LaneKey, Lane>,
    /// Those of them that no thread serves yet.
    ready: VecDeque<LaneKey>,
    /// Threads that wait for a lane.
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Task>,
    /// What runs now, and whether somebody gave up on it.
    running: Option<Running>,
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
    /// Lanes over a kernel.
    pub fn new(kernel: Arc<K>) -> Self {
        Self {
            pool: Arc::new(Pool {
                kernel,
                state: Mutex::default(),
                work: Condvar::new(),
                recoveries: Mutex::default(),
            }),
        }
    }

    /// Queues a task on its lane.
    fn enqueue(&self, key: &LaneKey, task: Task) -> Result<(), OpError> {
        let mut state = lock(&self.pool.state);
        let what = || task.op.to_string();
        match state.lanes.get_mut(key) {
            Some(Lane { running: Some(Running { op, hung: true }), .. }) => {
                return Err(OpError::Stuck {
                    what: what(),
                    lane: key.clone(),
                    hung: op.to_string(),
                });
            }
            Some(lane) if lane.queue.len() >= QUEUE => {
                return Err(OpError::Overloaded { what: what(), lane: key.clone() });
            }
            // Whoever serves it, or will, finds this one as well.
            Some(lane) => {
                lane.queue.push_back(task);
                return Ok(());
            }
            None => {}
        }
        if state.idle <= state.ready.len() {
            let pool = self.pool.clone();
            let spawned = thread::Builder::new()
                .name("vgpu-lane".into())
                .stack_size(256 * 1024)
                .spawn(move || pool.serve());
            if let Err(error) = spawned {
                let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EAGAIN));
                return Err(OpError::Kernel {
                    what: what(),
                    path: format!("a thread for {key}"),
                    errno,
                });
            }
        }
        let lane = Lane { queue: VecDeque::from([task]), running: None };
        state.lanes.insert(key.clone(), lane);
        state.ready.push_back(key.clone());
        // Woken before, it would at once wait for the lock.
        drop(state);
        self.pool.work.notify_one();
        Ok(())
    }

    /// Gives up on a task: takes it back when it has not started, so that it
    /// never runs after its caller gave up; else its lane hangs. The answer may
    /// have come after all.
    fn give_up(&self, key: &LaneKey, answer: &Arc<Answer>) -> Option<Result<Observed, OpError>> {
        let mut state = lock(&self.pool.state);
        let lane = state.lanes.get_mut(key);
        let waiting = lane
            .as_ref()
            .and_then(|lane| lane.queue.iter().position(|task| Arc::ptr_eq(&task.answer, answer)));
        match (lane, waiting) {
            (Some(lane), Some(waiting)) => {
                lane.queue.remove(waiting);
                None
            }
            (lane, _) => {
                let result = lock(&answer.result).take();
                if let (None, Some(running)) =
                    (&result, lane.and_then(|lane| lane.running.as_mut()))
                {
                    running.hung = true;
                }
                result
            }
        }
    }
}

impl<K: Kernel> Executor for Lanes<K> {
    fn run(&self, key: &LaneKey, op: Op, deadline: Deadline) -> Result<Observed, OpError> {
        let started = Instant::now();
        let answer = Arc::new(Answer::default());
        let op = Arc::new(op);
        self.enqueue(key, Task { op: op.clone(), deadline, answer: answer.clone() })?;
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
        self.give_up(key, &answer).unwrap_or_else(|| {
            Err(OpError::Deadline { what: op.to_string(), waited: started.elapsed() })
        })
    }

    fn on_recovery(&self, listener: Box<dyn Fn(&LaneKey) + Send + Sync>) {
        lock(&self.pool.recoveries).push(Arc::from(listener));
    }
}

impl<K> Drop for Lanes<K> {
    fn drop(&mut self) {
        lock(&self.pool.state).closed = true;
        self.pool.work.notify_all();
    }
}

impl<K: Kernel> Pool<K> {
    /// The life of a thread: one task of the next lane that is ready, and so on.
    fn serve(&self) {
        while let Some((key, task)) = self.next() {
            let result = perform(&*self.kernel, &task.op, task.deadline);
            let mut state = lock(&self.state);
            // Under the lock, so that a caller who gives up now either finds the
            // answer or marks an operation that truly still runs.
            *lock(&task.answer.result) = Some(result);
            let hung = state.done(&key);
            drop(state);
            task.answer.ready.notify_one();
            if hung {
                let listeners = lock(&self.recoveries).clone();
                listeners.iter().for_each(|listener| listener(&key));
            }
        }
    }

    /// Waits for a lane that is ready; `None` when this thread is to end.
    fn next(&self) -> Option<(LaneKey, Task)> {
        let mut state = lock(&self.state);
        loop {
            if let Some(next) = state.take() {
                return Some(next);
            }
            if state.closed {
                return None;
            }
            let is_extra = state.idle >= KEPT;
            state.idle += 1;
            let timed_out;
            (state, timed_out) = if is_extra {
                let (state, waited) =
                    self.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                (state, waited.timed_out())
            } else {
                (self.work.wait(state).unwrap_or_else(PoisonError::into_inner), false)
            };
            state.idle -= 1;
            if timed_out && state.ready.is_empty() {
                return None;
            }
        }
    }
}

impl State {
    /// The next task of the next lane that is ready.
    fn take(&mut self) -> Option<(LaneKey, Task)> {
        while let Some(key) = self.ready.pop_front() {
            let task = self.lanes.get_mut(&key).and_then(|lane| {
                let task = lane.queue.pop_front()?;
                lane.running = Some(Running { op: task.op.clone(), hung: false });
                Some(task)
            });
            match task {
                Some(task) => return Some((key, task)),
                // All its callers gave up before it was served.
                None => drop(self.lanes.remove(&key)),
            }
        }
        None
    }

    /// A lane's task is done: it is ready for the next, or forgotten. Says
    /// whether it hung.
    fn done(&mut self, key: &LaneKey) -> bool {
        let Some(lane) = self.lanes.get_mut(key) else { return false };
        let hung = lane.running.take().is_some_and(|running| running.hung);
        if lane.queue.is_empty() {
            self.lanes.remove(key);
        } else {
            // The thread that calls this takes it, or another that is free.
            self.ready.push_back(key.clone());
        }
        hung
    }
}

/// A poisoned lock is one whose holder panicked between two plain assignments:
/// its data is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
