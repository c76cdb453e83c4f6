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
        self.describe(raw).0
    }

    fn describe(&self, raw: i32) -> (FileKind, Option<u64>) {
        // SAFETY: the driver keeps the descriptor open as long as an `Fd` asks about it.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        // Not to know is to expect the worst.
        let Ok(stat) = rustix::fs::fstat(fd) else { return (FileKind::Waiting, None) };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => (FileKind::Bounded, stat.st_size.try_into().ok()),
            FileType::Directory | FileType::BlockDevice => (FileKind::Bounded, None),
            _ => (FileKind::Waiting, None),
        }
    }
}
