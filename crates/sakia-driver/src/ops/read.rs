//! Reading into one buffer.

use std::rc::Rc;

use sakia_ring::Sqe;

use crate::arena::FixedBuf;
use crate::backend::{Backend, Descriptors};
use crate::buf::{BufResult, IoBuf, IoBufMut};
use crate::bypass::{Attempt, Mount, Now, Route, Rules, Transfer};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation, Verdict};
use crate::ops::transfer_len;

/// See [`Handle::read`].
#[derive(Debug)]
pub struct Read<T> {
    fd: Fd,
    buf: T,
    offset: u64,
    /// `RWF_*`.
    flags: u32,
}

impl<B: Backend> Handle<B> {
    /// Reads up to `buf.bytes_len()` bytes from `fd`, starting at byte `offset`; at the file's own
    /// position, which moves, when `offset` is [`CURRENT_POSITION`](crate::CURRENT_POSITION), and
    /// whatever it is when `fd` has no positions.
    ///
    /// The kernel owns `buf` until the operation is done. Dropping the handle keeps it alive until then.
    ///
    /// Resolves to the number of bytes read, `0..=buf.bytes_len()`, and the buffer; 0 means end of file.
    ///
    /// # Errors
    /// - `EINVAL`: direct I/O with an offset, length or address off the block size.
    /// - `EISDIR`: `fd` is a directory.
    /// - `ECANCELED`: canceled before it began. Otherwise as `pread(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_read(3)`.
    #[doc(alias = "pread")]
    #[inline(always)]
    pub fn read<T: IoBufMut>(&self, fd: &Fd, buf: T, offset: u64) -> Op<Read<T>, B> {
        self.check(fd);
        self.start(Read { fd: fd.clone(), buf, offset, flags: 0 })
    }

    /// As [`read`](Handle::read), with the kernel's flags `RWF_DSYNC`, `RWF_SYNC`, `RWF_NOWAIT` and
    /// `RWF_APPEND`.
    ///
    /// # Errors
    /// - `EAGAIN`: with `RWF_NOWAIT` it would have waited.
    /// - `EOPNOTSUPP`: another flag, or one that the file system does not have. Otherwise as
    ///   [`read`](Handle::read).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_read(3)`, `preadv2(2)`.
    #[doc(alias = "preadv2")]
    pub fn read_with<T: IoBufMut>(
        &self,
        fd: &Fd,
        buf: T,
        offset: u64,
        flags: u32,
    ) -> Op<Read<T>, B> {
        self.check(fd);
        self.start_transfer(Read { fd: fd.clone(), buf, offset, flags }, flags)
    }

    /// As [`read`](Handle::read), into a block of the registered arena, which saves the kernel from
    /// looking up and pinning its pages each time. What counts is `O_DIRECT`: what the page cache holds is
    /// read as into any other memory.
    ///
    /// # Errors
    /// `EFAULT`: a block of another driver's arena. Otherwise as [`read`](Handle::read).
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_read_fixed(3)`.
    pub fn read_fixed(&self, fd: &Fd, buf: FixedBuf, offset: u64) -> Op<ReadFixed, B> {
        self.check(fd);
        let is_registered = self.has_registered(&buf);
        let read = Read { fd: fd.clone(), buf, offset, flags: 0 };
        self.start(ReadFixed { read, is_registered })
    }
}

// SAFETY: the entry names the buffer's bytes, which the value owns and which stay put (the promise of
// `IoBufMut`), and the descriptor, which the value keeps open.
unsafe impl<T: IoBufMut> Operation for Read<T> {
    type Output = BufResult<usize, T>;

    #[inline(always)]
    fn class(&self) -> Class {
        self.fd.kind().into()
    }

    #[inline(always)]
    fn entry(&mut self) -> Sqe {
        let len = transfer_len(self.buf.bytes_len());
        let offset = if mutant!("read_ignores_offset") { 0 } else { self.offset };
        Sqe::read(self.fd.raw(), self.buf.stable_mut_ptr(), len, offset).op_flags(self.flags)
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
        self.fd.route(Transfer::Read, rules.of(OpKind::Read), bytes)
    }

    #[inline(always)]
    fn judge(&self, now: Now, attempt: Attempt) -> Verdict {
        self.fd.judge(Transfer::Read, now, attempt, transfer_len(self.buf.bytes_len()))
    }

    #[inline(always)]
    fn mount(&self) -> Option<&Rc<Mount>> {
        self.fd.mount()
    }
}

/// See [`Handle::read_fixed`].
#[derive(Debug)]
pub struct ReadFixed {
    read: Read<FixedBuf>,
    /// The block is one of this driver's. Another is left to the queue to refuse.
    is_registered: bool,
}

// SAFETY: as for `Read`; the bytes lie within the registered buffer, which the block keeps alive.
unsafe impl Operation for ReadFixed {
    type Output = BufResult<usize, FixedBuf>;

    fn class(&self) -> Class {
        self.read.class()
    }

    fn entry(&mut self) -> Sqe {
        let read = &mut self.read;
        let len = transfer_len(read.buf.bytes_len());
        let (pointer, index) = (read.buf.stable_mut_ptr(), read.buf.registered_index());
        Sqe::read_fixed(read.fd.raw(), pointer, len, read.offset, index)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        self.read.complete(completion)
    }

    fn descriptor(&self) -> Option<&Fd> {
        self.read.descriptor()
    }

    fn is_local(&self, _: &dyn Descriptors) -> bool {
        self.read.fd.is_local()
    }

    fn route(&self, rules: &Rules) -> Route {
        if self.is_registered { self.read.route(rules) } else { Route::Queue }
    }

    fn judge(&self, now: Now, attempt: Attempt) -> Verdict {
        self.read.judge(now, attempt)
    }

    fn mount(&self) -> Option<&Rc<Mount>> {
        self.read.mount()
    }
}
