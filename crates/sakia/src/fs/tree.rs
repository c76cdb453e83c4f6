//! Removing a tree, by descriptor.
//!
//! Each directory is opened relative to its parent, and never through a link, so that no other process can
//! substitute a link and have something else removed. A directory is read while it is emptied. Only the
//! nearest directories above the current one are kept open; a tree of any depth and width takes the same
//! memory, but for a name per level. On the way back, by `..`, to a directory that was closed, the code
//! checks that it is still the same one.

use std::collections::VecDeque;
use std::ffi::{CString, OsString};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use sakia_driver::{Fd, Handle};

use super::dir::open_directory;
use super::{Dir, ReadDir, c_path, driver, stat, stat_open};
use crate::error::{Context, Error, Object, Result};

/// The most levels that are kept open.
const OPEN_MAX: usize = 16;
/// Names removed at a time.
const BATCH: usize = 32;

/// Removes a directory with all that is in it. A symbolic link is removed itself; no link is followed.
///
/// Files that others add meanwhile are removed too, or else the call fails with `ENOTEMPTY`. After an error
/// the rest is not removed.
///
/// # Cancel safety
/// **None**: dropping the future leaves the rest of the tree. Call it again.
///
/// # Errors
/// `ENOTDIR`: not a directory. `EACCES`, `EPERM`, `EBUSY`: something in it cannot be removed; the error names
/// it. Otherwise as `open(2)` and `unlink(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let dir = std::env::temp_dir().join(format!("sakia-doc-remove-dir-all-{}", std::process::id()));
/// # std::fs::create_dir(&dir).unwrap();
/// # sakia::block_on(async {
/// fs::create_dir_all(dir.join("tree/with/branches")).await?;
/// fs::write(dir.join("tree/leaf"), "").await?;
/// fs::remove_dir_all(dir.join("tree")).await?;
/// assert!(!fs::exists(dir.join("tree")).await?);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub async fn remove_dir_all(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let driver = driver();
    let c_path = c_path(path).at("remove directory", path)?;
    let fd = match open_directory(&driver, None, path, OFlags::NOFOLLOW).await {
        Ok(fd) => fd,
        Err(error) if is_no_directory(&error) => {
            let found = stat(&driver, None, &c_path, AtFlags::SYMLINK_NOFOLLOW).await;
            let found = found.at("metadata", path)?;
            if found.is_symlink() {
                return driver.unlink(None, c_path, 0).await.at("remove", path);
            }
            return Err(error).at("remove directory", path);
        }
        Err(error) => return Err(error).at("open", path),
    };
    let mut walk = Walk { driver: driver.clone(), path: path.to_owned(), levels: Vec::new() };
    walk.enter(fd, OsString::new());
    walk.empty().await?;
    drop(walk);
    driver.unlink(None, c_path, AtFlags::REMOVEDIR.bits()).await.at("remove directory", path)
}

/// A directory that is being emptied, and those above it.
struct Walk {
    driver: Handle,
    /// The path of the current directory.
    path: PathBuf,
    levels: Vec<Level>,
}

struct Level {
    /// The name in the directory above; empty for the first.
    name: OsString,
    /// `None` when it was closed to make room.
    open: Option<ReadDir>,
    /// Device and inode numbers, known once it was closed.
    id: (u64, u64),
    /// Directories in it that were found and not emptied yet: at most a batch.
    found: VecDeque<OsString>,
}

impl Walk {
    fn enter(&mut self, fd: Fd, name: OsString) {
        let (driver, path) = (self.driver.clone(), self.path.clone());
        let open = Some(ReadDir::new(Dir { fd, driver, path }));
        self.levels.push(Level { name, open, id: (0, 0), found: VecDeque::new() });
    }

    /// Empties all levels, the first one last; that one is not removed.
    async fn empty(&mut self) -> Result<()> {
        while let Some(level) = self.levels.last_mut() {
            let Some(open) = &mut level.open else {
                unreachable!("the directory at hand is open");
            };
            let fd = open.directory.fd.clone();
            if let Some(name) = level.found.pop_front() {
                self.descend(&fd, name).await?;
                continue;
            }
            let (names, is_over) = read_batch(open).await?;
            let directories = self.remove_files(&fd, names).await?;
            if let Some(level) = self.levels.last_mut() {
                level.found.extend(directories);
                if is_over && level.found.is_empty() {
                    self.ascend(fd).await?;
                }
            }
        }
        Ok(())
    }

    /// Removes those names that are no directories, all at a time, and returns the others.
    async fn remove_files(&self, fd: &Fd, names: Vec<(OsString, bool)>) -> Result<Vec<OsString>> {
        let mut directories = Vec::new();
        let mut removals = Vec::new();
        for (name, is_dir) in names {
            if is_dir {
                directories.push(name);
                continue;
            }
            let c_name = c_path(name.as_ref()).at("remove", &self.path.join(&name))?;
            removals.push((name, self.driver.unlink(Some(fd), c_name, 0)));
        }
        let mut failure = None;
        for (name, removal) in removals {
            match removal.await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // The file system did not tell the type, or another process has put a directory in the file's
                // place.
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                    directories.push(name);
                }
                Err(error) => {
                    let path = self.path.join(&name);
                    failure.get_or_insert(Error::new("remove", Object::Path(path), error));
                }
            }
        }
        failure.map_or(Ok(directories), Err)
    }

    /// Goes down into `name`, a directory in the current one.
    async fn descend(&mut self, fd: &Fd, name: OsString) -> Result<()> {
        let path = self.path.join(&name);
        let c_name = c_path(name.as_ref()).at("open", &path)?;
        let driver = self.driver.clone();
        let remove_file = async || {
            ignore_missing(driver.unlink(Some(fd), c_name.clone(), 0).await).at("remove", &path)
        };
        // Most directories are empty by now: this takes one call instead of three.
        match self.rmdir(fd, c_name.clone()).await {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) if error.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return remove_file().await;
            }
            result => return ignore_missing(result).at("remove directory", &path),
        }
        let child =
            match open_directory(&self.driver, Some(fd), name.as_ref(), OFlags::NOFOLLOW).await {
                Ok(child) => child,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if is_no_directory(&error) => return remove_file().await,
                Err(error) => return Err(error).at("open", &path),
            };
        self.close_far_level().await?;
        self.path = path;
        self.enter(child, name);
        Ok(())
    }

    async fn rmdir(&self, fd: &Fd, name: CString) -> io::Result<()> {
        self.driver.unlink(Some(fd), name, AtFlags::REMOVEDIR.bits()).await
    }

    /// Closes the level that would be one too many.
    async fn close_far_level(&mut self) -> Result<()> {
        let Some(far) = (self.levels.len() + 1).checked_sub(OPEN_MAX + 1) else { return Ok(()) };
        let level = &mut self.levels[far];
        if let Some(open) = level.open.take() {
            let found = stat_open(&self.driver, &open.directory.fd).await;
            let found = found.at("metadata", &self.path)?;
            level.id = (found.dev(), found.ino());
        }
        Ok(())
    }

    /// Leaves the current directory, which is empty and open as `fd`, for its parent, and removes it there.
    async fn ascend(&mut self, fd: Fd) -> Result<()> {
        let Some(left) = self.levels.pop() else { return Ok(()) };
        let Some(above) = self.levels.last_mut() else { return Ok(()) };
        let path = self.path.clone();
        self.path.pop();
        if above.open.is_none() {
            let up = open_directory(&self.driver, Some(&fd), "..".as_ref(), OFlags::NOFOLLOW).await;
            let up = up.at("open", &self.path)?;
            let found = stat_open(&self.driver, &up).await.at("metadata", &self.path)?;
            if (found.dev(), found.ino()) != above.id {
                // Another process has moved the current directory.
                return Err(Errno::NOENT.into()).at("remove directory", &path);
            }
            let (driver, path) = (self.driver.clone(), self.path.clone());
            above.open = Some(ReadDir::new(Dir { fd: up, driver, path }));
        }
        let Some(open) = &above.open else { return Ok(()) };
        let parent = open.directory.fd.clone();
        let name = c_path(left.name.as_ref()).at("remove directory", &path)?;
        ignore_missing(self.rmdir(&parent, name).await).at("remove directory", &path)
    }
}

/// Returns the next names, each with whether it is known to be a directory; and whether there are no more.
async fn read_batch(entries: &mut ReadDir) -> Result<(Vec<(OsString, bool)>, bool)> {
    let mut names = Vec::with_capacity(BATCH);
    while names.len() < BATCH {
        let Some(entry) = entries.next_entry().await? else { return Ok((names, true)) };
        let is_dir = entry.kind.is_some_and(|kind| kind.is_dir());
        names.push((entry.into_file_name(), is_dir));
    }
    Ok((names, false))
}

/// Returns whether an open failed since the file is no directory: something else, or a link.
fn is_no_directory(error: &io::Error) -> bool {
    [Errno::NOTDIR, Errno::LOOP].iter().any(|no| error.raw_os_error() == Some(no.raw_os_error()))
}

/// Accepts that another process removed the file first.
fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
