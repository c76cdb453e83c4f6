//! What was done, and what went wrong.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FileType;

/// How many entries of which kind were dealt with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of a file that has been copied already.
    pub hard_links: u64,
    /// FIFOs, sockets and devices.
    pub others: u64,
    /// What was there already and was to stay as it is.
    pub skipped: u64,
    /// Bytes of files' contents, holes included.
    pub bytes: u64,
    /// Failures: see [`Failure`]. What was under way when the work was told to stop is none.
    pub failures: u64,
}

impl Counts {
    /// All but bytes and failures: how many entries were dealt with.
    pub fn entries(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.hard_links + self.others + self.skipped
    }

    /// One more of a kind.
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

/// How it was done. Times are those of the calls themselves, of all workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Threads that worked.
    pub workers: u64,
    /// System calls made by the workers themselves.
    pub plain_calls: u64,
    /// Files and directories that were opened although no cache knew them.
    pub uncached_opens: u64,
    /// Those of them left to the runtime, since such opens took long. A ring hands each to a worker of the
    /// kernel.
    pub ring_opens: u64,
    /// Directories, or parts of them, read by a thread of the blocking pool since that took long.
    pub pool_lists: u64,
    /// Parts of directories that another worker took over, since it had nothing else and their files are
    /// large.
    pub parts: u64,
    /// Reads left to the runtime.
    pub ring_reads: u64,
    /// How often a worker had to wait for one of these, and did something else meanwhile.
    pub waits: u64,
    /// Most entries that one worker had under way at a time.
    pub depth_max: u64,
    /// Times that a worker was laid off, since more of them make files more slowly.
    pub laid_off: u64,
    /// Directories put in another part of the disk, since making files took long where they would have been.
    pub apart: u64,
    /// Files made.
    pub creates: u64,
    /// Those of them whose time was taken.
    pub creates_timed: u64,
    /// What these took.
    pub create_time: Duration,
    /// Owners, access control lists and attributes that the process may not set, or that the file system
    /// of the copy does not have.
    pub attributes_lost: u64,
}

impl Counters {
    /// Takes those of another worker, or of another copy, along.
    pub fn add(&mut self, other: &Self) {
        self.workers = self.workers.max(other.workers);
        self.plain_calls += other.plain_calls;
        self.uncached_opens += other.uncached_opens;
        self.ring_opens += other.ring_opens;
        self.pool_lists += other.pool_lists;
        self.parts += other.parts;
        self.ring_reads += other.ring_reads;
        self.waits += other.waits;
        self.depth_max = self.depth_max.max(other.depth_max);
        self.laid_off += other.laid_off;
        self.apart += other.apart;
        self.creates += other.creates;
        self.attributes_lost += other.attributes_lost;
        self.creates_timed += other.creates_timed;
        self.create_time += other.create_time;
    }
}

/// What came of it.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// What was done.
    pub counts: Counts,
    /// How.
    pub counters: Counters,
    /// The first [`Report::FAILURES_MAX`] failures; [`Progress`](crate::Progress) tells of all of them.
    pub failures: Vec<Failure>,
    /// It was stopped before its end, by the token or since the file system is full.
    pub is_stopped: bool,
}

impl Report {
    /// Failures that a report has with their paths.
    pub const FAILURES_MAX: usize = 1000;

    /// Whether all was done.
    pub fn is_complete(&self) -> bool {
        self.counts.failures == 0 && !self.is_stopped
    }
}

/// Something that could not be done, or not wholly.
#[derive(Debug)]
pub struct Failure {
    operation: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl Failure {
    /// Makes a failure of `operation` at `path`, for what a program finds before it has something copied, so
    /// that it tells all failures alike.
    pub fn new(operation: &'static str, path: PathBuf, error: io::Error) -> Self {
        Self { operation, path, error }
    }

    /// What was tried, in a word or two.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// To what.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why it could not be done.
    pub fn io_error(&self) -> &io::Error {
        &self.error
    }

    /// The kernel's answer.
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
