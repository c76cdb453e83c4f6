//! Results of the work: counts and failures.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FileType;

/// The number of entries handled, by kind.
///
/// # Examples
/// See [`Report`](Report#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of a file that was copied already.
    pub hard_links: u64,
    /// FIFOs, sockets and devices.
    pub others: u64,
    /// Existing entries that were to stay.
    pub skipped: u64,
    /// Bytes of files' contents, including holes.
    pub bytes: u64,
    /// Failures: see [`Failure`]. Entries interrupted by a stop do not count.
    pub failures: u64,
}

impl Counts {
    /// Returns the number of entries handled: all counts but bytes and failures.
    ///
    /// # Examples
    /// See [`Progress`](crate::Progress#examples).
    pub fn entries(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.hard_links + self.others + self.skipped
    }

    /// Counts an entry of a kind.
    pub(crate) fn add_entry(&mut self, kind: FileType) {
        let count = match kind {
            FileType::Directory => &mut self.directories,
            FileType::Symlink => &mut self.symlinks,
            FileType::RegularFile | FileType::Unknown => &mut self.files,
            _ => &mut self.others,
        };
        *count += 1;
    }

    pub(crate) fn fields(mut self) -> [u64; 8] {
        self.fields_mut().map(|field| *field)
    }

    pub(crate) fn fields_mut(&mut self) -> [&mut u64; 8] {
        let Self { files, directories, symlinks, hard_links, others, skipped, bytes, failures } =
            self;
        [files, directories, symlinks, hard_links, others, skipped, bytes, failures]
    }
}

/// Counters of the mechanism. Times are of the calls themselves, summed over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Threads that worked.
    pub workers: u64,
    /// System calls made by the workers themselves.
    pub plain_calls: u64,
    /// Files and directories opened although no cache had them.
    pub uncached_opens: u64,
    /// Those of them left to the runtime, since such opens took long. A ring gives each to a kernel worker.
    pub ring_opens: u64,
    /// Directories, or parts of them, read by a thread of the blocking pool, since reading took long.
    pub pool_lists: u64,
    /// Parts of directories with large files that an idle worker took over.
    pub parts: u64,
    /// Times that an idle worker began to copy ranges of a large file that another one copies.
    pub ranges: u64,
    /// Reads left to the runtime.
    pub ring_reads: u64,
    /// Waits of a worker for one of these, doing other work meanwhile.
    pub waits: u64,
    /// The largest number of entries that one worker had in progress at a time.
    pub depth_max: u64,
    /// Times that a worker was laid off, since several create files more slowly.
    pub laid_off: u64,
    /// Entries put aside until all others were done, since another one used the same file.
    pub asides: u64,
    /// Directories placed in another part of the disk, since creating files was slow in the usual one.
    pub apart: u64,
    /// Files created.
    pub creates: u64,
    /// Files created whose time was measured.
    pub creates_timed: u64,
    /// The total of these times.
    pub create_time: Duration,
    /// Extended attributes that the process may not set, or that the file system of the copy does not have,
    /// unless that is a [failure](crate::Preserve::all_xattrs).
    pub attributes_lost: u64,
}

impl Counters {
    /// Adds the counters of another worker or copy.
    pub fn add(&mut self, other: &Self) {
        self.workers = self.workers.max(other.workers);
        self.plain_calls += other.plain_calls;
        self.uncached_opens += other.uncached_opens;
        self.ring_opens += other.ring_opens;
        self.pool_lists += other.pool_lists;
        self.parts += other.parts;
        self.ranges += other.ranges;
        self.ring_reads += other.ring_reads;
        self.waits += other.waits;
        self.depth_max = self.depth_max.max(other.depth_max);
        self.laid_off += other.laid_off;
        self.asides += other.asides;
        self.apart += other.apart;
        self.creates += other.creates;
        self.attributes_lost += other.attributes_lost;
        self.creates_timed += other.creates_timed;
        self.create_time += other.create_time;
    }
}

/// The result of the work.
///
/// # Examples
/// ```
/// use sakia_copy::{Options, Progress, copy_tree};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-copy-report-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let from = dir.join("missing");
/// let (options, progress) = (Options::new(), Progress::new().into());
/// let report = sakia::block_on(copy_tree(&from, dir.join("to"), &options, &progress))?;
/// assert!(!report.is_complete());
/// let failure = &report.failures[0];
/// assert_eq!((failure.path(), failure.raw_os_error()), (&*from, Some(2)));
/// println!("{failure}");
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Counts of entries and bytes.
    pub counts: Counts,
    /// Counters of the mechanism.
    pub counters: Counters,
    /// The first [`Report::FAILURES_MAX`] failures; [`Progress`](crate::Progress) reports all of them.
    pub failures: Vec<Failure>,
    /// The work was stopped early, by the token or because the file system is full.
    pub is_stopped: bool,
}

impl Report {
    /// The largest number of failures that a report lists.
    pub const FAILURES_MAX: usize = 1000;

    /// Returns whether everything was done.
    ///
    /// # Examples
    /// See [`Report`](Report#examples).
    pub fn is_complete(&self) -> bool {
        self.counts.failures == 0 && !self.is_stopped
    }
}

/// An operation that failed, wholly or in part.
///
/// # Examples
/// See [`Report`](Report#examples).
#[derive(Debug)]
pub struct Failure {
    operation: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl Failure {
    /// Makes a failure of `operation` at `path`, for a program that finds errors before it starts a copy and
    /// reports all failures alike.
    pub fn new(operation: &'static str, path: PathBuf, error: io::Error) -> Self {
        Self { operation, path, error }
    }

    /// Returns the operation, in a word or two.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Returns the path.
    ///
    /// # Examples
    /// See [`Report`](Report#examples).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error.
    pub fn io_error(&self) -> &io::Error {
        &self.error
    }

    /// Returns the errno.
    ///
    /// # Examples
    /// See [`Report`](Report#examples).
    pub fn raw_os_error(&self) -> Option<i32> {
        sakia::os_error(&self.error)
    }
}

/// Control characters of the path are escaped.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: {}", self.operation, self.path, self.error)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}
