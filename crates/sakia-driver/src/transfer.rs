//! Plain reads into buffers, for callers on any thread that have a descriptor and no driver, such as those of
//! an engine.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use sakia_ring::{CURRENT_POSITION, IoVec};

use crate::buf::IoBufMut;
use crate::calls::nowait;
use crate::decide::CallMode;
use crate::decide::limits::BUFFERS_MAX;
use crate::operation::Completion;
use crate::ops::{note_all_filled, note_filled, room_of_all, transfer_len};
use crate::sys::{self, Direction};

/// Reads up to `most` bytes into the room of `buf`, from byte `offset` on or, with `None`, from the file's
/// position, which moves, by one call on this thread, which in [`NonBlocking`](CallMode::NonBlocking) mode
/// refuses to wait.
///
/// # Errors
/// - `EINVAL`: there is no room, or the offset is beyond any file's. Otherwise as `preadv2(2)`, `EINTR`
///   included.
///
/// # Kernel
/// Any; 4.14 if it refuses to wait. Source: `preadv2(2)`.
#[doc(alias = "preadv2")]
#[inline]
pub fn read_plainly<T: IoBufMut>(
    fd: BorrowedFd<'_>,
    buf: &mut T,
    most: usize,
    offset: Option<u64>,
    mode: CallMode,
) -> io::Result<usize> {
    let len = transfer_len(buf.bytes_room().min(most));
    let at = place(len, offset)?;
    let base = buf.stable_mut_ptr();
    let came = match mode {
        // Without a list of parts, which the kernel would have to read and check.
        CallMode::Blocking => {
            let addr = base.expose_provenance() as u64;
            // SAFETY: these bytes lie within the buffer's room, which may be written to and stays where it is
            // until the call has returned.
            unsafe { sys::transfer_one(Direction::Read, fd.as_raw_fd(), addr, len, at) }?
        }
        CallMode::NonBlocking => {
            let part = IoVec { base, len: len as usize };
            // SAFETY: as above.
            unsafe { transfer(fd, &[part], at, mode) }?
        }
    };
    note_filled(completion(came), buf, len)
}

/// Reads as [`read_plainly`] does, filling one buffer after the other. At most the first 1024 are used.
///
/// # Errors
/// As [`read_plainly`].
///
/// # Kernel
/// Any; 4.14 if it refuses to wait. Source: `preadv2(2)`.
#[doc(alias = "preadv2")]
pub fn read_vectored_plainly<T: IoBufMut>(
    fd: BorrowedFd<'_>,
    bufs: &mut [T],
    offset: Option<u64>,
    mode: CallMode,
) -> io::Result<usize> {
    let len = room_of_all(bufs);
    let part = |buf: &mut T| IoVec { base: buf.stable_mut_ptr(), len: buf.bytes_room() };
    let parts: Vec<_> = bufs.iter_mut().take(BUFFERS_MAX).map(part).collect();
    let at = place(len, offset)?;
    // SAFETY: each part is a buffer's room, which may be written to and stays where it is until the call has
    // returned.
    let came = unsafe { transfer(fd, &parts, at, mode) }?;
    note_all_filled(completion(came), bufs, len)
}

/// Returns the kernel's number of a place, for a transfer of `len` bytes.
#[inline]
fn place(len: u32, offset: Option<u64>) -> Result<u64, Errno> {
    if len == 0 || offset == Some(CURRENT_POSITION) {
        return Err(Errno::INVAL);
    }
    Ok(offset.unwrap_or(CURRENT_POSITION))
}

/// Reads into parts.
///
/// # Safety
///
/// - The kernel may fill the memory of all parts.
#[inline]
unsafe fn transfer(
    fd: BorrowedFd<'_>,
    parts: &[IoVec],
    at: u64,
    mode: CallMode,
) -> Result<usize, Errno> {
    let flags = nowait::flags(mode, 0);
    let (raw, vector, count) = (fd.as_raw_fd(), parts.as_ptr(), parts.len());
    // SAFETY: the caller says that the memory may be filled.
    unsafe { sys::transfer(Direction::Read, raw, vector, count, at, flags) }
}

/// Returns the completion of a read of `count` bytes.
#[inline]
fn completion(count: usize) -> Completion {
    Completion { res: i32::try_from(count).unwrap_or(i32::MAX), ..Completion::default() }
}
