//! A file that all threads may use.
//!
//! All clones of the [`File`] share its descriptor, which is lent to the drivers of those engine threads on
//! which it was used. Each of these threads keeps an [`fs::File`] under the file's number, with the facts
//! learned of it, from its first request until the last clone is dropped.

mod commit;
mod transfer;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, FileCalls, limits};

pub use self::commit::{Append, AppendDurable, Commit, GroupCommit};
pub use self::transfer::{
    ReadAt, ReadShared, ReadVectoredAt, SyncFile, WriteAt, WriteDurableAt, WriteVectoredAt,
};
use super::Engine;
use super::blocking::{Blocking, Calls, remote_pool};
use super::now::At;
use super::request::Request;
use crate::executor::spawn_to;
use crate::fs;
use crate::io::{IoBuf, IoBufMut};

/// A file of an [`Engine`]. Clones are the same open file. Reads and writes are at an offset, any number of
/// them at a time, from any thread.
///
/// It is closed when the last clone is dropped and no request uses it any more. If the engine's threads have
/// used it, they close it, some time later.
///
/// # Examples
/// See [`Engine`](super::Engine#examples).
#[derive(Clone)]
pub struct File {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    number: u64,
    /// Taken by the destructor only.
    fd: Option<Arc<OwnedFd>>,
    calls: FileCalls,
    /// A bit for each engine thread on which the file is known; all threads beyond share the last bit.
    known: AtomicU64,
    /// The number of transfers at the position that are under way on threads of the engine. They hold the
    /// kernel's lock on the position, for which even a non-blocking call waits.
    moving: AtomicUsize,
}

/// Counts a transfer at the position as under way, until it is dropped.
struct Moving(Arc<Inner>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.moving.fetch_sub(1, Ordering::Relaxed);
    }
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

    /// Returns the file as the engine's thread `thread` knows it, which must be the current thread.
    fn on_thread(&self, thread: usize) -> io::Result<Rc<fs::File>> {
        if let Some(file) = FILES.with_borrow(|files| files.get(&self.number).cloned()) {
            return Ok(file);
        }
        let file = Rc::new(fs::File::lent(Arc::clone(self.fd()))?);
        self.known.fetch_or(bit(thread), Ordering::Relaxed);
        FILES.with_borrow_mut(|files| files.insert(self.number, Rc::clone(&file)));
        Ok(file)
    }

    /// Returns the calls for a transfer at this place on the caller's thread; `None` if that might block.
    #[inline]
    fn calls_now(&self, at: At) -> Option<&FileCalls> {
        check(at).ok()?;
        let is_free = at.is_some() || self.moving.load(Ordering::Relaxed) == 0;
        is_free.then_some(&self.calls)
    }

    /// Reads the bytes that are available without waiting.
    #[inline]
    fn read_now<T: IoBufMut>(&self, buf: &mut T, most: usize, at: At) -> Option<io::Result<usize>> {
        self.calls_now(at)?.read_into(self.fd().as_fd(), buf, most, at)
    }

    /// Writes as much as is possible without waiting.
    #[inline]
    fn write_now(&self, parts: &[IoSlice<'_>], at: At) -> Option<io::Result<usize>> {
        self.calls_now(at)?.write(self.fd().as_fd(), parts, at)
    }

    /// Writes without waiting as a rule: also where a write cannot refuse to wait, as long as such writes are
    /// quick on this file system.
    #[inline]
    fn write_soon(&self, parts: &[IoSlice<'_>], at: At) -> Option<io::Result<usize>> {
        self.calls_now(at)?.write_quickly(self.fd().as_fd(), parts, at)
    }

    /// Returns whether the file has more bytes from this position on, as far as it can tell.
    fn has_more(&self, at: At) -> bool {
        FileCalls::has_more(self.fd().as_fd(), at)
    }

    /// Counts a transfer at this place as under way, if it is at the position.
    fn begin_elsewhere(self: &Arc<Self>, at: At) -> Option<Moving> {
        at.is_none().then(|| {
            self.moving.fetch_add(1, Ordering::Relaxed);
            Moving(Arc::clone(self))
        })
    }

    #[inline]
    fn count_now(&self) {
        self.engine.shared.tally.count(|part| &part.now);
    }

    /// Returns the file as a thread of the engine knows it, and the driver's offset.
    fn at_on_thread(&self, at: At, thread: usize) -> io::Result<(Rc<fs::File>, u64)> {
        check(at)?;
        Ok((self.on_thread(thread)?, at.unwrap_or(CURRENT_POSITION)))
    }
}

fn bit(thread: usize) -> u64 {
    1 << thread.min(u64::BITS as usize - 1)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        let shared = &self.engine.shared;
        let is_remote = shared.paths.may_wait_for(fd.as_fd());
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
                spawn_to(remote, forget, shared.built_at).detach();
            }
        }
        if is_remote {
            close_elsewhere(fd);
        }
    }
}

/// Closes a file on another thread if closing may need a server's answer; the last owner closes it.
fn close_elsewhere(fd: Arc<OwnedFd>) {
    remote_pool().spawn(move || drop(fd)).detach();
}

impl File {
    pub(super) fn new(engine: &Engine, fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        Ok(Self::with_calls(engine, fd, FileCalls::with_flags(flags)))
    }

    pub(super) fn with_calls(engine: &Engine, fd: OwnedFd, calls: FileCalls) -> Self {
        let inner = Inner {
            engine: engine.clone(),
            number: engine.shared.files.fetch_add(1, Ordering::Relaxed),
            fd: Some(Arc::new(fd)),
            calls,
            known: AtomicU64::new(0),
            moving: AtomicUsize::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Reads up to 256 KiB from byte `offset` on into `buf`, at once, on the calling thread. `None` if that
    /// may block, or is not tried because it lately would have; use [`read_at`](File::read_at) then.
    ///
    /// `Some(Ok(0))` is the end of the file.
    ///
    /// # Errors
    /// As for [`read_at`](File::read_at); so an empty buffer is `EINVAL`.
    ///
    /// # Examples
    /// First without a wait, and with one only if need be:
    /// ```
    /// use sakia::Engine;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-try-read-at-{}", std::process::id()));
    /// std::fs::write(&path, "hello")?;
    /// let file = Engine::new()?.open(&path).wait()?;
    /// let mut buf = [0; 5];
    /// let count = match file.try_read_at(&mut buf, 0) {
    ///     Some(result) => result?,
    ///     None => {
    ///         let (result, bytes) = sakia::block_on(file.read_at(vec![0; 5], 0));
    ///         buf.copy_from_slice(&bytes);
    ///         result?
    ///     }
    /// };
    /// assert_eq!(&buf[..count], b"hello");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "RWF_NOWAIT")]
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Option<io::Result<usize>> {
        self.try_read_from(buf, Some(offset))
    }

    /// As [`try_read_at`](File::try_read_at), at the file's position, which moves.
    ///
    /// # Examples
    /// See [`File::try_read_at`].
    pub fn try_read(&self, buf: &mut [u8]) -> Option<io::Result<usize>> {
        self.try_read_from(buf, None)
    }

    fn try_read_from(&self, buf: &mut [u8], at: At) -> Option<io::Result<usize>> {
        let len = buf.len().min(limits::CALLER_BYTES);
        if len == 0 {
            return Some(Err(Errno::INVAL.into()));
        }
        let calls = self.inner.calls_now(at)?;
        let part = IoSliceMut::new(&mut buf[..len]);
        let result = calls.read(self.inner.fd().as_fd(), &mut [part], at)?;
        self.inner.count_now();
        Some(result)
    }

    /// Writes up to 256 KiB from byte `offset` on, at once, on the calling thread. `None` if that may block,
    /// as it may on most file systems, or if the file was opened to append; use [`write_at`](File::write_at)
    /// then.
    ///
    /// # Errors
    /// As [`write_at`](File::write_at).
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-try-write-at-{}", std::process::id()));
    /// let file = Engine::new()?.create(&path).wait()?;
    /// let count = match file.try_write_at(b"hello", 0) {
    ///     Some(result) => result?,
    ///     None => sakia::block_on(file.write_at("hello", 0)).0?,
    /// };
    /// assert_eq!(std::fs::read(&path)?, &b"hello"[..count]);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "RWF_NOWAIT")]
    pub fn try_write_at(&self, buf: &[u8], offset: u64) -> Option<io::Result<usize>> {
        self.try_write_to(buf, Some(offset))
    }

    /// As [`try_write_at`](File::try_write_at), at the file's position, which moves.
    ///
    /// # Examples
    /// See [`File::try_write_at`].
    pub fn try_write(&self, buf: &[u8]) -> Option<io::Result<usize>> {
        self.try_write_to(buf, None)
    }

    fn try_write_to(&self, buf: &[u8], at: At) -> Option<io::Result<usize>> {
        let len = buf.len().min(limits::CALLER_BYTES);
        let result = self.inner.write_now(&[IoSlice::new(&buf[..len])], at)?;
        self.inner.count_now();
        Some(result)
    }

    /// Reads up to `buf.len()` bytes (an empty `Vec`: up to its capacity) from byte `offset` on.
    ///
    /// Resolves to the number of bytes and the buffer; 0 means the end of the file. A `Vec` that was empty
    /// has as many bytes as were read: clear it before the next read, see [`IoBufMut`].
    ///
    /// # Errors
    /// - `EINVAL`: a buffer without room, direct I/O off the block size.
    /// - `EISDIR`: it is a directory. `ESPIPE`: it has no offsets.
    /// - `ECANCELED`: the engine was stopped. Otherwise as `pread(2)`; never `EINTR`.
    ///
    /// # Examples
    /// See [`Engine`](super::Engine#examples).
    #[doc(alias = "pread")]
    #[track_caller]
    pub fn read_at<T: IoBufMut + Send>(&self, buf: T, offset: u64) -> Request<ReadAt<T>> {
        Request::new(ReadAt::new(self, buf, Some(offset)))
    }

    /// Writes up to `buf.bytes_len()` bytes from byte `offset` on; at the end, if it was opened to append.
    ///
    /// Resolves to the number of bytes, which may be fewer than asked, and the buffer.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`, `EFBIG`: no room. Otherwise as [`read_at`](File::read_at) and `pwrite(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-engine-write-at-{}", std::process::id()));
    /// let file = Engine::new()?.create(&path).wait()?;
    /// let (result, text) = file.write_at("some text", 0).wait();
    /// assert_eq!((result?, text), (9, "some text"));
    /// file.sync_data().wait()?;
    /// assert_eq!(file.metadata().wait()?.len(), 9);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "pwrite")]
    #[track_caller]
    pub fn write_at<T: IoBuf + Send>(&self, buf: T, offset: u64) -> Request<WriteAt<T>> {
        Request::new(WriteAt { file: self.clone(), buf, at: Some(offset), done: 0 })
    }

    /// Reads up to `buf.len()` bytes (an empty `Vec`: up to its capacity) at the file's position, which
    /// moves. The position is the kernel's, and so common to all descriptors of the same open file; two reads
    /// at a time get their parts in no particular order. Also for files without offsets: FIFOs, terminals,
    /// sockets.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    ///
    /// # Examples
    /// At the position, which all descriptors of the open file share:
    /// ```
    /// use sakia::Engine;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-engine-read-{}", std::process::id()));
    /// std::fs::write(&path, "hello, world")?;
    /// let file = Engine::new()?.open(&path).wait()?;
    /// assert_eq!(file.read(vec![0; 7]).wait().1, b"hello, ");
    /// assert_eq!(sakia::block_on(file.read(vec![0; 5])).1, b"world");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn read<T: IoBufMut + Send>(&self, buf: T) -> Request<ReadAt<T>> {
        Request::new(ReadAt::new(self, buf, None))
    }

    /// Writes up to `buf.bytes_len()` bytes at the file's position, which moves, as for
    /// [`read`](File::read); at the end, if it was opened to append.
    ///
    /// # Errors
    /// As [`write_at`](File::write_at). `EPIPE`: the FIFO or socket has no reader.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-engine-write-{}", std::process::id()));
    /// let file = Engine::new()?.create(&path).wait()?;
    /// file.write("one ").wait().0?;
    /// sakia::block_on(file.write("two")).0?;
    /// assert_eq!(std::fs::read(&path)?, b"one two");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn write<T: IoBuf + Send>(&self, buf: T) -> Request<WriteAt<T>> {
        Request::new(WriteAt { file: self.clone(), buf, at: None, done: 0 })
    }

    /// As [`read_at`](File::read_at), filling one buffer after the other, each `Vec` that is empty up to its
    /// capacity. At most the first 1024 are used.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-engine-vectored-{}", std::process::id()));
    /// let engine = Engine::new()?;
    /// let file = engine.create(&path).wait()?;
    /// file.write_vectored_at(vec!["head, ", "body"], 0).wait().0?;
    /// let file = engine.open(&path).wait()?;
    /// let (result, bufs) = file.read_vectored_at(vec![vec![0; 4], vec![0; 6]], 0).wait();
    /// assert_eq!((result?, &bufs[0][..], &bufs[1][..]), (10, &b"head"[..], &b", body"[..]));
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "preadv")]
    #[track_caller]
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
    ///
    /// # Examples
    /// See [`File::read_vectored_at`].
    #[doc(alias = "pwritev")]
    #[track_caller]
    pub fn write_vectored_at<T: IoBuf + Send>(
        &self,
        bufs: Vec<T>,
        offset: u64,
    ) -> Request<WriteVectoredAt<T>> {
        Request::new(WriteVectoredAt { file: self.clone(), bufs, offset })
    }

    /// Writes all of `buf`, from byte `offset` on, so that it is there after a power failure: as if
    /// [`sync_data`](File::sync_data) were called for these bytes alone. A file opened to append is written
    /// at its end. After an error an unknown part of `buf` is written.
    ///
    /// # Errors
    /// `EIO`: it could not be made durable; a second attempt that succeeds proves nothing. `WriteZero`: the
    /// kernel takes no bytes. Otherwise as [`write_at`](File::write_at).
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-engine-durable-{}", std::process::id()));
    /// let journal = Engine::new()?.create(&path).wait()?;
    /// sakia::block_on(journal.write_durable_at("begin\n", 0)).0?;
    /// assert_eq!(std::fs::read(&path)?, b"begin\n");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Kernel
    /// 4.7 (`RWF_DSYNC`); on file systems without support for it, a write and `fdatasync(2)`.
    #[doc(alias = "RWF_DSYNC")]
    #[track_caller]
    pub fn write_durable_at<T: IoBuf + Send>(
        &self,
        buf: T,
        offset: u64,
    ) -> Request<WriteDurableAt<T>> {
        Request::new(WriteDurableAt { file: self.clone(), buf, offset })
    }

    /// Makes contents and metadata durable.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EDQUOT`: some of it is not durable. `ECANCELED`: the engine was stopped. Otherwise
    /// as `fsync(2)`.
    ///
    /// # Examples
    /// See [`File::write_at`].
    #[doc(alias = "fsync")]
    #[track_caller]
    pub fn sync_all(&self) -> Request<SyncFile> {
        Request::new(SyncFile { file: self.clone(), is_data: false })
    }

    /// Makes contents durable, and as much of the metadata as it takes to read them.
    ///
    /// # Errors
    /// As [`sync_all`](File::sync_all).
    ///
    /// # Examples
    /// See [`File::write_at`].
    #[doc(alias = "fdatasync")]
    #[track_caller]
    pub fn sync_data(&self) -> Request<SyncFile> {
        Request::new(SyncFile { file: self.clone(), is_data: true })
    }

    /// Returns the file's metadata.
    ///
    /// # Errors
    /// `EMFILE`: no descriptor left to ask with. Otherwise as `statx(2)`.
    ///
    /// # Examples
    /// See [`File::write_at`].
    #[track_caller]
    pub fn metadata(&self) -> Request<Blocking<std::fs::Metadata>> {
        self.on_file(|file| file.metadata(), true)
    }

    /// Cuts the file off at `len` bytes, or lengthens it by zeros.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-engine-set-len-{}", std::process::id()));
    /// let file = Engine::new()?.create(&path).wait()?;
    /// file.set_len(100).wait()?;
    /// assert_eq!(file.metadata().wait()?.len(), 100);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "ftruncate")]
    #[track_caller]
    pub fn set_len(&self, len: u64) -> Request<Blocking<()>> {
        self.on_file(move |file| file.set_len(len), false)
    }

    /// Sets the file's access rights.
    ///
    /// # Errors
    /// As `fchmod(2)`.
    #[doc(alias = "fchmod")]
    #[track_caller]
    pub fn set_permissions(&self, permissions: std::fs::Permissions) -> Request<Blocking<()>> {
        self.on_file(move |file| file.set_permissions(permissions), false)
    }

    /// Calls `std` with the file. On a local file a short call is made at once.
    #[track_caller]
    fn on_file<T: Send + 'static>(
        &self,
        call: impl FnOnce(std::fs::File) -> io::Result<T> + Send + 'static,
        is_quick: bool,
    ) -> Request<Blocking<T>> {
        let (engine, fd) = (&self.inner.engine, self.inner.fd());
        let is_remote = engine.shared.paths.may_wait_for(fd.as_fd());
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

/// For system calls that this type does not offer.
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

/// Refuses offsets that the kernel does not support, or may take for the position.
#[inline]
fn check(at: At) -> io::Result<()> {
    match at {
        Some(offset) if offset > i64::MAX as u64 => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}
