//! Sleeping in epoll.
//!
//! - Events or a signal end a sleep early; nothing else does. With the kernel's coarser timeouts, it is
//!   longer than requested by less than a millisecond.
//! - At most [`EVENTS`] are fetched at a time; the kernel keeps the others for the next sleep.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, Event, EventFlags};
use rustix::io::Errno;
use sakia_ring::SignalMask;

use crate::sys::{self, timespec};

/// Events fetched at a time.
pub(super) const EVENTS: usize = 256;
const NANOS_PER_MILLI: u32 = 1_000_000;

/// The length of a sleep.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sleep {
    /// None: only a check.
    No,
    /// Until this time, or without end.
    Until(Option<Instant>),
}

/// Waits for events, and keeps the last ones.
pub(super) struct Sleeper {
    events: Vec<Event>,
    /// The number of events that were taken.
    taken: usize,
    /// The kernel has `epoll_pwait2(2)`, or it was not tried yet.
    has_pwait2: bool,
}

impl Sleeper {
    pub(super) fn new() -> Self {
        Self { events: Vec::with_capacity(EVENTS), taken: 0, has_pwait2: true }
    }

    /// Takes an event of the last sleep. Returns its token and its flags.
    pub(super) fn next_event(&mut self) -> Option<(u64, EventFlags)> {
        let event = self.events.get(self.taken)?;
        self.taken += 1;
        Some((event.data.u64(), event.flags))
    }

    /// Returns whether there are events of the last sleep that were not taken.
    pub(super) fn has_events(&self) -> bool {
        self.taken < self.events.len()
    }

    /// Returns the number of events of the last sleep.
    pub(super) fn fetched(&self) -> usize {
        self.events.len()
    }

    /// Waits for events, in place of those of the last sleep, with this signal mask while it sleeps. Returns
    /// their number.
    ///
    /// # Errors
    /// `EINTR`: a signal came first.
    #[inline(always)]
    pub(super) fn sleep(
        &mut self,
        epoll: BorrowedFd<'_>,
        sleep: Sleep,
        signals: Option<&SignalMask>,
    ) -> Result<usize, Errno> {
        self.events.clear();
        self.taken = 0;
        let timeout = match sleep {
            Sleep::No => Some(Duration::ZERO),
            Sleep::Until(until) => {
                until.map(|until| until.saturating_duration_since(Instant::now()))
            }
        };
        let is_fine = timeout.is_some_and(|time| time.subsec_nanos() % NANOS_PER_MILLI != 0);
        if let Some(timeout) = timeout.filter(|_| is_fine && self.has_pwait2) {
            match self.sleep_precisely(epoll, timeout, signals) {
                // Before Linux 5.11, or with a seccomp filter older than that.
                Err(Errno::NOSYS | Errno::PERM) => self.has_pwait2 = false,
                result => return result,
            }
        }
        // Whole milliseconds, not less than the timeout.
        let timeout = timeout.map(whole_millis);
        if let Some(signals) = signals {
            return self.sleep_with_signals(epoll, timeout, signals);
        }
        let timeout = timeout.map(timespec);
        epoll::wait(epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref())
    }

    fn sleep_precisely(
        &mut self,
        epoll: BorrowedFd<'_>,
        timeout: Duration,
        signals: Option<&SignalMask>,
    ) -> Result<usize, Errno> {
        let spare = &mut self.events.spare_capacity_mut()[..EVENTS];
        let count = sys::epoll_pwait2(epoll, spare, &timespec(timeout), signals)?;
        // SAFETY: the kernel has filled this number of events, at most the capacity.
        unsafe { self.events.set_len(count) };
        Ok(count)
    }

    /// Sleeps for whole milliseconds, or without end.
    #[cold]
    fn sleep_with_signals(
        &mut self,
        epoll: BorrowedFd<'_>,
        timeout: Option<Duration>,
        signals: &SignalMask,
    ) -> Result<usize, Errno> {
        let spare = &mut self.events.spare_capacity_mut()[..EVENTS];
        let count = sys::epoll_pwait(epoll, spare, timeout, signals)?;
        // SAFETY: the kernel has filled this number of events, at most the capacity.
        unsafe { self.events.set_len(count) };
        Ok(count)
    }
}

/// Returns the duration rounded up to milliseconds, as far as the kernel counts them.
fn whole_millis(duration: Duration) -> Duration {
    let millis = duration.as_nanos().div_ceil(u128::from(NANOS_PER_MILLI));
    Duration::from_millis(millis.min(i32::MAX as u128) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_rounded_up_and_not_too_many() {
        for (nanos, millis) in [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)] {
            let rounded = whole_millis(Duration::from_nanos(nanos));
            assert_eq!(rounded, Duration::from_millis(millis), "{nanos}");
        }
        assert_eq!(whole_millis(Duration::MAX).as_millis(), i32::MAX as u128);
    }
}
