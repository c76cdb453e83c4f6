//! Reading into one buffer, and writing from one.

use rustix::io::Errno;
use sakia_ring::Sqe;

use crate::arena::{FixedBuf, RegisteredBuf};
use crate::buf::{BufResult, IoBuf, IoBufMut, initialize};
use crate::call::{self, Call};
use crate::counters::OpKind;
use crate::decide::{Attempt, CallMode, Retry, Route, Rules};
use crate::fd::{Fd, Transferred};
use crate::handle::{Begun, Handle, Op};
use crate::operation::{Completion, Operation};
use crate::ops::{filled, transfer_len};
use crate::sys::Direction;

/// See [`Handle::read`]. With `FIXED`, `buf` lies in registered memory, and its bytes within the registered
/// buffer.
#[derive(Debug)]
pub struct Read<T, const FIXED: bool = false> {
    fd: Fd,
    buf: T,
    offset: u64,
    /// `RWF_*`.
    flags: u32,
    /// The requested length in bytes.
    len: u32,
}

/// See [`Handle::read_fixed`].
pub type ReadFixed<T = FixedBuf> = Read<T, true>;

/// See [`Handle::write`]. `FIXED` as for [`Read`].
#[derive(Debug)]
pub struct Write<T, const FIXED: bool = false> {
    fd: Fd,
    buf: T,
    offset: u64,
    /// `RWF_*`.
    flags: u32,
}

/// See [`Handle::write_fixed`].
pub type WriteFixed<T = FixedBuf> = Write<T, true>;

impl<T: IoBufMut, const FIXED: bool> Read<T, FIXED> {
    #[inline(always)]
    fn new(fd: Fd, buf: T, offset: u64, flags: u32) -> Self {
        let len = transfer_len(buf.bytes_room());
        Self { fd, buf, offset, flags, len }
    }
}

impl<T: IoBufMut, const FIXED: bool> Read<T, FIXED> {
    #[cold]
    #[inline(never)]
    fn route_refusable(&self, rules: &Rules) -> Route {
        let &Self { offset, flags, len: bytes, .. } = self;
        let transfer = Transferred { direction: Direction::Read, offset, flags, bytes };
        self.fd.route_refusable(rules.of(OpKind::Read), transfer)
    }
}

impl<T: IoBuf, const FIXED: bool> Write<T, FIXED> {
    #[cold]
    #[inline(never)]
    fn route_refusable(&self, rules: &Rules) -> Route {
        let (&Self { offset, flags, .. }, bytes) = (self, transfer_len(self.buf.bytes_len()));
        let transfer = Transferred { direction: Direction::Write, offset, flags, bytes };
        self.fd.route_refusable(rules.of(OpKind::Write), transfer)
    }
}

impl Handle {
    /// Reads up to `buf.len()` bytes (an empty `Vec`: up to its capacity) from `fd`, starting at byte
    /// `offset`; at the file's own position, which moves, if `offset` is
    /// [`CURRENT_POSITION`](crate::CURRENT_POSITION), the only offset of a pipe, a socket or a terminal.
    ///
    /// A read waits whatever the mode (`O_NONBLOCK`) of the descriptor.
    ///
    /// The kernel owns `buf` until the operation is done. Dropping the handle keeps it alive until then.
    ///
    /// Resolves to the number of bytes read and the buffer; 0 means end of file. An initially empty `Vec`
    /// gets the length of the bytes read: clear it before the next read, see [`IoBufMut`].
    ///
    /// # Errors
    /// - `EINVAL`: a buffer without room; direct I/O with an offset, length or address off the block size.
    /// - `EISDIR`: `fd` is a directory. `EBADF`: not open to read.
    /// - `ESPIPE`: an offset, although `fd` has no positions.
    /// - `EINVAL`: `fd` cannot be read, such as an epoll set or a pidfd.
    /// - `ECANCELED`: canceled before it began. Otherwise as `pread(2)`, or `read(2)` at the position.
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
    /// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// let (result, buf) = run(&driver, driver.read(&file, vec![0; 7], 1))?;
    /// assert_eq!(&buf[..result?], b"package");
    /// // An empty `Vec` gets as many bytes as were read, up to its capacity.
    /// let (result, buf) = run(&driver, driver.read(&file, Vec::with_capacity(4), 1))?;
    /// assert_eq!((result?, &buf[..]), (4, &b"pack"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_read(3)`.
    #[doc(alias = "pread")]
    #[inline(always)]
    pub fn read<T: IoBufMut>(&self, fd: &Fd, buf: T, offset: u64) -> Op<Read<T>> {
        self.start(Read::new(self.held(fd), buf, offset, 0))
    }

    /// Reads as [`read`](Handle::read), for callers that await the result at once: if a plain call has it, as
    /// for bytes in the page cache, no operation is left to be awaited.
    ///
    /// # Errors
    /// Those of [`read`](Handle::read), in the result.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Auto, Begun, Bypass, Driver, Rules};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// driver.set_bypass(Bypass::Rules(Rules::default()));
    /// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// match driver.begin_read(&file, vec![0; 7], 1) {
    ///     Begun::Done((result, buf)) => assert_eq!(&buf[..result?], b"package"),
    ///     Begun::Op(_read) => println!("to be awaited: the page cache does not have it"),
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Kernel
    /// As [`read`](Handle::read).
    #[inline(always)]
    pub fn begin_read<T: IoBufMut>(&self, fd: &Fd, buf: T, offset: u64) -> Begun<Read<T>> {
        self.begin(Read::new(self.held(fd), buf, offset, 0))
    }

    /// Reads as [`read`](Handle::read), with the kernel's flags `RWF_DSYNC`, `RWF_SYNC`, `RWF_NOWAIT` and
    /// `RWF_APPEND`.
    ///
    /// # Errors
    /// - `EAGAIN`: with `RWF_NOWAIT` it would have blocked.
    /// - `EOPNOTSUPP`: another flag, or one that the file or its file system does not support. If that does
    ///   not support `RWF_NOWAIT` for such reads, a ring may return `EAGAIN` instead, every time. Otherwise
    ///   as [`read`](Handle::read).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_read(3)`, `preadv2(2)`.
    #[doc(alias = "preadv2")]
    pub fn read_with<T: IoBufMut>(&self, fd: &Fd, buf: T, offset: u64, flags: u32) -> Op<Read<T>> {
        self.start_transfer(Read::new(self.held(fd), buf, offset, flags), flags)
    }

    /// Reads as [`read`](Handle::read), into a block of the registered arena or a part of one, which saves
    /// the kernel from looking up and pinning its pages each time. That matters for `O_DIRECT`; for cached
    /// data it makes no difference.
    ///
    /// # Errors
    /// `EFAULT`: a block of another driver's arena. Otherwise as [`read`](Handle::read).
    ///
    /// # Examples
    /// See [`Handle::register_arena`].
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_read_fixed(3)`.
    pub fn read_fixed<T: RegisteredBuf>(&self, fd: &Fd, buf: T, offset: u64) -> Op<ReadFixed<T>> {
        let is_registered = self.has_registered(buf.block());
        let read = Read::new(self.held(fd), buf, offset, 0);
        if is_registered { self.start(read) } else { self.refuse(read, Errno::FAULT) }
    }

    /// Writes up to `buf.bytes_len()` bytes to `fd`, starting at byte `offset`; at the file's own position,
    /// which moves, if `offset` is [`CURRENT_POSITION`](crate::CURRENT_POSITION), the only offset of a pipe, a
    /// socket or a terminal. A file opened to append ignores the offset.
    ///
    /// The kernel reads `buf` until the operation is done. Dropping the handle keeps it alive until then.
    ///
    /// Resolves to the number of bytes written, `0..=buf.bytes_len()`, and the buffer. It may be fewer than
    /// requested; the rest was not written.
    ///
    /// # Errors
    /// - `EINVAL`: direct I/O with an offset, length or address off the block size.
    /// - `ENOSPC`, `EDQUOT`, `EFBIG`: no room.
    /// - `EPIPE`: the pipe or socket has no reader any more. The kernel also sends `SIGPIPE`, as for
    ///   `write(2)`; Rust programs ignore it unless they change that.
    /// - `EBADF`: not open to write. `ESPIPE`: an offset, although `fd` has no positions.
    /// - `ECANCELED`: canceled before it began. Otherwise as `pwrite(2)`, or `write(2)` at the position.
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
    /// # let path = std::env::temp_dir().join(format!("sakia-driver-write-{}", std::process::id()));
    /// let file = driver.adopt(std::fs::File::create(&path)?.into());
    /// let (result, text) = run(&driver, driver.write(&file, "some text", 0))?;
    /// assert_eq!((result?, text), (9, "some text"));
    /// run(&driver, driver.fsync(&file, true))??;
    /// assert_eq!(std::fs::read(&path)?, b"some text");
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_write(3)`.
    #[doc(alias = "pwrite")]
    #[inline(always)]
    pub fn write<T: IoBuf>(&self, fd: &Fd, buf: T, offset: u64) -> Op<Write<T>> {
        self.start(Write { fd: self.held(fd), buf, offset, flags: 0 })
    }

    /// Writes as [`write`](Handle::write), for callers that await the result at once; see
    /// [`begin_read`](Handle::begin_read).
    ///
    /// # Errors
    /// Those of [`write`](Handle::write), in the result.
    ///
    /// # Kernel
    /// As [`write`](Handle::write).
    #[inline(always)]
    pub fn begin_write<T: IoBuf>(&self, fd: &Fd, buf: T, offset: u64) -> Begun<Write<T>> {
        self.begin(Write { fd: self.held(fd), buf, offset, flags: 0 })
    }

    /// Writes as [`write`](Handle::write), with the kernel's flags `RWF_DSYNC`, `RWF_SYNC`, `RWF_NOWAIT` and
    /// `RWF_APPEND`. With `RWF_DSYNC` the bytes are durable when it is done, as after `fdatasync(2)`.
    ///
    /// # Errors
    /// - `EIO`: with `RWF_DSYNC`, also if the bytes could not be made durable.
    /// - `EAGAIN`: with `RWF_NOWAIT` it would have blocked.
    /// - `EOPNOTSUPP`: another flag, or one that the file or its file system does not support. If that does
    ///   not support `RWF_NOWAIT` for such writes (ext4: those to the page cache), a ring may return `EAGAIN`
    ///   instead, every time: repeat the write without the flag. Otherwise as [`write`](Handle::write).
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
    /// # let path = std::env::temp_dir().join(format!("sakia-driver-write-with-{}", std::process::id()));
    /// let file = driver.adopt(std::fs::File::create(&path)?.into());
    /// // Durable when it is done.
    /// let write = driver.write_with(&file, "some text", 0, libc::RWF_DSYNC as u32);
    /// assert_eq!(run(&driver, write)?.0?, 9);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_write(3)`, `pwritev2(2)`.
    #[doc(alias = "pwritev2")]
    pub fn write_with<T: IoBuf>(&self, fd: &Fd, buf: T, offset: u64, flags: u32) -> Op<Write<T>> {
        self.start_transfer(Write { fd: self.held(fd), buf, offset, flags }, flags)
    }

    /// Writes as [`write`](Handle::write), from a block of the registered arena or a part of one.
    ///
    /// # Errors
    /// `EFAULT`: a block of another driver's arena. Otherwise as [`write`](Handle::write).
    ///
    /// # Examples
    /// See [`Handle::register_arena`].
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_write_fixed(3)`.
    pub fn write_fixed<T: RegisteredBuf>(&self, fd: &Fd, buf: T, offset: u64) -> Op<WriteFixed<T>> {
        let is_registered = self.has_registered(buf.block());
        let write = Write { fd: self.held(fd), buf, offset, flags: 0 };
        if is_registered { self.start(write) } else { self.refuse(write, Errno::FAULT) }
    }
}

// SAFETY: the entry names the buffer's bytes, which the value owns and which do not move (the promise of
// `IoBufMut`), and the descriptor, which the value keeps open. Only `read_fixed` makes a `FIXED` one: its
// bytes lie within the registered buffer, which the block keeps alive.
unsafe impl<T: IoBufMut, const FIXED: bool> Operation for Read<T, FIXED> {
    type Output = BufResult<usize, T>;
    const KIND: OpKind = OpKind::Read;

    #[inline(always)]
    fn entry(&mut self) -> Option<Sqe> {
        let (raw, to) = (self.fd.raw(), self.buf.stable_mut_ptr());
        let (len, offset) = (self.len, self.offset);
        let entry = if FIXED {
            Sqe::read_fixed(raw, to, len, offset, FixedBuf::REGISTERED_INDEX)
        } else {
            Sqe::read(raw, to, len, offset)
        };
        Some(entry.op_flags(self.flags))
    }

    #[inline(always)]
    fn call(&mut self) -> Call {
        let to = self.buf.stable_mut_ptr();
        call::Transfer::read(self.fd.raw(), to, self.len, self.offset, self.flags)
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

    #[inline(always)]
    fn route(&self, rules: &Rules) -> Route {
        if self.fd.may_refuse() {
            return self.route_refusable(rules);
        }
        self.fd.route_file(rules.of(OpKind::Read), Direction::Read, self.len)
    }

    #[inline(always)]
    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.fd.classify(Direction::Read, mode, attempt, self.len)
    }

    of_descriptor!(fd);
}

// SAFETY: as for `Read`; the kernel only reads the bytes. Only `write_fixed` makes a `FIXED` one.
unsafe impl<T: IoBuf, const FIXED: bool> Operation for Write<T, FIXED> {
    type Output = BufResult<usize, T>;
    const KIND: OpKind = OpKind::Write;

    #[inline(always)]
    fn entry(&mut self) -> Option<Sqe> {
        let (raw, from, len) =
            (self.fd.raw(), self.buf.stable_ptr(), transfer_len(self.buf.bytes_len()));
        let entry = if FIXED {
            Sqe::write_fixed(raw, from, len, self.offset, FixedBuf::REGISTERED_INDEX)
        } else {
            Sqe::write(raw, from, len, self.offset)
        };
        Some(entry.op_flags(self.flags))
    }

    #[inline(always)]
    fn call(&mut self) -> Call {
        let (from, len) = (self.buf.stable_ptr(), transfer_len(self.buf.bytes_len()));
        call::Transfer::write(self.fd.raw(), from, len, self.offset, self.flags)
    }

    #[inline(always)]
    fn complete(self, completion: Completion) -> Self::Output {
        (completion.count(self.buf.bytes_len()), self.buf)
    }

    #[inline(always)]
    fn route(&self, rules: &Rules) -> Route {
        if self.fd.may_refuse() {
            return self.route_refusable(rules);
        }
        let bytes = transfer_len(self.buf.bytes_len());
        self.fd.route_write(rules.of(OpKind::Write), bytes, self.flags)
    }

    #[inline(always)]
    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.fd.classify(Direction::Write, mode, attempt, transfer_len(self.buf.bytes_len()))
    }

    of_descriptor!(fd);
}
