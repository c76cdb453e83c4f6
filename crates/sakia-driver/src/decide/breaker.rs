//! A circuit breaker for plain calls that turn out to be slow.

use std::cell::Cell;
use std::time::Duration;

use super::limits;

/// The latency of a plain call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// The end of the call, on the backend's clock.
    pub(crate) end: Duration,
    /// An upper bound of its duration.
    pub(crate) took: Duration,
    /// Set if the thread slept in that call. `None` if that was not measured: the duration may include other
    /// work.
    pub(crate) has_waited: Option<bool>,
}

/// Stops plain calls on a file system for a while after they have been slow.
///
/// A call that may block is made without knowing whether it will. After a slow call the next ones are
/// watched: did the thread sleep in them, rather than lose its processor to other threads? Many calls are
/// watched, since the kernel blocks a writer once for many writes. One such sleep of more than
/// [`STALL`](limits::STALL), or several in a row of more than [`SLOW`](limits::SLOW), open the breaker:
/// operations go to the queue, whose workers may block freely. After a pause, the next operation tries a
/// plain call again. The pause doubles each time until all watched calls were quick.
///
/// So a stalled device blocks a thread for as long as the kernel blocks a writer, once per trial of the
/// breaker; twice the first time, since the first call was not watched.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: Cell<BreakerState>,
    /// The number of next calls to watch.
    watched: Cell<u16>,
    /// Slow calls in a row.
    slow_in_a_row: Cell<u8>,
    /// The duration of the next open state.
    pause: Cell<Duration>,
    /// The number of times that the breaker has opened.
    opened: Cell<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    /// Plain calls are made.
    Closed,
    /// No calls are made until this time.
    Open { until: Duration },
    /// One call is on trial.
    Trial,
}

impl Breaker {
    pub(crate) const fn new() -> Self {
        Self {
            state: Cell::new(BreakerState::Closed),
            watched: Cell::new(1),
            slow_in_a_row: Cell::new(0),
            pause: Cell::new(limits::PAUSE_MIN),
            opened: Cell::new(0),
        }
    }

    /// Returns whether plain calls are suspended.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state.get(), BreakerState::Open { .. })
    }

    /// Returns whether the pause is over, and begins a trial then.
    #[cold]
    pub(crate) fn may_try_again(&self, now: Duration) -> bool {
        match self.state.get() {
            BreakerState::Open { until } if now >= until => {
                self.state.set(BreakerState::Trial);
                self.watched.set(limits::WATCHED);
                true
            }
            BreakerState::Open { .. } => false,
            BreakerState::Closed | BreakerState::Trial => true,
        }
    }

    /// Returns the number of times that the breaker has opened.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.get()
    }

    /// Returns whether the next call is to be watched.
    #[inline(always)]
    pub(crate) fn is_suspicious(&self) -> bool {
        self.watched.get() > 0
    }

    /// Notes how long a call took.
    #[inline(always)]
    pub(crate) fn note(&self, timing: Timing) {
        if timing.took > limits::SLOW || self.is_suspicious() {
            self.note_slowly(timing);
        }
    }

    #[cold]
    fn note_slowly(&self, timing: Timing) {
        if timing.took <= limits::SLOW || timing.has_waited == Some(false) {
            // The call was quick, or the delay was the machine's and not the call's.
            self.state.set(BreakerState::Closed);
            let watched = self.watched.get().saturating_sub(1);
            self.watched.set(watched);
            if watched == 0 {
                self.pause.set(limits::PAUSE_MIN);
            }
            if timing.took <= limits::SLOW {
                self.slow_in_a_row.set(0);
            }
            return;
        }
        if timing.has_waited.is_none() {
            // The delay may have a cause other than the call.
            self.watched.set(if timing.took > limits::STALL { limits::WATCHED } else { 1 });
            return;
        }
        let slow = self.slow_in_a_row.get() + 1;
        self.slow_in_a_row.set(slow);
        let is_trial = self.state.get() == BreakerState::Trial;
        if timing.took > limits::STALL || slow >= limits::SLOW_MAX || is_trial {
            let pause = self.pause.get();
            self.pause.set((pause * 2).min(limits::PAUSE_MAX));
            self.state.set(BreakerState::Open { until: timing.end + pause });
            self.slow_in_a_row.set(0);
            self.opened.set(self.opened.get() + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(end_ms: u64, took: Duration, is_watched: bool) -> Timing {
        Timing { end: Duration::from_millis(end_ms), took, has_waited: is_watched.then_some(true) }
    }

    #[test]
    fn a_thread_that_lost_its_processor_did_not_wait() {
        let breaker = Breaker::new();
        let preempted =
            Timing { has_waited: Some(false), ..timing(9, Duration::from_millis(9), true) };
        for _ in 0..10 {
            breaker.note(preempted);
            assert!(!breaker.is_open() && !breaker.is_suspicious());
        }
    }

    #[test]
    fn one_stall_opens_the_breaker_until_a_quick_trial() {
        let (quick, stall) = (Duration::from_micros(2), Duration::from_millis(20));
        let breaker = Breaker::new();
        breaker.note(timing(0, quick, true));
        assert!(!breaker.is_suspicious());
        breaker.note(timing(50, stall, false));
        assert!(!breaker.is_open() && breaker.is_suspicious(), "it may have been the task");
        breaker.note(timing(100, stall, true));
        assert!(breaker.is_open());
        assert!(!breaker.may_try_again(Duration::from_millis(199)));
        assert!(breaker.may_try_again(Duration::from_millis(200)));
        assert!(!breaker.is_open());
        breaker.note(timing(220, stall, true));
        assert!(breaker.is_open());
        assert!(!breaker.may_try_again(Duration::from_millis(419)), "the pause has doubled");
        assert!(breaker.may_try_again(Duration::from_millis(420)));
        breaker.note(timing(421, quick, true));
        assert!(!breaker.is_open() && breaker.is_suspicious(), "it may have been one of many");
        assert!(breaker.pause.get() > limits::PAUSE_MIN);
        for _ in 1..limits::WATCHED {
            breaker.note(timing(421, quick, true));
        }
        assert!(!breaker.is_suspicious());
        assert_eq!(breaker.pause.get(), limits::PAUSE_MIN);
        assert_eq!(breaker.opened.get(), 2);
    }

    #[test]
    fn calls_that_are_slow_one_after_the_other_open_the_breaker() {
        let slow = Duration::from_micros(60);
        let breaker = Breaker::new();
        for _ in 1..limits::SLOW_MAX {
            breaker.note(timing(0, slow, true));
            assert!(!breaker.is_open());
        }
        breaker.note(timing(0, slow, true));
        assert!(breaker.is_open());
    }
}
