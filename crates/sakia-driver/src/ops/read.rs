//! Reading into one buffer.

use std::rc::Rc;

use sakia_ring::Sqe;

use crate::arena::FixedBuf;
use crate::backend::{Backend, Descriptors};
use crate::buf::{BufResult, IoBufMut, initialize};
use crate::bypass::{Attempt, CallMode, Mount, Route, Rules, Transfer};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation, Retry};
use crate::ops::{filled, transfer_len};

/// See [`Handle::read`].
#[derive(Debug)]
pub struct Read<T> {
    fd: Fd,
    buf: T,
    offset: u64,
    /// `RWF_*`.
    flags: u32,
    /// What is asked for in bytes.
    len: u32,
}

impl<T: IoBufMut> Read<T> {
    #[inline(always)]
    fn new(fd: &Fd, buf: T, offset: u64, flags: u32) -> Self {
        let len = transfer_len(buf.bytes_room());
        Self { fd: fd.clone(), buf, offset, flags, len }
    }
}

impl<B: Backend> Handle<B> {
    /// Reads up to `buf.len()` bytes (an empty `Vec`: up to its capacity) from `fd`, starting at byte
    /// `offset`; at the file's own position, which moves, when `offset` is
    /// [`CURRENT_POSITION`](crate::CURRENT_POSITION), and whatever it is when `fd` has no positions.
    ///
    /// The kernel owns `buf` until the operation is done. Dropping the handle keeps it alive until then.
    ///
    /// Resolves to the number of bytes read and the buffer; 0 means end of file. A `Vec` that was empty has
    /// as many bytes as were read: clear it before the next read, see [`IoBufMut`].
    ///
    /// # Errors
    /// - `EINVAL`: a buffer without room; direct I/O with an offset, length or address off the block size.
    /// - `EISDIR`: `fd` is a directory.
    /// - `ECANCELED`: canceled before it began. Otherwise as `pread(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_read(3)`.
    #[doc(alias = "pread")]
    #[inline(always)]
    pub fn read<T: IoBufMut>(&self, fd: &Fd, buf: T, offset: u64) -> Op<Read<T>, B> {
        self.check(fd);
        self.start(Read::new(fd, buf, offset, 0))
    }

    /// As [`read`](Handle::read), with the kernel's flags `RWF_DSYNC`, `RWF_SYNC`, `RWF_NOWAIT` and
    /// `RWF_APPEND`.
    ///
    /// # Errors
    /// - `EAGAIN`: with `RWF_NOWAIT` it would have waited.
    /// - `EOPNOTSUPP`: another flag, or one that the file system does not have. Where it cannot do
    ///   `RWF_NOWAIT` for such reads, a ring may say `EAGAIN` instead, every time. Otherwise as
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
        self.start_transfer(Read::new(fd, buf, offset, flags), flags)
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
        let read = Read::new(fd, buf, offset, 0);
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
        Sqe::read(self.fd.raw(), self.buf.stable_mut_ptr(), self.len, self.offset)
            .op_flags(self.flags)
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        self.len > 0
    }

    fn initialize(&mut self) {
        initialize(&mut self.buf);
    }

    #[inline(always)]
    fn complete(self, completion: Completion) -> Self::Output {
        filled(completion, self.buf, self.len)
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }

    fn is_local(&self, _: &dyn Descriptors) -> bool {
        self.fd.is_local()
    }

    #[inline(always)]
    fn route(&self, rules: &Rules) -> Route {
        self.fd.route(Transfer::Read, rules.of(OpKind::Read), self.len)
    }

    #[inline(always)]
    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.fd.classify(Transfer::Read, mode, attempt, self.len)
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
        let (pointer, index) = (read.buf.stable_mut_ptr(), read.buf.registered_index());
        Sqe::read_fixed(read.fd.raw(), pointer, read.len, read.offset, index)
    }

    fn has_room(&self) -> bool {
        self.read.has_room()
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

    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.read.classify(mode, attempt)
    }

    fn mount(&self) -> Option<&Rc<Mount>> {
        self.read.mount()
    }
}
