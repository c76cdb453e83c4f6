//! Reading and writing a descriptor of the driver's, at its own position if it has one.

use std::io;
use std::os::fd::OwnedFd;

use sakia_driver::{BufResult, CURRENT_POSITION, Fd, Handle, IoBuf, IoBufMut, LastFd, PollEvents};

use super::in_order::InOrder;
use super::transfer::{read_to_end, retrying, write_all};
use crate::executor::current;

/// The common part of readers, writers, and waits for readiness.
#[derive(Debug)]
pub(crate) struct Stream {
    driver: Handle,
    reads: InOrder,
    writes: InOrder,
    /// Declared last: closed when all else is gone.
    fd: LastFd,
}

impl Stream {
    /// Gives a descriptor to the driver of the calling thread's runtime.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self::of(current().driver.adopt(fd))
    }

    /// Returns a stream of a descriptor of the simulated kernel.
    #[cfg(feature = "sim")]
    pub(crate) fn simulated(raw: i32) -> Self {
        Self::of(current().driver.adopt_simulated(raw))
    }

    /// Returns a stream of a descriptor of the current runtime's driver.
    pub(crate) fn of(fd: Fd) -> Self {
        let driver = current().driver.handle().clone();
        let fd = LastFd::new(fd, driver.clone());
        Self { driver, reads: InOrder::default(), writes: InOrder::default(), fd }
    }

    pub(crate) async fn read<T: IoBufMut>(&self, mut buf: T) -> BufResult<usize, T> {
        let Self { fd, driver, reads, .. } = self;
        reads.settled().await;
        if let Some(result) = reads.take(&mut buf) {
            return (result, buf);
        }
        let read = |buf| reads.read(driver.read(fd, buf, CURRENT_POSITION));
        retrying(driver, fd, PollEvents::READABLE, buf, read).await
    }

    pub(crate) async fn read_to_end(&self, buf: Vec<u8>) -> BufResult<usize, Vec<u8>> {
        read_to_end(buf, 0, async |rest, _| self.read(rest).await).await
    }

    pub(crate) async fn write<T: IoBuf>(&self, buf: T) -> BufResult<usize, T> {
        let Self { fd, driver, writes, .. } = self;
        writes.settled().await;
        let write = |buf| writes.write(driver.write(fd, buf, CURRENT_POSITION));
        retrying(driver, fd, PollEvents::WRITABLE, buf, write).await
    }

    pub(crate) async fn write_vectored<T: IoBuf>(&self, bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
        let Self { fd, driver, writes, .. } = self;
        writes.settled().await;
        let write = |bufs| writes.write(driver.write_vectored(fd, bufs, CURRENT_POSITION));
        retrying(driver, fd, PollEvents::WRITABLE, bufs, write).await
    }

    pub(crate) async fn write_all<T: IoBuf>(&self, buf: T) -> BufResult<(), T> {
        write_all(buf, |rest, _| self.write(rest)).await
    }

    /// Waits for one of `events`, an error, or a hang-up.
    pub(crate) async fn ready(&self, events: PollEvents) -> io::Result<()> {
        self.driver.poll(&self.fd, events).await.map(|_| ())
    }

    pub(crate) async fn close(self) -> io::Result<()> {
        let Self { fd, driver, reads, writes } = self;
        // The result of a dropped operation keeps the descriptor open.
        drop((reads, writes));
        driver.close(fd.into_fd()).await
    }
}

/// The methods of a type that reads from a [`Stream`] in its field `stream`.
macro_rules! reader {
    ($type:ident) => {
        impl $type {
            /// Reads up to `buf.len()` bytes (an empty `Vec`: up to its capacity), as soon as any are
            /// available.
            ///
            /// The kernel owns `buf` until the future resolves.
            ///
            /// Resolves to the number of bytes read and the buffer; 0 means the end. A `Vec` that was empty
            /// then has as many bytes as were read: clear it before the next read, which would otherwise ask
            /// for no more than that.
            ///
            /// # Cancel safety
            /// Dropping the future loses the buffer but no byte: those that were read go to the next read.
            ///
            /// # Errors
            /// - `EINVAL`: a buffer without room (an empty one without capacity).
            /// - `EISDIR`: it is a directory. `EIO`: a terminal of another session.
            /// - `ECANCELED`: the runtime has ended. Otherwise as `read(2)`; never `EINTR` or `EAGAIN`.
            ///
            /// # Examples
            /// See [`pipe()`](crate::io::pipe()#examples).
            ///
            /// # Kernel
            /// 5.6. Source: `io_uring_prep_read(3)`.
            pub async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
                self.stream.read(buf).await
            }

            /// Reads until the end, and appends to `buf`.
            ///
            /// Resolves to the number of bytes appended and the buffer, which has the bytes read before an
            /// error too.
            ///
            /// # Cancel safety
            /// **None**: dropping the future loses the bytes that are in the buffer by then.
            ///
            /// # Errors
            /// As for [`read`](Self::read).
            ///
            /// # Examples
            /// See [`pipe()`](crate::io::pipe()#examples).
            pub async fn read_to_end(&mut self, buf: Vec<u8>) -> BufResult<usize, Vec<u8>> {
                self.stream.read_to_end(buf).await
            }

            closer!();
        }

        impl super::AsyncRead for $type {
            async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
                self.stream.read(buf).await
            }
        }
    };
}

/// The methods of a type that writes to a [`Stream`] in its field `stream`.
macro_rules! writer {
    ($type:ident) => {
        impl $type {
            /// Writes up to `buf.bytes_len()` bytes, as soon as there is room for any.
            ///
            /// The kernel reads `buf` until the future resolves.
            ///
            /// Resolves to the number of bytes written and the buffer. It may be fewer than asked.
            ///
            /// # Cancel safety
            /// Dropping the future gives up the write; some bytes may have been written by then. The next
            /// write waits until it has ended.
            ///
            /// # Errors
            /// - `EPIPE`: no reader is left. The kernel also sends `SIGPIPE`, which Rust programs
            ///   ignore unless they change that.
            /// - `ENOSPC`, `EDQUOT`, `EFBIG`: it is a file, and there is no room for the bytes.
            /// - `ECANCELED`: the runtime has ended. Otherwise as `write(2)`; never `EINTR` or
            ///   `EAGAIN`.
            ///
            /// # Kernel
            /// 5.6. Source: `io_uring_prep_write(3)`.
            pub async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
                self.stream.write(buf).await
            }

            /// Writes all of `buf`.
            ///
            /// # Cancel safety
            /// **None**: dropping the future leaves an unknown part of `buf` written.
            ///
            /// # Errors
            /// As for [`write`](Self::write); `WriteZero` if the kernel takes nothing.
            ///
            /// # Examples
            /// See [`pipe()`](crate::io::pipe()#examples).
            pub async fn write_all<T: IoBuf>(&mut self, buf: T) -> BufResult<(), T> {
                self.stream.write_all(buf).await
            }

            closer!();
        }

        impl super::AsyncWrite for $type {
            async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
                self.stream.write(buf).await
            }

            async fn write_vectored<T: IoBuf>(&mut self, bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
                self.stream.write_vectored(bufs).await
            }

            async fn close(self) -> std::io::Result<()> {
                self.stream.close().await
            }
        }
    };
}

/// The method that closes, of a reader or writer.
macro_rules! closer {
    () => {
        /// Closes the descriptor, and returns the result. Dropping closes it too, there and then if it is a
        /// pipe or a socket on which no write is under way, and reports nothing.
        ///
        /// # Cancel safety
        /// Dropping the future loses the result; the descriptor is closed all the same.
        ///
        /// # Errors
        /// As `close(2)`. The descriptor is gone in any case.
        ///
        /// # Kernel
        /// 5.6. Source: `io_uring_prep_close(3)`.
        pub async fn close(self) -> std::io::Result<()> {
            self.stream.close().await
        }
    };
}

pub(crate) use {closer, reader, writer};
