//! Sleeping until a deadline.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::executor::{Local, current};
use crate::fairness;
use crate::time::Instant;
use crate::time::timers::Timers;

/// Waits for `duration`, counted from this call.
///
/// A duration beyond the clock's range never ends.
///
/// # Cancel safety
/// Dropping the future cancels the timer. In a loop around [`select!`](crate::select) a new `sleep` begins
/// anew each time: keep one, pinned, and await it by `&mut`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use sakia::time::{now, sleep};
///
/// sakia::block_on(async {
///     let begin = now();
///     sleep(Duration::from_millis(5)).await;
///     assert!(begin.elapsed() >= Duration::from_millis(5));
/// });
/// ```
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(Instant::now().saturating_add(duration))
}

/// Waits until `deadline`.
///
/// The future panics when polled outside of a runtime.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia::time::{now, sleep_until};
///
/// let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
/// runtime.block_on(async {
///     let deadline = now() + Duration::from_secs(60);
///     sleep_until(deadline).await;
///     assert_eq!(now(), deadline);
/// });
/// # std::io::Result::Ok(())
/// ```
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, is_over: false, timer: None }
}

/// Resolves at a deadline. From [`sleep`] and [`sleep_until`].
///
/// It never resolves early, and usually less than 1 ms late. Timers of the same millisecond fire in the order
/// in which they were first polled. Dropping it cancels the timer.
///
/// It belongs to the runtime thread on which it is polled, and panics when polled outside of one.
///
/// # Examples
/// A watchdog, put off by work:
/// ```
/// use std::time::Duration;
///
/// use sakia::time::{now, sleep};
///
/// let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
/// runtime.block_on(async {
///     let begin = now();
///     let mut watchdog = std::pin::pin!(sleep(Duration::from_secs(5)));
///     watchdog.as_mut().reset(begin + Duration::from_secs(8));
///     watchdog.as_mut().await;
///     assert_eq!(begin.elapsed(), Duration::from_secs(8));
///     assert!(watchdog.is_elapsed());
/// });
/// # std::io::Result::Ok(())
/// ```
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep {
    deadline: Instant,
    /// Set when the deadline was seen to have passed.
    is_over: bool,
    /// `Some` from the first poll that has to wait until the end.
    timer: Option<Timer>,
}

/// A timer that is set, or has fired.
struct Timer {
    timers: Rc<Timers>,
    key: u32,
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.timers.remove(self.key);
    }
}

impl Sleep {
    /// Returns the deadline.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia::time::{now, sleep};
    ///
    /// # sakia::block_on(async {
    /// let minute = Duration::from_secs(60);
    /// assert!(sleep(minute).deadline() <= now() + minute);
    /// # });
    /// ```
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns whether it has resolved.
    ///
    /// # Examples
    /// See [`Sleep`](Sleep#examples).
    pub fn is_elapsed(&self) -> bool {
        self.is_over
    }

    /// Sets another deadline, also after it has resolved. A task that already waits for it is woken at the
    /// new deadline, not at the old one.
    ///
    /// # Examples
    /// See [`Sleep`](Sleep#examples).
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        self.is_over = false;
        if is_endless(deadline) {
            self.timer = None;
        } else if let Some(Timer { timers, key }) = &self.timer {
            timers.reset(*key, deadline.since);
        }
    }

    /// Polls for the first time, or for the first time on another runtime thread.
    fn start(&mut self, local: &Local, cx: &Context<'_>) -> Poll<()> {
        self.timer = None;
        if self.deadline.since <= local.now() {
            if fairness::lets_others_run(cx) {
                return Poll::Pending;
            }
            fairness::count();
            self.is_over = true;
            return Poll::Ready(());
        }
        if !is_endless(self.deadline) {
            let timers = Rc::clone(&local.timers);
            let key = timers.insert(self.deadline.since, cx.waker().clone());
            self.timer = Some(Timer { timers, key });
        }
        Poll::Pending
    }
}

/// Returns whether the deadline is too far away ever to be reached.
fn is_endless(deadline: Instant) -> bool {
    deadline.since == Duration::MAX
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_over {
            return Poll::Ready(());
        }
        let local = current();
        match &self.timer {
            Some(Timer { timers, key }) if Rc::ptr_eq(timers, &local.timers) => {
                if !timers.poll(*key, cx.waker()) {
                    return Poll::Pending;
                }
                self.timer = None;
                self.is_over = true;
                Poll::Ready(())
            }
            _ => self.start(&local, cx),
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline)
            .field("is_elapsed", &self.is_over)
            .finish()
    }
}
