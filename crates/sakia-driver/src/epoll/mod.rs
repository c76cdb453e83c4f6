//! A backend for kernels and containers without io_uring: epoll, and two lanes of threads.
//!
//! [`Epoll`] performs the calls of operations and returns the same results as a ring, so that everything
//! above it is the same. It does with ordinary calls the work that a kernel does for a ring:
//! - Pipes, sockets, terminals and similar descriptors are *tried*, without blocking, and wait in epoll if
//!   they are not ready. Operations on one descriptor continue in the order of their arrival, separately for
//!   each direction.
//! - Files, paths, `fsync(2)` and other calls that end by themselves go to the *bounded* lane.
//! - Calls that may block for ever go to the *elastic* lane: opening a FIFO or a device, waiting for a lock,
//!   reads and writes of files that another machine or process serves, and the rare descriptor that cannot be
//!   tried. A full elastic lane delays nothing else.
//!
//! Minimum: Linux 4.18. Nothing newer is needed: `RWF_NOWAIT` on pipes (6.4) and `epoll_pwait2(2)` (5.11)
//! are used if a probe finds them.
//!
//! # Differences from the ring
//!
//! - `poll` watches a descriptor number, the ring a file: closing a descriptor in use, which the driver
//!   never does, ends its waiting operations with `ECANCELED`.
//! - A poll without read events is neither ended by a peer that shuts down its sending side, nor reports it.
//!   The ring ends any poll then. That spares a task that waits for room on such a socket a useless wake.
//! - A multishot receive takes no `MSG_PEEK` and no `MSG_DONTWAIT`, and without buffers ends when there is
//!   something to receive, not before. One with a single completion has its own buffer.
//! - A cancel by descriptor matches the number, not other numbers of the same file.
//! - A cancel of an operation on a thread returns `EALREADY`, and the operation continues: threads are not
//!   interrupted. The ring interrupts some workers.
//! - Reading a file never completes while its entry is consumed.
//!
//! # Invariants
//!
//! - Lent memory is used between the consumption of an entry and the posting of its completion, by system
//!   calls, and by one thread at a time. Only its address is kept.
//! - An operation is in one place: pending, waiting in the registry, with a lane, or completed.
//! - The thread that enters blocks only in epoll, and on a lock that is held for short times only.
//! - After a drop no job begins. A running one continues to use its memory, which the driver has leaked.
//!
//! # Layout
//!
//! `machine` is the state machine, and owns one of each: `flights` the table of operations in flight,
//! `registry` the watches of epoll, `sleep` the waits, `lanes` the threads and the detection of slow jobs,
//! `inbox` their way to wake the backend. A `trial` is an operation that may wait for a stream: `transfer`
//! moves bytes without blocking, `socket` handles connections and messages, `multishot` repeated receives and
//! accepts. `job` is the work of threads.
//!
//! One thread calls the backend; [`EpollWake`] may be used from any thread.

mod flights;
mod inbox;
mod job;
mod lanes;
mod machine;
mod multishot;
mod registry;
mod sleep;
mod socket;
// All of them make system calls.
#[cfg(not(miri))]
#[cfg(test)]
mod tests;
mod transfer;
mod trial;

use std::cell::Cell;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sakia_ring::{Cqe, Entered, Position, Process, SignalMask, Sqe};

use self::inbox::Inbox;
use self::lanes::Limits;
pub use self::lanes::{LaneStatistics, StuckWorker};
use self::machine::Machine;
use self::transfer::Means;
use crate::backend::{Backend, Calls, Destination, Features, Figures, RemoteWake, Takes};
use crate::call::Request;
use crate::decide::Lane;
use crate::descriptors::KernelCalls;
use crate::groups::Provided;
use crate::queue::Queue;
use crate::sys;

/// Options of an [`Epoll`].
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia_driver::{Driver, Epoll, EpollOptions, Lane};
///
/// let options = EpollOptions::new().threads_max(Lane::Bounded, 2).idle_time(Duration::from_secs(1));
/// let driver = Driver::new(Epoll::with_options(options)?);
/// assert_eq!(driver.in_flight(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub struct EpollOptions {
    sq_entries: u32,
    cq_entries: u32,
    limits: Limits,
    /// Means to try a stream; `None` to probe for them.
    means: Option<Means>,
}

impl EpollOptions {
    /// Returns the default options: queues of 256 and 4096 entries; four bounded threads for each processor
    /// that the thread may use, from 4 to 32; 64 elastic threads; threads end after 10 s without work.
    pub fn new() -> Self {
        let processors = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
        Self {
            sq_entries: 256,
            cq_entries: 4096,
            limits: Limits {
                threads_max: [processors.saturating_mul(4).clamp(4, 32), 64],
                idle: Duration::from_secs(10),
            },
            means: None,
        }
    }

    /// Sets the sizes of the two queues in entries.
    pub fn entries(mut self, sq_entries: u32, cq_entries: u32) -> Self {
        (self.sq_entries, self.cq_entries) = (sq_entries, cq_entries);
        self
    }

    /// Sets the limit of a lane's threads. Further jobs wait.
    pub fn threads_max(mut self, lane: Lane, count: u32) -> Self {
        self.limits.threads_max[lane as usize] = count;
        self
    }

    /// Sets the time that an idle thread waits for a job before it ends.
    pub fn idle_time(mut self, time: Duration) -> Self {
        self.limits.idle = time;
        self
    }

    /// Sets the means to try a stream.
    #[cfg(all(test, not(miri)))]
    fn means(mut self, means: Means) -> Self {
        self.means = Some(means);
        self
    }
}

impl Default for EpollOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for EpollOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sq_entries, cq_entries, limits, .. } = self;
        let mut f = f.debug_struct("EpollOptions");
        f.field("sq_entries", sq_entries).field("cq_entries", cq_entries);
        f.field("limits", limits).finish_non_exhaustive()
    }
}

/// Performs operations with epoll and threads. See [`EpollOptions`] for its settings.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia_driver::{Driver, Epoll, Lane, Wait};
///
/// # fn main() -> std::io::Result<()> {
/// let driver = Driver::new(Epoll::new()?);
/// let path = c"/proc/self/comm".to_owned();
/// let mut stat = driver.statx(None, path, 0);
/// while driver.turn(Wait::For(Duration::from_secs(60)))? == 0 {}
/// assert!(stat.try_take().is_some_and(|result| result.is_ok_and(|stat| stat.is_file())));
/// let finished = driver.with_backend(|epoll: &Epoll| epoll.statistics(Lane::Bounded).finished);
/// assert_eq!(finished, Some(1));
/// # Ok(())
/// # }
/// ```
pub struct Epoll {
    machine: Machine,
    /// The process in which the inbox, and with it the lanes' state, may be accessed.
    process: Process,
    /// The zero of the backend's clock.
    since: Instant,
    /// The last enter has checked epoll, and [`needs_enter`](Backend::needs_enter) was not called since.
    is_fresh: Cell<bool>,
    /// Memory was registered.
    has_buffer: bool,
}

impl Epoll {
    /// Makes a backend with the default options, for the calling thread. Starts no thread yet.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: no descriptor for epoll or the eventfd.
    pub fn new() -> io::Result<Self> {
        Self::with_options(EpollOptions::new())
    }

    /// Makes a backend for the calling thread.
    ///
    /// # Errors
    /// As [`new`](Epoll::new). `EINVAL`: a submission queue without entries or larger than the completion
    /// queue, or a lane without threads.
    ///
    /// # Examples
    /// See [`EpollOptions`](EpollOptions#examples).
    pub fn with_options(options: EpollOptions) -> io::Result<Self> {
        let EpollOptions { sq_entries, cq_entries, limits, means } = options;
        if sq_entries == 0 || cq_entries < sq_entries || limits.threads_max.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        let process = Process::current();
        let inbox = Arc::new(Inbox::new(process)?);
        let queue = Queue::new(sq_entries, cq_entries);
        let machine = Machine::new(queue, limits, inbox, means)?;
        Ok(Self {
            machine,
            process,
            since: Instant::now(),
            is_fresh: Cell::new(false),
            has_buffer: false,
        })
    }

    /// Takes the place of a backend with this zero of its clock, which has made these sockets.
    ///
    /// # Safety
    ///
    /// - The sockets are open, the driver's own, and were not [forgotten](Backend::forget_descriptor).
    pub(crate) unsafe fn take_over(&mut self, since: Instant, sockets: &[RawFd]) {
        self.since = since;
        sockets.iter().for_each(|&raw| self.machine.registry.note_socket(raw));
    }

    /// Returns a handle that makes a sleeping [`enter`](Backend::enter) of this backend return, from any
    /// thread. The same as [`remote_wake`](Backend::remote_wake).
    pub fn wake_handle(&self) -> EpollWake {
        EpollWake { inbox: Arc::clone(&self.machine.inbox) }
    }

    /// Returns the state and the totals of a lane. All zero in a forked child.
    ///
    /// # Examples
    /// See [`Epoll`](Epoll#examples).
    pub fn statistics(&self, lane: Lane) -> LaneStatistics {
        if self.process.is_intact() {
            self.machine.pool.statistics(lane)
        } else {
            LaneStatistics::default()
        }
    }

    // For a ring that uses only the lanes, and sleeps elsewhere.

    /// Returns the descriptor that threads write to when they have a result, and the backend is parked.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.machine.inbox.event()
    }

    /// Prepares for a foreign loop, which polls this eventfd of the ring: threads write to it with each
    /// result, also while nothing sleeps, and no events are left for a later look.
    pub(crate) fn watch_with(&mut self, eventfd: OwnedFd) {
        if self.process.is_intact() {
            self.machine.is_unbatched = true;
            self.machine.inbox.watch_with(eventfd);
        }
    }

    /// Prepares a sleep that the descriptor ends. Returns false if there is a result to collect.
    pub(crate) fn park(&self) -> bool {
        self.process.is_intact() && self.machine.inbox.park()
    }

    /// Returns the epoll set, which has that descriptor in it.
    pub(crate) fn set(&self) -> BorrowedFd<'_> {
        self.machine.registry.epoll()
    }

    /// Returns whether operations wait in the epoll set.
    pub(crate) fn has_waiters(&self) -> bool {
        self.machine.registry.waiters() > 0
    }

    /// Returns whether events are left of those that were fetched, for the next [`look`](Epoll::look).
    pub(crate) fn has_events(&self) -> bool {
        self.machine.has_events()
    }

    /// Handles a batch of events of the epoll set.
    pub(crate) fn look(&mut self) {
        if self.process.is_intact() {
            self.machine.look();
        }
    }

    /// Takes the results of threads, without checking epoll.
    pub(crate) fn collect(&mut self) {
        if self.process.is_intact() {
            self.machine.collect();
        }
    }

    /// # Errors
    /// In a forked child.
    #[inline(always)]
    fn check_process(&self) -> io::Result<()> {
        if self.process.is_intact() { Ok(()) } else { Err(forked_error()) }
    }
}

#[cold]
fn forked_error() -> io::Error {
    io::Error::other(
        "the epoll backend belongs to the parent process: a forked child must create its own",
    )
}

/// Wakes an [`Epoll`] that sleeps. Made by [`Epoll::wake_handle`].
#[derive(Clone, Debug)]
pub struct EpollWake {
    inbox: Arc<Inbox>,
}

impl EpollWake {
    /// Makes the backend's current enter return, or its next one if there is none now. Several wakes before
    /// that count as one. Does nothing when the backend has been dropped, and in a forked child.
    ///
    /// Do not call it from a signal handler: it takes a lock.
    pub fn wake(&self) {
        self.inbox.wake();
    }
}

impl RemoteWake for EpollWake {
    fn wake(&self) {
        self.inbox.wake();
    }
}

// SAFETY: an entry's memory is used by the machine during its flight, which begins when the entry is
// consumed and is removed before its completion is posted, and by a lane thread that has its job. A job
// leaves the queue in the step in which it becomes running, and its outcome, which ends the flight, comes
// after it; so a flight that was canceled in the queue has no thread. An entry that was made a nop is
// another entry and names no memory. Dropping the backend only ends work that has not begun. A provided
// buffer is used while it is in its group, by the thread that enters, and leaves it before the completion
// that names it is posted.
unsafe impl Backend for Epoll {
    fn features(&self) -> Features {
        let queue = &self.machine.queue;
        Features {
            takes: Takes::Calls,
            plain_calls: true,
            fills_what_it_reports: true,
            masks_signals: true,
            ..Features::new(queue.sq_entries(), queue.cq_entries())
        }
    }

    fn sq_pending(&self) -> u32 {
        self.machine.queue.pending()
    }

    /// Refuses entries: this backend takes calls.
    unsafe fn push(&mut self, _: Sqe) -> Option<Position> {
        None
    }

    /// Takes calls for [`Destination::Readiness`], too, for a ring that uses it.
    unsafe fn push_call(
        &mut self,
        request: Request,
        to: Destination,
    ) -> Result<Option<Position>, Errno> {
        if !self.process.is_intact() {
            return Err(Errno::OPNOTSUPP);
        }
        match to {
            Destination::Queue => {
                return self.machine.queue.push(request).map(Some).ok_or(Errno::AGAIN);
            }
            Destination::Lane(lane) => self.machine.start_on_lane(&request, lane),
            Destination::Readiness => self.machine.start_ready(&request),
        }
        Ok(None)
    }

    unsafe fn note_socket(&mut self, raw: i32) {
        self.machine.registry.note_socket(raw);
    }

    unsafe fn forget_descriptor(&mut self, raw: i32) {
        self.machine.registry.forget_descriptor(raw);
    }

    fn make_nop(&mut self, position: Position, user_data: u64) -> bool {
        self.process.is_intact() && self.machine.queue.make_nop(position, user_data)
    }

    fn submit(&mut self) -> io::Result<()> {
        self.check_process()?;
        self.machine.submit();
        Ok(())
    }

    fn enter(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        signals: Option<&SignalMask>,
    ) -> io::Result<Entered> {
        self.check_process()?;
        self.is_fresh.set(true);
        self.machine.enter(min_complete, timeout, signals)
    }

    fn cq_ready(&self) -> u32 {
        if self.process.is_intact() { self.machine.queue.ready() } else { 0 }
    }

    fn reap(&mut self, out: &mut [Cqe]) -> usize {
        if self.process.is_intact() { self.machine.queue.reap(out) } else { 0 }
    }

    /// Returns true if a lane has a result or completions overflow. If a descriptor is watched it also
    /// returns, after each enter, false once and then true: only an enter can tell whether it is ready. So a
    /// loop that never sleeps gets its events, and one that drains does not check twice.
    fn needs_enter(&self) -> bool {
        self.process.is_intact()
            && (self.has_news()
                || !self.is_fresh.replace(false) && self.machine.registry.waiters() > 0)
    }

    /// Returns true if a lane has a result or completions overflow. For descriptors only an enter can tell.
    fn has_news(&self) -> bool {
        self.process.is_intact()
            && (self.machine.queue.is_overflowing() || self.machine.inbox.has_news())
    }

    fn look_again(&self) {
        self.is_fresh.set(false);
    }

    fn is_overflowing(&self) -> bool {
        self.process.is_intact() && self.machine.queue.is_overflowing()
    }

    fn is_intact(&self) -> bool {
        self.process.is_intact()
    }

    unsafe fn register_buffer(&mut self, _: *mut u8, _: usize) -> io::Result<()> {
        self.check_process()?;
        // For a call, registered memory is ordinary memory.
        if mem::replace(&mut self.has_buffer, true) { Err(Errno::BUSY.into()) } else { Ok(()) }
    }

    fn register_group(&mut self, group: u16, entries: u16) -> io::Result<()> {
        self.check_process()?;
        Ok(self.machine.groups.register(group, entries)?)
    }

    unsafe fn provide(&mut self, group: u16, id: u16, addr: *mut u8, len: u32) {
        if self.process.is_intact() {
            let addr = addr.expose_provenance() as u64;
            self.machine.groups.provide(group, Provided { id, addr, len });
        }
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }

    fn nap(&mut self, duration: Duration) {
        sys::nap(duration);
    }

    fn remote_wake(&mut self) -> io::Result<Arc<dyn RemoteWake>> {
        Ok(Arc::new(self.wake_handle()))
    }

    /// See [`Backend::pollable`]. Once a foreign loop polls the descriptor, only an enter detects stuck jobs.
    fn pollable(&mut self) -> io::Result<OwnedFd> {
        self.check_process()?;
        Ok(self.machine.pollable()?)
    }

    fn clear_readiness(&mut self) {
        if self.process.is_intact() {
            self.is_fresh.set(true);
            self.machine.quiet();
        }
    }

    fn figures(&self) -> Figures<'_> {
        let lanes = Lane::ALL.map(|lane| self.statistics(lane));
        Figures { lanes, ways: &self.machine.kinds, ..Figures::default() }
    }

    fn find_stuck(&mut self, limit: Duration, found: &mut Vec<StuckWorker>) -> Option<Duration> {
        if !self.process.is_intact() {
            return None;
        }
        let now = Instant::now();
        let at = self.machine.pool.find_stuck(now, limit, found)?;
        Some(at.saturating_duration_since(now))
    }

    fn calls(&self) -> Rc<dyn Calls> {
        Rc::new(KernelCalls)
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // A forked child has no threads, and a lock may stay locked there.
        if self.process.is_intact() {
            self.machine.pool.close();
            self.machine.inbox.close();
        }
    }
}

impl fmt::Debug for Epoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Epoll");
        f.field("epoll", &self.machine.registry.epoll())
            .field("flights", &self.machine.flights.len());
        f.finish_non_exhaustive()
    }
}
