//! Random numbers that are the same in each run.

use std::fmt::Debug;

use sakia_bench_support::mix;

use crate::settings::number;
use crate::shrink::smallest;

/// A sequence of random numbers that depends on its seed alone (splitmix64).
///
/// # Examples
/// ```
/// use sakia_testkit::random::Random;
///
/// let throws = |seed| {
///     let mut random = Random::new(seed);
///     [(); 9].map(|()| random.below(6))
/// };
/// assert_eq!(throws(1), throws(1));
/// assert_ne!(throws(1), throws(2));
/// ```
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn word(&mut self) -> u64 {
        let word = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word
    }

    /// Returns a number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }

    /// Returns true in `chance` percent of the calls.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns one of these values.
    ///
    /// # Panics
    /// If there are none.
    pub fn one_of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize].clone()
    }
}

/// Runs random programs, and shows the first one that fails, with as few steps as still fail.
///
/// The seeds count up from `SAKIA_TEST_SEED`, or 0. There are `SAKIA_TEST_PROGRAMS` of them, or `programs`.
/// `make` makes a program of a seed; `run` returns how it fails.
///
/// # Panics
/// If a program fails.
///
/// # Examples
/// ```
/// use sakia_testkit::random::{Random, programs};
///
/// let make = |random: &mut Random| vec![random.below(6); 10];
/// programs(20, make, |throws| {
///     let sum: u64 = throws.iter().sum();
///     (sum > 5 * throws.len() as u64).then(|| format!("a sum of {sum}"))
/// });
/// ```
#[track_caller]
pub fn programs<T: Clone + Debug>(
    programs: u64,
    make: impl Fn(&mut Random) -> Vec<T>,
    run: impl Fn(&[T]) -> Option<String>,
) {
    let first = number("SAKIA_TEST_SEED", 0);
    for seed in first..first + number("SAKIA_TEST_PROGRAMS", programs) {
        let program = make(&mut Random::new(seed));
        if let Some(first) = run(&program) {
            let few = smallest(program, |steps| run(steps).is_some());
            let failure =
                run(&few).unwrap_or_else(|| format!("not in each run, at first: {first}"));
            panic!("seed {seed}: {few:#?}\n{failure}");
        }
    }
}
