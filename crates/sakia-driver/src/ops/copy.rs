//! Copying from file to file within the kernel.

use std::io;
use std::rc::Rc;

use super::transfer_len;
use crate::call::Call;
use crate::counters::OpKind;
use crate::decide::{CallMode, Mount, Route, Rules};
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::operation::{Class, Completion, Operation};

/// See [`Handle::copy_file_range`].
#[derive(Debug)]
pub struct CopyFileRange {
    from: Fd,
    from_offset: u64,
    to: Fd,
    to_offset: u64,
    len: usize,
}

impl Handle {
    /// Copies up to `len` bytes of `from`, starting at byte `from_offset`, to `to`, starting at byte
    /// `to_offset`, within the kernel; file systems that support it share the blocks.
    /// [`CURRENT_POSITION`](crate::CURRENT_POSITION) stands for a file's own position, which moves.
    ///
    /// Resolves to the number of bytes copied, which may be fewer than requested; 0 means that `from` ends
    /// there. Some files of `/proc` and similar file systems return 0 although they can be read.
    ///
    /// # Errors
    /// - `EXDEV`: file systems between which the kernel does not copy.
    /// - `EINVAL`: not regular files, or ranges of one file that overlap. `EISDIR`: a directory.
    /// - `EBADF`: not open to read or to write, or the destination is open to append.
    /// - `ENOSPC`, `EDQUOT`, `EFBIG`: no room.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `copy_file_range(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
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
    /// # let path = std::env::temp_dir().join(format!("sakia-driver-copy-range-{}", std::process::id()));
    /// let from = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// let to = driver.adopt(std::fs::File::create(&path)?.into());
    /// let copied = run(&driver, driver.copy_file_range(&from, 0, &to, 0, 9))?;
    /// match copied {
    ///     Ok(count) => assert_eq!(&std::fs::read(&path)?[..], &b"[package]"[..count]),
    ///     Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EXDEV), "read and write then"),
    /// }
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Up to 64 KiB on a file system in memory are
    /// copied on the calling thread. Source: `copy_file_range(2)`.
    pub fn copy_file_range(
        &self,
        from: &Fd,
        from_offset: u64,
        to: &Fd,
        to_offset: u64,
        len: usize,
    ) -> Op<CopyFileRange> {
        let (from, to) = (self.held(from), self.held(to));
        let copy = CopyFileRange { from, from_offset, to, to_offset, len };
        self.start(copy)
    }
}

// SAFETY: the call names no memory, and two descriptors that the value keeps open.
unsafe impl Operation for CopyFileRange {
    type Output = io::Result<usize>;
    const KIND: OpKind = OpKind::Copy;

    fn class(&self) -> Class {
        Class::Bounded
    }

    fn call(&mut self) -> Call {
        let &mut Self { ref from, from_offset, ref to, to_offset, len } = self;
        let (from, to, len) = (from.raw(), to.raw(), transfer_len(len));
        Call::CopyFileRange { from, from_offset, to, to_offset, len }
    }

    fn complete(self, completion: Completion) -> Self::Output {
        completion.count(self.len)
    }

    fn descriptor(&self) -> Option<&Fd> {
        self.from.descriptor()
    }

    fn route(&self, rules: &Rules) -> Route {
        let rule = rules.of(OpKind::Copy);
        let is_in_memory = |fd: &Fd| fd.mount().is_some_and(|mount| mount.is_in_memory);
        let is_short = rule.tries_now && self.len <= rule.bytes_max as usize;
        if is_short && is_in_memory(&self.from) && is_in_memory(&self.to) {
            return Route::Now(CallMode::Blocking);
        }
        Route::Queue
    }

    fn mount(&self) -> Option<&Rc<Mount>> {
        self.to.mount()
    }
}
