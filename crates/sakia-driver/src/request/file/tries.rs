//! Calls on a file that never wait, on any thread.

use std::ffi::CStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::FileHandle;
use crate::calls::{recv_nowait, send_nowait};
use crate::decide::{Attempt, limits};
use crate::file_calls::FileCalls;
use crate::ops::{OpenHow, RECV_FLAGS, SEND_FLAGS, StatxResult};
use crate::path_calls::{PathCalls, stat_unless_served};
use crate::sys;

impl FileHandle {
    /// Reads up to 256 KiB, at an offset or at the file's position, on the calling thread. `None` if that may
    /// block, or is not tried because it lately would have. Neither waits nor allocates.
    ///
    /// # Errors
    /// `EBADF`: it was closed. `EINVAL`: no room. Otherwise as `pread(2)`.
    ///
    /// # Examples
    /// See [`FileHandle`](FileHandle#examples).
    #[doc(alias = "RWF_NOWAIT")]
    pub fn try_read(&self, buf: &mut [u8], at: Option<u64>) -> Option<io::Result<usize>> {
        let len = buf.len().min(limits::CALLER_BYTES);
        if len == 0 {
            return Some(Err(Errno::INVAL.into()));
        }
        let parts = &mut [IoSliceMut::new(&mut buf[..len])];
        self.attempt(|fd| self.inner.calls.read(fd, parts, at))
    }

    /// Writes up to 256 KiB, as [`try_read`](FileHandle::try_read) reads.
    ///
    /// # Errors
    /// `EBADF`: it was closed. Otherwise as `pwrite(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::FileHandle;
    ///
    /// let (reader, writer) = std::io::pipe()?;
    /// let writer = FileHandle::new(writer);
    /// if let Some(result) = writer.try_write(b"hello", None) {
    ///     assert_eq!(result?, 5);
    /// }
    /// # drop(reader);
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "RWF_NOWAIT")]
    pub fn try_write(&self, buf: &[u8], at: Option<u64>) -> Option<io::Result<usize>> {
        let len = buf.len().min(limits::CALLER_BYTES);
        self.attempt(|fd| self.inner.calls.write(fd, &[IoSlice::new(&buf[..len])], at))
    }

    /// Receives up to `buf.len()` bytes that have arrived at a socket, on a stream up to 256 KiB. `flags` are
    /// `MSG_PEEK` or none. `None` if nothing has arrived. Neither waits nor allocates.
    ///
    /// Bytes that a request on a loop receives at the same time come to either of them.
    ///
    /// # Errors
    /// `EBADF`: it was closed. `EINVAL`: no room, or other flags. `ENOTSOCK`: not a socket. Otherwise as
    /// `recv(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::OwnedFd;
    /// use std::os::unix::net::UnixStream;
    ///
    /// use sakia_driver::FileHandle;
    ///
    /// let (near, far) = UnixStream::pair()?;
    /// let [near, far] = [near, far].map(|end| FileHandle::new(OwnedFd::from(end)));
    /// let mut buf = [0; 8];
    /// assert!(near.try_recv(&mut buf, 0).is_none(), "nothing has arrived");
    /// assert_eq!(far.try_send(b"hello", 0).expect("there is room")?, 5);
    /// assert_eq!(near.try_recv(&mut buf, 0).expect("it has arrived")?, 5);
    /// assert_eq!(&buf[..5], b"hello");
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "MSG_DONTWAIT")]
    pub fn try_recv(&self, buf: &mut [u8], flags: u32) -> Option<io::Result<usize>> {
        let is_valid = !buf.is_empty() && flags & !RECV_FLAGS == 0;
        self.attempt_on_socket(is_valid, |fd| recv_nowait(fd, buf, flags))
    }

    /// Sends up to `buf.len()` bytes on a connected socket, on a stream as many as there is room for, up to
    /// 256 KiB. `flags` are `MSG_MORE` or none; no `SIGPIPE` is raised. `None` if there is no room. Neither
    /// waits nor allocates.
    ///
    /// Its bytes may come before those of requests under way, and between their parts.
    ///
    /// # Errors
    /// `EBADF`: it was closed. `EINVAL`: other flags. `ENOTSOCK`: not a socket. Otherwise as `send(2)`.
    ///
    /// # Examples
    /// See [`try_recv`](FileHandle::try_recv).
    #[doc(alias = "MSG_DONTWAIT")]
    pub fn try_send(&self, buf: &[u8], flags: u32) -> Option<io::Result<usize>> {
        self.attempt_on_socket(flags & !SEND_FLAGS == 0, |fd| send_nowait(fd, buf, flags))
    }

    /// Returns the status of the open file. `None` if it may have to come from a server: on a network or FUSE
    /// file system, or on one that the table of mounts does not have. Does not wait, and allocates only the
    /// first time.
    ///
    /// # Errors
    /// `EBADF`: it was closed.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::FileHandle;
    ///
    /// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
    /// if let Some(status) = file.try_stat() {
    ///     assert_eq!(status?.size, std::fs::metadata("Cargo.toml")?.len());
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "fstat")]
    pub fn try_stat(&self) -> Option<io::Result<StatxResult>> {
        self.attempt(|fd| stat_unless_served(fd, &self.inner.has_no_server).map(Ok))
    }

    /// Returns the status of `path`, relative to `directory` or, with `None`, to the working directory.
    /// `flags` are the kernel's `AT_*`. `None` if the kernel's caches do not have all of the path, or if a
    /// server may have to be asked. Does not wait, and allocates only on the first use of a mount.
    ///
    /// While the process has a mount that another machine or process serves, the result is also `None` for a
    /// path with a symbolic link on its way, and for a relative path to another mount.
    ///
    /// # Errors
    /// `EBADF`: the directory was closed. `EINVAL`: a flag newer than the first `statx(2)`. Otherwise as
    /// `statx(2)`.
    ///
    /// # Kernel
    /// 5.12 (`RESOLVE_CACHED`); `None` below. Source: `openat2(2)`, `statx(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::FileHandle;
    ///
    /// if let Some(status) = FileHandle::try_stat_at(None, c"Cargo.toml", 0) {
    ///     assert!(status?.is_file());
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "RESOLVE_CACHED")]
    pub fn try_stat_at(
        directory: Option<&Self>,
        path: &CStr,
        flags: u32,
    ) -> Option<io::Result<StatxResult>> {
        let paths = PathCalls::of_process()?;
        Self::attempt_in(directory, |directory| paths.stat_path(directory, path, flags))
    }

    /// Opens `path`, relative to `directory` or, with `None`, to the working directory, closed on exec.
    ///
    /// `None` if the open makes a file or cuts one off; if it may wait: for a device, a server, or the other
    /// end of a FIFO, which does not notice; and for a device file. Does not wait, and allocates only what
    /// the handle needs, and on the first use of a mount.
    ///
    /// While the process has a mount that another machine or process serves, the result is also `None` for
    /// the paths that [`try_stat_at`](FileHandle::try_stat_at) names.
    ///
    /// # Errors
    /// `EBADF`: the directory was closed. Otherwise as `openat2(2)`.
    ///
    /// # Kernel
    /// 5.12 (`RESOLVE_CACHED`); `None` below. Source: `openat2(2)`.
    ///
    /// # Examples
    /// From the caches, or else by a loop:
    /// ```
    /// use sakia_driver::{FileHandle, Loop, OpenHow, Request, Wait};
    ///
    /// let (path, how) = (c"Cargo.toml", OpenHow::default());
    /// let file = match FileHandle::try_open(None, path, how) {
    ///     Some(file) => file?,
    ///     None => {
    ///         let mut ring = Loop::new()?;
    ///         ring.submit(Request::Open { directory: None, path: path.into(), how }, 1)?;
    ///         while ring.wait(Wait::Forever)? == 0 {}
    ///         let outcome = ring.take().expect("it has one");
    ///         outcome.into_file().expect("it is there")
    ///     }
    /// };
    /// assert!(file.with_fd(|fd| rustix::fs::fstat(fd))??.st_size > 0);
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "RESOLVE_CACHED")]
    pub fn try_open(
        directory: Option<&Self>,
        path: &CStr,
        how: OpenHow,
    ) -> Option<io::Result<Self>> {
        let OpenHow { flags, mode, resolve } = how;
        let how = sys::OpenHow { flags, mode, resolve };
        let paths = PathCalls::of_process()?;
        let opened =
            Self::attempt_in(directory, |directory| paths.open_file(directory, path, how))?;
        Some(opened.map(Self::from))
    }

    /// Calls `f` with the descriptor and its calls that refuse to wait, on this thread. `None` also if
    /// another thread is just looking at the descriptor.
    pub(crate) fn with_calls(
        &self,
        f: impl FnOnce(BorrowedFd<'_>, &FileCalls) -> Option<io::Result<usize>>,
    ) -> Option<io::Result<usize>> {
        self.attempt(|fd| f(fd, &self.inner.calls))
    }

    /// Makes a call that does not wait, on this thread.
    fn attempt<T>(
        &self,
        call: impl FnOnce(BorrowedFd<'_>) -> Option<io::Result<T>>,
    ) -> Option<io::Result<T>> {
        match self.descriptor()? {
            Ok(descriptor) => call(descriptor.as_fd()),
            Err(errno) => Some(Err(errno.into())),
        }
    }

    /// As [`attempt`](Self::attempt), for a socket. `EINVAL` unless the arguments are valid.
    fn attempt_on_socket(
        &self,
        is_valid: bool,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<Attempt<usize>, Errno>,
    ) -> Option<io::Result<usize>> {
        self.attempt(|fd| {
            let result = if is_valid { call(fd) } else { Err(Errno::INVAL) };
            result.map(Attempt::done).map_err(io::Error::from).transpose()
        })
    }

    /// Makes a call that does not wait, in a directory or in the working directory.
    fn attempt_in<T>(
        directory: Option<&Self>,
        call: impl FnOnce(Option<BorrowedFd<'_>>) -> Option<io::Result<T>>,
    ) -> Option<io::Result<T>> {
        match directory {
            Some(directory) => directory.attempt(|fd| call(Some(fd))),
            None => call(None),
        }
    }
}
