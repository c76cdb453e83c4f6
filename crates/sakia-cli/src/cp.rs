//! `sakia cp`: files and trees copied.

use std::collections::HashSet;
use std::fs::Metadata;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sakia::io::Async;
use sakia::{CancellationToken, Runtime};
use sakia_copy::{Copier, Counters, Counts, Failure, Follow, Progress, Report, walk};
use sakia_driver::Policy;
use serde::Serialize;

use crate::exit::Exit;
use crate::name::{Member, Shown};
use crate::output::{Format, message};
use crate::progress;
use crate::signals::Signals;

/// Time between two looks at what was done.
const INTERVAL: Duration = Duration::from_millis(100);
/// A copy that takes longer is worth being counted beforehand, so that the time left can be told.
const COUNTED_AFTER: Duration = Duration::from_secs(1);

/// What `sakia cp` is to do.
#[derive(Debug)]
pub struct Options {
    pub sources: Vec<PathBuf>,
    pub to: To,
    /// Directories are copied.
    pub recursive: bool,
    pub copy: sakia_copy::Options,
    /// Say what is copied.
    pub verbose: bool,
    pub format: Format,
    /// Draw a bar on standard error.
    pub progress: bool,
    /// Standard output is a terminal.
    pub to_terminal: bool,
    /// Which backend to read with.
    pub policy: Policy,
}

/// Where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// Into this directory.
    Directory(PathBuf),
    /// There, even if it is a directory.
    Exactly(PathBuf),
    /// Into it if it is a directory, or else there.
    Somewhere(PathBuf),
}

/// A line of the JSON output.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line<'a> {
    Error {
        #[serde(flatten)]
        path: Member<'a>,
        operation: &'a str,
        /// `null`: not an error of the system.
        errno: Option<i32>,
        message: String,
    },
    Summary {
        files: u64,
        directories: u64,
        symlinks: u64,
        hard_links: u64,
        others: u64,
        skipped: u64,
        bytes: u64,
        failures: u64,
        seconds: f64,
        driver: &'a str,
        counters: JsonCounters,
    },
}

#[derive(Debug, Serialize)]
struct JsonCounters {
    workers: u64,
    plain_calls: u64,
    uncached_opens: u64,
    ring_opens: u64,
    pool_lists: u64,
    parts: u64,
    ring_reads: u64,
    waits: u64,
    depth_max: u64,
    laid_off: u64,
    apart: u64,
    creates: u64,
    create_seconds: f64,
    attributes_lost: u64,
    enters: u64,
}

/// Copies everything.
///
/// # Errors
/// What ends the program: the destination is no directory and has to be one, there are no threads or
/// descriptors. What befalls an entry is reported and makes the program [fail](Exit::Failure) in the end.
pub fn run(options: &Options) -> anyhow::Result<Exit> {
    let (signals, interrupt) = Signals::watch().context("signals")?;
    let begin = Instant::now();
    let targets = targets(options)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(options.copy.limit.max(1));
    // Only the entries of a directory are shared out, and a thread takes a while to begin.
    let threads = if targets.iter().any(|(source, _)| source.is_dir()) { threads } else { 1 };
    let runtime = Runtime::builder().threads(threads).backend(options.policy).build();
    let runtime = runtime.context("the runtime")?;
    let progress = Arc::new(observed(options));
    let result = runtime.block_on(copy_all(options, targets, interrupt, &progress));
    let total = result?;
    let counts = progress.counts();
    if options.format == Format::Json {
        let summary = summary(&counts, &total.counters, begin.elapsed(), &runtime);
        print_line(&summary)?;
    } else if total.counters.attributes_lost > 0 {
        eprintln!(
            "sakia: attributes that could not be set, for lack of rights or support there: {}",
            total.counters.attributes_lost
        );
    }
    Ok(match (signals.received(), total.failures + counts.failures) {
        (Some(signal), _) => {
            eprintln!("sakia: stopped; {}", described(&counts));
            Exit::Signal(signal)
        }
        (None, 0) => Exit::Success,
        (None, _) => Exit::Failure,
    })
}

/// What came of all sources.
#[derive(Debug, Default)]
struct Total {
    counters: Counters,
    /// Sources that were not begun.
    failures: u64,
}

/// A source, and its copy.
type Pair = (PathBuf, PathBuf);

/// Where each source goes to.
fn targets(options: &Options) -> anyhow::Result<Vec<Pair>> {
    let into = |directory: &Path| {
        let pair = |source: &PathBuf| (source.clone(), directory.join(last_part(source)));
        options.sources.iter().map(pair).collect()
    };
    match &options.to {
        To::Directory(directory) if !directory.is_dir() => {
            bail!("{}: there is no such directory", Shown(directory.as_os_str()))
        }
        To::Directory(directory) => Ok(into(directory)),
        To::Somewhere(path) if path.is_dir() => Ok(into(path)),
        To::Somewhere(path) if options.sources.len() > 1 => {
            bail!("{}: several sources, and no directory to copy them to", Shown(path.as_os_str()))
        }
        To::Somewhere(path) | To::Exactly(path) => {
            Ok(vec![(options.sources[0].clone(), path.clone())])
        }
    }
}

/// What a copy of `path` in a directory is called: nothing for `.` and `..`, whose contents are copied.
fn last_part(path: &Path) -> &Path {
    let text = path.as_os_str().as_encoded_bytes();
    let end = text.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let is_itself = &text[..end] == b"." || text[..end].ends_with(b"/.");
    path.file_name().filter(|_| !is_itself).map_or(Path::new(""), Path::new)
}

/// Says what is told of entries.
fn observed(options: &Options) -> Progress {
    let (format, would) = (options.format, options.copy.dry_run);
    let progress = Progress::new().on_failure(move |failure| report(failure, format));
    if !(options.verbose || would) || format == Format::Json {
        return progress;
    }
    let to_terminal = options.to_terminal;
    progress.on_entry(move |from, to| {
        let mut out = io::stdout().lock();
        // Who does not listen any more does not keep the copy from going on.
        let _ = if to_terminal {
            writeln!(out, "{} -> {}", Shown(from.as_os_str()), Shown(to.as_os_str()))
        } else {
            write_raw(&mut out, from, to)
        };
    })
}

fn write_raw(out: &mut impl Write, from: &Path, to: &Path) -> io::Result<()> {
    out.write_all(from.as_os_str().as_encoded_bytes())?;
    out.write_all(b" -> ")?;
    out.write_all(to.as_os_str().as_encoded_bytes())?;
    out.write_all(b"\n")
}

fn report(failure: &Failure, format: Format) {
    let text = message(failure.io_error());
    let path = failure.path().as_os_str();
    eprintln!("sakia: {} {}: {text}", failure.operation(), Shown(path));
    if format == Format::Json {
        let line = Line::Error {
            path: Member(path),
            operation: failure.operation(),
            errno: failure.raw_os_error(),
            message: text,
        };
        // That it cannot be written shows at the summary.
        print_line(&line).ok();
    }
}

fn print_line(line: &Line<'_>) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    io::stdout().lock().write_all(text.as_bytes()).context("standard output")
}

/// Copies each source, until a signal comes.
async fn copy_all(
    options: &Options,
    targets: Vec<Pair>,
    interrupt: OwnedFd,
    progress: &Arc<Progress>,
) -> anyhow::Result<Total> {
    let token = CancellationToken::new();
    let interrupt = Async::new(interrupt).context("signals")?;
    let stop = token.clone();
    let listening = sakia::spawn(async move {
        if interrupt.readable().await.is_ok() {
            stop.cancel();
        }
    });
    let bar = options
        .progress
        .then(|| show(options.sources.clone(), Arc::clone(progress), token.child()));
    let copier = Copier::new(options.copy.clone()).with_token(token.clone());
    let mut total = Total::default();
    let mut made = HashSet::new();
    for (from, to) in targets {
        if token.is_canceled() {
            break;
        }
        if let Err(text) = check(options, &from, &to, &mut made) {
            eprintln!("sakia: {text}");
            total.failures += 1;
            continue;
        }
        let report: Report = copier.copy(&from, &to, progress).await?;
        total.counters.add(&report.counters);
    }
    let mut listening = listening;
    listening.abort();
    if let Some(bar) = bar {
        bar.cancel().await;
    }
    Ok(total)
}

/// Whether a source can be copied at all.
fn check(
    options: &Options,
    from: &Path,
    to: &Path,
    made: &mut HashSet<PathBuf>,
) -> Result<(), String> {
    let shown = Shown(from.as_os_str());
    let stat = |path: &Path| -> io::Result<Metadata> {
        match options.copy.follow {
            Follow::Always => path.metadata(),
            Follow::Never => path.symlink_metadata(),
        }
    };
    // A slash at the end asks for what a link points to.
    let stat = stat(from).map_err(|error| format!("stat {shown}: {}", message(&error)))?;
    if stat.is_dir() && !options.recursive {
        return Err(format!("{shown} is a directory, and -r was not given"));
    }
    let is_new = made.insert(to.to_owned());
    if !is_new && !stat.is_dir() {
        let to = Shown(to.as_os_str());
        return Err(format!("{to} has just been made from another source than {shown}"));
    }
    Ok(())
}

/// What is to be copied in all, as far as it was counted.
#[derive(Debug, Default)]
struct Scan {
    bytes: AtomicU64,
    is_over: AtomicBool,
}

/// Draws a bar until it is canceled.
fn show(
    sources: Vec<PathBuf>,
    copied: Arc<Progress>,
    token: CancellationToken,
) -> sakia::JoinHandle<()> {
    sakia::spawn(async move {
        let bar = progress::Copying::new();
        let begin = Instant::now();
        let scan = Arc::new(Scan::default());
        let mut sources = Some(sources);
        loop {
            let is_over = scan.is_over.load(Ordering::Acquire);
            let total = is_over.then(|| scan.bytes.load(Ordering::Relaxed));
            let counts = copied.counts();
            bar.show(counts.bytes, counts.files, total);
            if begin.elapsed() > COUNTED_AFTER
                && let Some(sources) = sources.take()
            {
                sakia::spawn(count(sources, Arc::clone(&scan), token.clone())).detach();
            }
            sakia::time::sleep(INTERVAL).await;
        }
    })
}

/// Counts the bytes of all files. What cannot be looked at is reported by who copies it.
async fn count(sources: Vec<PathBuf>, scan: Arc<Scan>, token: CancellationToken) {
    let nobody = Arc::new(Progress::new());
    for source in sources {
        let scan = Arc::clone(&scan);
        let visit = move |entry: sakia_copy::Entry<'_>| {
            if entry.is_file() {
                scan.bytes.fetch_add(entry.size().unwrap_or(0), Ordering::Relaxed);
            }
        };
        walk(&source, visit, &nobody, &token).await.ok();
    }
    scan.is_over.store(!token.is_canceled(), Ordering::Release);
}

fn described(counts: &Counts) -> String {
    format!(
        "copied so far: {} files, {} directories, {} bytes",
        counts.files, counts.directories, counts.bytes
    )
}

fn summary<'a>(
    counts: &Counts,
    counters: &Counters,
    elapsed: Duration,
    runtime: &'a Runtime,
) -> Line<'a> {
    let driver = runtime.counters();
    let timed = counters.creates_timed.max(1) as f64;
    Line::Summary {
        files: counts.files,
        directories: counts.directories,
        symlinks: counts.symlinks,
        hard_links: counts.hard_links,
        others: counts.others,
        skipped: counts.skipped,
        bytes: counts.bytes,
        failures: counts.failures,
        seconds: elapsed.as_secs_f64(),
        driver: runtime.choice().name(),
        counters: JsonCounters {
            workers: counters.workers,
            plain_calls: counters.plain_calls,
            uncached_opens: counters.uncached_opens,
            ring_opens: counters.ring_opens,
            pool_lists: counters.pool_lists,
            parts: counters.parts,
            ring_reads: counters.ring_reads,
            waits: counters.waits,
            depth_max: counters.depth_max,
            laid_off: counters.laid_off,
            apart: counters.apart,
            creates: counters.creates,
            create_seconds: counters.create_time.as_secs_f64() * counters.creates as f64 / timed,
            attributes_lost: counters.attributes_lost,
            enters: driver.enters,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_called_as_their_sources_are() {
        let part = |path: &str| last_part(Path::new(path)).to_str().unwrap().to_owned();
        for (path, expected) in [
            ("a/b", "b"),
            ("a/b/", "b"),
            ("b//", "b"),
            (".", ""),
            ("a/.", ""),
            ("a/./", ""),
            ("..", ""),
            ("a/..", ""),
            ("/", ""),
        ] {
            assert_eq!(part(path), expected, "{path}");
        }
    }
}
