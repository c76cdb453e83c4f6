//! `cargo xtask coverage`: the lines of the driver's core that its tests reach.
//!
//! The core is every file that makes no system call and is not the simulated kernel; a new file belongs to it
//! unless [`SYSTEM_CALLS`] names it.
//!
//! Runs the tests of the driver and the random programs of `sakia-check` with counters in each block
//! (`-C instrument-coverage`), by cargo-tarpaulin: it reads the counters by itself, and so needs no tools of
//! the compiler's version. Lines of test modules do not count.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::cargo;

/// The folder of the counted files.
const SOURCES: &str = "crates/sakia-driver/src/";
/// Files that make system calls or start threads; the core is all others, without the simulated kernel. In it
/// is `arena.rs`, which only maps memory.
const SYSTEM_CALLS: &[&str] = &[
    "call.rs",
    "calls/cached.rs",
    "calls/ends.rs",
    "calls/in_memory.rs",
    "calls/mod.rs",
    "calls/nowait.rs",
    "descriptors.rs",
    "epoll/inbox.rs",
    "epoll/job.rs",
    "epoll/lanes.rs",
    "epoll/machine.rs",
    "epoll/registry.rs",
    "epoll/sleep.rs",
    "epoll/socket.rs",
    "epoll/transfer.rs",
    "file_calls.rs",
    "inherited.rs",
    "later.rs",
    "mounts.rs",
    "path_calls.rs",
    "readable.rs",
    "startup.rs",
    "signals.rs",
    "sys.rs",
    "sys/action.rs",
    "sys/open.rs",
    "sys/signals.rs",
    "transfer.rs",
    "uring.rs",
    "uring/files.rs",
];
const SIMULATED_KERNEL: &str = "sim/";
/// The required share of covered lines of the core, in percent.
const CORE_MIN: f64 = 90.0;
/// The time limit of tests: their children may hang.
const TIMEOUT_S: &str = "1800";

/// The report of tarpaulin.
#[derive(Debug, Deserialize)]
struct Report {
    files: Vec<File>,
}

#[derive(Debug, Deserialize)]
struct File {
    /// From the root on, part by part.
    path: Vec<String>,
    content: String,
    traces: Vec<Trace>,
}

/// A line with code.
#[derive(Debug, Deserialize)]
struct Trace {
    line: usize,
    stats: Stats,
}

#[derive(Debug, Deserialize)]
enum Stats {
    /// The number of times it was reached.
    Line(u64),
}

/// The counted lines of a file: their number, and those that were not reached.
#[derive(Debug, PartialEq, Eq)]
struct Lines {
    /// Below [`SOURCES`].
    name: String,
    count: usize,
    missed: Vec<usize>,
}

/// Prints the share of covered lines, by file and for the core in total, and with `lines` the uncovered
/// ones. With `check` the exit status is 1 if the core's share is too small.
pub(crate) fn run(root: &Path, lines: bool, check: bool) -> anyhow::Result<ExitCode> {
    let report = measure(root)?;
    let report: Report = serde_json::from_str(&report).context("read tarpaulin's report")?;
    let mut files: Vec<Lines> = report.files.iter().filter_map(lines_of).collect();
    files.sort_by(|one, other| one.name.cmp(&other.name));
    ensure!(files.iter().any(|file| file.name == "core.rs"), "tarpaulin has not seen the core");
    for file in &files {
        println!("{:<28} {}", file.name, share(std::slice::from_ref(file)));
        if lines && !file.missed.is_empty() {
            println!("    not reached: {}", ranges(&file.missed));
        }
    }
    let (sim, others): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| file.name.starts_with(SIMULATED_KERNEL));
    let core: Vec<_> = others.into_iter().filter(|file| is_core(&file.name)).collect();
    println!("\n{:<28} {}", "the simulated kernel", share(&sim));
    println!("{:<28} {}", "the core", share(&core));
    let is_reached = percent(&core) >= CORE_MIN;
    Ok(if check && !is_reached { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns whether a file below [`SOURCES`] belongs to the core.
fn is_core(name: &str) -> bool {
    !name.starts_with(SIMULATED_KERNEL) && !SYSTEM_CALLS.contains(&name)
}

/// Runs the tests. Returns tarpaulin's report.
fn measure(root: &Path) -> anyhow::Result<String> {
    let has_tool = cargo::command(root).args(["tarpaulin", "--version"]).output();
    let has_tool = has_tool.is_ok_and(|output| output.status.success());
    ensure!(
        has_tool,
        "cargo-tarpaulin is missing; install it with `cargo install cargo-tarpaulin`"
    );
    let folder = cargo::target_folder(root).join("coverage");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let mut command = cargo::command(root);
    command.args(["tarpaulin", "--engine", "llvm", "--out", "Json", "--skip-clean", "--locked"]);
    command.args(["--packages", "sakia-driver", "--packages", "sakia-check"]);
    // Code behind other features does not count.
    command.args(["--features", "sim,bytes"]);
    // Code that is also built for tests counts, as the simulated kernel does; `lines_of` leaves tests out.
    command.args(["--tests", "--include-tests", "--timeout", TIMEOUT_S]);
    command.args(["--include-files", &format!("{SOURCES}*"), "--exclude-files", "*/tests/*"]);
    command.arg("--output-dir").arg(&folder).arg("--target-dir").arg(&folder);
    let status = command.status().context("run cargo tarpaulin")?;
    ensure!(status.success(), "the tests fail");
    let path = folder.join("tarpaulin-report.json");
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// Returns the counted lines of a file; `None` if it does not count.
fn lines_of(file: &File) -> Option<Lines> {
    let path: PathBuf = file.path.iter().collect();
    let (_, name) = path.to_str()?.split_once(SOURCES)?;
    let end = file
        .content
        .lines()
        .zip(file.content.lines().skip(1))
        .position(|(one, next)| one == "#[cfg(test)]" && next.starts_with("mod tests"));
    let end = end.unwrap_or(usize::MAX);
    let traces: Vec<&Trace> = file.traces.iter().filter(|trace| trace.line <= end).collect();
    let missed = traces.iter().filter(|trace| matches!(trace.stats, Stats::Line(0)));
    let missed = missed.map(|trace| trace.line).collect();
    let is_code = !traces.is_empty() && !name.contains("tests");
    is_code.then(|| Lines { name: name.to_owned(), count: traces.len(), missed })
}

fn percent(files: &[Lines]) -> f64 {
    let count: usize = files.iter().map(|file| file.count).sum();
    let missed: usize = files.iter().map(|file| file.missed.len()).sum();
    100.0 * (count - missed) as f64 / count.max(1) as f64
}

/// Returns the share in percent, and the numbers.
fn share(files: &[Lines]) -> String {
    let count: usize = files.iter().map(|file| file.count).sum();
    let missed: usize = files.iter().map(|file| file.missed.len()).sum();
    format!("{:6.2} % {:>6} of {count:>5}", percent(files), count - missed)
}

/// Formats numbers in order, consecutive ones as a range.
fn ranges(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |&(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tests_and_of_other_files_do_not_count() {
        let text = r##"{"files":[
            {"path":["/","r","crates","sakia-driver","src","key.rs"],
             "content":"a\nb\nc\n#[cfg(test)]\nmod tests {\n}\n",
             "traces":[{"line":1,"address":[],"length":1,"stats":{"Line":2}},
                       {"line":2,"address":[],"length":1,"stats":{"Line":0}},
                       {"line":3,"address":[],"length":1,"stats":{"Line":0}},
                       {"line":5,"address":[],"length":1,"stats":{"Line":0}}]},
            {"path":["/","r","crates","sakia-driver","tests","x.rs"],"content":"",
             "traces":[{"line":1,"address":[],"length":1,"stats":{"Line":2}}]}]}"##;
        let report: Report = serde_json::from_str(text).unwrap();
        let files: Vec<Lines> = report.files.iter().filter_map(lines_of).collect();
        assert_eq!(files, [Lines { name: "key.rs".into(), count: 3, missed: vec![2, 3] }]);
        assert_eq!(share(&files), " 33.33 %      1 of     3");
        assert_eq!(share(&[]), "  0.00 %      0 of     0");
    }

    #[test]
    fn all_that_makes_no_system_call_is_the_core() {
        let folder = crate::repository_root().join(SOURCES);
        for name in SYSTEM_CALLS {
            assert!(folder.join(name).exists(), "{name}");
            assert!(!is_core(name), "{name}");
        }
        for name in ["core.rs", "lanes.rs", "queue.rs", "groups.rs", "arena.rs", "ops/close.rs"] {
            assert!(folder.join(name).exists() && is_core(name), "{name}");
        }
        assert!(!is_core("sim/kernel.rs"));
    }

    #[test]
    fn numbers_in_a_row_are_a_range() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[1, 3, 4, 5, 9]), "1, 3-5, 9");
    }
}
