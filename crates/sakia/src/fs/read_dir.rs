//! Reading a directory: a batch of entries at a time, however many there are.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use sakia_driver::{DirectoryEntries, Op, ReadDirectory};

use super::{Dir, FileType, Metadata, c_path, stat};
use crate::error::{Context, Result};

/// Bytes of entries read at once: some 800 of them.
const BATCH_BYTES: usize = 32 << 10;

/// The offset of the record's length within an entry; see `getdents(2)`.
const RECORD_LEN_AT: usize = 16;

/// The entries of a directory, in no order; made by [`read_dir`](super::read_dir). `.` and `..` are not
/// among them.
///
/// Entries are read on demand, a batch at a time, so a directory of any size takes the same memory. An entry
/// that is added or removed meanwhile may or may not be seen; all others are seen once.
///
/// # Examples
/// See [`read_dir()`](super::read_dir()#examples).
pub struct ReadDir {
    pub(super) directory: Rc<Dir>,
    /// Records of entries; empty while the kernel has the buffer.
    batch: Vec<u8>,
    /// The beginning of the records that were not taken.
    begin: usize,
    end: usize,
    /// Reads the next batch. Kept here, so that nothing is lost when a future is dropped.
    pending: Option<Op<ReadDirectory>>,
    is_over: bool,
}

impl ReadDir {
    pub(super) fn new(directory: Dir) -> Self {
        let directory = Rc::new(directory);
        Self { directory, batch: Vec::new(), begin: 0, end: 0, pending: None, is_over: false }
    }

    /// Returns the next entry; `None` at the end, and after an error.
    ///
    /// # Cancel safety
    /// Dropping the future loses no entry.
    ///
    /// # Errors
    /// As `getdents(2)`.
    ///
    /// # Examples
    /// See [`read_dir()`](super::read_dir()#examples).
    ///
    /// # Kernel
    /// A plain call: io_uring has no such operation.
    #[doc(alias = "getdents")]
    pub async fn next_entry(&mut self) -> Result<Option<DirEntry>> {
        loop {
            while let Some(entry) = self.take_buffered() {
                if entry.name != "." && entry.name != ".." {
                    return Ok(Some(entry));
                }
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Takes an entry of the current batch.
    fn take_buffered(&mut self) -> Option<DirEntry> {
        let rest = self.batch.get(self.begin..self.end)?;
        let entry = DirectoryEntries::new(rest).next()?;
        let len = rest[RECORD_LEN_AT..].first_chunk()?;
        self.begin += usize::from(u16::from_ne_bytes(*len));
        Some(DirEntry {
            directory: Rc::clone(&self.directory),
            name: OsStr::from_bytes(entry.name).to_owned(),
            inode: entry.inode,
            kind: FileType::from_entry(entry.kind),
        })
    }

    /// Reads the next batch. Returns false at the end.
    async fn fill(&mut self) -> Result<bool> {
        if self.is_over {
            return Ok(false);
        }
        let Dir { fd, driver, path } = &*self.directory;
        let pending = match &mut self.pending {
            Some(pending) => pending,
            pending => {
                let mut batch = std::mem::take(&mut self.batch);
                (self.begin, self.end) = (0, 0);
                batch.resize(BATCH_BYTES, 0);
                pending.insert(driver.read_directory(fd, batch))
            }
        };
        let (result, batch) = pending.await;
        self.pending = None;
        self.batch = batch;
        match result {
            Ok(count) => {
                self.is_over = count == 0;
                self.end = count;
                Ok(count > 0)
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(true),
            // The directory was removed while it was read: it has no entries any more.
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
                self.is_over = true;
                Ok(false)
            }
            Err(error) => {
                self.is_over = true;
                Err(error).at("read directory", path)
            }
        }
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadDir").field(&self.directory.path).finish()
    }
}

/// An entry of a directory. It keeps the directory open, so that later queries concern this very entry and
/// not the file that the path names by then.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let dir = std::env::temp_dir().join(format!("sakia-doc-dir-entry-{}", std::process::id()));
/// # std::fs::create_dir(&dir).unwrap();
/// # sakia::block_on(async {
/// fs::write(dir.join("note"), "hello").await?;
/// let mut entries = fs::read_dir(&dir).await?;
/// let entry = entries.next_entry().await?.expect("there is a file");
/// assert_eq!((entry.file_name().to_str(), entry.path()), (Some("note"), dir.join("note")));
/// assert!(entry.file_type().await?.is_file());
/// assert_eq!(entry.metadata().await?.len(), 5);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct DirEntry {
    directory: Rc<Dir>,
    name: OsString,
    inode: u64,
    /// The type that the directory gives; `None` if the file system does not report it.
    pub(super) kind: Option<FileType>,
}

impl DirEntry {
    /// Returns the name, without the directory.
    ///
    /// # Examples
    /// See [`DirEntry`](DirEntry#examples).
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// Converts to the name, without the directory.
    pub fn into_file_name(self) -> OsString {
        self.name
    }

    /// Returns the directory's path, as it was opened, and the name.
    ///
    /// # Examples
    /// See [`DirEntry`](DirEntry#examples).
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }

    /// Returns the inode number in the directory. At a mount point, that of the directory underneath.
    #[doc(alias = "d_ino")]
    pub fn ino(&self) -> u64 {
        self.inode
    }

    /// Returns the type of the entry, links not followed. Most file systems give it with the name; only on
    /// others the inode is asked.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As for [`metadata`](DirEntry::metadata), if the inode is asked.
    ///
    /// # Examples
    /// See [`DirEntry`](DirEntry#examples).
    #[doc(alias = "d_type")]
    pub async fn file_type(&self) -> Result<FileType> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => Ok(self.metadata().await?.file_type()),
        }
    }

    /// Returns the metadata of the entry, links not followed.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// `ENOENT`: it was removed meanwhile. Otherwise as `statx(2)`.
    ///
    /// # Examples
    /// See [`DirEntry`](DirEntry#examples).
    pub async fn metadata(&self) -> Result<Metadata> {
        let Dir { fd, driver, .. } = &*self.directory;
        let found = async {
            let name = c_path(self.name.as_ref())?;
            stat(driver, Some(fd), &name, AtFlags::SYMLINK_NOFOLLOW).await
        };
        found.await.at("metadata", &self.path())
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path()).finish()
    }
}
