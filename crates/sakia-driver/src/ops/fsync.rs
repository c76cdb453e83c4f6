//! Making a file durable, and writing back a part of it.

use sakia_ring::Sqe;

use crate::call::{Function, System};
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::sys::abi;

/// See [`Handle::fsync`].
#[derive(Debug)]
pub struct Fsync {
    fd: Fd,
    data_only: bool,
}

/// See [`Handle::syncfs`].
#[derive(Debug)]
pub struct Syncfs {
    fd: Fd,
}

/// What [`Handle::sync_file_range`] does about the pages of a range that are not written back yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRange(pub u32);

impl SyncRange {
    /// Waits for the device to have those that it was given before.
    #[doc(alias = "SYNC_FILE_RANGE_WAIT_BEFORE")]
    pub const WAIT_BEFORE: Self = Self(abi::SYNC_FILE_RANGE_WAIT_BEFORE);
    /// Gives it those that are left. That may wait, too: for its queue.
    #[doc(alias = "SYNC_FILE_RANGE_WRITE")]
    pub const WRITE: Self = Self(abi::SYNC_FILE_RANGE_WRITE);
    /// Waits for the device to have all of them.
    #[doc(alias = "SYNC_FILE_RANGE_WAIT_AFTER")]
    pub const WAIT_AFTER: Self = Self(abi::SYNC_FILE_RANGE_WAIT_AFTER);
}

of_bits!(SyncRange);

/// See [`Handle::sync_file_range`].
#[derive(Debug)]
pub struct SyncFileRange {
    fd: Fd,
    offset: u64,
    len: u64,
    how: SyncRange,
}

impl Handle {
    /// Makes durable what was written to `fd` by operations that were done before this one was
    /// started. With `data_only` only what is needed to read the data back, as `fdatasync(2)`.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EDQUOT`: earlier writes were lost. The kernel tells this once: trying again
    /// may succeed without the data being safe. Otherwise as `fsync(2)`.
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_fsync(3)`.
    #[doc(alias = "fdatasync")]
    pub fn fsync(&self, fd: &Fd, data_only: bool) -> Op<Fsync> {
        self.start(Fsync { fd: self.held(fd), data_only })
    }

    /// Makes durable all that was written to the file system that `fd` lies on.
    ///
    /// # Errors
    /// - `EIO`, `ENOSPC`, `EDQUOT`: earlier writes were lost; told once, and on kernels before 5.8 not at
    ///   all.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `syncfs(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `syncfs(2)`.
    pub fn syncfs(&self, fd: &Fd) -> Op<Syncfs> {
        self.start(Syncfs { fd: self.held(fd) })
    }

    /// Has `len` bytes of `fd` from byte `offset` on written back, all from there on when `len` is 0. On a
    /// thread: rings give it to one of the kernel's in any case.
    ///
    /// **Nothing is durable afterwards**: neither the size of the file, nor where its blocks are, nor what
    /// the device has in a cache of its own. It spreads writing over time, so that an
    /// [`fsync`](Handle::fsync) later has less to do.
    ///
    /// # Errors
    /// - `EINVAL`: no such flag, or a range that ends beyond what files can have.
    /// - `ESPIPE`: neither a file, a directory nor a block device.
    /// - `EIO`, `ENOSPC`: earlier writes were lost. Otherwise as `sync_file_range(2)`.
    ///
    /// # Kernel
    /// 2.6.17. Source: `sync_file_range(2)`.
    pub fn sync_file_range(
        &self,
        fd: &Fd,
        offset: u64,
        len: u64,
        how: SyncRange,
    ) -> Op<SyncFileRange> {
        self.start(SyncFileRange { fd: self.held(fd), offset, len, how })
    }
}

of_numbers! {
    |it: Fsync| Bounded, local; Fsync;
    entry Sqe::fsync(it.fd.raw(), it.data_only);
    call {
        let function = if it.data_only { Function::Fdatasync } else { Function::Fsync };
        System::on(function, it.fd.raw(), [])
    };
}

of_numbers! {
    |it: Syncfs| Bounded; Fsync;
    call System::on(Function::Syncfs, it.fd.raw(), []);
}

of_numbers! {
    |it: SyncFileRange| Bounded, local; Fsync;
    call {
        let args = [it.offset as usize, it.len as usize, it.how.0 as usize];
        System::on(Function::SyncFileRange, it.fd.raw(), args)
    };
}
