//! A circuit breaker for plain calls that turn out to be slow.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};
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
///
/// Threads may share it. Updates are not atomic as a whole, so one of two concurrent ones may get lost, and
/// is learned again; but only one thread makes the call of a trial.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// A [`BreakerState`].
    state: AtomicU8,
    /// While it is open, no calls are made until this time, in nanoseconds.
    until: AtomicU64,
    /// The number of next calls to watch.
    watched: AtomicU16,
    /// Slow calls in a row.
    slow_in_a_row: AtomicU8,
    /// The duration of the next open state, in nanoseconds.
    pause: AtomicU64,
    /// The number of times that the breaker has opened.
    opened: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    /// Plain calls are made.
    Closed,
    /// No calls are made for a while.
    Open,
    /// One call is on trial.
    Trial,
}

impl Breaker {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU8::new(BreakerState::Closed as u8),
            until: AtomicU64::new(0),
            watched: AtomicU16::new(1),
            slow_in_a_row: AtomicU8::new(0),
            pause: AtomicU64::new(nanoseconds(limits::PAUSE_MIN)),
            opened: AtomicU64::new(0),
        }
    }

    /// Returns whether plain calls are suspended, or one is on trial.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        !self.is(BreakerState::Closed)
    }

    #[inline(always)]
    fn is(&self, state: BreakerState) -> bool {
        self.state.load(Relaxed) == state as u8
    }

    fn set(&self, state: BreakerState) {
        self.state.store(state as u8, Release);
    }

    /// Returns whether the pause of an open breaker is over, and begins a trial then, which the caller has to
    /// make. There is one at a time.
    #[cold]
    pub(crate) fn may_try_again(&self, now: Duration) -> bool {
        let [open, trial] = [BreakerState::Open, BreakerState::Trial].map(|state| state as u8);
        let is_due =
            self.state.load(Acquire) == open && nanoseconds(now) >= self.until.load(Relaxed);
        if !is_due || self.state.compare_exchange(open, trial, Relaxed, Relaxed).is_err() {
            return false;
        }
        self.watched.store(limits::WATCHED, Relaxed);
        true
    }

    /// Returns the number of times that the breaker has opened.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Relaxed)
    }

    /// Returns whether the next call is to be watched.
    #[inline(always)]
    pub(crate) fn is_suspicious(&self) -> bool {
        self.watched.load(Relaxed) > 0
    }

    /// Notes how long a call took.
    #[inline(always)]
    pub(crate) fn note(&self, timing: Timing) {
        if timing.took > limits::SLOW || timing.has_waited.is_some() {
            self.note_slowly(timing);
        }
    }

    #[cold]
    fn note_slowly(&self, timing: Timing) {
        if self.is(BreakerState::Open) {
            return; // the call began before that of another thread has opened it
        }
        let is_trial = self.is(BreakerState::Trial);
        if timing.took <= limits::SLOW || timing.has_waited == Some(false) {
            // The call was quick, or the delay was the machine's and not the call's.
            if is_trial {
                self.set(BreakerState::Closed);
            }
            let watched = self.watched.load(Relaxed).saturating_sub(1);
            self.watched.store(watched, Relaxed);
            if watched == 0 {
                self.pause.store(nanoseconds(limits::PAUSE_MIN), Relaxed);
            }
            if timing.took <= limits::SLOW {
                self.slow_in_a_row.store(0, Relaxed);
            }
            return;
        }
        if timing.has_waited.is_none() {
            // The delay may have a cause other than the call.
            self.watched
                .store(if timing.took > limits::STALL { limits::WATCHED } else { 1 }, Relaxed);
            return;
        }
        let slow = self.slow_in_a_row.load(Relaxed).saturating_add(1);
        self.slow_in_a_row.store(slow, Relaxed);
        if timing.took > limits::STALL || slow >= limits::SLOW_MAX || is_trial {
            let pause = self.pause.load(Relaxed);
            self.pause.store((pause * 2).min(nanoseconds(limits::PAUSE_MAX)), Relaxed);
            self.until.store(nanoseconds(timing.end) + pause, Relaxed);
            self.set(BreakerState::Open);
            self.slow_in_a_row.store(0, Relaxed);
            self.opened.fetch_add(1, Relaxed);
        }
    }
}

const fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
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
        assert!(!breaker.may_try_again(Duration::from_millis(201)), "another thread is on trial");
        breaker.note(timing(220, stall, true));
        assert!(breaker.is_open());
        assert!(!breaker.may_try_again(Duration::from_millis(419)), "the pause has doubled");
        assert!(breaker.may_try_again(Duration::from_millis(420)));
        breaker.note(timing(421, quick, true));
        assert!(!breaker.is_open() && breaker.is_suspicious(), "it may have been one of many");
        assert!(breaker.pause.load(Relaxed) > nanoseconds(limits::PAUSE_MIN));
        for _ in 1..limits::WATCHED {
            breaker.note(timing(421, quick, true));
        }
        assert!(!breaker.is_suspicious());
        assert_eq!(breaker.pause.load(Relaxed), nanoseconds(limits::PAUSE_MIN));
        assert_eq!(breaker.opened(), 2);
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

    /// Threads that stall at the same time open it once, and a quick call that began before does not close
    /// it.
    #[test]
    fn what_ends_while_it_is_open_changes_nothing() {
        let (quick, stall) = (Duration::from_micros(2), Duration::from_millis(20));
        let breaker = Breaker::new();
        breaker.note(timing(100, stall, true));
        for took in [stall, quick, stall] {
            breaker.note(timing(150, took, true));
            assert!(breaker.is_open());
        }
        assert_eq!(breaker.opened(), 1);
        assert!(breaker.may_try_again(Duration::from_millis(200)), "the pause began at the first");
    }

    #[test]
    fn one_thread_makes_the_call_of_a_trial() {
        let breaker = Breaker::new();
        breaker.note(timing(0, Duration::from_millis(20), true));
        let trials = |now| {
            std::thread::scope(|scope| {
                let tries = [(); 8].map(|()| scope.spawn(|| breaker.may_try_again(now)));
                tries.into_iter().map(|it| it.join().unwrap()).filter(|&it| it).count()
            })
        };
        assert_eq!(trials(Duration::from_millis(99)), 0);
        assert_eq!(trials(Duration::from_millis(100)), 1);
        assert_eq!(trials(Duration::from_millis(100)), 0);
    }
}
