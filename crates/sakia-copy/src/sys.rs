//! Plain system calls, and their non-blocking forms.

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
pub(crate) use rustix::io::{Result, retry_on_intr as retry};
use rustix::path::Arg;
use sakia_driver::Attempt;

use crate::kernel::{self, OwnedFd};

/// The mode bits that `chmod(2)` sets.
pub(crate) const PERMISSIONS: u32 = 0o7777;

/// More than the length of `/proc/self/status`.
const STATUS_BYTES: usize = 4 << 10;

/// Flags to open directories for reading.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Flags to open directories for lookups only, following links.
pub(crate) const SEARCHED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Flags to open files for reading. If the entry has become another kind, opening it must neither block nor
/// follow a link.
pub(crate) const SOURCE: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Answers of an old kernel, a file system or a filter to a call that has an alternative.
const REFUSED: [Errno; 4] = [Errno::NOSYS, Errno::PERM, Errno::INVAL, Errno::OPNOTSUPP];

/// Locks the mutex, ignoring a panic of another holder.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a cached entry; `None` if the open would block.
pub(crate) fn open_now(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<Option<OwnedFd>> {
    match kernel::open_cached(dir, name, flags)? {
        Attempt::Done(fd) => Ok(Some(fd)),
        Attempt::WouldBlock => Ok(None),
        Attempt::Unsupported => open(dir, name, flags).map(Some),
    }
}

/// Opens a file or a directory; may block.
pub(crate) fn open(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd> {
    retry(|| kernel::openat(dir, name, flags, Mode::empty()))
}

/// Opens a directory again; one of the copy may be unreadable.
pub(crate) fn open_again(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd> {
    match open(dir, name, flags) {
        Err(Errno::ACCESS) => open(dir, name, unread(flags)).map_err(|_| Errno::ACCESS),
        opened => opened,
    }
}

/// Returns these flags for a directory that is used for lookups only.
pub(crate) fn unread(flags: OFlags) -> OFlags {
    flags.difference(OFlags::RWMODE).union(OFlags::PATH)
}

/// Creates a file that does not exist yet.
pub(crate) fn create(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    retry(|| kernel::openat(dir, name, flags, Mode::from_raw_mode(mode)))
}

/// Reads; may block.
pub(crate) fn read_at(file: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Result<usize> {
    retry(|| kernel::pread(file, &mut *buf, offset))
}

/// Writes all bytes at `offset`; may block.
pub(crate) fn write_all_at(file: BorrowedFd<'_>, buf: &[u8], offset: u64) -> io::Result<()> {
    write_all(buf, |rest| kernel::pwrite(file, rest, offset + (buf.len() - rest.len()) as u64))
}

/// Writes all bytes by repeated partial writes.
pub(crate) fn write_all(
    mut rest: &[u8],
    mut write: impl FnMut(&[u8]) -> Result<usize>,
) -> io::Result<()> {
    while !rest.is_empty() {
        match retry(|| write(rest))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => rest = &rest[count..],
        }
    }
    Ok(())
}

/// Creates `to` in `dir` as a link to the file `name` in `from`.
pub(crate) fn link(from: impl AsFd, name: &CStr, dir: impl AsFd, to: &CStr) -> Result<()> {
    retry(|| kernel::linkat(from.as_fd(), name, dir.as_fd(), to, AtFlags::empty()))
}

/// Removes a name, unless it is a directory.
pub(crate) fn unlink(dir: impl AsFd, name: &CStr) -> Result<()> {
    retry(|| kernel::unlinkat(dir.as_fd(), name, AtFlags::empty()))
}

/// Returns the status of an open file.
pub(crate) fn stat(file: impl AsFd) -> Result<Stat> {
    retry(|| kernel::fstat(file.as_fd()))
}

/// Returns the status of a name, without following a link.
pub(crate) fn stat_name(dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat> {
    retry(|| kernel::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW))
}

/// Reads a symbolic link.
pub(crate) fn read_link(dir: impl AsFd, name: &CStr) -> Result<CString> {
    retry(|| kernel::readlinkat(dir.as_fd(), name, Vec::new()))
}

/// Returns the kind of an entry.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns the size of a file.
pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Sets the mode of an open file.
pub(crate) fn set_mode(file: impl AsFd, mode: u32) -> Result<()> {
    retry(|| kernel::fchmod(file.as_fd(), Mode::from_raw_mode(mode)))
}

/// Sets the mode of a path's target.
pub(crate) fn set_mode_of(dir: impl AsFd, path: impl Arg + Copy, mode: u32) -> Result<()> {
    retry(|| kernel::chmodat(dir.as_fd(), path, Mode::from_raw_mode(mode), AtFlags::empty()))
}

/// Returns a name as a path.
pub(crate) fn path(name: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(name.to_bytes()))
}

/// Returns whether a call was refused that has an alternative.
pub(crate) fn is_refused(errno: Errno) -> bool {
    REFUSED.contains(&errno)
}

/// Returns the remaining address space of the process, if it is limited.
pub(crate) fn address_space() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    // Without `/proc` only the limit is known.
    let used = pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64);
    Some(limit.saturating_sub(used))
}

/// Returns the process's umask.
///
/// It is read from the kernel's status file: `umask(2)` would change it for a moment.
pub(crate) fn umask() -> u32 {
    // With room for all of it, it takes two calls to read.
    let mut status = String::with_capacity(STATUS_BYTES);
    let file = std::fs::File::open("/proc/self/status");
    file.and_then(|mut file| file.read_to_string(&mut status)).ok();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
    mask.unwrap_or_else(|| {
        // Without `/proc` there is no other way; it is restored at once.
        let mask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(mask);
        mask.as_raw_mode()
    })
}
