//! Making a file durable, and starting its write-back.

use sakia_ring::Sqe;

use crate::backend::FileKind;
use crate::call::{Function, System};
use crate::decide;
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::sys::abi;

/// See [`Handle::fsync`] and [`Handle::fsync_range`].
#[derive(Debug)]
pub struct Fsync {
    fd: Fd,
    data_only: bool,
    /// The range; all of the file if both are 0.
    offset: u64,
    len: u32,
}

/// See [`Handle::syncfs`].
#[derive(Debug)]
pub struct Syncfs {
    fd: Fd,
}

/// The steps of [`Handle::sync_file_range`] for dirty pages of a range.
///
/// # Examples
/// See [`Handle::sync_file_range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRange(pub u32);

impl SyncRange {
    /// Waits for writes that the device already has.
    #[doc(alias = "SYNC_FILE_RANGE_WAIT_BEFORE")]
    pub const WAIT_BEFORE: Self = Self(abi::SYNC_FILE_RANGE_WAIT_BEFORE);
    /// Starts the remaining writes. That may block, too, until the device's queue has room.
    #[doc(alias = "SYNC_FILE_RANGE_WRITE")]
    pub const WRITE: Self = Self(abi::SYNC_FILE_RANGE_WRITE);
    /// Waits for all writes.
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
    /// Makes the writes to `fd` durable that were done before this operation was started. With `data_only`
    /// only the data and the metadata needed to read it, as `fdatasync(2)`.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EDQUOT`: earlier writes were lost. The kernel reports this once: a repeated call
    /// may succeed without the data being safe. Otherwise as `fsync(2)`.
    ///
    /// # Examples
    /// See [`Handle::write`].
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_fsync(3)`.
    #[doc(alias = "fdatasync")]
    pub fn fsync(&self, fd: &Fd, data_only: bool) -> Op<Fsync> {
        self.start(Fsync { fd: self.held(fd), data_only, offset: 0, len: 0 })
    }

    /// Makes `len` bytes of `fd` from byte `offset` on durable, as far as they were written before this
    /// operation was started, with the metadata needed to read them: what a write with `RWF_DSYNC` does with
    /// its own bytes. Makes all of the file durable if both are 0, and on a backend of threads, since no
    /// system call has a range.
    ///
    /// # Errors
    /// As [`fsync`](Handle::fsync).
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_fsync(3)`.
    pub fn fsync_range(&self, fd: &Fd, offset: u64, len: u32) -> Op<Fsync> {
        self.start(Fsync { fd: self.held(fd), data_only: true, offset, len })
    }

    /// Returns whether a durable write of this file is best made in two steps: a plain write, and
    /// [`fsync_range`](Handle::fsync_range). Not for a file whose writes are durable by themselves (`O_DSYNC`).
    pub fn splits_durable_writes(&self, fd: &Fd) -> bool {
        let makes_calls = self.shared.core.borrow().makes_calls();
        decide::splits_durable_writes(makes_calls, fd.kind() == FileKind::Bounded)
    }

    /// Makes all writes to the file system of `fd` durable.
    ///
    /// # Errors
    /// - `EIO`, `ENOSPC`, `EDQUOT`: earlier writes were lost; reported once, and on kernels before 5.8 not
    ///   at all.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `syncfs(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `syncfs(2)`.
    pub fn syncfs(&self, fd: &Fd) -> Op<Syncfs> {
        self.start(Syncfs { fd: self.held(fd) })
    }

    /// Writes back `len` bytes of `fd` from byte `offset` on, to the end of the file if `len` is 0. It runs
    /// on a thread: a ring gives it to a kernel worker in any case.
    ///
    /// **It makes nothing durable**: neither the size of the file, nor the places of its blocks, nor the
    /// data in the device's cache. It spreads writing over time, so that a later [`fsync`](Handle::fsync)
    /// has less to do.
    ///
    /// # Errors
    /// - `EINVAL`: no such flag, or a range that ends beyond the largest file size.
    /// - `ESPIPE`: neither a file, a directory nor a block device.
    /// - `EIO`, `ENOSPC`: earlier writes were lost. Otherwise as `sync_file_range(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use sakia_driver::SyncRange;
    ///
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// # let path = std::env::temp_dir().join(format!("sakia-driver-sync-range-{}", std::process::id()));
    /// let file = driver.adopt(std::fs::File::create(&path)?.into());
    /// run(&driver, driver.write(&file, vec![1; 1 << 16], 0))?.0?;
    /// // The device begins early; nothing is durable before the sync.
    /// run(&driver, driver.sync_file_range(&file, 0, 0, SyncRange::WRITE))??;
    /// run(&driver, driver.fsync(&file, true))??;
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
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
    entry Sqe { off: it.offset, len: it.len, ..Sqe::fsync(it.fd.raw(), it.data_only) };
    // The range is for the simulated kernel: the system calls have none.
    call {
        let function = if it.data_only { Function::Fdatasync } else { Function::Fsync };
        System::on(function, it.fd.raw(), [it.offset as usize, it.len as usize])
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
