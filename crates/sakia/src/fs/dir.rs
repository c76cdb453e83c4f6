//! An open directory, and lookups that cannot leave it.
//!
//! A path given to a [`Dir`] is looked up beneath it: `..`, absolute paths and symbolic links that lead
//! out are refused by the kernel (`openat2(2)` with `RESOLVE_BENEATH`), whatever others do to the tree
//! meanwhile. Operations on names, for which the kernel has no such flag, open the parent directory in
//! this way and act on the last part alone.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags, ResolveFlags};
use rustix::io::Errno;
use sakia_driver::{Fd, Handle, OpenHow};

use super::paths::read_link_at;
use super::{File, Metadata, OpenOptions, ReadDir, c_path, driver, stat_open, uninterrupted};
use crate::error::{Context, Result};

/// Attempts at a lookup that others disturb by renames.
const TRIES: u32 = 64;

/// An open directory. Paths given to it are confined to it: files outside cannot be reached.
///
/// It refers to the directory itself, which may be renamed or moved meanwhile.
///
/// # Examples
/// ```
/// use sakia::fs::Dir;
/// use sakia::io::BufResultExt;
///
/// # let path = std::env::temp_dir().join(format!("sakia-dir-{}", std::process::id()));
/// # std::fs::create_dir(&path).unwrap();
/// sakia::block_on(async {
///     let dir = Dir::open(&path).await?;
///     dir.create_dir("notes").await?;
///     dir.create("notes/first").await?.write_all_at("hello", 0).await.value()?;
///     assert_eq!(dir.metadata("notes/first").await?.len(), 5);
///
///     let error = dir.open_file("../../etc/passwd").await.unwrap_err();
///     assert_eq!(error.kind(), std::io::ErrorKind::CrossesDevices);
///     std::io::Result::Ok(())
/// }).unwrap();
/// # std::fs::remove_dir_all(&path).unwrap();
/// ```
///
/// # Kernel
/// 5.6. Source: `openat2(2)`.
pub struct Dir {
    pub(super) fd: Fd,
    pub(super) driver: Handle,
    /// The path under which it was opened, for messages.
    pub(super) path: PathBuf,
}

impl Dir {
    /// Opens a directory. Its own path is not confined.
    ///
    /// # Errors
    /// `ENOTDIR`: not a directory. Otherwise as `open(2)`.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`Dir`](Dir#examples).
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let driver = driver();
        let fd = open_directory(&driver, None, path, OFlags::empty()).await.at("open", path)?;
        Ok(Self { fd, driver, path: path.to_owned() })
    }

    /// Uses a directory of another owner, which other threads may use meanwhile. The owner is kept while
    /// operations use it, and the directory is never closed here. If the runtime has the descriptor already,
    /// this is another user of that one, and `owner` is dropped. `path` is for messages.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    ///
    /// use sakia::fs::Dir;
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-dir-lend-{}", std::process::id()));
    /// # std::fs::create_dir(&dir).unwrap();
    /// # sakia::block_on(async {
    /// let shared = Arc::new(std::fs::File::open(&dir)?);
    /// let borrowed = Dir::lend(Arc::clone(&shared), &dir);
    /// borrowed.create("file").await?;
    /// assert!(dir.join("file").exists());
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn lend<T: AsFd + Send + Sync + 'static>(owner: Arc<T>, path: impl Into<PathBuf>) -> Self {
        let fd = crate::executor::current().driver.lend(owner);
        Self { fd, driver: driver(), path: path.into() }
    }

    /// Opens a directory beneath this one; `.` is this one again.
    ///
    /// # Errors
    /// As for [`open_with`](Dir::open_with). `ENOTDIR`: not a directory.
    ///
    /// # Examples
    /// See [`Dir::rename`].
    pub async fn open_dir(&self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fd = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY).await;
        let fd = fd.at("open", &self.path.join(path))?;
        Ok(Self { fd, driver: self.driver.clone(), path: self.path.join(path) })
    }

    /// Opens a file beneath this directory to read it.
    ///
    /// # Errors
    /// As for [`open_with`](Dir::open_with).
    ///
    /// # Examples
    /// See [`Dir`](Dir#examples).
    pub async fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true)).await
    }

    /// Opens a file beneath this directory to write it: makes it if there is none, and empties it if
    /// there is one.
    ///
    /// # Errors
    /// As for [`open_with`](Dir::open_with).
    ///
    /// # Examples
    /// See [`Dir`](Dir#examples).
    pub async fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().write(true).create(true).truncate(true)).await
    }

    /// Opens a file beneath this directory.
    ///
    /// # Errors
    /// - `EXDEV`: the path leads out of the directory.
    /// - `ENOSYS`: the kernel cannot confine lookups. `EAGAIN`: others keep on moving directories on the
    ///   path. Otherwise as for [`OpenOptions::open`].
    ///
    /// # Examples
    /// See [`Dir::open_with_metadata`].
    pub async fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref();
        options.open_at(Some(self), path).await.at("open", &self.path.join(path))
    }

    /// Opens a file beneath this directory, and asks for its metadata; see
    /// [`OpenOptions::open_with_metadata`].
    ///
    /// # Errors
    /// As for [`open_with`](Dir::open_with), and `statx(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{Dir, OpenOptions};
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-dir-open-with-{}", std::process::id()));
    /// # std::fs::create_dir(&dir).unwrap();
    /// # sakia::block_on(async {
    /// let dir = Dir::open(&dir).await?;
    /// let append = OpenOptions::new().append(true).create(true).clone();
    /// let (log, metadata) = dir.open_with_metadata("log", &append).await?;
    /// assert_eq!(metadata.len(), 0, "it is new");
    /// # drop(log);
    /// # let dir = dir.path();
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn open_with_metadata(
        &self,
        path: impl AsRef<Path>,
        options: &OpenOptions,
    ) -> Result<(File, Metadata)> {
        let path = path.as_ref();
        let opened = options.open_with_metadata_at(Some(self), path).await;
        opened.at("open", &self.path.join(path))
    }

    /// Makes a directory beneath this one.
    ///
    /// # Errors
    /// `EXDEV`: the path leads out of the directory. Otherwise as for
    /// [`create_dir`](super::create_dir).
    ///
    /// # Examples
    /// See [`Dir`](Dir#examples).
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let made = async {
            let (parent, name) = self.parent_of(path).await?;
            self.driver.mkdir(Some(&parent), name, 0o777).await
        };
        made.await.at("create directory", &self.path.join(path))
    }

    /// Removes a file, link, FIFO and so on beneath this directory.
    ///
    /// # Errors
    /// `EXDEV`: the path leads out of the directory. Otherwise as for
    /// [`remove_file`](super::remove_file).
    ///
    /// # Examples
    /// See [`Dir::read_dir`].
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.unlink("remove", path.as_ref(), AtFlags::empty()).await
    }

    /// Removes an empty directory beneath this one.
    ///
    /// # Errors
    /// `EXDEV`: the path leads out of the directory. Otherwise as for
    /// [`remove_dir`](super::remove_dir).
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.unlink("remove directory", path.as_ref(), AtFlags::REMOVEDIR).await
    }

    async fn unlink(&self, operation: &'static str, path: &Path, flags: AtFlags) -> Result<()> {
        let removed = async {
            let (parent, name) = self.parent_of(path).await?;
            self.driver.unlink(Some(&parent), name, flags.bits()).await
        };
        removed.await.at(operation, &self.path.join(path))
    }

    /// Moves the file at `from` beneath this directory to `to` beneath `to_dir`, and replaces a file there.
    ///
    /// # Errors
    /// `EXDEV`: a path leads out of its directory, or another file system. Otherwise as for
    /// [`rename`](super::rename).
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::Dir;
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-dir-rename-{}", std::process::id()));
    /// # std::fs::create_dir(&dir).unwrap();
    /// # sakia::block_on(async {
    /// let dir = Dir::open(&dir).await?;
    /// dir.create("draft").await?;
    /// dir.create_dir("done").await?;
    /// let done = dir.open_dir("done").await?;
    /// dir.rename("draft", &done, "letter").await?;
    /// assert!(done.metadata("letter").await?.is_file());
    /// assert!(dir.metadata("draft").await.is_err());
    /// # let dir = dir.path();
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn rename(
        &self,
        from: impl AsRef<Path>,
        to_dir: &Self,
        to: impl AsRef<Path>,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let moved = async {
            let (from_parent, from) = self.parent_of(from).await?;
            let (to_parent, to) = to_dir.parent_of(to).await?;
            self.driver.rename(Some(&from_parent), from, Some(&to_parent), to, 0).await
        };
        moved.await.between("rename", &self.path.join(from), &to_dir.path.join(to))
    }

    /// Makes a symbolic link at `link` beneath this directory. Its target is not checked; lookups by a `Dir`
    /// do not follow it out.
    ///
    /// # Errors
    /// `EXDEV`: `link` leads out of the directory. Otherwise as for [`symlink`](super::symlink).
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::Dir;
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-dir-symlink-{}", std::process::id()));
    /// # std::fs::create_dir(&dir).unwrap();
    /// # sakia::block_on(async {
    /// let dir = Dir::open(&dir).await?;
    /// dir.symlink("../outside", "link").await?;
    /// assert_eq!(dir.read_link("link").await?.to_str(), Some("../outside"));
    /// assert!(dir.symlink_metadata("link").await?.is_symlink());
    /// assert!(dir.open_file("link").await.is_err(), "it leads out of the directory");
    /// # let dir = dir.path();
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (original, link) = (original.as_ref(), link.as_ref());
        let made = async {
            let target = c_path(original)?;
            let (parent, name) = self.parent_of(link).await?;
            self.driver.symlink(target, Some(&parent), name).await
        };
        made.await.between("symlink", original, &self.path.join(link))
    }

    /// Returns the target of the symbolic link at `path` beneath this directory.
    ///
    /// # Errors
    /// `EXDEV`: the path leads out of the directory. Otherwise as for [`read_link`](super::read_link).
    ///
    /// # Examples
    /// See [`Dir::symlink`].
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let read = async {
            let (parent, name) = self.parent_of(path).await?;
            read_link_at(&self.driver, Some(&parent), name).await
        };
        read.await.at("read link", &self.path.join(path))
    }

    /// Returns the metadata of the file at `path` beneath this directory, links followed as far as they stay
    /// within; `.` is the directory itself.
    ///
    /// # Errors
    /// `EXDEV`: the path leads out of the directory. Otherwise as for [`metadata`](super::metadata).
    ///
    /// # Examples
    /// See [`Dir`](Dir#examples).
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), OFlags::PATH).await
    }

    /// As [`metadata`](Dir::metadata), of a link itself.
    ///
    /// # Errors
    /// As for [`metadata`](Dir::metadata).
    ///
    /// # Examples
    /// See [`Dir::symlink`].
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), OFlags::PATH | OFlags::NOFOLLOW).await
    }

    async fn stat(&self, path: &Path, flags: OFlags) -> Result<Metadata> {
        let stat = async {
            let fd = self.open_beneath(path, flags).await?;
            stat_open(&self.driver, &fd).await
        };
        stat.await.at("metadata", &self.path.join(path))
    }

    /// Reads the directory from its beginning. Several reads of one `Dir` do not disturb each other.
    ///
    /// # Errors
    /// As for [`read_dir`](super::read_dir).
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::Dir;
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-dir-read-dir-{}", std::process::id()));
    /// # std::fs::create_dir(&dir).unwrap();
    /// # sakia::block_on(async {
    /// let dir = Dir::open(&dir).await?;
    /// for name in ["a", "b"] {
    ///     dir.create(name).await?;
    /// }
    /// let mut entries = dir.read_dir().await?;
    /// while let Some(entry) = entries.next_entry().await? {
    ///     dir.remove_file(entry.file_name()).await?;
    /// }
    /// assert!(dir.read_dir().await?.next_entry().await?.is_none());
    /// # let dir = dir.path();
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn read_dir(&self) -> Result<ReadDir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = self.open_beneath(Path::new("."), flags).await.at("open", &self.path)?;
        Ok(ReadDir::new(Self { fd, driver: self.driver.clone(), path: self.path.clone() }))
    }

    /// Makes the directory's names durable, as made, removed or moved by operations that have resolved.
    ///
    /// # Errors
    /// As for [`File::sync_all`].
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::Dir;
    /// use sakia::io::BufResultExt;
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-dir-sync-{}", std::process::id()));
    /// # std::fs::create_dir(&dir).unwrap();
    /// # sakia::block_on(async {
    /// let dir = Dir::open(&dir).await?;
    /// let file = dir.create("new").await?;
    /// file.write_durable_at("contents", 0).await.value()?;
    /// // The name is durable from here on, too.
    /// dir.sync().await?;
    /// assert_eq!(dir.metadata("new").await?.len(), 8);
    /// # let dir = dir.path();
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "fsync")]
    pub async fn sync(&self) -> Result<()> {
        sync_directory(&self.driver, &self.fd).await.at("sync directory", &self.path)
    }

    /// Returns the path under which the directory was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Closes the directory, and returns the result. Dropping closes it too, a little later.
    ///
    /// # Errors
    /// As `close(2)`. The descriptor is gone in any case.
    pub async fn close(self) -> io::Result<()> {
        self.driver.close(self.fd).await
    }

    async fn open_beneath(&self, path: &Path, flags: OFlags) -> io::Result<Fd> {
        let path = c_path(path)?;
        let resolve = ResolveFlags::BENEATH;
        open_resolving(&self.driver, Some(&self.fd), path, flags, 0, resolve).await
    }

    /// Returns the directory that contains the last part of `path`, and that part.
    async fn parent_of(&self, path: &Path) -> io::Result<(Fd, CString)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let name = c_path(Path::new(name))?;
        match path.parent() {
            Some(parent) if parent.as_os_str() != OsStr::new("") => {
                let fd = self.open_beneath(parent, OFlags::PATH | OFlags::DIRECTORY).await?;
                Ok((fd, name))
            }
            _ => Ok((self.fd.clone(), name)),
        }
    }
}

/// For system calls that this type does not offer.
impl AsFd for Dir {
    /// # Panics
    /// On a simulated kernel.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dir").field("fd", &self.fd.raw()).field("path", &self.path).finish()
    }
}

/// Opens a path with restrictions on its lookup.
pub(super) async fn open_resolving(
    driver: &Handle,
    directory: Option<&Fd>,
    path: CString,
    flags: OFlags,
    mode: u32,
    resolve: ResolveFlags,
) -> io::Result<Fd> {
    let how = OpenHow { flags: flags.bits().into(), mode: mode.into(), resolve: resolve.bits() };
    let mut tries = TRIES;
    loop {
        match driver.openat2(directory, path.clone(), how).await {
            // Something was renamed meanwhile, so that the kernel cannot tell whether `..` stays within.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && tries > 0 => tries -= 1,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Opens a directory for reading, with `more` flags.
pub(super) async fn open_directory(
    driver: &Handle,
    directory: Option<&Fd>,
    path: &Path,
    more: OFlags,
) -> io::Result<Fd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | more;
    uninterrupted(async || driver.open(directory, c_path(path)?, flags.bits(), 0).await).await
}

/// Makes names durable. A file system without such a sync for directories counts as durable.
pub(super) async fn sync_directory(driver: &Handle, fd: &Fd) -> io::Result<()> {
    match uninterrupted(async || driver.fsync(fd, false).await).await {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        result => result,
    }
}
