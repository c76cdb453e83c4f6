//! Ticks at regular intervals.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::time::{Instant, Sleep, sleep_until};

/// Ticks now, and then every `period`.
///
/// # Panics
/// Outside of a runtime, and when `period` is zero.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use sakia::time::{interval, now};
///
/// let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
/// runtime.block_on(async {
///     let begin = now();
///     let mut hours = interval(Duration::from_secs(3600));
///     for count in 0..10 {
///         assert_eq!(hours.tick().await - begin, count * hours.period());
///     }
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn interval(period: Duration) -> Interval {
    interval_at(Instant::now(), period)
}

/// Ticks at `start`, and then every `period`. Its ticks panic outside of a runtime.
///
/// # Panics
/// When `period` is zero.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia::time::{interval_at, now};
///
/// let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
/// runtime.block_on(async {
///     let (begin, second) = (now(), Duration::from_secs(1));
///     let mut ticks = interval_at(begin + second, second);
///     assert_eq!(ticks.tick().await, begin + second);
///     assert_eq!(ticks.tick().await, begin + 2 * second);
/// });
/// # std::io::Result::Ok(())
/// ```
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval needs a period");
    Interval { sleep: sleep_until(start), period, missed: MissedTicks::default() }
}

/// The behavior of an [`Interval`] when a tick is taken so late that the next one is due already.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia::time::{MissedTicks, interval, now, sleep};
///
/// let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
/// runtime.block_on(async {
///     let begin = now();
///     let second = Duration::from_secs(1);
///     let mut ticks = interval(second);
///     ticks.set_missed_ticks(MissedTicks::Skip);
///     ticks.tick().await;
///     sleep(second * 7 / 2).await;
///     // The ticks at 2 and 3 seconds are left out.
///     assert_eq!(ticks.tick().await, begin + second);
///     assert_eq!(ticks.tick().await, begin + 4 * second);
/// });
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedTicks {
    /// The missed ticks come at once, until it has caught up.
    #[default]
    Burst,
    /// The schedule restarts: the next tick is a period after the late one was taken.
    Delay,
    /// Missed ticks are skipped: the next tick is the next regular one in the future.
    Skip,
}

/// Ticks at regular intervals. From [`interval`] and [`interval_at`].
///
/// # Examples
/// See [`interval()`](interval()#examples).
#[derive(Debug)]
pub struct Interval {
    /// Waits for the next tick.
    sleep: Sleep,
    period: Duration,
    missed: MissedTicks,
}

impl Interval {
    /// Waits for the next tick, and returns the time at which it was due.
    ///
    /// # Cancel safety
    /// Dropping the future loses no tick: the next call returns it.
    ///
    /// # Examples
    /// See [`interval()`](interval()#examples).
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Polls for the next tick, as [`tick`](Interval::tick) does; for futures written by hand.
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.sleep).poll(cx));
        let due = self.sleep.deadline();
        self.sleep.reset(self.next_after(due, Instant::now()));
        Poll::Ready(due)
    }

    /// Returns the time of the tick after the one that was due at `due` and taken at `now`.
    fn next_after(&self, due: Instant, now: Instant) -> Instant {
        let late = now.duration_since(due);
        let next = due.saturating_add(self.period);
        if late < self.period {
            return next;
        }
        match self.missed {
            MissedTicks::Burst => next,
            MissedTicks::Delay => now.saturating_add(self.period),
            MissedTicks::Skip => now.saturating_add(self.period - remainder(late, self.period)),
        }
    }

    /// Returns the time from one tick to the next.
    ///
    /// # Examples
    /// See [`interval()`](interval()#examples).
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Restarts the schedule: the next tick is a period from now.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia::time::{interval, now, sleep};
    ///
    /// let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
    /// runtime.block_on(async {
    ///     let begin = now();
    ///     let mut ticks = interval(Duration::from_secs(10));
    ///     ticks.tick().await;
    ///     sleep(Duration::from_secs(7)).await;
    ///     ticks.reset();
    ///     assert_eq!(ticks.tick().await - begin, Duration::from_secs(17));
    /// });
    /// # std::io::Result::Ok(())
    /// ```
    pub fn reset(&mut self) {
        self.sleep.reset(Instant::now().saturating_add(self.period));
    }

    /// Returns the behavior for missed ticks.
    ///
    /// # Examples
    /// See [`MissedTicks`](MissedTicks#examples).
    pub fn missed_ticks(&self) -> MissedTicks {
        self.missed
    }

    /// Sets the behavior for missed ticks; without this call [`MissedTicks::Burst`].
    ///
    /// # Examples
    /// See [`MissedTicks`](MissedTicks#examples).
    pub fn set_missed_ticks(&mut self, missed: MissedTicks) {
        self.missed = missed;
    }
}

/// Returns the remainder of `duration` divided by `period`.
fn remainder(duration: Duration, period: Duration) -> Duration {
    const NANOS: u128 = 1_000_000_000;
    let nanos = duration.as_nanos() % period.as_nanos();
    Duration::new((nanos / NANOS) as u64, (nanos % NANOS) as u32)
}
