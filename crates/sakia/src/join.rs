//! Waiting for a task, and ending it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use sakia_task::Task;

pub(crate) use sakia_task::Outcome;

/// Awaits a task. Dropping it lets the task go on by itself.
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
    /// The handle resolves to [`JoinError::is_canceled`] from now on, and counts as
    /// [finished](Self::is_finished), though the future may exist for a while. To wait for its end, call
    /// [`cancel`](Self::cancel) instead.
    ///
    /// # Examples
    /// See [`JoinHandle`](JoinHandle#examples).
    pub fn abort(&self) {
        self.task.abort();
    }

    /// Ends the task and waits until its future is dropped. `Some` if it was done already. After
    /// [`abort`](Self::abort) there is nothing left to wait for: `None` at once.
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

    /// Returns whether the task has ended or was [aborted](Self::abort).
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
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.task).poll(cx).map(|outcome| match outcome {
            Some(Ok(value)) => Ok(value),
            Some(Err(payload)) => Err(JoinError::panicked(payload)),
            None => Err(JoinError::canceled()),
        })
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
    /// The payload of the task's panic; `None` when it was canceled. The lock only makes the error `Sync`, as
    /// errors are expected to be; no thread ever waits for it.
    panic: Option<Mutex<Box<dyn Any + Send>>>,
}

impl JoinError {
    pub(crate) fn canceled() -> Self {
        Self { panic: None }
    }

    pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Self {
        Self { panic: Some(Mutex::new(payload)) }
    }

    /// Returns whether the task was aborted, or its runtime ended first.
    ///
    /// # Examples
    /// See [`JoinError`](JoinError#examples).
    pub fn is_canceled(&self) -> bool {
        self.panic.is_none()
    }

    /// Returns whether the task panicked.
    ///
    /// # Examples
    /// See [`JoinError`](JoinError#examples).
    pub fn is_panic(&self) -> bool {
        self.panic.is_some()
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
        match self.panic {
            Some(payload) => {
                resume_unwind(payload.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            None => self,
        }
    }

    /// Returns the panic's message, if it has one.
    fn message(&self) -> Option<String> {
        let payload = self.panic.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
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
        match (self.is_panic(), self.message()) {
            (false, _) => write!(f, "the task was canceled"),
            (true, None) => write!(f, "the task panicked"),
            (true, Some(message)) => write!(f, "the task panicked: {message}"),
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
