//! Directories: creation and listing.

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

use sakia_driver::Lane;

use crate::lane::{Job, begin, begin_lasting};

/// The size of the first batch of entries.
const FIRST_ENTRIES: usize = 32;
/// The largest batch of entries.
const ENTRIES_MAX: usize = 256;

/// Options to create a directory: [`std::fs::DirBuilder`], without blocking the task.
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
    /// Returns options to create one directory, which must not exist yet.
    ///
    /// # Examples
    /// See [`DirBuilder`](DirBuilder#examples).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether missing parents are created, and an existing directory is accepted.
    ///
    /// # Examples
    /// See [`DirBuilder`](DirBuilder#examples).
    pub fn recursive(&mut self, recursive: bool) -> &mut Self {
        self.recursive = recursive;
        self
    }

    /// Sets the mode, from which the umask is removed. The default is `0o777`.
    ///
    /// # Examples
    /// See [`DirBuilder`](DirBuilder#examples).
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Creates the directory.
    ///
    /// # Errors
    /// As [`std::fs::DirBuilder::create`].
    ///
    /// # Examples
    /// See [`DirBuilder`](DirBuilder#examples).
    #[doc(alias = "mkdir")]
    pub async fn create(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref().to_owned();
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(self.recursive).mode(self.mode.unwrap_or(0o777));
        begin_lasting(Lane::Bounded, move || builder.create(path)).await?
    }
}

/// Lists a directory, in the order of the file system.
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
    let first = begin(Lane::Elastic, move || {
        let rest = Some(std::fs::read_dir(path)?);
        io::Result::Ok(Chunk { entries: VecDeque::new(), rest, count: FIRST_ENTRIES }.read())
    });
    Ok(ReadDir { here: first.await??, reading: None })
}

/// A stream of a directory's entries.
///
/// # Examples
/// See [`read_dir()`](read_dir()#examples).
#[derive(Debug)]
#[must_use = "nothing is read before it is asked for"]
pub struct ReadDir {
    /// Empty while more entries are read, and after a failure of the thread that reads.
    here: Chunk,
    reading: Option<Job<Chunk>>,
}

/// Entries that were read and not taken.
#[derive(Debug, Default)]
struct Chunk {
    entries: VecDeque<io::Result<DirEntry>>,
    /// `None` at the end of the directory.
    rest: Option<std::fs::ReadDir>,
    /// The size of the next batch.
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
    /// Returns the next entry; `None` at the end. Dropping the future loses no entry.
    ///
    /// # Errors
    /// As the iterator of [`std::fs::read_dir`].
    ///
    /// # Examples
    /// See [`read_dir()`](read_dir()#examples).
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        poll_fn(|cx| self.poll_next_entry(cx)).await
    }

    /// Polls for the next entry, for hand-written futures: see [`next_entry`](ReadDir::next_entry).
    ///
    /// # Errors
    /// As [`next_entry`](ReadDir::next_entry).
    ///
    /// # Examples
    /// As a stream, such as `ReadDirStream` of `tokio_stream` is:
    /// ```
    /// use std::future::poll_fn;
    ///
    /// use sakia_tokio::fs;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let mut entries = fs::read_dir("src").await?;
    /// let mut names = vec![];
    /// while let Some(entry) = poll_fn(|cx| entries.poll_next_entry(cx)).await? {
    ///     names.push(entry.file_name());
    /// }
    /// assert!(names.iter().any(|name| name == "lib.rs"));
    /// # Ok(())
    /// # }
    /// ```
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
            self.reading = Some(begin(Lane::Elastic, move || chunk.read()));
        }
    }
}

/// An entry of a directory.
///
/// # Examples
/// ```
/// use sakia_tokio::fs;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let mut entries = fs::read_dir("src").await?;
/// while let Some(entry) = entries.next_entry().await? {
///     assert_eq!(entry.path().file_name(), Some(&*entry.file_name()));
///     if entry.file_type().await?.is_file() {
///         assert!(entry.metadata().await?.len() > 0);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DirEntry {
    inner: Arc<std::fs::DirEntry>,
    /// The directory's information, if it has any.
    file_type: Option<FileType>,
}

impl DirEntry {
    /// Returns its path: that of the directory, with its name.
    ///
    /// # Examples
    /// See [`DirEntry`](DirEntry#examples).
    pub fn path(&self) -> PathBuf {
        self.inner.path()
    }

    /// Returns its name.
    ///
    /// # Examples
    /// See [`DirEntry`](DirEntry#examples).
    pub fn file_name(&self) -> OsString {
        self.inner.file_name()
    }

    /// Returns its inode number.
    pub fn ino(&self) -> u64 {
        self.inner.ino()
    }

    /// Returns its metadata, without following a link.
    ///
    /// # Errors
    /// As [`std::fs::DirEntry::metadata`].
    ///
    /// # Examples
    /// See [`DirEntry`](DirEntry#examples).
    pub async fn metadata(&self) -> io::Result<Metadata> {
        let entry = Arc::clone(&self.inner);
        begin(Lane::Elastic, move || entry.metadata()).await?
    }

    /// Returns its type. Most file systems include it in the entry, and then nothing blocks.
    ///
    /// # Errors
    /// As [`std::fs::DirEntry::file_type`].
    ///
    /// # Examples
    /// See [`DirEntry`](DirEntry#examples).
    pub async fn file_type(&self) -> io::Result<FileType> {
        if let Some(file_type) = self.file_type {
            return Ok(file_type);
        }
        let entry = Arc::clone(&self.inner);
        begin(Lane::Elastic, move || entry.file_type()).await?
    }
}
