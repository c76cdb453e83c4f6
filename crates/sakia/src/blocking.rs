//! Threads for code that blocks.
//!
//! Code that computes for long, or calls functions that may block, would delay every other task of its
//! thread. A [`Pool`] runs it on threads of its own; [`spawn_blocking`] uses one pool that all runtimes of
//! the process share. A thread is started when work waits and none is idle, up to a cap, and ends after some
//! idle time. Any thread may start work, inside a runtime or not.
//!
//! The queue is bounded. While it is full, the handle of new work holds that work, and enters it when there
//! is room, in the order of asking, as long as the handle is awaited. So a task that awaits the work it
//! starts is slowed down to the pool's pace. [`Pool::try_spawn`] refuses instead. Dropping the handle of work
//! that it still holds puts the work in the queue beyond the bound: detached work always runs.
//!
//! The end of a runtime waits for the code that [`spawn_blocking`] has started there. Code that may block for
//! ever, such as the open of a FIFO, would hold up that end: it belongs on the [shared] pool, or on one of
//! its own, for which nothing waits.
//!
//! A forked child has none of a pool's threads. The shared pool is one for each process, and a child's runs
//! all that the child starts. A [`Pool`] that its parent has made runs nothing there: handles of work on it
//! resolve to an error that says so, unless the work had ended before the fork.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_lock::futures::AcquireArc;
use async_lock::{Semaphore, SemaphoreGuardArc};
use sakia_driver::lanes;
use sakia_ring::PerProcess;
use sakia_thread::start_thread;

use crate::executor::{try_current, with_current};
use crate::gate::{Gate, Work};
use crate::join::{JoinError, JoinHandle};
use crate::unfinished::{Claim, Unfinished};

/// Runs code that blocks on a thread of the pool that the whole process shares: at most 512 threads,
/// which end after 10 seconds without work, and 1024 in the queue.
///
/// A panic in `f` is contained, and the handle resolves to it. A panic in the destructor of a result that is
/// never taken is contained too, and not reported. Dropping the handle lets `f` go on.
///
/// `f` is finished: the runtime whose code called this waits for it when it ends, after its tasks, even if
/// `f` waits in the queue then; [`Builder::blocking_timeout`](crate::runtime::Builder::blocking_timeout)
/// limits that wait. Without a runtime the call of [`block_on`](crate::block_on) waits that this runs in, and
/// so they do for closures that `f` itself starts. Elsewhere, on a thread of another executor for one,
/// nothing waits. Running code cannot be stopped from outside: code that may block for ever belongs on the
/// [`shared`] pool.
///
/// See the [module](self) for the behavior when the queue is full.
///
/// # Simulation
/// On the [simulated kernel](crate::sim) `f` runs on the calling thread, as a task, so that each run is the
/// same. It does not run if the runtime ends before.
///
/// # Examples
/// ```
/// use sakia::spawn_blocking;
///
/// let sum = sakia::block_on(async { spawn_blocking(|| (1..=1000_u64).sum::<u64>()).await });
/// assert_eq!(sum.unwrap(), 500_500);
/// ```
#[track_caller]
pub fn spawn_blocking<F, T>(f: F) -> BlockingHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    match try_current() {
        Some(local) if !local.environment.has_threads() => {
            local.spawn_at(async move { f() }, Location::caller()).into()
        }
        _ => shared().spawn_finished(f),
    }
}

/// Returns the pool that [`spawn_blocking`] uses, and the whole process shares. Nothing waits for what
/// [`Pool::spawn`] runs on it: if it has not ended when the process does, it is lost.
///
/// # Examples
/// An open that waits until another process opens the FIFO, too:
/// ```
/// # let path = std::env::temp_dir().join(format!("sakia-shared-{}", std::process::id()));
/// # rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
/// # let fifo = path.clone();
/// let opened = sakia::blocking::shared().spawn(|| std::fs::File::open(fifo));
/// // Ends at once, whether another process comes or not.
/// sakia::block_on(async {
///     let limit = std::time::Duration::from_millis(1);
///     assert!(sakia::time::timeout(limit, opened).await.is_err());
/// });
/// # std::fs::remove_file(path)?;
/// # std::io::Result::Ok(())
/// ```
pub fn shared() -> &'static Pool {
    static POOL: PerProcess<Pool> = PerProcess::new();
    POOL.get_or_init(|| Pool::builder().build())
}

/// Returns the state and the counters of the process's shared pool.
///
/// # Examples
/// ```
/// let before = sakia::blocking::statistics().completed;
/// sakia::block_on(sakia::spawn_blocking(|| ())).unwrap();
/// assert!(sakia::blocking::statistics().completed > before);
/// ```
pub fn statistics() -> Statistics {
    shared().statistics()
}

/// Options of a [`Pool`].
///
/// # Examples
/// See [`Pool`](Pool#examples).
#[derive(Clone, Debug)]
pub struct Builder {
    threads: usize,
    queue: usize,
    idle: Duration,
}

impl Builder {
    /// Sets the maximum number of threads, at least 1. Without this call 512.
    ///
    /// # Examples
    /// See [`Pool`](Pool#examples).
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets the maximum length of the queue, at least 1. Without this call 1024.
    ///
    /// # Examples
    /// See [`Pool`](Pool#examples).
    #[must_use]
    pub fn queue(mut self, count: usize) -> Self {
        self.queue = count.max(1);
        self
    }

    /// Sets the time after which an idle thread ends. Without this call 10 seconds.
    #[must_use]
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Builds the pool. It starts no thread before there is work.
    ///
    /// # Examples
    /// See [`Pool`](Pool#examples).
    pub fn build(self) -> Pool {
        let threads_max = u32::try_from(self.threads).unwrap_or(u32::MAX);
        let room = Arc::new(Semaphore::new(self.queue));
        Pool { threads: Threads::new(Worker::default(), &[threads_max], self.idle), room }
    }
}

/// Threads for code that blocks.
///
/// Dropping it lets its threads finish the queued work, without waiting for them, and end. The end of a
/// runtime does not wait for them either.
///
/// # Examples
/// ```
/// use sakia::blocking::Pool;
///
/// let pool = Pool::builder().threads(2).queue(8).build();
/// let answer = sakia::block_on(async { pool.spawn(|| 6 * 7).await });
/// assert_eq!(answer.unwrap(), 42);
/// assert_eq!(pool.statistics().completed, 1);
/// ```
pub struct Pool {
    threads: Threads,
    /// Room in the queue: a permit per piece of work.
    room: Arc<Semaphore>,
}

/// The state of a pool, and counters of its work so far.
///
/// # Examples
/// See [`Pool`](Pool#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Threads that exist.
    pub threads: usize,
    /// The most threads that existed at a time.
    pub threads_max: usize,
    /// Threads without work.
    pub idle: usize,
    /// Work that waits for a thread.
    pub queued: usize,
    /// The most work that waited at a time.
    pub queued_max: usize,
    /// Work that ran to its end, panics included.
    pub completed: u64,
    /// Work that panicked.
    pub panicked: u64,
}

type Threads = lanes::Pool<Worker>;

/// A thread's own state and counters, kept outside the lock, which other threads need when they change. The
/// fields are as in [`Statistics`].
#[derive(Default)]
struct Worker {
    completed: AtomicU64,
    panicked: AtomicU64,
}

/// Work that no thread has taken.
#[derive(Default)]
struct Queue {
    /// Oldest first.
    jobs: VecDeque<Job>,
    /// The most work that waited at a time.
    max: usize,
}

/// A piece of work.
struct Job {
    work: Work,
    /// Its place in the queue; none if it went in beyond the bound.
    room: Option<SemaphoreGuardArc>,
    /// Makes an end wait for it.
    claim: Option<Claim>,
}

impl Job {
    fn new(work: Work, room: Option<SemaphoreGuardArc>, owner: Option<Arc<Unfinished>>) -> Self {
        Self { work, room, claim: owner.map(Unfinished::claim) }
    }
}

impl Pool {
    /// Returns a builder of a pool.
    ///
    /// # Examples
    /// See [`Pool`](Pool#examples).
    pub fn builder() -> Builder {
        Builder { threads: 512, queue: 1024, idle: Duration::from_secs(10) }
    }

    /// Runs `f` on this pool; otherwise as [`spawn_blocking`], but nothing waits for it at the end.
    ///
    /// # Examples
    /// See [`Pool`](Pool#examples).
    #[track_caller]
    pub fn spawn<F, T>(&self, f: F) -> BlockingHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_for(None, f)
    }

    /// As [`spawn`](Self::spawn), for work that the end of the calling code's runtime waits for.
    #[track_caller]
    pub(crate) fn spawn_finished<F, T>(&self, f: F) -> BlockingHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let its = with_current(|local| Arc::clone(&local.shown.closures));
        let its = its.or_else(Unfinished::outside).filter(|its| its.is_intact());
        self.spawn_for(its, f)
    }

    #[track_caller]
    fn spawn_for<F, T>(&self, owner: Option<Arc<Unfinished>>, f: F) -> BlockingHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (work, join) = prepare(&self.threads, f);
        let mut handle = BlockingHandle::from(join);
        // A handle that holds the work of a parent's pool resolves to an error.
        let room = if self.is_intact() { self.room.try_acquire_arc() } else { None };
        match room {
            Some(room) => push(&self.threads, Job::new(work, Some(room), owner)),
            None => {
                let threads = self.threads.clone();
                let room = Box::pin(self.room.acquire_arc());
                *handle.held_mut() = Some(Held { threads, room, work, owner });
            }
        }
        handle
    }

    /// As [`spawn`](Pool::spawn), but gives `f` back when the queue is full.
    ///
    /// # Errors
    /// `f`, which did not run: the queue is full, or this is a forked child, and the pool its parent's.
    ///
    /// # Examples
    /// ```
    /// use sakia::blocking::Pool;
    ///
    /// let pool = Pool::builder().build();
    /// let Ok(handle) = pool.try_spawn(|| "ran") else { panic!("the queue is full") };
    /// assert_eq!(sakia::block_on(handle).unwrap(), "ran");
    /// ```
    pub fn try_spawn<F, T>(&self, f: F) -> Result<BlockingHandle<T>, F>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        if !self.is_intact() {
            return Err(f);
        }
        let Some(room) = self.room.try_acquire_arc() else { return Err(f) };
        let (work, join) = prepare(&self.threads, f);
        push(&self.threads, Job::new(work, Some(room), None));
        Ok(join.into())
    }

    /// Returns whether the pool's threads are of this process, and not of one that it was forked from.
    fn is_intact(&self) -> bool {
        self.threads.process().is_intact()
    }

    /// Returns the state and the counters of the pool. All zero in a forked child.
    ///
    /// # Examples
    /// See [`Pool`](Pool#examples).
    pub fn statistics(&self) -> Statistics {
        if !self.is_intact() {
            return Statistics::default();
        }
        let Worker { completed, panicked } = self.threads.worker();
        self.threads.update(|state| {
            let threads = state.threads(0);
            let Queue { jobs, max } = state.jobs(0);
            Statistics {
                threads: threads.count as usize,
                threads_max: threads.peak as usize,
                idle: threads.idle as usize,
                queued: jobs.len(),
                queued_max: *max,
                completed: completed.load(Ordering::Relaxed),
                panicked: panicked.load(Ordering::Relaxed),
            }
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.is_intact() {
            self.threads.close(|_| ());
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.statistics()).finish()
    }
}

/// Makes work of `f`, and the handle that awaits it.
#[track_caller]
fn prepare<F, T>(threads: &Threads, f: F) -> (Work, JoinHandle<T>)
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let (threads, process) = (threads.clone(), *threads.process());
    let call = move || {
        // `f` is gone after a panic, so no code sees the state that it left half-changed.
        let outcome = catch_unwind(AssertUnwindSafe(f));
        let Worker { completed, panicked } = threads.worker();
        completed.fetch_add(1, Ordering::Relaxed);
        panicked.fetch_add(outcome.is_err().into(), Ordering::Relaxed);
        outcome.unwrap_or_else(|payload| resume_unwind(payload))
    };
    let (work, task) = sakia_task::work(call, Gate::none(process, Location::caller()));
    (work, JoinHandle::new(task))
}

/// Puts work in the queue.
fn push(threads: &Threads, job: Job) {
    threads.push(0, |state| {
        let Queue { jobs, max } = state.jobs(0);
        jobs.push_back(job);
        *max = jobs.len().max(*max);
    });
}

impl lanes::Jobs for Queue {
    type Job = Job;

    fn take(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}

impl lanes::Worker for Worker {
    type Jobs = Queue;

    fn start(&self, _: usize, _: u32, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        start_thread("sakia-blocking", None, Box::new(run)).map(drop)
    }

    /// Performs a job. Only a waker can panic here.
    fn perform(_: &Threads, _: usize, Job { work, room, claim }: Job) {
        drop(room); // may wake the task that waits for it
        let _entered = claim.as_ref().map(Claim::enter);
        work.run();
    }

    /// Drops a job for which there is no thread: its handle resolves to `is_canceled`.
    fn strand(_: &Threads, _: usize, job: Job, _: &io::Error) {
        drop(job);
    }
}

/// Awaits work on a [`Pool`]. Dropping it lets the work go on by itself.
///
/// # Examples
/// ```
/// let work = sakia::spawn_blocking(|| std::fs::read("/proc/self/comm"));
/// let bytes = sakia::block_on(work).expect("it does not panic")?;
/// assert!(bytes.ends_with(b"\n"));
/// # std::io::Result::Ok(())
/// ```
pub struct BlockingHandle<T> {
    /// `Some` while the queue has no room for the work. The lock makes it possible to abort through a shared
    /// reference.
    held: Mutex<Option<Held>>,
    join: JoinHandle<T>,
}

/// Work that is not in the queue yet.
struct Held {
    threads: Threads,
    room: Pin<Box<AcquireArc>>,
    work: Work,
    /// Waits for it from its entry into the queue on. Before that it may never get there.
    owner: Option<Arc<Unfinished>>,
}

impl Held {
    /// Ends the work, which never runs.
    fn discard(self) {
        if !self.threads.process().is_intact() {
            // Its drop takes a lock, which another thread of the parent may have held.
            std::mem::forget(self.room);
        }
    }
}

impl<T> From<JoinHandle<T>> for BlockingHandle<T> {
    fn from(join: JoinHandle<T>) -> Self {
        Self { held: Mutex::new(None), join }
    }
}

impl<T> BlockingHandle<T> {
    /// Lets the work go on by itself.
    pub fn detach(self) {}

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held_mut(&mut self) -> &mut Option<Held> {
        self.held.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the work if it has not begun: it never runs, and the handle resolves to
    /// [`JoinError::is_canceled`]. If it has begun, it goes on and its result is dropped.
    ///
    /// # Examples
    /// The only thread is busy, so the second piece of work has not begun:
    /// ```
    /// use std::sync::mpsc;
    ///
    /// use sakia::blocking::Pool;
    ///
    /// let pool = Pool::builder().threads(1).build();
    /// let (sender, receiver) = mpsc::channel::<()>();
    /// let first = pool.spawn(move || receiver.recv().is_err());
    /// let second = pool.spawn(|| unreachable!());
    /// second.abort();
    /// drop(sender);
    /// assert!(sakia::block_on(first).unwrap());
    /// assert!(sakia::block_on(second).unwrap_err().is_canceled());
    /// ```
    pub fn abort(&self) {
        self.join.abort();
        let held = self.lock().take();
        // Outside the lock: this runs users' code.
        if let Some(held) = held {
            held.discard();
        }
    }

    /// Returns whether the work has ended, or was [aborted](Self::abort).
    pub fn is_finished(&self) -> bool {
        self.join.is_aborted() || self.join.is_finished()
    }
}

impl<T> Future for BlockingHandle<T> {
    type Output = Result<T, JoinError>;

    /// Resolves to the value that the work returned.
    ///
    /// An error means that the work panicked, or that it was canceled: by an abort, because the machine has
    /// no thread for it, or because this is a forked child, and the work its parent's.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(held) = self.held_mut() {
            if !held.threads.process().is_intact() {
                return Poll::Ready(Err(JoinError::forked()));
            }
            let Poll::Ready(room) = held.room.as_mut().poll(cx) else { return Poll::Pending };
            if let Some(Held { threads, work, owner, .. }) = self.held_mut().take() {
                push(&threads, Job::new(work, Some(room), owner));
            }
        }
        if self.join.is_aborted() {
            return Poll::Ready(Err(JoinError::canceled())); // what runs goes on
        }
        Pin::new(&mut self.join).poll(cx)
    }
}

impl<T> Drop for BlockingHandle<T> {
    fn drop(&mut self) {
        let Some(held) = self.held_mut().take() else { return };
        if held.threads.process().is_intact() {
            let Held { threads, work, owner, .. } = held;
            push(&threads, Job::new(work, None, owner));
        } else {
            held.discard();
        }
    }
}

impl<T> fmt::Debug for BlockingHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_held = self.lock().is_some();
        let mut debug = f.debug_struct("BlockingHandle");
        debug.field("is_held", &is_held).field("is_finished", &self.is_finished()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_threads_end_with_their_pool() {
        let pool = Pool::builder().idle(Duration::MAX).build();
        assert!(crate::block_on(pool.spawn(|| 1)).is_ok_and(|one| one == 1));
        let shared = pool.threads.downgrade();
        drop(pool);
        // This loop runs for ever if a thread waits for ever.
        while shared.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
