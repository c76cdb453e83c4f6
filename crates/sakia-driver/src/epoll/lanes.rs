//! Two lanes of threads for what would block the calling thread.
//!
//! The *bounded* lane is for work that ends by itself, the *elastic* one for what may wait for ever.
//! Each has a queue, from which its threads take jobs in the order in which they were admitted, and a
//! most number of threads. Neither waits for the other: a full elastic lane keeps its own queue
//! waiting, and nothing else.
//!
//! The threads are those of a [`crate::lanes::Pool`], where the story of a job is told. Here a job has a
//! *ticket*, a number that grows:
//! - In one step under the lock a job leaves the queue and is noted as running. Before that [`Pool::cancel`]
//!   can take it back, and its memory is never touched. After that it cannot: it ends by itself.
//! - A job that has ended is no longer noted as running, and its outcome goes to the [`Inbox`]. A job of the
//!   bounded lane that turns out to belong on the elastic one goes to that queue instead, with its ticket, in
//!   the same step under the lock: a cancel finds it in one place or the other. A cancel in between, of a job
//!   that is as good as done, comes too late, and says so.
//! - [`Pool::close`] empties the queues. It leaves a thread that performs a job alone: that one may stay
//!   there
//!   for ever, goes on using that job's memory, and ends after it. Its outcome is dropped.
//!
//! Threads inherit a mask that keeps signals off them, so that a program's handlers run elsewhere, and
//! so that `SIGPIPE` and `SIGXFSZ` reach nobody: the operation fails with their errno, as on the ring.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::inbox::Inbox;
use super::job::{Outcome, Work};
use crate::call::failed;
use crate::counters::OpKind;
use crate::lanes::{self, Jobs, State};
use crate::policy::Lane;
use crate::sys::signals::with_lane_mask;

/// Stack of a lane thread: jobs are a few system calls.
const STACK_BYTES: usize = 128 * 1024;

fn thread_name(lane: Lane, number: u32) -> String {
    match lane {
        Lane::Bounded => format!("sakia-bounded-{number}"),
        Lane::Elastic => format!("sakia-elastic-{number}"),
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
    /// Jobs that were found to run for too long, ever; see [`find_stuck`](crate::Backend::find_stuck).
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
    pub kind: OpKind,
    /// What its completion will be known by.
    pub user_data: u64,
    /// For how long it has been running.
    pub running_for: Duration,
}

/// An operation that a lane performs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) user_data: u64,
    pub(super) kind: OpKind,
    pub(super) work: Work,
}

/// How many threads, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// By lane.
    pub(super) threads_max: [u32; 2],
    /// How long a thread waits for another job.
    pub(super) idle: Duration,
}

/// Both lanes of a backend.
#[derive(Debug)]
pub(super) struct Pool {
    threads: Threads,
    limits: Limits,
}

type Threads = lanes::Pool<Worker>;

/// What the threads do.
struct Worker {
    inbox: Arc<Inbox>,
}

/// The jobs of a lane.
#[derive(Debug, Default)]
struct Queue {
    /// Those that wait, by ticket.
    waiting: BTreeMap<u64, Job>,
    /// Those that a thread performs, by ticket.
    running: BTreeMap<u64, Running>,
    finished: u64,
    stuck: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    since: Instant,
    job: Job,
    /// Counted as stuck already.
    is_reported: bool,
}

impl Pool {
    pub(super) fn new(limits: Limits, inbox: Arc<Inbox>) -> Self {
        let threads = Threads::new(Worker { inbox }, &limits.threads_max, limits.idle);
        Self { threads, limits }
    }

    /// Admits jobs to a lane. Those of lower tickets are performed first. No other job that has not
    /// ended has the same ticket. The memory that they name is lent until their outcome was received.
    pub(super) fn push(&self, lane: Lane, jobs: impl IntoIterator<Item = (u64, Job)>) {
        let lane = lane as usize;
        self.threads.push(lane, |state| state.jobs(lane).waiting.extend(jobs));
    }

    /// Takes a job back that no thread has taken. False otherwise.
    pub(super) fn cancel(&self, ticket: u64) -> bool {
        self.threads.update(|state| {
            let mut lanes = Lane::ALL.into_iter();
            lanes.any(|lane| state.jobs(lane as usize).waiting.remove(&ticket).is_some())
        })
    }

    pub(super) fn statistics(&self, lane: Lane) -> LaneStatistics {
        let lane = lane as usize;
        self.threads.update(|state| {
            let (threads, its) = (state.threads(lane), state.jobs(lane));
            LaneStatistics {
                threads: threads.count,
                threads_peak: threads.peak,
                threads_max: self.limits.threads_max[lane],
                queued: its.waiting.len() as u64,
                running: its.running.len() as u64,
                finished: its.finished,
                stuck: its.stuck,
                spawn_errors: threads.start_errors,
                oldest_running: its.running.values().map(|job| job.since.elapsed()).max(),
            }
        })
    }

    /// Counts jobs that have become stuck, and adds them to `found`. Returns when to look again, if
    /// there is anything that could get stuck.
    pub(super) fn find_stuck(
        &self,
        now: Instant,
        limit: Duration,
        found: &mut Vec<StuckWorker>,
    ) -> Option<Instant> {
        // Not less, or a job that waits would be looked for all the time.
        let limit = limit.max(Duration::from_millis(1));
        let mut find = |lane: Lane, state: &mut State<Queue>| {
            let its = state.jobs(lane as usize);
            // A job that is queued may begin to run any time from now.
            let mut later = (!its.waiting.is_empty()).then(|| now.checked_add(limit)).flatten();
            for job in its.running.values_mut().filter(|job| !job.is_reported) {
                let running_for = now.saturating_duration_since(job.since);
                if running_for >= limit {
                    let Job { kind, user_data, .. } = job.job;
                    found.push(StuckWorker { lane, kind, user_data, running_for });
                    job.is_reported = true;
                    its.stuck += 1;
                } else if let Some(due) = job.since.checked_add(limit) {
                    later = Some(later.map_or(due, |later| later.min(due)));
                }
            }
            later
        };
        self.threads
            .update(|state| Lane::ALL.into_iter().filter_map(|lane| find(lane, state)).min())
    }

    /// Drops what is queued and lets threads end; those with a job after it. Does not wait.
    pub(super) fn close(&self) {
        self.threads.close(|state| {
            Lane::ALL.into_iter().for_each(|lane| state.jobs(lane as usize).waiting.clear());
        });
    }

    #[cfg(all(test, not(miri)))]
    pub(super) fn alive(&self) -> std::sync::Weak<impl Sized + use<>> {
        self.threads.downgrade()
    }
}

impl lanes::Worker for Worker {
    type Jobs = Queue;

    fn start(
        &self,
        lane: usize,
        number: u32,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let name = thread_name(Lane::ALL[lane], number);
        let thread = thread::Builder::new().name(name).stack_size(STACK_BYTES);
        with_lane_mask(|| thread.spawn(run)).map(drop)
    }

    fn perform(threads: &Threads, lane: usize, (ticket, work): (u64, Work)) {
        // SAFETY: the job was queued, so its memory is lent until its outcome was received; if the
        // backend is gone meanwhile, for ever.
        let outcome = unsafe { work.run(Lane::ALL[lane]) };
        end_job(threads, lane, ticket, outcome);
    }

    /// A bounded job is performed here and now, and so is a close, or its number would be lost; others fail.
    fn strand(threads: &Threads, lane: usize, (ticket, work): (u64, Work), error: &io::Error) {
        if lane == Lane::Bounded as usize || work.is_close() {
            return Self::perform(threads, lane, (ticket, work));
        }
        let errno = Errno::from_io_error(error).unwrap_or(Errno::AGAIN);
        end_job(threads, lane, ticket, Outcome::Done(failed(errno)));
    }
}

/// Notes that a job has ended, and passes on what became of it.
fn end_job(threads: &Threads, lane: usize, ticket: u64, outcome: Outcome) {
    let end = |state: &mut State<Queue>| {
        let job = state.jobs(lane).running.remove(&ticket);
        job.expect("a job that ends was running")
    };
    match outcome {
        Outcome::Elastic => {
            let to = Lane::Elastic as usize;
            threads.push(to, |state| {
                let Running { job, .. } = end(state);
                if !state.is_closed() {
                    state.jobs(to).waiting.insert(ticket, job);
                }
            });
        }
        outcome => {
            threads.update(|state| {
                end(state);
                state.jobs(lane).finished += 1;
            });
            threads.worker().inbox.deliver(ticket, outcome);
        }
    }
}

impl Jobs for Queue {
    type Job = (u64, Work);

    /// Takes the oldest job, and notes that it is running.
    fn take(&mut self) -> Option<(u64, Work)> {
        let (ticket, job) = self.waiting.pop_first()?;
        let since = Instant::now();
        self.running.insert(ticket, Running { since, job, is_reported: false });
        Some((ticket, job.work))
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
