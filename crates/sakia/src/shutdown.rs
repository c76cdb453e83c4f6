//! Orderly shutdown: request it, let running work finish, give up after a while.
//!
//! 1. A [`Shutdown`] is triggered, by the program or by a [signal](on_signals). It stays so.
//! 2. Loops that take in work wait for [`requested`](Shutdown::requested) as well, and stop.
//! 3. Work under way holds a [`Guard`] each. [`drain`](Shutdown::drain) waits for the last one, at most
//!    until a deadline.
//!
//! Clones are the same shutdown; any thread may have one.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use event_listener::Event;

use crate::executor::spawn;
use crate::join::JoinHandle;
use crate::signal::{Signal, SignalKind};
use crate::task::{CancellationToken, wait_until};

/// Asks a program's parts to end, and waits until they have.
///
/// # Examples
/// ```
/// use sakia::shutdown::Shutdown;
///
/// sakia::block_on(async {
///     let shutdown = Shutdown::new();
///     let guard = shutdown.tracker().begin();
///     let asked = shutdown.clone();
///     sakia::spawn(async move {
///         asked.requested().await;
///         drop(guard); // the work is finished
///     })
///     .detach();
///     let limit = sakia::time::sleep(std::time::Duration::from_secs(30));
///     assert_eq!(shutdown.drain(limit).await, Ok(()));
/// });
/// ```
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    inner: Arc<Inner>,
    tracker: Tracker,
}

#[derive(Debug, Default)]
struct Inner {
    token: CancellationToken,
    /// The task that waits for signals, as long as the shutdown has an owner.
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let listening = self.listening.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(listening) = listening {
            listening.abort();
        }
    }
}

/// Returns a shutdown that any of these signals triggers. It listens from now on, until all clones are
/// dropped or the runtime ends; later signals of these kinds have no effect. See [`signal`](crate::signal)
/// for the effects of listening on the process.
///
/// # Errors
/// As for [`signal`](crate::signal::signal).
///
/// # Panics
/// Outside of a runtime, and on a simulated kernel.
///
/// # Examples
/// ```
/// use sakia::shutdown::on_signals;
/// use sakia::signal::SignalKind;
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
///     assert!(!shutdown.is_requested());
///     signal_hook::low_level::raise(SignalKind::TERMINATE.as_raw())?;
///     shutdown.requested().await;
///     assert!(shutdown.is_requested());
///     Ok(())
/// })
/// # }
/// ```
#[track_caller]
pub fn on_signals(kinds: impl IntoIterator<Item = SignalKind>) -> io::Result<Shutdown> {
    let kinds: Vec<SignalKind> = kinds.into_iter().collect();
    let mut signals = Signal::of_any(&kinds)?;
    let shutdown = Shutdown::new();
    let inner = Arc::downgrade(&shutdown.inner);
    let listening = spawn(async move {
        // An error means that the runtime ends, and this task with it.
        while signals.recv().await.is_ok() {
            let Some(inner) = inner.upgrade() else { break };
            inner.token.cancel();
        }
    });
    *shutdown.inner.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(listening);
    Ok(shutdown)
}

impl Shutdown {
    /// Returns a shutdown that is not triggered.
    ///
    /// # Examples
    /// See [`Shutdown`](Shutdown#examples).
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests the shutdown. Further calls change nothing.
    ///
    /// # Examples
    /// ```
    /// use sakia::shutdown::Shutdown;
    ///
    /// let shutdown = Shutdown::new();
    /// let same = shutdown.clone();
    /// shutdown.trigger();
    /// assert!(same.is_requested());
    /// ```
    pub fn trigger(&self) {
        self.inner.token.cancel();
    }

    /// Returns whether the shutdown was requested.
    ///
    /// # Examples
    /// See [`Shutdown::trigger`].
    pub fn is_requested(&self) -> bool {
        self.inner.token.is_canceled()
    }

    /// Waits until the shutdown is requested.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait.
    ///
    /// # Examples
    /// See [`Shutdown`](Shutdown#examples).
    pub async fn requested(&self) {
        self.inner.token.canceled().await;
    }

    /// Returns the counter of the work that [`drain`](Shutdown::drain) waits for.
    ///
    /// # Examples
    /// See [`Shutdown`](Shutdown#examples).
    pub fn tracker(&self) -> Tracker {
        self.tracker.clone()
    }

    /// Requests the shutdown, and waits until no work is counted any more, at most until `deadline` is ready:
    /// a [`sleep`](crate::time::sleep), or a second signal. Work that begins meanwhile is waited for too.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait; the shutdown stays requested. Call it again.
    ///
    /// # Errors
    /// The amount of work that still ran at the deadline. It goes on; call `drain` again, or exit.
    ///
    /// # Examples
    /// See [`Shutdown`](Shutdown#examples).
    pub async fn drain(&self, deadline: impl Future<Output = ()>) -> Result<(), StillRunning> {
        self.trigger();
        let mut ended = pin!(self.tracker.ended());
        let mut deadline = pin!(deadline);
        poll_fn(|cx| {
            if ended.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let still_running = || StillRunning { count: self.tracker.running() };
            deadline.as_mut().poll(cx).map(|()| Err(still_running()))
        })
        .await
    }
}

/// Counts work under way. Clones count the same.
///
/// # Examples
/// ```
/// let tracker = sakia::shutdown::Tracker::default();
/// let guard = tracker.begin();
/// assert_eq!(tracker.running(), 1);
/// drop(guard);
/// assert_eq!(tracker.running(), 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    running: Arc<Running>,
}

#[derive(Debug, Default)]
struct Running {
    count: AtomicUsize,
    /// Notified when the count has become 0.
    ended: Event,
}

impl Tracker {
    /// Counts a piece of work until the guard is dropped.
    ///
    /// # Examples
    /// See [`Tracker`](Tracker#examples).
    pub fn begin(&self) -> Guard {
        self.running.count.fetch_add(1, Ordering::Relaxed);
        Guard { running: Arc::clone(&self.running) }
    }

    /// Counts `future` as a piece of work, from now until it is done or dropped.
    ///
    /// # Examples
    /// ```
    /// # sakia::block_on(async {
    /// let tracker = sakia::shutdown::Tracker::default();
    /// let work = tracker.track(async { 7 });
    /// assert_eq!(tracker.running(), 1);
    /// assert_eq!(work.await, 7);
    /// assert_eq!(tracker.running(), 0);
    /// # });
    /// ```
    pub fn track<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let guard = self.begin();
        async move {
            let output = future.await;
            drop(guard);
            output
        }
    }

    /// Returns the number of pieces of work under way.
    ///
    /// # Examples
    /// See [`Tracker`](Tracker#examples).
    pub fn running(&self) -> usize {
        self.running.count.load(Ordering::Acquire)
    }

    /// Waits until no work is under way.
    async fn ended(&self) {
        wait_until(&self.running.ended, || self.running() == 0).await;
    }
}

/// A piece of work under way. See [`Tracker::begin`].
///
/// # Examples
/// See [`Tracker`](Tracker#examples).
#[derive(Debug)]
#[must_use = "the work is counted as long as the guard lives"]
pub struct Guard {
    running: Arc<Running>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The effects of the work become visible to a thread that reads the 0 and continues.
        let was_last = self.running.count.fetch_sub(1, Ordering::AcqRel) == 1;
        if was_last {
            self.running.ended.notify(usize::MAX);
        }
    }
}

/// The error of [`Shutdown::drain`]: work went on after the deadline.
///
/// # Examples
/// ```
/// use std::future::ready;
///
/// use sakia::shutdown::Shutdown;
///
/// # sakia::block_on(async {
/// let shutdown = Shutdown::new();
/// let _guard = shutdown.tracker().begin();
/// let at_once = ready(());
/// assert_eq!(shutdown.drain(at_once).await.unwrap_err().count, 1);
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillRunning {
    /// The number of pieces of work.
    pub count: usize,
}

impl fmt::Display for StillRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "still running at the deadline: {}", self.count)
    }
}

impl std::error::Error for StillRunning {}
