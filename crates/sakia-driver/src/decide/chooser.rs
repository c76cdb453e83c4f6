//! The choice between two ways to do the same work, by their measured costs.
//!
//! The work is divided into epochs. The owner of a [`Chooser`] measures the cost of a unit of work in each
//! and reports it; the chooser returns the way for the next epoch:
//! 1. The better way so far is used. After the first epochs, and then more and more rarely, the other has one
//!    epoch: a trial.
//! 2. If the trial was better, the ways are compared: they alternate, [`limits::ROUNDS`] epochs each. The
//!    other way is taken if it is better in each pair of epochs: a load that changes meanwhile decides
//!    nothing.
//! 3. If the cost of the way in use changes by a quarter for two epochs, the work has changed, and the ways
//!    are compared as well. Comparisons that confirm the way make the next one wait longer.
//!
//! The first way is the simpler one: the second has to be more than 5 % cheaper.

use super::limits;

/// Chooses between the ways 0 and 1.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    /// The better way, as far as is known.
    best: usize,
    /// The way in use.
    way: usize,
    /// The last costs of each way, newest last. 0: none.
    costs: [[u64; limits::ROUNDS]; 2],
    /// The epochs that a comparison under way still takes.
    comparing: usize,
    /// Epochs until the next trial.
    wait: u32,
    /// Epochs between two trials.
    trial_interval: u32,
    /// The usual cost of the best way.
    usual: u64,
    /// The number of consecutive epochs of another cost.
    strange: u32,
    /// Epochs in which unusual costs begin no comparison.
    calm: u32,
    /// The length of `calm` after the next comparison.
    calm_interval: u32,
    comparisons: u64,
    changes: u64,
}

impl Chooser {
    pub(crate) const fn new() -> Self {
        Self {
            best: 0,
            way: 0,
            costs: [[0; limits::ROUNDS]; 2],
            comparing: 0,
            wait: limits::WARM_UP,
            trial_interval: limits::TRIALS_APART[0],
            usual: 0,
            strange: 0,
            calm: 0,
            calm_interval: limits::TRIALS_APART[0],
            comparisons: 0,
            changes: 0,
        }
    }

    /// Returns the way that is used outside of trials.
    pub(crate) fn best(&self) -> usize {
        self.best
    }

    /// Returns the numbers of comparisons, and of those that changed the way.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        (self.comparisons, self.changes)
    }

    /// Returns the median of the last costs of a way; `None` as long as it was not used.
    pub(crate) fn cost(&self, way: usize) -> Option<u64> {
        let mut costs = self.costs[way];
        costs.sort_unstable();
        let known = &costs[costs.iter().filter(|&&cost| cost == 0).count()..];
        known.get(known.len() / 2).copied()
    }

    /// Takes the cost of a unit in the epoch that has ended, and returns the way for the next one.
    pub(crate) fn note(&mut self, cost: u64) -> usize {
        let cost = cost.max(1);
        self.costs[self.way].rotate_left(1);
        self.costs[self.way][limits::ROUNDS - 1] = cost;
        if self.comparing > 0 {
            self.comparing -= 1;
            self.way = 1 - self.way;
            if self.comparing == 0 {
                self.decide();
            }
        } else if self.way == self.best {
            self.note_usual(cost);
        } else {
            self.note_trial(cost);
        }
        self.way
    }

    fn compare(&mut self) {
        self.comparing = 2 * limits::ROUNDS;
        self.comparisons += 1;
    }

    /// Returns whether the second way is better at these costs.
    fn is_second_better(first: u64, second: u64) -> bool {
        second.saturating_mul(100) < first.saturating_mul(95)
    }

    fn decide(&mut self) {
        let pairs = self.costs[0].iter().zip(&self.costs[1]);
        let mut betters = pairs.map(|(&a, &b)| usize::from(Self::is_second_better(a, b)));
        let better =
            if betters.all(|better| better != self.best) { 1 - self.best } else { self.best };
        if better == self.best {
            self.calm_interval = (self.calm_interval * 2).min(limits::TRIALS_APART[1]);
        } else {
            self.changes += 1;
            self.calm_interval = limits::TRIALS_APART[0];
            self.trial_interval = limits::TRIALS_APART[0];
        }
        (self.best, self.way) = (better, better);
        self.usual = self.cost(better).unwrap_or(0);
        (self.strange, self.calm) = (0, self.calm_interval);
        self.wait = self.trial_interval;
    }

    fn note_usual(&mut self, cost: u64) {
        self.calm = self.calm.saturating_sub(1);
        let is_strange = self.usual > 0 && (cost > self.usual / 4 * 5 || cost < self.usual / 5 * 4);
        if is_strange {
            self.strange += 1;
        } else {
            self.strange = 0;
            self.usual = if self.usual == 0 { cost } else { (self.usual * 7 + cost) / 8 };
        }
        self.wait = self.wait.saturating_sub(1);
        if self.strange >= limits::STRANGE && self.calm == 0 {
            self.compare();
        } else if self.wait == 0 {
            self.way = 1 - self.best;
        }
    }

    fn note_trial(&mut self, cost: u64) {
        let costs = if self.best == 0 { (self.usual, cost) } else { (cost, self.usual) };
        self.way = self.best;
        let better = usize::from(Self::is_second_better(costs.0, costs.1));
        if better == self.best {
            self.rest();
        } else {
            self.compare();
        }
    }

    /// Waits for the next trial, twice as long as before.
    fn rest(&mut self) {
        self.trial_interval = (self.trial_interval * 2).min(limits::TRIALS_APART[1]);
        self.wait = self.trial_interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports `epochs` epochs at these costs. Returns how many of them went the second way.
    fn run(chooser: &mut Chooser, way: &mut usize, costs: [u64; 2], epochs: u32) -> u32 {
        (0..epochs)
            .map(|_| {
                let used = *way;
                *way = chooser.note(costs[used]);
                used as u32
            })
            .sum()
    }

    #[test]
    fn the_cheaper_way_is_in_use_after_nine_epochs() {
        for (costs, best) in [([100, 80], 1), ([80, 100], 0), ([100, 96], 0), ([96, 100], 0)] {
            let (mut chooser, mut way) = (Chooser::new(), 0);
            run(&mut chooser, &mut way, costs, limits::WARM_UP + 1 + 2 * limits::ROUNDS as u32);
            assert_eq!((way, chooser.best()), (best, best), "{costs:?}");
            assert_eq!([0, 1].map(|way| chooser.cost(way)), costs.map(Some));
            assert_eq!(chooser.numbers(), (best as u64, best as u64));
        }
    }

    #[test]
    fn the_worse_way_gets_few_epochs() {
        for costs in [[100, 120], [120, 100]] {
            let (mut chooser, mut way) = (Chooser::new(), 0);
            run(&mut chooser, &mut way, costs, 100);
            let seconds = run(&mut chooser, &mut way, costs, 1000);
            let others = if chooser.best() == 0 { seconds } else { 1000 - seconds };
            assert!((5..=12).contains(&others), "{others}");
            assert!(chooser.numbers().0 <= 1, "one comparison suffices");
        }
    }

    #[test]
    fn a_change_is_detected_in_a_few_epochs() {
        let (mut chooser, mut way) = (Chooser::new(), 0);
        run(&mut chooser, &mut way, [100, 80], 500);
        assert_eq!(chooser.best(), 1);
        // The way in use has become more expensive than the other.
        run(&mut chooser, &mut way, [100, 150], limits::STRANGE + 2 * limits::ROUNDS as u32 + 1);
        assert_eq!((chooser.best(), way), (0, 0));
        // The other has become cheaper, which only a trial shows.
        run(
            &mut chooser,
            &mut way,
            [100, 70],
            limits::TRIALS_APART[1] + 2 * limits::ROUNDS as u32 + 1,
        );
        assert_eq!((chooser.best(), way), (1, 1));
        assert_eq!(chooser.numbers().1, 3);
    }

    #[test]
    fn one_strange_epoch_changes_nothing_and_noise_costs_little() {
        let (mut chooser, mut way) = (Chooser::new(), 0);
        run(&mut chooser, &mut way, [100, 80], 200);
        way = chooser.note(1_000);
        run(&mut chooser, &mut way, [100, 80], 20);
        assert_eq!((chooser.best(), chooser.numbers().0), (1, 1));
        // A load that changes all the time is compared less and less often.
        let before = chooser.numbers().0;
        for _ in 0..100 {
            run(&mut chooser, &mut way, [100, 80], 5);
            run(&mut chooser, &mut way, [400, 320], 5);
        }
        assert!(chooser.numbers().0 - before < 30, "{:?}", chooser.numbers());
    }
}
