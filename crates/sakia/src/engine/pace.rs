//! Learns whether it pays to wait for writers before a group commit.
//!
//! Writers that wait for the same sync come again together, some microseconds after it. A performer that
//! goes on at once with those that have come meanwhile serves one half of the writers with each sync, in
//! turns. If it waits for the other half, a sync serves all of them. It waits for half of the time that a
//! round takes, at most; where the writers do not come within that, it does so ever more seldom.

use std::time::Duration;

/// Rounds shorter than this are not worth a wait: waking the performer takes as long.
const ROUND_MIN: Duration = Duration::from_micros(40);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_millis(2);
/// The most rounds between two waits.
const SKIPPED_MAX: u32 = 64;

/// The length of rounds, and what became of waits.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// A moving average.
    round: Duration,
    /// Waits that are left out before the next one.
    skipped: u32,
    /// Waits to be left out after the next one in vain.
    penalty: u32,
}

impl Pace {
    /// Notes the time that a round has taken.
    pub(super) fn took(&mut self, round: Duration) {
        self.round = if self.round.is_zero() { round } else { (self.round * 7 + round) / 8 };
    }

    /// Returns how long to wait for writers that may come; `None` if not at all.
    pub(super) fn wait(&mut self) -> Option<Duration> {
        if self.skipped > 0 {
            self.skipped -= 1;
            return None;
        }
        (self.round >= ROUND_MIN).then(|| (self.round / 2).min(WAIT_MAX))
    }

    /// Notes whether the writers have come.
    pub(super) fn waited(&mut self, have_come: bool) {
        if have_come {
            self.penalty /= 2;
        } else {
            self.penalty = (self.penalty * 2).clamp(1, SKIPPED_MAX);
            self.skipped = self.penalty;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_rounds(round: Duration) -> Pace {
        let mut pace = Pace::default();
        pace.took(round);
        pace
    }

    #[test]
    fn waits_are_shorter_than_rounds_and_short_rounds_have_none() {
        assert_eq!(Pace::default().wait(), None);
        assert_eq!(of_rounds(Duration::from_micros(20)).wait(), None);
        assert_eq!(of_rounds(Duration::from_millis(1)).wait(), Some(Duration::from_micros(500)));
        assert_eq!(of_rounds(Duration::from_secs(1)).wait(), Some(WAIT_MAX));
        let mut pace = of_rounds(Duration::from_millis(8));
        pace.took(Duration::ZERO);
        assert_eq!(pace.round, Duration::from_millis(7));
    }

    #[test]
    fn waits_in_vain_become_rare() {
        let mut pace = of_rounds(Duration::from_millis(1));
        let mut waits = 0;
        for _ in 0..10_000 {
            if pace.wait().is_some() {
                waits += 1;
                pace.waited(false);
            }
        }
        assert!((150..170).contains(&waits), "{waits}");
        // Waits are frequent again once writers come.
        for _ in 0..=SKIPPED_MAX {
            if pace.wait().is_some() {
                pace.waited(true);
            }
        }
        assert!((0..10).all(|_| pace.wait().is_some()));
    }
}
