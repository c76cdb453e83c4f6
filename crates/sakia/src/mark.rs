//! Metadata of a task, readable without its future.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use sakia_driver::TaskOrigin;

/// The next task number to be given out.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The place that spawned a task, and the task's number once it was needed.
#[derive(Debug)]
pub(crate) struct Mark {
    spawned_at: &'static Location<'static>,
    /// Zero until the number is first needed.
    number: AtomicU64,
}

impl Mark {
    #[inline(always)]
    pub(crate) const fn new(spawned_at: &'static Location<'static>) -> Self {
        Self { spawned_at, number: AtomicU64::new(0) }
    }

    /// Returns the task's origin, with a number that no other task has. Must be called on one thread only.
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
