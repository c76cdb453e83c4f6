//! Plain system calls that refuse to wait, on any thread.
//!
//! The functions by descriptor are for callers without a driver: [`read_nowait`] and [`write_nowait`] move
//! what the page cache has or takes, and [`open_cached`] opens what the dentry cache has. A file without such
//! calls is [`Attempt::Unsupported`]; an error is the operation's own. [`FileCalls`](crate::FileCalls) learns
//! which of them a file has.
//!
//! A driver names its operations by a [`Call`]. The result of one has the same form as the queue's; an
//! operation without a plain call that is sure not to wait is `Unsupported`, too, and takes another route.
//!
//! Source: `preadv2(2)`, `openat2(2)`, `statx(2)`.

mod cached;
mod ends;
mod in_memory;
mod messages;
pub(crate) mod nowait;

use std::os::fd::IntoRawFd;

use rustix::io::Errno;
use sakia_ring::{CURRENT_POSITION, IoVec};

pub(crate) use self::cached::open_in_cache;
pub use self::cached::{is_in_memory, open_cached};
pub(crate) use self::ends::statx_here;
pub use self::ends::{lane_of, opens_by_itself};
pub(crate) use self::messages::{recv_nowait, send_nowait};
pub use self::nowait::{read_nowait, write_nowait};
use crate::call::{Buffers, Call, Function, Open, System, Transfer, failed, outcome};
use crate::decide::{Attempt, CallMode};
use crate::sys::send_file::{is_cached, send_file};
use crate::sys::{self, DONT_WAIT, OpenHow, abi, retry};

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
/// - The memory and the descriptors that `call` names are valid, and no other code accesses the memory
///   into which the operation writes.
/// - A descriptor that it closes is the caller's to close.
#[inline(always)]
pub(crate) unsafe fn try_now(call: Call, mode: CallMode) -> Attempt {
    // SAFETY: each call has the same duties as this function's caller.
    unsafe {
        match call {
            Call::Transfer(transfer) => self::transfer(transfer, mode),
            _ => try_other(call, mode),
        }
    }
}

/// # Safety
///
/// - As [`try_now`].
#[inline(never)]
unsafe fn try_other(call: Call, mode: CallMode) -> Attempt {
    // SAFETY: each call has the same duties as this function's caller.
    unsafe {
        match call {
            Call::Nop => Attempt::Done(0),
            Call::Open(open) => self::open(open),
            Call::Close { raw } => done(rustix::io::try_close(raw)),
            Call::System(System { function: Function::Statx, args }) => statx(args),
            Call::System(System { function: Function::Mkdirat, args })
                if mode == CallMode::NonBlocking =>
            {
                in_memory::mkdir(args)
            }
            Call::CopyFileRange { from, from_offset, to, to_offset, len }
                if mode == CallMode::Blocking =>
            {
                let copied = sys::copy_file_range(from, from_offset, to, to_offset, len as usize);
                Attempt::Done(outcome(copied))
            }
            Call::System(System { function: Function::Sendfile, args })
                if mode == CallMode::NonBlocking =>
            {
                match is_cached(args) {
                    Some(true) => Attempt::Done(outcome(send_file(args))),
                    Some(false) => Attempt::WouldBlock,
                    None => Attempt::Unsupported,
                }
            }
            Call::Socket(call) if mode == CallMode::NonBlocking && call.verb.sends() => {
                match retry(|| call.call(call.flags | DONT_WAIT)) {
                    Err(Errno::AGAIN) => Attempt::WouldBlock,
                    result => Attempt::Done(outcome(result)),
                }
            }
            Call::System(system) if mode == CallMode::Blocking => {
                Attempt::Done(outcome(system.run()))
            }
            _ => Attempt::Unsupported,
        }
    }
}

/// # Safety
///
/// - As [`try_now`].
#[inline(always)]
unsafe fn transfer(transfer: Transfer, mode: CallMode) -> Attempt {
    let Transfer { raw, direction, buffers, offset, flags } = transfer;
    match buffers {
        Buffers::One { addr, len } => {
            let is_plain = mode == CallMode::Blocking && flags == 0 && offset != CURRENT_POSITION;
            if is_plain {
                // SAFETY: the caller says that the memory may be used.
                let call = || unsafe { sys::transfer_one(direction, raw, addr, len, offset) };
                return Attempt::Done(outcome(retry(call)));
            }
            let base = std::ptr::with_exposed_provenance_mut(addr as usize);
            let vector = IoVec { base, len: len as usize };
            // SAFETY: as above.
            unsafe { with_flags(transfer, mode, &vector, 1) }
        }
        Buffers::Many { vector, count } => {
            let vector = std::ptr::with_exposed_provenance(vector as usize);
            // SAFETY: the caller says that the vector and its memory may be used.
            unsafe { with_flags(transfer, mode, vector, count as usize) }
        }
    }
}

/// # Safety
///
/// - As [`try_now`]; `vector` points to `count` parts of that memory.
#[inline(always)]
unsafe fn with_flags(
    transfer: Transfer,
    mode: CallMode,
    vector: *const IoVec,
    count: usize,
) -> Attempt {
    let Transfer { raw, direction, offset, flags, .. } = transfer;
    let flags = nowait::flags(mode, flags);
    // SAFETY: the caller says that the memory may be used.
    let call = || unsafe { sys::transfer(direction, raw, vector, count, offset, flags) };
    match retry(call) {
        Err(Errno::AGAIN) if mode == CallMode::NonBlocking => Attempt::WouldBlock,
        // Flags that this kernel or file system does not know, or no `preadv2(2)` at all.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Attempt::Unsupported,
        result => Attempt::Done(outcome(result)),
    }
}

/// Calls `statx(2)` with these arguments if the path can be looked up in the cache.
///
/// # Safety
///
/// - As [`try_now`].
unsafe fn statx(args: [usize; 6]) -> Attempt {
    let [dir, path, flags, mask, result, _] = args;
    let (dir, path, result) = (dir as i32, path as u64, result as u64);
    let (flags, mask) = (flags as u32, mask as u32);
    // SAFETY: the caller says that the path can be read, and it has at least one byte.
    let is_empty = unsafe { *std::ptr::with_exposed_provenance::<u8>(path as usize) } == 0;
    if flags & abi::AT_EMPTY_PATH != 0 && is_empty {
        // SAFETY: the caller says that the result may be written.
        return done(unsafe { sys::statx(dir, path, flags, mask, result) });
    }
    let nofollow = if flags & abi::AT_SYMLINK_NOFOLLOW != 0 { O_NOFOLLOW } else { 0 };
    let open = Open { dir, path, flags: O_PATH | nofollow, mode: 0, resolve: None };
    // SAFETY: the caller says that the path can be read.
    let raw = match unsafe { self::open(open) } {
        Attempt::Done(raw) if raw >= 0 => raw,
        Attempt::Done(res) if needs_none(Errno::from_raw_os_error(-res)) => {
            return Attempt::Unsupported;
        }
        other => return other,
    };
    let empty = c"".as_ptr().expose_provenance() as u64;
    let flags = flags & !abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH;
    // SAFETY: the caller vouches for the result; the descriptor is ours to close.
    unsafe {
        let attempt = done(sys::statx(raw, empty, flags, mask, result));
        let _ = rustix::io::try_close(raw); // a path's descriptor has nothing to lose
        attempt
    }
}

/// Returns whether a lookup has failed for want of a descriptor, which a query by path does not need.
pub(crate) fn needs_none(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

/// Returns whether an open with these flags makes a name or changes a file, which no cache avoids.
pub(crate) fn changes(flags: u64) -> bool {
    flags & (O_CREAT | O_TRUNC) != 0 || flags & O_TMPFILE == O_TMPFILE
}

/// Opens a file that can be looked up in the cache, and never waits for another opener.
///
/// # Safety
///
/// - The path is lent.
unsafe fn open(open: Open) -> Attempt {
    let Open { dir, path, flags, mode, resolve } = open;
    // Creating or truncating a file works on the device, which no cache avoids, except in memory.
    if flags & O_CREAT != 0 && flags & O_TMPFILE != O_TMPFILE && resolve.unwrap_or(0) == 0 {
        // SAFETY: the caller says that the path can be read.
        return unsafe { in_memory::create(open) };
    }
    if changes(flags) {
        return Attempt::Unsupported;
    }
    let how = OpenHow { flags: flags | O_CLOEXEC, mode, resolve: resolve.unwrap_or(0) };
    // SAFETY: the caller says that the path can be read.
    match unsafe { open_in_cache(dir, path, how) } {
        Ok(fd) => Attempt::Done(fd.into_raw_fd()),
        Err(Errno::AGAIN) => Attempt::WouldBlock,
        // No such call, no such flag, or a seccomp filter older than the call.
        Err(Errno::NOSYS | Errno::INVAL | Errno::TOOBIG | Errno::PERM) => Attempt::Unsupported,
        Err(errno) => Attempt::Done(failed(errno)),
    }
}

fn done(result: Result<(), Errno>) -> Attempt {
    Attempt::Done(outcome(result.map(|()| 0)))
}

// All these tests make system calls, which Miri does not support.
#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use sakia_ring::AT_FDCWD;

    use super::*;
    use crate::call::address;

    #[test]
    fn a_path_is_looked_up_in_the_cache_only() {
        let open = |path: &'static CStr, flags: u32| {
            let (path, flags) = (address(path.as_ptr()), flags.into());
            Call::Open(Open { dir: AT_FDCWD, path, flags, mode: 0, resolve: None })
        };
        // SAFETY: the path is static; the opened descriptor is adopted at once.
        unsafe {
            match try_now(open(c"/proc/self/comm", 0), CallMode::NonBlocking) {
                Attempt::Done(raw) => drop(OwnedFd::from_raw_fd(raw)),
                Attempt::WouldBlock | Attempt::Unsupported => {}
            }
            let flags = rustix::fs::OFlags::CREATE.bits();
            let create = open(c"/proc/self/comm", flags);
            assert_eq!(try_now(create, CallMode::NonBlocking), Attempt::Unsupported);
        }
        let missing = open(c"/nowhere/at/all", 0);
        // SAFETY: the path is static, and nothing is opened.
        let attempt = unsafe { try_now(missing, CallMode::NonBlocking) };
        let missing = Attempt::Done(-Errno::NOENT.raw_os_error());
        assert!(attempt == missing || attempt == Attempt::WouldBlock, "{attempt:?}");
    }

    #[test]
    fn a_plain_call_reads_at_the_offset_and_says_what_failed() {
        let file = File::open("/proc/self/exe").expect("the test runs from a file");
        let mut bytes = [0_u8; 3];
        let mut read = |raw| {
            let call = Transfer::read(raw, bytes.as_mut_ptr(), 3, 1, 0);
            // SAFETY: the bytes outlive the call.
            unsafe { try_now(call, CallMode::Blocking) }
        };
        let attempt = read(file.as_raw_fd());
        assert_eq!(attempt, Attempt::Done(3));
        assert_eq!(read(-1), Attempt::Done(-Errno::BADF.raw_os_error()));
        assert_eq!(&bytes, b"ELF");
    }
}
