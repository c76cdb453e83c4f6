//! Sleep and wake of threads that wait for something which others bring about: a futex.
//!
//! A sleeper [begins](Pulse::begin), looks whether there is something, and sleeps if not. One that brings
//! something gives a pulse afterwards. No pulse is missed: the sleeper is counted and has read the number of
//! pulses before it looks, and the other one brings its thing before it changes the number and looks for
//! sleepers. So either the sleeper sees the thing, or the number differs from the one that it sleeps on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;

/// A place to sleep. A pulse takes no lock and allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Changed by each pulse.
    number: AtomicU32,
    /// Threads that sleep, or are about to.
    sleepers: AtomicU32,
}

/// A thread that is about to sleep.
#[must_use]
pub(super) struct Sleeper<'a> {
    pulse: &'a Pulse,
    number: u32,
}

/// The end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awake {
    /// By a pulse, or without a reason.
    Pulse,
    /// By a signal whose handler ran.
    Signal,
    /// The time is over.
    Time,
}

impl Pulse {
    /// Announces a sleep. Look whether it is needed afterwards.
    pub(super) fn begin(&self) -> Sleeper<'_> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        Sleeper { pulse: self, number: self.number.load(Ordering::SeqCst) }
    }

    /// Wakes one sleeper.
    pub(super) fn give(&self) {
        self.wake(1);
    }

    /// Wakes all sleepers.
    pub(super) fn give_all(&self) {
        self.wake(i32::MAX as u32); // the kernel takes the number for a signed one
    }

    fn wake(&self, most: u32) {
        self.number.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A system call of its own, not the C library's: `errno` stays.
            futex::wake(&self.number, Flags::PRIVATE, most).ok();
        }
    }
}

impl Sleeper<'_> {
    /// Sleeps until a pulse since the announcement, a signal, or that time. `None` is no limit.
    pub(super) fn sleep(self, until: Option<Instant>) -> Awake {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Awake::Time;
        }
        let left = left.map(timespec);
        match futex::wait(&self.pulse.number, Flags::PRIVATE, self.number, left.as_ref()) {
            Err(Errno::INTR) => Awake::Signal,
            Err(Errno::TIMEDOUT) => Awake::Time,
            _ => Awake::Pulse,
        }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.pulse.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn timespec(time: Duration) -> Timespec {
    // The kernel takes such a time for one without end.
    let tv_sec = i64::try_from(time.as_secs()).unwrap_or(i64::MAX / 2).min(i64::MAX / 2);
    Timespec { tv_sec, tv_nsec: time.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    /// Each thing is taken by one of the sleepers, however the threads run.
    #[test]
    fn no_pulse_is_missed() {
        let (pulse, things, taken) = (Pulse::default(), AtomicU32::new(0), AtomicU32::new(0));
        let take = || {
            things
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok()
        };
        const THINGS: u32 = 2_000;
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while taken.load(Ordering::SeqCst) < THINGS {
                        let sleeper = pulse.begin();
                        if take() {
                            if taken.fetch_add(1, Ordering::SeqCst) + 1 == THINGS {
                                pulse.give_all();
                            }
                        } else if taken.load(Ordering::SeqCst) < THINGS {
                            sleeper.sleep(None);
                        }
                    }
                });
            }
            for _ in 0..THINGS {
                things.fetch_add(1, Ordering::SeqCst);
                pulse.give();
            }
        });
        assert_eq!((things.into_inner(), taken.into_inner()), (0, THINGS));
        assert_eq!(pulse.sleepers.into_inner(), 0);
    }

    #[test]
    fn one_pulse_wakes_all() {
        let (pulse, is_given) = (Pulse::default(), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let sleeper = pulse.begin();
                        if is_given.load(Ordering::SeqCst) == 1 {
                            break;
                        }
                        sleeper.sleep(None);
                    }
                });
            }
            while pulse.sleepers.load(Ordering::SeqCst) < 4 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(10)); // all of them sleep by then, as a rule
            is_given.store(1, Ordering::SeqCst);
            pulse.give_all();
        });
    }

    #[test]
    fn a_sleep_ends_with_its_time() {
        let pulse = Pulse::default();
        assert_eq!(pulse.begin().sleep(Some(Instant::now())), Awake::Time);
        let soon = Instant::now() + Duration::from_millis(1);
        assert_eq!(pulse.begin().sleep(Some(soon)), Awake::Time);
        assert!(Instant::now() >= soon);
        let sleeper = pulse.begin();
        pulse.give();
        assert_eq!(sleeper.sleep(Some(Instant::now() + Duration::from_secs(1000))), Awake::Pulse);
    }
}
