//! Two lanes of threads for work that would block the calling thread.
//!
//! The *bounded* lane is for work that ends by itself, the *elastic* one for work that may block for ever.
//! Each has a queue, from which its threads take jobs in the order of admission, and a limit of threads. The
//! lanes are independent: a full elastic lane delays its own queue, and nothing else.
//!
//! The threads are those of a [`crate::lanes::Pool`], which documents the life of a job. Here a job has a
//! *ticket*, a number that grows:
//! - In one step under the lock a job leaves the queue and is recorded as running. Before that
//!   [`Pool::cancel`] can remove it, and its memory is never touched. After that it cannot: the job ends by
//!   itself.
//! - A job that has ended is no longer recorded as running, and its outcome goes to the [`Inbox`]. A job of
//!   the bounded lane that turns out to belong on the elastic one moves to that queue instead, with its
//!   ticket, in the same step under the lock: a cancel finds it in one place or the other. A cancel in
//!   between, of a job that has almost ended, comes too late, and returns that.
//! - [`Pool::close`] empties the queues. It does not interrupt a thread that performs a job: that thread may
//!   block for ever, continues to use that job's memory, and ends after it. Its outcome is dropped.
//!
//! Threads inherit a mask that blocks signals, so that a program's handlers run elsewhere, and so that
//! `SIGPIPE` and `SIGXFSZ` reach no thread: the operation fails with their errno, as on the ring.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sakia_thread::start_thread;

use super::inbox::Inbox;
use super::job::{Outcome, Work};
use crate::call::failed;
use crate::counters::OpKind;
use crate::decide::Lane;
use crate::lanes::{self, Jobs, State};
use crate::sys::signals::without_signals;

/// Stack of a lane thread: jobs are a few system calls.
const STACK_BYTES: Option<NonZeroUsize> = NonZeroUsize::new(128 * 1024);

fn thread_name(lane: Lane, number: u32) -> String {
    match lane {
        Lane::Bounded => format!("sakia-bounded-{number}"),
        Lane::Elastic => format!("sakia-elastic-{number}"),
    }
}

/// The current state of a lane, and its totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneStatistics {
    /// The current number of threads.
    pub threads: u32,
    /// The largest number of threads so far.
    pub threads_peak: u32,
    /// The limit of threads.
    pub threads_max: u32,
    /// Jobs that wait for a thread.
    pub queued: u64,
    /// Jobs being performed.
    pub running: u64,
    /// Jobs that ended on this lane, in total.
    pub finished: u64,
    /// Jobs that were found to run for too long, ever; see [`find_stuck`](crate::Backend::find_stuck).
    pub stuck: u64,
    /// Failed starts of threads, in total.
    pub spawn_errors: u64,
    /// The running time of the oldest running job.
    pub oldest_running: Option<Duration>,
}

/// A job that has been running for a suspiciously long time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckWorker {
    /// The lane whose thread it occupies.
    pub lane: Lane,
    /// The kind of its operation.
    pub kind: OpKind,
    /// The `user_data` of its completion.
    pub user_data: u64,
    /// Its running time.
    pub running_for: Duration,
}

/// An operation that a lane performs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) user_data: u64,
    pub(super) kind: OpKind,
    pub(super) work: Work,
}

/// Limits of the number of threads and of times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// By lane.
    pub(super) threads_max: [u32; 2],
    /// The time that an idle thread waits for a job.
    pub(super) idle: Duration,
}

/// Both lanes of a backend.
#[derive(Debug)]
pub(super) struct Pool {
    threads: Threads,
    limits: Limits,
}

type Threads = lanes::Pool<Worker>;

/// The context of the threads.
struct Worker {
    inbox: Arc<Inbox>,
}

/// The jobs of a lane.
#[derive(Debug, Default)]
struct Queue {
    /// Queued jobs, by ticket.
    waiting: BTreeMap<u64, Job>,
    /// Running jobs, by ticket.
    running: BTreeMap<u64, Running>,
    finished: u64,
    stuck: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    since: Instant,
    job: Job,
    /// Already counted as stuck.
    is_reported: bool,
}

impl Pool {
    pub(super) fn new(limits: Limits, inbox: Arc<Inbox>) -> Self {
        let threads = Threads::new(Worker { inbox }, &limits.threads_max, limits.idle);
        Self { threads, limits }
    }

    /// Admits jobs to a lane. Those of lower tickets are performed first. Tickets of jobs that have not
    /// ended are unique. The memory that they name is lent until their outcome was received.
    pub(super) fn push(&self, lane: Lane, jobs: impl IntoIterator<Item = (u64, Job)>) {
        let lane = lane as usize;
        self.threads.push(lane, |state| state.jobs(lane).waiting.extend(jobs));
    }

    /// Cancels a queued job. Returns false if a thread has taken it.
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
            // A queued job may begin to run at any time from now.
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

    /// Drops queued jobs and ends the threads, those with a job after it. Does not wait.
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
        without_signals(|| start_thread(&name, STACK_BYTES, Box::new(run))).map(drop)
    }

    fn perform(threads: &Threads, lane: usize, (ticket, work): (u64, Work)) {
        // SAFETY: the job was queued, so its memory is lent until its outcome was received; if the backend
        // has been dropped meanwhile, for ever.
        let outcome = unsafe { work.run(Lane::ALL[lane]) };
        end_job(threads, lane, ticket, outcome);
    }

    /// Handles a job without a thread: a bounded job is performed in place, and so is a close, or its number
    /// would be lost; others fail.
    fn strand(threads: &Threads, lane: usize, (ticket, work): (u64, Work), error: &io::Error) {
        if lane == Lane::Bounded as usize || work.is_close() {
            return Self::perform(threads, lane, (ticket, work));
        }
        let errno = Errno::from_io_error(error).unwrap_or(Errno::AGAIN);
        end_job(threads, lane, ticket, Outcome::Done(failed(errno)));
    }
}

/// Records that a job has ended, and delivers its outcome.
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

    /// Takes the oldest job, and records that it is running.
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
