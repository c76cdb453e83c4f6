//! The non-blocking fast path of the engine, run on the caller's thread: [`FileCalls`] and
//! [`PathCalls`](sakia_driver::PathCalls) of the driver.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, OFlags, Stat};
use sakia_driver::FileCalls;

use super::Engine;
use crate::fs::with_c_path;

/// A place in a file: an offset, or with `None` the file's position, which moves.
pub(super) type At = Option<u64>;

fn regular_size(stat: &Stat) -> Option<u64> {
    let is_regular = FileType::from_raw_mode(stat.st_mode).is_file();
    is_regular.then(|| u64::try_from(stat.st_size).ok()).flatten()
}

impl Engine {
    /// Opens a path that the dentry cache can resolve, without waiting for a device, a server or another
    /// opener. The result is an `O_PATH` descriptor, which can be asked for metadata. With `follow` a
    /// symbolic link at the end is followed.
    ///
    /// Returns `None` if it may need a wait.
    ///
    /// # Errors
    /// As `open(2)`.
    ///
    /// # Kernel
    /// 5.12 (`RESOLVE_CACHED`); `None` below. Source: `openat2(2)`.
    pub fn try_lookup(&self, path: impl AsRef<Path>, follow: bool) -> Option<io::Result<OwnedFd>> {
        let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        self.open_now(path.as_ref(), OFlags::PATH | nofollow)
    }

    /// Opens a path that the dentry cache can resolve.
    pub(super) fn open_now(&self, path: &Path, flags: OFlags) -> Option<io::Result<OwnedFd>> {
        let open = |path: &CStr| self.shared.paths.open(path, flags);
        with_c_path(path, open).unwrap_or_else(|error| Some(Err(error)))
    }

    /// Opens a file to read it, if that needs no wait. `O_NONBLOCK` is left set.
    pub(super) fn open_to_read_now(&self, path: &Path) -> Option<io::Result<OpenedNow>> {
        let fd = self.open_now(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        Some(fd.and_then(|fd| {
            let stat = rustix::fs::fstat(&fd)?;
            let file_type = FileType::from_raw_mode(stat.st_mode);
            let waits_for_others = !file_type.is_file() && !file_type.is_dir();
            let (size, id) = (regular_size(&stat), (stat.st_dev, stat.st_ino));
            Ok(OpenedNow { fd, size, id, waits_for_others })
        }))
    }

    /// Opens a regular file to read it, in the way of [`try_lookup`](Engine::try_lookup). Other files are not
    /// opened, or only for a moment.
    ///
    /// `None`: it may need a wait, or the file is not regular.
    ///
    /// # Examples
    /// From the caches, or else on a thread of the engine:
    /// ```
    /// use sakia::Engine;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-try-open-{}", std::process::id()));
    /// std::fs::write(&path, "hello")?;
    /// let engine = Engine::new()?;
    /// let file = match engine.try_open_regular(&path) {
    ///     Some(fd) => engine.adopt(fd?.into())?,
    ///     None => sakia::block_on(engine.open(&path))?,
    /// };
    /// assert_eq!(file.read_at(vec![0; 5], 0).wait().1, b"hello");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(hidden)]
    pub fn try_open_regular(&self, path: impl AsRef<Path>) -> Option<io::Result<OwnedFd>> {
        let path = path.as_ref();
        let place = match self.try_lookup(path, true)? {
            Ok(place) => place,
            Err(error) => return Some(Err(error)),
        };
        let expected = rustix::fs::fstat(&place).ok()?;
        if !FileType::from_raw_mode(expected.st_mode).is_file() {
            return None;
        }
        match self.open_to_read_now(path)? {
            // The path may lead to another file by now, even to a FIFO.
            Ok(opened) if opened.id != (expected.st_dev, expected.st_ino) => None,
            opened => Some(opened.and_then(OpenedNow::into_blocking)),
        }
    }
}

/// A file that was opened without waiting.
pub(super) struct OpenedNow {
    pub(super) fd: OwnedFd,
    /// The size, if it is a regular file.
    pub(super) size: Option<u64>,
    /// Its device and inode numbers.
    id: (u64, u64),
    /// Set for a FIFO or a device, whose opening is not complete: it may have to wait for a peer.
    pub(super) waits_for_others: bool,
}

impl OpenedNow {
    /// Returns the calls that read it.
    pub(super) fn calls(&self) -> FileCalls {
        FileCalls::on_device(self.fd.as_fd(), self.id.0)
    }

    /// Clears `O_NONBLOCK`.
    pub(super) fn into_blocking(self) -> io::Result<OwnedFd> {
        rustix::fs::fcntl_setfl(&self.fd, OFlags::empty())?;
        Ok(self.fd)
    }
}
