//! Transfers to and from a file, and durability.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags};
use sakia_driver::{CallMode, Room, limits, read_plainly, read_vectored_plainly};

use super::{File, check};
use crate::engine::Engine;
use crate::engine::now::At;
use crate::engine::request::{Call, Request, Tried, error_of_lost};
use crate::fs;
use crate::io::transfer::{buf_try, repeated};
use crate::io::{BufResult, IoBuf, IoBufMut};
use crate::join::JoinError;

/// See [`File::read_at`] and [`File::read`].
pub struct ReadAt<T> {
    file: File,
    /// The remaining room of the buffer.
    rest: Room<T>,
    at: At,
}

impl<T: IoBufMut + Send> ReadAt<T> {
    pub(super) fn new(file: &File, buf: T, at: At) -> Self {
        Self { file: file.clone(), rest: buf.room(usize::MAX), at }
    }

    /// Returns the result of the whole transfer, given the result of its last part.
    #[inline]
    fn end(self, result: io::Result<usize>) -> BufResult<usize, T> {
        (total_of(self.rest.filled(), result), self.rest.into_inner())
    }
}

impl<T: IoBufMut + Send> Call for ReadAt<T> {
    type Output = BufResult<usize, T>;

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    fn attempt(mut self) -> Tried<Self> {
        let (done, left) = (self.rest.filled(), self.rest.bytes_room());
        if left == 0 {
            return Tried::Done(self.end(Err(Errno::INVAL.into())));
        }
        let wanted = left.min(limits::CALLER_BYTES);
        let at = further(self.at, done);
        let Some(result) = self.file.inner.read_now(&mut self.rest, wanted, at) else {
            return Tried::Waits(self);
        };
        let is_short = matches!(result, Ok(count) if 0 < count && count < wanted);
        match ended(result, done, wanted, done + left) {
            // The file has more bytes, which are not available yet.
            Ok(Ok(total)) if is_short && self.file.inner.has_more(further(self.at, total)) => {
                self.rest.advance(total - done);
                Tried::Waits(self)
            }
            Ok(result) => {
                self.file.inner.count_now();
                Tried::Done((result, self.rest.into_inner()))
            }
            Err(total) => {
                self.rest.advance(total - done);
                Tried::Begun(self)
            }
        }
    }

    #[inline]
    fn block(mut self) -> Result<Self::Output, Self> {
        let at = further(self.at, self.rest.filled());
        let fd = self.file.inner.fd().as_fd();
        let result =
            repeated(|| read_plainly(fd, &mut self.rest, usize::MAX, at, CallMode::Blocking));
        Ok(self.end(result))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let Self { file, mut rest, at } = self;
        let _moving = file.inner.begin_elsewhere(at);
        loop {
            let done = rest.filled();
            let (known, offset) = match file.inner.at_on_thread(further(at, done), thread) {
                Ok(known) => known,
                Err(error) => return (total_of(done, Err(error)), rest.into_inner()),
            };
            let (result, back) = known.read_explained(rest, offset).await;
            rest = back;
            match result {
                // The file has more bytes, which were not available: the engine's thread asks the cache
                // first, too.
                Ok(count)
                    if count > 0
                        && count < rest.bytes_room()
                        && file.inner.has_more(further(at, done + count)) =>
                {
                    rest.advance(count);
                }
                result => return (total_of(done, result), rest.into_inner()),
            }
        }
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        self.end(Err(error))
    }
}

/// See [`Engine::read_shared`].
pub struct ReadShared<T> {
    engine: Engine,
    file: Arc<std::fs::File>,
    buf: T,
    offset: u64,
}

impl Engine {
    /// Reads up to `buf.len()` bytes (an empty `Vec`: up to its capacity) from byte `offset` on, of a file
    /// that is not the engine's. The engine holds the file only while the request is under way. Nothing is
    /// tried on the caller's thread: callers have done that before.
    ///
    /// # Errors
    /// As [`File::read_at`].
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    ///
    /// use sakia::Engine;
    ///
    /// let program = Arc::new(std::fs::File::open(std::env::current_exe()?)?);
    /// let engine = Engine::new()?;
    /// let (result, bytes) = sakia::block_on(engine.read_shared(&program, vec![0; 3], 1));
    /// assert_eq!((result?, &bytes[..]), (3, &b"ELF"[..]));
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn read_shared<T: IoBufMut + Send>(
        &self,
        file: &Arc<std::fs::File>,
        buf: T,
        offset: u64,
    ) -> Request<ReadShared<T>> {
        let (engine, file) = (self.clone(), Arc::clone(file));
        Request::new(ReadShared { engine, file, buf, offset })
    }
}

impl<T: IoBufMut + Send> Call for ReadShared<T> {
    type Output = BufResult<usize, T>;

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn block(mut self) -> Result<Self::Output, Self> {
        let (fd, at) = (self.file.as_fd(), Some(self.offset));
        let result =
            repeated(|| read_plainly(fd, &mut self.buf, usize::MAX, at, CallMode::Blocking));
        Ok((result, self.buf))
    }

    async fn run(self, _thread: usize) -> Self::Output {
        let Self { file, buf, offset, .. } = self;
        buf_try!(check(Some(offset)), buf);
        let file = buf_try!(fs::File::lent(file), buf);
        file.read_explained(buf, offset).await
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (Err(error), self.buf)
    }
}

/// Returns the place `done` bytes after this one.
#[inline]
fn further(at: At, done: usize) -> At {
    at.map(|offset| offset.saturating_add(done as u64))
}

/// Returns the result of a transfer of `len` bytes if it is over, given the `result` of its last part, which
/// asked for `wanted` bytes. Otherwise returns its progress.
fn ended(
    result: io::Result<usize>,
    done: usize,
    wanted: usize,
    len: usize,
) -> Result<io::Result<usize>, usize> {
    match result {
        Ok(count) if count == wanted && done + count < len => Err(done + count),
        result => Ok(total_of(done, result)),
    }
}

/// Returns the number of bytes transferred before an error; the next call returns the error.
#[inline]
fn total_of(done: usize, result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(_) if done > 0 => Ok(done),
        result => result.map(|count| done + count),
    }
}

/// See [`File::write_at`] and [`File::write`].
pub struct WriteAt<T> {
    pub(super) file: File,
    pub(super) buf: T,
    pub(super) at: At,
    /// The number of bytes written.
    pub(super) done: usize,
}

impl<T: IoBuf + Send> Call for WriteAt<T> {
    type Output = BufResult<usize, T>;

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    fn attempt(self) -> Tried<Self> {
        let bytes = self.buf.as_bytes();
        let part = &bytes[self.done..bytes.len().min(self.done + limits::CALLER_BYTES)];
        let at = further(self.at, self.done);
        match self.file.inner.write_soon(&[IoSlice::new(part)], at) {
            // The rest needs a wait.
            Some(Ok(count)) if 0 < count && count < part.len() => {
                Tried::Waits(Self { done: self.done + count, ..self })
            }
            Some(result) => match ended(result, self.done, part.len(), bytes.len()) {
                Ok(result) => {
                    self.file.inner.count_now();
                    Tried::Done((result, self.buf))
                }
                Err(done) => Tried::Begun(Self { done, ..self }),
            },
            None => Tried::Waits(self),
        }
    }

    #[inline]
    fn block(self) -> Result<Self::Output, Self> {
        let fd = self.file.inner.fd();
        let rest = &self.buf.as_bytes()[self.done..];
        let result = match further(self.at, self.done) {
            Some(at) => uninterrupted(|| rustix::io::pwrite(fd, rest, at)),
            None => uninterrupted(|| rustix::io::write(fd, rest)),
        };
        Ok((total_of(self.done, result), self.buf))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let Self { file, buf, at, done } = self;
        let _moving = file.inner.begin_elsewhere(at);
        let (file, offset) = buf_try!(file.inner.at_on_thread(further(at, done), thread), buf);
        let (result, rest) = file.write_explained(buf.slice(done..), offset).await;
        (total_of(done, result), rest.into_inner())
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (total_of(self.done, Err(error)), self.buf)
    }
}

/// See [`File::read_vectored_at`].
pub struct ReadVectoredAt<T> {
    pub(super) file: File,
    pub(super) bufs: Vec<T>,
    pub(super) offset: u64,
}

impl<T: IoBufMut + Send> Call for ReadVectoredAt<T> {
    type Output = BufResult<usize, Vec<T>>;

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    fn attempt(mut self) -> Tried<Self> {
        let used = &self.bufs[..self.bufs.len().min(limits::BUFFERS_MAX)];
        let wanted = total(used.iter().map(T::bytes_room));
        if wanted == 0 {
            return Tried::Done((Err(Errno::INVAL.into()), self.bufs));
        }
        if wanted > limits::CALLER_BYTES || check(Some(self.offset)).is_err() {
            return Tried::Waits(self);
        }
        // A second read would find no more room than the first has used.
        let has_capacity = used.iter().any(|buf| buf.bytes_len() < buf.bytes_room());
        let inner = &self.file.inner;
        let at = Some(self.offset);
        match inner.calls.read_into_all(inner.fd().as_fd(), &mut self.bufs, at) {
            // The file has more bytes, which are not available yet.
            Some(Ok(count))
                if count < wanted
                    && !(has_capacity && count > 0)
                    && inner.has_more(further(at, count)) =>
            {
                Tried::Waits(self)
            }
            Some(result) => {
                self.file.inner.count_now();
                Tried::Done((result, self.bufs))
            }
            None => Tried::Waits(self),
        }
    }

    fn block(mut self) -> Result<Self::Output, Self> {
        let (fd, at) = (self.file.inner.fd().as_fd(), Some(self.offset));
        let result = repeated(|| read_vectored_plainly(fd, &mut self.bufs, at, CallMode::Blocking));
        Ok((result, self.bufs))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let Self { file, bufs, offset } = self;
        let file = buf_try!(file.inner.on_thread(thread), bufs);
        file.read_vectored_at(bufs, offset).await
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (Err(error), self.bufs)
    }
}

fn total(lens: impl Iterator<Item = usize>) -> usize {
    lens.fold(0, usize::saturating_add)
}

/// See [`File::write_vectored_at`].
pub struct WriteVectoredAt<T> {
    pub(super) file: File,
    pub(super) bufs: Vec<T>,
    pub(super) offset: u64,
}

impl<T: IoBuf + Send> WriteVectoredAt<T> {
    /// Returns the buffers as the kernel takes them.
    fn parts(bufs: &[T]) -> Vec<IoSlice<'_>> {
        let used = bufs.iter().take(limits::BUFFERS_MAX);
        used.map(|buf| IoSlice::new(buf.as_bytes())).collect()
    }
}

impl<T: IoBuf + Send> Call for WriteVectoredAt<T> {
    type Output = BufResult<usize, Vec<T>>;

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    fn attempt(self) -> Tried<Self> {
        let parts = Self::parts(&self.bufs);
        let is_small = total(parts.iter().map(|part| part.len())) <= limits::CALLER_BYTES;
        let inner = &self.file.inner;
        let now = is_small.then(|| inner.write_soon(&parts, Some(self.offset))).flatten();
        let Some(result) = now else { return Tried::Waits(self) };
        self.file.inner.count_now();
        Tried::Done((result, self.bufs))
    }

    fn block(self) -> Result<Self::Output, Self> {
        let fd = self.file.inner.fd();
        let parts = Self::parts(&self.bufs);
        let result = uninterrupted(|| rustix::io::pwritev(fd, &parts, self.offset));
        drop(parts);
        Ok((result, self.bufs))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let Self { file, bufs, offset } = self;
        let file = buf_try!(file.inner.on_thread(thread), bufs);
        file.write_vectored_explained(bufs, offset).await
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (Err(error), self.bufs)
    }
}

/// See [`File::write_durable_at`].
pub struct WriteDurableAt<T> {
    pub(super) file: File,
    pub(super) buf: T,
    pub(super) offset: u64,
}

impl<T: IoBuf + Send> WriteDurableAt<T> {
    /// Writes all bytes by plain calls.
    fn write_all(&self) -> io::Result<()> {
        check(Some(self.offset))?;
        let fd = self.file.inner.fd();
        let bytes = self.buf.as_bytes();
        let (mut done, mut is_durable) = (0, true);
        while done < bytes.len() {
            let (rest, offset) = (&bytes[done..], self.offset.saturating_add(done as u64));
            let count = match is_durable {
                true => {
                    let flags = ReadWriteFlags::DSYNC;
                    rustix::io::pwritev2(fd, &[IoSlice::new(rest)], offset, flags)
                }
                false => rustix::io::pwrite(fd, rest, offset),
            };
            match count {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                // The file system does not support the flag.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) if is_durable => is_durable = false,
                Err(error) => return Err(error.into()),
            }
        }
        if is_durable { Ok(()) } else { uninterrupted(|| rustix::fs::fdatasync(fd)) }
    }
}

impl<T: IoBuf + Send> Call for WriteDurableAt<T> {
    type Output = BufResult<(), T>;

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    fn block(self) -> Result<Self::Output, Self> {
        Ok((self.write_all(), self.buf))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let Self { file, buf, offset } = self;
        let (file, offset) = buf_try!(file.inner.at_on_thread(Some(offset), thread), buf);
        file.write_durable_explained(buf, offset).await
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (Err(error), self.buf)
    }
}

/// See [`File::sync_all`] and [`File::sync_data`].
pub struct SyncFile {
    pub(super) file: File,
    pub(super) is_data: bool,
}

impl Call for SyncFile {
    type Output = io::Result<()>;

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    fn block(self) -> Result<Self::Output, Self> {
        let fd = self.file.inner.fd();
        Ok(uninterrupted(|| match self.is_data {
            true => rustix::fs::fdatasync(fd),
            false => rustix::fs::fsync(fd),
        }))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let file = self.file.inner.on_thread(thread)?;
        if self.is_data { file.sync_data().await } else { file.sync_all().await }
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        Err(error)
    }

    fn lost(error: JoinError) -> Self::Output {
        Err(error_of_lost(error))
    }
}

/// Repeats a call as long as a signal interrupts it.
#[inline]
pub(super) fn uninterrupted<T>(call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    rustix::io::retry_on_intr(call).map_err(io::Error::from)
}
