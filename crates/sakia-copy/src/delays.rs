//! Whether calls that may have to wait for a disk are made in place.
//!
//! That a cache does not have a name says little: the block that it is in may have been read along with
//! others. Somebody else can wait for it, a worker of the kernel or a thread, which costs more than the call
//! itself if there is nothing to wait for, and holds up everybody if there is and nobody else does. It cannot
//! be known beforehand, so it is looked at how long such calls took: as long as they are quick they are made
//! in place, and if they are not, one of a few is, to see whether that has changed.

use std::cell::Cell;
use std::time::Duration;

/// What it costs to have somebody else make a call, and to hear of it.
const HANDED_OVER: Duration = Duration::from_micros(30);
/// One call counts as this at most: a single one that waits is no reason, two close together are.
const MOST: Duration = Duration::from_micros(400);
/// An average is that of so many calls, more or less.
const CALLS: u32 = 16;
/// Where calls are slow, one of so many is made in place.
const PROBE: u32 = 8;

/// How long calls of a kind took that one worker made in place.
pub(crate) struct Delays {
    average: Cell<Duration>,
    handed_over: Cell<u32>,
    /// There is nothing else to do meanwhile.
    is_alone: bool,
}

impl Delays {
    /// None was made. With `is_alone` all are made in place.
    pub(crate) fn new(is_alone: bool) -> Self {
        Self { average: Cell::default(), handed_over: Cell::default(), is_alone }
    }

    /// Whether the next one is made in place.
    pub(crate) fn is_in_place(&self) -> bool {
        if self.is_alone || self.average.get() <= HANDED_OVER {
            return true;
        }
        let count = self.handed_over.get() + 1;
        self.handed_over.set(count % PROBE);
        count == PROBE
    }

    /// One that was made in place took so long.
    pub(crate) fn took(&self, time: Duration) {
        self.average.set((self.average.get() * (CALLS - 1) + time.min(MOST)) / CALLS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(4);
    const SLOW: Duration = Duration::from_millis(8);

    /// Of 1000 calls that take `time` of their number, those that were made in place.
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
