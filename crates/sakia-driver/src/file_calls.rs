//! Transfers of one file that refuse to wait, by what was learned of it; and writes that cannot refuse, but
//! are quick.

mod quick;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use rustix::fs::{FileType, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::buf::IoBufMut;
use crate::calls::{is_in_memory, read_nowait, statx_here, write_nowait};
use crate::decide::{Attempt, CallMode, CallSupport, FileHint, Rule};
use crate::descriptors;
use crate::sys::signals::without_sigpipe;
use crate::transfer::{read_plainly, read_vectored_plainly};

/// Flags of files that wait, or bypass the cache.
const WAITS: OFlags = OFlags::DIRECT.union(OFlags::SYNC).union(OFlags::DSYNC);
/// The same for files that are written: between the two parts of a split write others may append.
const WRITE_WAITS: OFlags = WAITS.union(OFlags::APPEND);

/// The plain calls that read and write one open file without waiting; learned from their results, by any
/// thread. By default nothing is known of the file, and the first transfer looks at its flags.
///
/// Reads and writes refuse to wait (`RWF_NOWAIT`); on file systems in memory, which do not support that flag,
/// they are ordinary calls. A place is an offset, or with `None` the file's position, which moves.
///
/// All methods return `None` where the call would wait, or where it was not tried, since earlier ones would
/// have waited: the operation takes another route.
///
/// # Examples
/// ```
/// use std::io::IoSliceMut;
/// use std::os::fd::AsFd;
///
/// use sakia_driver::FileCalls;
///
/// let file = std::fs::File::open("Cargo.toml")?;
/// let calls = FileCalls::default();
/// let mut bytes = [0; 9];
/// match calls.read(file.as_fd(), &mut [IoSliceMut::new(&mut bytes)], Some(0)) {
///     Some(count) => assert_eq!(&bytes[..count?], b"[package]"),
///     None => println!("a thread has to read it"),
/// }
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug, Default)]
pub struct FileCalls {
    reads: FileHint,
    writes: FileHint,
    /// The file's flags, if they are known; otherwise they are asked for.
    flags: Option<OFlags>,
    /// Set to true if a write may raise `SIGPIPE`; by the first write.
    raises_sigpipe: OnceLock<bool>,
    /// That of the file's mount, once it is known.
    breaker: OnceLock<quick::MayCall>,
}

impl FileCalls {
    /// Returns the calls of a file that was opened with these flags.
    ///
    /// # Examples
    /// ```
    /// use rustix::fs::OFlags;
    /// use sakia_driver::FileCalls;
    ///
    /// let calls = FileCalls::with_flags(OFlags::APPEND);
    /// # drop(calls);
    /// ```
    pub fn with_flags(flags: OFlags) -> Self {
        let reads = FileHint::new(support(flags, WAITS));
        let writes = FileHint::new(match support(flags, WRITE_WAITS) {
            CallSupport::None => CallSupport::None,
            _ => CallSupport::Unknown, // the limit of the process is looked at when the file is written
        });
        Self { reads, writes, flags: Some(flags), ..Self::default() }
    }

    /// Returns the calls of a file on this device, as `st_dev`, that was opened with none of `O_APPEND`,
    /// `O_DIRECT` and the like. Those of a file in memory are known before the first.
    ///
    /// # Examples
    /// As [`with_flags`](Self::with_flags).
    pub fn on_device(fd: BorrowedFd<'_>, device: u64) -> Self {
        // The device of a file in memory has the major number 0.
        if rustix::fs::major(device) != 0 || !is_in_memory(fd) {
            return Self::with_flags(OFlags::empty());
        }
        let hint = || FileHint::new(CallSupport::Any);
        Self { reads: hint(), writes: hint(), ..Self::default() }
    }

    /// Reads the available bytes into parts that are not all empty. `None` when the file may have more bytes
    /// than that.
    ///
    /// # Errors
    /// As `preadv2(2)`.
    ///
    /// # Examples
    /// See [`FileCalls`].
    #[inline]
    pub fn read(
        &self,
        fd: BorrowedFd<'_>,
        parts: &mut [IoSliceMut<'_>],
        at: Option<u64>,
    ) -> Option<io::Result<usize>> {
        self.read_by(fd, at, |mode| match (mode, at) {
            (CallMode::NonBlocking, _) => read_nowait(fd, parts, at),
            (CallMode::Blocking, Some(offset)) => {
                Attempt::of(rustix::io::preadv(fd, parts, offset))
            }
            (CallMode::Blocking, None) => Attempt::of(rustix::io::readv(fd, parts)),
        })
    }

    /// As [`read`](Self::read), into up to `most` bytes of a buffer's room, which must not be empty.
    ///
    /// # Errors
    /// As `preadv2(2)`.
    ///
    /// # Examples
    /// See [`FileCalls`].
    #[inline]
    pub fn read_into<T: IoBufMut>(
        &self,
        fd: BorrowedFd<'_>,
        buf: &mut T,
        most: usize,
        at: Option<u64>,
    ) -> Option<io::Result<usize>> {
        self.read_by(fd, at, |mode| Attempt::of(errno_of(read_plainly(fd, buf, most, at, mode))))
    }

    /// As [`read`](Self::read), into several buffers, some of which must have room.
    ///
    /// # Errors
    /// As `preadv2(2)`.
    ///
    /// # Examples
    /// See [`FileCalls`].
    pub fn read_into_all<T: IoBufMut>(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &mut [T],
        at: Option<u64>,
    ) -> Option<io::Result<usize>> {
        self.read_by(fd, at, |mode| {
            Attempt::of(errno_of(read_vectored_plainly(fd, bufs, at, mode)))
        })
    }

    /// Reads by a call that asks for at least one byte.
    #[inline]
    fn read_by(
        &self,
        fd: BorrowedFd<'_>,
        at: Option<u64>,
        mut call: impl FnMut(CallMode) -> Result<Attempt<usize>, Errno>,
    ) -> Option<io::Result<usize>> {
        let mut mode = CallMode::NonBlocking;
        let result = self.transfer(&self.reads, fd, WAITS, |used| {
            mode = used;
            call(used)
        });
        match result? {
            // The end of the file, or only of the bytes that can be had without waiting.
            Ok(0) if mode == CallMode::NonBlocking => is_end(fd, at).then_some(Ok(0)),
            result => Some(result),
        }
    }

    /// Writes as much as is possible without waiting; raises no `SIGPIPE`. `None` when that may be nothing,
    /// and if the process had a limit on the size of files (`RLIMIT_FSIZE`) at the first write, since
    /// `SIGXFSZ` would end it.
    ///
    /// # Errors
    /// As `pwritev2(2)`.
    ///
    /// # Examples
    /// See [`FileCalls`].
    #[inline]
    pub fn write(
        &self,
        fd: BorrowedFd<'_>,
        parts: &[IoSlice<'_>],
        at: Option<u64>,
    ) -> Option<io::Result<usize>> {
        if self.writes.support() == CallSupport::Unknown && descriptors::limits_file_size() {
            self.writes.set_support(CallSupport::None);
        }
        let call = |mode| match (mode, at) {
            (CallMode::NonBlocking, _) => write_nowait(fd, parts, at),
            (CallMode::Blocking, Some(offset)) => {
                Attempt::of(rustix::io::pwritev(fd, parts, offset))
            }
            (CallMode::Blocking, None) => Attempt::of(rustix::io::writev(fd, parts)),
        };
        let raises_sigpipe = *self.raises_sigpipe.get().unwrap_or_else(|| {
            let found = raises_sigpipe(fd);
            self.raises_sigpipe.get_or_init(|| found)
        });
        self.transfer(&self.writes, fd, WRITE_WAITS, |mode| {
            if raises_sigpipe { without_sigpipe(|| call(mode)) } else { call(mode) }
        })
    }

    /// As [`write`](Self::write); where that cannot write, since the file system has no writes that refuse to
    /// wait, or the file was opened to append, writes up to 64 KiB by a call that may wait. `None` then for
    /// more bytes; unless the file is a regular one on a file system that the kernel serves alone, or an
    /// overlay; if each write waits (`O_DIRECT`, `O_SYNC`); with a limit on the size of files; and for a
    /// while after such writes have waited.
    ///
    /// So it may wait for as long as the kernel blocks a writer, at most twice on each thread before the next
    /// writes return `None`: for a tenth of a second, and longer if they wait again.
    ///
    /// # Errors
    /// As `pwritev2(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::io::IoSlice;
    /// use std::os::fd::AsFd;
    ///
    /// use sakia_driver::FileCalls;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-quick-{}", std::process::id()));
    /// let file = std::fs::File::create(&path)?;
    /// let (calls, fd, parts) = (FileCalls::default(), file.as_fd(), [IoSlice::new(b"hello")]);
    /// match calls.write_quickly(fd, &parts, Some(0)) {
    ///     Some(count) => assert_eq!(std::fs::read(&path)?, &b"hello"[..count?]),
    ///     None => println!("a thread has to write it"),
    /// }
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[inline]
    pub fn write_quickly(
        &self,
        fd: BorrowedFd<'_>,
        parts: &[IoSlice<'_>],
        at: Option<u64>,
    ) -> Option<io::Result<usize>> {
        if let Some(result) = self.write(fd, parts, at) {
            return Some(result);
        }
        let len = || parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.len()));
        if self.writes.support() != CallSupport::None || len() > Rule::SMALL.bytes_max as usize {
            return None;
        }
        let breaker = match self.breaker.get() {
            Some(known) => known,
            None => {
                let found = quick::breaker_of(fd)?;
                self.breaker.get_or_init(|| found)
            }
        };
        let breaker = breaker.as_deref()?;
        let result = quick::timed(breaker, || match (at, parts) {
            (Some(offset), [part]) => rustix::io::pwrite(fd, part, offset),
            (Some(offset), _) => rustix::io::pwritev(fd, parts, offset),
            (None, [part]) => rustix::io::write(fd, part),
            (None, _) => rustix::io::writev(fd, parts),
        })?;
        Attempt::of(result).map(Attempt::done).map_err(io::Error::from).transpose()
    }

    /// Makes a transfer if it does not block: not on files with a flag among `waits`.
    #[inline]
    fn transfer(
        &self,
        hint: &FileHint,
        fd: BorrowedFd<'_>,
        waits: OFlags,
        mut call: impl FnMut(CallMode) -> Result<Attempt<usize>, Errno>,
    ) -> Option<io::Result<usize>> {
        if hint.support() == CallSupport::Unknown {
            let flags = self.flags.map_or_else(|| rustix::fs::fcntl_getfl(fd), Ok).unwrap_or(waits);
            hint.set_support(support(flags, waits));
        }
        let mode = hint.mode()?;
        match call(mode) {
            Ok(Attempt::Done(count)) => {
                hint.hit();
                Some(Ok(count))
            }
            Ok(Attempt::WouldBlock) => {
                hint.missed();
                None
            }
            Ok(Attempt::Unsupported) => {
                hint.refused(mode, || is_in_memory(fd));
                call(hint.mode()?).ok()?.done().map(Ok)
            }
            Err(errno) => Some(Err(errno.into())),
        }
    }

    /// Returns whether a regular file has more bytes from this place on. False for a FIFO and the like, which
    /// cannot tell.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::AsFd;
    ///
    /// use sakia_driver::FileCalls;
    ///
    /// let file = std::fs::File::open("Cargo.toml")?;
    /// assert!(FileCalls::has_more(file.as_fd(), Some(0)));
    /// assert!(!FileCalls::has_more(file.as_fd(), Some(1 << 40)));
    /// # std::io::Result::Ok(())
    /// ```
    #[cold]
    pub fn has_more(fd: BorrowedFd<'_>, at: Option<u64>) -> bool {
        left(fd, at).is_some_and(|left| left > 0)
    }
}

/// Returns the support of a file with these flags; a flag among `waits` makes it block.
fn support(flags: OFlags, waits: OFlags) -> CallSupport {
    if flags.intersects(waits) { CallSupport::None } else { CallSupport::NonBlocking }
}

/// Returns whether a write may find that its reader is gone.
#[cold]
fn raises_sigpipe(fd: BorrowedFd<'_>) -> bool {
    statx_here(fd, StatxFlags::TYPE).map_or(true, |stat| {
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        matches!(kind, FileType::Fifo | FileType::Socket)
    })
}

/// Returns the errno of a call's result.
#[inline]
fn errno_of(result: io::Result<usize>) -> Result<usize, Errno> {
    result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Returns whether a position is at or beyond the end of the file.
#[cold]
fn is_end(fd: BorrowedFd<'_>, at: Option<u64>) -> bool {
    left(fd, at) == Some(0)
}

/// Returns the bytes from a place to the end of a regular file; `None` for other files, which have no known
/// end.
fn left(fd: BorrowedFd<'_>, at: Option<u64>) -> Option<u64> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let is_regular = FileType::from_raw_mode(stat.st_mode).is_file();
    let size = is_regular.then(|| u64::try_from(stat.st_size).ok()).flatten()?;
    let at = at.map_or_else(|| rustix::fs::tell(fd), Ok).ok()?;
    Some(size.saturating_sub(at))
}
