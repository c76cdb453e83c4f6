//! The engine below other runtimes and plain threads: one or more threads with a ring each, which do the
//! file operations of a whole process.
//!
//! All threads share an [`Engine`], which offers [`Request`]s. A request that is awaited, on any executor, is
//! done at once on the caller's thread if the page cache has the data, and on a thread of the engine
//! otherwise. A plain thread that [`wait`](Request::wait)s for a request makes the plain call itself.
//! Operations that are plain calls only, such as making a directory, are awaited from a thread of the pool
//! for blocking code.
//!
//! 1. A request that has to leave its thread goes into the inbox of an engine thread, which is woken if it
//!    sleeps. That thread takes all requests that have queued meanwhile, and submits them together.
//! 2. There the request is a task like any other of the runtime, with its rules for ring and plain call.
//! 3. Its result goes back through the task's handle, which wakes the caller's task. Results of operations
//!    that the kernel completed together are told together.
//!
//! [`Engine::stop`] refuses new requests and waits for those under way. The threads end with the last clone.

mod blocking;
mod file;
mod gate;
mod many;
mod mounts;
mod now;
mod pace;
mod paths;
pub mod queue;
mod request;
mod tally;

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use sakia_driver::{Choice, Counters, LateChoice, Metrics, PathCalls};
use sakia_ring::{PerProcess, Process};

pub use self::blocking::Blocking;
pub use self::file::{
    Append, AppendDurable, Commit, File, GroupCommit, ReadAt, ReadShared, ReadVectoredAt, SyncFile,
    WriteAt, WriteDurableAt, WriteVectoredAt,
};
use self::gate::{Gate, Pass};
pub use self::many::Many;
pub use self::paths::{Open, ReadDir, ReadFile, ReadText};
pub use self::queue::Queue;
use self::request::error_of_lost;
pub use self::request::{Call, Request};
use self::tally::Tally;
use crate::executor::{current, is_current, spawn_to, tell_results};
use crate::inspect::{self, Inspector};
use crate::join::{JoinError, JoinHandle};
use crate::parked::block_on;
use crate::remote::Remote;
use crate::runtime::{Builder, Started, Thread};

/// Items that the engine shares with other crates of this workspace. Not part of the public interface.
#[doc(hidden)]
pub mod __private {
    pub use sakia_ring::PerProcess;

    pub use crate::error::copy_error;
    pub use crate::halves::{Half, Halves};
    pub use crate::io::transfer::repeated;
    pub use crate::parked::block_on;
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
    /// Selects the thread that gets the next request.
    next: AtomicUsize,
    gate: Arc<Gate>,
    choice: LateChoice,
    tally: Tally,
    paths: Arc<PathCalls>,
    /// The process that has the threads: a forked child has none of them.
    process: Process,
    /// The number of the next file.
    files: AtomicU64,
    /// The tasks that perform the requests of queues.
    servers: queue::Servers,
    /// The place that built it, which is that of tasks that no request asked for.
    built_at: &'static Location<'static>,
    /// Ended and joined when dropped.
    _threads: Mutex<Vec<Thread>>,
}

/// The state of an engine, and counters of its work so far.
///
/// # Examples
/// ```
/// use sakia::engine::Engine;
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-statistics-{}", std::process::id()));
/// let engine = Engine::new()?;
/// engine.write(&path, "text").wait()?;
/// sakia::block_on(engine.read(&path))?;
/// let statistics = engine.statistics();
/// assert_eq!((statistics.waited, statistics.refused), (1, 0));
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests that were done on the thread that awaited them, without a wait as a rule.
    pub now: u64,
    /// Requests that a plain thread waited for.
    pub waited: u64,
    /// Requests that went to the engine's threads, or to the pool for blocking code.
    pub submitted: u64,
    /// Of these, those that are under way.
    pub live: u64,
    /// Requests that were refused: made after the stop, or in a forked child.
    pub refused: u64,
}

/// The engine of the process. The lock is held while it is built.
static GLOBAL: PerProcess<(OnceLock<Engine>, Mutex<()>)> = PerProcess::new();

impl Builder {
    /// Builds an engine with as many threads as [`threads`](Builder::threads) says, none of which is the
    /// caller's.
    ///
    /// # Errors
    /// As [`build`](Builder::build). `InvalidInput`: time is to be virtual.
    ///
    /// # Examples
    /// ```
    /// let engine = sakia::Runtime::builder().threads(2).latencies(true).build_engine()?;
    /// let counters = engine.counters().wait()?;
    /// assert_eq!(counters.len(), 2, "each thread's");
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn build_engine(self) -> io::Result<Engine> {
        if self.virtual_time {
            let message = "virtual time is for runtimes with one thread";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let process = Process::current();
        let paths = Arc::new(PathCalls::new());
        let Started { threads, remotes, shown, choice } = Thread::start_all(&self)?;
        let watched = Arc::clone(&paths);
        // If the watch fails, the mounts known so far stay in force.
        let watch = move || async move { drop(mounts::watch(&watched).await) };
        let built_at = Location::caller();
        spawn_to(&remotes[0], watch, built_at).detach();
        Ok(Engine {
            shared: Arc::new(Shared {
                remotes,
                shown,
                next: AtomicUsize::new(0),
                gate: Arc::default(),
                choice,
                tally: Tally::default(),
                paths,
                process,
                files: AtomicU64::new(0),
                servers: queue::Servers::default(),
                built_at,
                _threads: Mutex::new(threads),
            }),
        })
    }
}

impl Engine {
    /// Builds an engine with one thread, on the best backend that this machine offers.
    ///
    /// # Errors
    /// As [`Builder::build`].
    ///
    /// # Examples
    /// See [`Engine`](Engine#examples).
    #[track_caller]
    pub fn new() -> io::Result<Self> {
        Builder::new().build_engine()
    }

    /// Returns the engine of the process. The first call builds it, with one thread. A forked child has an
    /// engine of its own.
    ///
    /// # Errors
    /// As [`new`](Engine::new); the next call tries again.
    ///
    /// # Examples
    /// ```no_run
    /// use sakia::Engine;
    ///
    /// // A library and its user share the threads, without telling each other.
    /// let engine = Engine::global()?;
    /// let name = engine.read_to_string("/proc/self/comm").wait()?;
    /// assert!(name.ends_with('\n'));
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn global() -> io::Result<&'static Self> {
        let (global, building) = GLOBAL.get_or_init(Default::default);
        if let Some(engine) = global.get() {
            return Ok(engine);
        }
        let _building = building.lock().unwrap_or_else(PoisonError::into_inner);
        if global.get().is_none() {
            global.set(Self::new()?).ok();
        }
        Ok(global.get().expect("set above, or by another thread before"))
    }

    /// Returns the backend that its threads use, and the reason.
    ///
    /// # Examples
    /// See [`Runtime::choice`](crate::Runtime::choice).
    pub fn choice(&self) -> &Choice {
        self.shared.choice.get().expect("set before the engine was there")
    }

    /// Returns the engine's state, and counters of its work so far.
    ///
    /// # Examples
    /// See [`Statistics`](Statistics#examples).
    pub fn statistics(&self) -> Statistics {
        let live = self.shared.gate.live() as u64;
        Statistics { live, ..self.shared.tally.totals() }
    }

    /// Returns an inspector of its threads, for any thread; see [`inspect`].
    pub fn inspector(&self) -> Inspector {
        Inspector { shared: Arc::clone(&self.shared.shown) }
    }

    /// Returns the counters of its threads' drivers: operations read inline, submitted, punted and so on.
    /// Each thread reports its present counts.
    ///
    /// # Errors
    /// `ECANCELED`: the engine was stopped.
    ///
    /// # Examples
    /// See [`Builder::build_engine`].
    #[track_caller]
    pub fn counters(&self) -> Request<Work<Vec<Counters>>> {
        let (remotes, asked_at) = (Arc::clone(&self.shared.remotes), Location::caller());
        self.run(move || async move {
            let mut counters = Vec::with_capacity(remotes.len());
            for remote in &*remotes {
                // A thread that has failed is left out.
                let count = || async { current().driver.counters() };
                counters.extend(spawn_to(remote, count, asked_at).await);
            }
            counters
        })
    }

    /// Returns the sums over the drivers of its threads: their counters and, if the engine was built to
    /// [measure](Builder::latencies) them, the latencies of operations by kind. A request that needs no wait
    /// is done on the caller's thread, and does not count as an operation.
    ///
    /// # Errors
    /// `ECANCELED`: the engine was stopped.
    ///
    /// # Examples
    /// ```
    /// use sakia::Runtime;
    /// use sakia_driver::OpKind;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-engine-metrics-{}", std::process::id()));
    /// let engine = Runtime::builder().latencies(true).build_engine()?;
    /// let file = engine.create(&path).wait()?;
    /// // On a thread of the engine, since it was not even tried on this one.
    /// file.sync_data().submit().wait()?;
    /// let metrics = engine.metrics().wait()?;
    /// assert_eq!(metrics.latency(OpKind::Fsync).expect("there was one").count(), 1);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn metrics(&self) -> Request<Work<Metrics>> {
        let (remotes, asked_at) = (Arc::clone(&self.shared.remotes), Location::caller());
        self.run(move || async move {
            let mut sum = Metrics::default();
            for remote in &*remotes {
                let measure = || async { current().driver.metrics() };
                let metrics = spawn_to(remote, measure, asked_at).await;
                metrics.iter().for_each(|metrics| sum.add(metrics));
            }
            sum
        })
    }

    /// Runs a future on a thread of the engine, where all of [`fs`](crate::fs) can be used. `start` makes the
    /// future on that thread, so that it need not be `Send`.
    ///
    /// # Errors
    /// `ECANCELED`: the engine was stopped.
    ///
    /// # Examples
    /// On a thread of the engine there is all of [`fs`](crate::fs):
    /// ```
    /// use sakia::{Engine, fs};
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-engine-run-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// let engine = Engine::new()?;
    /// let path = dir.join("saved");
    /// let to = path.clone();
    /// engine.run(|| async move { fs::save(to, "as a whole").await }).wait()??;
    /// assert_eq!(std::fs::read(&path)?, b"as a whole");
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn run<S, F, T>(&self, start: S) -> Request<Work<T>>
    where
        S: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        Request::new(Work { engine: self.clone(), start: Box::new(|| Box::pin(start())) })
    }

    /// Makes one request of many. Those that need no wait are done at once; the rest goes to one thread of
    /// the engine, where all of them are under way at the same time. Resolves to the results, in the order of
    /// the requests.
    ///
    /// # Panics
    /// When one of the requests was polled before.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// let engine = Engine::new()?;
    /// let paths = ["/proc/self/comm", "/proc/self/stat", "/proc/self/missing"];
    /// let requests = paths.map(|path| engine.read(path));
    /// let contents = sakia::block_on(engine.submit_many(requests));
    /// assert!(contents[0].is_ok() && contents[1].is_ok() && contents[2].is_err());
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn submit_many<C: Call>(
        &self,
        requests: impl IntoIterator<Item = Request<C>>,
    ) -> Request<Many<C>> {
        let call = |mut request: Request<C>| request.take_new().expect("it was not begun");
        Request::new(Many::new(self, requests.into_iter().map(call)))
    }

    /// Refuses new requests, which end with `ECANCELED` from now on, and resolves when those under way have
    /// ended. Files stay open, and can be read and written by [`wait`](Request::wait).
    ///
    /// A request whose future was dropped is canceled, and not waited for: a call that the kernel had begun
    /// may end later. To be sure that no write comes after the stop, let the writes end before it.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait. Once it was polled, the engine refuses requests.
    ///
    /// # Examples
    /// See [`Engine::stop_and_wait`].
    pub async fn stop(&self) {
        // In a forked child none of the requests is under way.
        if self.shared.process.is_intact() {
            self.shared.gate.stop().await;
        }
    }

    /// As [`stop`](Engine::stop), but blocks the thread until it is done. Threads of the engine must not call
    /// it.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// let engine = Engine::new()?;
    /// engine.stop_and_wait();
    /// let error = sakia::block_on(engine.metadata("/nowhere")).unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn stop_and_wait(&self) {
        block_on(self.stop());
    }

    /// Returns an error if the engine is known to refuse requests.
    #[inline]
    fn check(&self) -> io::Result<()> {
        if self.shared.gate.is_closed() {
            return Err(self.refuse(Errno::CANCELED.into()));
        }
        self.check_process()
    }

    /// Returns an error in a forked child of the process that has the engine's threads.
    #[inline]
    fn check_process(&self) -> io::Result<()> {
        if self.shared.process.is_intact() {
            return Ok(());
        }
        let message =
            "the engine's threads are the parent process's: a forked child must make its own";
        Err(self.refuse(io::Error::other(message)))
    }

    /// Returns whether the calling thread is one of the engine's.
    fn is_on_own_thread(&self) -> bool {
        self.shared.remotes.iter().any(is_current)
    }

    /// Admits a request.
    fn pass(&self) -> io::Result<Pass> {
        self.check_process()?;
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
    fn send<C: Call>(self, call: C, asked_at: &'static Location<'static>) -> JoinHandle<C::Output> {
        let shared = &self.engine.shared;
        let thread = shared.next.fetch_add(1, Ordering::Relaxed) % shared.remotes.len();
        let remote = Arc::clone(&shared.remotes[thread]);
        let start = move || async move {
            // It may begin with a plain call that takes long: results that are there do not wait for it.
            tell_results();
            let output = call.run(thread).await;
            drop(self);
            output
        };
        spawn_to(&remote, start, asked_at)
    }
}

/// A future on a thread of the engine, and its result. See [`Engine::run`].
pub struct Work<T> {
    engine: Engine,
    /// Makes the future, on that thread.
    start: Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = T>>> + Send>,
}

impl<T: Send + 'static> Call for Work<T> {
    type Output = io::Result<T>;

    fn engine(&self) -> &Engine {
        &self.engine
    }

    async fn run(self, _thread: usize) -> Self::Output {
        // Foreign code may take long, too.
        let mut future = (self.start)();
        let output = poll_fn(|cx| {
            tell_results();
            future.as_mut().poll(cx)
        });
        Ok(output.await)
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        Err(error)
    }

    fn lost(error: JoinError) -> Self::Output {
        Err(error_of_lost(error))
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
