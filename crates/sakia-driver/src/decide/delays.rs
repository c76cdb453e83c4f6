//! Decides whether calls that may wait for a disk are made in place, on a thread of `sakia-copy`.
//!
//! A name missing in a cache says little: its block may have been read along with others. A kernel worker or
//! another thread can wait instead, which costs more than the call itself if there is nothing to wait for; a
//! call that does wait in place blocks every fiber of the thread. This cannot be known beforehand, so we
//! keep a moving average of the latency: quick calls are made in place, and of slow ones one in a few, to
//! notice a change.

use std::cell::Cell;
use std::time::Duration;

use super::limits;

/// The latency of one thread's calls of a kind that it made in place.
#[derive(Debug)]
pub struct Delays {
    average: Cell<Duration>,
    handed_over: Cell<u32>,
    /// The thread has nothing else to do meanwhile.
    is_alone: bool,
}

impl Delays {
    /// Returns the state before the first call. With `is_alone` all calls are made in place.
    pub fn new(is_alone: bool) -> Self {
        Self { average: Cell::default(), handed_over: Cell::default(), is_alone }
    }

    /// Returns whether the next call is made in place.
    pub fn is_in_place(&self) -> bool {
        if self.is_alone || self.average.get() <= limits::LANE_TIME {
            return true;
        }
        let count = self.handed_over.get() + 1;
        self.handed_over.set(count % limits::LANE_PROBE);
        count == limits::LANE_PROBE
    }

    /// Records the latency of a call made in place.
    pub fn took(&self, time: Duration) {
        let counted = time.min(limits::LATENCY_MAX);
        let others = self.average.get() * (limits::LATENCY_CALLS - 1);
        self.average.set((others + counted) / limits::LATENCY_CALLS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(4);
    const SLOW: Duration = Duration::from_millis(8);

    /// Returns the number of calls made in place, of 1000 calls whose latency is `time` of their number.
    fn in_place(delays: &Delays, time: impl Fn(u32) -> Duration) -> u32 {
        let mut count = 0;
        for number in 0..1000 {
            if delays.is_in_place() {
                count += 1;
                delays.took(time(number));
            }
        }
        count
    }

    #[test]
    fn quick_calls_are_made_in_place() {
        assert_eq!(in_place(&Delays::new(false), |_| QUICK), 1000);
    }

    #[test]
    fn a_slow_one_now_and_then_is_no_reason() {
        let time = |number: u32| if number.is_multiple_of(100) { SLOW } else { QUICK };
        assert_eq!(in_place(&Delays::new(false), time), 1000);
    }

    #[test]
    fn slow_ones_are_handed_over_until_they_are_quick_again() {
        let delays = Delays::new(false);
        let count = in_place(&delays, |_| SLOW);
        assert!((100..150).contains(&count), "{count}");
        let count = in_place(&delays, |_| QUICK);
        assert!((600..1000).contains(&count), "{count}");
        assert_eq!(in_place(&delays, |_| QUICK), 1000);
    }

    #[test]
    fn who_has_nothing_else_to_do_waits() {
        assert_eq!(in_place(&Delays::new(true), |_| SLOW), 1000);
    }
}
