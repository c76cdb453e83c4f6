//! The budget of plain calls in a turn.

use std::time::Duration;

use super::limits;

/// The budget of plain calls in one turn: 64 of the smallest, or fewer that copy more. These take about 50
/// microseconds, but the tasks that make them may work for any time in between. So if a loop reports when it
/// begins to poll tasks, no plain calls are made once the tasks have run for
/// [`TURN_CALLS_TIME`](limits::TURN_CALLS_TIME):
/// 1. The clock is read before every few calls: before each one while they are far apart, otherwise less and
///    less often, down to every [`CLOCK_STRIDE`](limits::CLOCK_STRIDE)th. The count continues across turns,
///    so that turns of few calls are not missed.
/// 2. It is read once more in a turn when a completion has arrived, which a load or two detect before each
///    call.
///
/// So a task that works long between its calls waits for the next turn after one piece of work. If many
/// earlier calls were close to each other, and no completion arrives, it waits after up to 32 pieces.
///
/// Operations without a budget, of a kind that a ring batches well, are a crowd if there are many
/// ([`crowded`](InlineBudget::crowded)). As long as a crowd goes to the ring, all would be better off there:
/// an entry in a full queue costs less than a call. So the budget shrinks, and grows again when it suffices
/// for all.
#[derive(Debug)]
pub(crate) struct InlineBudget {
    /// Units left before the clock is read.
    left: u32,
    /// Units left after that read.
    rest: u32,
    /// The units of a new turn.
    turn: u32,
    /// The number of this turn's operations of a crowd.
    crowd: u32,
    /// The number of them from which on a turn counts as crowded.
    crowd_min: u32,
    pace: Pace,
    /// The time of the last clock read.
    looked: Duration,
    /// Units between two clock reads.
    stride: u32,
    /// The number of consecutive reads that found calls close to each other.
    short: u32,
}

/// The state of a turn's plain calls with regard to the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// The clock is read when a completion arrives.
    Listening,
    /// The clock was read.
    Heard,
    /// The time for plain calls is over.
    Late,
}

impl InlineBudget {
    pub(crate) const fn new() -> Self {
        Self {
            left: limits::CLOCK_STRIDE,
            rest: limits::TURN_CALLS - limits::CLOCK_STRIDE,
            turn: limits::TURN_CALLS,
            crowd: 0,
            crowd_min: limits::CROWD,
            pace: Pace::Listening,
            looked: Duration::ZERO,
            stride: limits::CLOCK_STRIDE,
            short: 0,
        }
    }

    /// Returns whether the last turn had a crowd, or all turns are to be [watched](InlineBudget::watch).
    #[inline(always)]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowd >= self.crowd_min
    }

    /// Returns the number of the last turn's operations that found no units, if they were a crowd.
    pub(crate) fn crowd(&self) -> Option<u32> {
        (self.crowd >= limits::CROWD).then_some(self.crowd)
    }

    /// Returns whether the time for this turn's plain calls is over: then units are lost that were not spent.
    pub(crate) fn is_late(&self) -> bool {
        self.pace == Pace::Late
    }

    /// Sets whether [`is_crowded`](InlineBudget::is_crowded) returns true after turns without a crowd, too.
    pub(crate) fn watch(&mut self, is_watched: bool) {
        self.crowd_min = if is_watched { 0 } else { limits::CROWD };
    }

    /// Gives the next turns fewer units: the ring takes a crowd.
    pub(crate) fn shrink(&mut self) {
        self.turn = (self.turn / 2).max(limits::TURN_CALLS_MIN);
    }

    /// Gives the next turns all units: a crowd waits for them.
    pub(crate) fn fill(&mut self) {
        self.turn = limits::TURN_CALLS;
    }

    /// Begins a turn.
    #[inline(always)]
    pub(crate) fn renew(&mut self) {
        if self.crowd == 0 {
            self.turn = (self.turn * 2).min(limits::TURN_CALLS);
        }
        self.crowd = 0;
        self.pace = Pace::Listening;
        let before_look = if self.left == 0 { self.stride } else { self.left };
        self.go_on(self.turn, before_look);
    }

    /// Sets `all` as the units left, of which `before_look` may be used before the clock is read.
    #[inline(always)]
    fn go_on(&mut self, all: u32, before_look: u32) {
        self.left = before_look.min(all);
        self.rest = all - self.left;
    }

    /// Returns whether a plain call may be made without reading the clock, unless a completion arrives.
    #[inline(always)]
    pub(crate) fn is_left(&self) -> bool {
        self.left > 0
    }

    /// Returns whether the clock is to be read as soon as a completion arrives.
    #[inline(always)]
    pub(crate) fn listens(&self) -> bool {
        self.pace == Pace::Listening
    }

    /// Returns whether any unit is left, without regard to the clock.
    #[inline(always)]
    pub(crate) fn is_any_left(&self) -> bool {
        self.left > 0 || self.rest > 0
    }

    /// Returns the units spent in this turn; all if the time is over.
    pub(crate) fn spent(&self) -> u32 {
        self.turn - self.left - self.rest
    }

    /// Returns whether a plain call may be made if tasks are polled since `begin`; `now` reads the clock.
    /// `has_news` says that a completion has arrived.
    pub(crate) fn look(
        &mut self,
        begin: Option<Duration>,
        now: impl FnOnce() -> Duration,
        has_news: bool,
    ) -> bool {
        if !self.is_any_left() {
            return false;
        }
        let all = self.left + self.rest;
        if has_news {
            self.pace = Pace::Heard;
        }
        let Some(begin) = begin else {
            self.go_on(all, all);
            return true;
        };
        let now = now();
        if now.saturating_sub(begin) >= limits::TURN_CALLS_TIME {
            (self.left, self.rest, self.pace) = (0, 0, Pace::Late);
            (self.stride, self.short) = (1, 0);
            return false;
        }
        if now.saturating_sub(self.looked.max(begin)) >= limits::CLOCK_LONG {
            (self.stride, self.short) = (1, 0);
        } else {
            self.short += 1;
        }
        if self.short >= limits::CLOCK_SHORT_MAX {
            self.stride = (self.stride * 2).min(limits::CLOCK_STRIDE);
            self.short = 0;
        }
        self.looked = now;
        self.go_on(all, self.stride);
        true
    }

    /// Counts an operation that found no units. Late ones do not count.
    #[inline(always)]
    pub(crate) fn crowded(&mut self) {
        self.crowd += u32::from(self.pace != Pace::Late);
    }

    /// Charges a plain call with this number of bytes.
    #[inline(always)]
    pub(crate) fn spend(&mut self, bytes: u32) {
        let units = 1 + bytes / limits::UNIT_BYTES;
        match self.left.checked_sub(units) {
            Some(left) => self.left = left,
            None => self.spend_rest(units),
        }
    }

    #[cold]
    #[inline(never)]
    fn spend_rest(&mut self, units: u32) {
        self.rest = self.rest.saturating_sub(units - self.left);
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renew(inline_budget: &mut InlineBudget) {
        if inline_budget.is_crowded() {
            inline_budget.shrink();
        }
        inline_budget.renew();
    }

    /// Makes plain calls as long as the budget allows them, each followed by work that takes `work`. Returns
    /// their number.
    fn call(
        inline_budget: &mut InlineBudget,
        clock: &mut Duration,
        work: Duration,
        max: u32,
    ) -> u32 {
        let (begin, mut count) = (*clock, 0);
        let look =
            |inline_budget: &mut InlineBudget, now| inline_budget.look(Some(begin), || now, false);
        while count < max && (inline_budget.is_left() || look(inline_budget, *clock)) {
            inline_budget.spend(0);
            *clock += work;
            count += 1;
        }
        count
    }

    #[test]
    fn a_turn_has_one_call_when_work_between_them_is_long() {
        let (mut inline_budget, mut clock) = (InlineBudget::new(), Duration::ZERO);
        for turn in 0..100 {
            renew(&mut inline_budget);
            let count = call(&mut inline_budget, &mut clock, Duration::from_millis(10), 100);
            assert!(count == 1 || turn == 0 && count <= limits::CLOCK_STRIDE, "{count}");
            assert_eq!(inline_budget.spent(), limits::TURN_CALLS);
        }
    }

    #[test]
    fn a_turn_has_all_its_calls_when_work_between_them_is_short() {
        let (mut inline_budget, mut clock) = (InlineBudget::new(), Duration::ZERO);
        let long = Duration::from_millis(10);
        for work in [Duration::ZERO, Duration::from_micros(1), Duration::from_micros(3)] {
            for _ in 0..200 {
                renew(&mut inline_budget);
                assert_eq!(call(&mut inline_budget, &mut clock, work, 100), limits::TURN_CALLS);
                clock += long; // a sleep, of which the tasks know nothing
            }
            assert_eq!(inline_budget.stride, limits::CLOCK_STRIDE);
            // Work that becomes long is detected soon.
            renew(&mut inline_budget);
            let count = call(&mut inline_budget, &mut clock, long, 100);
            assert!(count <= limits::CLOCK_STRIDE, "{count}");
        }
    }

    #[test]
    fn turns_of_few_calls_are_not_missed() {
        let (mut inline_budget, mut clock) = (InlineBudget::new(), Duration::ZERO);
        let counts: Vec<u32> = (0..20)
            .map(|_| {
                renew(&mut inline_budget);
                call(&mut inline_budget, &mut clock, Duration::from_millis(10), 7)
            })
            .collect();
        assert!(counts[5..].iter().all(|&count| count == 1), "{counts:?}");
    }

    #[test]
    fn news_make_the_clock_be_read_once() {
        let (mut inline_budget, begin) = (InlineBudget::new(), Duration::from_secs(1));
        assert!(inline_budget.is_left() && inline_budget.listens());
        assert!(inline_budget.look(Some(begin), || begin, true));
        assert!(inline_budget.is_left() && !inline_budget.listens());
        renew(&mut inline_budget);
        assert!(inline_budget.listens());
        assert!(!inline_budget.look(Some(begin), || begin + limits::TURN_CALLS_TIME, true));
        assert!(!inline_budget.is_any_left());
    }

    #[test]
    fn calls_outside_of_tasks_have_no_limit() {
        let mut inline_budget = InlineBudget::new();
        for _ in 0..limits::TURN_CALLS {
            assert!(inline_budget.is_left() || inline_budget.look(None, || unreachable!(), false));
            inline_budget.spend(0);
        }
        assert!(!inline_budget.is_left() && !inline_budget.look(None, || unreachable!(), false));
    }

    #[test]
    fn the_allowance_of_a_turn_is_64_small_calls_or_8_large_ones() {
        for (bytes, count) in [(0, 64), (4096, 64), (32 << 10, 13), (64 << 10, 8)] {
            let mut inline_budget = InlineBudget::new();
            let mut calls = 0;
            while inline_budget.is_any_left() {
                inline_budget.spend(bytes);
                calls += 1;
            }
            assert_eq!(calls, count, "{bytes}");
            renew(&mut inline_budget);
            assert_eq!(inline_budget.left + inline_budget.rest, limits::TURN_CALLS);
        }
    }

    #[test]
    fn a_crowd_shrinks_the_allowance_until_it_is_gone() {
        let mut inline_budget = InlineBudget::new();
        let mut crowds = |count: u32, turns: u32| {
            for _ in 0..turns {
                (0..count).for_each(|_| inline_budget.crowded());
                renew(&mut inline_budget);
            }
            inline_budget.left + inline_budget.rest
        };
        assert_eq!(crowds(limits::CROWD - 1, 3), 64, "a few are no crowd");
        assert_eq!(crowds(limits::CROWD, 1), 32);
        assert_eq!(crowds(31, 10), limits::TURN_CALLS_MIN);
        assert_eq!(crowds(1, 10), limits::TURN_CALLS_MIN, "some still want");
        assert_eq!(crowds(0, 2), 4 * limits::TURN_CALLS_MIN);
        assert_eq!(crowds(0, 9), 64);
    }
}
