//! Atomic replacement of files: other processes, and readers after a crash, see either the old contents or
//! the new ones.
//!
//! 1. The contents are written to a temporary file in the same directory.
//! 2. It gets owner and permissions of the file it replaces, and is made durable: were it renamed first,
//!    a crash could leave the new name with no contents. Without the right to give it away it keeps its
//!    owner, and gets neither set-user-ID nor set-group-ID.
//! 3. It is renamed, which replaces the old file in one step.
//! 4. The directory is made durable, and with it the new name.
//!
//! An error before step 3, or dropping the future, removes the temporary file. A process that is killed, or a
//! machine that loses power, leaves the file behind; its name ends in `.tmp`.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::future::Future;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sakia_driver::{Fd, IoBuf, Op, Open};
use sakia_ring::Process;

use super::dir::sync_directory;
use super::paths::follow_links;
use super::whole::parent;
use super::{Dir, File, Metadata, c_path, stat};
use crate::environment::{Environment, Machine};
use crate::error::{Context as _, Result};
use crate::executor::{try_current, with_current};

/// Attempts at finding an unused name.
const NAME_TRIES: u32 = 16;
/// The most bytes of a name on most file systems.
const NAME_BYTES_MAX: usize = 255;

/// Replaces the contents of a file atomically, or makes the file: the new contents are there as a whole or
/// not at all, and durable once the future has resolved.
///
/// A symbolic link is followed: its target is replaced. Other hard links keep the old contents. The new file
/// has the owner and the permissions of the old one; without the right to give it away, its own owner, and
/// neither set-user-ID nor set-group-ID.
///
/// # Cancel safety
/// Dropping the future leaves either the old file or the new one, and removes the other.
///
/// # Errors
/// `ENOSPC`, `EDQUOT`, `EIO`, `EACCES`: the old contents are unchanged, and nothing else is left; but see
/// [`commit`](AtomicFile::commit). Otherwise as `open(2)`, `write(2)`, `fsync(2)` and `rename(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let path = std::env::temp_dir().join(format!("sakia-save-{}", std::process::id()));
/// sakia::block_on(async {
///     fs::save(&path, "first").await?;
///     fs::save(&path, "second").await?;
///     assert_eq!(fs::read(&path).await?, b"second");
/// #   fs::remove_file(&path).await?;
///     Ok::<(), fs::Error>(())
/// }).unwrap();
/// ```
#[track_caller]
pub fn save(path: impl AsRef<Path>, contents: impl IoBuf) -> impl Future<Output = Result<()>> {
    let called_at = Location::caller();
    async move {
        let path = path.as_ref();
        let mut new = AtomicFile::create_at(path, called_at).await?;
        new.file_mut().write_all(contents).await.0.at("write", path)?;
        new.commit().await
    }
}

/// A file that replaces another when it is done. Dropping it leaves the other file as it is.
///
/// # Examples
/// ```
/// use sakia::fs::{self, AtomicFile};
/// use sakia::io::BufResultExt;
///
/// # let path = std::env::temp_dir().join(format!("sakia-atomic-{}", std::process::id()));
/// sakia::block_on(async {
///     fs::write(&path, "old").await?;
///     let mut new = AtomicFile::create(&path).await?;
///     for part in ["a ", "new ", "one"] {
///         new.file_mut().write_all(part).await.value()?;
///     }
///     assert_eq!(fs::read_to_string(&path).await?, "old");
///     new.commit().await?;
///     assert_eq!(fs::read_to_string(&path).await?, "a new one");
/// #   fs::remove_file(&path).await?;
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
pub struct AtomicFile {
    /// `None` once closed.
    file: Option<File>,
    /// The directory that contains both names.
    directory: Dir,
    /// The path of the caller, for messages.
    path: PathBuf,
    /// The name to be replaced, in the directory.
    name: CString,
    /// The temporary name; `None` once it is gone.
    temporary: Option<CString>,
    /// The metadata of the file to be replaced.
    old: Option<Metadata>,
    /// The process that writes the file.
    process: Process,
}

impl AtomicFile {
    /// Makes a file that is to replace the one at `path`, if there is one. It is empty, and open to read and
    /// write.
    ///
    /// # Cancel safety
    /// Dropping the future removes the new file.
    ///
    /// # Errors
    /// `ENOENT`: the directory does not exist. `EISDIR`: `path` is a directory. Otherwise as `open(2)`.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`AtomicFile`](AtomicFile#examples).
    #[track_caller]
    pub fn create(path: impl AsRef<Path>) -> impl Future<Output = Result<Self>> {
        let called_at = Location::caller();
        async move { Self::create_at(path.as_ref(), called_at).await }
    }

    async fn create_at(path: &Path, called_at: &'static Location<'static>) -> Result<Self> {
        let target = follow_links(path).await.at("save", path)?;
        let name = target.file_name().ok_or_else(|| Errno::ISDIR.into());
        let name = name.at("save", path)?.to_owned();
        let directory = Dir::open(parent(&target)).await?;
        let Dir { fd, driver, .. } = &directory;
        let c_name = c_path(name.as_ref()).at("save", path)?;
        let old = match stat(driver, Some(fd), &c_name, AtFlags::SYMLINK_NOFOLLOW).await {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).at("metadata", path),
        };
        if old.as_ref().is_some_and(Metadata::is_dir) {
            return Err(Errno::ISDIR.into()).at("save", path);
        }
        // A user who may not read the old file may not read the unfinished new one either.
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let created = create_temporary(&directory, &name, mode, called_at).await;
        let (fd, temporary) = created.at("create a temporary file beside", path)?;
        Ok(Self {
            file: Some(File::new(fd, driver.clone(), OFlags::empty())),
            directory,
            path: path.to_owned(),
            name: c_name,
            temporary: Some(temporary),
            old,
            process: Process::current(),
        })
    }

    /// Returns the file, to be written.
    pub fn file(&self) -> &File {
        self.file.as_ref().expect("the file is there until it is committed")
    }

    /// Returns the file, to be written at its position.
    ///
    /// # Examples
    /// See [`AtomicFile`](AtomicFile#examples).
    pub fn file_mut(&mut self) -> &mut File {
        self.file.as_mut().expect("the file is there until it is committed")
    }

    /// Makes the file durable and puts it in its place. Owner, as far as allowed, and permissions become
    /// those of the file it replaces.
    ///
    /// # Cancel safety
    /// Dropping the future leaves either the old file or the new one, and removes the other.
    ///
    /// # Errors
    /// The old file is unchanged, and the new one removed: `EIO`, `ENOSPC`, `EDQUOT` from making it durable;
    /// as `rename(2)`. If the error's operation is `sync directory`, the new file is in its place, but a
    /// crash may bring the old one back.
    ///
    /// # Examples
    /// See [`AtomicFile`](AtomicFile#examples).
    pub async fn commit(mut self) -> Result<()> {
        let path = self.path.clone();
        self.take_over().await.at("set permissions", &path)?;
        self.file().sync_all().await.at("sync", &path)?;
        if let Some(file) = self.file.take() {
            // Network file systems report lost writes here.
            file.close().await.at("close", &path)?;
        }
        let temporary =
            self.temporary.clone().expect("the name is there until the file has its own");
        let (Dir { fd, driver, .. }, name) = (&self.directory, self.name.clone());
        let renamed = driver.rename(Some(fd), temporary, Some(fd), name, 0);
        renamed.await.at("rename", &path)?;
        self.temporary = None;
        sync_directory(driver, fd).await.at("sync directory", &path)
    }

    /// Removes the new file, and returns the result. Dropping removes it too, and reports nothing.
    ///
    /// # Cancel safety
    /// Dropping the future loses the result; the file is removed all the same.
    ///
    /// # Errors
    /// As `unlink(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, AtomicFile};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-discard-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// fs::write(&path, "old").await?;
    /// let new = AtomicFile::create(&path).await?;
    /// new.file().write_all_at("not so good", 0).await.value()?;
    /// new.discard().await?;
    /// assert_eq!(fs::read(&path).await?, b"old");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn discard(mut self) -> Result<()> {
        let path = self.path.clone();
        let Some(temporary) = self.temporary.clone() else { return Ok(()) };
        let Dir { fd, driver, .. } = &self.directory;
        let removed = driver.unlink(Some(fd), temporary, 0).await;
        self.temporary = None;
        removed.at("remove the temporary file beside", &path)
    }

    /// Copies owner and permissions of the old file to the new one. If that cannot get the owner, it must not
    /// run as its own.
    async fn take_over(&self) -> io::Result<()> {
        let (Some(old), file) = (&self.old, self.file()) else { return Ok(()) };
        let new = file.metadata().await?;
        let uid = (old.uid() != new.uid()).then(|| old.uid());
        let gid = (old.gid() != new.gid()).then(|| old.gid());
        let mut permissions = old.permissions();
        if uid.is_some() || gid.is_some() {
            match file.driver.chown_fd(&file.fd, uid, gid).await {
                Err(error) if is_no_owner(&error) => {
                    let set_id = (Mode::SUID | Mode::SGID).bits();
                    permissions.set_mode(permissions.mode() & !set_id);
                }
                result => result?,
            }
        }
        file.set_permissions(permissions).await
    }
}

impl Drop for AtomicFile {
    /// Removes the temporary name by a plain call, which is short while the file is open, and which works
    /// even if the runtime has ended.
    fn drop(&mut self) {
        let Some(temporary) = &self.temporary else { return };
        // In a forked child the file is its parent's, which goes on with it.
        if !self.process.is_intact() {
            return;
        }
        // A rename whose caller was dropped may have removed the name. Otherwise that rename fails now, and
        // does not follow the next save.
        self.directory.fd.unlink_now(temporary).ok();
    }
}

/// Returns whether a file cannot get the owner of another one: only privileged users may change it, and none
/// to one that their user namespace lacks, which is `EINVAL`.
fn is_no_owner(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput)
}

impl fmt::Debug for AtomicFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("AtomicFile");
        f.field("path", &self.path).field("temporary", &self.temporary).finish_non_exhaustive()
    }
}

/// Makes a file with an unused name.
async fn create_temporary(
    directory: &Dir,
    name: &OsStr,
    mode: u32,
    called_at: &'static Location<'static>,
) -> io::Result<(Fd, CString)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mut tries = NAME_TRIES;
    loop {
        let temporary = c_path(temporary_name(name, unique_number()).as_ref())?;
        let Dir { fd, driver, .. } = directory;
        let open = driver.open(Some(fd), temporary.clone(), flags.bits(), mode);
        let creating = Creating { open: Some(open), directory, name: &temporary, called_at };
        match creating.await {
            Ok(fd) => return Ok((fd, temporary)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries > 0 => tries -= 1,
            Err(error) => return Err(error),
        }
    }
}

/// The making of a temporary file. If dropped before it is done, it removes the file once it exists.
struct Creating<'a> {
    /// `None` when it is done.
    open: Option<Op<Open>>,
    directory: &'a Dir,
    name: &'a CString,
    /// The place that asked for the file.
    called_at: &'static Location<'static>,
}

impl Future for Creating<'_> {
    type Output = io::Result<Fd>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<Fd>> {
        let open = self.open.as_mut().expect("a future is not polled again after it was ready");
        let result = ready!(Pin::new(open).poll(cx));
        self.open = None;
        Poll::Ready(result)
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        // Without a runtime the open was canceled.
        let Some(local) = try_current() else { return };
        let (driver, directory) = (self.directory.driver.clone(), self.directory.fd.clone());
        let name = self.name.clone();
        let cleaning = async move {
            if open.await.is_ok() {
                driver.unlink(Some(&directory), name, 0).await.ok();
            }
        };
        local.spawn_at(cleaning, self.called_at).detach();
    }
}

/// See [`Environment::unique_number`].
fn unique_number() -> u64 {
    let number = with_current(|local| local.environment.unique_number());
    number.unwrap_or_else(|| Machine.unique_number())
}

/// Returns `.name.0123456789abcdef.tmp`, with the beginning of a long name.
fn temporary_name(name: &OsStr, number: u64) -> OsString {
    let tail = format!(".{number:016x}.tmp");
    let name = name.as_bytes();
    let name = &name[..name.len().min(NAME_BYTES_MAX - 1 - tail.len())];
    OsString::from_vec([b".", name, tail.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_fit_and_differ() {
        let name = OsString::from("x".repeat(NAME_BYTES_MAX));
        let (first, second) = (temporary_name(&name, 1), temporary_name(&name, u64::MAX));
        assert_eq!(first.len(), NAME_BYTES_MAX);
        assert_ne!(first, second);
        assert!(first.as_bytes().starts_with(b".xx") && first.as_bytes().ends_with(b".tmp"));
    }
}
