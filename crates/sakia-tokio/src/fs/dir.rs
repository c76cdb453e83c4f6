//! Directories: making them, and what is in them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{FileType, Metadata};
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::{DirBuilderExt, DirEntryExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::lane::{Job, Lane};

/// Entries that are read at first.
const FIRST_ENTRIES: usize = 32;
/// The most entries that are read at a time.
const ENTRIES_MAX: usize = 256;

/// How a directory is to be made: [`std::fs::DirBuilder`], without blocking the task.
///
/// # Examples
/// ```
/// use sakia_tokio::fs::DirBuilder;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("sakia-tokio-dirs-{}", std::process::id()));
/// DirBuilder::new().recursive(true).mode(0o700).create(path.join("a/b")).await?;
/// # assert!(path.join("a/b").is_dir());
/// # std::fs::remove_dir_all(&path)
/// # }
/// ```
#[derive(Debug, Default)]
pub struct DirBuilder {
    recursive: bool,
    mode: Option<u32>,
}

impl DirBuilder {
    /// Makes one directory, which must not be there yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes those above it that are missing, too, and is content with one that is there.
    pub fn recursive(&mut self, recursive: bool) -> &mut Self {
        self.recursive = recursive;
        self
    }

    /// Who may do what with it, less the process's mask. Without this call `0o777`.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Makes the directory.
    ///
    /// # Errors
    /// As [`std::fs::DirBuilder::create`].
    #[doc(alias = "mkdir")]
    pub async fn create(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref().to_owned();
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(self.recursive).mode(self.mode.unwrap_or(0o777));
        Lane::Narrow.begin_lasting(move || builder.create(path)).await?
    }
}

/// Reads what a directory has, in the order of the file system.
///
/// # Errors
/// As [`std::fs::read_dir`].
///
/// # Examples
/// ```
/// use sakia_tokio::fs;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let mut entries = fs::read_dir("src").await?;
/// let mut count = 0;
/// while let Some(entry) = entries.next_entry().await? {
///     assert!(entry.path().starts_with("src"));
///     count += 1;
/// }
/// assert!(count > 0);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "getdents")]
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref().to_owned();
    let first = Lane::Wide.begin(move || {
        let rest = Some(std::fs::read_dir(path)?);
        io::Result::Ok(Chunk { entries: VecDeque::new(), rest, count: FIRST_ENTRIES }.read())
    });
    Ok(ReadDir { here: first.await??, reading: None })
}

/// What a directory has, an entry at a time.
#[derive(Debug)]
#[must_use = "nothing is read before it is asked for"]
pub struct ReadDir {
    /// Nothing while more is read, nor if the thread that read is lost.
    here: Chunk,
    reading: Option<Job<Chunk>>,
}

/// Entries that were read and not taken.
#[derive(Debug, Default)]
struct Chunk {
    entries: VecDeque<io::Result<DirEntry>>,
    /// `None` at the end of the directory.
    rest: Option<std::fs::ReadDir>,
    /// How many are to be read next.
    count: usize,
}

impl Chunk {
    fn read(mut self) -> Self {
        let entry = |entry: std::fs::DirEntry| {
            let file_type = entry.file_type().ok();
            DirEntry { inner: Arc::new(entry), file_type }
        };
        while self.entries.len() < self.count {
            let Some(next) = self.rest.as_mut().and_then(Iterator::next) else {
                self.rest = None;
                break;
            };
            let is_error = next.is_err();
            self.entries.push_back(next.map(entry));
            if is_error {
                break;
            }
        }
        self.count = (self.count * 2).min(ENTRIES_MAX);
        self
    }
}

impl ReadDir {
    /// The next entry; `None` at the end. Dropping the future loses no entry.
    ///
    /// # Errors
    /// As the iterator of [`std::fs::read_dir`].
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        poll_fn(|cx| self.poll_next_entry(cx)).await
    }

    /// As [`next_entry`](ReadDir::next_entry), for futures written by hand.
    ///
    /// # Errors
    /// As [`next_entry`](ReadDir::next_entry).
    pub fn poll_next_entry(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<DirEntry>>> {
        loop {
            if let Some(job) = &mut self.reading {
                let chunk = ready!(Pin::new(job).poll(cx));
                self.reading = None;
                self.here = chunk?;
            }
            let next = self.here.entries.pop_front();
            if next.is_some() || self.here.rest.is_none() {
                return Poll::Ready(next.transpose());
            }
            let chunk = std::mem::take(&mut self.here);
            self.reading = Some(Lane::Wide.begin(move || chunk.read()));
        }
    }
}

/// An entry of a directory.
#[derive(Debug)]
pub struct DirEntry {
    inner: Arc<std::fs::DirEntry>,
    /// As the directory told it, if it did.
    file_type: Option<FileType>,
}

impl DirEntry {
    /// Its path: that of the directory, with its name.
    pub fn path(&self) -> PathBuf {
        self.inner.path()
    }

    /// Its name.
    pub fn file_name(&self) -> OsString {
        self.inner.file_name()
    }

    /// Its number in the file system.
    pub fn ino(&self) -> u64 {
        self.inner.ino()
    }

    /// What is there, if only a link.
    ///
    /// # Errors
    /// As [`std::fs::DirEntry::metadata`].
    pub async fn metadata(&self) -> io::Result<Metadata> {
        let entry = Arc::clone(&self.inner);
        Lane::Wide.begin(move || entry.metadata()).await?
    }

    /// What it is. Most file systems tell that with the entry, and nothing is to be waited for.
    ///
    /// # Errors
    /// As [`std::fs::DirEntry::file_type`].
    pub async fn file_type(&self) -> io::Result<FileType> {
        if let Some(file_type) = self.file_type {
            return Ok(file_type);
        }
        let entry = Arc::clone(&self.inner);
        Lane::Wide.begin(move || entry.file_type()).await?
    }
}
