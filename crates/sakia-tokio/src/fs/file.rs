//! An open file, whose position is the kernel's.
//!
//! At most one operation is in flight, as the traits of tokio are polled one call at a time:
//!
//! 1. A read takes the rest of an earlier one; otherwise cached bytes, by one call in place; otherwise it
//!    starts a read on the engine, into memory of its own, since the caller's is lent for the poll only. A
//!    read that may block for ever runs on a thread.
//! 2. A write that does not block is made in place. Any other copies its bytes, starts, and is ready; the
//!    next call reports its error. An abandoned read has moved the position beyond the bytes taken, so a
//!    write moves it back first.
//! 3. The next call waits for the operation in flight.
//!
//! Dropping the file lets a write in flight finish; see [`lane`](crate::lane).

use std::fmt;
use std::fs::{Metadata, Permissions};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::{Duration, SystemTime};

use sakia::Engine;
use sakia::engine::__private::{Half, Halves, copy_error, repeated};
use sakia::engine::{ReadShared, Request};
use sakia_driver::{FileCalls, Lane, limits};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};
use tokio::sync::Mutex;
use tokio::task::coop::{consume_budget, poll_proceed};

use super::buffer::{Unread, make_room};
use super::handle::{Handle, Lent, step_back};
use super::{FileTimes, OpenOptions};
use crate::lane::{Job, Lasting, begin, begin_lasting};

/// The default limit of one operation in bytes, see [`File::set_max_buf_size`].
const MAX_BUF_SIZE: usize = 2 << 20;
/// Bytes per unit of a task's cooperative budget. A task has 128 units before it yields.
const BYTES_PER_UNIT: usize = 64 << 10;

/// An open file, as a replacement for `tokio::fs::File`.
///
/// Reads and writes use tokio's traits, at the kernel's position of the open file; its other users, such as
/// a [clone](File::try_clone), share the position.
///
/// A read of cached data is one system call within the poll. A write is ready once its bytes are copied; the
/// next call waits for its completion and reports its error. So [flush](AsyncWrite::poll_flush) at the end.
/// Dropping the file closes it after such a write.
///
/// # Examples
/// ```
/// use std::io::SeekFrom;
///
/// use sakia_tokio::fs::File;
/// use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("sakia-tokio-file-{}", std::process::id()));
/// let mut file = File::create_new(&path).await?;
/// file.write_all(b"hello, world").await?;
/// file.seek(SeekFrom::Start(7)).await?;
/// let mut word = String::new();
/// file.read_to_string(&mut word).await?;
/// assert_eq!(word, "world");
/// # std::fs::remove_file(&path)
/// # }
/// ```
pub struct File {
    handle: Handle,
    /// Locked by calls that take `&self`. The traits have exclusive access.
    inner: Mutex<Inner>,
    max_buf_size: usize,
}

#[derive(Default)]
struct Inner {
    flight: Option<Flight>,
    /// The wakers of tasks that wait for the operation in flight.
    halves: Halves,
    /// The rest of the last read. The kernel's position is after it.
    unread: Unread,
    /// The offset in its memory where the read in flight begins.
    read_start: usize,
    /// Memory of the last write, for reuse.
    spare: Vec<u8>,
    /// The error of a write whose own call has returned already, kept for the next write or flush.
    write_error: Option<io::Error>,
    /// The result of a read that was not reported yet.
    read_ended: Option<io::Result<()>>,
    /// The error of a seek that was not reported yet.
    seek_error: Option<io::Error>,
    /// The result of setting the length, kept for its caller.
    cut: Option<io::Result<()>>,
    /// The position after the last seek.
    position: u64,
    /// The inline calls that the file supports.
    calls: FileCalls,
}

/// An operation in flight. Reads return their memory, with the bytes at its beginning.
enum Flight {
    /// On the engine, at byte `offset`.
    Request {
        request: Request<ReadShared<Vec<u8>>>,
        lent: Lent,
        offset: u64,
    },
    /// On a thread.
    Read(Job<(io::Result<usize>, Vec<u8>)>),
    /// Returns its memory.
    Write(Lasting<Job<(io::Result<()>, Vec<u8>)>>),
    Seek(Job<io::Result<u64>>),
    Length(Lasting<Job<io::Result<()>>>),
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`std::fs::File::open`].
    ///
    /// # Examples
    /// See [`sakia_tokio`](crate#examples).
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::options().read(true).open(path).await
    }

    /// Opens a file for writing: creates it if it is missing, and truncates it if it exists.
    ///
    /// # Errors
    /// As [`std::fs::File::create`].
    ///
    /// # Examples
    /// See [`sakia_tokio`](crate#examples).
    pub async fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::options().write(true).create(true).truncate(true).open(path).await
    }

    /// Creates a file for reading and writing. It must not exist yet.
    ///
    /// # Errors
    /// As [`std::fs::File::create_new`].
    ///
    /// # Examples
    /// See [`File`](File#examples).
    pub async fn create_new<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        Self::options().read(true).write(true).create_new(true).open(path).await
    }

    /// Returns options to open a file.
    ///
    /// # Examples
    /// See [`OpenOptions`](super::OpenOptions#examples).
    #[must_use]
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Takes a file that `std` opened, at its position.
    ///
    /// # Examples
    /// ```
    /// use std::io::{Read, Seek, SeekFrom};
    ///
    /// use sakia_tokio::fs::File;
    /// use tokio::io::AsyncReadExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let mut program = std::fs::File::open(std::env::current_exe()?)?;
    /// program.seek(SeekFrom::Start(1))?;
    /// let mut file = File::from_std(program);
    /// let mut letters = [0; 2];
    /// file.read_exact(&mut letters).await?;
    /// assert_eq!(&letters, b"EL");
    ///
    /// let mut program = file.into_std().await;
    /// program.read_exact(&mut letters[..1])?;
    /// assert_eq!(letters[0], b'F');
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_std(std: std::fs::File) -> Self {
        Self::new(Handle::shared(std), FileCalls::default())
    }

    pub(super) fn new(handle: Handle, calls: FileCalls) -> Self {
        let inner = Mutex::new(Inner { calls, ..Inner::default() });
        Self { handle, inner, max_buf_size: MAX_BUF_SIZE }
    }

    /// Makes contents and metadata durable, after the write in flight.
    ///
    /// # Errors
    /// As `fsync(2)`. The error of the write in flight, which the next write or flush reports, too.
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs::File;
    /// use tokio::io::AsyncWriteExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("sakia-tokio-sync-all-{}", std::process::id()));
    /// let mut file = File::create(&path).await?;
    /// file.write_all(b"hello").await?;
    /// // The write, too, is done and durable afterwards.
    /// file.sync_all().await?;
    /// assert_eq!(std::fs::read(&path)?, b"hello");
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "fsync")]
    pub async fn sync_all(&self) -> io::Result<()> {
        self.after_write(|std| std.sync_all()).await
    }

    /// Makes contents durable, and the metadata needed to read them.
    ///
    /// # Errors
    /// As [`sync_all`](File::sync_all).
    ///
    /// # Examples
    /// See [`File::sync_all`].
    #[doc(alias = "fdatasync")]
    pub async fn sync_data(&self) -> io::Result<()> {
        self.after_write(|std| std.sync_data()).await
    }

    /// Truncates the file to `size` bytes, or extends it with zeros, after the write in flight.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs::File;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("sakia-tokio-set-len-{}", std::process::id()));
    /// let file = File::create(&path).await?;
    /// file.set_len(100).await?;
    /// assert_eq!(file.metadata().await?.len(), 100);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ftruncate")]
    pub async fn set_len(&self, size: u64) -> io::Result<()> {
        let mut inner = self.inner.lock().await;
        inner.settle(&self.handle.std).await?;
        let std = Arc::clone(&self.handle.std);
        let job = begin_lasting(self.handle.lane(), move || std.set_len(size));
        inner.flight = Some(Flight::Length(job));
        inner.finish().await;
        inner.cut.take().unwrap_or(Ok(()))
    }

    /// Returns the file's metadata.
    ///
    /// # Errors
    /// As `fstat(2)`.
    ///
    /// # Examples
    /// See [`File::set_len`].
    #[doc(alias = "fstat")]
    pub async fn metadata(&self) -> io::Result<Metadata> {
        if self.handle.lane() == Lane::Bounded {
            consume_budget().await;
            return self.handle.std.metadata();
        }
        let std = Arc::clone(&self.handle.std);
        begin(Lane::Elastic, move || std.metadata()).await?
    }

    /// Returns another handle of the same open file: both share one position.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: too many are open.
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs::File;
    /// use tokio::io::AsyncWriteExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("sakia-tokio-clone-{}", std::process::id()));
    /// let mut file = File::create(&path).await?;
    /// let mut clone = file.try_clone().await?;
    /// file.write_all(b"one ").await?;
    /// file.flush().await?;
    /// clone.write_all(b"two").await?;
    /// clone.flush().await?;
    /// assert_eq!(std::fs::read(&path)?, b"one two");
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "dup")]
    pub async fn try_clone(&self) -> io::Result<Self> {
        // As in `into_std`.
        self.inner.lock().await.settle(&self.handle.std).await.ok();
        let mut file = Self::new(self.handle.try_clone()?, FileCalls::default());
        file.max_buf_size = self.max_buf_size;
        Ok(file)
    }

    /// Returns the file, after the write in flight, at its position.
    ///
    /// # Examples
    /// See [`File::from_std`].
    pub async fn into_std(mut self) -> std::fs::File {
        // An unread rest without a position to restore is lost without an error.
        self.inner.get_mut().settle(&self.handle.std).await.ok();
        loop {
            self.handle.std = match Arc::try_unwrap(self.handle.std) {
                Ok(std) => return std,
                Err(std) => std,
            };
            // A call by `&self` was abandoned, and continues by itself.
            begin(Lane::Bounded, || thread::sleep(Duration::from_millis(1))).await.ok();
        }
    }

    /// Returns the file, at its position.
    ///
    /// # Errors
    /// The file unchanged, if an operation is in flight.
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs::File;
    /// use tokio::io::AsyncWriteExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("sakia-tokio-try-into-{}", std::process::id()));
    /// let mut file = File::create(&path).await?;
    /// file.write_all(b"hello").await?;
    /// file.flush().await?;
    /// let file = file.try_into_std().expect("nothing is in flight");
    /// assert_eq!(file.metadata()?.len(), 5);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::result_large_err, reason = "it is the file itself")]
    pub fn try_into_std(mut self) -> Result<std::fs::File, Self> {
        let inner = self.inner.get_mut();
        if inner.flight.is_none() {
            inner.put_back(&self.handle.std).ok();
        }
        match Arc::try_unwrap(self.handle.std) {
            Ok(std) => Ok(std),
            Err(std) => {
                self.handle.std = std;
                Err(self)
            }
        }
    }

    /// Sets the permissions.
    ///
    /// # Errors
    /// As `fchmod(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::fs::Permissions;
    /// use std::os::unix::fs::PermissionsExt;
    ///
    /// use sakia_tokio::fs::File;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("sakia-tokio-permissions-{}", std::process::id()));
    /// let file = File::create(&path).await?;
    /// file.set_permissions(Permissions::from_mode(0o600)).await?;
    /// assert_eq!(file.metadata().await?.permissions().mode() & 0o777, 0o600);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "fchmod")]
    pub async fn set_permissions(&self, perm: Permissions) -> io::Result<()> {
        let std = Arc::clone(&self.handle.std);
        begin_lasting(self.handle.lane(), move || std.set_permissions(perm)).await?
    }

    /// Sets the file's times, after the operation in flight.
    ///
    /// # Errors
    /// As `futimens(3)`. The error of the write in flight, as with [`sync_all`](File::sync_all).
    ///
    /// # Examples
    /// ```
    /// use std::time::{Duration, SystemTime};
    ///
    /// use sakia_tokio::fs::{File, FileTimes};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("sakia-tokio-times-{}", std::process::id()));
    /// let file = File::create(&path).await?;
    /// let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    /// file.set_times(FileTimes::new().set_modified(then)).await?;
    /// assert_eq!(file.metadata().await?.modified()?, then);
    /// # std::fs::remove_file(&path)
    /// # }
    /// ```
    #[doc(alias = "futimens")]
    pub async fn set_times(&self, times: FileTimes) -> io::Result<()> {
        self.after_write(move |std| std.set_times(times.into())).await
    }

    /// Sets the time of the last modification, as [`set_times`](File::set_times).
    ///
    /// # Errors
    /// As [`set_times`](File::set_times).
    ///
    /// # Examples
    /// See [`File::set_times`].
    pub async fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.set_times(FileTimes::new().set_modified(time)).await
    }

    /// Sets the limit of bytes that one operation reads or writes. The default is 2 MiB.
    ///
    /// # Panics
    /// If it is 0.
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs::File;
    /// use tokio::io::AsyncWriteExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("sakia-tokio-buf-size-{}", std::process::id()));
    /// let mut file = File::create(&path).await?;
    /// file.set_max_buf_size(1 << 16);
    /// assert_eq!(file.write(&vec![0; 1 << 20]).await?, 1 << 16);
    /// file.flush().await?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn set_max_buf_size(&mut self, max_buf_size: usize) {
        assert!(max_buf_size > 0, "an operation has at least one byte");
        self.max_buf_size = max_buf_size;
    }

    /// Returns the limit of bytes that one operation reads or writes.
    ///
    /// # Examples
    /// See [`File::set_max_buf_size`].
    pub fn max_buf_size(&self) -> usize {
        self.max_buf_size
    }

    /// Runs a request after the operation in flight, if that succeeded.
    async fn after_write(
        &self,
        f: impl FnOnce(&std::fs::File) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let mut inner = self.inner.lock().await;
        inner.finish().await;
        if let Some(error) = &inner.write_error {
            return Err(copy_error(error));
        }
        let std = Arc::clone(&self.handle.std);
        begin_lasting(self.handle.lane(), move || f(&std)).await?
    }
}

impl Inner {
    /// Waits for the operation in flight, and keeps its result: bytes, a position, the error of a write.
    fn poll_landed(&mut self, cx: &Context<'_>, half: Half) -> Poll<()> {
        let Some(flight) = &mut self.flight else { return Poll::Ready(()) };
        let cx = &mut Context::from_waker(self.halves.register(half, cx));
        match flight {
            Flight::Request { request, lent, offset } => {
                let (result, memory) = ready!(Pin::new(request).poll(cx));
                let moved = result.and_then(|count| {
                    (&*lent.std).seek(SeekFrom::Start(*offset + count as u64)).map(|_| count)
                });
                self.end_read(moved, memory);
            }
            Flight::Read(job) => {
                let result = ready!(Pin::new(job).poll(cx));
                let (result, memory) = result.unwrap_or_else(|error| (Err(error), Vec::new()));
                self.end_read(result, memory);
            }
            Flight::Write(job) => {
                let result = ready!(Pin::new(job).poll(cx));
                let result = result.and_then(|(result, memory)| {
                    self.spare = memory;
                    result
                });
                self.write_error = result.err();
            }
            Flight::Seek(job) => {
                let result = ready!(Pin::new(job).poll(cx));
                self.end_seek(result.flatten());
            }
            Flight::Length(job) => {
                let result = ready!(Pin::new(job).poll(cx));
                self.cut = Some(result.flatten());
            }
        }
        self.flight = None;
        Poll::Ready(())
    }

    /// Waits for a write in flight, and returns the error of the last one.
    fn poll_written(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.write_error.is_none() {
            ready!(self.poll_landed(cx, Half::Writing));
            self.forget();
        }
        Poll::Ready(self.write_error.take().map_or(Ok(()), Err))
    }

    /// Keeps the bytes of a read.
    fn end_read(&mut self, result: io::Result<usize>, memory: Vec<u8>) {
        let count = *result.as_ref().unwrap_or(&0);
        self.unread = Unread { memory, at: self.read_start..self.read_start + count };
        self.read_ended = Some(result.map(|_| ()));
    }

    /// Waits for the operation in flight.
    async fn finish(&mut self) {
        poll_fn(|cx| self.poll_landed(cx, Half::Writing)).await;
        self.forget();
    }

    /// Forgets the results of a read and a seek whose callers are gone. While the error of a write is kept, a
    /// call returns that, and the seek is reported to the next one.
    fn forget(&mut self) {
        self.read_ended = None;
        if self.write_error.is_none() {
            self.seek_error = None;
        }
    }

    /// Waits for the operation in flight, and moves the position back to the first unread byte.
    async fn settle(&mut self, file: &std::fs::File) -> io::Result<()> {
        self.finish().await;
        self.put_back(file)
    }

    /// Moves the position back to the first unread byte. A file without a position keeps the bytes for the
    /// next read. They are given up if another user has moved the position to where that is impossible.
    fn put_back(&mut self, file: &std::fs::File) -> io::Result<()> {
        if self.unread.len() == 0 {
            return Ok(());
        }
        let has_moved = step_back(file, self.unread.len());
        if !matches!(has_moved, Ok(false)) {
            self.unread.at = 0..0;
        }
        has_moved.map(drop)
    }

    fn end_seek(&mut self, result: io::Result<u64>) {
        self.seek_error = result.map(|position| self.position = position).err();
    }

    /// Starts a read of up to `count` bytes that may block. Nothing is in flight or unread.
    fn begin_read(&mut self, handle: &Handle, count: usize) {
        let lent = handle.lend();
        let mut memory = std::mem::take(&mut self.unread).memory;
        let start = make_room(&mut memory, count, handle.is_direct());
        memory.resize(start + count, 0);
        self.read_start = start;
        self.flight = Some(match handle.lane() {
            Lane::Bounded
                if !handle.is_shared()
                    && start == 0
                    && let Ok(engine) = Engine::global()
                    && let Ok(offset) = (&*lent.std).stream_position() =>
            {
                // With an offset, since a ring does not always move the position; the file is not shared.
                let request = engine.read_shared(&lent.std, memory, offset).submit();
                Flight::Request { request, lent, offset }
            }
            lane => Flight::Read(begin(lane, move || {
                let result = repeated(|| (&*lent.std).read(&mut memory[start..]));
                (result, memory)
            })),
        });
    }
}

/// Charges the task's budget for copying these bytes, besides the unit for the call.
fn spend(cx: &mut Context<'_>, count: usize) {
    for _ in 0..count / BYTES_PER_UNIT {
        let Poll::Ready(unit) = poll_proceed(cx) else { break };
        unit.made_progress();
    }
}

/// A read returns cached bytes, or those of one call that may wait.
impl AsyncRead for File {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let turn = ready!(poll_proceed(cx));
        let Self { handle, inner, max_buf_size } = self.get_mut();
        let inner = inner.get_mut();
        ready!(inner.poll_landed(cx, Half::Reading));
        inner.seek_error = None;
        let count = buf.remaining().min(*max_buf_size);
        if inner.read_ended.is_none() && inner.unread.len() == 0 && count > 0 {
            if !handle.is_in_use() {
                let part = buf.initialize_unfilled_to(count.min(limits::CALLER_BYTES));
                let part = &mut [IoSliceMut::new(part)];
                if let Some(result) = inner.calls.read(handle.std.as_fd(), part, None) {
                    turn.made_progress();
                    return Poll::Ready(result.map(|count| {
                        buf.advance(count);
                        spend(cx, count);
                    }));
                }
            }
            inner.begin_read(handle, count);
            ready!(inner.poll_landed(cx, Half::Reading));
        }
        turn.made_progress();
        // For this caller, or for an earlier one that did not return.
        let result = inner.read_ended.take().unwrap_or(Ok(()));
        inner.unread.take(buf);
        Poll::Ready(result)
    }
}

/// A write is ready once its bytes are copied. The next call waits for it, and reports its error.
impl AsyncWrite for File {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let turn = ready!(poll_proceed(cx));
        let Self { handle, inner, max_buf_size } = self.get_mut();
        let inner = inner.get_mut();
        let written = ready!(inner.poll_written(cx));
        turn.made_progress();
        written?;
        let count = bufs.iter().map(|buf| buf.len()).fold(0, usize::saturating_add);
        if let Err(error) = inner.put_back(&handle.std) {
            inner.write_error = Some(error);
            return Poll::Ready(Ok(count.min(*max_buf_size)));
        }
        let is_small =
            count <= limits::CALL_BYTES.min(*max_buf_size) && bufs.len() <= limits::BUFFERS_MAX;
        if count == 0 {
            return Poll::Ready(Ok(0));
        }
        let (calls, fd) = (&inner.calls, handle.std.as_fd());
        let write_now = || calls.write_quickly(fd, bufs, None);
        let now = is_small && !handle.is_in_use();
        let done = match now.then(write_now).flatten() {
            Some(Ok(done)) => done,
            Some(Err(error)) => {
                inner.write_error = Some(error);
                count
            }
            None => 0,
        };
        if done == count {
            return Poll::Ready(Ok(count));
        }
        let mut bytes = std::mem::take(&mut inner.spare);
        let start = make_room(&mut bytes, count.min(*max_buf_size), handle.is_direct());
        for buf in bufs {
            let room = start + *max_buf_size - bytes.len();
            bytes.extend_from_slice(&buf[..buf.len().min(room)]);
        }
        let count = bytes.len() - start;
        let lent = handle.lend();
        let write = move || {
            let result = (&*lent.std).write_all(&bytes[start + done..]);
            bytes.clear();
            (result, bytes)
        };
        inner.flight = Some(Flight::Write(begin_lasting(handle.lane(), write)));
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner.get_mut().poll_written(cx)
    }

    /// Flushes. The file stays open.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

impl AsyncSeek for File {
    /// # Errors
    /// An operation is in flight: `poll_complete` comes first.
    fn start_seek(self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        let Self { handle, inner, .. } = self.get_mut();
        let inner = inner.get_mut();
        if inner.flight.is_some() {
            return Err(io::Error::other("a seek begins when nothing else is under way"));
        }
        inner.read_ended = None;
        let count = inner.unread.len() as i64;
        let position = match (inner.put_back(&handle.std), position) {
            (Err(_), SeekFrom::Current(offset)) => SeekFrom::Current(offset.saturating_sub(count)),
            (_, position) => position,
        };
        // The end of a file may be known to another machine only.
        let asks = matches!(position, SeekFrom::End(_)) && handle.lane() == Lane::Elastic;
        if asks || handle.is_in_use() {
            let lent = handle.lend();
            let seek = move || (&*lent.std).seek(position);
            inner.flight = Some(Flight::Seek(begin(handle.lane(), seek)));
        } else {
            inner.end_seek((&*handle.std).seek(position));
        }
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let inner = self.get_mut().inner.get_mut();
        ready!(inner.poll_landed(cx, Half::Reading));
        inner.read_ended = None;
        Poll::Ready(inner.seek_error.take().map_or(Ok(inner.position), Err))
    }
}

impl From<std::fs::File> for File {
    fn from(std: std::fs::File) -> Self {
        Self::from_std(std)
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> Self {
        Self::from_std(fd.into())
    }
}

/// For other system calls. They do not wait for the operation in flight.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.std.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.std.as_raw_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("std", &self.handle.std).finish_non_exhaustive()
    }
}
