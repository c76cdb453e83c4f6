//! The times of a thread: in which it computes, in which it has operations in flight, and in which both.

use crate::cell::Counters;
use crate::engine::counters;

/// The times of a thread, or of several together, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// The thread computed.
    pub computing: u64,
    /// It had an operation in flight.
    pub in_flight: u64,
    /// Both.
    pub overlap: u64,
    /// The sum over its operations of the time for which each was in flight.
    pub operations: u64,
}

impl Times {
    /// Adds the times of another thread.
    pub fn add(&mut self, other: Self) {
        self.computing += other.computing;
        self.in_flight += other.in_flight;
        self.overlap += other.overlap;
        self.operations += other.operations;
    }

    /// Returns the utilization: the part of the time with operations in flight in which the thread computed.
    pub fn utilization(&self) -> f64 {
        self.overlap as f64 / self.in_flight.max(1) as f64
    }

    /// Returns the times as counters.
    pub fn counters(&self) -> Counters {
        counters([
            ("computing_ns", self.computing),
            ("in_flight_ns", self.in_flight),
            ("overlap_ns", self.overlap),
            ("operations_in_flight_ns", self.operations),
            ("utilization_permille", (self.utilization() * 1000.0).round() as u64),
        ])
    }

    /// Returns the times that are in counters.
    pub fn of_counters(all: &Counters) -> Self {
        let count = |name: &str| all.get(name).copied().unwrap_or(0);
        Self {
            computing: count("computing_ns"),
            in_flight: count("in_flight_ns"),
            overlap: count("overlap_ns"),
            operations: count("operations_in_flight_ns"),
        }
    }
}

/// Adds up the times of a thread, moment by moment. Moments are in nanoseconds and never go back.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub times: Times,
    /// The last moment.
    at: u64,
    /// The number of operations in flight since then.
    pub flying: u64,
    /// Set if the thread computes since then.
    is_computing: bool,
}

impl Ledger {
    fn advance(&mut self, now: u64) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        if self.flying > 0 {
            self.times.in_flight += passed;
            self.times.operations += passed * self.flying;
        }
        if self.is_computing {
            self.times.computing += passed;
            self.times.overlap += if self.flying > 0 { passed } else { 0 };
        }
    }

    /// An operation is requested.
    pub fn request(&mut self, now: u64) {
        self.advance(now);
        self.flying += 1;
    }

    /// The thread has the result of an operation.
    pub fn result(&mut self, now: u64) {
        self.advance(now);
        debug_assert!(self.flying > 0, "a result without a request");
        self.flying -= 1;
    }

    /// The thread begins to compute, or ends.
    pub fn compute(&mut self, now: u64, is_computing: bool) {
        self.advance(now);
        self.is_computing = is_computing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of these requests in flight and these computations, each from its begin to its
    /// end.
    fn times(flights: &[(u64, u64)], computing: &[(u64, u64)]) -> Times {
        let mut events: Vec<(u64, u8)> = Vec::new();
        events.extend(flights.iter().flat_map(|&(begin, end)| [(begin, 0), (end, 1)]));
        events.extend(computing.iter().flat_map(|&(begin, end)| [(begin, 2), (end, 3)]));
        events.sort_by_key(|&(at, kind)| (at, kind % 2 == 0));
        let mut ledger = Ledger::default();
        for (at, kind) in events {
            match kind {
                0 => ledger.request(at),
                1 => ledger.result(at),
                kind => ledger.compute(at, kind == 2),
            }
        }
        assert_eq!((ledger.flying, ledger.is_computing), (0, false));
        ledger.times
    }

    #[test]
    fn utilization_is_computation_while_operations_are_in_flight() {
        // A plain call, then computation.
        let one_by_one = times(&[(10, 40), (60, 70)], &[(40, 60), (70, 90)]);
        let expected = Times { computing: 40, in_flight: 40, overlap: 0, operations: 40 };
        assert_eq!((one_by_one, one_by_one.utilization()), (expected, 0.0));
        // Two reads at a time, and a computation that lasts longer than they do.
        let both = times(&[(0, 100), (50, 150)], &[(20, 60), (120, 250)]);
        let expected = Times { computing: 170, in_flight: 150, overlap: 70, operations: 200 };
        assert_eq!(both, expected);
        assert_eq!(times(&[(0, 100)], &[(0, 100)]).utilization(), 1.0);
        assert_eq!(times(&[], &[(0, 100)]).utilization(), 0.0);
    }

    #[test]
    fn times_are_those_of_each_moment() {
        let mut rng = fastrand::Rng::with_seed(24);
        for _ in 0..200 {
            let span = |rng: &mut fastrand::Rng| {
                let begin = rng.u64(0..100);
                (begin, rng.u64(begin + 1..=101))
            };
            let flights: Vec<_> = (0..rng.usize(0..6)).map(|_| span(&mut rng)).collect();
            // A thread computes one thing at a time.
            let (mut computing, mut at) = (Vec::new(), 0);
            while at < 90 && rng.bool() {
                let begin = rng.u64(at..95);
                let end = rng.u64(begin + 1..=100);
                computing.push((begin, end));
                at = end + 1;
            }
            let mut expected = Times::default();
            for moment in 0..101 {
                let is_in = |&&(begin, end): &&(u64, u64)| (begin..end).contains(&moment);
                let flying = flights.iter().filter(is_in).count() as u64;
                let is_computing = computing.iter().any(|span| is_in(&span));
                expected.in_flight += u64::from(flying > 0);
                expected.operations += flying;
                expected.computing += u64::from(is_computing);
                expected.overlap += u64::from(is_computing && flying > 0);
            }
            assert_eq!(times(&flights, &computing), expected, "{flights:?} {computing:?}");
        }
    }
}
