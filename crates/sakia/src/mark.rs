//! Metadata of a task, readable without its future.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use sakia_driver::TaskOrigin;

/// The number of the next task that is looked at.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The place that spawned a task, and the task's number once it was needed.
#[derive(Debug)]
pub(crate) struct Mark {
    spawned_at: &'static Location<'static>,
    /// Zero until it is asked for.
    number: AtomicU64,
}

impl Mark {
    #[inline(always)]
    pub(crate) const fn new(spawned_at: &'static Location<'static>) -> Self {
        Self { spawned_at, number: AtomicU64::new(0) }
    }

    /// The task, with a number that no other has. To be called on one thread.
    pub(crate) fn origin(&self) -> TaskOrigin {
        let mut number = self.number.load(Ordering::Relaxed);
        if number == 0 {
            number = NEXT.fetch_add(1, Ordering::Relaxed);
            self.number.store(number, Ordering::Relaxed);
        }
        TaskOrigin::new(number, self.spawned_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_keeps_its_number() {
        let (first, second) = (Mark::new(Location::caller()), Mark::new(Location::caller()));
        assert_eq!(first.origin(), first.origin());
        assert_ne!(first.origin().number, second.origin().number);
    }
}
