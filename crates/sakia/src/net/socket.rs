//! The common part of connections of all families.
//!
//! `EINTR` restarts a transfer. `EAGAIN` comes from sockets that another owner made non-blocking: then the
//! code waits for readiness before it retries.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::pin::Pin;

use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use sakia_driver::{
    BufResult, Connection, ControlMessages, Fd, IoBuf, IoBufMut, PollEvents, ReceivedControl,
    RecvBuf, ShutdownHow, SocketAddress,
};

use super::listener::release;
use crate::executor::current;
use crate::io::transfer::{may_retry, retrying, uninterrupted, write_rest};

/// A connection: a [`TcpStream`](super::TcpStream) or a [`UnixStream`](super::UnixStream). No other type has
/// this trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no connection of Sakia",
    label = "neither a `TcpStream` nor a `UnixStream` of `sakia::net`"
)]
pub trait Stream: private::Connected + fmt::Debug + 'static {
    /// The address of one of its ends.
    type Address: private::Address;
}

pub(super) mod private {
    use super::{Socket, SocketAddress, fmt, io};

    /// The private part of a [`Stream`](super::Stream).
    pub trait Connected: Sized {
        /// Makes a connection of a socket.
        fn of(socket: Socket) -> Self;

        /// Returns the socket. Only the owner of a `&mut` stream or half transfers bytes by it.
        fn socket(&self) -> &Socket;
    }

    /// An address type of `std`.
    pub trait Address: fmt::Debug + Clone + 'static {
        /// # Errors
        /// `EAFNOSUPPORT`: it is of another family.
        fn of(address: &SocketAddress) -> io::Result<Self>;
    }
}

/// Returns the directions that `how` names.
pub(super) fn direction(how: Shutdown) -> ShutdownHow {
    match how {
        Shutdown::Read => ShutdownHow::Receives,
        Shutdown::Write => ShutdownHow::Sends,
        Shutdown::Both => ShutdownHow::Both,
    }
}

/// A connected socket.
#[derive(Debug)]
pub struct Socket {
    connection: Connection,
}

impl Socket {
    pub fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Takes over a descriptor. That it is connected, and of the right family, its peer's address tells the
    /// caller.
    ///
    /// # Errors
    /// `EPROTOTYPE`: it is no stream socket. As `getsockopt(2)`.
    pub fn of(fd: Fd) -> io::Result<Self> {
        if !fd.is_simulated() && sockopt::socket_type(&fd)? != SocketType::STREAM {
            return Err(Errno::PROTOTYPE.into());
        }
        Ok(Self::new(current().driver.handle().connection(fd)))
    }

    pub fn fd(&self) -> &Fd {
        self.connection.fd()
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Gives the descriptor up, with the bytes that were received and not taken.
    pub async fn into_owned(self) -> io::Result<(OwnedFd, Vec<u8>)> {
        let ahead = self.connection.stop_receiving().await?;
        let (fd, driver) = (self.connection.fd().clone(), self.connection.driver().clone());
        drop(self.connection);
        Ok((release(&driver, fd).await?, ahead))
    }

    pub async fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.end(direction(how)).await
    }

    pub async fn close(self) -> io::Result<()> {
        self.connection.close().await
    }

    // Separate loops, for the sake of small messages: further layers of futures cost some 70 instructions
    // each time.
    pub async fn read_some<T: IoBufMut>(&self, mut buf: T) -> BufResult<usize, T> {
        loop {
            let (result, back) = self.connection.read(buf).await;
            match result {
                Err(error) if self.may_retry(&error, PollEvents::READABLE).await => buf = back,
                result => return (result, back),
            }
        }
    }

    pub fn read_some_vectored<T: IoBufMut>(
        &self,
        bufs: Vec<T>,
    ) -> impl Future<Output = BufResult<usize, Vec<T>>> {
        self.retrying(PollEvents::READABLE, bufs, |bufs| self.connection.read_vectored(bufs))
    }

    pub fn peek_some<T: IoBufMut>(&self, buf: T) -> impl Future<Output = BufResult<usize, T>> {
        self.retrying(PollEvents::READABLE, buf, |buf| self.connection.peek(buf))
    }

    pub async fn recv_some(&self) -> io::Result<RecvBuf> {
        loop {
            match self.connection.recv().await {
                Err(error) if self.may_retry(&error, PollEvents::READABLE).await => {}
                result => return result,
            }
        }
    }

    pub async fn write_some<T: IoBuf>(&self, mut buf: T) -> BufResult<usize, T> {
        loop {
            let (result, back) = self.connection.send(buf).await;
            match result {
                Err(error) if self.may_retry(&error, PollEvents::WRITABLE).await => buf = back,
                result => return (result, back),
            }
        }
    }

    /// Writes all of `buf`. Usually one send takes it as a whole, and nothing is sliced.
    pub async fn write_all<T: IoBuf>(&self, buf: T) -> BufResult<(), T> {
        let len = buf.bytes_len();
        if len == 0 {
            return (Ok(()), buf);
        }
        let (result, buf) = self.connection.send(buf).await;
        match result {
            Ok(count) if count == len => (Ok(()), buf),
            result => self.write_rest(buf, result).await,
        }
    }

    /// Writes what a first send has left. Boxed, so that a task that waits has no room for its state: the
    /// peer has to be waited for, which costs more than the allocation.
    #[cold]
    fn write_rest<'a, T: IoBuf + 'a>(
        &'a self,
        buf: T,
        first: io::Result<usize>,
    ) -> Pin<Box<dyn Future<Output = BufResult<(), T>> + 'a>> {
        Box::pin(async move {
            let done = match first {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                Ok(count) => count,
                Err(error) if self.may_retry(&error, PollEvents::WRITABLE).await => 0,
                Err(error) => return (Err(error), buf),
            };
            write_rest(buf, done, |rest, _| self.write_some(rest)).await
        })
    }

    pub fn write_some_vectored<T: IoBuf>(
        &self,
        bufs: Vec<T>,
    ) -> impl Future<Output = BufResult<usize, Vec<T>>> {
        self.retrying(PollEvents::WRITABLE, bufs, |bufs| self.connection.send_vectored(bufs))
    }

    pub async fn end(&self, how: ShutdownHow) -> io::Result<()> {
        uninterrupted(async || self.connection.shutdown(how).await).await
    }

    /// Returns whether to retry after `error`, having waited if need be.
    async fn may_retry(&self, error: &io::Error, events: PollEvents) -> bool {
        may_retry(self.connection.driver(), self.connection.fd(), error, events).await
    }

    fn retrying<R, B, F>(
        &self,
        events: PollEvents,
        buf: B,
        transfer: impl Fn(B) -> F,
    ) -> impl Future<Output = BufResult<R, B>>
    where
        F: Future<Output = BufResult<R, B>>,
    {
        retrying(self.connection.driver(), self.connection.fd(), events, buf, transfer)
    }

    pub async fn send_message<T: IoBuf>(
        &self,
        buf: T,
        control: ControlMessages,
    ) -> BufResult<usize, T> {
        if buf.bytes_len() == 0 {
            return (Err(Errno::INVAL.into()), buf);
        }
        let send = |buf| self.connection.send_message(buf, control.clone());
        self.retrying(PollEvents::WRITABLE, buf, send).await
    }

    pub fn recv_message<T: IoBufMut>(
        &self,
        buf: T,
        control_bytes: usize,
    ) -> impl Future<Output = BufResult<(usize, ReceivedControl), T>> {
        let recv = move |buf| self.connection.recv_message(buf, control_bytes);
        self.retrying(PollEvents::READABLE, buf, recv)
    }
}

/// The methods of a [`Stream`] that are the same in all families, given its type in `std`, and that of its
/// addresses.
macro_rules! stream {
    ($stream:ident, $std:ty, $address:ty) => {
        impl $stream {
            $crate::net::readers!();
            $crate::net::writers!();
            $crate::net::addresses!($address);

            /// Ends one or both directions. Ending the sends tells the peer that no more bytes follow, after
            /// all that were sent; ending the receives tells it nothing.
            ///
            /// # Cancel safety
            /// Dropping the future leaves unknown whether the direction was ended. Call it again.
            ///
            /// # Errors
            /// `ENOTCONN`: the connection is broken. Otherwise as `shutdown(2)`.
            ///
            /// # Examples
            /// See [`TcpStream`](crate::net::TcpStream#examples).
            ///
            /// # Kernel
            /// 5.11. Source: `io_uring_prep_shutdown(3)`.
            pub async fn shutdown(&mut self, how: std::net::Shutdown) -> std::io::Result<()> {
                self.socket.shutdown(how).await
            }

            /// Borrows the two directions, for two futures within one task. Dropping them changes nothing.
            ///
            /// # Examples
            /// See [`ReadHalf`](crate::net::ReadHalf#examples).
            pub fn split(&mut self) -> (ReadHalf<'_, Self>, WriteHalf<'_, Self>) {
                (ReadHalf::new(self), WriteHalf::new(self))
            }

            /// Takes the two directions apart, for two tasks of the thread, or for a
            /// [`Reader`](crate::io::Reader) and a [`Writer`](crate::io::Writer).
            /// [`OwnedReadHalf::reunite`] puts them together again.
            ///
            /// # Examples
            /// See [`OwnedReadHalf`](crate::net::OwnedReadHalf#examples).
            #[track_caller]
            pub fn into_split(self) -> (OwnedReadHalf<Self>, OwnedWriteHalf<Self>) {
                $crate::net::into_halves(self)
            }

            /// Closes the connection, and returns the result. Dropping closes it too, there and then unless a
            /// send is under way or `SO_LINGER` is set, and reports nothing.
            ///
            /// The kernel goes on sending the bytes that it has. If received bytes were not read, it resets
            /// the connection instead, and the peer may not get all: [end the sends](Self::shutdown), and
            /// read until the end.
            ///
            /// # Cancel safety
            /// Dropping the future loses the result; the connection is closed all the same.
            ///
            /// # Errors
            /// As `close(2)`. The descriptor is gone in any case.
            ///
            /// # Kernel
            /// 5.6. Source: `io_uring_prep_close(3)`.
            pub async fn close(self) -> std::io::Result<()> {
                self.socket.close().await
            }

            /// Takes and clears the socket's pending error.
            ///
            /// # Errors
            /// As `getsockopt(2)`.
            #[doc(alias = "SO_ERROR")]
            pub fn take_error(&self) -> std::io::Result<Option<std::io::Error>> {
                $crate::net::sockopt::take_error(self.socket.fd())
            }

            /// Takes over a connection of `std`, in blocking mode or not.
            ///
            /// # Errors
            /// `ENOTCONN`: it is not connected. As `getpeername(2)`.
            ///
            /// # Panics
            /// Outside of a runtime, and on a simulated kernel.
            pub fn from_std(stream: $std) -> std::io::Result<Self> {
                Self::try_from($crate::io::adopt(stream))
            }

            /// Gives the connection to `std`, once the operations under way on it have ended, with the bytes
            /// that were received and not taken: those received ahead, after a [`recv`](Self::recv), or for a
            /// dropped future. They precede those that `std` will read. The number of the descriptor may
            /// change.
            ///
            /// # Cancel safety
            /// Dropping the future closes the connection.
            ///
            /// # Errors
            /// - `EMFILE`: it needs another descriptor. As `close(2)`.
            /// - As [`read`](Self::read): the connection has failed.
            ///
            /// It is closed then.
            ///
            /// # Panics
            /// On a simulated kernel.
            pub async fn into_std(self) -> std::io::Result<($std, Vec<u8>)> {
                let (fd, ahead) = self.socket.into_owned().await?;
                Ok((fd.into(), ahead))
            }
        }

        impl Stream for $stream {
            type Address = $address;
        }

        impl Connected for $stream {
            fn of(socket: Socket) -> Self {
                Self { socket }
            }

            fn socket(&self) -> &Socket {
                &self.socket
            }
        }

        /// Converts a descriptor that was received. Its connection must not be in use elsewhere on this
        /// thread: the order of bytes is kept only among the users of one stream.
        impl TryFrom<sakia_driver::Fd> for $stream {
            type Error = std::io::Error;

            /// # Errors
            /// `ENOTCONN`: it is not connected. `EAFNOSUPPORT`, `EPROTOTYPE`: it is of another family, or no
            /// stream socket. As `getpeername(2)`.
            ///
            /// # Panics
            /// Outside of a runtime, and in another runtime than that of the descriptor.
            fn try_from(fd: sakia_driver::Fd) -> std::io::Result<Self> {
                let stream = Self { socket: Socket::of(fd)? };
                stream.peer_addr().map(|_| stream)
            }
        }

        impl AsRef<Self> for $stream {
            fn as_ref(&self) -> &Self {
                self
            }
        }

        /// Lends the descriptor, so that it can be sent to another process. Bytes that were received ahead
        /// stay here.
        impl AsRef<sakia_driver::Fd> for $stream {
            fn as_ref(&self) -> &sakia_driver::Fd {
                self.socket.fd()
            }
        }

        /// For system calls that this type does not offer.
        ///
        /// # Panics
        /// On a simulated kernel.
        impl AsFd for $stream {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.socket.fd().as_fd()
            }
        }

        $crate::net::async_read!([] $stream);

        impl $crate::io::AsyncWrite for $stream {
            $crate::net::async_writes!();

            /// Ends the sends, and closes the connection.
            async fn close(self) -> std::io::Result<()> {
                self.socket.end(sakia_driver::ShutdownHow::Sends).await?;
                self.socket.close().await
            }
        }
    };
}
pub(super) use stream;
