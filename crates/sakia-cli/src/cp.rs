//! `sakia cp`: copies files and trees.

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::io::Errno;
use sakia::{Budget, CancellationToken, Limits, Runtime};
use sakia_copy::{Copier, Counters, Counts, Existing, Failure, Follow, Progress, Report, walk};
use sakia_driver::Policy;
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::name::{Member, Shown, without_slashes};
use crate::output::{self, Failed, Format, Line, Lines, complain, json_line};
use crate::progress::{Bar, COPYING};
use crate::rm::given_up;
use crate::signals::Signals;

/// The interval of the progress display.
const INTERVAL: Duration = Duration::from_millis(100);
/// Only the sources of a copy that takes longer are counted, to show the remaining time.
const COUNTED_AFTER: Duration = Duration::from_secs(1);

/// Descriptors that a copy without directories may use: more than it needs.
const FILE_DESCRIPTORS: u64 = 64;

/// Options of `sakia cp`.
#[derive(Debug)]
pub struct Options {
    pub sources: Vec<PathBuf>,
    pub to: To,
    /// Copy directories.
    pub recursive: bool,
    pub copy: sakia_copy::Options,
    /// Print each copied entry.
    pub verbose: bool,
    pub format: Format,
    /// Draw a bar on standard error.
    pub progress: bool,
    /// Standard output is a terminal.
    pub to_terminal: bool,
    /// The backend of reads.
    pub policy: Policy,
}

/// The destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// Into this directory.
    Directory(PathBuf),
    /// There, even if it is a directory.
    Exactly(PathBuf),
    /// Into this path if it is a directory, or else at this path.
    Somewhere(PathBuf),
}

impl To {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        let (Self::Directory(path) | Self::Exactly(path) | Self::Somewhere(path)) = self;
        path
    }
}

/// Returns the failure of a source that is not begun, which has no errno.
fn refusal(operation: &'static str, path: &Path, reason: impl Into<String>) -> Failure {
    Failure::new(operation, path.to_owned(), io::Error::other(reason.into()))
}

/// Copies all sources.
///
/// # Errors
/// Errors that end the program: there are no threads or descriptors, standard output cannot be written. A
/// failure of an entry is reported and makes the program [fail](Exit::Failure) at the end.
pub fn run(options: &Options, signals: &Signals) -> anyhow::Result<Exit> {
    let token = CancellationToken::new();
    let stop = token.clone();
    signals.on_first(move || stop.cancel());
    let begin = Instant::now();
    let lines = Arc::new(Lines::default());
    let progress = Arc::new(observed(options, &lines));
    let held = Arc::clone(&progress);
    signals.on_giving_up(move || {
        let mut lines = given_up(&held);
        lines.push(stopped(&held.counts()));
        lines
    });
    let targets = match targets(options) {
        Ok(targets) => targets,
        Err(failure) => {
            report(&failure, options.format, &lines);
            let total = Total { failures: 1, ..Total::default() };
            conclude(options, &progress, &total, begin, None, &lines)?;
            return Ok(Exit::Failure);
        }
    };
    let has_directory = targets.iter().any(|(source, _)| source.is_dir());
    let mut copy = options.copy.clone();
    // Only the entries of a directory are shared by several threads, and a thread takes time to start.
    let threads = if has_directory {
        let mut fitted = copy.clone();
        fitted.fit_memory();
        std::thread::available_parallelism().map_or(1, usize::from).min(fitted.limit)
    } else {
        // To find out what the process has left takes longer than the copy of a small file.
        copy.budget = Some(Budget::new(Limits::new().descriptors(FILE_DESCRIPTORS)));
        1
    };
    let build = |threads| Runtime::builder().threads(threads).backend(options.policy).build();
    // If several threads cannot be started, one does it all.
    let runtime = build(threads).or_else(|_| build(1)).context("the runtime")?;
    let total = thread::scope(|scope| {
        // The bar disappears when the copy has ended, or is told to stop.
        let stop = token.child();
        let end_of_bar = stop.clone().drop_guard();
        let draw = || show(&options.sources, &progress, stop);
        // This thread does not wait for those that copy. Without a thread, there is no bar.
        let drawing = options.progress.then(|| thread::Builder::new().spawn_scoped(scope, draw));
        let total = runtime.block_on(copy_all(options, copy, targets, &token, &progress, &lines));
        drop(end_of_bar);
        if let Some(Ok(drawing)) = drawing {
            drawing.thread().unpark();
        }
        total
    })?;
    let failures = total.failures + progress.counts().failures;
    let told = conclude(options, &progress, &total, begin, Some(&runtime), &lines);
    if let Some(signal) = signals.received() {
        complain(format_args!("{}", stopped(&progress.counts())));
        // The process ends, and with it all operations in flight.
        std::mem::forget(runtime);
        return Ok(Exit::Signal(signal));
    }
    told?;
    Ok(if failures == 0 { Exit::Success } else { Exit::Failure })
}

/// Prints the result.
fn conclude(
    options: &Options,
    progress: &Progress,
    total: &Total,
    begin: Instant,
    runtime: Option<&Runtime>,
    lines: &Lines,
) -> anyhow::Result<()> {
    let lost = total.counters.attributes_lost;
    if options.format == Format::Json {
        lines.write(&json_line(&summary(&progress.counts(), total, begin.elapsed(), runtime))?);
    } else if lost > 0 {
        complain(format_args!(
            "attributes that could not be set, for lack of rights or support there: {lost}"
        ));
    }
    lines.end()
}

/// The result of all sources.
#[derive(Debug, Default)]
struct Total {
    counters: Counters,
    /// The number of sources that were not begun.
    failures: u64,
}

/// A source, and its copy.
type Pair = (PathBuf, PathBuf);

/// Returns the sources with their destinations.
fn targets(options: &Options) -> Result<Vec<Pair>, Failure> {
    let into = |directory: &Path| {
        let pair = |source: &PathBuf| (source.clone(), directory.join(last_part(source)));
        options.sources.iter().map(pair).collect()
    };
    let to = options.to.path();
    if to.as_os_str().is_empty() {
        return Err(Failure::new("copy to", to.to_owned(), Errno::NOENT.into()));
    }
    match &options.to {
        To::Directory(directory) if !directory.is_dir() => {
            Err(refusal("copy to", directory, "there is no such directory"))
        }
        To::Directory(directory) => Ok(into(directory)),
        To::Somewhere(path) if path.is_dir() => Ok(into(path)),
        To::Somewhere(path) if options.sources.len() > 1 => {
            Err(refusal("copy to", path, "several sources, and no directory to copy them to"))
        }
        To::Somewhere(path) | To::Exactly(path) => {
            let source = &options.sources[0];
            // A failed lookup gets its own message.
            let is_directory = stat(options, source).map_or(true, |stat| stat.is_dir());
            if path.as_os_str().as_encoded_bytes().ends_with(b"/")
                && !is_directory
                && !path.is_dir()
            {
                let is_other = path.components().as_path().symlink_metadata().is_ok();
                let text = if is_other { "it is not a directory" } else { "it does not exist" };
                return Err(refusal("copy to", path, text));
            }
            Ok(vec![(source.clone(), path.clone())])
        }
    }
}

/// Returns the metadata of a source. A slash at its end follows a link.
fn stat(options: &Options, path: &Path) -> io::Result<Metadata> {
    match options.copy.follow {
        Follow::Always => path.metadata(),
        Follow::Never => path.symlink_metadata(),
    }
}

/// Returns the name of a copy of `path` in a directory: empty for `.` and `..`, whose contents are copied.
fn last_part(path: &Path) -> &Path {
    let text = without_slashes(path);
    let is_itself = text == b"." || text.ends_with(b"/.");
    path.file_name().filter(|_| !is_itself).map_or(Path::new(""), Path::new)
}

/// Returns a progress that prints entries.
fn observed(options: &Options, lines: &Arc<Lines>) -> Progress {
    let (format, would) = (options.format, options.copy.dry_run);
    let errors = Arc::clone(lines);
    let progress = Progress::new().on_failure(move |failure| report(failure, format, &errors));
    if !(options.verbose || would) || format == Format::Json {
        return progress;
    }
    let (to_terminal, lines) = (options.to_terminal, Arc::clone(lines));
    progress.on_entry(move |from, to| {
        lines.write(&if to_terminal {
            let (from, to) = (Shown(from.as_os_str()), Shown(to.as_os_str()));
            format!("{from} -> {to}\n").into_bytes()
        } else {
            let (from, to) = (from.as_os_str().as_bytes(), to.as_os_str().as_bytes());
            [from, b" -> ", to, b"\n"].concat()
        });
    })
}

/// Reports why an entry is not copied.
fn report(failure: &Failure, format: Format, lines: &Lines) {
    let (operation, path) = (failure.operation(), failure.path().as_os_str());
    let message = output::report(failure);
    if format == Format::Json {
        let (path, errno) = (Some(Member(path)), failure.raw_os_error());
        let line = json_line(&Line::<()>::Error(Failed { path, operation, errno, message }));
        // A write error is reported at the end.
        line.map(|line| lines.write(&line)).ok();
    }
}

/// Copies each source, until the token is canceled.
async fn copy_all(
    options: &Options,
    copy: sakia_copy::Options,
    targets: Vec<Pair>,
    token: &CancellationToken,
    progress: &Arc<Progress>,
    lines: &Lines,
) -> anyhow::Result<Total> {
    let mut copier = Copier::new(copy).with_token(token.clone());
    if targets.len() == 1 {
        copier = copier.for_one_tree();
    }
    let mut total = Total::default();
    let (mut made, mut seen) = (HashSet::new(), HashSet::new());
    for (from, to) in targets {
        if token.is_canceled() {
            break;
        }
        if is_seen(options, &from, &to, &mut seen) {
            let from = Shown(from.as_os_str());
            complain(format_args!("warning: {from} is named more than once"));
            continue;
        }
        if let Err(failure) = check(options, &from, &to, &made) {
            report(&failure, options.format, lines);
            total.failures += 1;
            continue;
        }
        let report: Report = copier.copy(&from, &to, progress).await?;
        if report.counts.entries() > report.counts.skipped {
            made.insert(to);
        }
        total.counters.add(&report.counters);
        if report.is_stopped && !token.is_canceled() {
            // The failure was reported.
            complain(format_args!("stopped, since there is no room for more"));
            break;
        }
    }
    Ok(total)
}

/// Device and inode.
type Id = (u64, u64);

/// Returns whether a source was given before with the same destination: a directory by any path, another
/// entry by any path to its directory.
fn is_seen(
    options: &Options,
    from: &Path,
    to: &Path,
    seen: &mut HashSet<(PathBuf, Id, Option<Id>)>,
) -> bool {
    if options.sources.len() < 2 {
        return false;
    }
    let id = |stat: Metadata| (stat.dev(), stat.ino());
    let Ok(stat) = stat(options, from) else { return false };
    let above = if stat.is_dir() {
        None
    } else {
        let above = from.parent().filter(|above| !above.as_os_str().is_empty());
        above.unwrap_or(Path::new(".")).metadata().ok().map(id)
    };
    // The paths of destinations differ in their last names only.
    !seen.insert((to.to_owned(), id(stat), above))
}

/// Checks that a source can be copied at all.
fn check(
    options: &Options,
    from: &Path,
    to: &Path,
    made: &HashSet<PathBuf>,
) -> Result<(), Failure> {
    let stat = stat(options, from);
    let stat = stat.map_err(|error| Failure::new("stat", from.to_owned(), error))?;
    if stat.is_dir() && !options.recursive {
        return Err(refusal("copy", from, "it is a directory, and -r was not given"));
    }
    // A slash or a dot at the end follows a link.
    if stat.is_dir() && to.symlink_metadata().is_ok_and(|to| to.is_symlink()) {
        let text = "a link is there, which a directory cannot take the place of";
        return Err(refusal("copy to", to, text));
    }
    let may_replace = match options.copy.existing {
        Existing::Keep => false,
        Existing::Update => !is_as_new(to, &stat),
        Existing::Overwrite => true,
    };
    if made.contains(to) && !stat.is_dir() && may_replace {
        let from = Shown(from.as_os_str());
        let text = format!("it has just been made from another source than {from}");
        return Err(refusal("copy to", to, text));
    }
    Ok(())
}

/// Returns whether the file at `to`, whose contents would be overwritten, is at least as new as the source.
fn is_as_new(to: &Path, source: &Metadata) -> bool {
    let found = if source.is_symlink() { to.symlink_metadata() } else { to.metadata() };
    let modified = |stat: &Metadata| (stat.mtime(), stat.mtime_nsec());
    found.is_ok_and(|there| modified(&there) >= modified(source))
}

/// Draws a bar until the token is canceled.
fn show(sources: &[PathBuf], copied: &Progress, token: CancellationToken) {
    let bar = Bar::new(COPYING);
    let begin = Instant::now();
    let bytes = Arc::new(AtomicU64::new(0));
    let mut counting: Option<JoinHandle<()>> = None;
    while !token.is_canceled() {
        let is_counted = counting.as_ref().is_some_and(JoinHandle::is_finished);
        let total = is_counted.then(|| bytes.load(Ordering::Relaxed));
        let counts = copied.counts();
        bar.show(counts.bytes, total, format!("{} files", counts.files));
        if counting.is_none() && begin.elapsed() > COUNTED_AFTER {
            let count = count(sources.to_vec(), Arc::clone(&bytes), token.clone());
            // On another thread: the answer may take long, or never come.
            counting = thread::Builder::new().spawn(move || sakia::block_on(count)).ok();
        }
        thread::park_timeout(INTERVAL);
    }
}

/// Counts the bytes of all files. The copy reports failed lookups.
async fn count(sources: Vec<PathBuf>, bytes: Arc<AtomicU64>, token: CancellationToken) {
    let nobody = Arc::new(Progress::new());
    for source in sources {
        let bytes = Arc::clone(&bytes);
        let visit = move |entry: sakia_copy::Entry<'_>| {
            if entry.is_file() {
                bytes.fetch_add(entry.size().unwrap_or(0), Ordering::Relaxed);
            }
        };
        walk(&source, visit, &nobody, &token).await.ok();
    }
}

fn stopped(counts: &Counts) -> String {
    format!(
        "stopped; copied so far: {} files, {} directories, {} bytes",
        counts.files, counts.directories, counts.bytes
    )
}

/// Returns the members of the last line; the driver is `null` if nothing was begun.
fn summary(
    counts: &Counts,
    total: &Total,
    elapsed: Duration,
    runtime: Option<&Runtime>,
) -> Line<'static, Value> {
    let counters = &total.counters;
    let timed = counters.creates_timed.max(1) as f64;
    let create_seconds = counters.create_time.as_secs_f64() * counters.creates as f64 / timed;
    Line::Summary(json!({
        "files": counts.files, "directories": counts.directories, "symlinks": counts.symlinks,
        "hard_links": counts.hard_links, "others": counts.others, "skipped": counts.skipped,
        "bytes": counts.bytes, "failures": counts.failures + total.failures,
        "seconds": elapsed.as_secs_f64(),
        "driver": runtime.map(|runtime| runtime.choice().name()),
        "counters": {
            "workers": counters.workers, "plain_calls": counters.plain_calls,
            "uncached_opens": counters.uncached_opens, "ring_opens": counters.ring_opens,
            "pool_lists": counters.pool_lists, "parts": counters.parts,
            "ranges": counters.ranges,
            "ring_reads": counters.ring_reads, "waits": counters.waits,
            "depth_max": counters.depth_max, "laid_off": counters.laid_off,
            "asides": counters.asides, "apart": counters.apart, "creates": counters.creates,
            "create_seconds": create_seconds, "attributes_lost": counters.attributes_lost,
            "enters": runtime.map_or(0, |runtime| runtime.counters().enters),
        },
    }))
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
