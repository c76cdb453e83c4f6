//! The steps under way: another thread finds those that never end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The steps that are under way.
#[derive(Debug, Default)]
pub(super) struct Board {
    steps: Mutex<Steps>,
}

#[derive(Debug, Default)]
struct Steps {
    /// The number of the last step.
    last: u64,
    under_way: BTreeMap<u64, (&'static str, Instant)>,
}

impl Board {
    /// Records that a step begins; it is under way until the returned value is dropped.
    pub(super) fn begin(self: &Arc<Self>, name: &'static str) -> Step {
        let mut steps = self.lock();
        steps.last += 1;
        let number = steps.last;
        steps.under_way.insert(number, (name, Instant::now()));
        Step { board: Arc::clone(self), number }
    }

    /// Returns the number of steps under way.
    pub(super) fn len(&self) -> usize {
        self.lock().under_way.len()
    }

    /// Returns the steps that have taken longer than `patience`.
    pub(super) fn stuck(&self, patience: Duration) -> Stuck {
        let steps = self.lock();
        let ages = steps.under_way.values().map(|&(name, begin)| (name, begin.elapsed()));
        Stuck(ages.filter(|&(_, age)| age > patience).collect())
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A step under way.
#[derive(Debug)]
pub(super) struct Step {
    board: Arc<Board>,
    /// The number of the step, which is unique.
    pub(super) number: u64,
}

impl Drop for Step {
    fn drop(&mut self) {
        self.board.lock().under_way.remove(&self.number);
    }
}

/// Steps that do not end, with their ages.
#[derive(Debug)]
pub(super) struct Stuck(Vec<(&'static str, Duration)>);

impl Stuck {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "these steps do not end, a wake may be lost:")?;
        for (name, age) in &self.0 {
            write!(f, " {name} ({} s)", age.as_secs())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_does_not_end_is_named() {
        let board = Arc::new(Board::default());
        let step = board.begin("one that waits");
        assert!(board.stuck(Duration::MAX).is_empty());
        while board.stuck(Duration::ZERO).is_empty() {}
        assert!(board.stuck(Duration::ZERO).to_string().contains("one that waits"));
        drop(step);
        assert!(board.stuck(Duration::ZERO).is_empty());
        assert_eq!(board.len(), 0);
    }
}
