//! Writing from one buffer.

use std::rc::Rc;

use sakia_ring::Sqe;

use crate::arena::FixedBuf;
use crate::backend::{Backend, Descriptors};
use crate::buf::{BufResult, IoBuf};
use crate::bypass::{Attempt, CallMode, Mount, Route, Rules, Transfer};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation, Retry};
use crate::ops::transfer_len;

/// See [`Handle::write`].
#[derive(Debug)]
pub struct Write<T> {
    fd: Fd,
    buf: T,
    offset: u64,
    /// `RWF_*`.
    flags: u32,
}

impl<B: Backend> Handle<B> {
    /// Writes up to `buf.bytes_len()` bytes to `fd`, starting at byte `offset`; at the file's own
    /// position, which moves, when `offset` is [`CURRENT_POSITION`](crate::CURRENT_POSITION), and
    /// whatever it is when `fd` has no positions. A file opened to append ignores the offset.
    ///
    /// The kernel reads `buf` until the operation is done. Dropping the handle keeps it alive until then.
    ///
    /// Resolves to the number of bytes written, `0..=buf.bytes_len()`, and the buffer. It may be fewer
    /// than asked; the rest was not written.
    ///
    /// # Errors
    /// - `EINVAL`: direct I/O with an offset, length or address off the block size.
    /// - `ENOSPC`, `EDQUOT`, `EFBIG`: no room.
    /// - `EPIPE`: nobody reads the pipe or socket any more. The kernel also sends `SIGPIPE`, as for
    ///   `write(2)`; Rust programs ignore it unless they change that.
    /// - `ECANCELED`: canceled before it began. Otherwise as `pwrite(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_write(3)`.
    #[doc(alias = "pwrite")]
    #[inline(always)]
    pub fn write<T: IoBuf>(&self, fd: &Fd, buf: T, offset: u64) -> Op<Write<T>, B> {
        self.check(fd);
        self.start(Write { fd: fd.clone(), buf, offset, flags: 0 })
    }

    /// As [`write`](Handle::write), with the kernel's flags `RWF_DSYNC`, `RWF_SYNC`, `RWF_NOWAIT` and
    /// `RWF_APPEND`. With `RWF_DSYNC` the bytes are durable when it is done, as after `fdatasync(2)`.
    ///
    /// # Errors
    /// - `EIO`: with `RWF_DSYNC` also when they could not be made durable.
    /// - `EAGAIN`: with `RWF_NOWAIT` it would have waited.
    /// - `EOPNOTSUPP`: another flag, or one that the file system does not have. Where it cannot do
    ///   `RWF_NOWAIT` for such writes (ext4: those to the page cache), a ring may say `EAGAIN` instead, every
    ///   time: who tries again should do so without the flag. Otherwise as [`write`](Handle::write).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_write(3)`, `pwritev2(2)`.
    #[doc(alias = "pwritev2")]
    pub fn write_with<T: IoBuf>(
        &self,
        fd: &Fd,
        buf: T,
        offset: u64,
        flags: u32,
    ) -> Op<Write<T>, B> {
        self.check(fd);
        self.start_transfer(Write { fd: fd.clone(), buf, offset, flags }, flags)
    }

    /// As [`write`](Handle::write), from a block of the registered arena.
    ///
    /// # Errors
    /// `EFAULT`: a block of another driver's arena. Otherwise as [`write`](Handle::write).
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_write_fixed(3)`.
    pub fn write_fixed(&self, fd: &Fd, buf: FixedBuf, offset: u64) -> Op<WriteFixed, B> {
        self.check(fd);
        let is_registered = self.has_registered(&buf);
        let write = Write { fd: fd.clone(), buf, offset, flags: 0 };
        self.start(WriteFixed { write, is_registered })
    }
}

// SAFETY: the entry names the buffer's bytes, which the value owns and which stay put (the promise of
// `IoBuf`), and the descriptor, which the value keeps open.
unsafe impl<T: IoBuf> Operation for Write<T> {
    type Output = BufResult<usize, T>;

    #[inline(always)]
    fn class(&self) -> Class {
        self.fd.kind().into()
    }

    #[inline(always)]
    fn entry(&mut self) -> Sqe {
        let len = transfer_len(self.buf.bytes_len());
        Sqe::write(self.fd.raw(), self.buf.stable_ptr(), len, self.offset).op_flags(self.flags)
    }

    #[inline(always)]
    fn complete(self, completion: Completion) -> Self::Output {
        (completion.count(self.buf.bytes_len()), self.buf)
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }

    fn is_local(&self, _: &dyn Descriptors) -> bool {
        self.fd.is_local()
    }

    #[inline(always)]
    fn route(&self, rules: &Rules) -> Route {
        let bytes = transfer_len(self.buf.bytes_len());
        self.fd.route_write(rules.of(OpKind::Write), bytes, self.flags)
    }

    #[inline(always)]
    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.fd.classify(Transfer::Write, mode, attempt, transfer_len(self.buf.bytes_len()))
    }

    #[inline(always)]
    fn mount(&self) -> Option<&Rc<Mount>> {
        self.fd.mount()
    }
}

/// See [`Handle::write_fixed`].
#[derive(Debug)]
pub struct WriteFixed {
    write: Write<FixedBuf>,
    /// The block is one of this driver's. Another is left to the queue to refuse.
    is_registered: bool,
}

// SAFETY: as for `Write`; the bytes lie within the registered buffer, which the block keeps alive.
unsafe impl Operation for WriteFixed {
    type Output = BufResult<usize, FixedBuf>;

    fn class(&self) -> Class {
        self.write.class()
    }

    fn entry(&mut self) -> Sqe {
        let write = &mut self.write;
        let len = transfer_len(write.buf.bytes_len());
        let (pointer, index) = (write.buf.stable_ptr(), write.buf.registered_index());
        Sqe::write_fixed(write.fd.raw(), pointer, len, write.offset, index)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        self.write.complete(completion)
    }

    fn descriptor(&self) -> Option<&Fd> {
        self.write.descriptor()
    }

    fn is_local(&self, _: &dyn Descriptors) -> bool {
        self.write.fd.is_local()
    }

    fn route(&self, rules: &Rules) -> Route {
        if self.is_registered { self.write.route(rules) } else { Route::Queue }
    }

    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.write.classify(mode, attempt)
    }

    fn mount(&self) -> Option<&Rc<Mount>> {
        self.write.mount()
    }
}
