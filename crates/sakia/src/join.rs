//! Waiting for a task, and ending it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use sakia_ring::may_be_forked;
use sakia_task::Task;

pub(crate) use sakia_task::Outcome;

/// Awaits a task. Dropping it lets the task go on by itself.
///
/// # Cancel safety
/// Dropping it, for example as a branch of [`select!`](crate::select), lets the task go on, and loses its
/// value. A `&mut` to it may be awaited again and again.
///
/// # Examples
/// ```
/// # sakia::block_on(async {
/// let task = sakia::spawn(async { "done" });
/// assert_eq!(task.await.unwrap(), "done");
///
/// let endless = sakia::spawn(std::future::pending::<()>());
/// endless.abort();
/// assert!(endless.await.unwrap_err().is_canceled());
/// # });
/// ```
pub struct JoinHandle<T> {
    task: Task<T>,
}

impl<T> JoinHandle<T> {
    #[inline(always)]
    pub(crate) fn new(task: Task<T>) -> Self {
        Self { task }
    }

    /// Lets the task go on by itself, as dropping the handle does.
    ///
    /// # Examples
    /// ```
    /// # sakia::block_on(async {
    /// let (sender, receiver) = async_channel::bounded(1);
    /// sakia::spawn(async move { sender.send("from a task without a handle").await }).detach();
    /// assert_eq!(receiver.recv().await, Ok("from a task without a handle"));
    /// # });
    /// ```
    pub fn detach(self) {}

    /// Ends the task: its future is dropped in its current state, at the latest when its thread gets to it.
    /// Then the handle resolves to [`JoinError::is_canceled`], even if the task has returned a value: for
    /// that see [`cancel`](Self::cancel).
    ///
    /// # Examples
    /// See [`JoinHandle`](JoinHandle#examples).
    pub fn abort(&self) {
        self.task.abort();
    }

    /// Ends the task and waits until its future is dropped. `Some` if it was done already, unless it was
    /// [aborted](Self::abort) before.
    ///
    /// # Cancel safety
    /// Once this future was polled, dropping it ends the wait only. Before that it drops the handle, and the
    /// task goes on.
    ///
    /// # Examples
    /// ```
    /// use std::rc::Rc;
    ///
    /// # sakia::block_on(async {
    /// let shared = Rc::new(());
    /// let held = Rc::clone(&shared);
    /// let task = sakia::spawn(async move {
    ///     std::future::pending::<()>().await;
    ///     drop(held);
    /// });
    /// assert!(task.cancel().await.is_none());
    /// assert_eq!(Rc::strong_count(&shared), 1, "its future is gone");
    /// # });
    /// ```
    pub async fn cancel(self) -> Option<Result<T, JoinError>> {
        self.task.close();
        self.task.await.map(|outcome| outcome.map_err(JoinError::panicked))
    }

    /// Returns whether the task has ended, and its future is gone.
    ///
    /// # Examples
    /// ```
    /// # sakia::block_on(async {
    /// let task = sakia::spawn(async {});
    /// assert!(!task.is_finished());
    /// sakia::yield_now().await;
    /// assert!(task.is_finished());
    /// # });
    /// ```
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Returns whether [`abort`](Self::abort) was called.
    pub(crate) fn is_aborted(&self) -> bool {
        self.task.is_aborted()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.task).poll(cx) {
            Poll::Ready(Some(Ok(value))) => Poll::Ready(Ok(value)),
            Poll::Ready(Some(Err(payload))) => Poll::Ready(Err(JoinError::panicked(payload))),
            Poll::Ready(None) => Poll::Ready(Err(JoinError::canceled())),
            // A child of a fork has none of its parent's threads.
            Poll::Pending if may_be_forked() && self.task.is_inherited() => {
                Poll::Ready(Err(JoinError::forked()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}

/// The reason why a task has no value: it was canceled, or it panicked.
///
/// # Examples
/// ```
/// # sakia::block_on(async {
/// let numbers = Vec::<u8>::new();
/// let error = sakia::spawn(async move { numbers[0] }).await.unwrap_err();
/// assert!(error.is_panic() && !error.is_canceled());
/// # });
/// ```
pub struct JoinError {
    cause: Cause,
}

enum Cause {
    Canceled,
    /// The task was started by a process that this one was forked from.
    Forked,
    /// The payload of the task's panic. The lock only makes the error `Sync`, as errors are expected to be;
    /// no thread ever waits for it.
    Panic(Mutex<Box<dyn Any + Send>>),
}

impl JoinError {
    pub(crate) fn canceled() -> Self {
        Self { cause: Cause::Canceled }
    }

    #[cold]
    pub(crate) fn forked() -> Self {
        Self { cause: Cause::Forked }
    }

    pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Self {
        Self { cause: Cause::Panic(Mutex::new(payload)) }
    }

    /// Returns whether the task was aborted, or its runtime ended first, or this is a forked child and the
    /// task is its parent's: then the text of the error says so.
    ///
    /// # Examples
    /// See [`JoinError`](JoinError#examples).
    pub fn is_canceled(&self) -> bool {
        !self.is_panic()
    }

    /// Returns whether this is a forked child, and the task its parent's.
    pub(crate) fn is_forked(&self) -> bool {
        matches!(self.cause, Cause::Forked)
    }

    /// Returns whether the task panicked.
    ///
    /// # Examples
    /// See [`JoinError`](JoinError#examples).
    pub fn is_panic(&self) -> bool {
        matches!(self.cause, Cause::Panic(_))
    }

    /// Resumes the task's panic; returns the error if the task was canceled.
    ///
    /// # Examples
    /// ```
    /// # sakia::block_on(async {
    /// let endless = sakia::spawn(std::future::pending::<()>());
    /// endless.abort();
    /// // A panic of the task would be one of this thread; being canceled is none.
    /// let error = endless.await.unwrap_err().resume_panic();
    /// assert!(error.is_canceled());
    /// # });
    /// ```
    pub fn resume_panic(self) -> Self {
        match self.cause {
            Cause::Panic(payload) => {
                resume_unwind(payload.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            _ => self,
        }
    }

    /// Returns the panic's message, if it has one.
    fn message(&self) -> Option<String> {
        let Cause::Panic(payload) = &self.cause else { return None };
        let payload = payload.lock().unwrap_or_else(PoisonError::into_inner);
        let text = payload.downcast_ref::<&'static str>().map(|&text| text.to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned())
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cause, self.message()) {
            (Cause::Canceled, _) => write!(f, "the task was canceled"),
            (Cause::Forked, _) => write!(
                f,
                "the task was started before a fork: its thread is the parent process's, and this forked \
                 child must start its own"
            ),
            (Cause::Panic(_), None) => write!(f, "the task panicked"),
            (Cause::Panic(_), Some(message)) => write!(f, "the task panicked: {message}"),
        }
    }
}

impl std::error::Error for JoinError {}

pin_project! {
    /// Contains a panic of the future or of its destructor, where futures are polled without tasks of their
    /// own.
    pub(crate) struct Contain<F> {
        // `None` only while this is dropped.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for Contain<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut future = this.project().future;
            // No caller is left to report it to: the message of the panic hook is the only trace.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| future.set(None))) {
                std::mem::forget(payload); // its destructor may panic too
            }
        }
    }
}

impl<F> Contain<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Some(future) }
    }
}

impl<F: Future> Future for Contain<F> {
    type Output = Outcome<F::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.project().future.as_pin_mut().expect("it is not being dropped");
        // The future is never polled again after a panic, so no code sees it half-changed.
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(payload)),
        }
    }
}
