//! The way of a crowd: of small operations in turns that have not enough plain calls for all.
//!
//! A ring performs them in a batch; or they wait for the next turns' plain calls, which keeps the memory of
//! few tasks in the processor's caches. Which costs less depends on the processor. On AMD's the ring does, by
//! 1.07 to 1.19, on some of Intel's the calls, by 1.10. So it is learned with a [`Chooser`] from the
//! processor time of the thread. An epoch is [`limits::CROWD_EPOCH`] operations in turns of a crowd. In
//! between come no other turns, or it is left out.

use std::time::Duration;

use super::chooser::Chooser;
use super::limits;

/// The way of a driver's crowds and its measured costs: of small operations in turns that have not enough
/// plain calls for all. See [`Metrics::crowds`](crate::Metrics::crowds).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrowdFigures {
    /// They wait for the plain calls of the next turns. Otherwise the queue takes them.
    pub waits: bool,
    /// The processor time of an operation by the queue, and by the next turns' plain calls, the program's own
    /// work included; `None` as long as it was not measured.
    pub costs: [Option<Duration>; 2],
    /// The number of comparisons of the two.
    pub comparisons: u64,
    /// The number of comparisons after which the other one was used.
    pub changes: u64,
}

/// Chooses between the queue (0) and the next turns (1).
#[derive(Debug)]
pub(crate) struct Crowd {
    chooser: Chooser,
    /// Operations wait for the next turns.
    waits: bool,
    /// The operations of this epoch so far.
    count: u32,
    /// The processor time at which it began.
    begin: Option<Duration>,
    /// The ways are compared. Otherwise the queue is used.
    learns: bool,
}

impl Crowd {
    /// Makes one that compares the ways if `learns`.
    pub(crate) fn new(learns: bool) -> Self {
        Self { chooser: Chooser::new(), waits: false, count: 0, begin: None, learns }
    }

    /// Returns whether operations wait for the next turns.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Returns whether the end of each turn counts: operations wait, or an epoch has begun.
    pub(crate) fn is_active(&self) -> bool {
        self.waits || self.begin.is_some()
    }

    pub(crate) fn figures(&self) -> CrowdFigures {
        let costs = [0, 1].map(|way| self.chooser.cost(way).map(Duration::from_nanos));
        let (comparisons, changes) = self.chooser.numbers();
        CrowdFigures { waits: self.chooser.best() == 1, costs, comparisons, changes }
    }

    /// Ends a turn of a crowd in which `count` operations were performed. `time` returns the processor time
    /// of the thread.
    #[cold]
    pub(crate) fn end_turn(&mut self, count: u32, time: impl FnOnce() -> Duration) {
        if !self.learns {
            return;
        }
        let Some(begin) = self.begin else {
            (self.count, self.begin) = (0, Some(time()));
            return;
        };
        self.count += count;
        if self.count >= limits::CROWD_EPOCH {
            let took = time().saturating_sub(begin).as_nanos() as u64;
            self.waits = self.chooser.note(took / u64::from(self.count)) == 1;
            // The next turn still ends operations of this way.
            self.interrupt();
        }
    }

    /// Notes a turn without a crowd.
    pub(crate) fn interrupt(&mut self) {
        self.begin = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes turns of 64 operations at these costs. Returns how many of them waited.
    fn run(crowd: &mut Crowd, clock: &mut u64, costs: [u64; 2], turns: u32) -> u32 {
        (0..turns)
            .map(|_| {
                let waits = crowd.waits();
                *clock += 64 * costs[usize::from(waits)];
                crowd.end_turn(64, || Duration::from_nanos(*clock));
                u32::from(waits)
            })
            .sum()
    }

    #[test]
    fn the_cheaper_way_is_found_within_10_000_operations() {
        for (costs, waits) in [([1000, 800], true), ([800, 1000], false), ([1000, 1000], false)] {
            let (mut crowd, mut clock) = (Crowd::new(true), 0);
            run(&mut crowd, &mut clock, costs, 10_000 / 64);
            assert_eq!(crowd.waits(), waits, "{costs:?}");
            let figures = crowd.figures();
            assert_eq!(figures.costs, costs.map(|cost| Some(Duration::from_nanos(cost))));
            assert_eq!((figures.comparisons, figures.changes), (waits.into(), waits.into()));
        }
    }

    #[test]
    fn turns_without_a_crowd_are_left_out() {
        let (mut crowd, mut clock) = (Crowd::new(true), 0);
        for _ in 0..1000 {
            run(&mut crowd, &mut clock, [1000, 1000], 10);
            clock += 1_000_000;
            crowd.interrupt();
        }
        assert_eq!(crowd.figures().costs, [None; 2], "no epoch was complete");
        run(&mut crowd, &mut clock, [1000, 800], 10_000 / 64);
        assert!(crowd.waits());
    }

    #[test]
    fn without_learning_the_queue_is_used() {
        let (mut crowd, mut clock) = (Crowd::new(false), 0);
        assert_eq!(run(&mut crowd, &mut clock, [1000, 100], 1000), 0);
    }
}
