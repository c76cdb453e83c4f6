//! Instants on the runtime's clock.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use crate::executor::current;

/// An instant on the clock of the runtime, as [`std::time::Instant`] is one on the system's clock.
///
/// Runtimes with a real clock share it, on all their threads. Each virtual clock begins at zero and is
/// separate: comparing instants of different virtual clocks has no meaning.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia::time::{Instant, sleep};
///
/// let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
/// runtime.block_on(async {
///     let begin = Instant::now();
///     let deadline = begin + Duration::from_secs(10);
///     sleep(Duration::from_secs(4)).await;
///     assert_eq!(begin.elapsed(), Duration::from_secs(4));
///     assert_eq!(deadline - Instant::now(), Duration::from_secs(6));
///     assert_eq!(begin.checked_duration_since(deadline), None);
/// });
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    /// The time since the clock's zero.
    pub(super) since: Duration,
}

/// Returns the current instant, on the clock of the runtime that the caller runs in. Short for
/// [`Instant::now`].
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// See [`Instant`](Instant#examples).
pub fn now() -> Instant {
    Instant::now()
}

impl Instant {
    /// Returns the current instant, on the clock of the runtime that the caller runs in.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn now() -> Self {
        Self { since: current().now() }
    }

    /// Returns the time since this instant; zero if it is in the future.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`Instant`](Instant#examples).
    pub fn elapsed(&self) -> Duration {
        Self::now().duration_since(*self)
    }

    /// Returns the time since `earlier`; zero if that is later.
    ///
    /// # Examples
    /// See [`Instant`](Instant#examples).
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.since.saturating_sub(earlier.since)
    }

    /// Returns the time since `earlier`, unless that is later.
    ///
    /// # Examples
    /// See [`Instant`](Instant#examples).
    pub fn checked_duration_since(&self, earlier: Self) -> Option<Duration> {
        self.since.checked_sub(earlier.since)
    }

    /// Returns the instant `duration` later, unless that is out of the clock's range.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia::time::now;
    ///
    /// let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
    /// runtime.block_on(async {
    ///     let second = Duration::from_secs(1);
    ///     assert!(now().checked_sub(second).is_none(), "a virtual clock begins at zero");
    ///     assert!((now() + second).checked_add(Duration::MAX).is_none());
    /// });
    /// # std::io::Result::Ok(())
    /// ```
    pub fn checked_add(&self, duration: Duration) -> Option<Self> {
        self.since.checked_add(duration).map(|since| Self { since })
    }

    /// Returns the instant `duration` earlier, unless that is out of the clock's range.
    ///
    /// # Examples
    /// See [`Instant::checked_add`].
    pub fn checked_sub(&self, duration: Duration) -> Option<Self> {
        self.since.checked_sub(duration).map(|since| Self { since })
    }

    /// Returns the instant `duration` later, or the last of the clock's range.
    pub(super) fn saturating_add(self, duration: Duration) -> Self {
        Self { since: self.since.saturating_add(duration) }
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// # Panics
    /// When the result is out of the clock's range; see [`checked_add`](Instant::checked_add).
    fn add(self, duration: Duration) -> Self {
        self.checked_add(duration).expect("the sum is within the clock's range")
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// # Panics
    /// When the result is before the clock's zero; see [`checked_sub`](Instant::checked_sub).
    fn sub(self, duration: Duration) -> Self {
        self.checked_sub(duration).expect("the difference is within the clock's range")
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// As [`duration_since`](Instant::duration_since).
    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}
