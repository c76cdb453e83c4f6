//! Shows that the driver's tests catch known bugs.
//!
//! `sakia-driver` has bugs that can be switched on; see its `src/mutant.rs`. This builds its tests once
//! with all of them compiled in and none switched on, runs them, and then runs them once for each bug,
//! until the first test fails. A crash or a hang counts as caught, too.
//!
//! The build has a target directory of its own, so that nothing else is ever linked with wrong code.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long the tests of one bug may take before they count as hanging.
const TIME_MAX: Duration = Duration::from_secs(120);
/// How long a test waits for what must happen, in seconds: less than usual, since with a bug it often
/// does not.
const PATIENCE_S: &str = "5";

/// A known bug.
#[derive(Debug, PartialEq, Eq)]
struct Mutant {
    name: String,
    /// What is wrong when it is switched on.
    what: String,
}

/// How the tests ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// By this test, signal or the like.
    Caught(String),
}

/// Runs the tests for the bugs of these names, or for all, and prints a line for each.
///
/// # Errors
/// When the tests cannot be built or started, or fail with no bug switched on.
pub(crate) fn run(root: &Path, names: &[String]) -> anyhow::Result<ExitCode> {
    let source = root.join("crates/sakia-driver/src/mutant.rs");
    let text = fs::read_to_string(&source).context(format!("cannot read {}", source.display()))?;
    let all = parse(&text);
    if all.is_empty() {
        bail!("{}: no list of mutants found", source.display());
    }
    if let Some(unknown) = names.iter().find(|&name| all.iter().all(|known| known.name != *name)) {
        eprintln!("no mutant {unknown}; there are:");
        all.iter().for_each(|known| eprintln!("  {}: {}", known.name, known.what));
        return Ok(ExitCode::from(2));
    }
    let wanted = |mutant: &&Mutant| names.is_empty() || names.contains(&mutant.name);
    let programs = build(root)?;
    if let Outcome::Caught(what) = test(root, &programs, None)? {
        bail!("the tests fail with no bug switched on: {what}");
    }
    let width = all.iter().map(|mutant| mutant.name.len()).max().unwrap_or(0);
    let (mut count, mut survivors) = (0, Vec::new());
    for mutant in all.iter().filter(wanted) {
        let begin = Instant::now();
        let outcome = test(root, &programs, Some(&mutant.name))?;
        let seconds = begin.elapsed().as_secs_f64();
        let verdict = match &outcome {
            Outcome::Caught(by) => format!("caught by {by}"),
            Outcome::Passed => format!("SURVIVED: {}", mutant.what),
        };
        println!("{:width$}  {seconds:5.1} s  {verdict}", mutant.name);
        count += 1;
        if outcome == Outcome::Passed {
            survivors.push(&mutant.name);
        }
    }
    println!("{} of {count} caught", count - survivors.len());
    Ok(if survivors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The pairs of strings in the list `ALL`.
fn parse(source: &str) -> Vec<Mutant> {
    let list = source.split_once("pub const ALL").and_then(|(_, rest)| rest.split_once("\n];"));
    let (list, _) = list.unwrap_or_default();
    let strings: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let pairs = strings.chunks_exact(2);
    pairs.map(|pair| Mutant { name: pair[0].to_owned(), what: pair[1].to_owned() }).collect()
}

/// Builds the driver's tests with the bugs compiled in, and returns the programs.
fn build(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut flags = env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg sakia_mutants");
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--package", "sakia-driver", "--lib", "--tests", "--no-run"])
        .args(["--message-format", "json-render-diagnostics"])
        .env("CARGO_TARGET_DIR", target.join("mutants"))
        .env("RUSTFLAGS", flags)
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the tests cannot be built");
    }
    let mut programs: Vec<PathBuf> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(program).collect();
    if programs.is_empty() {
        bail!("cargo built no test program");
    }
    // The largest suite first: it catches most.
    programs.sort_by_key(|path| {
        !path.file_name().is_some_and(|name| is_suite(&name.to_string_lossy()))
    });
    Ok(programs)
}

/// Whether this is the program of `tests/driver`.
fn is_suite(name: &str) -> bool {
    name.starts_with("driver-")
}

/// The test program that a line of cargo's messages is about.
fn program(message: &str) -> Option<PathBuf> {
    let (_, rest) = message.split_once(r#""executable":""#)?;
    let (path, _) = rest.split_once('"')?;
    message.contains(r#""test":true"#).then(|| path.into())
}

/// Runs the programs with a bug switched on, until something fails.
fn test(root: &Path, programs: &[PathBuf], mutant: Option<&str>) -> anyhow::Result<Outcome> {
    let deadline = Instant::now() + TIME_MAX;
    for program in programs {
        let mut command = Command::new(program);
        command
            .current_dir(root.join("crates/sakia-driver"))
            .env("SAKIA_TEST_PATIENCE_S", PATIENCE_S)
            .env("RUST_BACKTRACE", "0")
            .env_remove("SAKIA_MUTANT")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0);
        match mutant {
            Some(name) => command.env("SAKIA_MUTANT", name).stderr(Stdio::null()),
            None => &mut command,
        };
        let child = command.spawn().context(format!("cannot start {}", program.display()))?;
        let outcome = watch(child, deadline)?;
        if outcome != Outcome::Passed {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Passed)
}

/// Waits for a test program to end, or ends it when a test has failed or the time is over.
fn watch(mut child: Child, deadline: Instant) -> anyhow::Result<Outcome> {
    let stdout = child.stdout.take().context("the program has no output")?;
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.map_while(|line| sender.send(line).ok()).for_each(drop);
    });
    let outcome = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
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
        (None, None) if status.success() => Outcome::Passed,
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
    fn the_list_of_the_driver_is_found() {
        let source = crate::repository_root().join("crates/sakia-driver/src/mutant.rs");
        let all = parse(&fs::read_to_string(source).unwrap());
        assert!(all.len() >= 14);
        assert!(all.iter().any(|mutant| mutant.name == "free_on_drop"));
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        for mutant in &all {
            assert!(mutant.name.chars().all(is_name) && mutant.what.contains(' '), "{mutant:?}");
        }
    }

    #[test]
    fn each_bug_of_the_list_is_somewhere_in_the_code_and_the_other_way_round() {
        let root = crate::repository_root();
        let folder = root.join("crates/sakia-driver/src");
        let all = parse(&fs::read_to_string(folder.join("mutant.rs")).unwrap());
        let mut text = String::new();
        for folder in [folder.clone(), folder.join("ops")] {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() && !path.ends_with("mutant.rs") {
                    text += &fs::read_to_string(path).unwrap();
                }
            }
        }
        let mut used: Vec<&str> =
            text.split(r#"mutant!(""#).skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let mut listed: Vec<&str> = all.iter().map(|mutant| mutant.name.as_str()).collect();
        for names in [&mut used, &mut listed] {
            names.sort_unstable();
            names.dedup();
        }
        assert_eq!(used, listed);
    }

    #[test]
    fn entries_may_be_broken_over_lines() {
        let source = "pub const ALL: &[(&str, &str)] = &[\n    (\"a\", \"one thing\"),\n    (\n        \
                      \"b_c\",\n        \"another\",\n    ),\n];\nfn f() { g(\"x\", \"y\") }\n";
        let names: Vec<String> = parse(source).into_iter().map(|mutant| mutant.name).collect();
        assert_eq!(names, ["a", "b_c"]);
        assert_eq!(parse("nothing"), []);
    }

    #[test]
    fn test_programs_are_told_from_other_artifacts() {
        let test =
            r#"{"reason":"compiler-artifact","profile":{"test":true},"executable":"/t/a-1"}"#;
        assert_eq!(program(test), Some("/t/a-1".into()));
        assert_eq!(program(&test.replace("true", "false")), None);
        assert_eq!(program(&test.replace(r#""/t/a-1""#, "null")), None);
    }

    #[test]
    fn failures_are_read_from_the_output() {
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 1 passed"), None);
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
        assert_eq!(outcome("echo test a ... ok", long), Outcome::Passed);
        assert_eq!(outcome("echo test a ... FAILED; sleep 1000", long), caught("a"));
        assert_eq!(outcome("kill -SEGV $$", long), caught("SIGSEGV"));
        assert_eq!(outcome("exit 101", long), caught("exit status: 101"));
        assert_eq!(outcome("sleep 1000", Duration::from_millis(50)), caught("a hang"));
    }
}
