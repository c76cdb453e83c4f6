//! Threads that perform jobs: the pool below the lanes of a backend, and below `spawn_blocking` and
//! everything built on that.
//!
//! A [`Pool`] has one lane or more. A lane has a queue of jobs, threads that take jobs from it, and a maximum
//! number of threads. Lanes share one lock and are independent otherwise. The user's [`Worker`] defines a
//! job, the start of a thread, and the fate of jobs on a machine that starts none; the user's [`Jobs`]
//! defines the order in which jobs are taken.
//!
//! The story of a job:
//! 1. [`Pool::push`] puts it in the queue, under the lock. A thread is *coming* if it was woken or is being
//!    started and has not looked at the queue since. If none is coming, the push makes one come: it wakes an
//!    idle thread, or starts one if none is idle and there are fewer than the maximum. The wake or the start
//!    follows after the unlock.
//! 2. The thread comes: under the lock it clears the mark *coming*, and takes a job. If others are left, it
//!    makes the next thread come, as in step 1, before it performs its own job.
//! 3. It performs the job without the lock. Then it takes the next job, with the second half of step 2; one
//!    wake serves all jobs that wait.
//! 4. A thread that finds no job is idle. One that was idle for a while ends.
//!
//! So the number of threads grows by one at a time, and only while jobs wait. The threads that are awake
//! finish short jobs before the next thread comes. Of jobs that block, each thread takes one, and makes
//! another thread come for the next.
//!
//! No job waits while a thread is idle or could be started. The invariant, whenever the lock is free: if jobs
//! wait, then
//! - (a) a thread is coming, or
//! - (b) all threads of the lane perform jobs, and their number is the maximum, or
//! - (c) all threads of the lane perform jobs, there is at least one, and the last start of another failed.
//!
//! In (a) the coming thread keeps the invariant by step 2. In (b) and (c) a thread that has finished its job
//! looks at the queue; in (c) each push, and each thread that takes a job, tries a start again. The steps
//! that could break the invariant:
//! - A push, and a thread that leaves jobs in the queue: both make a thread come.
//! - A thread becomes idle, or ends: only if no job waits, in the same step under the lock that has seen
//!   that.
//! - The mark *coming* is set by the thread about to wake or start another, and cleared by the next thread
//!   that comes out of its wait or its start, which then looks at the queue. There is such a thread. A start
//!   brings one, or fails. For a wake there was an idle thread in that step under the lock. If that thread
//!   still waits at the time of the wake, the wake ends its wait or another idle thread's; otherwise its wait
//!   has timed out. In each case a thread looks at the queue after its wait.
//! - A start fails: in one step the mark is cleared, and if jobs wait and a thread is idle, the mark is set
//!   again and that thread is woken, because pushes since then relied on the mark. If all threads are busy,
//!   that is (c). If the lane has no thread at all, its jobs are given to [`Worker::strand`], one after the
//!   other; a push meanwhile tries a start of its own.
//!
//! Harmless races:
//! - An idle thread's wait times out just before its wake. It looks at the queue before it ends, in one step
//!   under the lock. The wake reaches another idle thread, or none.
//! - An idle thread's wait times out while another thread is being started: it clears the mark early. At most
//!   one more thread comes than is needed, within the maximum.
//! - A busy thread empties the queue before the coming thread looks. The latter is idle again.
//!
//! [`Pool::close`] makes idle threads end at once, and busy ones as soon as they find no job. It waits for
//! none.
//!
//! Any thread may push, close and look. A panic of a job ends that job only. A forked child has none of the
//! threads, and must not touch its parent's pool: see [`Pool::process`].

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sakia_ring::Process;

/// The jobs of a lane that wait for a thread, and the state that has to change in step with them. Accessed
/// under the pool's lock.
pub trait Jobs: Default + Send + 'static {
    /// A unit of work for one thread.
    type Job;

    /// Takes the job to be performed next.
    fn take(&mut self) -> Option<Self::Job>;

    /// Returns whether no job waits.
    fn is_empty(&self) -> bool;
}

/// The work of a pool's threads.
pub trait Worker: Sized + Send + Sync + 'static {
    /// The queue of a lane.
    type Jobs: Jobs;

    /// Starts a thread that calls `run`. No other thread of the lane has the same number at that time;
    /// numbers begin at 0 and are reused.
    ///
    /// # Errors
    /// The thread could not be started, and `run` was dropped.
    fn start(
        &self,
        lane: usize,
        number: u32,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()>;

    /// Performs a job, on a thread of its lane and without the lock.
    fn perform(pool: &Pool<Self>, lane: usize, job: <Self::Jobs as Jobs>::Job);

    /// Ends a job of a lane that has no thread and cannot start one, because of `error`. Called without the
    /// lock, by the thread that pushed this or another job.
    fn strand(pool: &Pool<Self>, lane: usize, job: <Self::Jobs as Jobs>::Job, error: &io::Error);
}

/// The threads of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads {
    /// Existing threads, those being started included.
    pub count: u32,
    /// Threads that wait for a job.
    pub idle: u32,
    /// The maximum number that has existed at a time.
    pub peak: u32,
    /// Failed starts, in total.
    pub start_errors: u64,
}

/// Lanes of threads. A clone refers to the same pool.
pub struct Pool<W: Worker> {
    shared: Arc<Shared<W>>,
}

struct Shared<W: Worker> {
    /// The process that has the threads.
    process: Process,
    worker: W,
    state: Mutex<State<W::Jobs>>,
    /// By lane: signals a job for an idle thread, or the end.
    changed: Box<[Condvar]>,
    /// By lane: the maximum number of threads.
    threads_max: Box<[u32]>,
    /// The time that a thread waits for a job before it ends.
    idle: Duration,
}

/// The state under the lock of a pool.
pub struct State<J> {
    lanes: Box<[Lane<J>]>,
    /// Makes threads end when they find no job. Set once, by [`Pool::close`].
    is_closed: bool,
}

#[derive(Default)]
struct Lane<J> {
    jobs: J,
    threads: Threads,
    /// A thread was woken or is being started, and has not looked at the queue since. Set by the thread that
    /// wakes or starts it; see the module.
    is_coming: bool,
    /// Numbers of threads that have ended.
    free_numbers: Vec<u32>,
}

impl<W: Worker> Pool<W> {
    /// Makes a pool with a lane for each of the maxima, which are at least 1. It starts no thread before
    /// there is a job.
    pub fn new(worker: W, threads_max: &[u32], idle: Duration) -> Self {
        let lanes = threads_max.iter().map(|_| Lane::default()).collect();
        let state = Mutex::new(State { lanes, is_closed: false });
        let changed = threads_max.iter().map(|_| Condvar::new()).collect();
        Self {
            shared: Arc::new(Shared {
                process: Process::current(),
                worker,
                state,
                changed,
                threads_max: threads_max.into(),
                idle,
            }),
        }
    }

    /// Returns the options with which the pool was made.
    pub fn worker(&self) -> &W {
        &self.shared.worker
    }

    /// Returns the process that has the threads. In a child of it no other method may be called but
    /// [`worker`](Self::worker): another thread may have held the lock.
    pub fn process(&self) -> &Process {
        &self.shared.process
    }

    /// Reads or changes the state under the lock. Jobs that are added here get no thread: see
    /// [`push`](Pool::push).
    pub fn update<T>(&self, change: impl FnOnce(&mut State<W::Jobs>) -> T) -> T {
        change(&mut self.lock())
    }

    /// Adds jobs to the queue of a lane, and makes threads take them.
    pub fn push(&self, lane: usize, add: impl FnOnce(&mut State<W::Jobs>)) {
        let mut state = self.lock();
        add(&mut state);
        self.staff(state, lane);
    }

    /// Makes threads end that find no job, after a last `change` in the same step. Waits for none.
    pub fn close(&self, change: impl FnOnce(&mut State<W::Jobs>)) {
        let mut state = self.lock();
        state.is_closed = true;
        change(&mut state);
        drop(state);
        self.shared.changed.iter().for_each(Condvar::notify_all);
    }

    /// Returns a weak reference, to tell whether a thread or another clone is left.
    pub fn downgrade(&self) -> Weak<impl Sized + use<W>> {
        Arc::downgrade(&self.shared)
    }

    fn lock(&self) -> MutexGuard<'_, State<W::Jobs>> {
        debug_assert!(self.shared.process.is_intact(), "a child may wait for ever");
        // A panic in a user's change leaves the threads' counts as they were.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a thread of a lane come if jobs wait and none is coming, and unlocks.
    fn staff(&self, mut state: MutexGuard<'_, State<W::Jobs>>, lane: usize) {
        let its = &mut state.lanes[lane];
        if its.jobs.is_empty() || its.is_coming {
            return;
        }
        let most = self.shared.threads_max[lane];
        if its.threads.idle > 0 {
            its.is_coming = true;
            drop(state);
            self.wake(lane);
        } else if its.threads.count < most {
            its.is_coming = true;
            let number = its.enlist();
            drop(state);
            let pool = self.clone();
            let run = move || pool.run(lane, number);
            if let Err(error) = self.shared.worker.start(lane, number, run) {
                self.miss(lane, number, &error);
            }
        }
    }

    fn wake(&self, lane: usize) {
        self.shared.changed[lane].notify_one();
    }

    /// Handles a failed start of a thread.
    #[cold]
    fn miss(&self, lane: usize, number: u32, error: &io::Error) {
        let mut state = self.lock();
        let its = &mut state.lanes[lane];
        its.discharge(number);
        its.threads.start_errors += 1;
        its.is_coming = its.threads.idle > 0 && !its.jobs.is_empty();
        let (is_coming, count) = (its.is_coming, its.threads.count);
        drop(state);
        if is_coming {
            self.wake(lane);
        }
        if count > 0 {
            return;
        }
        loop {
            let job = self.lock().lanes[lane].jobs.take();
            let Some(job) = job else { return };
            contain(|| W::strand(self, lane, job, error));
        }
    }

    /// Runs a thread of a lane until it ends.
    fn run(&self, lane: usize, number: u32) {
        let mut state = self.lock();
        let threads = &mut state.lanes[lane].threads;
        threads.peak = threads.peak.max(threads.count);
        state.lanes[lane].is_coming = false;
        let mut is_over = false;
        loop {
            let is_closed = state.is_closed;
            let its = &mut state.lanes[lane];
            if let Some(job) = its.jobs.take() {
                self.staff(state, lane);
                contain(|| W::perform(self, lane, job));
                is_over = false;
                state = self.lock();
                continue;
            }
            if is_closed || is_over {
                // In the same step as the look at the queue: a push is either seen here, or does not count on
                // this thread.
                its.discharge(number);
                return;
            }
            its.threads.idle += 1;
            let waited = self.shared.changed[lane].wait_timeout(state, self.shared.idle);
            let timeout;
            (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            is_over = timeout.timed_out();
            let its = &mut state.lanes[lane];
            its.threads.idle -= 1;
            its.is_coming = false;
        }
    }
}

impl<J> State<J> {
    /// Returns the queue of a lane.
    pub fn jobs(&mut self, lane: usize) -> &mut J {
        &mut self.lanes[lane].jobs
    }

    /// Returns the threads of a lane.
    pub fn threads(&self, lane: usize) -> Threads {
        self.lanes[lane].threads
    }

    /// Returns whether the pool was [closed](Pool::close).
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }
}

impl<J> Lane<J> {
    /// Counts a thread that is about to be started, and gives it a number.
    fn enlist(&mut self) -> u32 {
        let number = self.free_numbers.pop().unwrap_or(self.threads.count);
        self.threads.count += 1;
        number
    }

    fn discharge(&mut self, number: u32) {
        self.threads.count -= 1;
        self.free_numbers.push(number);
    }
}

impl<W: Worker> Clone for Pool<W> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<W: Worker> fmt::Debug for Pool<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// Runs a job, and catches its panic.
fn contain(run: impl FnOnce()) {
    // The destructor of the panic's payload might panic, too.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(std::mem::forget);
}

#[cfg(test)]
mod tests;
