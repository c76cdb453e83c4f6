//! A file that all threads may use.
//!
//! Its descriptor belongs to all who have the [`File`], and is lent to the drivers of those threads of the
//! engine on which it was used. There it is an [`fs::File`], kept under the file's number from the first
//! request on, with what is learned of it, until the last clone is dropped.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use sakia_driver::CURRENT_POSITION;

use super::Engine;
use super::blocking::{Blocking, Calls, remote_pool};
use super::now::{At, BYTES_MAX, Ways};
use super::request::{Attempt, Call, Request};
use crate::executor::spawn_to;
use crate::fs;
use crate::io::{BufResult, IoBuf, IoBufMut};

/// The most buffers of one vectored operation: the kernel's `UIO_MAXIOV`.
const BUFFERS_MAX: usize = 1024;

/// A file of an [`Engine`]. Clones are the same open file. Reads and writes are at an offset, any number of
/// them at a time, from any thread.
///
/// It is closed when the last clone is dropped and no request uses it any more.
#[derive(Clone)]
pub struct File {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    number: u64,
    /// Taken at the end only.
    fd: Option<Arc<OwnedFd>>,
    ways: Ways,
    /// A bit for each thread of the engine, the last one for all beyond, on which it is known.
    known: AtomicU64,
}

thread_local! {
    /// The files that are known on a thread of an engine, by their numbers.
    static FILES: RefCell<HashMap<u64, Rc<fs::File>>> = RefCell::default();
}

impl Inner {
    #[inline]
    fn fd(&self) -> &Arc<OwnedFd> {
        self.fd.as_ref().expect("it is taken at the end only")
    }

    /// The file as it is on a thread of the engine, which is the current one.
    fn on_thread(&self, thread: usize) -> io::Result<Rc<fs::File>> {
        if let Some(file) = FILES.with_borrow(|files| files.get(&self.number).cloned()) {
            return Ok(file);
        }
        let file = Rc::new(fs::File::lent(Arc::clone(self.fd()))?);
        self.known.fetch_or(bit(thread), Ordering::Relaxed);
        FILES.with_borrow_mut(|files| files.insert(self.number, Rc::clone(&file)));
        Ok(file)
    }
}

fn bit(thread: usize) -> u64 {
    1 << thread.min(u64::BITS as usize - 1)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        let shared = &self.engine.shared;
        let is_remote = shared.mounts.has_file(fd.as_fd());
        let (number, known) = (self.number, *self.known.get_mut());
        for (thread, remote) in shared.remotes.iter().enumerate() {
            if known & bit(thread) != 0 {
                let fd = is_remote.then(|| Arc::clone(&fd));
                let forget = move || {
                    let file = FILES.with_borrow_mut(|files| files.remove(&number));
                    async move {
                        drop(file);
                        if let Some(fd) = fd {
                            close_elsewhere(fd);
                        }
                    }
                };
                spawn_to(remote, forget).detach();
            }
        }
        if is_remote {
            close_elsewhere(fd);
        }
    }
}

/// Lets go of a file that to close may take a server's answer: whoever is the last to do so closes it.
fn close_elsewhere(fd: Arc<OwnedFd>) {
    remote_pool().spawn(move || drop(fd)).detach();
}

impl File {
    pub(super) fn new(engine: &Engine, fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        Ok(Self::with_ways(engine, fd, Ways::new(flags)))
    }

    pub(super) fn with_ways(engine: &Engine, fd: OwnedFd, ways: Ways) -> Self {
        let inner = Inner {
            engine: engine.clone(),
            number: engine.shared.files.fetch_add(1, Ordering::Relaxed),
            fd: Some(Arc::new(fd)),
            ways,
            known: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Reads into `buf` from byte `offset` on what is there, here and now: no more than 64 KiB. `None` when
    /// it may take a wait, or is not asked since it did lately; [`read_at`](File::read_at) is for that.
    ///
    /// `Some(Ok(0))` is the end of the file, or an empty buffer.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    #[doc(alias = "RWF_NOWAIT")]
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Option<io::Result<usize>> {
        self.try_read_from(buf, Some(offset))
    }

    /// As [`try_read_at`](File::try_read_at), at the file's position, which moves.
    pub fn try_read(&self, buf: &mut [u8]) -> Option<io::Result<usize>> {
        self.try_read_from(buf, None)
    }

    fn try_read_from(&self, buf: &mut [u8], at: At) -> Option<io::Result<usize>> {
        let len = buf.len().min(BYTES_MAX);
        let result = self.inner.read_now(&mut [IoSliceMut::new(&mut buf[..len])], at)?;
        self.inner.count_now();
        Some(result)
    }

    /// Writes from byte `offset` on what can be written here and now: no more than 64 KiB. `None` when it may
    /// take a wait, as on most file systems it may; [`write_at`](File::write_at) is for that.
    ///
    /// # Errors
    /// As [`write_at`](File::write_at).
    #[doc(alias = "RWF_NOWAIT")]
    pub fn try_write_at(&self, buf: &[u8], offset: u64) -> Option<io::Result<usize>> {
        self.try_write_to(buf, Some(offset))
    }

    /// As [`try_write_at`](File::try_write_at), at the file's position, which moves.
    pub fn try_write(&self, buf: &[u8]) -> Option<io::Result<usize>> {
        self.try_write_to(buf, None)
    }

    fn try_write_to(&self, buf: &[u8], at: At) -> Option<io::Result<usize>> {
        let len = buf.len().min(BYTES_MAX);
        let result = self.inner.write_now(&[IoSlice::new(&buf[..len])], at)?;
        self.inner.count_now();
        Some(result)
    }

    /// Reads up to `buf.bytes_len()` bytes from byte `offset` on.
    ///
    /// Resolves to the number of bytes and the buffer; 0 means the end of the file, or an empty buffer.
    ///
    /// # Errors
    /// - `EINVAL`: direct I/O off the block size. `EISDIR`: it is a directory. `ESPIPE`: it has no offsets.
    /// - `ECANCELED`: the engine was stopped. Otherwise as `pread(2)`; never `EINTR`.
    #[doc(alias = "pread")]
    pub fn read_at<T: IoBufMut + Send>(&self, buf: T, offset: u64) -> Request<ReadAt<T>> {
        Request::new(ReadAt { file: self.clone(), buf, at: Some(offset), done: 0 })
    }

    /// Writes up to `buf.bytes_len()` bytes from byte `offset` on; at the end, if it was opened to append.
    ///
    /// Resolves to the number of bytes, which may be fewer than asked, and the buffer.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`, `EFBIG`: no room. Otherwise as [`read_at`](File::read_at) and `pwrite(2)`.
    #[doc(alias = "pwrite")]
    pub fn write_at<T: IoBuf + Send>(&self, buf: T, offset: u64) -> Request<WriteAt<T>> {
        Request::new(WriteAt { file: self.clone(), buf, at: Some(offset), done: 0 })
    }

    /// Reads up to `buf.bytes_len()` bytes at the file's position, which moves. It is the kernel's, and so
    /// that of all descriptors of the same open file; who reads there twice at a time gets the parts in no
    /// order. Also for what has no offsets: FIFOs, terminals, sockets.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    pub fn read<T: IoBufMut + Send>(&self, buf: T) -> Request<ReadAt<T>> {
        Request::new(ReadAt { file: self.clone(), buf, at: None, done: 0 })
    }

    /// Writes up to `buf.bytes_len()` bytes at the file's position, which moves, as for
    /// [`read`](File::read); at the end, if it was opened to append.
    ///
    /// # Errors
    /// As [`write_at`](File::write_at). `EPIPE`: nobody reads the FIFO or socket.
    pub fn write<T: IoBuf + Send>(&self, buf: T) -> Request<WriteAt<T>> {
        Request::new(WriteAt { file: self.clone(), buf, at: None, done: 0 })
    }

    /// As [`read_at`](File::read_at), filling one buffer after the other. At most the first 1024 are used.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    #[doc(alias = "preadv")]
    pub fn read_vectored_at<T: IoBufMut + Send>(
        &self,
        bufs: Vec<T>,
        offset: u64,
    ) -> Request<ReadVectoredAt<T>> {
        Request::new(ReadVectoredAt { file: self.clone(), bufs, offset })
    }

    /// As [`write_at`](File::write_at), taking one buffer after the other. At most the first 1024 are used.
    ///
    /// # Errors
    /// As [`write_at`](File::write_at).
    #[doc(alias = "pwritev")]
    pub fn write_vectored_at<T: IoBuf + Send>(
        &self,
        bufs: Vec<T>,
        offset: u64,
    ) -> Request<WriteVectoredAt<T>> {
        Request::new(WriteVectoredAt { file: self.clone(), bufs, offset })
    }

    /// Makes contents and metadata durable.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EDQUOT`: some of it is not durable. `ECANCELED`: the engine was stopped. Otherwise
    /// as `fsync(2)`.
    #[doc(alias = "fsync")]
    pub fn sync_all(&self) -> Request<SyncFile> {
        Request::new(SyncFile { file: self.clone(), is_data: false })
    }

    /// Makes contents durable, and as much of the metadata as it takes to read them.
    ///
    /// # Errors
    /// As [`sync_all`](File::sync_all).
    #[doc(alias = "fdatasync")]
    pub fn sync_data(&self) -> Request<SyncFile> {
        Request::new(SyncFile { file: self.clone(), is_data: true })
    }

    /// What the file system says of it.
    ///
    /// # Errors
    /// `EMFILE`: no descriptor left to ask with. Otherwise as `statx(2)`.
    pub fn metadata(&self) -> Request<Blocking<std::fs::Metadata>> {
        self.on_file(|file| file.metadata(), true)
    }

    /// Cuts it off at `len` bytes, or lengthens it by zeros.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    #[doc(alias = "ftruncate")]
    pub fn set_len(&self, len: u64) -> Request<Blocking<()>> {
        self.on_file(move |file| file.set_len(len), false)
    }

    /// Says who may do what with it.
    ///
    /// # Errors
    /// As `fchmod(2)`.
    #[doc(alias = "fchmod")]
    pub fn set_permissions(&self, permissions: std::fs::Permissions) -> Request<Blocking<()>> {
        self.on_file(move |file| file.set_permissions(permissions), false)
    }

    /// What `std` does with a file. What is quick is done at once, on a local file.
    fn on_file<T: Send + 'static>(
        &self,
        call: impl FnOnce(std::fs::File) -> io::Result<T> + Send + 'static,
        is_quick: bool,
    ) -> Request<Blocking<T>> {
        let (engine, fd) = (&self.inner.engine, self.inner.fd());
        let is_remote = engine.shared.mounts.has_file(fd.as_fd());
        let call =
            OnFile { fd: Arc::clone(fd), call: Some(call), is_quick: is_quick && !is_remote };
        engine.block_on_pool(call, is_remote)
    }
}

/// A call of `std` on an open file, by a descriptor of its own.
struct OnFile<F> {
    fd: Arc<OwnedFd>,
    call: Option<F>,
    is_quick: bool,
}

impl<T, F: FnOnce(std::fs::File) -> io::Result<T> + Send> Calls<T> for OnFile<F> {
    fn attempt(&mut self, _: &Engine) -> Option<io::Result<T>> {
        if !self.is_quick {
            return None;
        }
        self.call.take().map(|call| call(self.fd.try_clone()?.into()))
    }

    fn block(self: Box<Self>) -> io::Result<T> {
        let call = self.call.expect("it was not made");
        call(self.fd.try_clone()?.into())
    }
}

/// For calls that are not here.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd().as_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("fd", self.inner.fd()).finish_non_exhaustive()
    }
}

/// See [`File::read_at`] and [`File::read`].
pub struct ReadAt<T> {
    file: File,
    buf: T,
    at: At,
    /// Bytes that were read.
    done: usize,
}

impl<T: IoBufMut + Send> Call for ReadAt<T> {
    type Output = BufResult<usize, T>;

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    fn attempt(mut self) -> Attempt<Self> {
        let len = self.buf.bytes_len();
        let part = self.done..len.min(self.done + BYTES_MAX);
        let part = IoSliceMut::new(&mut self.buf.as_bytes_mut()[part]);
        let wanted = part.len();
        match self.file.inner.read_now(&mut [part], further(self.at, self.done)) {
            Some(result) => match ended(result, self.done, wanted, len) {
                Ok(result) => {
                    self.file.inner.count_now();
                    Attempt::Done((result, self.buf))
                }
                Err(done) => Attempt::Begun(Self { done, ..self }),
            },
            None => Attempt::Waits(self),
        }
    }

    #[inline]
    fn block(mut self) -> Result<Self::Output, Self> {
        let fd = self.file.inner.fd();
        let rest = &mut self.buf.as_bytes_mut()[self.done..];
        let result = match further(self.at, self.done) {
            Some(at) => uninterrupted(|| rustix::io::pread(fd, &mut *rest, at)),
            None => uninterrupted(|| rustix::io::read(fd, &mut *rest)),
        };
        Ok((total_of(self.done, result), self.buf))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let Self { file, buf, at, done } = self;
        let (file, offset) = match file.inner.at_on_thread(further(at, done), thread) {
            Ok(known) => known,
            Err(error) => return (Err(error), buf),
        };
        if done == 0 {
            return file.read_explained(buf, offset).await;
        }
        let (result, rest) = file.read_explained(buf.slice(done..), offset).await;
        (total_of(done, result), rest.into_inner())
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (total_of(self.done, Err(error)), self.buf)
    }
}

/// Where to go on after so many bytes.
#[inline]
fn further(at: At, done: usize) -> At {
    at.map(|offset| offset.saturating_add(done as u64))
}

/// What a transfer of `len` bytes has come to, if it is over: of the last part, for which `wanted` bytes were
/// asked, this is the result. Otherwise how far it is.
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

/// What was transferred before an error is told, and the error next time.
#[inline]
fn total_of(done: usize, result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(_) if done > 0 => Ok(done),
        result => result.map(|count| done + count),
    }
}

impl Inner {
    /// Reads what is there.
    #[inline]
    fn read_now(&self, parts: &mut [IoSliceMut<'_>], at: At) -> Option<io::Result<usize>> {
        check(at).ok()?;
        self.ways.read(&self.engine.shared.mounts, self.fd().as_fd(), parts, at)
    }

    /// Writes what takes no wait.
    #[inline]
    fn write_now(&self, parts: &[IoSlice<'_>], at: At) -> Option<io::Result<usize>> {
        check(at).ok()?;
        self.ways.write(&self.engine.shared.mounts, self.fd().as_fd(), parts, at)
    }

    #[inline]
    fn count_now(&self) {
        self.engine.shared.tally.count_now();
    }

    /// The file as it is on a thread of the engine, and the driver's offset.
    fn at_on_thread(&self, at: At, thread: usize) -> io::Result<(Rc<fs::File>, u64)> {
        check(at)?;
        Ok((self.on_thread(thread)?, at.unwrap_or(CURRENT_POSITION)))
    }
}

/// What the kernel refuses as an offset, and may take for the position.
#[inline]
fn check(at: At) -> io::Result<()> {
    match at {
        Some(offset) if offset > i64::MAX as u64 => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

/// See [`File::write_at`] and [`File::write`].
pub struct WriteAt<T> {
    file: File,
    buf: T,
    at: At,
    /// Bytes that were written.
    done: usize,
}

impl<T: IoBuf + Send> Call for WriteAt<T> {
    type Output = BufResult<usize, T>;

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    fn attempt(self) -> Attempt<Self> {
        let bytes = self.buf.as_bytes();
        let part = &bytes[self.done..bytes.len().min(self.done + BYTES_MAX)];
        let at = further(self.at, self.done);
        match self.file.inner.write_now(&[IoSlice::new(part)], at) {
            Some(result) => match ended(result, self.done, part.len(), bytes.len()) {
                Ok(result) => {
                    self.file.inner.count_now();
                    Attempt::Done((result, self.buf))
                }
                Err(done) => Attempt::Begun(Self { done, ..self }),
            },
            None => Attempt::Waits(self),
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
        let (file, offset) = match file.inner.at_on_thread(further(at, done), thread) {
            Ok(known) => known,
            Err(error) => return (Err(error), buf),
        };
        if done == 0 {
            return file.write_explained(buf, offset).await;
        }
        let (result, rest) = file.write_explained(buf.slice(done..), offset).await;
        (total_of(done, result), rest.into_inner())
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (total_of(self.done, Err(error)), self.buf)
    }
}

/// See [`File::read_vectored_at`].
pub struct ReadVectoredAt<T> {
    file: File,
    bufs: Vec<T>,
    offset: u64,
}

impl<T: IoBufMut + Send> ReadVectoredAt<T> {
    /// The buffers as the kernel takes them.
    fn parts(bufs: &mut [T]) -> Vec<IoSliceMut<'_>> {
        let used = bufs.iter_mut().take(BUFFERS_MAX);
        used.map(|buf| IoSliceMut::new(buf.as_bytes_mut())).collect()
    }
}

impl<T: IoBufMut + Send> Call for ReadVectoredAt<T> {
    type Output = BufResult<usize, Vec<T>>;

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    fn attempt(mut self) -> Attempt<Self> {
        let mut parts = Self::parts(&mut self.bufs);
        if total(parts.iter().map(|part| part.len())) > BYTES_MAX {
            return Attempt::Waits(self);
        }
        match self.file.inner.read_now(&mut parts, Some(self.offset)) {
            Some(result) => {
                self.file.inner.count_now();
                Attempt::Done((result, self.bufs))
            }
            None => Attempt::Waits(self),
        }
    }

    fn block(mut self) -> Result<Self::Output, Self> {
        let mut parts = Self::parts(&mut self.bufs);
        let fd = self.file.inner.fd();
        let result = uninterrupted(|| rustix::io::preadv(fd, &mut parts, self.offset));
        Ok((result, self.bufs))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let Self { file, bufs, offset } = self;
        match file.inner.on_thread(thread) {
            Ok(file) => file.read_vectored_at(bufs, offset).await,
            Err(error) => (Err(error), bufs),
        }
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
    file: File,
    bufs: Vec<T>,
    offset: u64,
}

impl<T: IoBuf + Send> WriteVectoredAt<T> {
    /// The buffers as the kernel takes them.
    fn parts(bufs: &[T]) -> Vec<IoSlice<'_>> {
        let used = bufs.iter().take(BUFFERS_MAX);
        used.map(|buf| IoSlice::new(buf.as_bytes())).collect()
    }
}

impl<T: IoBuf + Send> Call for WriteVectoredAt<T> {
    type Output = BufResult<usize, Vec<T>>;

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    fn attempt(self) -> Attempt<Self> {
        let parts = Self::parts(&self.bufs);
        let is_small = total(parts.iter().map(|part| part.len())) <= BYTES_MAX;
        let inner = &self.file.inner;
        match is_small.then(|| inner.write_now(&parts, Some(self.offset))).flatten() {
            Some(result) => {
                self.file.inner.count_now();
                Attempt::Done((result, self.bufs))
            }
            None => Attempt::Waits(self),
        }
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
        match file.inner.on_thread(thread) {
            Ok(file) => file.write_vectored_explained(bufs, offset).await,
            Err(error) => (Err(error), bufs),
        }
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (Err(error), self.bufs)
    }
}

/// See [`File::sync_all`] and [`File::sync_data`].
pub struct SyncFile {
    file: File,
    is_data: bool,
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
}

/// Makes a call again as long as a signal interrupts it.
#[inline]
fn uninterrupted<T>(call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    rustix::io::retry_on_intr(call).map_err(io::Error::from)
}
