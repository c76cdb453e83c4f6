//! Known bugs of the driver, drawn by a seed, against whole suites: the value of the tests that run after
//! each change. No test is preferred, and each suite runs once.

use std::path::Path;
use std::process::ExitCode;

use anyhow::ensure;

use super::draw::Random;
use super::known::{self, Bug};
use super::try_all;
use crate::suites::{Outcome, Suite, Tests};

/// The folder of the bugs.
const SOURCES: &str = "crates/sakia-driver/src/";
/// The required number of caught bugs in twenty.
const CAUGHT_MIN: usize = 16;

/// Draws the bugs, and runs the suites for each until a test fails. Fails if too few of them do so.
///
/// # Errors
/// The tests do not build, or fail with no bug switched on.
pub(crate) fn run(
    root: &Path,
    suites: &[Suite],
    count: usize,
    seed: u64,
) -> anyhow::Result<ExitCode> {
    let bugs = known::read()?;
    let drawn = drawn(&bugs, count, seed)?;
    let programs = super::build(root, &bugs)?;
    let whole = |&suite| Tests { suite, words: "" };
    let usual = programs.time_without_bugs(suites.iter().map(whole).collect())?;
    let caught = try_all(
        &drawn,
        |bug| bug.name.as_str(),
        |bug| {
            for tests in suites.iter().map(whole) {
                if let Outcome::Caught(by) = programs.try_bug(tests, &bug.name, usual[&tests])? {
                    return Ok(Ok(format!("{:?}, {by}", tests.suite)));
                }
            }
            Ok(Err(bug.what.clone()))
        },
    )?;
    Ok(if is_enough(caught, count) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns this number of bugs, in the order of the draw.
fn drawn(bugs: &[Bug], count: usize, seed: u64) -> anyhow::Result<Vec<&Bug>> {
    let mut rest: Vec<&Bug> = of_driver(bugs).collect();
    ensure!(count <= rest.len(), "the driver has only {} known bugs", rest.len());
    let mut random = Random(seed);
    Ok((0..count).map(|_| rest.swap_remove(random.below(rest.len()))).collect())
}

fn of_driver(bugs: &[Bug]) -> impl Iterator<Item = &Bug> {
    bugs.iter().filter(|bug| bug.equivalent.is_none() && bug.file.starts_with(SOURCES))
}

fn is_enough(caught: usize, count: usize) -> bool {
    20 * caught >= CAUGHT_MIN * count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_each_bug_once() {
        let bugs = known::read().unwrap();
        let all = of_driver(&bugs).count();
        assert!(all >= 20, "{all}");
        let names = |count, seed| {
            let drawn = drawn(&bugs, count, seed).unwrap();
            drawn.iter().map(|bug| bug.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(20, 1), names(20, 1));
        assert_ne!(names(20, 1), names(20, 2));
        let mut whole = names(all, 3);
        whole.sort_unstable();
        whole.dedup();
        assert_eq!(whole.len(), all);
        assert!(drawn(&bugs, all + 1, 3).is_err());
    }

    #[test]
    fn sixteen_of_twenty_are_enough() {
        assert!(is_enough(16, 20) && !is_enough(15, 20));
        assert!(is_enough(8, 10) && !is_enough(0, 1) && is_enough(0, 0));
    }
}
