//! Time limits on futures.

use std::error::Error;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use crate::time::{Instant, Sleep, sleep, sleep_until};

/// Limits a future to `duration`, counted from this call.
///
/// Resolves to the future's output. When the time is up it resolves to [`Elapsed`], and the future is dropped
/// with it. The future is polled first, so it wins if both happen at once.
///
/// # Cancel safety
/// When the time is up, the future is dropped: its own cancel safety decides what is lost.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use std::future::{pending, ready};
/// use std::time::Duration;
/// use sakia::time::timeout;
///
/// sakia::block_on(async {
///     assert_eq!(timeout(Duration::from_secs(60), ready(7)).await, Ok(7));
///     assert!(timeout(Duration::from_millis(1), pending::<()>()).await.is_err());
/// });
/// ```
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Timeout<F::IntoFuture> {
    Timeout { future: future.into_future(), sleep: sleep(duration) }
}

/// Limits a future to `deadline`, as [`timeout`] does. The result panics when it has to wait outside of a
/// runtime.
///
/// # Examples
/// One deadline for several steps:
/// ```
/// use std::time::Duration;
///
/// use sakia::time::{now, sleep, timeout_at};
///
/// let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
/// runtime.block_on(async {
///     let deadline = now() + Duration::from_secs(10);
///     assert!(timeout_at(deadline, sleep(Duration::from_secs(7))).await.is_ok());
///     assert!(timeout_at(deadline, sleep(Duration::from_secs(7))).await.is_err());
/// });
/// # std::io::Result::Ok(())
/// ```
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
    Timeout { future: future.into_future(), sleep: sleep_until(deadline) }
}

pin_project! {
    /// A future and its deadline. From [`timeout`] and [`timeout_at`].
    ///
    /// # Examples
    /// See [`timeout()`](timeout()#examples).
    #[derive(Debug)]
    #[must_use = "a future does nothing unless awaited"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F> Timeout<F> {
    /// Returns the future, without its deadline.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia::time::timeout;
    ///
    /// # sakia::block_on(async {
    /// let limited = timeout(Duration::from_secs(60), async { 7 });
    /// assert_eq!(limited.into_inner().await, 7);
    /// # });
    /// ```
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(this.sleep).poll(cx).map(|()| Err(Elapsed { _private: () }))
    }
}

/// The error of a timeout: the time was up before the future was done.
///
/// # Examples
/// `?` makes an [`io::Error`] of it:
/// ```
/// use std::{future::pending, io, time::Duration};
///
/// use sakia::time::timeout;
///
/// # sakia::block_on(async {
/// let wait = async {
///     timeout(Duration::from_millis(1), pending::<()>()).await?;
///     io::Result::Ok(())
/// };
/// assert_eq!(wait.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed {
    _private: (),
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("time is up")
    }
}

impl Error for Elapsed {}

impl From<Elapsed> for io::Error {
    /// Converts to an error of kind [`TimedOut`](io::ErrorKind::TimedOut).
    fn from(elapsed: Elapsed) -> Self {
        Self::new(io::ErrorKind::TimedOut, elapsed)
    }
}
