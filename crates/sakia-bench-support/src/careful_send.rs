//! `sendfile(2)` with the guarantees of the driver's `send_file`: it waits for no device, and raises no
//! `SIGPIPE`. It is the cheapest such send, for comparison.
//!
//! Source: `sendfile(2)`, `cachestat(2)`, `pthread_sigmask(3)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libc::{c_long, off_t, sigset_t};

/// A part of a file, as `cachestat(2)` takes it.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// The number of `cachestat(2)`, on all architectures.
const CACHESTAT: c_long = 451;
const PAGE_BYTES: u64 = 4096;

/// Sends up to `len` bytes of the file from `offset` on, which it advances, as many as the socket, which is
/// in non-blocking mode, has room for. Returns their number.
///
/// # Errors
/// - `EWOULDBLOCK`: the socket is full, or the page cache does not have all of these bytes.
/// - `ENOSYS`: before Linux 6.5. Otherwise as `sendfile(2)`.
pub fn careful_send(
    socket: impl AsFd,
    file: impl AsFd,
    offset: &mut u64,
    len: usize,
) -> io::Result<usize> {
    let (socket, file) = (socket.as_fd().as_raw_fd(), file.as_fd().as_raw_fd());
    let range = Range { offset: *offset, len: len as u64 };
    let mut found = [0_u64; 5];
    // SAFETY: the kernel reads the range and fills the five numbers, both of which outlive the call.
    succeeded(unsafe { libc::syscall(CACHESTAT, file, &raw const range, &raw mut found, 0) })?;
    if found[0] < len as u64 / PAGE_BYTES {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let mask = change_mask(libc::SIG_BLOCK, &sigpipe());
    let mut at = *offset as off_t;
    // SAFETY: the call touches the offset, which is this function's.
    let result = succeeded(unsafe { libc::sendfile(socket, file, &raw mut at, len) } as c_long);
    if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time are this function's, and nothing is told of the signal.
        unsafe { libc::sigtimedwait(&sigpipe(), ptr::null_mut(), &no_wait) };
    }
    change_mask(libc::SIG_SETMASK, &mask);
    *offset = at as u64;
    result
}

fn succeeded(result: c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn sigpipe() -> sigset_t {
    // SAFETY: zeros are a set, which the calls fill.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGPIPE);
        set
    }
}

fn change_mask(how: i32, set: &sigset_t) -> sigset_t {
    // SAFETY: the sets are initialized and this function's or borrowed; the mask is the thread's own.
    unsafe {
        let mut old = std::mem::zeroed();
        libc::pthread_sigmask(how, set, &raw mut old);
        old
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_is_cached_is_sent_and_no_signal_comes() {
        let path = std::env::temp_dir().join(format!("sakia-careful-{}", std::process::id()));
        std::fs::write(&path, vec![7; 10_000]).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut offset = 5;
        match careful_send(&near, &file, &mut offset, 100) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                return crate::place::announce_skip("careful sends", "no cachestat(2)");
            }
            result => assert_eq!((result.unwrap(), offset), (100, 105)),
        }
        let mut bytes = [0; 100];
        far.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [7; 100]);
        let error = careful_send(&near, &file, &mut offset, 1 << 20).unwrap_err();
        assert_eq!((error.kind(), offset), (io::ErrorKind::WouldBlock, 105));
        drop(far);
        let error = careful_send(&near, &file, &mut offset, 10).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
