//! Sending, one operation at a time.

use std::io::{self, IoSlice};

use rustix::io::Errno;

use super::permits::{Permit, WithPermit};
use super::{Connection, Inner};
use crate::address::SocketAddress;
use crate::buf::{BufResult, IoBuf};
use crate::decide::limits::BUFFERS_MAX;
use crate::fd::Fd;
use crate::ops::send_file::SendFile;
use crate::ops::{ControlMessages, SendMessage, SocketSend, SocketSendVectored};

impl Connection {
    /// Sends up to `buf.bytes_len()` bytes, as soon as there is room for any.
    ///
    /// The kernel reads `buf` until the future resolves.
    ///
    /// Resolves to the number of bytes sent, which may be fewer than requested, and the buffer.
    ///
    /// # Cancel safety
    /// Dropping the future cancels a send that waits for room; some bytes may have been sent by then. Later
    /// sends wait for the canceled one.
    ///
    /// # Errors
    /// As [`Handle::send`](crate::Handle::send).
    ///
    /// # Examples
    /// See [`Connection`](Connection#examples).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_send(3)`.
    pub async fn send<T: IoBuf>(&self, buf: T) -> BufResult<usize, T> {
        let free = Permit::try_take(self.inner(), |inner| &inner.sends);
        let permit = match free {
            Some(permit) => permit,
            None => self.send_permit().await,
        };
        let send = SocketSend::new(self.fd().clone(), buf, 0);
        let send = send.tried_now(self.inner().inbox.are_sends_plain());
        self.driver().start(WithPermit::new(send, permit, |_, _| ())).await
    }

    /// As [`send`](Connection::send), taking one buffer after the other. At most the first 1024 are used.
    ///
    /// # Cancel safety
    /// As [`send`](Connection::send).
    ///
    /// # Errors
    /// As [`send`](Connection::send).
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_sendmsg(3)`.
    pub async fn send_vectored<T: IoBuf>(&self, bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
        let permit = self.send_permit().await;
        let send = SocketSendVectored::new(self.fd().clone(), bufs, 0);
        let send = send.tried_now(self.inner().inbox.are_sends_plain());
        self.driver().start(WithPermit::new(send, permit, |_, _| ())).await
    }

    /// As [`send`](Connection::send), with control messages, which are sent with the first byte.
    ///
    /// # Cancel safety
    /// As [`send`](Connection::send).
    ///
    /// # Errors
    /// As [`Handle::send_message`](crate::Handle::send_message).
    ///
    /// # Panics
    /// When a descriptor belongs to another driver.
    ///
    /// # Kernel
    /// As [`Handle::send_message`](crate::Handle::send_message).
    pub async fn send_message<T: IoBuf>(
        &self,
        buf: T,
        control: ControlMessages,
    ) -> BufResult<usize, T> {
        let permit = self.send_permit().await;
        let send =
            SendMessage::new(self.driver(), self.fd(), buf, SocketAddress::UNNAMED, control, 0);
        self.driver().start(WithPermit::new(send, permit, |_, _| ())).await
    }

    /// Sends up to `len` bytes of `file`, from byte `offset` on, within the kernel: as many as there is room
    /// for now, and at most [`SEND_FILE_BYTES_MAX`](crate::SEND_FILE_BYTES_MAX). A pipe has no offsets; its
    /// next bytes are sent, if there are any.
    ///
    /// Resolves to the number of bytes sent, which may be fewer than requested; 0 means that the file ends
    /// there, or that `len` is 0. If the page cache has the bytes, this thread makes the call; otherwise a
    /// thread of a lane does, without waiting for the peer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown how many bytes were sent, and does not stop a thread of a lane.
    /// Later sends follow its bytes.
    ///
    /// # Errors
    /// - `EAGAIN`: there is no room, or the pipe is empty. [Poll](crate::Handle::poll) both, and try again.
    /// - `EPIPE`: the connection was shut down, on either side; no signal is raised. `ECONNRESET`: the peer
    ///   reset it.
    /// - `EINVAL`: the kernel does not send such a file (many of `/proc`, directories), or no file has such
    ///   an offset. `EBADF`: it is not open to read. `EIO`: reading it failed.
    /// - `EOPNOTSUPP`: the socket was not made by the driver and is in blocking mode, which the driver does
    ///   not change, or the backend does not perform it.
    /// - `ECANCELED`: the driver has ended. Otherwise as `sendfile(2)`.
    ///
    /// # Panics
    /// When the file belongs to another driver.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use sakia_driver::SocketType;
    ///
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
    /// let (near, far) = driver.socket_pair(SocketType::STREAM)?;
    /// let (near, far) = (driver.connection(near), driver.connection(far));
    /// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// let talk = async {
    ///     match near.send_file(&file, 0, 9).await {
    ///         Ok(count) => assert_eq!(&*far.recv().await?, &b"[package]"[..count]),
    ///         // The socket is in blocking mode: read and send then.
    ///         Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Unsupported),
    ///     }
    ///     std::io::Result::Ok(())
    /// };
    /// run(&driver, talk)??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 2.6.33. Not given to the ring, which has no such entry. Since 6.5 the driver queries the page cache
    /// (`cachestat(2)`), if the process owns the file or may write to it; otherwise the calls are timed.
    /// Source: `sendfile(2)`.
    #[doc(alias = "sendfile")]
    pub async fn send_file(&self, file: &Fd, offset: u64, len: usize) -> io::Result<usize> {
        self.driver().check(file);
        let permit = self.send_permit().await;
        let send = SendFile::new(self.fd().clone(), file.clone(), offset, len);
        self.driver().start(WithPermit::new(send, permit, |_, _| ())).await
    }

    /// Sends slices, as many bytes as there is room for, by a plain call, without waiting. At most the first
    /// 1024 are used.
    ///
    /// # Errors
    /// `EAGAIN`: there is no room, or another send is in flight; wait for that with
    /// [`sends_settled`](Self::sends_settled). Otherwise as [`send`](Connection::send), and `EINTR`.
    ///
    /// # Examples
    /// See [`Connection::try_recv`].
    pub fn try_send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_sending() {
            return Err(Errno::AGAIN.into());
        }
        let calls = &self.driver().shared.calls;
        let slices = &slices[..slices.len().min(BUFFERS_MAX)];
        // SAFETY: the connection keeps the descriptor open.
        let count = unsafe { calls.try_send(self.fd().raw(), slices) }?;
        Ok(count.min(slices.iter().map(|slice| slice.len()).sum()))
    }

    /// Returns whether a send is in flight, possibly that of a dropped future.
    pub fn is_sending(&self) -> bool {
        self.inner().sends.is_busy()
    }

    /// Waits until no send is in flight.
    pub async fn sends_settled(&self) {
        self.inner().sends.free().await;
    }

    async fn send_permit(&self) -> Permit<Inner> {
        Permit::take(self.inner(), |inner| &inner.sends).await
    }
}
