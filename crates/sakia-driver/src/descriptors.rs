//! The descriptors of this process, for every backend that acts on them.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;

use crate::backend::{Descriptors, FileKind};

/// The descriptors of this process.
pub(crate) struct KernelDescriptors;

impl Descriptors for KernelDescriptors {
    fn close(&self, raw: i32) -> io::Result<()> {
        // SAFETY: the driver owns the descriptor, gives it up here, and uses the number no more.
        unsafe { rustix::io::try_close(raw) }.map_err(io::Error::from)
    }

    fn kind(&self, raw: i32) -> FileKind {
        // SAFETY: the driver keeps the descriptor open as long as an `Fd` asks about it.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        match rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::RegularFile | FileType::Directory | FileType::BlockDevice) => {
                FileKind::Bounded
            }
            // Not to know is to expect the worst.
            _ => FileKind::Waiting,
        }
    }
}
