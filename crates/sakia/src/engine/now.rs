//! What is done on the thread of who asks, since it takes no wait.
//!
//! Reads and writes refuse to wait (`RWF_NOWAIT`); on file systems in memory, which cannot be asked to, they
//! are plain calls. Paths are looked up in the cache only (`RESOLVE_CACHED`), and not where a server would
//! have to be asked. What a file grants is learned from what it answers.
//!
//! Source: `preadv2(2)`, `openat2(2)`.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::Engine;
use super::mounts::Mounts;

/// Bytes that are read or written where it is awaited before others have a turn: the copy alone would hold
/// them up.
pub(super) const BYTES_MAX: usize = 256 << 10;

/// Where in a file: at an offset, or with `None` at its position, which moves.
pub(super) type At = Option<u64>;

/// The kernel's offset for `preadv2(2)`: -1 is the position.
fn raw(at: At) -> u64 {
    at.unwrap_or(u64::MAX)
}

/// Whether an open file is read, or written, where that is asked for; learned from what it comes to. Shared
/// by all threads, which need not agree.
pub(super) struct Heat(AtomicU8);

impl Heat {
    /// From here on it is tried; below it counts down to the next attempt.
    const WARM: u8 = 128;
    /// Calls that go to the engine after one that would have waited.
    const SKIPS: u8 = 15;
    /// It cannot be asked not to wait, or bypasses the cache.
    const NEVER: u8 = 0;
    /// It is in memory: plain calls do not wait.
    const MEMORY: u8 = u8::MAX;

    /// Of a file with these flags.
    pub(super) fn new(flags: OFlags) -> Self {
        let waits = OFlags::DIRECT | OFlags::SYNC | OFlags::DSYNC;
        let heat = if flags.intersects(waits) { Self::NEVER } else { Self::WARM };
        Self(AtomicU8::new(heat))
    }

    /// Of a file in memory.
    fn memory() -> Self {
        Self(AtomicU8::new(Self::MEMORY))
    }

    fn set(&self, heat: u8) {
        if self.0.load(Ordering::Relaxed) != heat {
            self.0.store(heat, Ordering::Relaxed);
        }
    }

    /// How a transfer is tried; `None` if it is not.
    #[inline]
    fn manner(&self) -> Option<Manner> {
        match self.0.load(Ordering::Relaxed) {
            Self::NEVER => None,
            Self::MEMORY => Some(Manner::Plain),
            1 | Self::WARM.. => Some(Manner::NoWait),
            left => {
                self.0.store(left - 1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Makes a transfer, if it takes no wait.
    #[inline]
    fn transfer(
        &self,
        mounts: &Mounts,
        fd: BorrowedFd<'_>,
        mut call: impl FnMut(Manner) -> rustix::io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        match call(self.manner()?) {
            Ok(count) => {
                if self.0.load(Ordering::Relaxed) < Self::WARM {
                    self.set(Self::WARM);
                }
                Some(Ok(count))
            }
            Err(Errno::AGAIN) => {
                self.set(1 + Self::SKIPS);
                None
            }
            Err(Errno::INTR) => None,
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::SPIPE | Errno::NOSYS) => {
                if !mounts.learn_memory(fd) {
                    self.set(Self::NEVER);
                    return None;
                }
                self.set(Self::MEMORY);
                call(Manner::Plain).ok().map(Ok)
            }
            Err(error) => Some(Err(error.into())),
        }
    }
}

/// How a call is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It refuses to wait.
    NoWait,
    /// It would wait, and need not.
    Plain,
}

/// The two heats of an open file.
pub(super) struct Ways {
    read: Heat,
    write: Heat,
}

impl Ways {
    /// Of a file that was opened with these flags.
    pub(super) fn new(flags: OFlags) -> Self {
        Self { read: Heat::new(flags), write: Heat::new(flags) }
    }

    /// Of a file in memory, which was opened with no flags of note.
    pub(super) fn in_memory() -> Self {
        Self { read: Heat::memory(), write: Heat::memory() }
    }

    /// Reads what is there. `None` when that may be less than there is.
    #[inline]
    pub(super) fn read(
        &self,
        mounts: &Mounts,
        fd: BorrowedFd<'_>,
        parts: &mut [IoSliceMut<'_>],
        at: At,
    ) -> Option<io::Result<usize>> {
        let mut manner = Manner::NoWait;
        let result = self.read.transfer(mounts, fd, |how| {
            manner = how;
            match (how, at) {
                (Manner::NoWait, _) => {
                    rustix::io::preadv2(fd, parts, raw(at), ReadWriteFlags::NOWAIT)
                }
                (Manner::Plain, Some(offset)) => rustix::io::preadv(fd, parts, offset),
                (Manner::Plain, None) => rustix::io::readv(fd, parts),
            }
        });
        match result? {
            // The end of the file, or of what was there to be had without waiting.
            Ok(0) if manner == Manner::NoWait && parts.iter().any(|part| !part.is_empty()) => {
                is_end(fd, at).then_some(Ok(0))
            }
            result => Some(result),
        }
    }

    /// Writes, if that takes no wait.
    #[inline]
    pub(super) fn write(
        &self,
        mounts: &Mounts,
        fd: BorrowedFd<'_>,
        parts: &[IoSlice<'_>],
        at: At,
    ) -> Option<io::Result<usize>> {
        self.write.transfer(mounts, fd, |how| match (how, at) {
            (Manner::NoWait, _) => rustix::io::pwritev2(fd, parts, raw(at), ReadWriteFlags::NOWAIT),
            (Manner::Plain, Some(offset)) => rustix::io::pwritev(fd, parts, offset),
            (Manner::Plain, None) => rustix::io::writev(fd, parts),
        })
    }
}

/// Whether a place is at or beyond the end of the file.
#[cold]
fn is_end(fd: BorrowedFd<'_>, at: At) -> bool {
    left(fd, at) == Some(0)
}

/// Whether a file has more, from some place on. A FIFO or so may have, and nobody knows.
#[cold]
pub(super) fn has_more(fd: BorrowedFd<'_>, at: At) -> bool {
    left(fd, at).is_some_and(|left| left > 0) && !mutant!("short_read_is_all")
}

/// Bytes from a place to the end of the file, if it has one.
fn left(fd: BorrowedFd<'_>, at: At) -> Option<u64> {
    let at = at.map_or_else(|| rustix::fs::tell(fd), Ok).ok()?;
    let size = u64::try_from(rustix::fs::fstat(fd).ok()?.st_size).ok()?;
    Some(size.saturating_sub(at))
}

/// The kernel has no `openat2(2)` with `RESOLVE_CACHED`, or a filter forbids it.
static KEEPS_NO_CACHE: AtomicBool = AtomicBool::new(false);

impl Engine {
    /// Opens what the cache of names can look up, without waiting for a device, a server or another opener:
    /// as a mere place in the file system (`O_PATH`), from which metadata can be asked. With `follow` a link
    /// at the end is followed.
    ///
    /// `None`: it may take a wait.
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

    /// Opens a path that is in the cache of names.
    pub(super) fn open_now(&self, path: &Path, flags: OFlags) -> Option<io::Result<OwnedFd>> {
        let mounts = &self.shared.mounts;
        if KEEPS_NO_CACHE.load(Ordering::Relaxed) || mounts.may_hold(path) {
            return None;
        }
        let mut resolve = ResolveFlags::CACHED;
        if mounts.has_remote() {
            // One may lead there.
            resolve |= ResolveFlags::NO_SYMLINKS;
        }
        let flags = flags | OFlags::CLOEXEC;
        match rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(Errno::LOOP) if mounts.has_remote() => None,
            Err(Errno::NOSYS | Errno::INVAL | Errno::TOOBIG | Errno::PERM) => {
                // A path that is wrong in itself is no reason.
                let root = rustix::fs::openat2(CWD, c"/", OFlags::PATH, Mode::empty(), resolve);
                KEEPS_NO_CACHE.store(root.is_err(), Ordering::Relaxed);
                None
            }
            result => Some(result.map_err(io::Error::from)),
        }
    }

    /// Opens a file to read it, if that takes no wait: `O_NONBLOCK` is left set.
    pub(super) fn open_to_read_now(&self, path: &Path) -> Option<io::Result<OpenedNow>> {
        let fd = match self.open_now(path, OFlags::RDONLY | OFlags::NONBLOCK)? {
            Ok(fd) => fd,
            Err(error) => return Some(Err(error)),
        };
        let stat = match rustix::fs::fstat(&fd) {
            Ok(stat) => stat,
            Err(error) => return Some(Err(error.into())),
        };
        let file_type = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        let size = if file_type.is_file() { u64::try_from(stat.st_size).ok() } else { None };
        let waits_for_others =
            !file_type.is_file() && !file_type.is_dir() && !mutant!("fifo_read_at_once");
        Some(Ok(OpenedNow { fd, size, device: stat.st_dev, waits_for_others }))
    }
}

/// A file that was opened without waiting.
pub(super) struct OpenedNow {
    pub(super) fd: OwnedFd,
    /// Of a regular file.
    pub(super) size: Option<u64>,
    pub(super) device: u64,
    /// A FIFO or a device: opening it has no end yet.
    pub(super) waits_for_others: bool,
}
