//! Threads for code that blocks.
//!
//! Code that computes for long, or calls what may block, would hold up every task of its thread. A
//! [`Pool`] runs it elsewhere; [`spawn_blocking`] uses one that all runtimes of the process share.
//! Threads are started when there is work and none is idle, up to a cap, and end when idle for a while.
//! Any thread may start work, inside a runtime or not.
//!
//! The queue is bounded. Work that finds it full is held by its handle, and enters the queue when there
//! is room, in the order of asking, while the handle is awaited. So whoever awaits what they start is
//! slowed down to the pool's pace. [`Pool::try_spawn`] refuses instead. Dropping the handle of work
//! that is still held puts it in the queue beyond the bound: detached work runs, always.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use async_lock::futures::AcquireArc;
use async_lock::{Semaphore, SemaphoreGuardArc};
use async_task::Runnable;

use crate::executor::try_current;
use crate::join::{JoinError, JoinHandle, Outcome};

/// Runs code that blocks on a thread of the pool that the whole process shares: at most 64 threads,
/// which end after 10 seconds without work, and 1024 in the queue.
///
/// A panic in `f` is contained, and is what the handle resolves to; one in the destructor of a result
/// that nobody takes ends the process. Dropping the handle lets `f` go on.
/// Code that has begun cannot be ended from outside; the process does not wait for it at its end.
///
/// See the [module](self) for what happens when the queue is full.
///
/// On the [simulated kernel](crate::sim) `f` runs on the calling thread, as a task, so that what happens
/// is the same each time.
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
            let join = local.spawn(async move { f() });
            BlockingHandle { held: Mutex::new(None), join }
        }
        _ => shared_pool().spawn(f),
    }
}

/// What the process's shared pool does.
pub fn statistics() -> Statistics {
    shared_pool().statistics()
}

pub(crate) fn shared_pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| Pool::builder().build())
}

/// How a [`Pool`] is to be built.
#[derive(Clone, Debug)]
pub struct Builder {
    threads: usize,
    queue: usize,
    idle: Duration,
}

impl Builder {
    /// How many threads there may be, at least 1. Without this call 64.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// How much work may wait for a thread, at least 1. Without this call 1024.
    #[must_use]
    pub fn queue(mut self, count: usize) -> Self {
        self.queue = count.max(1);
        self
    }

    /// How long a thread without work stays. Without this call 10 seconds.
    #[must_use]
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Makes the pool. It starts no thread before there is work.
    pub fn build(self) -> Pool {
        let room = Arc::new(Semaphore::new(self.queue));
        let state = Mutex::new(State::default());
        let shared = Shared {
            limits: self,
            room,
            state,
            work: Condvar::new(),
            completed: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
        };
        Pool { shared: Arc::new(shared) }
    }
}

/// Threads for code that blocks.
///
/// Dropping it lets its threads finish what was queued, without waiting for them, and end.
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
    shared: Arc<Shared>,
}

/// What a pool does, and did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Threads that exist.
    pub threads: usize,
    /// The most there were at a time.
    pub threads_max: usize,
    /// Those of them that have no work.
    pub idle: usize,
    /// Work that waits for a thread.
    pub queued: usize,
    /// The most that waited at a time.
    pub queued_max: usize,
    /// Work that ran to its end, panics included.
    pub completed: u64,
    /// Work that panicked.
    pub panicked: u64,
}

struct Shared {
    limits: Builder,
    /// Room in the queue: a permit per piece of work.
    room: Arc<Semaphore>,
    state: Mutex<State>,
    /// Signaled once per piece of work that an idle thread is to take, and to all at the end.
    work: Condvar,
    /// As in the statistics; counted without the lock, which others want just then.
    completed: AtomicU64,
    panicked: AtomicU64,
}

/// What the threads share.
#[derive(Default)]
struct State {
    /// Work that no thread has taken, oldest first.
    queue: VecDeque<Job>,
    /// `queued`, `completed` and `panicked` are set when somebody asks.
    statistics: Statistics,
    /// Threads end when the queue is empty.
    is_closed: bool,
}

/// A piece of work.
struct Job {
    runnable: Runnable,
    /// Its place in the queue; none if it went in beyond the bound.
    room: Option<SemaphoreGuardArc>,
}

impl Pool {
    /// Begins to build a pool.
    pub fn builder() -> Builder {
        Builder { threads: 64, queue: 1024, idle: Duration::from_secs(10) }
    }

    /// As [`spawn_blocking`], on this pool.
    pub fn spawn<F, T>(&self, f: F) -> BlockingHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (runnable, join) = self.shared.prepare(f);
        let mut handle = BlockingHandle { held: Mutex::new(None), join };
        match self.shared.room.try_acquire_arc() {
            Some(room) => self.shared.push(Job { runnable, room: Some(room) }),
            None => {
                let pool = Arc::clone(&self.shared);
                let room = Box::pin(self.shared.room.acquire_arc());
                *handle.held_mut() = Some(Held { pool, room, runnable });
            }
        }
        handle
    }

    /// As [`spawn`](Pool::spawn), but gives `f` back when the queue is full.
    ///
    /// # Errors
    /// `f`, which did not run.
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
        let Some(room) = self.shared.room.try_acquire_arc() else { return Err(f) };
        let (runnable, join) = self.shared.prepare(f);
        self.shared.push(Job { runnable, room: Some(room) });
        Ok(BlockingHandle { held: Mutex::new(None), join })
    }

    /// What the pool does.
    pub fn statistics(&self) -> Statistics {
        let state = self.shared.lock();
        Statistics {
            queued: state.queue.len(),
            completed: self.shared.completed.load(Ordering::Relaxed),
            panicked: self.shared.panicked.load(Ordering::Relaxed),
            ..state.statistics
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.work.notify_all();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.statistics()).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a task of `f` that is done when first run.
    fn prepare<F, T>(self: &Arc<Self>, f: F) -> (Runnable, JoinHandle<T>)
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let shared = Arc::clone(self);
        let future = async move {
            // `f` is gone after a panic, so nobody sees what it has half-changed of its own.
            let outcome: Outcome<T> = match mutant!("blocking_panic_escapes") {
                true => Ok(f()),
                false => catch_unwind(AssertUnwindSafe(f)),
            };
            shared.completed.fetch_add(1, Ordering::Relaxed);
            shared.panicked.fetch_add(outcome.is_err().into(), Ordering::Relaxed);
            outcome
        };
        // Scheduled by `push`, and otherwise only to be dropped after an abort: at once, wherever that is.
        let (runnable, task) = async_task::spawn(future, drop);
        (runnable, JoinHandle::new(task))
    }

    /// Puts work in the queue, and sees to it that a thread takes it.
    fn push(self: &Arc<Self>, job: Job) {
        let mut state = self.lock();
        state.queue.push_back(job);
        let queued = state.queue.len();
        state.statistics.queued_max = state.statistics.queued_max.max(queued);
        if state.statistics.idle >= queued {
            if !mutant!("idle_thread_not_woken") {
                self.work.notify_one();
            }
        } else if state.statistics.threads < self.limits.threads || mutant!("pool_without_cap") {
            state.statistics.threads += 1;
            let threads = state.statistics.threads;
            drop(state);
            self.start_thread(threads);
        }
    }

    /// Starts a thread that is counted already, in `threads`.
    fn start_thread(self: &Arc<Self>, threads: usize) {
        let shared = Arc::clone(self);
        let thread = thread::Builder::new().name("sakia-blocking".into());
        if thread.spawn(move || shared.run_thread()).is_ok() {
            let mut state = self.lock();
            state.statistics.threads_max = state.statistics.threads_max.max(threads);
            return;
        }
        let mut state = self.lock();
        state.statistics.threads -= 1;
        if state.statistics.threads == 0 {
            // Nobody will ever take it: its handles resolve to `is_canceled`.
            let stranded = std::mem::take(&mut state.queue);
            drop(state);
            drop(stranded);
        }
    }

    /// The life of a thread.
    fn run_thread(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                if mutant!("room_not_given_back") {
                    std::mem::forget(job.room);
                } else {
                    drop(job.room); // may wake whoever waits for it
                }
                // What is contained here is a panic of a waker.
                catch_unwind(AssertUnwindSafe(|| job.runnable.run())).ok();
                state = self.lock();
                continue;
            }
            if state.is_closed && !mutant!("pool_threads_stay") {
                break;
            }
            state.statistics.idle += 1;
            let waited = self.work.wait_timeout(state, self.limits.idle);
            let timeout;
            (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state.statistics.idle -= 1;
            let is_empty = state.queue.is_empty() || mutant!("pool_thread_ends_on_work");
            if timeout.timed_out() && is_empty {
                break;
            }
        }
        state.statistics.threads -= 1;
    }
}

/// Awaits work on a [`Pool`]. Dropping it lets the work go on by itself.
pub struct BlockingHandle<T> {
    /// `Some` while there is no room for it in the queue. The lock is there to abort through a shared
    /// reference.
    held: Mutex<Option<Held>>,
    join: JoinHandle<T>,
}

/// Work that is not in the queue yet.
struct Held {
    pool: Arc<Shared>,
    room: Pin<Box<AcquireArc>>,
    runnable: Runnable,
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
    /// [`JoinError::is_canceled`]. If it has begun it goes on, and its result is thrown away.
    pub fn abort(&self) {
        self.join.abort();
        if !mutant!("aborted_work_keeps_place") {
            let held = self.lock().take();
            drop(held); // outside the lock: it is the user's
        }
    }

    /// Whether the work has ended.
    pub fn is_finished(&self) -> bool {
        self.join.is_finished()
    }
}

impl<T> Future for BlockingHandle<T> {
    type Output = Result<T, JoinError>;

    /// Resolves to what the work returned.
    ///
    /// An error is a panic of the work; or it was canceled, by an abort or because the machine has no
    /// thread for it.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(held) = self.held_mut() {
            let Poll::Ready(room) = held.room.as_mut().poll(cx) else { return Poll::Pending };
            if let Some(Held { pool, runnable, .. }) = self.held_mut().take() {
                pool.push(Job { runnable, room: Some(room) });
            }
        }
        Pin::new(&mut self.join).poll(cx)
    }
}

impl<T> Drop for BlockingHandle<T> {
    fn drop(&mut self) {
        if let Some(Held { pool, runnable, .. }) = self.held_mut().take()
            && !mutant!("detached_work_lost")
        {
            pool.push(Job { runnable, room: None });
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
        let shared = Arc::downgrade(&pool.shared);
        drop(pool);
        // Waits for ever if a thread does.
        while shared.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
