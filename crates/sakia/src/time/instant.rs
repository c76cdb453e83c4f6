//! Moments on the runtime's clock.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use crate::executor::current;

/// A moment on the clock of the runtime, as [`std::time::Instant`] is one on the system's.
///
/// Runtimes with a real clock share it, on all their threads. Virtual clocks begin at zero and are
/// each on their own: to compare their instants with others has no meaning.
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
    /// Since the clock's zero.
    pub(super) since: Duration,
}

/// The present, on the clock of the runtime that the caller runs in. Short for [`Instant::now`].
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
    /// The present, on the clock of the runtime that the caller runs in.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn now() -> Self {
        Self { since: current().now() }
    }

    /// The time since this moment; zero if it is to come.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`Instant`](Instant#examples).
    pub fn elapsed(&self) -> Duration {
        Self::now().duration_since(*self)
    }

    /// The time since `earlier`; zero if that is later.
    ///
    /// # Examples
    /// See [`Instant`](Instant#examples).
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.since.saturating_sub(earlier.since)
    }

    /// The time since `earlier`, unless that is later.
    ///
    /// # Examples
    /// See [`Instant`](Instant#examples).
    pub fn checked_duration_since(&self, earlier: Self) -> Option<Duration> {
        self.since.checked_sub(earlier.since)
    }

    /// The moment `duration` later, if the clock can show it.
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

    /// The moment `duration` earlier, if the clock can show it.
    ///
    /// # Examples
    /// See [`Instant::checked_add`].
    pub fn checked_sub(&self, duration: Duration) -> Option<Self> {
        self.since.checked_sub(duration).map(|since| Self { since })
    }

    /// The moment `duration` later, or the last that there is.
    pub(super) fn saturating_add(self, duration: Duration) -> Self {
        Self { since: self.since.saturating_add(duration) }
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// # Panics
    /// When the clock cannot show the result; see [`checked_add`](Instant::checked_add).
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
    /// When that is before the clock's zero; see [`checked_sub`](Instant::checked_sub).
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
