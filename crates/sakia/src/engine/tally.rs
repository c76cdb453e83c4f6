//! The counters of an engine. Each thread counts separately: a counter that all of them wrote to would cost
//! more than the calls that it counts.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Statistics;

/// Parts of the counters; further threads share them.
const PARTS: usize = 16;

/// Counts of requests.
#[derive(Default)]
pub(super) struct Tally {
    parts: [Part; PARTS],
}

/// The counts of some of the threads, in cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Part {
    pub(super) now: AtomicU64,
    pub(super) waited: AtomicU64,
    pub(super) submitted: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Tally {
    /// Returns the part of the calling thread.
    #[inline]
    fn part(&self) -> &Part {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static PART: Cell<Option<usize>> = const { Cell::new(None) };
        }
        let number = PART.get().unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
            PART.set(Some(number));
            number
        });
        &self.parts[number]
    }

    #[inline]
    pub(super) fn count(&self, what: fn(&Part) -> &AtomicU64) {
        what(self.part()).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the sums over all threads. Requests under way are not counted here.
    pub(super) fn totals(&self) -> Statistics {
        let sum = |count: fn(&Part) -> &AtomicU64| {
            self.parts.iter().map(|part| count(part).load(Ordering::Relaxed)).sum()
        };
        Statistics {
            now: sum(|part| &part.now),
            waited: sum(|part| &part.waited),
            submitted: sum(|part| &part.submitted),
            live: 0,
            refused: sum(|part| &part.refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ptr;
    use std::thread;

    use super::*;

    #[test]
    fn threads_count_apart_and_all_is_counted() {
        let tally = Tally::default();
        let count = || {
            tally.count(|part| &part.now);
            ptr::from_ref(tally.part()).addr()
        };
        let parts: BTreeSet<usize> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // The parts may be fewer than eight, since threads of other tests take some, too.
        assert!(parts.len() > 1, "all write to one cache line");
        assert_eq!(tally.totals().now, 8);
    }
}
