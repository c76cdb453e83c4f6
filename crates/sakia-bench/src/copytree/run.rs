//! One run: a program copies, and is measured from its start to its end.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use sakia_bench_support::usage::Usage;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::source::Census;
use super::ways::Way;
use crate::cell::{Counters, Measured, Outcome};
use crate::machine;
use crate::measure::{Section, kib_of};

/// The interval of samples of a program's memory and threads, except at the beginning.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The time before the first sample; each further one waits twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// If a larger part of a hot source than one in this many was read from disk, it was not hot.
const COLD_PART: u64 = 20;
/// Bytes of a block, as `getrusage(2)` counts them.
const BLOCK_BYTES: u64 = 512;

/// The input of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    /// All programs; the variant selects one.
    pub(super) ways: Vec<Way>,
    pub(super) source: PathBuf,
    pub(super) destination: PathBuf,
    /// The files, directories and bytes to copy.
    pub(super) census: Census,
    /// The number of processors that the program may use; `None`: all.
    pub(super) cores: Option<usize>,
    /// Set if the source has to come from the page cache.
    pub(super) is_hot: bool,
    /// Set if the run already differs from the others.
    pub(super) is_disturbed: bool,
}

/// Copies by the program of this variant, and counts the copy's entries.
///
/// # Errors
/// The program fails, or its copy is incomplete.
pub(super) fn run(variant: &str, task: &Task) -> anyhow::Result<Outcome> {
    let way = task.ways.iter().find(|way| way.name == variant);
    let way = way.with_context(|| format!("there is no variant {variant}"))?;
    if let Some(cores) = task.cores {
        let usable = machine::processors().context("cannot ask for processors")?;
        machine::keep_to(&usable.take(cores).collect::<Vec<_>>())?;
    }
    let mut command = command(way, task);
    let (usage, blocks) = (Usage::of_children()?, blocks_read()?);
    let begin = Instant::now();
    let child = command.spawn().with_context(|| format!("run {}", way.program.display()))?;
    let (ended, looked) = wait(child);
    let wall = begin.elapsed();
    let (usage, blocks) = (Usage::of_children()?.since(usage), blocks_read()? - blocks);
    let ended = ended.context("wait")?;
    let said = String::from_utf8_lossy(&ended.stderr);
    let said: Vec<_> = said.trim().lines().take(2).collect();
    ensure!(ended.status.success(), "{variant} ended with {}: {}", ended.status, said.join(" "));
    let made = Census::of(&task.destination)?;
    ensure!(made == task.census, "{variant} made {made} out of {}", task.census);

    let disk_read_bytes = blocks * BLOCK_BYTES;
    let mut counters = if way.reports { reported(&ended.stdout) } else { Counters::new() };
    counters.insert("disk_read_bytes".into(), disk_read_bytes);
    let is_cold = task.is_hot && disk_read_bytes > task.census.bytes / COLD_PART;
    Ok(Outcome::Measured(Measured {
        section: Section {
            wall_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
            usage,
            threads_max: looked.threads,
        },
        process_cpu_ns: Usage::of_process()?.cpu_ns,
        peak_rss_bytes: looked.rss_bytes,
        counters,
        sum: made.sum(),
        is_disturbed: is_cold || task.is_disturbed,
    }))
}

fn command(way: &Way, task: &Task) -> Command {
    let mut command = Command::new(&way.program);
    command.args(&way.arguments);
    if way.slash && task.census.directories > 0 {
        command.arg(task.source.join("")).arg(task.destination.join(""));
    } else {
        command.arg(&task.source).arg(&task.destination);
    }
    let out = if way.reports { Stdio::piped() } else { Stdio::null() };
    command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped());
    command
}

/// Returns the number of blocks that child processes, and their threads, had to wait for.
fn blocks_read() -> io::Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok(u64::try_from(usage.block_reads()).unwrap_or(0))
}

/// Memory and threads of a process, observed while it ran.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    rss_bytes: u64,
    threads: u64,
}

/// Waits for the end of a process, and samples it meanwhile.
///
/// The memory in `getrusage(2)` is of no use: it is at least that of this process at the time of the fork.
fn wait(child: Child) -> (io::Result<Output>, Looked) {
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        let looker = scope.spawn(move || look(&status, &is_done));
        let ended = child.wait_with_output();
        drop(done);
        (ended, looker.join().unwrap_or_default())
    })
}

fn look(status: &Path, is_done: &Receiver<()>) -> Looked {
    let (mut most, mut pause) = (Looked::default(), FIRST_LOOK);
    while is_done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        pause = LOOK_INTERVAL.min(2 * pause);
        let status = std::fs::read_to_string(status).unwrap_or_default();
        let rss_bytes = kib_of(&status, "VmHWM:").unwrap_or(0) << 10;
        let threads = kib_of(&status, "Threads:").unwrap_or(0);
        most.rss_bytes = most.rss_bytes.max(rss_bytes);
        most.threads = most.threads.max(threads);
    }
    most
}

/// Returns the figures in a program's report of its work, one JSON object: its numbers, and those among its
/// `counters`. Times become whole microseconds.
fn reported(said: &[u8]) -> Counters {
    let report: Value = serde_json::from_slice(said).unwrap_or_default();
    let mut found = Counters::new();
    for members in [Some(&report), report.get("counters")].into_iter().flatten() {
        for (name, value) in members.as_object().into_iter().flatten() {
            let microseconds = || Some((value.as_f64()? * 1e6).max(0.0) as u64);
            let count = match name.strip_suffix("seconds") {
                Some("") => microseconds().map(|count| ("elapsed_us".into(), count)),
                Some(before) => microseconds().map(|count| (format!("{before}us"), count)),
                None => value.as_u64().map(|count| (name.clone(), count)),
            };
            found.extend(count);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use super::*;

    /// Returns a task for a shell script that copies a file of four bytes, or fails to do so.
    fn task(script: &str, scratch: &Path) -> Task {
        let source = scratch.join("source");
        fs::write(&source, "four").unwrap();
        let arguments = ["-c", script, "sh"].map(OsString::from).to_vec();
        let way = Way {
            name: "sakia".into(),
            program: "/bin/sh".into(),
            arguments,
            reports: true,
            slash: false,
        };
        Task {
            ways: vec![way],
            census: Census::of(&source).unwrap(),
            source,
            destination: scratch.join("copy"),
            cores: Some(1),
            is_hot: false,
            is_disturbed: false,
        }
    }

    #[test]
    fn program_is_measured_and_its_report_kept() {
        let scratch = tempfile::tempdir().unwrap();
        let report = r#"{"files":1,"seconds":0.5,"path":"x","counters":{"workers":2,"create_seconds":0.25,
            "sizes":[1]}}"#;
        let script = format!("cp \"$1\" \"$2\" && sleep 0.1 && echo '{report}'");
        let task = task(&script, scratch.path());
        // Processor affinity belongs to a thread, so the run has a thread of its own.
        let outcome = thread::spawn(move || run("sakia", &task)).join().unwrap().unwrap();
        let Outcome::Measured(measured) = outcome else { panic!("{outcome:?}") };
        let counter = |name: &str| measured.counters.get(name).copied();
        assert_eq!((counter("files"), counter("elapsed_us")), (Some(1), Some(500_000)));
        assert_eq!((counter("workers"), counter("create_us")), (Some(2), Some(250_000)));
        assert_eq!((counter("path"), counter("sizes")), (None, None));
        assert!(measured.section.wall_ns >= 100_000_000, "{measured:?}");
        assert!(measured.section.usage.cpu_ns > 0 && measured.peak_rss_bytes > 0, "{measured:?}");
        assert_eq!(measured.section.threads_max, 1);
    }

    #[test]
    fn failure_and_incomplete_copy_are_told() {
        let scratch = tempfile::tempdir().unwrap();
        let failed = |script: &str| {
            let task = Task { cores: None, ..task(script, scratch.path()) };
            run("sakia", &task).unwrap_err().to_string()
        };
        let error = failed("echo no room >&2; exit 3");
        assert_eq!(error, "sakia ended with exit status: 3: no room");
        let error = failed("printf abc > \"$2\"");
        assert!(error.starts_with("sakia made 1 files of 3 bytes in 0"), "{error}");
        assert!(error.contains("out of 1 files of 4 bytes"), "{error}");
    }

    #[test]
    fn report_that_is_none_has_no_counters() {
        for said in ["", "copied\n", "[1]", "3"] {
            assert_eq!(reported(said.as_bytes()), Counters::new(), "{said}");
        }
    }
}
