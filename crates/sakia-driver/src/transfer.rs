//! Plain reads into buffers, for callers on any thread that have a descriptor and no driver, such as those of
//! an engine.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use sakia_ring::{CURRENT_POSITION, IoVec};

use crate::buf::IoBufMut;
use crate::calls::nowait;
use crate::decide::CallMode;
use crate::operation::Completion;
use crate::ops::vectored::BUFFERS_MAX;
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
    let part = IoVec { base: buf.stable_mut_ptr(), len: len as usize };
    // SAFETY: the part lies within the buffer's room, which may be written to and stays where it is until the
    // call has returned.
    let came = unsafe { transfer(fd, &[part], len, offset, mode)? };
    note_filled(came, buf, len)
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
    // SAFETY: each part is a buffer's room, which may be written to and stays where it is until the call has
    // returned.
    let came = unsafe { transfer(fd, &parts, len, offset, mode)? };
    note_all_filled(came, bufs, len)
}

/// Reads into parts, which have `len` bytes in all.
///
/// # Safety
///
/// - The kernel may fill the memory of all parts.
#[inline]
unsafe fn transfer(
    fd: BorrowedFd<'_>,
    parts: &[IoVec],
    len: u32,
    offset: Option<u64>,
    mode: CallMode,
) -> io::Result<Completion> {
    let at = offset.unwrap_or(CURRENT_POSITION);
    if len == 0 || offset == Some(CURRENT_POSITION) {
        return Err(Errno::INVAL.into());
    }
    let flags = nowait::flags(mode, 0);
    let (raw, vector, count) = (fd.as_raw_fd(), parts.as_ptr(), parts.len());
    // SAFETY: the caller says that the memory may be filled.
    let count = unsafe { sys::transfer(Direction::Read, raw, vector, count, at, flags)? };
    Ok(Completion { res: i32::try_from(count).unwrap_or(i32::MAX), ..Completion::default() })
}
