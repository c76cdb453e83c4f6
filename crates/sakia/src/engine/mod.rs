//! The engine below other runtimes and plain threads: one or more threads with a ring each, which do the
//! file operations of a whole process.
//!
//! An [`Engine`] is shared by all threads. What it offers are [`Request`]s: awaited on any executor they are
//! done here and now if the page cache has what is asked for, and on a thread of the engine otherwise;
//! [`wait`](Request::wait)ed for by a plain thread, they are the plain call. What there is only a plain call
//! for, such as making a directory, is awaited from a thread of the pool for blocking code.
//!
//! 1. A request that has to leave its thread goes into the inbox of one of the engine's, and that is woken if
//!    it sleeps. It takes all that has queued meanwhile, and submits it once.
//! 2. There it is a task like any other of the runtime, with its rules for ring and plain call.
//! 3. Its result goes back through the task's handle, which wakes the caller's task.
//!
//! [`Engine::stop`] lets nothing new in and waits for what is under way. The threads end with the last clone.

mod blocking;
mod file;
mod gate;
mod many;
mod mounts;
mod now;
mod pace;
mod paths;
mod request;
mod tally;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use sakia_driver::{Choice, Counters, Metrics};
use sakia_ring::ProcessSentinel;

pub use self::blocking::Blocking;
pub use self::file::{
    Append, AppendDurable, Commit, File, GroupCommit, ReadAt, ReadShared, ReadVectoredAt, SyncFile,
    WriteAt, WriteDurableAt, WriteVectoredAt,
};
use self::gate::{Gate, Pass};
pub use self::many::Many;
use self::mounts::Mounts;
pub use self::paths::{Open, ReadDir, ReadFile, ReadText};
use self::request::block_on;
pub use self::request::{Call, Request};
use self::tally::Tally;
use crate::executor::{current, spawn_to};
use crate::inspect::{self, Inspector};
use crate::join::JoinHandle;
use crate::remote::Remote;
use crate::runtime::{Builder, Started, Thread};

/// Items that the engine shares with other crates of this workspace. Not part of the public interface.
#[doc(hidden)]
pub mod __private {
    pub use sakia_driver::{CallMode, CallSupport, SharedCallSupport};

    pub use super::now::{Ways, is_in_memory};
    pub use super::request::block_on;
    pub use crate::error::copy_error;
    pub use crate::halves::{Half, Halves};
    pub use crate::io::transfer::repeated;
}

/// Does file operations for all threads of a process. Clones are the same engine.
///
/// # Examples
/// ```
/// use sakia::engine::Engine;
///
/// # let path = std::env::temp_dir().join(format!("sakia-engine-{}", std::process::id()));
/// # std::fs::write(&path, "hello, world")?;
/// let engine = Engine::new()?;
/// let file = engine.open(&path).wait()?;
///
/// // On a plain thread: the plain call.
/// let (result, bytes) = file.read_at(vec![0; 5], 0).wait();
/// assert_eq!((result?, &bytes[..]), (5, &b"hello"[..]));
///
/// // On any executor.
/// # let rt = tokio::runtime::Builder::new_current_thread().build()?;
/// # rt.block_on(async {
/// let (result, bytes) = file.read_at(vec![0; 5], 7).await;
/// assert_eq!((result?, &bytes[..]), (5, &b"world"[..]));
/// # std::io::Result::Ok(()) })?;
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// The state that clones share. Its threads end with it.
struct Shared {
    /// The threads' inboxes.
    remotes: Arc<[Arc<Remote>]>,
    /// The inspector's view of the threads.
    shown: Arc<inspect::Shared>,
    /// Whose turn it is to get a request.
    next: AtomicUsize,
    gate: Arc<Gate>,
    choice: Choice,
    tally: Tally,
    mounts: Arc<Mounts>,
    /// Of the process whose threads they are: a forked child has none of them.
    process: ProcessSentinel,
    /// Tells files apart.
    files: AtomicU64,
    /// Ended, and waited for, when they are dropped.
    _threads: Mutex<Vec<Thread>>,
}

/// The state of an engine, and counters of its work so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests that were done where they were awaited, without a wait.
    pub now: u64,
    /// Requests that a thread waited for.
    pub waited: u64,
    /// Requests that went to the engine's threads, or to those for what blocks.
    pub submitted: u64,
    /// Of these, those that are not over.
    pub live: u64,
    /// Requests that came after the stop, or in a forked child.
    pub refused: u64,
}

static GLOBAL: OnceLock<Engine> = OnceLock::new();
/// Held while the engine of the process is built.
static BUILDING: Mutex<()> = Mutex::new(());

impl Builder {
    /// Builds an engine with as many threads as [`threads`](Builder::threads) says, none of which is the
    /// caller's.
    ///
    /// # Errors
    /// As [`build`](Builder::build). `InvalidInput`: time is to be virtual.
    pub fn build_engine(self) -> io::Result<Engine> {
        if self.virtual_time {
            let message = "virtual time is for runtimes with one thread";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let process = ProcessSentinel::new()?;
        let mounts = Arc::new(Mounts::new());
        let Started { threads, remotes, shown, choice } = Thread::start_all(&self)?;
        let watched = Arc::clone(&mounts);
        // Without it, the mounts of now are those that are known.
        let watch = move || async move { drop(watched.watch().await) };
        spawn_to(&remotes[0], watch).detach();
        Ok(Engine {
            shared: Arc::new(Shared {
                remotes,
                shown,
                next: AtomicUsize::new(0),
                gate: Arc::default(),
                choice,
                tally: Tally::default(),
                mounts,
                process,
                files: AtomicU64::new(0),
                _threads: Mutex::new(threads),
            }),
        })
    }
}

impl Engine {
    /// An engine with one thread, on the best backend that this machine offers.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new() -> io::Result<Self> {
        Builder::new().build_engine()
    }

    /// The engine of the process, which is built by the first call, with one thread.
    ///
    /// # Errors
    /// As [`new`](Engine::new); the next call tries again.
    pub fn global() -> io::Result<&'static Self> {
        if let Some(engine) = GLOBAL.get() {
            return Ok(engine);
        }
        let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        if GLOBAL.get().is_none() {
            GLOBAL.set(Self::new()?).ok();
        }
        Ok(GLOBAL.get().expect("set above, or by another thread before"))
    }

    /// Returns the backend that its threads use, and the reason.
    pub fn choice(&self) -> &Choice {
        &self.shared.choice
    }

    /// Returns the engine's state, and counters of its work so far.
    pub fn statistics(&self) -> Statistics {
        let live = self.shared.gate.live() as u64;
        Statistics { live, ..self.shared.tally.totals() }
    }

    /// Returns an inspector of its threads, for any thread; see [`inspect`].
    pub fn inspector(&self) -> Inspector {
        Inspector { shared: Arc::clone(&self.shared.shown) }
    }

    /// Returns the counters of its threads' drivers: the operations read inline, submitted, punted and so on.
    /// Each thread reports its present counts.
    ///
    /// # Errors
    /// `ECANCELED`: the engine was stopped.
    pub fn counters(&self) -> Request<Work<Vec<Counters>>> {
        let remotes = Arc::clone(&self.shared.remotes);
        self.run(move || async move {
            let mut counters = Vec::with_capacity(remotes.len());
            for remote in &*remotes {
                // One that has failed counts no more.
                let counted = spawn_to(remote, || async { current().driver.counters() }).await;
                counters.extend(counted);
            }
            counters
        })
    }

    /// Returns what the drivers of its threads did, together: their counters and, if the engine was built to
    /// [measure](Builder::latencies) them, the latencies of its operations by kind. A request that needs no
    /// wait is done on the caller's thread, and no operation.
    ///
    /// # Errors
    /// `ECANCELED`: the engine was stopped.
    pub fn metrics(&self) -> Request<Work<Metrics>> {
        let remotes = Arc::clone(&self.shared.remotes);
        self.run(move || async move {
            let mut sum = Metrics::default();
            for remote in &*remotes {
                let metrics = spawn_to(remote, || async { current().driver.metrics() }).await;
                metrics.iter().for_each(|metrics| sum.add(metrics));
            }
            sum
        })
    }

    /// Runs a future on a thread of the engine, where all of [`fs`](crate::fs) can be used. It is made there,
    /// by `start`, so that it need not be `Send`.
    ///
    /// # Errors
    /// `ECANCELED`: the engine was stopped.
    pub fn run<S, F, T>(&self, start: S) -> Request<Work<T>>
    where
        S: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        Request::new(Work { engine: self.clone(), start: Box::new(|| Box::pin(start())) })
    }

    /// Makes one request of many. What takes no wait is done at once; the rest goes to one thread of the
    /// engine, where all of it is under way at the same time. Resolves to what each came to, in their order.
    ///
    /// # Panics
    /// When one of them was polled before.
    pub fn submit_many<C: Call>(
        &self,
        requests: impl IntoIterator<Item = Request<C>>,
    ) -> Request<Many<C>> {
        let call = |mut request: Request<C>| request.take_new().expect("it was not begun");
        Request::new(Many::new(self, requests.into_iter().map(call)))
    }

    /// Lets no more requests in, which end with `ECANCELED` from now on, and resolves when those under way
    /// have ended. Files stay open, and can be read and written by [`wait`](Request::wait).
    pub async fn stop(&self) {
        self.shared.gate.stop().await;
    }

    /// As [`stop`](Engine::stop), and blocks the thread until it is done. Not for threads of the engine.
    pub fn stop_and_wait(&self) {
        block_on(self.stop());
    }

    /// Returns an error if it takes no requests, as far as is known without a pass.
    #[inline]
    fn check(&self) -> io::Result<()> {
        if self.shared.gate.is_closed() { Err(self.refuse(Errno::CANCELED.into())) } else { Ok(()) }
    }

    /// Lets a request in.
    fn pass(&self) -> io::Result<Pass> {
        if !self.shared.process.is_intact() {
            let message = "the engine's threads are those of the parent process";
            return Err(self.refuse(io::Error::other(message)));
        }
        let pass = Pass::new(self).ok_or_else(|| self.refuse(Errno::CANCELED.into()))?;
        self.shared.tally.count(|part| &part.submitted);
        Ok(pass)
    }

    #[cold]
    fn refuse(&self, error: io::Error) -> io::Error {
        self.shared.tally.count(|part| &part.refused);
        error
    }
}

impl Pass {
    /// Sends a call to one of the threads.
    fn send<C: Call>(self, call: C) -> JoinHandle<C::Output> {
        let shared = &self.engine.shared;
        let thread = shared.next.fetch_add(1, Ordering::Relaxed) % shared.remotes.len();
        let remote = Arc::clone(&shared.remotes[thread]);
        spawn_to(&remote, move || async move {
            let output = call.run(thread).await;
            drop(self);
            output
        })
    }
}

/// A future on a thread of the engine, and what it comes to. See [`Engine::run`].
pub struct Work<T> {
    engine: Engine,
    /// Makes the future, there.
    start: Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = T>>> + Send>,
}

impl<T: Send + 'static> Call for Work<T> {
    type Output = io::Result<T>;

    fn engine(&self) -> &Engine {
        &self.engine
    }

    async fn run(self, _thread: usize) -> Self::Output {
        Ok((self.start)().await)
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        Err(error)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("threads", &self.shared.remotes.len())
            .field("statistics", &self.statistics())
            .finish()
    }
}
