//! Values that report their drop.
//!
//! A test puts a [`DropProbe`] into a value that must be dropped once, and not before some point, and
//! queries the [`DropCounter`] it came from. Each probe is tracked by itself, so that one dropped twice does
//! not hide another that leaked. A counter's record is never freed: a probe that faulty unsafe code drops a
//! second time is then a failed assertion, not an access to freed memory.
//!
//! Any thread may call these.
//!
//! ```
//! use sakia_testkit::drop_probe::DropCounter;
//!
//! let counter = DropCounter::new();
//! let buffer = (vec![0; 512], counter.probe());
//! assert_eq!(counter.dropped(), 0);
//! drop(buffer);
//! counter.assert_each_dropped_once();
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of drops of each probe of a counter, by the probe's number.
type Drops = Mutex<Vec<u32>>;

/// Holds every counter's record, so that leak checkers see them as reachable.
static RECORDS: Mutex<Vec<&'static Drops>> = Mutex::new(Vec::new());

/// Makes [`DropProbe`]s and counts their drops. Copies share the count.
#[derive(Clone, Copy, Debug)]
pub struct DropCounter {
    drops: &'static Drops,
}

impl DropCounter {
    /// Returns a counter without probes.
    #[expect(clippy::new_without_default, reason = "a default that leaks would surprise")]
    pub fn new() -> Self {
        let drops: &'static Drops = Box::leak(Box::default());
        RECORDS.lock().unwrap_or_else(PoisonError::into_inner).push(drops);
        Self { drops }
    }

    /// Returns a new probe, which reports its drop here.
    pub fn probe(&self) -> DropProbe {
        let mut drops = lock(self.drops);
        drops.push(0);
        DropProbe { drops: self.drops, index: drops.len() - 1 }
    }

    /// Returns the number of probes made so far.
    pub fn made(&self) -> usize {
        lock(self.drops).len()
    }

    /// Returns the number of probes dropped at least once.
    pub fn dropped(&self) -> usize {
        lock(self.drops).iter().filter(|&&count| count > 0).count()
    }

    /// Returns the number of probes not dropped yet.
    pub fn live(&self) -> usize {
        lock(self.drops).iter().filter(|&&count| count == 0).count()
    }

    /// Asserts that every probe made so far was dropped exactly once.
    ///
    /// # Panics
    /// If one was not; the message names the probes by the order of their creation, from 0. Also if no probe
    /// was made: that would prove nothing.
    #[track_caller]
    pub fn assert_each_dropped_once(&self) {
        let drops = lock(self.drops).clone();
        assert!(!drops.is_empty(), "no probe was made");
        let which = |wanted: fn(u32) -> bool| -> Vec<usize> {
            (0..drops.len()).filter(|&index| wanted(drops[index])).collect()
        };
        let (never, again) = (which(|count| count == 0), which(|count| count > 1));
        assert!(
            never.is_empty() && again.is_empty(),
            "of {} probes, never dropped: {never:?}, dropped more than once: {again:?}",
            drops.len(),
        );
    }
}

/// Reports its drop to the [`DropCounter`] that made it.
#[derive(Debug)]
pub struct DropProbe {
    /// The record of the probe's counter.
    drops: &'static Drops,
    /// This probe's place in it.
    index: usize,
}

impl Drop for DropProbe {
    fn drop(&mut self) {
        lock(self.drops)[self.index] += 1;
    }
}

/// After a panic the record is still consistent; the poisoning is ignored.
fn lock(drops: &Drops) -> MutexGuard<'_, Vec<u32>> {
    drops.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{self, AssertUnwindSafe};
    use std::{ptr, thread};

    use super::*;

    fn panics(f: impl FnOnce()) -> bool {
        panic::catch_unwind(AssertUnwindSafe(f)).is_err()
    }

    #[test]
    fn each_drop_is_counted_when_it_happens() {
        let counter = DropCounter::new();
        let (first, second) = (counter.probe(), counter.probe());
        assert_eq!((counter.made(), counter.live(), counter.dropped()), (2, 2, 0));
        drop(first);
        assert_eq!((counter.made(), counter.live(), counter.dropped()), (2, 1, 1));
        drop(second);
        assert_eq!((counter.made(), counter.live(), counter.dropped()), (2, 0, 2));
        counter.assert_each_dropped_once();
    }

    #[test]
    fn drops_on_other_threads_count() {
        let counter = DropCounter::new();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| drop(counter.probe())));
            }
        });
        assert_eq!(counter.made(), 400);
        counter.assert_each_dropped_once();
    }

    #[test]
    fn a_leak_fails_the_assertion() {
        let counter = DropCounter::new();
        let probe = counter.probe();
        assert!(panics(|| counter.assert_each_dropped_once()));
        drop(probe);
        counter.assert_each_dropped_once();
    }

    #[test]
    fn no_probe_fails_the_assertion() {
        assert!(panics(|| DropCounter::new().assert_each_dropped_once()));
    }

    #[test]
    fn a_double_drop_does_not_hide_a_leak() {
        let counter = DropCounter::new();
        let twice = counter.probe();
        let leaked = counter.probe();
        // SAFETY: a probe owns nothing and its record is never freed, so that dropping a copy as
        // well as the original touches valid memory only; it is the fault to be found.
        drop(unsafe { ptr::read(&twice) });
        drop(twice);
        assert_eq!((counter.made(), counter.dropped(), counter.live()), (2, 1, 1));
        assert!(panics(|| counter.assert_each_dropped_once()));
        drop(leaked);
        assert!(panics(|| counter.assert_each_dropped_once()));
    }
}
