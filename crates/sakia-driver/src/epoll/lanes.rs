//! Two lanes of threads for what would block the calling thread.
//!
//! The *bounded* lane is for work that ends by itself, the *elastic* one for what may wait for ever.
//! Each has a queue, from which its threads take jobs in the order in which they were admitted, and a
//! most number of threads. Neither waits for the other: a full elastic lane keeps its own queue
//! waiting, and nothing else.
//!
//! The story of a job:
//! 1. [`Pool::push`] puts it in its lane's queue under its *ticket*, a number that grows. An idle
//!    thread is woken for it; if there are fewer idle threads than jobs a new one is started, up to the
//!    lane's most.
//! 2. A thread takes it: in one step under the lock it leaves the queue and is noted as running. Before
//!    that [`Pool::cancel`] can take it back, and its memory is never touched. After that it
//!    cannot: it ends by itself.
//! 3. The thread does the work without the lock.
//! 4. The job is no longer noted as running, and its outcome goes to the [`Inbox`]. A job of the
//!    bounded lane that turns out to belong on the elastic one goes to that queue instead, with its
//!    ticket, in the same step under the lock: a cancel finds it in one place or the other.
//!
//! A thread that has been idle for a while ends. [`Pool::close`] empties the queues, ends idle
//! threads, and leaves the others alone: a thread in step 3 may stay there for ever, goes on using that
//! job's memory, and ends after it. Its outcome is dropped.
//!
//! Harmless races:
//! - An idle thread's time is over just when a job is pushed for it: it looks at the queue once more,
//!   under the lock, before it ends.
//! - A cancel between steps 2 and 4 of a job that is as good as done: it comes too late, and says so.
//!
//! Threads inherit a mask that keeps signals off them, so that a program's handlers run elsewhere, and
//! so that `SIGPIPE` and `SIGXFSZ` reach nobody: the operation fails with their errno, as on the ring.
//!
//! One lock for both lanes. Nothing blocks while holding it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sakia_ring::Opcode;

use super::inbox::Inbox;
use super::job::{Job, Outcome, Work};
use super::transfer::failed;
use crate::sys::signals::with_lane_mask;

/// Stack of a lane thread: jobs are a few system calls.
const STACK_BYTES: usize = 128 * 1024;

/// A queue of work with threads of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// For what ends by itself: files, metadata.
    Bounded = 0,
    /// For what may wait for ever: FIFOs and terminals that are opened, locks that others hold.
    Elastic = 1,
}

impl Lane {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Bounded, Self::Elastic];

    fn thread_name(self, number: u32) -> String {
        match self {
            Self::Bounded => format!("sakia-bounded-{number}"),
            Self::Elastic => format!("sakia-elastic-{number}"),
        }
    }
}

/// What a lane does now and did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneStatistics {
    /// Threads that there are now.
    pub threads: u32,
    /// The most threads that there were at a time.
    pub threads_peak: u32,
    /// The most threads that there may be.
    pub threads_max: u32,
    /// Jobs that wait for a thread.
    pub queued: u64,
    /// Jobs that a thread performs.
    pub running: u64,
    /// Jobs that ended on this lane, ever.
    pub finished: u64,
    /// Jobs that ran for longer than the limit, ever; see
    /// [`EpollOptions::stuck_after`](crate::EpollOptions::stuck_after).
    pub stuck: u64,
    /// Threads that could not be started, ever.
    pub spawn_errors: u64,
    /// For how long the oldest of the running jobs has been running.
    pub oldest_running: Option<Duration>,
}

/// A job that has been running for a suspiciously long time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckWorker {
    /// The lane whose thread it occupies.
    pub lane: Lane,
    /// What it does.
    pub opcode: Opcode,
    /// The `user_data` of its entry.
    pub user_data: u64,
    /// For how long it has been running.
    pub running_for: Duration,
}

/// How many threads, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// By lane.
    pub(super) threads_max: [u32; 2],
    /// How long a thread waits for another job.
    pub(super) idle: Duration,
    /// When a running job counts as stuck.
    pub(super) stuck_after: Option<Duration>,
}

/// Both lanes of a backend.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
}

/// What the threads know.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// By lane: there is a job, or the end.
    changed: [Condvar; 2],
    limits: Limits,
    inbox: Arc<Inbox>,
}

#[derive(Debug, Default)]
struct State {
    /// By lane.
    lanes: [LaneState; 2],
    /// The backend is gone. Set once.
    is_closed: bool,
}

#[derive(Debug, Default)]
struct LaneState {
    /// Jobs that wait, by ticket.
    queue: BTreeMap<u64, Job>,
    /// Jobs that a thread performs, by ticket.
    running: BTreeMap<u64, Running>,
    /// Threads that wait for a job.
    idle: u32,
    /// Threads that there are, those included that are being started.
    threads: u32,
    /// Numbers in the names of threads that have ended.
    free_numbers: Vec<u32>,
    threads_peak: u32,
    finished: u64,
    stuck: u64,
    spawn_errors: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    since: Instant,
    opcode: Opcode,
    user_data: u64,
    /// Counted as stuck already.
    is_reported: bool,
}

impl Pool {
    pub(super) fn new(limits: Limits, inbox: Arc<Inbox>) -> Self {
        let (state, changed) = (Mutex::default(), [Condvar::new(), Condvar::new()]);
        Self { shared: Arc::new(Shared { state, changed, limits, inbox }) }
    }

    /// Admits jobs to a lane. Those of lower tickets are performed first. No other job that has not
    /// ended has the same ticket. The memory that they name is lent until their outcome was received.
    pub(super) fn push(&self, lane: Lane, jobs: impl IntoIterator<Item = (u64, Job)>) {
        let mut state = self.shared.lock();
        state.lanes[lane as usize].queue.extend(jobs);
        Shared::staff(&self.shared, state, lane);
    }

    /// Takes a job back that no thread has taken. False otherwise.
    pub(super) fn cancel(&self, ticket: u64) -> bool {
        let mut state = self.shared.lock();
        let is_queued = |lane: &mut LaneState| lane.queue.remove(&ticket).is_some();
        state.lanes.iter_mut().any(is_queued) || mutant!("running_job_canceled")
    }

    pub(super) fn statistics(&self, lane: Lane) -> LaneStatistics {
        let state = self.shared.lock();
        let its = &state.lanes[lane as usize];
        LaneStatistics {
            threads: its.threads,
            threads_peak: its.threads_peak,
            threads_max: self.shared.limits.threads_max[lane as usize],
            queued: its.queue.len() as u64,
            running: its.running.len() as u64,
            finished: its.finished,
            stuck: its.stuck,
            spawn_errors: its.spawn_errors,
            oldest_running: its.running.values().map(|job| job.since.elapsed()).max(),
        }
    }

    /// Counts jobs that have become stuck, and adds them to `found`. Returns when to look again, if
    /// there is anything that could get stuck.
    pub(super) fn find_stuck(&self, now: Instant, found: &mut Vec<StuckWorker>) -> Option<Instant> {
        // Not less, or a job that waits would be looked for all the time.
        let limit = self.shared.limits.stuck_after?.max(Duration::from_millis(1));
        let mut state = self.shared.lock();
        let mut next: Option<Instant> = None;
        for lane in Lane::ALL {
            let its = &mut state.lanes[lane as usize];
            // A job that is queued may begin to run any time from now.
            let mut later = (!its.queue.is_empty()).then(|| now.checked_add(limit)).flatten();
            for job in its.running.values_mut().filter(|job| !job.is_reported) {
                let running_for = now.saturating_duration_since(job.since);
                if running_for >= limit {
                    let Running { opcode, user_data, .. } = *job;
                    found.push(StuckWorker { lane, opcode, user_data, running_for });
                    job.is_reported = !mutant!("stuck_job_told_again");
                    its.stuck += 1;
                } else if let Some(due) = job.since.checked_add(limit) {
                    later = Some(later.map_or(due, |later| later.min(due)));
                }
            }
            next = [next, later].into_iter().flatten().min();
        }
        next
    }

    /// Drops what is queued and lets threads end; those with a job after it. Does not wait.
    pub(super) fn close(&self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        if !mutant!("end_keeps_queued_jobs") {
            state.lanes.iter_mut().for_each(|lane| lane.queue.clear());
        }
        drop(state);
        self.shared.changed.iter().for_each(Condvar::notify_all);
    }

    #[cfg(test)]
    pub(super) fn alive(&self) -> std::sync::Weak<impl Sized + use<>> {
        Arc::downgrade(&self.shared)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that a lane's queue has threads, and unlocks.
    fn staff(shared: &Arc<Self>, mut state: MutexGuard<'_, State>, lane: Lane) {
        let threads_max = shared.limits.threads_max[lane as usize];
        let threads_max = if mutant!("lane_without_bound") { u32::MAX } else { threads_max };
        let its = &mut state.lanes[lane as usize];
        let queued = u32::try_from(its.queue.len()).unwrap_or(u32::MAX);
        let wanted = queued.saturating_sub(its.idle);
        let fresh = wanted.min(threads_max.saturating_sub(its.threads));
        let numbers: Vec<u32> = (0..fresh).map(|_| its.enlist()).collect();
        let wakes = queued.min(its.idle);
        drop(state);
        for _ in 0..wakes {
            shared.changed[lane as usize].notify_one();
        }
        for number in numbers {
            if let Err(error) = Self::spawn(shared, lane, number) {
                Self::miss(shared, lane, number, &error);
            }
        }
    }

    fn spawn(shared: &Arc<Self>, lane: Lane, number: u32) -> io::Result<()> {
        let its = Arc::clone(shared);
        let thread = thread::Builder::new().name(lane.thread_name(number)).stack_size(STACK_BYTES);
        with_lane_mask(|| thread.spawn(move || work(&its, lane, number))).map(|_| ())
    }

    /// A thread could not be started. If the lane has none at all, nobody would ever take its jobs:
    /// bounded ones are performed here and now, and so is a close, or its number would be lost; others
    /// fail.
    #[cold]
    fn miss(shared: &Arc<Self>, lane: Lane, number: u32, error: &io::Error) {
        let mut state = shared.lock();
        let its = &mut state.lanes[lane as usize];
        its.discharge(number);
        its.spawn_errors += 1;
        if its.threads > 0 || mutant!("jobs_without_threads_wait") {
            return; // they get to it, or the next push tries again
        }
        drop(state);
        let errno = Errno::from_io_error(error).unwrap_or(Errno::AGAIN);
        loop {
            let job = shared.lock().lanes[lane as usize].take_job();
            let Some((ticket, work)) = job else { return };
            let outcome = match (lane, &work) {
                // SAFETY: the job was queued, so its memory is lent until its outcome was received.
                (Lane::Bounded, _) | (_, Work::Close { .. }) => unsafe { work.run() },
                (Lane::Elastic, _) => Outcome::Done(failed(errno)),
            };
            Self::end_job(shared, lane, ticket, outcome);
        }
    }

    /// Waits for the next job of a lane. `None` when the thread is to end, and is counted no more.
    fn next_job(&self, lane: Lane, number: u32) -> Option<(u64, Work)> {
        let mut state = self.lock();
        let mut is_over = false;
        loop {
            let is_closed = state.is_closed;
            let its = &mut state.lanes[lane as usize];
            if is_over && mutant!("lane_thread_ends_on_job") {
                its.discharge(number);
                return None;
            }
            if let Some(job) = its.take_job() {
                return Some(job);
            }
            if is_closed || is_over {
                // In the same step as the look at the queue: a push either is seen here, or does not
                // count on this thread.
                its.discharge(number);
                return None;
            }
            its.idle += 1;
            let changed = &self.changed[lane as usize];
            let (again, timeout) = changed
                .wait_timeout(state, self.limits.idle)
                .unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.lanes[lane as usize].idle -= 1;
            is_over = timeout.timed_out();
        }
    }

    /// Notes that a job has ended, and passes on what became of it.
    fn end_job(shared: &Arc<Self>, lane: Lane, ticket: u64, outcome: Outcome) {
        let mut state = shared.lock();
        let job = state.lanes[lane as usize].running.remove(&ticket);
        let Running { opcode, user_data, .. } = job.expect("a job that ends was running");
        match outcome {
            Outcome::Elastic(_) if state.is_closed => {}
            Outcome::Elastic(work) => {
                let to = if mutant!("endless_jobs_on_bounded") { lane } else { Lane::Elastic };
                let queue = &mut state.lanes[to as usize].queue;
                queue.insert(ticket, Job { user_data, opcode, work });
                Self::staff(shared, state, to);
            }
            outcome => {
                state.lanes[lane as usize].finished += 1;
                drop(state);
                shared.inbox.deliver(ticket, outcome);
            }
        }
    }
}

impl LaneState {
    /// Takes the oldest job, and notes that it is running.
    fn take_job(&mut self) -> Option<(u64, Work)> {
        let first = if mutant!("newest_job_first") {
            self.queue.pop_last()
        } else {
            self.queue.pop_first()
        };
        let (ticket, Job { user_data, opcode, work }) = first?;
        let since = Instant::now();
        self.running.insert(ticket, Running { since, opcode, user_data, is_reported: false });
        Some((ticket, work))
    }

    /// Counts a thread that is about to be started, and gives it a number.
    fn enlist(&mut self) -> u32 {
        let number = self.free_numbers.pop().unwrap_or(self.threads);
        self.threads += 1;
        self.threads_peak = self.threads_peak.max(self.threads);
        number
    }

    fn discharge(&mut self, number: u32) {
        self.threads -= 1;
        self.free_numbers.push(number);
    }
}

/// A lane thread.
fn work(shared: &Arc<Shared>, lane: Lane, number: u32) {
    while let Some((ticket, work)) = shared.next_job(lane, number) {
        // SAFETY: the job was queued, so its memory is lent until its outcome was received; if the
        // backend is gone meanwhile, for ever.
        let outcome = unsafe { work.run() };
        Shared::end_job(shared, lane, ticket, outcome);
    }
}
