//! Shows that the tests catch known bugs.
//!
//! Known bugs are text to replace, which `known.toml` lists together with the tests that are to catch them.
//! They are put into a copy of the tree. This
//! 1. makes the copy, in which each can be switched on, and builds its test programs once;
//! 2. runs each selection of tests in the table with no bug switched on. They must pass, or the rest
//!    would prove nothing;
//! 3. runs, for each bug, its tests with it switched on, until the first fails. A crash counts as
//!    caught, too, and so does a hang: many times as long as without the bug.
//!
//! Two programs run at a time, if there are as many processors. The build has a target directory of
//! its own, so that nothing else is ever linked with wrong code.

mod copy;
mod draw;
mod known;
mod places;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::cargo;

/// How long tests may take with no bug switched on.
const TIME_MAX: Duration = Duration::from_secs(600);
/// How long tests may take with a bug before they count as hanging: this, and
const HANG_MIN: Duration = Duration::from_secs(4);
/// as many times what they take without.
const HANG_FACTOR: u32 = 5;
/// How often tests are run that a bug does not make fail.
const TRIES: u32 = 20;
/// How long a test waits for what must happen, in seconds: less than usual, since with a bug it often
/// does not.
const PATIENCE_S: &str = "5";
/// Programs that run at a time.
const PARALLEL_MAX: usize = 2;

/// A known bug.
#[derive(Clone, Copy, Debug)]
struct Mutant<'a> {
    name: &'a str,
    /// What is wrong when it is switched on.
    what: &'a str,
    tests: Tests<'a>,
    /// A quick run has one of [`PARTS`] of these.
    in_turn: bool,
}

/// Tests to run: those of a suite whose names have one of these words in them, of the words between
/// spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tests<'a> {
    suite: Suite,
    words: &'a str,
}

impl fmt::Display for Tests<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.suite, self.words)
    }
}

/// A test program, and on which backend.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
enum Suite {
    /// `tests/driver` of `sakia-driver`: the core, mostly on the ring.
    Driver,
    /// `tests/allocations` there.
    Allocations,
    /// `tests/conformance` there: a test for each backend.
    Conformance,
    /// The unit tests there: those of the backend on epoll and of the simulated kernel, too.
    DriverUnits,
    /// `tests/runtime` of `sakia`, on the ring.
    RuntimeOnUring,
    /// The same on epoll and threads.
    RuntimeOnPoll,
    /// The unit tests there.
    RuntimeUnits,
    /// `tests/net` there, whose tests choose the backend themselves.
    Net,
    /// `tests/engine` there, likewise.
    Engine,
    /// `tests/simulated` there, on the simulated kernel.
    Simulated,
    /// `tests/faults` there, likewise.
    Faults,
    /// `tests/sweep` of `sakia-check`: the random programs of a thousand seeds.
    Sweep,
    /// `tests/ring` of `sakia-ring`.
    Ring,
    /// The unit tests there.
    RingUnits,
    /// `tests/fs` of `sakia-tokio`.
    Tokio,
    /// `tests/copy` of `sakia-copy`.
    Copy,
    /// The unit tests there.
    CopyUnits,
    /// `tests/cli` of `sakia-cli`.
    Cli,
}

impl Suite {
    /// The package, the name that Cargo gives the program, and what chooses the backend.
    fn program(self) -> (&'static str, &'static str, Option<&'static str>) {
        match self {
            Self::Driver => ("sakia-driver", "driver", None),
            Self::Allocations => ("sakia-driver", "allocations", None),
            Self::Conformance => ("sakia-driver", "conformance", None),
            Self::DriverUnits => ("sakia-driver", "sakia_driver", None),
            Self::RuntimeOnUring => ("sakia", "runtime", Some("uring")),
            Self::RuntimeOnPoll => ("sakia", "runtime", Some("poll")),
            Self::RuntimeUnits => ("sakia", "sakia", None),
            Self::Net => ("sakia", "net", None),
            Self::Engine => ("sakia", "engine", None),
            Self::Simulated => ("sakia", "simulated", None),
            Self::Faults => ("sakia", "faults", None),
            Self::Sweep => ("sakia-check", "sweep", None),
            Self::Ring => ("sakia-ring", "ring", None),
            Self::RingUnits => ("sakia-ring", "sakia_ring", None),
            Self::Tokio => ("sakia-tokio", "fs", None),
            Self::Copy => ("sakia-copy", "copy", None),
            Self::CopyUnits => ("sakia-copy", "sakia_copy", None),
            Self::Cli => ("sakia-cli", "cli", None),
        }
    }
}

/// The random programs, for bugs that are `swept`.
const SWEPT: Tests<'static> = Tests { suite: Suite::Sweep, words: "a_thousand_seeds" };

/// How the tests ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// That many.
    Passed(u32),
    /// By this test, signal or the like.
    Caught(String),
}

/// Which known bugs to try.
#[derive(Debug)]
pub(crate) enum Choice {
    All,
    /// All but those that are `in_turn`, and a part of these, which the last commit chooses.
    Quick,
    Names(Vec<String>),
}

/// Of so many bugs that are `in_turn`, one is tried by [`Choice::Quick`].
const PARTS: usize = 3;

/// Runs the tests for the bugs that are chosen, and prints a line for each.
///
/// # Errors
/// When the tests cannot be built or started, or fail with no bug switched on.
pub(crate) fn run(root: &Path, choice: &Choice) -> anyhow::Result<ExitCode> {
    let bugs = known::read()?;
    let all = all(&bugs);
    let is_known = |name: &&String| all.iter().any(|mutant| mutant.name == *name);
    if let Choice::Names(names) = choice
        && let Some(unknown) = names.iter().find(|name| !is_known(name))
    {
        eprintln!("no mutant {unknown}; there are:");
        all.iter().for_each(|known| eprintln!("  {}: {}", known.name, known.what));
        return Ok(ExitCode::from(2));
    }
    let mutants = choose(root, choice, &all)?;
    // Always the same ones: what is built must not depend on the choice, or it would be built anew.
    let packages: BTreeSet<&str> = all.iter().map(|m| m.tests.suite.program().0).collect();
    let target = cargo::target_folder(root).join("mutants");
    let copy = target.join("tree");
    copy::make(root, &copy, &bugs)?;
    let programs = build(&copy, &target, &packages).with_context(|| {
        format!("with the known bugs at\n{}in {}", copy::lines(&copy, &bugs), copy.display())
    })?;
    let bench = Bench { root: &copy, programs };
    let usual = bench.time_without_bugs(&mutants)?;
    let width = mutants.iter().map(|mutant| mutant.name.len()).max().unwrap_or(0);
    let outcomes = in_parallel(&mutants, |mutant| {
        let begin = Instant::now();
        let outcome = bench.try_often(mutant, usual[&mutant.tests])?;
        let seconds = begin.elapsed().as_secs_f64();
        let verdict = match &outcome {
            Outcome::Caught(by) => format!("caught by {by}"),
            Outcome::Passed(_) => format!("SURVIVED {}: {}", mutant.tests, mutant.what),
        };
        println!("{:width$}  {seconds:5.1} s  {verdict}", mutant.name);
        anyhow::Ok(matches!(outcome, Outcome::Caught(_)))
    });
    let mut caught = 0;
    for outcome in outcomes {
        caught += usize::from(outcome?);
    }
    println!("{caught} of {} caught", mutants.len());
    Ok(if caught == mutants.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The known bugs that are chosen.
fn choose<'a, 'b>(
    root: &Path,
    choice: &Choice,
    all: &'a [Mutant<'b>],
) -> anyhow::Result<Vec<&'a Mutant<'b>>> {
    Ok(match choice {
        Choice::All => all.iter().collect(),
        Choice::Quick => {
            let part = part_of_commit(root)?;
            println!("part {part} of {PARTS} of those that are in turn, and all others");
            quick(all, part)
        }
        Choice::Names(names) => {
            all.iter().filter(|mutant| names.iter().any(|name| name == mutant.name)).collect()
        }
    })
}

/// All that are not `in_turn`, and this part of those that are.
fn quick<'a, 'b>(all: &'a [Mutant<'b>], part: usize) -> Vec<&'a Mutant<'b>> {
    let (in_turn, mut chosen): (Vec<_>, Vec<_>) = all.iter().partition(|mutant| mutant.in_turn);
    chosen.extend(in_turn.into_iter().skip(part - 1).step_by(PARTS));
    chosen
}

/// The part of those that are `in_turn` that the last commit chooses, from 1.
fn part_of_commit(root: &Path) -> anyhow::Result<usize> {
    let mut command = Command::new("git");
    let output = command.current_dir(root).args(["rev-parse", "HEAD"]).output();
    let commit = output.context("cannot run git")?.stdout;
    let digits = commit.iter().filter_map(|&byte| char::from(byte).to_digit(16));
    Ok(digits.sum::<u32>() as usize % PARTS + 1)
}

/// All known bugs but those that are equivalent to what is right. One without a suite, which an author has
/// yet to find, comes once for each that might catch it.
fn all(bugs: &[known::Bug]) -> Vec<Mutant<'_>> {
    let with_tests = bugs.iter().filter(|bug| bug.equivalent.is_none()).flat_map(|bug| {
        let known::Bug { name, what, tests: words, in_turn, .. } = bug;
        let of_entry = bug.suites().into_iter().map(move |suite| Tests { suite, words });
        let tests = of_entry.chain(bug.swept.then_some(SWEPT));
        tests.map(move |tests| Mutant { name, what, tests, in_turn: *in_turn })
    });
    with_tests.collect()
}

/// Prints entries for new known bugs on lines that `seed` draws.
///
/// # Errors
/// A file cannot be read, or there are too few lines.
pub(crate) fn draw(root: &Path, count: usize, seed: u64) -> anyhow::Result<ExitCode> {
    draw::run(root, count, seed)?;
    Ok(ExitCode::SUCCESS)
}

/// Calls `f` for each item, for a few at a time, and gives what it answered in their order.
fn in_parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, f(item)));
        }
    };
    let count = thread::available_parallelism().map_or(1, |count| count.get().min(PARALLEL_MAX));
    let mut all: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
    });
    all.sort_unstable_by_key(|&(index, _)| index);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Test programs by package and name. Two packages may have programs of the same name.
type Programs = BTreeMap<(String, String), PathBuf>;

/// Builds the tests of these packages of the copy, and returns the programs.
fn build(copy: &Path, target: &Path, packages: &BTreeSet<&str>) -> anyhow::Result<Programs> {
    let mut flags = env::var("RUSTFLAGS").unwrap_or_default();
    // What is wrong need not be tidy.
    flags.push_str(" --cap-lints allow");
    let mut command = cargo::command(copy);
    command
        .arg("test")
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .args(["--lib", "--tests", "--no-run"])
        // The tests on the simulated kernel.
        .args(
            ["sakia", "sakia-driver"]
                .iter()
                .any(|name| packages.contains(name))
                .then_some("--features=sim"),
        )
        .env("CARGO_TARGET_DIR", target)
        .env("RUSTFLAGS", flags);
    let messages = cargo::build(&mut command).context("the tests")?;
    Ok(messages.lines().filter_map(program).collect())
}

/// The test program that a line of cargo's messages is about: its package, whose folder has the same name,
/// and its name without the hash.
fn program(message: &str) -> Option<((String, String), PathBuf)> {
    let path = cargo::executable(message).filter(|_| message.contains(r#""test":true"#))?;
    let (name, _) = path.file_name()?.to_str()?.rsplit_once('-')?;
    let (_, manifest) = message.split_once(r#""manifest_path":""#)?;
    let folder = Path::new(manifest.split_once('"')?.0).parent()?;
    let package = folder.file_name()?.to_str()?.to_owned();
    Some(((package, name.to_owned()), path.to_owned()))
}

/// What runs tests.
struct Bench<'a> {
    /// The copy of the tree.
    root: &'a Path,
    programs: Programs,
}

impl Bench<'_> {
    /// How long the tests for these bugs take when there is none.
    ///
    /// # Errors
    /// Some do not pass, or there are none.
    fn time_without_bugs<'m>(
        &self,
        mutants: &[&Mutant<'m>],
    ) -> anyhow::Result<BTreeMap<Tests<'m>, Duration>> {
        let mut all: Vec<Tests<'m>> = mutants.iter().map(|mutant| mutant.tests).collect();
        all.sort_unstable();
        all.dedup();
        let times = in_parallel(&all, |&tests| {
            let begin = Instant::now();
            match self.test(tests, None, TIME_MAX)? {
                Outcome::Passed(0) => bail!("there are no tests {tests}"),
                Outcome::Passed(_) => Ok((tests, begin.elapsed())),
                Outcome::Caught(what) => {
                    bail!("the tests {tests} fail with no bug switched on: {what}")
                }
            }
        });
        times.into_iter().collect()
    }

    /// Runs a bug's tests, which take as long as `usual` without it, until one fails. Some bugs show only if
    /// threads meet in an unlucky order.
    fn try_often(&self, mutant: &Mutant<'_>, usual: Duration) -> anyhow::Result<Outcome> {
        let time_max = HANG_MIN + HANG_FACTOR * usual;
        let tries = if mutant.tests.words.is_empty() { 1 } else { TRIES };
        let mut outcome = self.test(mutant.tests, Some(mutant.name), time_max)?;
        for _ in 1..tries {
            if matches!(outcome, Outcome::Caught(_)) {
                break;
            }
            outcome = self.test(mutant.tests, Some(mutant.name), time_max)?;
        }
        Ok(outcome)
    }

    /// Runs tests, with a bug switched on, until something fails.
    fn test(
        &self,
        tests: Tests<'_>,
        mutant: Option<&str>,
        time_max: Duration,
    ) -> anyhow::Result<Outcome> {
        let (package, name, backend) = tests.suite.program();
        let found = self.programs.get(&(package.to_owned(), name.to_owned()));
        let program = found.with_context(|| format!("{package} has no program {name}"))?;
        let mut command = Command::new(program);
        command
            .args(tests.words.split_whitespace())
            .current_dir(self.root.join("crates").join(package))
            .env("SAKIA_TEST_PATIENCE_S", PATIENCE_S)
            .env("RUST_BACKTRACE", "0")
            .env_remove("SAKIA_MUTANT")
            .env_remove("SAKIA_DRIVER")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0);
        if let Some(backend) = backend {
            command.env("SAKIA_DRIVER", backend);
        }
        if let Some(mutant) = mutant {
            command.env("SAKIA_MUTANT", mutant).stderr(Stdio::null());
        }
        let child = command.spawn().context(format!("cannot start {}", program.display()))?;
        watch(child, Instant::now() + time_max)
    }
}

/// Waits for a test program to end, or ends it when a test has failed or the time is over.
fn watch(mut child: Child, deadline: Instant) -> anyhow::Result<Outcome> {
    let stdout = child.stdout.take().context("the program has no output")?;
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.map_while(|line| sender.send(line).ok()).for_each(drop);
    });
    let mut count = 0;
    let outcome = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                count += u32::from(is_passed_test(&line));
                if let Some(name) = failed_test(&line) {
                    break Some(name.to_owned());
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some("a hang".to_owned()),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if outcome.is_some() {
        end(&mut child)?;
    }
    let status = child.wait().context("cannot wait for the program")?;
    // Its own children may hold its output open; they end by themselves.
    drop(lines);
    drop(reader);
    Ok(match (outcome, status.signal()) {
        (Some(by), _) => Outcome::Caught(by),
        (None, Some(signal)) => Outcome::Caught(signal_name(signal)),
        (None, None) if status.success() => Outcome::Passed(count),
        (None, None) => Outcome::Caught(status.to_string()),
    })
}

/// Ends a program and what it started, which is in its process group.
fn end(child: &mut Child) -> anyhow::Result<()> {
    let group = format!("-{}", child.id());
    let killed = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    if !killed.is_ok_and(|status| status.success()) {
        child.kill().context("cannot end the program")?;
    }
    Ok(())
}

/// The test that failed, if that is what the line says.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

fn is_passed_test(line: &str) -> bool {
    line.starts_with("test ") && line.ends_with(" ... ok")
}

fn signal_name(signal: i32) -> String {
    match signal {
        6 => "SIGABRT".to_owned(),
        7 => "SIGBUS".to_owned(),
        11 => "SIGSEGV".to_owned(),
        _ => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_programs_find_at_least_25_bugs() {
        let bugs = known::read().unwrap();
        let all = all(&bugs);
        let found = all.iter().filter(|mutant| mutant.tests.suite == Suite::Sweep).count();
        assert!(found >= 25, "{found}");
    }

    #[test]
    fn a_commit_chooses_a_part() {
        let part = part_of_commit(&crate::repository_root()).unwrap();
        assert!((1..=PARTS).contains(&part), "{part}");
        let bugs = known::read().unwrap();
        let all = all(&bugs);
        let always = all.iter().filter(|mutant| !mutant.in_turn).count();
        let parts = (1..=PARTS).map(|part| quick(&all, part).len() - always);
        assert_eq!(parts.sum::<usize>(), all.len() - always);
    }

    #[test]
    fn test_programs_are_told_from_other_artifacts() {
        let test = r#"{"reason":"compiler-artifact","manifest_path":"/c/p/Cargo.toml",
            "profile":{"test":true},"executable":"/t/a-1-2"}"#;
        let name = |package: &str| (package.to_owned(), "a-1".to_owned());
        assert_eq!(program(test), Some((name("p"), "/t/a-1-2".into())));
        assert_eq!(program(&test.replace("/p/", "/q/")), Some((name("q"), "/t/a-1-2".into())));
        assert_eq!(program(&test.replace("true", "false")), None);
        assert_eq!(program(&test.replace(r#""/t/a-1-2""#, "null")), None);
    }

    #[test]
    fn results_are_read_from_the_output() {
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 1 passed"), None);
        assert!(is_passed_test("test a::b ... ok") && !is_passed_test("test result: ok. 1 passed"));
    }

    #[test]
    fn outcomes_are_told_apart() {
        let outcome = |script: &str, time: Duration| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped()).process_group(0);
            watch(command.spawn().unwrap(), Instant::now() + time).unwrap()
        };
        let caught = |by: &str| Outcome::Caught(by.to_owned());
        let long = Duration::from_secs(60);
        assert_eq!(outcome("echo test a ... ok", long), Outcome::Passed(1));
        assert_eq!(outcome("echo running 0 tests", long), Outcome::Passed(0));
        assert_eq!(outcome("echo test a ... FAILED; sleep 1000", long), caught("a"));
        assert_eq!(outcome("kill -SEGV $$", long), caught("SIGSEGV"));
        assert_eq!(outcome("exit 101", long), caught("exit status: 101"));
        assert_eq!(outcome("sleep 1000", Duration::from_millis(50)), caught("a hang"));
    }

    #[test]
    fn what_runs_in_parallel_is_answered_in_order() {
        let squares = in_parallel(&[1, 2, 3, 4, 5], |number| number * number);
        assert_eq!(squares, [1, 4, 9, 16, 25]);
        assert!(in_parallel(&[], |_: &u32| ()).is_empty());
    }
}
