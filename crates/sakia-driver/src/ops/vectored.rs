//! Reading into and writing from several buffers at once.

use sakia_ring::{IoVec, Sqe};

use crate::buf::{BufResult, IoBuf, IoBufMut, initialize};
use crate::call::{self, Call};
use crate::counters::OpKind;
use crate::decide::limits::BUFFERS_MAX;
use crate::decide::{Attempt, CallMode, Retry, Route, Rules};
use crate::fd::{Fd, Transferred};
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};
use crate::ops::{note_all_filled, room_of_all, transfer_len};
use crate::sys::Direction;

/// Several buffers, of which the first 1024 are used, with the vector that describes them.
#[derive(Debug)]
pub(super) struct Parts<T> {
    bufs: Vec<T>,
    /// Points to the buffers' bytes; filled when the entry is made.
    vector: Vec<IoVec>,
}

impl<T: IoBuf> Parts<T> {
    pub(super) fn new(bufs: Vec<T>) -> Self {
        let vector = Vec::with_capacity(bufs.len().min(BUFFERS_MAX));
        Self { bufs, vector }
    }

    /// Returns the number of bytes of all buffers.
    pub(super) fn bytes_len(&self) -> usize {
        let used = self.bufs.iter().take(BUFFERS_MAX);
        used.map(T::bytes_len).fold(0, usize::saturating_add)
    }

    /// Returns the vector, which describes the bytes of the buffers.
    pub(super) fn bytes(&mut self) -> &mut [IoVec] {
        self.describe(|buf| IoVec { base: buf.stable_ptr().cast_mut(), len: buf.bytes_len() })
    }

    fn describe(&mut self, part: impl Fn(&mut T) -> IoVec) -> &mut [IoVec] {
        self.vector.clear();
        self.vector.extend(self.bufs.iter_mut().take(BUFFERS_MAX).map(part));
        &mut self.vector
    }

    pub(super) fn into_inner(self) -> Vec<T> {
        self.bufs
    }
}

impl<T: IoBufMut> Parts<T> {
    /// Returns the room of all buffers.
    pub(super) fn room_len(&self) -> u32 {
        room_of_all(&self.bufs)
    }

    /// Returns the vector, which describes the room of the buffers.
    pub(super) fn room(&mut self) -> &mut [IoVec] {
        self.describe(|buf| IoVec { base: buf.stable_mut_ptr(), len: buf.bytes_room() })
    }

    pub(super) fn initialize(&mut self) {
        self.bufs.iter_mut().take(BUFFERS_MAX).for_each(initialize);
    }

    /// Returns the buffers, and the number of bytes that the kernel has filled of `room`.
    pub(super) fn filled(mut self, completion: Completion, room: u32) -> BufResult<usize, Vec<T>> {
        (note_all_filled(completion, &mut self.bufs, room), self.bufs)
    }
}

/// Several buffers, and their offset in a file.
#[derive(Debug)]
struct Vectored<T> {
    fd: Fd,
    parts: Parts<T>,
    offset: u64,
    /// `RWF_*`.
    flags: u32,
    /// The requested length in total.
    bytes: u32,
}

/// See [`Handle::read_vectored`].
#[derive(Debug)]
pub struct ReadVectored<T>(Vectored<T>);

/// See [`Handle::write_vectored`].
#[derive(Debug)]
pub struct WriteVectored<T>(Vectored<T>);

impl<T: IoBufMut> ReadVectored<T> {
    fn new(fd: Fd, bufs: Vec<T>, offset: u64, flags: u32) -> Self {
        let parts = Parts::new(bufs);
        let bytes = parts.room_len();
        Self(Vectored { fd, parts, offset, flags, bytes })
    }
}

impl<T: IoBuf> WriteVectored<T> {
    fn new(fd: Fd, bufs: Vec<T>, offset: u64, flags: u32) -> Self {
        let parts = Parts::new(bufs);
        let bytes = transfer_len(parts.bytes_len());
        Self(Vectored { fd, parts, offset, flags, bytes })
    }
}

impl Handle {
    /// Reads as [`read`](Handle::read), filling one buffer after the other, each empty `Vec` up to its
    /// capacity. At most the first 1024 are used.
    ///
    /// # Errors
    /// - `EINVAL`: none of these buffers has room. Otherwise as [`read`](Handle::read).
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
    /// let bufs = vec![vec![0; 1], vec![0; 7]];
    /// let (result, bufs) = run(&driver, driver.read_vectored(&file, bufs, 0))?;
    /// assert_eq!((result?, &bufs[0][..], &bufs[1][..]), (8, &b"["[..], &b"package"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_readv(3)`.
    #[doc(alias = "preadv")]
    pub fn read_vectored<T: IoBufMut>(
        &self,
        fd: &Fd,
        bufs: Vec<T>,
        offset: u64,
    ) -> Op<ReadVectored<T>> {
        self.start(ReadVectored::new(self.held(fd), bufs, offset, 0))
    }

    /// Reads as [`read_vectored`](Handle::read_vectored), with `RWF_*` flags; see
    /// [`read_with`](Handle::read_with).
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_readv2(3)`.
    #[doc(alias = "preadv2")]
    pub fn read_vectored_with<T: IoBufMut>(
        &self,
        fd: &Fd,
        bufs: Vec<T>,
        offset: u64,
        flags: u32,
    ) -> Op<ReadVectored<T>> {
        self.start_transfer(ReadVectored::new(self.held(fd), bufs, offset, flags), flags)
    }

    /// Writes as [`write`](Handle::write), taking one buffer after the other. At most the first 1024 are
    /// used.
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
    /// # let path = std::env::temp_dir().join(format!("sakia-driver-write-vectored-{}", std::process::id()));
    /// let file = driver.adopt(std::fs::File::create(&path)?.into());
    /// let parts = vec!["head, ", "and a body"];
    /// let (result, parts) = run(&driver, driver.write_vectored(&file, parts, 0))?;
    /// assert_eq!((result?, parts.concat().as_bytes()), (16, &std::fs::read(&path)?[..]));
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_writev(3)`.
    #[doc(alias = "pwritev")]
    pub fn write_vectored<T: IoBuf>(
        &self,
        fd: &Fd,
        bufs: Vec<T>,
        offset: u64,
    ) -> Op<WriteVectored<T>> {
        self.start(WriteVectored::new(self.held(fd), bufs, offset, 0))
    }

    /// Writes as [`write_vectored`](Handle::write_vectored), with `RWF_*` flags; see
    /// [`write_with`](Handle::write_with).
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_writev2(3)`.
    #[doc(alias = "pwritev2")]
    pub fn write_vectored_with<T: IoBuf>(
        &self,
        fd: &Fd,
        bufs: Vec<T>,
        offset: u64,
        flags: u32,
    ) -> Op<WriteVectored<T>> {
        self.start_transfer(WriteVectored::new(self.held(fd), bufs, offset, flags), flags)
    }
}

// SAFETY: the entry names the vector, which the value owns on the heap; through it the buffers' bytes, which
// the value owns and which do not move (the promise of `IoBufMut`); and a descriptor that the value keeps
// open.
unsafe impl<T: IoBufMut> Operation for ReadVectored<T> {
    type Output = BufResult<usize, Vec<T>>;
    const KIND: OpKind = OpKind::Read;

    fn entry(&mut self) -> Option<Sqe> {
        let Vectored { fd, parts, offset, flags, .. } = &mut self.0;
        let vector = parts.room();
        let (first, count) = (vector.as_ptr(), vector.len() as u32);
        Some(Sqe::readv(fd.raw(), first, count, *offset).op_flags(*flags))
    }

    fn call(&mut self) -> Call {
        let Vectored { fd, parts, offset, flags, .. } = &mut self.0;
        call::Transfer::vectored(Direction::Read, fd.raw(), parts.room(), *offset, *flags)
    }

    fn has_room(&self) -> bool {
        self.0.bytes > 0
    }

    fn initialize(&mut self) {
        self.0.parts.initialize();
    }

    fn complete(self, completion: Completion) -> Self::Output {
        self.0.parts.filled(completion, self.0.bytes)
    }

    fn route(&self, rules: &Rules) -> Route {
        let &Vectored { ref fd, offset, flags, bytes, .. } = &self.0;
        let request = Transferred { direction: Direction::Read, offset, flags, bytes };
        if fd.may_refuse() {
            return fd.route_refusable(rules.of(OpKind::Read), request);
        }
        fd.route_file(rules.of(OpKind::Read), Direction::Read, bytes)
    }

    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.0.fd.classify(Direction::Read, mode, attempt, self.0.bytes)
    }

    of_descriptor!(0.fd);
}

// SAFETY: as for `ReadVectored`; the kernel only reads the bytes.
unsafe impl<T: IoBuf> Operation for WriteVectored<T> {
    type Output = BufResult<usize, Vec<T>>;
    const KIND: OpKind = OpKind::Write;

    fn entry(&mut self) -> Option<Sqe> {
        let Vectored { fd, parts, offset, flags, .. } = &mut self.0;
        let vector = parts.bytes();
        let (first, count) = (vector.as_ptr(), vector.len() as u32);
        Some(Sqe::writev(fd.raw(), first, count, *offset).op_flags(*flags))
    }

    fn call(&mut self) -> Call {
        let Vectored { fd, parts, offset, flags, .. } = &mut self.0;
        call::Transfer::vectored(Direction::Write, fd.raw(), parts.bytes(), *offset, *flags)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        (completion.count(self.0.bytes as usize), self.0.parts.into_inner())
    }

    fn route(&self, rules: &Rules) -> Route {
        let &Vectored { ref fd, offset, flags, bytes, .. } = &self.0;
        // Of several parts, an eventfd looks at the first alone.
        let bytes = if fd.is_anonymous() { u32::MAX } else { bytes };
        let request = Transferred { direction: Direction::Write, offset, flags, bytes };
        if fd.may_refuse() {
            return fd.route_refusable(rules.of(OpKind::Write), request);
        }
        fd.route_write(rules.of(OpKind::Write), bytes, flags)
    }

    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.0.fd.classify(Direction::Write, mode, attempt, self.0.bytes)
    }

    of_descriptor!(0.fd);
}
