//! A file that all threads may use.
//!
//! Its descriptor belongs to all who have the [`File`], and is lent to the drivers of those threads of the
//! engine on which it was used. There it is an [`fs::File`], kept under the file's number from the first
//! request on, with what is learned of it, until the last clone is dropped.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::request::{Call, Request};
use super::{Engine, Work};
use crate::executor::spawn_to;
use crate::fs::{self, Metadata};
use crate::io::{BufResult, IoBuf, IoBufMut};

/// Bytes beyond which a read is not tried where it is awaited: the copy alone would hold up others there.
const NOW_BYTES_MAX: usize = 64 << 10;
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
    fd: Arc<OwnedFd>,
    heat: Heat,
    /// A bit for each thread of the engine, the last one for all beyond, on which it is known.
    known: AtomicU64,
}

thread_local! {
    /// The files that are known on a thread of an engine, by their numbers.
    static FILES: RefCell<HashMap<u64, Rc<fs::File>>> = RefCell::default();
}

impl Inner {
    /// The file as it is on a thread of the engine, which is the current one.
    fn on_thread(&self, thread: usize) -> io::Result<Rc<fs::File>> {
        if let Some(file) = FILES.with_borrow(|files| files.get(&self.number).cloned()) {
            return Ok(file);
        }
        let file = Rc::new(fs::File::lent(Arc::clone(&self.fd))?);
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
        let (number, known) = (self.number, *self.known.get_mut());
        let forget = move || {
            let file = FILES.with_borrow_mut(|files| files.remove(&number));
            async move { drop(file) }
        };
        for (thread, remote) in self.engine.shared.remotes.iter().enumerate() {
            if known & bit(thread) != 0 {
                spawn_to(remote, forget).detach();
            }
        }
    }
}

/// Whether reads find their bytes in the page cache, and can say so; learned from what they come to.
struct Heat(AtomicU8);

impl Heat {
    /// From here on a read is tried; below it counts down to the next attempt.
    const WARM: u8 = 128;
    /// Reads that go to the engine after one that found nothing.
    const SKIPS: u8 = 15;
    /// It cannot be asked not to wait, or bypasses the cache.
    const NEVER: u8 = 0;

    fn is_worth_a_try(&self) -> bool {
        match self.0.load(Ordering::Relaxed) {
            Self::NEVER => false,
            1 => true,
            Self::WARM.. => true,
            left => {
                self.0.store(left - 1, Ordering::Relaxed);
                false
            }
        }
    }

    fn hit(&self) {
        if self.0.load(Ordering::Relaxed) != Self::WARM {
            self.0.store(Self::WARM, Ordering::Relaxed);
        }
    }

    fn missed(&self) {
        self.0.store(1 + Self::SKIPS, Ordering::Relaxed);
    }

    fn never(&self) {
        self.0.store(Self::NEVER, Ordering::Relaxed);
    }
}

impl File {
    pub(super) fn new(engine: &Engine, fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        let heat = if flags.contains(OFlags::DIRECT) { Heat::NEVER } else { Heat::WARM };
        let inner = Inner {
            engine: engine.clone(),
            number: engine.shared.files.fetch_add(1, Ordering::Relaxed),
            fd: Arc::new(fd),
            heat: Heat(AtomicU8::new(heat)),
            known: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn request<C: Call>(&self, call: C) -> Request<C> {
        Request::new(&self.inner.engine, call)
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
        self.request(ReadAt { file: self.clone(), buf, offset })
    }

    /// Writes up to `buf.bytes_len()` bytes from byte `offset` on; at the end, if it was opened to append.
    ///
    /// Resolves to the number of bytes, which may be fewer than asked, and the buffer.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`, `EFBIG`: no room. Otherwise as [`read_at`](File::read_at) and `pwrite(2)`.
    #[doc(alias = "pwrite")]
    pub fn write_at<T: IoBuf + Send>(&self, buf: T, offset: u64) -> Request<WriteAt<T>> {
        self.request(WriteAt { file: self.clone(), buf, offset })
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
        self.request(ReadVectoredAt { file: self.clone(), bufs, offset })
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
        self.request(WriteVectoredAt { file: self.clone(), bufs, offset })
    }

    /// Makes contents and metadata durable.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EDQUOT`: some of it is not durable. `ECANCELED`: the engine was stopped. Otherwise
    /// as `fsync(2)`.
    #[doc(alias = "fsync")]
    pub fn sync_all(&self) -> Request<SyncFile> {
        self.request(SyncFile { file: self.clone(), is_data: false })
    }

    /// Makes contents durable, and as much of the metadata as it takes to read them.
    ///
    /// # Errors
    /// As [`sync_all`](File::sync_all).
    #[doc(alias = "fdatasync")]
    pub fn sync_data(&self) -> Request<SyncFile> {
        self.request(SyncFile { file: self.clone(), is_data: true })
    }

    /// What the file system says of it.
    ///
    /// # Errors
    /// As `statx(2)`.
    pub fn metadata(&self) -> Request<Work<Metadata>> {
        self.on_file(|file| async move { file.metadata().await })
    }

    /// Cuts it off at `len` bytes, or lengthens it by zeros.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    #[doc(alias = "ftruncate")]
    pub fn set_len(&self, len: u64) -> Request<Work<()>> {
        self.on_file(move |file| async move { file.set_len(len).await })
    }

    /// Any operation on the file as it is on a thread of the engine.
    fn on_file<T, F>(
        &self,
        operation: impl FnOnce(Rc<fs::File>) -> F + Send + 'static,
    ) -> Request<Work<T>>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<T>> + 'static,
    {
        let inner = Arc::clone(&self.inner);
        self.request(Work::new(move |thread| async move {
            let file = inner.on_thread(thread)?;
            operation(file).await
        }))
    }
}

/// For calls that are not here.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("fd", &self.inner.fd).finish_non_exhaustive()
    }
}

/// See [`File::read_at`].
pub struct ReadAt<T> {
    file: File,
    buf: T,
    offset: u64,
}

impl<T: IoBufMut + Send> Call for ReadAt<T> {
    type Output = BufResult<usize, T>;

    fn attempt(mut self) -> Result<Self::Output, Self> {
        let len = self.buf.bytes_len();
        if len > NOW_BYTES_MAX {
            return Err(self);
        }
        let parts = &mut [IoSliceMut::new(self.buf.as_bytes_mut())];
        match self.file.inner.read_now(parts, len, self.offset) {
            Some(result) => Ok((result, self.buf)),
            None => Err(self),
        }
    }

    fn block(mut self) -> Result<Self::Output, Self> {
        let fd = &self.file.inner.fd;
        let result = uninterrupted(|| rustix::io::pread(fd, self.buf.as_bytes_mut(), self.offset));
        Ok((result, self.buf))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let Self { file, buf, offset } = self;
        match file.inner.on_thread(thread) {
            Ok(file) => file.read_at(buf, offset).await,
            Err(error) => (Err(error), buf),
        }
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (Err(error), self.buf)
    }
}

impl Inner {
    /// Reads what the page cache has. `None` when that may be less than there is.
    fn read_now(
        &self,
        parts: &mut [IoSliceMut<'_>],
        len: usize,
        offset: u64,
    ) -> Option<io::Result<usize>> {
        if !self.heat.is_worth_a_try() {
            return None;
        }
        match rustix::io::preadv2(&self.fd, parts, offset, ReadWriteFlags::NOWAIT) {
            // The end of the file, or of what was there to be had without waiting.
            Ok(0) if len > 0 => {
                let size = rustix::fs::fstat(&self.fd).ok()?.st_size;
                (offset >= size.try_into().ok()?).then_some(Ok(0))
            }
            Ok(count) => {
                self.heat.hit();
                Some(Ok(count))
            }
            Err(Errno::AGAIN) => {
                self.heat.missed();
                None
            }
            Err(Errno::INTR) => None,
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::SPIPE) => {
                self.heat.never();
                None
            }
            Err(error) => Some(Err(error.into())),
        }
    }
}

/// See [`File::write_at`].
pub struct WriteAt<T> {
    file: File,
    buf: T,
    offset: u64,
}

impl<T: IoBuf + Send> Call for WriteAt<T> {
    type Output = BufResult<usize, T>;

    fn block(self) -> Result<Self::Output, Self> {
        let fd = &self.file.inner.fd;
        let result = uninterrupted(|| rustix::io::pwrite(fd, self.buf.as_bytes(), self.offset));
        Ok((result, self.buf))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let Self { file, buf, offset } = self;
        match file.inner.on_thread(thread) {
            Ok(file) => file.write_at(buf, offset).await,
            Err(error) => (Err(error), buf),
        }
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (Err(error), self.buf)
    }
}

/// See [`File::read_vectored_at`].
pub struct ReadVectoredAt<T> {
    file: File,
    bufs: Vec<T>,
    offset: u64,
}

impl<T: IoBufMut + Send> ReadVectoredAt<T> {
    /// The buffers as the kernel takes them, and their bytes.
    fn parts(bufs: &mut [T]) -> (Vec<IoSliceMut<'_>>, usize) {
        let used = bufs.iter_mut().take(BUFFERS_MAX);
        let parts: Vec<_> = used.map(|buf| IoSliceMut::new(buf.as_bytes_mut())).collect();
        let len = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        (parts, len)
    }
}

impl<T: IoBufMut + Send> Call for ReadVectoredAt<T> {
    type Output = BufResult<usize, Vec<T>>;

    fn attempt(mut self) -> Result<Self::Output, Self> {
        let (mut parts, len) = Self::parts(&mut self.bufs);
        let now = (len <= NOW_BYTES_MAX).then_some(());
        match now.and_then(|()| self.file.inner.read_now(&mut parts, len, self.offset)) {
            Some(result) => Ok((result, self.bufs)),
            None => Err(self),
        }
    }

    fn block(mut self) -> Result<Self::Output, Self> {
        let (mut parts, _) = Self::parts(&mut self.bufs);
        let fd = &self.file.inner.fd;
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

/// See [`File::write_vectored_at`].
pub struct WriteVectoredAt<T> {
    file: File,
    bufs: Vec<T>,
    offset: u64,
}

impl<T: IoBuf + Send> Call for WriteVectoredAt<T> {
    type Output = BufResult<usize, Vec<T>>;

    fn block(self) -> Result<Self::Output, Self> {
        let used = self.bufs.iter().take(BUFFERS_MAX);
        let parts: Vec<_> = used.map(|buf| IoSlice::new(buf.as_bytes())).collect();
        let fd = &self.file.inner.fd;
        let result = uninterrupted(|| rustix::io::pwritev(fd, &parts, self.offset));
        drop(parts);
        Ok((result, self.bufs))
    }

    async fn run(self, thread: usize) -> Self::Output {
        let Self { file, bufs, offset } = self;
        match file.inner.on_thread(thread) {
            Ok(file) => file.write_vectored_at(bufs, offset).await,
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

    fn block(self) -> Result<Self::Output, Self> {
        let fd = &self.file.inner.fd;
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
fn uninterrupted<T>(call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    rustix::io::retry_on_intr(call).map_err(io::Error::from)
}
