//! Operations on names: directories, links, renames, removal, metadata.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use sakia_driver::{Fd, Handle};

use super::whole::parent;
use super::{
    Dir, FileTimes, Metadata, Permissions, ReadDir, c_path, driver, stat, stat_open, uninterrupted,
};
use crate::error::{Context, Result};

/// The most symbolic links followed, as in the kernel.
const LINKS_MAX: u32 = 40;

/// Makes a directory.
///
/// # Errors
/// `EEXIST`: there is something of that name. `ENOENT`: its parent is missing. Otherwise as `mkdir(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use std::io::ErrorKind;
///
/// use sakia::fs;
///
/// # let dir = std::env::temp_dir().join(format!("sakia-doc-create-dir-{}", std::process::id()));
/// # std::fs::create_dir(&dir).unwrap();
/// # sakia::block_on(async {
/// fs::create_dir(dir.join("new")).await?;
/// let error = fs::create_dir(dir.join("new")).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::AlreadyExists);
/// fs::remove_dir(dir.join("new")).await?;
/// assert!(!fs::exists(dir.join("new")).await?);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Kernel
/// 5.15. Source: `io_uring_prep_mkdirat(3)`.
#[doc(alias = "mkdir")]
pub async fn create_dir(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    mkdir(path).await.at("create directory", path)
}

async fn mkdir(path: &Path) -> io::Result<()> {
    driver().mkdir(None, c_path(path)?, 0o777).await
}

/// Makes a directory, and those above it that are missing. An existing directory is no error.
///
/// # Cancel safety
/// **None**: dropping the future leaves the directories that were made by then. Call it again.
///
/// # Errors
/// `ENOTDIR`, `EEXIST`: a file that is no directory is there. Otherwise as `mkdir(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let dir = std::env::temp_dir().join(format!("sakia-doc-create-dir-all-{}", std::process::id()));
/// # std::fs::create_dir(&dir).unwrap();
/// # sakia::block_on(async {
/// fs::create_dir_all(dir.join("a/b/c")).await?;
/// assert!(fs::metadata(dir.join("a/b/c")).await?.is_dir());
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub async fn create_dir_all(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    // Up to an existing directory, then down again.
    let mut missing = Vec::new();
    let mut current = path;
    loop {
        if current.as_os_str().is_empty() {
            break; // the working directory
        }
        match mkdir(current).await {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(current);
                match current.parent() {
                    Some(parent) => current = parent,
                    None => return Err(error).at("create directory", path),
                }
            }
            Err(error) => {
                accept_directory(current, error).await?;
                break;
            }
        }
    }
    for directory in missing.into_iter().rev() {
        if let Err(error) = mkdir(directory).await {
            accept_directory(directory, error).await?;
        }
    }
    Ok(())
}

/// Ignores `error` if there is a directory, which another process may have made just now.
async fn accept_directory(path: &Path, error: io::Error) -> Result<()> {
    match metadata(path).await {
        Ok(found) if found.is_dir() => Ok(()),
        _ => Err(error).at("create directory", path),
    }
}

/// Removes a name of a file, link, FIFO and so on. The file itself is removed with its last name, once no
/// process has it open.
///
/// # Errors
/// `EISDIR`: a directory. `ENOENT`, `EACCES`, `EPERM`, `EROFS`. Otherwise as `unlink(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-remove-file-{}", std::process::id()));
/// # sakia::block_on(async {
/// fs::write(&path, "gone soon").await?;
/// fs::remove_file(&path).await?;
/// assert!(!fs::exists(&path).await?);
/// # fs::write(&path, "").await?;
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Kernel
/// 5.11. Source: `io_uring_prep_unlinkat(3)`.
#[doc(alias = "unlink")]
pub async fn remove_file(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let removed = async { driver().unlink(None, c_path(path)?, 0).await };
    removed.await.at("remove", path)
}

/// Removes an empty directory.
///
/// # Errors
/// `ENOTEMPTY`: the directory is not empty. `ENOTDIR`: no directory. `EBUSY`: a mount point. Otherwise as
/// `rmdir(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// See [`create_dir`](create_dir#examples).
///
/// # Kernel
/// 5.11. Source: `io_uring_prep_unlinkat(3)`.
#[doc(alias = "rmdir")]
pub async fn remove_dir(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let removed = async { driver().unlink(None, c_path(path)?, AtFlags::REMOVEDIR.bits()).await };
    removed.await.at("remove directory", path)
}

/// Moves the file at `from` to `to`, and replaces a file there, atomically: others see either the old file or
/// the new one.
///
/// # Errors
/// `EXDEV`: another file system. `ENOTEMPTY`, `EISDIR`, `ENOTDIR`: the file at `to` cannot be replaced by the
/// other. Otherwise as `rename(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let dir = std::env::temp_dir().join(format!("sakia-doc-rename-{}", std::process::id()));
/// # std::fs::create_dir(&dir).unwrap();
/// # sakia::block_on(async {
/// let (old, new) = (dir.join("old"), dir.join("new"));
/// fs::write(&old, "contents").await?;
/// fs::write(&new, "to be replaced").await?;
/// fs::rename(&old, &new).await?;
/// assert_eq!(fs::read(&new).await?, b"contents");
/// assert!(!fs::exists(&old).await?);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Kernel
/// 5.11. Source: `io_uring_prep_renameat(3)`.
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let moved = async { driver().rename(None, c_path(from)?, None, c_path(to)?, 0).await };
    moved.await.between("rename", from, to)
}

/// Gives the file at `original` another name, `link`, on the same file system. A symbolic link at `original`
/// is not followed.
///
/// # Errors
/// `EXDEV`: another file system. `EPERM`: a directory. `EEXIST`: the name `link` exists. Otherwise as
/// `link(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let dir = std::env::temp_dir().join(format!("sakia-doc-hard-link-{}", std::process::id()));
/// # std::fs::create_dir(&dir).unwrap();
/// # sakia::block_on(async {
/// fs::write(dir.join("one"), "shared").await?;
/// fs::hard_link(dir.join("one"), dir.join("two")).await?;
/// assert_eq!(fs::metadata(dir.join("one")).await?.nlink(), 2);
/// assert_eq!(fs::read(dir.join("two")).await?, b"shared");
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Kernel
/// 5.15. Source: `io_uring_prep_linkat(3)`.
#[doc(alias = "link")]
pub async fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
    let (original, link) = (original.as_ref(), link.as_ref());
    let made = async { driver().link(None, c_path(original)?, None, c_path(link)?, 0).await };
    made.await.between("link", original, link)
}

/// Makes a symbolic link at `link` that points to `original`, which need not exist.
///
/// # Errors
/// `EEXIST`: the name `link` exists. Otherwise as `symlink(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let dir = std::env::temp_dir().join(format!("sakia-doc-symlink-{}", std::process::id()));
/// # std::fs::create_dir(&dir).unwrap();
/// # sakia::block_on(async {
/// let link = dir.join("link");
/// fs::symlink("target", &link).await?;
/// assert_eq!(fs::read_link(&link).await?.to_str(), Some("target"));
/// assert!(fs::symlink_metadata(&link).await?.is_symlink());
/// assert!(fs::metadata(&link).await.is_err(), "there is no target");
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Kernel
/// 5.15. Source: `io_uring_prep_symlinkat(3)`.
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
    let (original, link) = (original.as_ref(), link.as_ref());
    let made = async { driver().symlink(c_path(original)?, None, c_path(link)?).await };
    made.await.between("symlink", original, link)
}

/// Returns the target of a symbolic link.
///
/// # Errors
/// `EINVAL`: not a symbolic link. Otherwise as `readlink(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// See [`symlink`](symlink#examples).
///
/// # Kernel
/// A plain call: io_uring has no such operation.
#[doc(alias = "readlink")]
pub async fn read_link(path: impl AsRef<Path>) -> Result<PathBuf> {
    let path = path.as_ref();
    let read = async { read_link_at(&driver(), None, c_path(path)?).await };
    read.await.at("read link", path)
}

/// Returns the path to which a final symbolic link leads, also if that file does not exist.
pub(super) async fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        match read_link(&target).await {
            Ok(link) => target = parent(&target).join(link),
            // Not a link, or nothing is there.
            Err(error)
                if error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
                    || error.kind() == io::ErrorKind::NotFound =>
            {
                return Ok(target);
            }
            Err(error) => return Err(error.into_io_error()),
        }
    }
    Err(Errno::LOOP.into())
}

/// As [`read_link`], relative to a directory.
pub(super) async fn read_link_at(
    driver: &Handle,
    directory: Option<&Fd>,
    path: CString,
) -> io::Result<PathBuf> {
    let mut buf = vec![0; 256];
    loop {
        let (result, back) = driver.readlink(directory, path.clone(), buf).await;
        buf = back;
        let count = match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        if count < buf.len() {
            buf.truncate(count);
            return Ok(std::ffi::OsString::from_vec(buf).into());
        }
        buf.resize(buf.len() * 2, 0); // there may be more
    }
}

/// Returns the metadata of the file at `path`, links followed.
///
/// # Errors
/// `ENOENT`, `EACCES`, `ELOOP`. Otherwise as `stat(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// See [`Metadata`](super::Metadata#examples).
///
/// # Kernel
/// 5.6. Source: `io_uring_prep_statx(3)`.
#[doc(alias = "stat")]
pub async fn metadata(path: impl AsRef<Path>) -> Result<Metadata> {
    let path = path.as_ref();
    stat_path(path, AtFlags::empty()).await.at("metadata", path)
}

/// Returns the metadata of the file at `path`, without following a final symbolic link.
///
/// # Errors
/// As for [`metadata`].
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// See [`symlink`](symlink#examples).
#[doc(alias = "lstat")]
pub async fn symlink_metadata(path: impl AsRef<Path>) -> Result<Metadata> {
    let path = path.as_ref();
    stat_path(path, AtFlags::SYMLINK_NOFOLLOW).await.at("metadata", path)
}

async fn stat_path(path: &Path, flags: AtFlags) -> io::Result<Metadata> {
    stat(&driver(), None, &c_path(path)?, flags).await
}

/// Returns whether there is a file at `path`, links followed. The same as [`try_exists`]: both names are in
/// use.
///
/// # Errors
/// The answer is unknown: `EACCES`, `ELOOP`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// See [`create_dir`](create_dir#examples).
pub async fn exists(path: impl AsRef<Path>) -> Result<bool> {
    try_exists(path).await
}

/// Returns whether there is a file at `path`, links followed.
///
/// # Errors
/// The answer is unknown: `EACCES`, `ELOOP`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// See [`create_dir`](create_dir#examples).
pub async fn try_exists(path: impl AsRef<Path>) -> Result<bool> {
    match metadata(path).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sets the access rights of the file at `path`, links followed.
///
/// # Errors
/// `EPERM`: the file of another user. `EROFS`. Otherwise as `chmod(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs::{self, Permissions};
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-set-permissions-{}", std::process::id()));
/// # sakia::block_on(async {
/// fs::write(&path, "for my group, too").await?;
/// fs::set_permissions(&path, Permissions::from_mode(0o660)).await?;
/// assert_eq!(fs::metadata(&path).await?.permissions().mode(), 0o660);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Kernel
/// A plain call: io_uring has no such operation.
#[doc(alias = "chmod")]
pub async fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> Result<()> {
    let path = path.as_ref();
    let set = async { driver().chmod(None, c_path(path)?, permissions.mode(), 0).await };
    set.await.at("set permissions", path)
}

/// Sets the times of the file at `path`, links followed.
///
/// # Errors
/// `EPERM`, `EACCES`: the file of another user. Otherwise as `utimensat(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use sakia::fs::{self, FileTimes};
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-set-times-{}", std::process::id()));
/// # sakia::block_on(async {
/// let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
/// fs::write(&path, "old").await?;
/// fs::set_times(&path, FileTimes::new().set_modified(then)).await?;
/// assert_eq!(fs::metadata(&path).await?.modified()?, then);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Kernel
/// A plain call: io_uring has no such operation.
#[doc(alias = "utimensat")]
pub async fn set_times(path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
    let path = path.as_ref();
    let [accessed, modified] = times.to_set();
    let set = async { driver().utimens(None, c_path(path)?, accessed, modified, 0).await };
    set.await.at("set times", path)
}

/// Changes the owner or the group of the file at `path`, links followed; `None` leaves it as it is.
///
/// # Errors
/// `EPERM`: not allowed. Otherwise as `chown(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// Only a privileged user may give files away; this keeps the owner:
/// ```
/// use sakia::fs;
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-chown-{}", std::process::id()));
/// # sakia::block_on(async {
/// fs::write(&path, "mine").await?;
/// let owner = fs::metadata(&path).await?.uid();
/// fs::chown(&path, Some(owner), None).await?;
/// assert_eq!(fs::metadata(&path).await?.uid(), owner);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Kernel
/// A plain call: io_uring has no such operation.
pub async fn chown(path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    let path = path.as_ref();
    let set = async { driver().chown(None, c_path(path)?, uid, gid, 0).await };
    set.await.at("chown", path)
}

/// Returns the absolute path of the file at `path`, without links, `.` and `..`.
///
/// # Errors
/// `ENOENT`, `EACCES`, `ELOOP`. `ENOENT` also when it is moved or removed meanwhile, or when there is no
/// `/proc`. Otherwise as `open(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # sakia::block_on(async {
/// let program = fs::canonicalize("/proc/self/exe").await?;
/// assert_eq!(program, std::env::current_exe()?.canonicalize()?);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Kernel
/// An `O_PATH` descriptor, and its link in `/proc/self/fd`.
#[doc(alias = "realpath")]
pub async fn canonicalize(path: impl AsRef<Path>) -> Result<PathBuf> {
    let path = path.as_ref();
    canonical(path).await.at("canonicalize", path)
}

async fn canonical(path: &Path) -> io::Result<PathBuf> {
    let driver = driver();
    let open = async || driver.open(None, c_path(path)?, OFlags::PATH.bits(), 0).await;
    let fd = uninterrupted(open).await?;
    let link = format!("/proc/self/fd/{}", fd.raw());
    let found = read_link_at(&driver, None, c_path(link.as_ref())?).await?;
    // For a removed file the link in `/proc` is no path, but cannot be told from one.
    let (open, named) =
        (stat_open(&driver, &fd).await?, stat_path(&found, AtFlags::empty()).await?);
    if (open.dev(), open.ino()) == (named.dev(), named.ino()) {
        Ok(found)
    } else {
        Err(Errno::NOENT.into())
    }
}

/// Reads a directory.
///
/// # Errors
/// `ENOTDIR`: not a directory. Otherwise as `open(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// sakia::block_on(async {
///     let mut entries = fs::read_dir("/proc/self/task").await?;
///     let mut count = 0;
///     while let Some(entry) = entries.next_entry().await? {
///         assert!(entry.file_type().await?.is_dir());
///         count += 1;
///     }
///     assert!(count >= 1, "each process has a thread");
///     Ok::<(), fs::Error>(())
/// }).unwrap();
/// ```
#[doc(alias = "opendir")]
pub async fn read_dir(path: impl AsRef<Path>) -> Result<ReadDir> {
    Ok(ReadDir::new(Dir::open(path).await?))
}
