//! Sets of tasks, whose outcomes come as the tasks end.

use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::panic::Location;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::executor::spawn_at;
use crate::fairness;
use crate::join::{JoinError, JoinHandle};

/// Tasks that belong together. Dropping the set aborts those that have not ended.
///
/// Belongs to one thread, as its tasks do. A request for the next outcome looks only at tasks that have ended
/// since the last one, so a set may be large.
///
/// # Examples
/// ```
/// sakia::block_on(async {
///     let mut set = sakia::JoinSet::new();
///     for number in 0..10 {
///         set.spawn(async move { number * number });
///     }
///     let mut sum = 0;
///     while let Some(square) = set.join_next().await {
///         sum += square.expect("no task panics");
///     }
///     assert_eq!(sum, 285);
/// });
/// ```
pub struct JoinSet<T> {
    members: FuturesUnordered<Member<T>>,
}

/// A task of the set.
enum Member<T> {
    Runs(JoinHandle<T>),
    /// It was told to end; resolves when its future is gone.
    Ends(Pin<Box<dyn Future<Output = Result<T, JoinError>>>>),
}

impl<T> Future for Member<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Runs(handle) => Pin::new(handle).poll(cx),
            Self::Ends(end) => end.as_mut().poll(cx),
        }
    }
}

impl<T> JoinSet<T> {
    /// Returns an empty set.
    ///
    /// # Examples
    /// See [`JoinSet`](JoinSet#examples).
    pub fn new() -> Self {
        Self { members: FuturesUnordered::new() }
    }

    /// Returns the number of tasks whose outcome was not taken yet.
    ///
    /// # Examples
    /// ```
    /// # sakia::block_on(async {
    /// let mut set = sakia::JoinSet::new();
    /// set.spawn(async {});
    /// assert_eq!(set.len(), 1);
    /// assert!(set.join_next().await.is_some());
    /// assert!(set.is_empty());
    /// # });
    /// ```
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns whether all outcomes were taken.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a task that was started elsewhere, such as with [`spawn_on`](crate::spawn_on).
    ///
    /// # Examples
    /// ```
    /// let runtime = sakia::Runtime::builder().threads(2).build()?;
    /// runtime.block_on(async {
    ///     let mut set = sakia::JoinSet::new();
    ///     for thread in 0..2 {
    ///         set.insert(sakia::spawn_on(thread, move || async move { thread }));
    ///     }
    ///     let mut threads = vec![];
    ///     while let Some(thread) = set.join_next().await {
    ///         threads.push(thread.unwrap());
    ///     }
    ///     threads.sort();
    ///     assert_eq!(threads, [0, 1]);
    /// });
    /// # std::io::Result::Ok(())
    /// ```
    pub fn insert(&mut self, handle: JoinHandle<T>) {
        self.members.push(Member::Runs(handle));
    }

    /// Lets all tasks go on by themselves; the set is empty then.
    ///
    /// # Examples
    /// ```
    /// let runtime = sakia::Runtime::new()?;
    /// runtime.block_on(async {
    ///     let mut set = sakia::JoinSet::new();
    ///     set.spawn(std::future::pending::<()>());
    ///     set.detach_all();
    ///     assert!(set.is_empty());
    /// });
    /// assert_eq!(runtime.live_tasks(), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn detach_all(&mut self) {
        self.members.clear();
    }

    /// Waits for the next task to end, whichever that is. `None` when the set is empty.
    ///
    /// # Cancel safety
    /// Dropping this future loses no outcome.
    ///
    /// # Errors
    /// The task panicked or was aborted.
    ///
    /// # Examples
    /// See [`JoinSet`](JoinSet#examples).
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| self.poll_join_next(cx)).await
    }

    /// Polls for the next task to end, as [`join_next`](Self::join_next) does.
    pub fn poll_join_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        if fairness::lets_others_run(cx) {
            return Poll::Pending;
        }
        let next = self.members.poll_next_unpin(cx);
        if next.is_ready() {
            fairness::count();
        }
        next
    }
}

impl<T: 'static> JoinSet<T> {
    /// Starts a task on the calling thread's runtime.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`JoinSet`](JoinSet#examples).
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F)
    where
        F: Future<Output = T> + 'static,
    {
        self.spawn_at(future, Location::caller());
    }

    /// As [`spawn`](JoinSet::spawn), with the place that is shown as the task's.
    pub(crate) fn spawn_at<F>(&mut self, future: F, spawned_at: &'static Location<'static>)
    where
        F: Future<Output = T> + 'static,
    {
        self.insert(spawn_at(future, spawned_at));
    }

    /// Aborts all tasks. They stay in the set: [`join_next`](Self::join_next) returns each, once its future
    /// is gone, as canceled, or with its value if it had ended before.
    ///
    /// # Examples
    /// ```
    /// sakia::block_on(async {
    ///     let mut set = sakia::JoinSet::new();
    ///     set.spawn(std::future::pending::<()>());
    ///     set.abort_all();
    ///     let outcome = set.join_next().await.expect("one task");
    ///     assert!(outcome.unwrap_err().is_canceled());
    ///     assert!(set.join_next().await.is_none());
    /// });
    /// ```
    pub fn abort_all(&mut self) {
        for member in std::mem::take(&mut self.members) {
            self.members.push(member.end());
        }
    }
}

impl<T: 'static> Member<T> {
    /// Tells the task to end.
    fn end(self) -> Self {
        let Self::Runs(handle) = self else { return self };
        let canceled = || Err(JoinError::canceled());
        let mut end = Box::pin(async move { handle.cancel().await.unwrap_or_else(canceled) });
        // The first poll cancels; later polls register the waker of the task that waits for the end.
        match end.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Self::Ends(Box::pin(ready(outcome))),
            Poll::Pending => Self::Ends(end),
        }
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        for member in pin!(&mut self.members).iter_mut() {
            if let Member::Runs(handle) = member {
                handle.abort();
            }
        }
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.len()).finish()
    }
}
