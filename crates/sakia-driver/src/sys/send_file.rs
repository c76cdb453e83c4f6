//! `sendfile(2)` to a socket, without waiting for its peer.
//!
//! The call depends on the socket's mode, which belongs to all its users:
//! - In non-blocking mode it is made unchanged.
//! - A socket that the driver made is put into that mode. If it was never handed out it stays so, and the
//!   next call does not check again; otherwise for the call alone, which other users of the descriptor might
//!   see.
//! - Any other in blocking mode is left unchanged, and the call is refused with `EOPNOTSUPP`.
//!
//! The kernel sends a file through an internal pipe. It refuses a pipe as the source, which is spliced
//! instead.
//!
//! The page cache is asked for a range, and taken to keep it as long as the [tick](Tick) of the answer lasts.
//! If it drops pages in between, the call reads them from the device, and waits.
//!
//! Source: `sendfile(2)`, `splice(2)`, `cachestat(2)`.

use std::ptr;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::signals::without_sigpipe;
use super::{Tick, abi, borrow, retry, shared_syscall};

/// The mode is only read.
pub(crate) const GIVEN: usize = 0;
/// It may be changed for the call.
pub(crate) const CHANGED: usize = 1;
/// It may be changed for good.
pub(crate) const KEPT: usize = 2;
/// The socket is in non-blocking mode.
pub(crate) const NON_BLOCKING: usize = 3;

/// The bytes of a file that the page cache was last found to have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cached {
    begin: u64,
    end: u64,
    found: Tick,
}

/// Sends bytes of a file to a socket, as many as it has room for. The arguments are those of `sendfile(2)`,
/// one of the constants above for the mode, and the address of a [`Cached`], or 0. After [`KEPT`] the
/// socket is in non-blocking mode if the call has succeeded or failed with `EAGAIN`.
///
/// # Errors
/// - `EAGAIN`: there is no room, or the source is an empty pipe.
/// - `EOPNOTSUPP`: the socket is in blocking mode, and that may not be changed. Otherwise as `sendfile(2)`.
///
/// # Safety
///
/// - Both descriptors are lent, and so is the offset, which is the call's alone.
pub(crate) unsafe fn send_file(args: [usize; 6]) -> Result<usize, Errno> {
    let [socket, file, offset, len, mode_use, _] = args;
    // SAFETY: the caller's promise.
    let fd = unsafe { borrow(socket as i32) }?;
    // SAFETY: by the caller's promise the call accesses the offset and no other memory of the program.
    let send = || match unsafe {
        shared_syscall(abi::__NR_sendfile, [socket, file, offset, len, 0, 0])
    } {
        Err(refusal @ (Errno::INVAL | Errno::SPIPE)) => {
            let flags = abi::SPLICE_F_NONBLOCK as usize;
            // SAFETY: the call touches no memory of ours.
            match unsafe { shared_syscall(abi::__NR_splice, [file, 0, socket, 0, len, flags]) } {
                Err(Errno::INVAL) => Err(refusal), // no pipe
                result => result,
            }
        }
        result => result,
    };
    let send = || without_sigpipe(|| retry(send));
    if mode_use == NON_BLOCKING {
        return send();
    }
    let mode = fcntl_getfl(fd)?;
    if mode.contains(OFlags::NONBLOCK) {
        return send();
    }
    if mode_use == GIVEN {
        return Err(Errno::OPNOTSUPP);
    }
    fcntl_setfl(fd, mode | OFlags::NONBLOCK)?;
    let result = send();
    if mode_use == KEPT && matches!(result, Ok(_) | Err(Errno::AGAIN)) {
        return result;
    }
    let restored = fcntl_setfl(fd, mode);
    debug_assert!(restored.is_ok(), "a mode that was there can be set: {restored:?}");
    result
}

/// Returns whether the page cache has all bytes that such a call would read, by the [`Cached`] among the
/// arguments or, which it then says, by the kernel's answer; `None` if the kernel does not
/// report it: before Linux 6.5, and for files of other users that the caller may not write.
///
/// # Safety
///
/// - As [`send_file`]. The [`Cached`] that the last argument names is the call's alone, too.
pub(crate) unsafe fn is_cached(args: [usize; 6]) -> Option<bool> {
    let [_, file, offset, len, _, known] = args;
    if cfg!(not(target_arch = "x86_64")) {
        return None; // the kernel answers in pages, whose size may be any
    }
    const PAGE_BYTES: u64 = 4096;
    // SAFETY: the caller's promise: it is the address of an offset, which no call is changing now.
    let offset = unsafe { ptr::with_exposed_provenance::<u64>(offset).read() };
    let end = offset.checked_add(len as u64).filter(|&end| i64::try_from(end).is_ok());
    // Without bytes to send, or beyond every file's end, the call ends at once.
    let Some(last) = end.filter(|_| len > 0).map(|end| (end - 1) / PAGE_BYTES) else {
        return Some(true);
    };
    let known = match known {
        0 => None,
        // SAFETY: the caller's promise: it is the address of such a value, which nothing else uses now.
        known => Some(unsafe { &mut *ptr::with_exposed_provenance_mut::<Cached>(known) }),
    };
    let (begin, end, now) = (offset, offset + len as u64, Tick::now());
    let is_within = |known: &Cached| known.begin <= begin && end <= known.end;
    if known.as_ref().is_some_and(|known| is_within(known) && known.found.lasts(now)) {
        return Some(true);
    }
    let range = abi::cachestat_range { off: offset, len: len as u64 };
    let mut found = abi::cachestat {
        nr_cache: 0,
        nr_dirty: 0,
        nr_writeback: 0,
        nr_evicted: 0,
        nr_recently_evicted: 0,
    };
    let (range, result) = (&raw const range as usize, &raw mut found as usize);
    // SAFETY: the kernel reads the range and fills the result, both of which outlive the call.
    unsafe { shared_syscall(abi::__NR_cachestat, [file, range, result, 0, 0, 0]) }.ok()?;
    let is_cached = found.nr_cache > last - offset / PAGE_BYTES;
    if let Some(known) = known.filter(|_| is_cached) {
        *known = Cached { begin, end, found: now };
    }
    Some(is_cached)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::call::word;
    use crate::sys::{self, register};

    /// Returns a file in memory, and both ends of a stream.
    fn file_and_stream() -> (File, UnixStream, UnixStream) {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::memfd_create("file", flags).unwrap());
        file.write_all(&[b'x'; 10_000]).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        (file, near, far)
    }

    fn args(to: &UnixStream, file: &File, offset: &mut u64, len: usize) -> [usize; 6] {
        let (to, file) = (register(to.as_raw_fd()), register(file.as_raw_fd()));
        [to, file, word(&raw mut *offset), len, CHANGED, 0]
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_peer_that_is_gone_raises_no_signal() {
        const SIGPIPE: sys::SignalSet = 1 << 12;
        let send = || {
            let (file, near, far) = file_and_stream();
            drop(far);
            sys::signal_mask(sys::MaskChange::Block, SIGPIPE).unwrap();
            let mut offset = 0;
            // SAFETY: the descriptors and the offset are this function's.
            let result = unsafe { send_file(args(&near, &file, &mut offset, 10)) };
            (result, sys::signals_pending().unwrap() & SIGPIPE)
        };
        // The call runs on a new thread, whose mask it changes.
        assert_eq!(std::thread::spawn(send).join().unwrap(), (Err(Errno::PIPE), 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_mode_is_changed_for_the_call_alone() {
        let (file, near, _far) = file_and_stream();
        let send = |mode_use: usize| {
            let mut offset = 0;
            let mut args = args(&near, &file, &mut offset, 10_000);
            args[4] = mode_use;
            // SAFETY: the descriptors and the offset are this function's.
            unsafe { send_file(args) }
        };
        let mode = || fcntl_getfl(&near).unwrap();
        assert_eq!(send(GIVEN), Err(Errno::OPNOTSUPP));
        // The call does not wait for room.
        let full = (0..10_000).find_map(|_| send(CHANGED).err());
        assert_eq!(full, Some(Errno::AGAIN));
        assert!(!mode().contains(OFlags::NONBLOCK));
        near.set_nonblocking(true).unwrap();
        assert_eq!((send(GIVEN), send(CHANGED)), (Err(Errno::AGAIN), Err(Errno::AGAIN)));
        assert!(mode().contains(OFlags::NONBLOCK));
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_mode_is_kept_where_sends_go_on() {
        let (file, near, far) = file_and_stream();
        let send = |mode_use: usize| {
            let mut offset = 0;
            let mut args = args(&near, &file, &mut offset, 10_000);
            args[4] = mode_use;
            // SAFETY: the descriptors and the offset are this function's.
            unsafe { send_file(args) }
        };
        let is_nonblocking = || fcntl_getfl(&near).unwrap().contains(OFlags::NONBLOCK);
        assert_eq!((send(KEPT), is_nonblocking()), (Ok(10_000), true));
        let full = (0..10_000).find_map(|_| send(NON_BLOCKING).err());
        assert_eq!((full, is_nonblocking()), (Some(Errno::AGAIN), true));
        near.set_nonblocking(false).unwrap();
        assert_eq!((send(KEPT), is_nonblocking()), (Err(Errno::AGAIN), true));
        near.set_nonblocking(false).unwrap();
        drop(far);
        assert_eq!((send(KEPT), is_nonblocking()), (Err(Errno::PIPE), false));
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn what_the_cache_has_is_told() {
        let (file, near, _far) = file_and_stream();
        let ask = |mut offset: u64, len| {
            // SAFETY: the descriptors and the offset are this function's.
            unsafe { is_cached(args(&near, &file, &mut offset, len)) }
        };
        if ask(0, 1).is_none() {
            assert!(std::env::var_os("SAKIA_DENY_SKIPS").is_none(), "skips are denied");
            return eprintln!("SKIP: this kernel does not report the contents of its cache");
        }
        for (offset, len, expected) in [
            (0, 10_000, true),
            (4095, 2, true),
            (8192, 4096, true),
            (8192, 4097, false),
            (0, 20_000, false),
            (12_288, 1, false),
            (1 << 40, 1, false),
            (1 << 40, 0, true),
            // The call fails at once.
            (u64::MAX, 1, true),
            (i64::MAX as u64, usize::MAX, true),
        ] {
            assert_eq!(ask(offset, len), Some(expected), "{offset} {len}");
        }
        // The last result is used for a tick and no longer. These ranges are beyond the file's end.
        let beyond = |known: &mut Cached, offset: u64, len| {
            let mut offset = offset;
            let mut args = args(&near, &file, &mut offset, len);
            args[5] = word(&raw mut *known);
            // SAFETY: the descriptors, the offset and what is known are this function's.
            unsafe { is_cached(args) }
        };
        let mut known = Cached::default();
        assert_eq!(beyond(&mut known, 4096, 5000), Some(true));
        assert_eq!((known.begin, known.end), (4096, 9096));
        known = Cached { begin: 12_000, end: 14_000, found: known.found };
        let now = Tick::now();
        let lasts = known.found.lasts(now);
        let answers = [(12_000, 2000), (13_000, 1), (12_000, 2001), (11_999, 1000)];
        let answers = answers.map(|(offset, len)| beyond(&mut known, offset, len));
        if lasts && Tick::now() == now {
            assert_eq!(answers, [true, true, false, false].map(Some));
        }
        known.found = Tick::default();
        assert_eq!(beyond(&mut known, 12_000, 2000), Some(false));
        let nothing = OwnedFd::from(near.try_clone().unwrap());
        let mut offset = 0;
        let mut args = args(&near, &file, &mut offset, 1);
        args[1] = register(nothing.as_raw_fd());
        // SAFETY: as above.
        assert_ne!(unsafe { is_cached(args) }, Some(true), "a socket has no pages");
    }
}
