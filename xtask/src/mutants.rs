//! Shows that the tests catch known bugs.
//!
//! Known bugs are replacements of text in the sources, listed in `known.toml` together with the tests that
//! must catch them. They are put into a copy of the tree. The steps:
//! 1. make the copy, in which each bug can be switched on, and build its test programs once;
//! 2. run each selection of tests with no bug switched on. They must pass, or the rest would prove nothing;
//! 3. for each bug, run its tests with the bug switched on, until the first fails. A crash counts as caught,
//!    and so does a hang: many times the duration without the bug.
//!
//! Two programs run at a time, if the machine has two processors. The build has its own target directory, so
//! that wrong code is never linked into anything else.

mod copy;
mod draw;
mod known;
mod places;
mod sample;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Context;

pub(crate) use self::draw::run as draw;
use self::known::Bug;
pub(crate) use self::sample::run as sample;
use crate::cargo;
use crate::suites::{Outcome, Programs, Suite, Tests, Usual, in_parallel};

/// The number of runs of tests that a bug does not make fail.
const TRIES: u32 = 20;

/// A known bug, and tests that are to catch it.
type Mutant<'a> = (&'a Bug, Tests<'a>);

/// The random programs, for bugs that are `swept`.
const SWEPT: Tests<'static> = Tests { suite: Suite::Sweep, words: "a_thousand_seeds" };

/// Which known bugs to try.
#[derive(Debug)]
pub(crate) enum Choice {
    All,
    /// All that are not `in_turn`, and a part of the others, chosen by the last commit.
    Quick,
    Names(Vec<String>),
}

/// [`Choice::Quick`] tries one in this many bugs that are `in_turn`.
const PARTS: usize = 3;

/// Runs the tests for the bugs that are chosen, and prints a line for each.
///
/// # Errors
/// When the tests cannot be built or started, or fail with no bug switched on.
pub(crate) fn run(root: &Path, choice: &Choice) -> anyhow::Result<ExitCode> {
    let bugs = known::read()?;
    let all = all(&bugs);
    let is_known = |name: &&String| all.iter().any(|(bug, _)| bug.name == **name);
    if let Choice::Names(names) = choice
        && let Some(unknown) = names.iter().find(|name| !is_known(name))
    {
        eprintln!("no mutant {unknown}; there are:");
        all.iter().for_each(|(known, _)| eprintln!("  {}: {}", known.name, known.what));
        return Ok(ExitCode::from(2));
    }
    let mutants = choose(root, choice, all)?;
    let programs = build(root, &bugs)?;
    let usual = programs.time_without_bugs(mutants.iter().map(|&(_, tests)| tests).collect())?;
    let caught = try_all(
        &mutants,
        |(bug, _)| &bug.name,
        |&(bug, tests)| {
            Ok(match try_often(&programs, tests, &bug.name, usual[&tests])? {
                Outcome::Caught(by) => Ok(by),
                Outcome::Passed(_) => Err(format!("{tests}: {}", bug.what)),
            })
        },
    )?;
    Ok(if caught == mutants.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tries each bug, a few at a time, and prints a line for each, with its time and the test that caught it,
/// or the surviving bug. Returns the number of caught bugs.
fn try_all<T: Sync>(
    bugs: &[T],
    name: impl Fn(&T) -> &str + Sync,
    judge: impl Fn(&T) -> anyhow::Result<Result<String, String>> + Sync,
) -> anyhow::Result<usize> {
    let width = bugs.iter().map(|bug| name(bug).len()).max().unwrap_or(0);
    let outcomes = in_parallel(bugs, |bug| {
        let begin = Instant::now();
        let verdict = judge(bug)?;
        let seconds = begin.elapsed().as_secs_f64();
        let shown = match &verdict {
            Ok(by) => format!("caught by {by}"),
            Err(survivor) => format!("SURVIVED {survivor}"),
        };
        println!("{:width$}  {seconds:5.1} s  {shown}", name(bug));
        anyhow::Ok(verdict.is_ok())
    });
    let mut caught = 0;
    for outcome in outcomes {
        caught += usize::from(outcome?);
    }
    println!("{caught} of {} caught", bugs.len());
    Ok(caught)
}

/// Makes the copy of the tree with these bugs, and builds its tests.
fn build(root: &Path, bugs: &[Bug]) -> anyhow::Result<Programs> {
    let target = cargo::target_folder(root).join("mutants");
    let copy = target.join("tree");
    copy::make(root, &copy, bugs)?;
    // Always the same packages: a build that depended on the choice would be repeated.
    let packages = all(bugs).iter().map(|(_, tests)| tests.suite.program().0).collect();
    // Wrong code may have warnings.
    Programs::build(&copy, &target, &packages, Some("--cap-lints allow")).with_context(|| {
        format!("with the known bugs at\n{}in {}", copy::lines(&copy, bugs), copy.display())
    })
}

/// Runs a bug's tests, whose durations without it are `usual`, until one fails. Some bugs show only in a rare
/// order of threads.
fn try_often(
    programs: &Programs,
    tests: Tests<'_>,
    bug: &str,
    usual: Usual,
) -> anyhow::Result<Outcome> {
    let mut outcome = programs.try_bug(tests, bug, usual)?;
    for _ in 1..if tests.words.is_empty() { 1 } else { TRIES } {
        if matches!(outcome, Outcome::Caught(_)) {
            break;
        }
        outcome = programs.try_bug(tests, bug, usual)?;
    }
    Ok(outcome)
}

/// Returns the chosen bugs.
fn choose<'a>(
    root: &Path,
    choice: &Choice,
    mut all: Vec<Mutant<'a>>,
) -> anyhow::Result<Vec<Mutant<'a>>> {
    match choice {
        Choice::All => {}
        Choice::Quick => {
            let part = part_of_commit(root)?;
            println!("part {part} of {PARTS} of those that are in turn, and all others");
            all = quick(all, part);
        }
        Choice::Names(names) => all.retain(|(bug, _)| names.contains(&bug.name)),
    }
    Ok(all)
}

/// Returns all that are not `in_turn`, and this part of the others.
fn quick(all: Vec<Mutant<'_>>, part: usize) -> Vec<Mutant<'_>> {
    let (in_turn, mut chosen): (Vec<_>, Vec<_>) = all.into_iter().partition(|(bug, _)| bug.in_turn);
    chosen.extend(in_turn.into_iter().skip(part - 1).step_by(PARTS));
    chosen
}

/// Returns the part of those `in_turn` that the last commit chooses, from 1.
fn part_of_commit(root: &Path) -> anyhow::Result<usize> {
    let mut command = Command::new("git");
    let output = command.current_dir(root).args(["rev-parse", "HEAD"]).output();
    let commit = output.context("cannot run git")?.stdout;
    let digits = commit.iter().filter_map(|&byte| char::from(byte).to_digit(16));
    Ok(digits.sum::<u32>() as usize % PARTS + 1)
}

/// Returns all known bugs except equivalent ones. A bug without a suite, which its author has yet to find,
/// comes once for each possible suite.
fn all(bugs: &[Bug]) -> Vec<Mutant<'_>> {
    let with_tests = bugs.iter().filter(|bug| bug.equivalent.is_none()).flat_map(|bug| {
        let of_entry = bug.suites().into_iter().map(|suite| Tests { suite, words: &bug.tests });
        of_entry.chain(bug.swept.then_some(SWEPT)).map(move |tests| (bug, tests))
    });
    with_tests.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_programs_find_at_least_25_bugs() {
        let bugs = known::read().unwrap();
        let all = all(&bugs);
        let found = all.iter().filter(|(_, tests)| tests.suite == Suite::Sweep).count();
        assert!(found >= 25, "{found}");
    }

    #[test]
    fn a_commit_chooses_a_part() {
        let part = part_of_commit(&crate::repository_root()).unwrap();
        assert!((1..=PARTS).contains(&part), "{part}");
        let bugs = known::read().unwrap();
        let all = all(&bugs);
        let always = all.iter().filter(|(bug, _)| !bug.in_turn).count();
        let parts = (1..=PARTS).map(|part| quick(all.clone(), part).len() - always);
        assert_eq!(parts.sum::<usize>(), all.len() - always);
    }
}
