//! Options of a socket that also apply to bytes in memory, and the time that a call may wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Host;

/// Stands for no time.
const NONE: u64 = u64::MAX;

/// An optional time that threads share.
#[derive(Debug)]
pub(crate) struct Time(AtomicU64);

impl Default for Time {
    fn default() -> Self {
        Self(AtomicU64::new(NONE))
    }
}

impl Time {
    pub(crate) fn get(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            NONE => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        }
    }

    pub(crate) fn set(&self, time: Option<Duration>) {
        let nanoseconds = time.map(|time| time.as_nanos().try_into().unwrap_or(NONE));
        self.0.store(nanoseconds.unwrap_or(NONE), Ordering::Relaxed);
    }
}

/// Values that the program set; the host has them as well.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// `SO_RCVTIMEO`.
    pub(crate) receive_timeout: Time,
    /// `SO_SNDTIMEO`.
    pub(crate) send_timeout: Time,
    /// `SO_LINGER`.
    pub(crate) linger: Time,
}

impl Settings {
    /// Returns true if any is set.
    pub(crate) fn is_any(&self) -> bool {
        [&self.receive_timeout, &self.send_timeout, &self.linger]
            .iter()
            .any(|time| time.get().is_some())
    }
}

/// The time that one call may wait, in all its waits together.
#[derive(Debug)]
pub(crate) struct Patience {
    timeout: Option<Duration>,
    /// The end of the time, once the first check has set it.
    until: Option<Duration>,
}

impl Patience {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, until: None }
    }

    /// Returns true if it is limited.
    pub(crate) fn is_limited(&self) -> bool {
        self.timeout.is_some()
    }

    /// Returns true if some of it may be used up.
    pub(crate) fn is_started(&self) -> bool {
        self.until.is_some()
    }

    /// Returns the remaining time, `None` for ever. The clock is read only if needed.
    pub(crate) fn left<H: Host>(&mut self, host: &H) -> Option<Duration> {
        let timeout = self.timeout?;
        let now = host.now();
        let until = *self.until.get_or_insert(now.saturating_add(timeout));
        // A clock that goes back does not lengthen the wait.
        Some(until.saturating_sub(now).min(timeout))
    }
}
