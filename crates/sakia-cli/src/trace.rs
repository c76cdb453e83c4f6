//! `sakia trace`: recordings of programs, in words and pictures.

mod workers;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use sakia::trace::{FILE_VARIABLE, Stretch, Summary, Trace, Workers, add_handed_over, plot};
use serde_json::json;

use crate::exit::Exit;
use crate::output::{complain, print};

/// Options of `sakia trace`.
#[derive(Debug)]
pub enum Options {
    Record(Record),
    Summary(Summarize),
    Plot(Plot),
}

/// A program to record.
#[derive(Debug)]
pub struct Record {
    pub output: PathBuf,
    pub command: Vec<OsString>,
}

/// A recording to summarize.
#[derive(Debug)]
pub struct Summarize {
    pub file: PathBuf,
    pub json: bool,
}

/// A section to draw.
#[derive(Debug)]
pub struct Plot {
    pub file: PathBuf,
    pub output: PathBuf,
    pub from: Duration,
    pub to: Option<Duration>,
}

/// Runs the subcommand.
///
/// # Errors
/// The program cannot be started, or a file cannot be read or written, or is no trace.
pub fn run(options: &Options) -> anyhow::Result<Exit> {
    match options {
        Options::Record(options) => record(options),
        Options::Summary(options) => summarize(options),
        Options::Plot(options) => draw(options),
    }
}

fn record(options: &Record) -> anyhow::Result<Exit> {
    let path = std::path::absolute(&options.output)?;
    let shown = path.display();
    match fs::symlink_metadata(&path) {
        Ok(metadata) if metadata.is_file() => {
            fs::remove_file(&path).with_context(|| format!("cannot replace {shown}"))?;
        }
        Ok(_) => bail!("{shown} exists and is no regular file"),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot look up {shown}")),
    }
    // The terminal sends them to the program too, which decides.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let [program, arguments @ ..] = &options.command[..] else { bail!("no program") };
    let workers = workers::Workers::begin();
    let mut child = Command::new(program)
        .args(arguments)
        .env(FILE_VARIABLE, &path)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let status = child.wait().context("cannot wait for the program")?;
    let files = files(&path);
    if files.is_empty() {
        complain(format_args!(
            "{} left no recording: it does not use Sakia, or has more rights than its caller",
            program.display()
        ));
    }
    if let Some(events) = workers.and_then(workers::Workers::end) {
        for file in &files {
            if let Err(error) = add_handed_over(file, workers::events(&events)) {
                let shown = file.display();
                complain(format_args!("{shown} lacks what the kernel's workers did: {error}"));
            }
        }
    }
    for file in &files {
        complain(format_args!("recorded {}", file.display()));
    }
    Ok(match (status.code(), status.signal()) {
        (_, Some(signal)) => Exit::Signal(signal),
        (Some(0), _) if files.is_empty() => Exit::Failure,
        (Some(code), _) => Exit::Status(code as u8),
        (None, None) => Exit::Failure,
    })
}

/// Returns the files of a recording: of the first process, and those with the numbers of others.
fn files(path: &Path) -> Vec<PathBuf> {
    let Some(name) = path.file_name() else { return Vec::new() };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let is_its = |other: &OsStr| {
        let rest = other.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        rest.is_some_and(|rest| {
            rest.is_empty()
                || rest[0] == b'.' && rest.len() > 1 && rest[1..].iter().all(u8::is_ascii_digit)
        })
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> =
        entries.filter(|entry| is_its(&entry.file_name())).map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let shown = path.display();
    let bytes = fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    Trace::read(&bytes).with_context(|| format!("cannot read {shown}"))
}

fn summarize(options: &Summarize) -> anyhow::Result<Exit> {
    let summary = Summary::of(&read(&options.file)?);
    if options.json {
        print(&as_json(&summary).to_string())?;
    } else {
        print(summary.to_string().trim_end())?;
    }
    Ok(Exit::Success)
}

fn as_json(summary: &Summary) -> serde_json::Value {
    let kinds: Vec<_> = summary.kinds.iter().map(|kind| {
        json!({
            "operation": kind.name, "count": kind.count, "plain": kind.plain, "queue": kind.queue,
            "lane": kind.lane, "errors": kind.errors, "bytes": kind.bytes, "whole_ns": kind.whole,
            "submit_ns": kind.submit, "kernel_ns": kind.kernel, "scheduling_ns": kind.scheduling,
        })
    }).collect();
    let threads: Vec<_> = summary.threads.iter().map(|thread| {
        json!({
            "name": thread.name, "computing_ns": thread.computing, "in_flight_ns": thread.in_flight,
            "overlap_ns": thread.overlap, "mean_in_flight": thread.mean_in_flight,
        })
    }).collect();
    let turns: Vec<_> = summary
        .turns
        .iter()
        .map(|turn| {
            let task = turn.task.as_ref();
            json!({
                "thread": turn.thread, "begin_ns": turn.begin, "duration_ns": turn.duration,
                "task": task.map(|(task, _)| task), "spawned_at": task.map(|(_, place)| place),
                "task_ran_ns": turn.task_ran,
            })
        })
        .collect();
    let calls: serde_json::Map<_, _> =
        summary.calls.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
    let workers = match &summary.workers {
        Workers::Counted(operations) => {
            let operations: serde_json::Map<_, _> =
                operations.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
            json!({ "source": "tracepoint", "handed_over": operations })
        }
        Workers::Inferred(threads) => json!({ "source": "inferred", "threads": threads }),
        _ => json!(null),
    };
    json!({
        "process": summary.process, "duration_ns": summary.duration, "is_truncated": summary.is_truncated,
        "lost": summary.lost, "findings": summary.findings, "operations": kinds, "threads": threads,
        "system_calls": calls, "kernel_workers": workers, "turns": turns,
    })
}

fn draw(options: &Plot) -> anyhow::Result<Exit> {
    let trace = read(&options.file)?;
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let stretch = Stretch { from: nanoseconds(options.from), to: options.to.map(nanoseconds) };
    let shown = options.output.display();
    fs::write(&options.output, plot(&trace, stretch))
        .with_context(|| format!("cannot write {shown}"))?;
    Ok(Exit::Success)
}
