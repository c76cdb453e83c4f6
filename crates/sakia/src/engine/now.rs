//! The non-blocking fast path of the engine, run on the caller's thread.
//!
//! Reads and writes refuse to wait (`RWF_NOWAIT`); on file systems in memory, which do not support that flag,
//! they are plain calls. Paths are looked up in the dentry cache only (`RESOLVE_CACHED`), and not where a
//! server would have to be asked. The support of a file is learned from the results of its transfers.
//!
//! Source: `preadv2(2)`, `openat2(2)`.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, ReadWriteFlags};

use sakia_driver::{
    CacheHint, CallMode, CallSupport, SharedCallSupport, read_plainly, read_vectored_plainly,
};

use super::Engine;
use crate::io::IoBufMut;

/// Bytes that are read or written on the caller's thread before other tasks have a turn: the copy alone would
/// delay them.
pub(super) const BYTES_MAX: usize = 256 << 10;

/// A place in a file: an offset, or with `None` the file's position, which moves.
pub(super) type At = Option<u64>;

/// Returns the kernel's offset for `preadv2(2)`: -1 is the position.
fn raw(at: At) -> u64 {
    at.unwrap_or(u64::MAX)
}

/// Flags of files that wait, or bypass the cache.
const WAITS: OFlags = OFlags::DIRECT.union(OFlags::SYNC).union(OFlags::DSYNC);
/// The same for files that are written: between the two parts of a split write others may append.
const WRITE_WAITS: OFlags = WAITS.union(OFlags::APPEND);

/// The way to read, or to write, an open file on the caller's thread; learned from the results.
#[derive(Debug, Default)]
struct Way {
    support: SharedCallSupport,
    cache_hint: CacheHint,
}

impl Way {
    /// Returns the way for a file with this support.
    const fn new(support: CallSupport) -> Self {
        Self { support: SharedCallSupport::new(support), cache_hint: CacheHint::new() }
    }

    /// Returns the support of a file with these flags; a flag among `waits` makes it block.
    fn of_flags(flags: OFlags, waits: OFlags) -> CallSupport {
        if flags.intersects(waits) { CallSupport::None } else { CallSupport::NonBlocking }
    }

    /// Returns the mode for a transfer; `None` if it is not to be tried.
    #[inline]
    fn mode(&self, fd: BorrowedFd<'_>, waits: OFlags) -> Option<CallMode> {
        let support = match self.support.get() {
            CallSupport::Unknown => {
                let flags = rustix::fs::fcntl_getfl(fd).unwrap_or(waits);
                let support = Self::of_flags(flags, waits);
                self.support.set(support);
                support
            }
            known => known,
        };
        let is_tried = support != CallSupport::NonBlocking || self.cache_hint.is_worth_a_try();
        support.mode().filter(|_| is_tried)
    }

    /// Makes a transfer if it does not block: not on files with a flag among `waits`.
    #[inline]
    fn transfer(
        &self,
        fd: BorrowedFd<'_>,
        waits: OFlags,
        mut call: impl FnMut(CallMode) -> rustix::io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let mode = self.mode(fd, waits)?;
        match call(mode) {
            Ok(count) => {
                self.cache_hint.hit();
                Some(Ok(count))
            }
            Err(Errno::AGAIN) => {
                self.cache_hint.missed();
                None
            }
            Err(Errno::INTR) => None,
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::SPIPE | Errno::NOSYS) => {
                if mode == CallMode::Blocking || !is_in_memory(fd) {
                    self.support.set(CallSupport::None);
                    return None;
                }
                self.support.set(CallSupport::Any);
                call(CallMode::Blocking).ok().map(Ok)
            }
            Err(error) => Some(Err(error.into())),
        }
    }
}

/// Returns whether a file is on a file system in memory, or a `memfd`: only these have seals. Needs no answer
/// from a server.
pub fn is_in_memory(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok()
}

/// Returns the kernel's flags of this mode.
fn flags(mode: CallMode) -> u32 {
    match mode {
        CallMode::NonBlocking => ReadWriteFlags::NOWAIT.bits(),
        CallMode::Blocking => 0,
    }
}

/// Converts the result of a call to this module's.
#[inline]
fn errno_of(result: io::Result<usize>) -> rustix::io::Result<usize> {
    result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The ways to read and to write an open file without blocking. By default nothing is known of the file, and
/// the first transfer looks at its flags.
#[derive(Debug, Default)]
pub struct Ways {
    read: Way,
    write: Way,
}

impl Ways {
    /// Returns the ways for a file that was opened with these flags.
    pub(super) fn of_flags(flags: OFlags) -> Self {
        let [read, write] = [WAITS, WRITE_WAITS].map(|waits| Way::new(Way::of_flags(flags, waits)));
        Self { read, write }
    }

    /// Returns the ways for a file that was opened with none of the flags that matter here.
    pub fn of_plain() -> Self {
        Self::of_flags(OFlags::empty())
    }

    /// Returns the ways for a file in memory that was opened with none of the flags that matter here.
    fn in_memory() -> Self {
        let way = || Way::new(CallSupport::Any);
        Self { read: way(), write: way() }
    }

    /// Reads the available bytes, at an offset or with `None` at the position, into parts that are not all
    /// empty. `None` when the file may have more bytes than that.
    #[inline]
    pub fn read(
        &self,
        fd: BorrowedFd<'_>,
        parts: &mut [IoSliceMut<'_>],
        at: At,
    ) -> Option<io::Result<usize>> {
        self.read_by(fd, at, |how| match (how, at) {
            (CallMode::NonBlocking, _) => {
                rustix::io::preadv2(fd, parts, raw(at), ReadWriteFlags::NOWAIT)
            }
            (CallMode::Blocking, Some(offset)) => rustix::io::preadv(fd, parts, offset),
            (CallMode::Blocking, None) => rustix::io::readv(fd, parts),
        })
    }

    /// As [`read`](Self::read), into up to `most` bytes of a buffer's room, which must not be empty.
    #[inline]
    pub(super) fn read_into<T: IoBufMut>(
        &self,
        fd: BorrowedFd<'_>,
        buf: &mut T,
        most: usize,
        at: At,
    ) -> Option<io::Result<usize>> {
        self.read_by(fd, at, |how| errno_of(read_plainly(fd, buf, most, at, flags(how))))
    }

    /// As [`read`](Self::read), into several buffers, some of which must have room.
    pub(super) fn read_into_all<T: IoBufMut>(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &mut [T],
        at: At,
    ) -> Option<io::Result<usize>> {
        self.read_by(fd, at, |how| errno_of(read_vectored_plainly(fd, bufs, at, flags(how))))
    }

    /// Reads by a call that asks for at least one byte.
    #[inline]
    fn read_by(
        &self,
        fd: BorrowedFd<'_>,
        at: At,
        mut call: impl FnMut(CallMode) -> rustix::io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let mut mode = CallMode::NonBlocking;
        let result = self.read.transfer(fd, WAITS, |how| {
            mode = how;
            call(how)
        });
        match result? {
            // The end of the file, or only of the bytes that can be had without waiting.
            Ok(0) if mode == CallMode::NonBlocking => is_end(fd, at).then_some(Ok(0)),
            result => Some(result),
        }
    }

    /// Writes as much as is possible without waiting, at an offset or with `None` at the position. `None`
    /// when that may be nothing.
    #[inline]
    pub fn write(
        &self,
        fd: BorrowedFd<'_>,
        parts: &[IoSlice<'_>],
        at: At,
    ) -> Option<io::Result<usize>> {
        self.write.transfer(fd, WRITE_WAITS, |how| match (how, at) {
            (CallMode::NonBlocking, _) => {
                rustix::io::pwritev2(fd, parts, raw(at), ReadWriteFlags::NOWAIT)
            }
            (CallMode::Blocking, Some(offset)) => rustix::io::pwritev(fd, parts, offset),
            (CallMode::Blocking, None) => rustix::io::writev(fd, parts),
        })
    }
}

/// Returns whether a position is at or beyond the end of the file.
#[cold]
fn is_end(fd: BorrowedFd<'_>, at: At) -> bool {
    left(fd, at) == Some(0)
}

/// Returns whether a regular file has more bytes from this position on. False for a FIFO and the like, which
/// cannot tell.
#[cold]
pub(super) fn has_more(fd: BorrowedFd<'_>, at: At) -> bool {
    left(fd, at).is_some_and(|left| left > 0)
}

/// Returns the bytes from a place to the end of a regular file; `None` for other files, which have no known
/// end.
fn left(fd: BorrowedFd<'_>, at: At) -> Option<u64> {
    let size = regular_size(&rustix::fs::fstat(fd).ok()?)?;
    let at = at.map_or_else(|| rustix::fs::tell(fd), Ok).ok()?;
    Some(size.saturating_sub(at))
}

fn regular_size(stat: &Stat) -> Option<u64> {
    let is_regular = FileType::from_raw_mode(stat.st_mode).is_file();
    is_regular.then(|| u64::try_from(stat.st_size).ok()).flatten()
}

/// Set when the kernel has no `openat2(2)` with `RESOLVE_CACHED`, or a filter forbids it.
static KEEPS_NO_CACHE: AtomicBool = AtomicBool::new(false);

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
        let mounts = &self.shared.mounts;
        if KEEPS_NO_CACHE.load(Ordering::Relaxed) || mounts.may_hold(path) {
            return None;
        }
        let mut resolve = ResolveFlags::CACHED;
        if mounts.has_remote() {
            // A symbolic link may lead to a remote mount.
            resolve |= ResolveFlags::NO_SYMLINKS;
        }
        let flags = flags | OFlags::CLOEXEC;
        match rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(Errno::LOOP) if mounts.has_remote() => None,
            Err(Errno::NOSYS | Errno::INVAL | Errno::TOOBIG | Errno::PERM) => {
                // An invalid path alone does not mean that the flag is unsupported: the root tells.
                let root = rustix::fs::openat2(CWD, c"/", OFlags::PATH, Mode::empty(), resolve);
                KEEPS_NO_CACHE.store(root.is_err(), Ordering::Relaxed);
                None
            }
            result => Some(result.map_err(io::Error::from)),
        }
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
    /// Returns the ways to read it.
    pub(super) fn ways(&self) -> Ways {
        // A file in memory is on a device with the major number 0.
        let is_in_memory = rustix::fs::major(self.id.0) == 0 && is_in_memory(&self.fd);
        if is_in_memory { Ways::in_memory() } else { Ways::of_plain() }
    }

    /// Clears `O_NONBLOCK`.
    pub(super) fn into_blocking(self) -> io::Result<OwnedFd> {
        rustix::fs::fcntl_setfl(&self.fd, OFlags::empty())?;
        Ok(self.fd)
    }
}
