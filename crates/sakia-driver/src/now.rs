//! Operations as plain system calls, here and now.
//!
//! An entry is understood as the queue understands it, and its result has the same form. What there is
//! no plain call for that is sure not to wait is [`Attempt::Unsupported`]: then the operation goes
//! another way.
//!
//! Source: `preadv2(2)`, `openat2(2)`, `statx(2)`.

use std::os::fd::{BorrowedFd, IntoRawFd};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sakia_ring::{CURRENT_POSITION, IoVec, Opcode, Sqe};

use crate::call::Call;
use crate::policy::{Attempt, CallMode};
use crate::sys::{self, Direction, OpenHow, abi, retry};

const O_CREAT: u64 = abi::O_CREAT as u64;
const O_TRUNC: u64 = abi::O_TRUNC as u64;
const O_TMPFILE: u64 = rustix::fs::OFlags::TMPFILE.bits() as u64;
const O_PATH: u64 = abi::O_PATH as u64;
const O_CLOEXEC: u64 = abi::O_CLOEXEC as u64;
const O_NOFOLLOW: u64 = abi::O_NOFOLLOW as u64;

/// Performs an operation as plain calls.
///
/// # Safety
///
/// - The memory and the descriptor that `sqe` names are valid, and nobody else accesses the memory
///   where the operation writes.
/// - With [`Opcode::CLOSE`] the descriptor is the caller's to close.
#[inline(always)]
pub(crate) unsafe fn try_now(sqe: &Sqe, mode: CallMode) -> Attempt {
    // SAFETY: the caller's duties are those of each.
    unsafe {
        match sqe.opcode {
            Opcode::READ => transfer(sqe, mode, Direction::Read),
            Opcode::WRITE => transfer(sqe, mode, Direction::Write),
            _ => try_other(sqe, mode),
        }
    }
}

/// # Safety
///
/// - As [`try_now`].
#[inline(never)]
unsafe fn try_other(sqe: &Sqe, mode: CallMode) -> Attempt {
    // SAFETY: the caller's duties are those of each.
    unsafe {
        match sqe.opcode {
            // Registered memory is memory like any other to a call.
            Opcode::READ_FIXED => transfer(sqe, mode, Direction::Read),
            Opcode::WRITE_FIXED => transfer(sqe, mode, Direction::Write),
            Opcode::READV => vectored(sqe, mode, Direction::Read),
            Opcode::WRITEV => vectored(sqe, mode, Direction::Write),
            Opcode::NOP => Attempt::Done(0),
            Opcode::STATX => statx(sqe),
            Opcode::OPENAT => {
                let how = OpenHow {
                    flags: u64::from(sqe.op_flags),
                    mode: u64::from(sqe.len),
                    resolve: 0,
                };
                open(sqe.fd, sqe.addr, how)
            }
            Opcode::CLOSE => match rustix::io::try_close(sqe.fd) {
                Ok(()) => Attempt::Done(0),
                Err(errno) => Attempt::Done(-errno.raw_os_error()),
            },
            Opcode::OPENAT2 => {
                let how = std::ptr::with_exposed_provenance::<OpenHow>(sqe.off as usize);
                open(sqe.fd, sqe.addr, *how)
            }
            _ => match Call::of(sqe) {
                Some(call) if mode == CallMode::Blocking => outcome(call.run()),
                _ => Attempt::Unsupported,
            },
        }
    }
}

/// # Safety
///
/// - As [`try_now`].
#[inline(always)]
unsafe fn transfer(sqe: &Sqe, mode: CallMode, direction: Direction) -> Attempt {
    // SAFETY: the caller says that the memory may be used.
    unsafe {
        let is_plain =
            mode == CallMode::Blocking && sqe.op_flags == 0 && sqe.off != CURRENT_POSITION;
        if is_plain {
            let call = || sys::transfer_one(direction, sqe.fd, sqe.addr, sqe.len, sqe.off);
            return outcome(retry(call));
        }
        let base = std::ptr::with_exposed_provenance_mut(sqe.addr as usize);
        let vector = IoVec { base, len: sqe.len as usize };
        with_flags(sqe, mode, direction, &vector, 1)
    }
}

/// # Safety
///
/// - As [`try_now`].
unsafe fn vectored(sqe: &Sqe, mode: CallMode, direction: Direction) -> Attempt {
    let vector = std::ptr::with_exposed_provenance(sqe.addr as usize);
    // SAFETY: the caller says that the vector and its memory may be used.
    unsafe { with_flags(sqe, mode, direction, vector, sqe.len as usize) }
}

/// # Safety
///
/// - As [`try_now`]; `vector` points to `count` parts of that memory.
#[inline(always)]
unsafe fn with_flags(
    sqe: &Sqe,
    mode: CallMode,
    direction: Direction,
    vector: *const IoVec,
    count: usize,
) -> Attempt {
    let flags = match mode {
        CallMode::NonBlocking => sqe.op_flags | abi::RWF_NOWAIT,
        CallMode::Blocking => sqe.op_flags,
    };
    let call = || {
        // SAFETY: the caller says that the memory may be used.
        unsafe { sys::transfer(direction, sqe.fd, vector, count, sqe.off, flags) }
    };
    match retry(call) {
        Err(Errno::AGAIN) if mode == CallMode::NonBlocking => Attempt::WouldBlock,
        // Flags that this kernel or file system does not know, or no such call at all.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Attempt::Unsupported,
        result => outcome(result),
    }
}

/// # Safety
///
/// - As [`try_now`].
unsafe fn statx(sqe: &Sqe) -> Attempt {
    let Sqe { fd: dir, addr: path, op_flags: flags, len: mask, off: result, .. } = *sqe;
    // SAFETY: the caller says that the path can be read, the first byte of which is there.
    let is_empty = unsafe { *std::ptr::with_exposed_provenance::<u8>(path as usize) } == 0;
    if flags & abi::AT_EMPTY_PATH != 0 && is_empty {
        // SAFETY: the caller says that the result may be written.
        return done(unsafe { sys::statx(dir, path, flags, mask, result) });
    }
    let nofollow = if flags & abi::AT_SYMLINK_NOFOLLOW != 0 { O_NOFOLLOW } else { 0 };
    let how = OpenHow { flags: O_PATH | nofollow, mode: 0, resolve: 0 };
    // SAFETY: the caller says that the path can be read.
    let raw = match unsafe { open(dir, path, how) } {
        Attempt::Done(raw) if raw >= 0 => raw,
        other => return other,
    };
    let empty = c"".as_ptr().expose_provenance() as u64;
    let flags = flags & !abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH;
    // SAFETY: the result is the caller's to answer for, and the descriptor is ours, to be closed.
    unsafe {
        let attempt = done(sys::statx(raw, empty, flags, mask, result));
        let _ = rustix::io::try_close(raw); // a path's descriptor has nothing to lose
        attempt
    }
}

/// Opens what the cache can look up, and never waits for another opener.
///
/// # Safety
///
/// - `path` is the address of bytes that end with a NUL.
pub(crate) unsafe fn open(dir: i32, path: u64, how: OpenHow) -> Attempt {
    // To create or to cut off is work on the device, for which there is no cache.
    if how.flags & (O_CREAT | O_TRUNC) != 0 || how.flags & O_TMPFILE == O_TMPFILE {
        return Attempt::Unsupported;
    }
    let resolve = how.resolve | u64::from(abi::RESOLVE_CACHED);
    let how = OpenHow { flags: how.flags | O_CLOEXEC, resolve, ..how };
    // SAFETY: the caller says that the path can be read.
    match unsafe { sys::openat2(dir, path, &how) } {
        Ok(fd) => Attempt::Done(fd.into_raw_fd()),
        Err(Errno::AGAIN) => Attempt::WouldBlock,
        // No such call, no such flag, or a filter that is older than it.
        Err(Errno::NOSYS | Errno::INVAL | Errno::TOOBIG | Errno::PERM) => Attempt::Unsupported,
        Err(errno) => Attempt::Done(-errno.raw_os_error()),
    }
}

/// The size of a file with positions, which moves to its end. That is the cheapest call that tells.
///
/// # Safety
///
/// - The descriptor is the caller's, and open.
pub(crate) unsafe fn size(raw: i32) -> Option<u64> {
    if raw < 0 {
        return None;
    }
    // SAFETY: the caller keeps the descriptor open.
    let fd = unsafe { BorrowedFd::borrow_raw(raw) };
    rustix::fs::seek(fd, SeekFrom::End(0)).ok()
}

#[inline(always)]
fn outcome(result: Result<usize, Errno>) -> Attempt {
    // A transfer moves at most `MAX_RW_BYTES`, which fits.
    Attempt::Done(result.map_or_else(|errno| -errno.raw_os_error(), |len| len as i32))
}

fn done(result: Result<(), Errno>) -> Attempt {
    Attempt::Done(result.map_or_else(|errno| -errno.raw_os_error(), |()| 0))
}

// All of them make system calls.
#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use sakia_ring::AT_FDCWD;

    use super::*;

    #[test]
    fn a_path_is_looked_up_in_the_cache_only() {
        let path = c"/proc/self/comm";
        let sqe = Sqe::openat(AT_FDCWD, path.as_ptr().cast(), 0, 0);
        // SAFETY: the path is static; what is opened is adopted at once.
        unsafe {
            match try_now(&sqe, CallMode::NonBlocking) {
                Attempt::Done(raw) => drop(OwnedFd::from_raw_fd(raw)),
                Attempt::WouldBlock | Attempt::Unsupported => {}
            }
            let flags = rustix::fs::OFlags::CREATE.bits();
            let sqe = Sqe::openat(AT_FDCWD, path.as_ptr().cast(), flags, 0);
            assert_eq!(try_now(&sqe, CallMode::NonBlocking), Attempt::Unsupported);
        }
        let sqe = Sqe::openat(AT_FDCWD, c"/nowhere/at/all".as_ptr().cast(), 0, 0);
        // SAFETY: the path is static, and nothing is opened.
        let attempt = unsafe { try_now(&sqe, CallMode::NonBlocking) };
        let missing = Attempt::Done(-Errno::NOENT.raw_os_error());
        assert!(attempt == missing || attempt == Attempt::WouldBlock, "{attempt:?}");
    }

    #[test]
    fn a_plain_call_reads_at_the_offset_and_says_what_failed() {
        let file = File::open("/proc/self/exe").expect("the test runs from a file");
        let mut bytes = [0_u8; 3];
        let mut sqe = Sqe::read(file.as_raw_fd(), bytes.as_mut_ptr(), 3, 1);
        // SAFETY: the bytes outlive the call.
        let attempt = unsafe { try_now(&sqe, CallMode::Blocking) };
        assert_eq!(attempt, Attempt::Done(3));
        assert_eq!(&bytes, b"ELF");
        sqe.fd = -1;
        // SAFETY: as above.
        let attempt = unsafe { try_now(&sqe, CallMode::Blocking) };
        assert_eq!(attempt, Attempt::Done(-Errno::BADF.raw_os_error()));
    }
}
