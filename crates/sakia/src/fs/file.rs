//! An open file: positional reads and writes, and operations on it as a whole.
//!
//! Buffers go in by value and come back with the result. `EINTR` starts an operation again; `EAGAIN`,
//! which comes from FIFOs and the like that were opened non-blocking, waits until the file is ready.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};
use sakia_driver::{
    Begun, BufResult, CURRENT_POSITION, Fd, FileKind, Handle, IoBuf, IoBufMut, PollEvents,
    RegisteredBuf, Room, SyncRange, limits,
};

use super::direct::Direct;
use super::{Metadata, OpenOptions, stat_open, uninterrupted};
use crate::error::Result;
use crate::executor::current;
use crate::io::transfer::{self, buf_try, may_retry, read_exact, retrying};

/// A file, open to be read or written.
///
/// Reads and writes at an offset (`*_at`) take `&self`: any number of them may be under way. They are
/// not ordered among each other; await one before starting what depends on it. Those at the file's
/// position (`read`, `write`, `seek`) take `&mut self`, in order; the position is kept here and not in
/// the kernel, so it stays apart from other descriptors of the same open file.
///
/// It belongs to the runtime thread on which it was opened. Dropping it closes the file with that thread's
/// next turn; [`close`](File::close) returns the result. When the runtime has ended, operations end with
/// `ECANCELED`.
///
/// Errors of reads and writes are the kernel's, with its errno; those of opening name the path.
///
/// # Examples
/// ```
/// use sakia::fs::File;
/// use sakia::io::BufResultExt;
///
/// # let path = std::env::temp_dir().join(format!("sakia-file-{}", std::process::id()));
/// sakia::block_on(async {
///     let file = File::create(&path).await?;
///     file.write_all_at("hello, world", 0).await.value()?;
///     file.sync_data().await?;
///
///     let file = File::open(&path).await?;
///     let bytes = file.read_exact_at(vec![0; 5], 7).await.buffer()?;
///     assert_eq!(bytes, b"world");
/// #   std::fs::remove_file(&path)?;
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
pub struct File {
    pub(super) fd: Fd,
    pub(super) driver: Handle,
    pub(crate) position: Position,
    /// Set if it was opened with `O_APPEND`: the kernel ignores offsets of writes.
    pub(super) appends: bool,
    /// Set if it was opened with `O_DSYNC` or `O_SYNC`: each write is durable by itself.
    syncs_writes: bool,
    /// `Some` if the file was opened with `O_DIRECT`.
    pub(super) direct: Option<Box<Direct>>,
}

/// The offset of the next read or write that names none. Shared by the clones of a file.
#[derive(Debug, Default)]
pub(crate) struct Position {
    own: Cell<u64>,
    /// Takes the place of `own` once there are clones.
    shared: OnceCell<Rc<Cell<u64>>>,
}

impl Position {
    fn cell(&self) -> &Cell<u64> {
        self.shared.get().map_or(&self.own, |shared| shared)
    }

    pub(crate) fn get(&self) -> u64 {
        self.cell().get()
    }

    pub(crate) fn set(&self, position: u64) {
        self.cell().set(position);
    }

    fn share(&self) -> Self {
        let shared = self.shared.get_or_init(|| Rc::new(Cell::new(self.own.get())));
        Self { own: Cell::new(0), shared: OnceCell::from(Rc::clone(shared)) }
    }
}

impl File {
    pub(super) fn new(fd: Fd, driver: Handle, flags: OFlags) -> Self {
        let direct = flags.contains(OFlags::DIRECT).then(Box::default);
        let appends = flags.contains(OFlags::APPEND);
        // On some backends of `rustix` this name stands for `O_SYNC`, which includes `O_DSYNC`.
        let syncs_writes = flags.intersects(OFlags::DSYNC);
        Self { fd, driver, position: Position::default(), appends, syncs_writes, direct }
    }

    /// Opens a file to read it.
    ///
    /// # Cancel safety
    /// If the future is dropped, a newly opened descriptor is closed.
    ///
    /// # Errors
    /// See [`OpenOptions::open`].
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`File`](File#examples).
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().read(true).open(path).await
    }

    /// Opens a file to write it: makes it if there is none, and empties it if there is one.
    ///
    /// # Cancel safety
    /// If the future is dropped, a newly opened descriptor is closed. The file may have been made or emptied
    /// by then.
    ///
    /// # Errors
    /// See [`OpenOptions::open`].
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`File`](File#examples).
    pub async fn create(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path).await
    }

    /// Makes a file, to read and write it.
    ///
    /// # Cancel safety
    /// If the future is dropped, a newly opened descriptor is closed. The file may have been made by then.
    ///
    /// # Errors
    /// `EEXIST`: the name exists, if only as a dangling link. Otherwise see
    /// [`OpenOptions::open`].
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// use sakia::fs::File;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-create-new-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// File::create_new(&path).await?;
    /// let error = File::create_new(&path).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn create_new(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().read(true).write(true).create_new(true).open(path).await
    }

    /// Returns options for opening a file.
    ///
    /// # Examples
    /// See [`OpenOptions`](super::OpenOptions#examples).
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Takes over a file that `std` opened, with its position and its flags.
    ///
    /// # Errors
    /// As `fcntl(2)` and `lseek(2)`.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// ```
    /// use std::io::{Read, Seek, SeekFrom};
    ///
    /// use sakia::fs::File;
    /// use sakia::io::BufResultExt;
    ///
    /// # sakia::block_on(async {
    /// let mut program = std::fs::File::open(std::env::current_exe()?)?;
    /// program.seek(SeekFrom::Start(1))?;
    /// let mut file = File::from_std(program)?;
    /// assert_eq!(file.read_exact(vec![0; 2]).await.buffer()?, b"EL");
    ///
    /// let mut program = file.into_std().await?;
    /// let mut last = [0];
    /// program.read_exact(&mut last)?;
    /// assert_eq!(&last, b"F");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn from_std(file: std::fs::File) -> io::Result<Self> {
        Self::try_from(OwnedFd::from(file))
    }

    /// Gives the file to `std` once the operations under way on it have ended, at the position it has here,
    /// and in blocking mode. The descriptor's number may change.
    ///
    /// # Cancel safety
    /// Dropping the future closes the file.
    ///
    /// # Errors
    /// `EMFILE`: a FIFO, or a file with clones of operations under way, needs another descriptor. As
    /// `close(2)`, `fcntl(2)` and `lseek(2)`. The file is closed then.
    ///
    /// # Panics
    /// On a simulated kernel.
    ///
    /// # Examples
    /// See [`File::from_std`].
    pub async fn into_std(self) -> io::Result<std::fs::File> {
        let position = (!self.is_stream()).then(|| self.position.get());
        let is_bounded = self.fd.kind() == FileKind::Bounded;
        let fd = match self.fd {
            fd if !is_bounded => Err(fd),
            fd => fd.into_owned(),
        };
        let fd = match fd {
            Ok(fd) => fd,
            Err(fd) => {
                // Operations of dropped futures still use the descriptor, or the driver watches it. Closing
                // it waits for the former and ends the latter.
                let duplicate = fd.as_fd().try_clone_to_owned()?;
                self.driver.close(fd).await?;
                duplicate
            }
        };
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        if flags.contains(OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK)?;
        }
        if let Some(position) = position {
            rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(position))?;
        }
        Ok(fd.into())
    }

    /// Returns another descriptor for the same open file: position, flags and locks are shared.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptors left.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::File;
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-try-clone-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let mut file = File::create(&path).await?;
    /// let mut clone = file.try_clone()?;
    /// file.write_all("one ").await.value()?;
    /// clone.write_all("two").await.value()?;
    /// assert_eq!(sakia::fs::read(&path).await?, b"one two");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn try_clone(&self) -> io::Result<Self> {
        let fd = current().driver.adopt(self.fd.as_fd().try_clone_to_owned()?);
        Ok(Self {
            fd,
            driver: super::driver(),
            position: self.position.share(),
            appends: self.appends,
            syncs_writes: self.syncs_writes,
            direct: self.direct.is_some().then(Box::default),
        })
    }

    /// Closes the file, and returns the result. It waits for operations under way on the file, and cancels
    /// those that may wait for ever. Dropping closes it too, a little later, and reports nothing.
    ///
    /// Success does not mean that the contents are durable; see [`sync_all`](File::sync_all).
    ///
    /// # Cancel safety
    /// Dropping the future loses the result; the file is closed all the same.
    ///
    /// # Errors
    /// As `close(2)`: `EIO`, `ENOSPC` or `EDQUOT` may come from network file systems. The descriptor is
    /// gone in any case.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, File};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-close-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let file = File::create(&path).await?;
    /// file.write_all_at("all of it", 0).await.value()?;
    /// file.close().await?;
    /// assert_eq!(fs::read(&path).await?, b"all of it");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_close(3)`.
    pub async fn close(self) -> io::Result<()> {
        self.driver.close(self.fd).await
    }

    /// Returns whether the file has no offsets: a FIFO, a terminal, a device.
    pub(super) fn is_stream(&self) -> bool {
        self.fd.kind() == FileKind::Waiting
    }

    /// Reads once, by way of this descriptor or another one of the file.
    pub(super) async fn read_once<T: IoBufMut>(
        &self,
        fd: &Fd,
        buf: T,
        offset: u64,
    ) -> BufResult<usize, T> {
        let read = |buf| self.driver.read(fd, buf, offset);
        retrying(&self.driver, fd, PollEvents::READABLE, buf, read).await
    }

    /// Writes once, by way of this descriptor or another one of the file.
    pub(super) async fn write_once<T: IoBuf>(
        &self,
        fd: &Fd,
        buf: T,
        offset: u64,
        flags: u32,
    ) -> BufResult<usize, T> {
        let write = |buf| self.driver.write_with(fd, buf, offset, flags);
        retrying(&self.driver, fd, PollEvents::WRITABLE, buf, write).await
    }

    /// Handles the failure of a read's first attempt: retries it, or explains the error.
    async fn read_failed<T: IoBufMut>(
        &self,
        error: io::Error,
        buf: T,
        offset: u64,
    ) -> BufResult<usize, T> {
        if may_retry(&self.driver, &self.fd, &error, PollEvents::READABLE).await {
            return self.read_explained(buf, offset).await;
        }
        let len = buf.bytes_room();
        self.explained(Err(error), buf, len, offset).await
    }

    /// As [`read_failed`](File::read_failed), of a write.
    async fn write_failed<T: IoBuf>(
        &self,
        error: io::Error,
        buf: T,
        offset: u64,
    ) -> BufResult<usize, T> {
        if may_retry(&self.driver, &self.fd, &error, PollEvents::WRITABLE).await {
            return self.write_explained(buf, offset).await;
        }
        let len = buf.bytes_len();
        self.explained(Err(error), buf, len, offset).await
    }

    /// Explains the error of a transfer of up to `len` bytes.
    pub(super) async fn explained<T: IoBuf>(
        &self,
        result: io::Result<usize>,
        buf: T,
        len: usize,
        offset: u64,
    ) -> BufResult<usize, T> {
        match result {
            Err(error) => (Err(self.explain(error, &buf, len, offset).await), buf),
            Ok(count) => (Ok(count), buf),
        }
    }

    /// Reads up to `buf.len()` bytes (an empty `Vec`: up to its capacity), starting at byte `offset`.
    ///
    /// The kernel owns `buf` until the future resolves. The buffer comes back on error too.
    ///
    /// Resolves to the number of bytes read; 0 means the end of the file, but fewer than asked for do not. A
    /// `Vec` that was empty then has as many bytes as were read: clear it before the next read, which would
    /// otherwise ask for no more than that.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the buffer, which lives until the kernel is done with it, and loses
    /// nothing else.
    ///
    /// # Errors
    /// - `EINVAL`: an offset above `i64::MAX`, or a buffer without room (an empty one without capacity).
    /// - `EISDIR`: it is a directory. `EBADF`: not open to read.
    /// - `ESPIPE`: it has no offsets: a FIFO, a terminal. [`read`](File::read) reads it.
    /// - [`Misaligned`](super::Misaligned), with `EINVAL`: direct I/O off its alignment.
    /// - `ECANCELED`: the runtime has ended. Otherwise as `pread(2)`; never `EINTR` or `EAGAIN`.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, File};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-read-at-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// fs::write(&path, "hello, world").await?;
    /// let file = File::open(&path).await?;
    /// let (count, buf) = file.read_at(vec![0; 5], 7).await.both()?;
    /// assert_eq!(&buf[..count], b"world");
    /// // An empty `Vec` gets as many bytes as there are, up to its capacity.
    /// let buf = file.read_at(Vec::with_capacity(100), 7).await.buffer()?;
    /// assert_eq!(buf, b"world");
    /// assert_eq!(file.read_at(vec![0; 5], 12).await.value()?, 0, "the end");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_read(3)`.
    #[doc(alias = "pread")]
    pub async fn read_at<T: IoBufMut>(&self, buf: T, offset: u64) -> BufResult<usize, T> {
        buf_try!(check_offset(offset), buf);
        // The common, successful path is in one piece here, and the rest boxed.
        let (result, buf) = match self.driver.begin_read(&self.fd, buf, offset) {
            Begun::Done(done) => done,
            Begun::Op(read) => read.await,
        };
        match result {
            Ok(count) => (Ok(count), buf),
            Err(error) => Box::pin(self.read_failed(error, buf, offset)).await,
        }
    }

    /// As [`read_at`](File::read_at), at an offset that the kernel may take as the file's position.
    pub(crate) async fn read_explained<T: IoBufMut>(
        &self,
        buf: T,
        offset: u64,
    ) -> BufResult<usize, T> {
        let (result, buf) = self.read_once(&self.fd, buf, offset).await;
        let len = buf.bytes_room();
        self.explained(result, buf, len, offset).await
    }

    /// As [`read_at`](File::read_at), into [registered memory](crate::io::register_buffers), a block or a
    /// part of one, which the kernel need not pin first. It speeds up direct I/O only: bytes in the page
    /// cache are copied as into any other memory.
    ///
    /// # Cancel safety
    /// As [`read_at`](File::read_at).
    ///
    /// # Errors
    /// `EFAULT`: the block belongs to another thread's runtime. Otherwise as [`read_at`](File::read_at).
    ///
    /// # Examples
    /// See [`register_buffers`](crate::io::register_buffers#examples).
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_read_fixed(3)`.
    pub async fn read_fixed_at<T: RegisteredBuf>(
        &self,
        buf: T,
        offset: u64,
    ) -> BufResult<usize, T> {
        buf_try!(check_offset(offset), buf);
        let read = |buf| self.driver.read_fixed(&self.fd, buf, offset);
        let (result, buf) = retrying(&self.driver, &self.fd, PollEvents::READABLE, buf, read).await;
        let len = buf.bytes_room();
        self.explained(result, buf, len, offset).await
    }

    /// As [`write_at`](File::write_at), from [registered memory](crate::io::register_buffers), a block or a part
    /// of one.
    ///
    /// # Cancel safety
    /// As [`write_at`](File::write_at).
    ///
    /// # Errors
    /// `EFAULT`: the block belongs to another thread's runtime. Otherwise as [`write_at`](File::write_at).
    ///
    /// # Examples
    /// See [`register_buffers`](crate::io::register_buffers#examples).
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_write_fixed(3)`.
    pub async fn write_fixed_at<T: RegisteredBuf>(
        &self,
        buf: T,
        offset: u64,
    ) -> BufResult<usize, T> {
        buf_try!(self.check_write(offset), buf);
        let write = |buf| self.driver.write_fixed(&self.fd, buf, offset);
        let (result, buf) =
            retrying(&self.driver, &self.fd, PollEvents::WRITABLE, buf, write).await;
        let len = buf.bytes_len();
        self.explained(result, buf, len, offset).await
    }

    /// Fills `buf` (an empty `Vec`: its capacity) with the bytes from `offset` on. On error the buffer has
    /// the bytes read before it. A buffer without room reads nothing, and succeeds.
    ///
    /// On a file opened for direct I/O, the part of the length beyond the last multiple of the alignment
    /// goes by way of the page cache.
    ///
    /// # Cancel safety
    /// As [`read_at`](File::read_at).
    ///
    /// # Errors
    /// `UnexpectedEof`: the file ends before. Otherwise as for [`read_at`](File::read_at).
    ///
    /// # Examples
    /// See [`File`](File#examples).
    pub async fn read_exact_at<T: IoBufMut>(&self, buf: T, offset: u64) -> BufResult<(), T> {
        if let Some(direct) = &self.direct {
            return self.read_exact_direct(direct, buf, offset).await;
        }
        buf_try!(check_offset(offset), buf);
        let read = async |rest: Room<T>| {
            let at = offset + rest.filled() as u64;
            self.read_at(rest, at).await
        };
        read_exact(buf, read).await
    }

    /// Reads from `offset` to the end of the file, and appends to `buf`.
    ///
    /// Resolves to the number of bytes appended and the buffer, which has the bytes read before an error too.
    /// If others shrink or grow the file meanwhile, its end when the read gets there counts.
    ///
    /// # Cancel safety
    /// As [`read_at`](File::read_at).
    ///
    /// # Errors
    /// `OutOfMemory`: no memory for the file's size. Otherwise as for [`read_at`](File::read_at).
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, File};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-read-to-end-at-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// fs::write(&path, "hello, world").await?;
    /// let file = File::open(&path).await?;
    /// let text = file.read_to_end_at(b"small ".to_vec(), 7).await.buffer()?;
    /// assert_eq!(text, b"small world");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn read_to_end_at(&self, buf: Vec<u8>, offset: u64) -> BufResult<usize, Vec<u8>> {
        buf_try!(check_offset(offset), buf);
        if let Some(direct) = &self.direct {
            return self.read_to_end_direct(direct, buf, offset).await;
        }
        read_to_end(self, buf, offset, self.fd.first_size()).await
    }

    /// Reads into one buffer after the other, starting at byte `offset`: each up to its length, an empty
    /// `Vec` up to its capacity. At most the first 1024 are used.
    ///
    /// # Cancel safety
    /// As [`read_at`](File::read_at).
    ///
    /// # Errors
    /// As for [`read_at`](File::read_at).
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, File};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-read-vectored-at-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// fs::write(&path, "head, and a body").await?;
    /// let file = File::open(&path).await?;
    /// let (count, bufs) = file.read_vectored_at(vec![vec![0; 4], vec![0; 100]], 0).await.both()?;
    /// assert_eq!((count, &bufs[0][..]), (16, &b"head"[..]));
    /// assert_eq!(&bufs[1][..count - 4], b", and a body");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_readv(3)`.
    #[doc(alias = "preadv")]
    pub async fn read_vectored_at<T: IoBufMut>(
        &self,
        bufs: Vec<T>,
        offset: u64,
    ) -> BufResult<usize, Vec<T>> {
        buf_try!(check_offset(offset), bufs);
        let read = |bufs| self.driver.read_vectored(&self.fd, bufs, offset);
        retrying(&self.driver, &self.fd, PollEvents::READABLE, bufs, read).await
    }

    /// Writes up to `buf.bytes_len()` bytes, starting at byte `offset`.
    ///
    /// The kernel reads `buf` until the future resolves.
    ///
    /// Resolves to the number of bytes written, which may be fewer than asked for.
    ///
    /// # Cancel safety
    /// Dropping the future leaves an unknown part of `buf` written. A write that has begun goes on, with its
    /// buffer, and may end after later ones: [`close`](File::close) waits for it.
    ///
    /// # Errors
    /// - `InvalidInput`, without errno: the file was opened to append, and the kernel would ignore the
    ///   offset. See [`append`](File::append).
    /// - `ENOSPC`, `EDQUOT`, `EFBIG`: no room. `EBADF`: not open to write.
    /// - `EINVAL`: an offset above `i64::MAX`; direct I/O off its alignment, then a
    ///   [`Misaligned`](super::Misaligned).
    /// - `ECANCELED`: the runtime has ended. Otherwise as `pwrite(2)`; never `EINTR` or `EAGAIN`.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, File};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-write-at-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let file = File::create(&path).await?;
    /// let (count, text) = file.write_at(String::from("some text"), 0).await.both()?;
    /// // The buffer is back. It may have been written in part: `write_all_at` goes on.
    /// assert_eq!(fs::read(&path).await?, &text.as_bytes()[..count]);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_write(3)`.
    #[doc(alias = "pwrite")]
    pub async fn write_at<T: IoBuf>(&self, buf: T, offset: u64) -> BufResult<usize, T> {
        buf_try!(self.check_write(offset), buf);
        // As in `read_at`.
        let (result, buf) = match self.driver.begin_write(&self.fd, buf, offset) {
            Begun::Done(done) => done,
            Begun::Op(write) => write.await,
        };
        match result {
            Ok(count) => (Ok(count), buf),
            Err(error) => Box::pin(self.write_failed(error, buf, offset)).await,
        }
    }

    /// As [`write_at`](File::write_at), at an offset that the kernel may ignore.
    pub(crate) async fn write_explained<T: IoBuf>(
        &self,
        buf: T,
        offset: u64,
    ) -> BufResult<usize, T> {
        let (result, buf) = self.write_once(&self.fd, buf, offset, 0).await;
        let len = buf.bytes_len();
        self.explained(result, buf, len, offset).await
    }

    /// Writes all of `buf`, starting at byte `offset`. After an error an unknown part of it is written.
    ///
    /// On a file opened for direct I/O, the part of the length beyond the last multiple of the alignment
    /// goes by way of the page cache.
    ///
    /// # Cancel safety
    /// As [`write_at`](File::write_at).
    ///
    /// # Errors
    /// As for [`write_at`](File::write_at); `WriteZero` if the kernel takes nothing.
    ///
    /// # Examples
    /// See [`File`](File#examples).
    pub async fn write_all_at<T: IoBuf>(&self, buf: T, offset: u64) -> BufResult<(), T> {
        buf_try!(self.check_write(offset), buf);
        self.write_all_explained(buf, offset, 0).await
    }

    /// Writes all of `buf`, starting at byte `offset`, so that it is there after a power failure once the
    /// future has resolved: as if [`sync_data`](File::sync_data) were called for these bytes alone.
    ///
    /// A file that was just made needs its directory synced as well: see
    /// [`write_durable`](super::write_durable).
    ///
    /// # Cancel safety
    /// As [`write_at`](File::write_at).
    ///
    /// # Errors
    /// As for [`write_all_at`](File::write_all_at). `EIO`: it could not be made durable. A second attempt
    /// that succeeds proves nothing: the kernel may have dropped the bytes that it could not write.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::File;
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-write-durable-at-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let journal = File::create(&path).await?;
    /// journal.write_durable_at("begin\n", 0).await.value()?;
    /// // "begin" is there after a power failure from here on.
    /// journal.write_durable_at("end\n", 6).await.value()?;
    /// assert_eq!(journal.len().await?, 10);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// With a ring a write, and a sync of its bytes; else, and for direct I/O, 4.7 (`RWF_DSYNC`), and on file
    /// systems without support for it a write and `fdatasync(2)`. If the file was opened with `O_DSYNC`, a
    /// write.
    #[doc(alias = "RWF_DSYNC")]
    pub async fn write_durable_at<T: IoBuf>(&self, buf: T, offset: u64) -> BufResult<(), T> {
        buf_try!(self.check_write(offset), buf);
        self.write_durable_explained(buf, offset).await
    }

    /// As [`write_durable_at`](File::write_durable_at), at an offset that the kernel may ignore.
    pub(crate) async fn write_durable_explained<T: IoBuf>(
        &self,
        buf: T,
        offset: u64,
    ) -> BufResult<(), T> {
        if self.syncs_writes {
            return self.write_all_explained(buf, offset, 0).await;
        }
        let len = u32::try_from(buf.bytes_len()).unwrap_or(0);
        let is_plain = self.direct.is_none() && !self.appends;
        if is_plain && len > 0 && self.driver.splits_durable_writes(&self.fd) {
            let (result, buf) = self.write_all_explained(buf, offset, 0).await;
            buf_try!(result, buf);
            let sync = async || self.driver.fsync_range(&self.fd, offset, len).await;
            return match uninterrupted(sync).await {
                // It keeps nothing, such as `/dev/null`.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => (Ok(()), buf),
                result => (result, buf),
            };
        }
        let (result, buf) =
            self.write_all_explained(buf, offset, ReadWriteFlags::DSYNC.bits()).await;
        match result {
            Err(error) if is_unknown_flag(&error) => {}
            result => return (result, buf),
        }
        let (result, buf) = self.write_all_explained(buf, offset, 0).await;
        buf_try!(result, buf);
        (self.sync_data().await, buf)
    }

    async fn write_all_explained<T: IoBuf>(
        &self,
        buf: T,
        offset: u64,
        flags: u32,
    ) -> BufResult<(), T> {
        match &self.direct {
            Some(direct) => self.write_all_direct(direct, buf, offset, flags).await,
            None => {
                let write =
                    |rest, done| self.write_once(&self.fd, rest, offset + done as u64, flags);
                transfer::write_all(buf, write).await
            }
        }
    }

    /// Writes all of `buf` at the end of the file, wherever that is by then: also when others append to
    /// it, from this process or another. Works on any file that is open to write.
    ///
    /// The kernel takes all of it in one piece unless it runs out of room or is interrupted; then bytes that
    /// others append may come between.
    ///
    /// # Cancel safety
    /// As [`write_at`](File::write_at): an unknown part of `buf` may be appended, even after later appends.
    ///
    /// # Errors
    /// As for [`write_at`](File::write_at), but for the first. `EOPNOTSUPP`: the file was not opened to
    /// append, and the file system does not support `RWF_APPEND`.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, File};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-append-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let log = File::create(&path).await?;
    /// let other = File::options().write(true).open(&path).await?;
    /// log.append("one\n").await.value()?;
    /// other.append("two\n").await.value()?;
    /// log.append("three\n").await.value()?;
    /// assert_eq!(fs::read(&path).await?, b"one\ntwo\nthree\n");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 4.16 (`RWF_APPEND`) for files not opened to append.
    #[doc(alias = "O_APPEND")]
    #[doc(alias = "RWF_APPEND")]
    pub async fn append<T: IoBuf>(&self, buf: T) -> BufResult<(), T> {
        let flags = if self.appends { 0 } else { ReadWriteFlags::APPEND.bits() };
        // Not at the file's own position: appends would queue for its lock.
        transfer::write_all(buf, |rest, _| self.write_once(&self.fd, rest, 0, flags)).await
    }

    /// Writes one buffer after the other, starting at byte `offset`. At most the first 1024 are used.
    ///
    /// # Cancel safety
    /// As [`write_at`](File::write_at).
    ///
    /// # Errors
    /// As for [`write_at`](File::write_at).
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, File};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-write-vectored-at-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let file = File::create(&path).await?;
    /// let parts = vec!["head, ", "and a body"];
    /// let parts = file.write_all_vectored_at(parts, 0).await.buffer()?;
    /// assert_eq!(fs::read_to_string(&path).await?, parts.concat());
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_writev(3)`.
    #[doc(alias = "pwritev")]
    pub async fn write_vectored_at<T: IoBuf>(
        &self,
        bufs: Vec<T>,
        offset: u64,
    ) -> BufResult<usize, Vec<T>> {
        buf_try!(self.check_write(offset), bufs);
        self.write_vectored_explained(bufs, offset).await
    }

    /// As [`write_vectored_at`](File::write_vectored_at), at an offset that the kernel may ignore.
    pub(crate) async fn write_vectored_explained<T: IoBuf>(
        &self,
        bufs: Vec<T>,
        offset: u64,
    ) -> BufResult<usize, Vec<T>> {
        let write = |bufs| self.driver.write_vectored(&self.fd, bufs, offset);
        retrying(&self.driver, &self.fd, PollEvents::WRITABLE, bufs, write).await
    }

    /// Writes all bytes of all buffers, one after the other, starting at byte `offset`. After an error an
    /// unknown part of them is written.
    ///
    /// # Cancel safety
    /// As [`write_at`](File::write_at).
    ///
    /// # Errors
    /// As for [`write_at`](File::write_at); `WriteZero` if the kernel takes nothing.
    ///
    /// # Examples
    /// See [`File::write_vectored_at`].
    pub async fn write_all_vectored_at<T: IoBuf>(
        &self,
        bufs: Vec<T>,
        offset: u64,
    ) -> BufResult<(), Vec<T>> {
        let total: u64 = bufs.iter().map(|buf| buf.bytes_len() as u64).sum();
        let (mut waiting, mut written) = (bufs.into_iter(), Vec::new());
        // The buffers of the next write; `skip` bytes of the first one are written already.
        let (mut batch, mut skip, mut done) = (Vec::new(), 0, 0);
        let result = loop {
            batch.extend(waiting.by_ref().take(limits::BUFFERS_MAX - batch.len()));
            if done == total {
                break Ok(());
            }
            let slices = batch.into_iter().enumerate();
            let slices =
                slices.map(|(at, buf): (usize, T)| buf.slice(if at == 0 { skip } else { 0 }..));
            let (result, slices) = self.write_vectored_at(slices.collect(), offset + done).await;
            batch = slices.into_iter().map(sakia_driver::Slice::into_inner).collect();
            match result {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    done += count as u64;
                    skip += count;
                }
                Err(error) => break Err(error),
            }
            let full = batch.iter().take_while(|buf| {
                let is_full = skip >= buf.bytes_len();
                skip -= if is_full { buf.bytes_len() } else { 0 };
                is_full
            });
            let full = full.count();
            written.extend(batch.drain(..full));
        };
        written.extend(batch);
        written.extend(waiting);
        (result, written)
    }

    /// Returns the file's metadata.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As `fstat(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::File;
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-file-metadata-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let file = File::create(&path).await?;
    /// file.write_all_at("hello", 0).await.value()?;
    /// let metadata = file.metadata().await?;
    /// assert!(metadata.is_file());
    /// assert_eq!((metadata.len(), file.len().await?), (5, 5));
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_statx(3)`.
    #[doc(alias = "fstat")]
    pub async fn metadata(&self) -> io::Result<Metadata> {
        stat_open(&self.driver, &self.fd).await
    }

    /// Returns the size of the file in bytes, now.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As `fstat(2)`.
    ///
    /// # Examples
    /// See [`File::metadata`].
    #[allow(clippy::len_without_is_empty, reason = "it asks the kernel, and may fail")]
    pub async fn len(&self) -> io::Result<u64> {
        Ok(self.metadata().await?.len())
    }

    /// Makes the file durable: the bytes written by operations that have resolved, and all metadata.
    ///
    /// `EIO`, `ENOSPC`, `EDQUOT`: earlier writes were lost. The kernel reports this once: a second attempt
    /// may succeed without the data being safe. Otherwise as `fsync(2)`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the contents are durable, and loses an error that the
    /// kernel reports only once.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{Dir, File};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-sync-all-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let file = File::create_new(&path).await?;
    /// file.write_all_at("hello", 0).await.value()?;
    /// file.sync_all().await?;
    /// // The contents are durable. The name of a new file is part of its directory.
    /// let directory = path.parent().expect("the file has a directory");
    /// Dir::open(directory).await?.sync().await?;
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_fsync(3)`.
    #[doc(alias = "fsync")]
    pub async fn sync_all(&self) -> io::Result<()> {
        uninterrupted(async || self.driver.fsync(&self.fd, false).await).await
    }

    /// As [`sync_all`](File::sync_all), without the metadata that reading the contents back does not need,
    /// such as times.
    ///
    /// # Cancel safety
    /// As [`sync_all`](File::sync_all).
    ///
    /// # Errors
    /// See [`sync_all`](File::sync_all).
    ///
    /// # Examples
    /// See [`File`](File#examples).
    #[doc(alias = "fdatasync")]
    pub async fn sync_data(&self) -> io::Result<()> {
        uninterrupted(async || self.driver.fsync(&self.fd, true).await).await
    }

    /// Starts to write back `len` bytes from byte `offset` on, or all bytes from there on when `len` is 0,
    /// and waits as `how` says, so that a later [`sync_data`](File::sync_data) has less to do. **Nothing is
    /// durable afterwards.**
    ///
    /// # Cancel safety
    /// As [`sync_all`](File::sync_all).
    ///
    /// # Errors
    /// `EINVAL`: no such flag, or no such range. `EIO`, `ENOSPC`: earlier writes were lost. Otherwise as
    /// `sync_file_range(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{File, SyncRange};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-sync-range-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let file = File::create(&path).await?;
    /// for part in 0..4 {
    ///     let offset = part << 16;
    ///     file.write_all_at(vec![1; 1 << 16], offset).await.value()?;
    ///     // The device begins early, so that the sync at the end is short.
    ///     file.sync_range(offset, 1 << 16, SyncRange::WRITE).await?;
    /// }
    /// file.sync_data().await?;
    /// assert_eq!(file.len().await?, 4 << 16);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 2.6.17. Source: `sync_file_range(2)`.
    #[doc(alias = "sync_file_range")]
    pub async fn sync_range(&self, offset: u64, len: u64, how: SyncRange) -> io::Result<()> {
        uninterrupted(async || self.driver.sync_file_range(&self.fd, offset, len, how).await).await
    }

    /// Refuses invalid offsets, and all offsets on a file opened to append.
    fn check_write(&self, offset: u64) -> io::Result<()> {
        if self.appends {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the file was opened to append, so the kernel ignores offsets: use `append`",
            ));
        }
        check_offset(offset)
    }

    /// Returns a file that others have open as well, for this thread.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    pub(crate) fn lent<T: AsFd + Send + Sync + 'static>(fd: Arc<T>) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        Ok(Self::new(current().driver.lend(fd), super::driver(), flags))
    }
}

/// Refuses offsets beyond the kernel's: these are signed, and -1 stands for the file's position.
pub(super) fn check_offset(offset: u64) -> io::Result<()> {
    if i64::try_from(offset).is_err() { Err(Errno::INVAL.into()) } else { Ok(()) }
}

fn is_unknown_flag(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error())
}

/// Reads `file` from `offset`, which may be [`CURRENT_POSITION`], and appends to `buf`. `size` is the
/// expected size of the file.
pub(super) async fn read_to_end(
    file: &File,
    buf: Vec<u8>,
    offset: u64,
    size: Option<u64>,
) -> BufResult<usize, Vec<u8>> {
    let position = if offset == CURRENT_POSITION { 0 } else { offset };
    let expected = size.map_or(0, |size| size.saturating_sub(position));
    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
    let read = async |rest, done| {
        let at = if offset == CURRENT_POSITION { offset } else { offset + done as u64 };
        file.read_once(&file.fd, rest, at).await
    };
    transfer::read_to_end(buf, expected, read).await
}

impl TryFrom<OwnedFd> for File {
    type Error = io::Error;

    /// Takes over an open file, with its position and its flags.
    ///
    /// # Errors
    /// As `fcntl(2)` and `lseek(2)`.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    fn try_from(fd: OwnedFd) -> io::Result<Self> {
        Self::try_from(crate::io::adopt(fd))
    }
}

impl TryFrom<Fd> for File {
    type Error = io::Error;

    /// Takes over an open file that was received, with its position and its flags; on a simulated kernel from
    /// its beginning.
    ///
    /// # Errors
    /// As `fcntl(2)` and `lseek(2)`.
    ///
    /// # Panics
    /// Outside of a runtime. In another runtime than that of the descriptor all operations panic.
    fn try_from(fd: Fd) -> io::Result<Self> {
        let driver = super::driver();
        if fd.is_simulated() {
            return Ok(Self::new(fd, driver, OFlags::empty()));
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        let position = match rustix::fs::tell(&fd) {
            Ok(position) => position,
            Err(Errno::SPIPE) => 0,
            Err(error) => return Err(error.into()),
        };
        let file = Self::new(fd, driver, flags);
        file.position.set(position);
        Ok(file)
    }
}

/// Lends the descriptor, so that it can be sent to another process. That process gets the kernel's position,
/// not the one that is kept here. [`close`](File::close) waits until clones of the descriptor are gone.
impl AsRef<Fd> for File {
    fn as_ref(&self) -> &Fd {
        &self.fd
    }
}

/// For system calls that this type does not offer. A change of the position or the flags affects all that
/// share the open file.
impl AsFd for File {
    /// # Panics
    /// On a simulated kernel.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("File");
        f.field("fd", &self.fd.raw()).field("position", &self.position.get());
        f.finish_non_exhaustive()
    }
}
