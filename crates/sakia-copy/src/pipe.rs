//! A pipe by which pages get from one file to another: what is in the page cache is copied once, by the
//! kernel.
//!
//! `sendfile(2)` does the same with a pipe of its own, which has room for 64 KiB; a mebibyte at a time takes
//! less of the processor.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::pipe::PipeFlags;
use sakia::{Budget, Permit, Resource};

use crate::{kernel, sys};

/// Bytes that an unprivileged process may have in a pipe, unless the administrator says otherwise.
const ROOM: usize = 1 << 20;
/// Its ends.
const DESCRIPTORS: u64 = 2;

/// A pipe, empty unless a transfer failed.
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    room: usize,
    _permit: Permit,
}

impl Pipe {
    /// `None` if there are no descriptors for it.
    pub(crate) fn new(budget: &Budget) -> Option<Self> {
        let permit = budget.try_acquire(Resource::Descriptors, DESCRIPTORS)?;
        let (read, write) = kernel::pipe_with(PipeFlags::CLOEXEC).ok()?;
        let room = kernel::fcntl_setpipe_size(&write, ROOM);
        let room = room.or_else(|_| kernel::fcntl_getpipe_size(&write)).ok()?;
        Some(Self { read, write, room, _permit: permit })
    }

    /// Moves at most `len` bytes, as many as there is room for, from `offset` of one file to the same
    /// `offset` of the other. Returns how many, 0 at the end of the first file, and the pipe unless something
    /// is left in it.
    pub(crate) fn transfer(
        self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> (io::Result<usize>, Option<Self>) {
        let len = len.min(self.room);
        let mut begin = offset;
        let filled = sys::retry(|| kernel::splice(from, Some(&mut begin), &self.write, None, len));
        let count = match filled {
            Ok(count) => count,
            Err(error) => return (Err(error), Some(self)),
        };
        let mut end = offset;
        let mut left = count;
        while left > 0 {
            match sys::retry(|| kernel::splice(&self.read, None, to, Some(&mut end), left)) {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), None),
                Ok(moved) => left -= moved,
                // What was moved counts; the error comes again.
                Err(_) if left < count => return (Ok(count - left), None),
                Err(error) => return (Err(error), None),
            }
        }
        (Ok(count), Some(self))
    }
}
