//! Plain system calls, and those that refuse to wait.

use std::ffi::CStr;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use crate::kernel;

/// The bits of a mode that `chmod(2)` sets.
pub(crate) const PERMISSIONS: u32 = 0o7777;

/// Directories, to be read.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Files, to be read. If it is something else by now, opening it must neither wait nor follow.
pub(crate) const SOURCE: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// What an old kernel, a file system or a filter says of a call that there is another way for.
const REFUSED: [Errno; 4] = [Errno::NOSYS, Errno::PERM, Errno::INVAL, Errno::OPNOTSUPP];

/// What a call that would have waited says.
pub(crate) enum Attempt<T> {
    /// Done.
    Done(T),
    /// It would wait.
    Waits,
}

/// Locks, also after a panic of another holder.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(call: impl FnMut() -> Result<T, Errno>) -> io::Result<T> {
    retry_on_intr(call).map_err(io::Error::from)
}

/// The kernel, or a filter, does not know lookups that refuse to wait.
static NO_CACHED_LOOKUPS: AtomicBool = AtomicBool::new(false);

/// Opens what the caches know; all else would wait.
pub(crate) fn open_now(
    dir: BorrowedFd<'_>,
    name: &CStr,
    flags: OFlags,
) -> io::Result<Attempt<OwnedFd>> {
    if NO_CACHED_LOOKUPS.load(Ordering::Relaxed) {
        return open(dir, name, flags).map(Attempt::Done);
    }
    let opened = kernel::openat2(dir, name, flags, Mode::empty(), ResolveFlags::CACHED);
    match opened {
        Ok(fd) => Ok(Attempt::Done(fd)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Attempt::Waits),
        Err(errno) if REFUSED.contains(&errno) => {
            NO_CACHED_LOOKUPS.store(true, Ordering::Relaxed);
            open(dir, name, flags).map(Attempt::Done)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a file or a directory, and waits for it.
pub(crate) fn open(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> io::Result<OwnedFd> {
    retry(|| kernel::openat(dir, name, flags, Mode::empty()))
}

/// Opens a directory that was open before: of the copy it may be one that cannot be read.
pub(crate) fn open_again(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> io::Result<OwnedFd> {
    match open(dir, name, flags) {
        Err(error) if is(&error, Errno::ACCESS) => {
            open(dir, name, unread(flags)).map_err(|_| error)
        }
        opened => opened,
    }
}

/// As these flags, for a directory in which names are looked up and that is not read.
pub(crate) fn unread(flags: OFlags) -> OFlags {
    flags.difference(OFlags::RWMODE).union(OFlags::PATH)
}

/// Makes a file that is not there yet.
pub(crate) fn create(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    retry(|| kernel::openat(dir, name, flags, Mode::from_raw_mode(mode)))
}

/// Reads what the page cache has. `EOPNOTSUPP`: the file system cannot tell.
pub(crate) fn read_now(
    file: BorrowedFd<'_>,
    buf: &mut [u8],
    offset: u64,
) -> io::Result<Attempt<usize>> {
    let mut slices = [IoSliceMut::new(buf)];
    match kernel::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
        Ok(count) => Ok(Attempt::Done(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Attempt::Waits),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads, and waits for it.
pub(crate) fn read_at(file: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    retry(|| kernel::pread(file, &mut *buf, offset))
}

/// Writes all of it, and waits for it.
pub(crate) fn write_all_at(file: BorrowedFd<'_>, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match retry(|| kernel::pwrite(file, &buf[done..], offset + done as u64))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}

/// Removes a name of anything but a directory.
pub(crate) fn unlink(dir: impl AsFd, name: &CStr) -> io::Result<()> {
    retry(|| kernel::unlinkat(dir.as_fd(), name, AtFlags::empty()))
}

/// What the file system tells of an open file.
pub(crate) fn stat(file: impl AsFd) -> io::Result<Stat> {
    retry(|| kernel::fstat(file.as_fd()))
}

/// What the file system tells of a name, links not followed.
pub(crate) fn stat_name(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Stat> {
    retry(|| kernel::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW))
}

/// Whether a call was refused that there is another way for.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    REFUSED.iter().any(|&errno| is(error, errno))
}

/// Whether `error` is `errno`.
pub(crate) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// What is left of the process's address space, if that is limited.
pub(crate) fn address_space() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    // Without /proc only the limit is known.
    let used = pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64);
    Some(limit.saturating_sub(used))
}

/// The mask of new files' modes, as the process has it.
///
/// It is read where the kernel tells it: asking by `umask(2)` would change it for a moment.
pub(crate) fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
    mask.unwrap_or_else(|| {
        // Without /proc there is no other way; it is put back at once.
        let mask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(mask);
        mask.as_raw_mode()
    })
}
