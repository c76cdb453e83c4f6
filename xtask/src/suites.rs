//! Test programs: their builds, and runs that end when a test fails or hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::iter;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use crate::cargo;

/// The time limit of tests with no bug switched on.
const TIME_MAX: Duration = Duration::from_secs(600);
/// The time limit of a suite after a change.
const CHECK_TIME_MAX: Duration = Duration::from_secs(120);
/// The time limit of tests with a bug, and of a wait in them, is this, and
const HANG_MIN: Duration = Duration::from_secs(4);
/// this many times the duration without it.
const HANG_FACTOR: u32 = 5;
/// A test's limit for an event that must happen, with a bug switched on, in seconds: shorter than usual,
/// since with a bug it often does not happen.
const PATIENCE_S: u64 = 5;
/// Programs that run at a time.
const PARALLEL_MAX: usize = 2;

/// Tests to run: those of a suite whose names contain one of these words, which are separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tests<'a> {
    pub(crate) suite: Suite,
    pub(crate) words: &'a str,
}

impl fmt::Display for Tests<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.suite, self.words)
    }
}

/// A test program, with its backend.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Suite {
    /// `tests/driver` of `sakia-driver`: the core, mostly on the ring.
    Driver,
    /// `tests/allocations` there.
    Allocations,
    /// `tests/conformance` there: a test for each backend.
    Conformance,
    /// `tests/table` there: every operation on every kind of descriptor.
    Table,
    /// The unit tests there: those of the backend on epoll and of the simulated kernel, too.
    DriverUnits,
    /// `tests/runtime` of `sakia`, on the ring.
    RuntimeOnUring,
    /// The same on epoll and threads.
    RuntimeOnPoll,
    /// The unit tests there.
    RuntimeUnits,
    /// `tests/forked` of `sakia-thread`.
    ThreadForked,
    /// The unit tests of `sakia-task`.
    TaskUnits,
    /// `tests/net` of `sakia`, whose tests choose the backend themselves.
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
    /// The unit tests of `sakia-trace`.
    TraceUnits,
    /// `tests/recording` there.
    Recording,
    /// `tests/life` there.
    RecordingLife,
    /// `tests/forked` there.
    RecordingForked,
    /// The unit tests of `sakia-socket-core`.
    SocketCoreUnits,
    /// The unit tests of `sakia-socket`.
    SocketUnits,
    /// `tests/cli` of `sakia-cli`.
    Cli,
    /// `tests/semantics` of `sakia-socket`.
    SocketSemantics,
    /// The unit tests of `sakia-socket-core`.
    SocketCore,
    /// `tests/differential` of `sakia-socket`.
    SocketDifferential,
    /// `tests/waking` there.
    SocketWaking,
}

impl Suite {
    /// Returns the package, Cargo's name of the program, and the variable that chooses the backend.
    pub(crate) fn program(self) -> (&'static str, &'static str, Option<&'static str>) {
        match self {
            Self::Driver => ("sakia-driver", "driver", None),
            Self::Allocations => ("sakia-driver", "allocations", None),
            Self::Conformance => ("sakia-driver", "conformance", None),
            Self::Table => ("sakia-driver", "table", None),
            Self::DriverUnits => ("sakia-driver", "sakia_driver", None),
            Self::RuntimeOnUring => ("sakia", "runtime", Some("uring")),
            Self::RuntimeOnPoll => ("sakia", "runtime", Some("poll")),
            Self::RuntimeUnits => ("sakia", "sakia", None),
            Self::ThreadForked => ("sakia-thread", "forked", None),
            Self::TaskUnits => ("sakia-task", "sakia_task", None),
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
            Self::TraceUnits => ("sakia-trace", "sakia_trace", None),
            Self::Recording => ("sakia-trace", "recording", None),
            Self::RecordingLife => ("sakia-trace", "life", None),
            Self::RecordingForked => ("sakia-trace", "forked", None),
            Self::SocketCoreUnits => ("sakia-socket-core", "sakia_socket_core", None),
            Self::SocketUnits => ("sakia-socket", "sakia_socket", None),
            Self::Cli => ("sakia-cli", "cli", None),
            Self::SocketSemantics => ("sakia-socket", "semantics", None),
            Self::SocketCore => ("sakia-socket-core", "sakia_socket_core", None),
            Self::SocketDifferential => ("sakia-socket", "differential", None),
            Self::SocketWaking => ("sakia-socket", "waking", None),
        }
    }
}

/// The result of the tests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// That many.
    Passed(u32),
    /// By this test, signal or the like.
    Caught(String),
}

/// The reaction to a failing test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnFailure {
    /// The program ends at once.
    End,
    /// The others run, and then the program's output is printed.
    Show,
}

/// Calls `f` for each item, several at a time, and returns the results in order.
pub(crate) fn in_parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = Mutex::new(items.iter().enumerate());
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || iter::from_fn(take).map(|(index, item)| (index, f(item))).collect::<Vec<_>>();
    let count = thread::available_parallelism().map_or(1, |count| count.get().min(PARALLEL_MAX));
    let mut all: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
    });
    all.sort_unstable_by_key(|&(index, _)| index);
    all.into_iter().map(|(_, result)| result).collect()
}

/// The durations of tests without a bug.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usual {
    /// Of all of them.
    whole: Duration,
    /// Of the longest wait that the tests' patience limits, if the program notes these waits.
    wait: Option<Duration>,
}

/// Builds and runs tests.
#[derive(Debug)]
pub(crate) struct Programs {
    /// The tree they are built from.
    root: PathBuf,
    /// The folder of the builds.
    target: PathBuf,
    /// By package and name. Two packages may have programs of the same name.
    paths: BTreeMap<(String, String), PathBuf>,
}

/// Returns the test program in a line of Cargo's messages: its package, which is named like its folder, and
/// its name without the hash.
fn program(message: &str) -> Option<((String, String), PathBuf)> {
    let path = cargo::executable(message).filter(|_| message.contains(r#""test":true"#))?;
    let (name, _) = path.file_name()?.to_str()?.rsplit_once('-')?;
    let (_, manifest) = message.split_once(r#""manifest_path":""#)?;
    let folder = Path::new(manifest.split_once('"')?.0).parent()?;
    let package = folder.file_name()?.to_str()?.to_owned();
    Some(((package, name.to_owned()), path.to_owned()))
}

impl Programs {
    /// Builds the tests of these packages of a tree, with the simulated kernel. `flags` are for the compiler.
    ///
    /// # Errors
    /// They do not build, or Cargo cannot be run.
    pub(crate) fn build(
        root: &Path,
        target: &Path,
        packages: &BTreeSet<&str>,
        flags: Option<&str>,
    ) -> anyhow::Result<Self> {
        let mut command = cargo::command(root);
        command
            .arg("test")
            .args(packages.iter().flat_map(|package| ["--package", package]))
            .args(["--lib", "--tests", "--no-run"])
            // For tests on the simulated kernel.
            .arg("--features=sim")
            .env("CARGO_TARGET_DIR", target);
        if packages.contains("sakia") {
            // For tests of adapters.
            command.arg("--features=sakia/futures-io,sakia/hyper,sakia/tokio");
        }
        if let Some(flags) = flags {
            let usual = env::var("RUSTFLAGS").unwrap_or_default();
            command.env("RUSTFLAGS", format!("{usual} {flags}"));
        }
        let messages = cargo::build(&mut command).context("the tests")?;
        let paths = messages.lines().filter_map(program).collect();
        Ok(Self { root: root.to_owned(), target: target.to_owned(), paths })
    }

    /// Returns the durations of these tests without a bug. They are as patient as usual: a busy machine must
    /// not make them fail. Prints a program's output if some fail.
    ///
    /// # Errors
    /// Some do not pass, or there are none.
    pub(crate) fn time_without_bugs<'t>(
        &self,
        all: BTreeSet<Tests<'t>>,
    ) -> anyhow::Result<BTreeMap<Tests<'t>, Usual>> {
        let all: Vec<_> = all.into_iter().enumerate().collect();
        let times = in_parallel(&all, |&(number, tests)| {
            let waits = self.target.join(format!("waits-{number}"));
            remove(&waits)?;
            let mut command = self.command(tests)?;
            command.env("SAKIA_TEST_WAITS", &waits);
            let begin = Instant::now();
            match run(command, OnFailure::Show, TIME_MAX)? {
                Outcome::Passed(0) => bail!("there are no tests {tests}"),
                Outcome::Passed(_) => {
                    let (whole, wait) = (begin.elapsed(), longest(&waits)?);
                    remove(&waits)?;
                    Ok((tests, Usual { whole, wait }))
                }
                Outcome::Caught(what) => {
                    bail!("the tests {tests} fail with no bug switched on: {what}")
                }
            }
        });
        times.into_iter().collect()
    }

    /// Runs tests with a bug switched on, until one fails; their durations without it are `usual`.
    pub(crate) fn try_bug(
        &self,
        tests: Tests<'_>,
        bug: &str,
        usual: Usual,
    ) -> anyhow::Result<Outcome> {
        let mut command = self.command(tests)?;
        command
            .env("SAKIA_MUTANT", bug)
            .env("SAKIA_TEST_PATIENCE_S", patience_s(usual).to_string());
        command.stderr(Stdio::null());
        run(command, OnFailure::End, hang(usual.whole))
    }

    /// Runs all tests of a suite with no bug switched on. Prints the program's output if some fail.
    pub(crate) fn test(&self, suite: Suite) -> anyhow::Result<Outcome> {
        run(self.command(Tests { suite, words: "" })?, OnFailure::Show, CHECK_TIME_MAX)
    }

    fn command(&self, tests: Tests<'_>) -> anyhow::Result<Command> {
        let (package, name, backend) = tests.suite.program();
        let path = self.paths.get(&(package.to_owned(), name.to_owned()));
        let path = path.with_context(|| format!("{package} has no program {name}"))?;
        let mut command = Command::new(path);
        command
            .args(tests.words.split_whitespace())
            .current_dir(self.root.join("crates").join(package))
            .env("RUST_BACKTRACE", "0")
            .env_remove("SAKIA_MUTANT")
            .env_remove("SAKIA_DRIVER")
            .env_remove("SAKIA_TEST_WAITS");
        if let Some(backend) = backend {
            command.env("SAKIA_DRIVER", backend);
        }
        Ok(command)
    }
}

/// Starts a test program and waits for its end; ends it at the time limit, and, if requested, after the
/// first failing test.
fn run(mut command: Command, on_failure: OnFailure, time_max: Duration) -> anyhow::Result<Outcome> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let deadline = Instant::now() + time_max;
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", Path::new(command.get_program()).display()))?;
    let stdout = child.stdout.take().context("the program has no output")?;
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.map_while(|line| sender.send(line).ok()).for_each(drop);
    });
    let mut count = 0;
    let mut failed = None;
    let mut shown = String::new();
    let ended_by = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let is_passed = is_passed_test(&line);
                count += u32::from(is_passed);
                let name = failed_test(&line).map(str::to_owned);
                if on_failure == OnFailure::End && name.is_some() {
                    break name;
                }
                failed = failed.or(name);
                if on_failure == OnFailure::Show && !is_passed {
                    shown.push_str(&line);
                    shown.push('\n');
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some("a hang".to_owned()),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if ended_by.is_some() {
        // With its children, which are in its process group.
        let ended = kill_process_group(Pid::from_child(&child), Signal::KILL);
        ended.context("cannot end the program")?;
    }
    let status = child.wait().context("cannot wait for the program")?;
    // Its children may hold its output open; they end by themselves.
    drop(lines);
    drop(reader);
    let outcome = match (ended_by.or(failed), status.signal()) {
        (Some(by), _) => Outcome::Caught(by),
        (None, Some(signal)) => Outcome::Caught(signal_name(signal)),
        (None, None) if status.success() => Outcome::Passed(count),
        (None, None) => Outcome::Caught(status.to_string()),
    };
    if matches!(outcome, Outcome::Caught(_)) {
        eprint!("{shown}");
    }
    Ok(outcome)
}

/// Returns the time after which something hangs that takes `usual` without a bug.
fn hang(usual: Duration) -> Duration {
    HANG_MIN + HANG_FACTOR * usual
}

/// Returns the patience of tests with a bug switched on, whose durations without it are `usual`. The event
/// may be the end of a process that runs for as long as all tests do, unless each wait was measured.
fn patience_s(usual: Usual) -> u64 {
    let limit = usual.wait.map_or(usual.whole, hang);
    PATIENCE_S.max(limit.as_secs() + 1)
}

/// Returns the longest wait that a program has noted in this file, in milliseconds on lines of their own;
/// `None` if it has noted none.
fn longest(path: &Path) -> anyhow::Result<Option<Duration>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let waits: Vec<u64> =
        text.lines().map(str::parse).collect::<Result<_, _>>().context("noted waits")?;
    Ok(waits.into_iter().max().map(Duration::from_millis))
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the failed test in a line, if any.
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
        let outcome_of = |script: &str, on_failure, time| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run(command, on_failure, time).unwrap()
        };
        let outcome = |script: &str, time| outcome_of(script, OnFailure::End, time);
        let caught = |by: &str| Outcome::Caught(by.to_owned());
        let long = Duration::from_secs(60);
        assert_eq!(outcome("echo test a ... ok", long), Outcome::Passed(1));
        assert_eq!(outcome("echo running 0 tests", long), Outcome::Passed(0));
        assert_eq!(outcome("echo test a ... FAILED; sleep 1000", long), caught("a"));
        let both = "echo test a ... FAILED; echo test b ... FAILED; exit 101";
        assert_eq!(outcome_of(both, OnFailure::Show, long), caught("a"));
        assert_eq!(outcome("kill -SEGV $$", long), caught("SIGSEGV"));
        assert_eq!(outcome("exit 101", long), caught("exit status: 101"));
        assert_eq!(outcome("sleep 1000", Duration::from_millis(50)), caught("a hang"));
    }

    #[test]
    fn a_wait_may_be_as_long_as_the_tests_without_a_bug() {
        let patience = |ms| patience_s(Usual { whole: Duration::from_millis(ms), wait: None });
        assert_eq!([0, 900, 4_999, 5_000, 39_600].map(patience), [5, 5, 5, 6, 40]);
    }

    #[test]
    fn a_wait_that_was_measured_has_a_limit_of_its_own() {
        let patience = |ms| {
            let wait = Some(Duration::from_millis(ms));
            patience_s(Usual { whole: Duration::from_secs(100), wait })
        };
        assert_eq!([0, 199, 200, 1_000, 30_000].map(patience), [5, 5, 6, 10, 155]);
        let path = env::temp_dir().join(format!("sakia-xtask-waits-{}", std::process::id()));
        assert_eq!(longest(&path).unwrap(), None);
        fs::write(&path, "3\n1700\n20\n").unwrap();
        assert_eq!(longest(&path).unwrap(), Some(Duration::from_millis(1_700)));
        remove(&path).unwrap();
        remove(&path).unwrap();
    }

    #[test]
    fn what_runs_in_parallel_is_answered_in_order() {
        let squares = in_parallel(&[1, 2, 3, 4, 5], |number| number * number);
        assert_eq!(squares, [1, 4, 9, 16, 25]);
        assert!(in_parallel(&[], |_: &u32| ()).is_empty());
    }
}
