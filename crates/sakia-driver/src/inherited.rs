//! The descriptors that a service manager passed to this process when it started it.
//!
//! A manager passes descriptors by their numbers: from 3 on, as many as `LISTEN_FDS` says, for the process
//! that
//! `LISTEN_PID` names. A number alone proves nothing later, since the program may own it by then: whoever
//! made a second owner of it could close a file of the first. So the numbers are looked at in a function that
//! the C library calls before `main`, when nothing of the program has opened or closed a descriptor, and
//! [`take`] hands out just those.
//!
//! Nothing is found, too,
//! - in a forked child, since the descriptors are for its parent;
//! - if this code is in a shared library, which a program may load when its numbers have owners;
//! - for a number that is closed, or is to be closed on exec, which descriptors that came through an exec are
//!   not; and for one that refers to another file when it is taken.
//!
//! In a process without these variables this costs one look at the environment. Source: `sd_listen_fds(3)`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::fs::{CWD, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd, read};
use rustix::process::{Pid, getpid};

/// The first number that a manager passes.
const FIRST: RawFd = 3;

/// The descriptors that were passed; null if there are none, or once they were taken. Written before `main`.
static PASSED: AtomicPtr<Passed> = AtomicPtr::new(ptr::null_mut());

/// The descriptors that were passed to a process.
struct Passed {
    /// The process. A forked child has the same memory, and its parent's descriptors.
    process: Pid,
    /// The files behind the numbers from [`FIRST`] on.
    files: Vec<FileId>,
    names: Option<OsString>,
}

/// A file's device and number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId(u64, u64);

/// The descriptors that a service manager passed, and their names.
#[derive(Debug, Default)]
pub struct Inherited {
    /// In the manager's order; `None` for one that the program has closed since it began.
    pub descriptors: Vec<Option<OwnedFd>>,
    /// The names, separated by colons (`LISTEN_FDNAMES`).
    pub names: Option<OsString>,
}

/// Takes the descriptors that a service manager passed to this process, and has them closed on exec. A second
/// call finds none.
///
/// # Examples
/// ```
/// let inherited = sakia_driver::inherited::take();
/// assert!(inherited.descriptors.is_empty(), "no manager has started this");
/// ```
pub fn take() -> Inherited {
    let passed = PASSED.swap(ptr::null_mut(), Ordering::AcqRel);
    if passed.is_null() {
        return Inherited::default();
    }
    // SAFETY: `look` has made it of a box and stored it once; the swap has taken it out for this call alone.
    let Passed { process, files, names } = *unsafe { Box::from_raw(passed) };
    if process != getpid() {
        return Inherited::default();
    }
    let own = |(raw, file): (RawFd, FileId)| {
        (identify(raw) == Some(file)).then(|| {
            // SAFETY: the number is open. It was open before anything of the program had run, so that no code
            // of the program owned it, and still refers to the same file; this record of it, the only one,
            // was taken out above. Code that makes an owner of such a number otherwise does so by an unsafe
            // function, and has to know that the number is not ours.
            let fd = unsafe { OwnedFd::from_raw_fd(raw) };
            fcntl_setfd(&fd, FdFlags::CLOEXEC).ok(); // it succeeds for each open descriptor
            fd
        })
    };
    Inherited { descriptors: (FIRST..).zip(files).map(own).collect(), names }
}

/// Records the descriptors that were passed to this process.
extern "C" fn look() {
    let number = |name: &str| env::var_os(name)?.to_str()?.parse().ok();
    let is_ours = |pid: &RawFd| *pid == Pid::as_raw(Some(getpid()));
    if number("LISTEN_PID").filter(is_ours).is_none() || !is_in_program() {
        return;
    }
    let Some(count) = number("LISTEN_FDS") else { return };
    let numbers =
        (FIRST..FIRST.saturating_add(count)).map(|raw| identify(raw).filter(|_| is_kept(raw)));
    let files: Vec<_> = numbers.map_while(|file| file).collect();
    if files.is_empty() {
        return;
    }
    let passed = Passed { process: getpid(), files, names: env::var_os("LISTEN_FDNAMES") };
    PASSED.store(Box::into_raw(Box::new(passed)), Ordering::Release);
}

// SAFETY: the section is an array of functions, which the C library calls once each, on the thread that
// begins the process, before `main`; the static is one such address, of a type of that size. `look` has the C
// calling convention, in which arguments that a function does not take (glibc passes three) are ignored. It
// reads the environment, which the C library sets up before it calls these functions, makes system calls that
// change nothing, allocates, and stores to an atomic of its own. It does not unwind: nothing in it panics.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Calls `f` with a number that may be closed.
fn with<T>(raw: RawFd, f: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
    // SAFETY: the number is from `FIRST` on. It is used for one call, which fails if the number is closed,
    // and changes nothing if it is not.
    f(unsafe { BorrowedFd::borrow_raw(raw) })
}

/// Returns the file behind a number; `None` if it is closed.
fn identify(raw: RawFd) -> Option<FileId> {
    with(raw, |fd| fstat(fd)).ok().map(|stat| FileId(stat.st_dev, stat.st_ino))
}

/// Returns whether a descriptor stays open on exec, as one does that came through it.
fn is_kept(raw: RawFd) -> bool {
    with(raw, |fd| fcntl_getfd(fd)).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
}

/// Returns whether this code is part of the program itself, as far as `/proc` tells.
fn is_in_program() -> bool {
    let address = (look as *const ()).addr();
    let is_at = || {
        let program = readlinkat(CWD, "/proc/self/exe", Vec::new()).ok()?;
        let maps = read_whole("/proc/self/maps")?;
        let path = maps.split(|&byte| byte == b'\n').find_map(|line| path_of(line, address))?;
        Some(path == OsStr::from_bytes(program.as_bytes()))
    };
    is_at().unwrap_or(false)
}

/// Returns the file of a map, a line of `/proc/self/maps`, if the address is in it.
fn path_of(line: &[u8], address: usize) -> Option<&OsStr> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let (begin, end) = range.split_once('-')?;
    let bound = |text| usize::from_str_radix(text, 16).ok();
    let path = fields.last()?.trim_ascii_start();
    (bound(begin)?..bound(end)?).contains(&address).then_some(OsStr::from_bytes(path))
}

fn read_whole(path: &str) -> Option<Vec<u8>> {
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let (mut whole, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match read(&file, &mut part).ok()? {
            0 => return Some(whole),
            count => whole.extend_from_slice(&part[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_with_an_address_names_its_file() {
        let line = b"55a0-55b0 r-xp 00002000 fe:00 1234    /a program (deleted)";
        assert_eq!(path_of(line, 0x55a0), Some(OsStr::new("/a program (deleted)")));
        assert_eq!(path_of(line, 0x55b0), None);
        assert_eq!(path_of(b"7f00-7f10 rw-p 00000000 00:00 0 ", 0x7f00), Some(OsStr::new("")));
        assert_eq!(path_of(b"", 0), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_test_is_part_of_its_program() {
        assert!(is_in_program());
    }
}
