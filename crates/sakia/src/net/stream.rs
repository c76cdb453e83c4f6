//! A TCP connection.
//!
//! `EINTR` starts a transfer again. `EAGAIN` comes from sockets that somebody made non-blocking: then
//! readiness is awaited before the next try.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use sakia_driver::{BufResult, Connection, IoBuf, IoBufMut, PollEvents, RecvBuf, ShutdownHow};

use super::listener::release;
use super::lookup::ToSocketAddrs;
use super::options::ConnectOptions;
use super::sockopt::{self as options, Keepalive, option, tune};
use super::split::{OwnedReadHalf, OwnedWriteHalf};
use super::{Result, readers, writers};
use crate::executor::current;
use crate::io::transfer::{may_retry, retrying, uninterrupted};
use crate::io::{AsyncRead, AsyncWrite};

/// A TCP connection. Dropping it closes it.
///
/// What is sent is sent in order, and what comes is received in order, also when futures are dropped. Bytes
/// that came for a dropped future go to the next one.
///
/// # Examples
/// ```
/// use std::net::Shutdown;
///
/// use sakia::net::{TcpListener, TcpStream};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let mut client = TcpStream::connect(listener.local_addr()?).await?;
///     let (mut server, _) = listener.accept().await?;
///
///     client.write_all("a question").await.0?;
///     client.shutdown(Shutdown::Write).await?;
///     let question = server.recv().await?;
///     assert_eq!(&*question, b"a question");
///     assert!(server.recv().await?.is_empty(), "there is no more");
///     server.write_all("an answer").await.0?;
///     assert_eq!(&*client.recv().await?, b"an answer");
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct TcpStream {
    pub(super) connection: Connection,
}

impl TcpStream {
    /// Connects to the first of the addresses that `to` stands for where somebody answers. They are tried
    /// one after the other. [`ConnectOptions`] has more ways.
    ///
    /// # Errors
    /// As [`ConnectOptions::connect`]: the last failure, with all addresses that were tried.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub async fn connect(to: impl ToSocketAddrs) -> Result<Self> {
        ConnectOptions::new().connect(to).await
    }

    /// As [`connect`](TcpStream::connect), in at most so much time for all of it.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) without an errno when the time is up. Otherwise as
    /// [`connect`](TcpStream::connect).
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub async fn connect_timeout(to: impl ToSocketAddrs, timeout: Duration) -> Result<Self> {
        ConnectOptions::new().timeout(timeout).connect(to).await
    }

    readers!();
    writers!();

    /// Ends one or both directions. Ended sends tell the peer that no more comes, after all that was sent;
    /// ended receives tell it nothing.
    ///
    /// # Errors
    /// `ENOTCONN`: the connection has broken off. Otherwise as `shutdown(2)`.
    ///
    /// # Kernel
    /// 5.11. Source: `io_uring_prep_shutdown(3)`.
    pub async fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        self.end(match how {
            Shutdown::Read => ShutdownHow::Receives,
            Shutdown::Write => ShutdownHow::Sends,
            Shutdown::Both => ShutdownHow::Both,
        })
        .await
    }

    /// The two directions, for two tasks of the thread, or for a [`Reader`](crate::io::Reader) and a
    /// [`Writer`](crate::io::Writer). [`OwnedReadHalf::reunite`] puts them together again.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Rc::new(self);
        (OwnedReadHalf::new(Rc::clone(&stream)), OwnedWriteHalf::new(stream))
    }

    /// Closes the connection, and tells how it went. Dropping does the same, a little later, and does not
    /// tell.
    ///
    /// The kernel goes on sending what it has. If bytes came that were not read, it resets the connection
    /// instead, and the peer may not get all: [end the sends](TcpStream::shutdown), and read until the end.
    ///
    /// # Errors
    /// As `close(2)`. The descriptor is gone in any case.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_close(3)`.
    pub async fn close(self) -> io::Result<()> {
        self.connection.close().await
    }

    /// The socket's own address, by a plain call.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connection.local_address()?.inet().ok_or(Errno::AFNOSUPPORT)?)
    }

    /// The peer's address, by a plain call.
    ///
    /// # Errors
    /// `ENOTCONN`: the connection has broken off. Otherwise as `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connection.peer_address()?.inet().ok_or(Errno::AFNOSUPPORT)?)
    }

    /// Whether small pieces are sent at once, and not gathered while earlier ones are on their way.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        tune(self.connection.fd(), |fd| sockopt::set_tcp_nodelay(fd, nodelay))
    }

    /// Whether small pieces are sent at once.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn nodelay(&self) -> io::Result<bool> {
        option(self.connection.fd(), sockopt::tcp_nodelay)
    }

    /// Whether what comes is acknowledged at once. The kernel changes this by itself later on.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "TCP_QUICKACK")]
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        tune(self.connection.fd(), |fd| sockopt::set_tcp_quickack(fd, quickack))
    }

    /// Whether what comes is acknowledged at once, now.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn quickack(&self) -> io::Result<bool> {
        option(self.connection.fd(), sockopt::tcp_quickack)
    }

    /// The most routers that packets may pass.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "IP_TTL")]
    #[doc(alias = "IPV6_UNICAST_HOPS")]
    pub fn set_ttl(&self, hops: u8) -> io::Result<()> {
        options::set_ttl(self.connection.fd(), hops)
    }

    /// The most routers that packets may pass.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn ttl(&self) -> io::Result<u8> {
        options::ttl(self.connection.fd())
    }

    /// What closing does with bytes that were not sent yet. Without a time, as a new connection, it returns
    /// and the kernel goes on sending. With 0, they are thrown away and the peer sees a reset. With more, in
    /// whole seconds rounded up, closing waits so long, on a thread beside the loop if need be.
    ///
    /// # Errors
    /// As `setsockopt(2)`; `EOPNOTSUPP` on a simulated kernel.
    #[doc(alias = "SO_LINGER")]
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        option(self.connection.fd(), |fd| sockopt::set_socket_linger(fd, linger))
    }

    /// What [`set_linger`](TcpStream::set_linger) has set.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        option(self.connection.fd(), sockopt::socket_linger)
    }

    /// Whether, and when, a peer from which nothing comes is asked if it is still there.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        options::set_keepalive(self.connection.fd(), keepalive)
    }

    /// When the peer is asked if it is still there. `None`: never.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn keepalive(&self) -> io::Result<Option<Keepalive>> {
        options::keepalive(self.connection.fd())
    }

    /// How long what was sent may stay without an answer, before the connection fails with `ETIMEDOUT`; in
    /// whole milliseconds. Without a time the system decides, which is many minutes.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        options::set_user_timeout(self.connection.fd(), timeout)
    }

    /// What [`set_user_timeout`](TcpStream::set_user_timeout) has set.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn user_timeout(&self) -> io::Result<Option<Duration>> {
        options::user_timeout(self.connection.fd())
    }

    /// Bytes that the kernel keeps to be sent; it doubles the number, for what it needs besides, and has a
    /// limit.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "SO_SNDBUF")]
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        tune(self.connection.fd(), |fd| sockopt::set_socket_send_buffer_size(fd, bytes))
    }

    /// Bytes that the kernel keeps to be sent, with what it needs besides.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        option(self.connection.fd(), sockopt::socket_send_buffer_size)
    }

    /// Bytes that the kernel keeps to be received; it doubles the number, for what it needs besides, and has
    /// a limit.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "SO_RCVBUF")]
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        tune(self.connection.fd(), |fd| sockopt::set_socket_recv_buffer_size(fd, bytes))
    }

    /// Bytes that the kernel keeps to be received, with what it needs besides.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        option(self.connection.fd(), sockopt::socket_recv_buffer_size)
    }

    /// The error that waits on the socket, which has none afterwards.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    #[doc(alias = "SO_ERROR")]
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        options::take_error(self.connection.fd())
    }

    /// Takes over a connection that `std` made, whether it blocks or not.
    ///
    /// # Errors
    /// `ENOTCONN`: it is not connected. As `getpeername(2)`.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<Self> {
        stream.peer_addr()?;
        let local = current();
        let fd = local.driver.adopt(stream.into());
        Ok(Self { connection: local.driver.handle().connection(fd) })
    }

    /// Gives the connection to `std`, when what is under way on it has ended, with the bytes that came and
    /// were not taken: such as were received ahead, after a [`recv`](TcpStream::recv), or for a dropped
    /// future. They precede those that `std` will read. The number of the descriptor may change.
    ///
    /// # Errors
    /// - `EMFILE`: it needs another descriptor. As `close(2)`.
    /// - As [`read`](TcpStream::read): the connection has failed.
    ///
    /// It is closed then.
    ///
    /// # Panics
    /// On a simulated kernel.
    pub async fn into_std(self) -> io::Result<(std::net::TcpStream, Vec<u8>)> {
        let ahead = self.connection.stop_receiving().await?;
        let (fd, driver) = (self.connection.fd().clone(), self.connection.driver().clone());
        drop(self.connection);
        Ok((release(&driver, fd).await?.into(), ahead))
    }
}

/// What the stream and its halves have in common. Who has the right to read, or to write, calls these.
impl TcpStream {
    // Loops of their own for what a message takes: layers of futures cost it some 70 instructions more.
    pub(super) async fn read_some<T: IoBufMut>(&self, mut buf: T) -> BufResult<usize, T> {
        loop {
            let (result, back) = self.connection.read(buf).await;
            match result {
                Err(error) if self.may_retry(&error, PollEvents::READABLE).await => buf = back,
                result => return (result, back),
            }
        }
    }

    pub(super) fn read_some_vectored<T: IoBufMut>(
        &self,
        bufs: Vec<T>,
    ) -> impl Future<Output = BufResult<usize, Vec<T>>> {
        self.retrying(PollEvents::READABLE, bufs, |bufs| self.connection.read_vectored(bufs))
    }

    pub(super) fn peek_some<T: IoBufMut>(
        &self,
        buf: T,
    ) -> impl Future<Output = BufResult<usize, T>> {
        self.retrying(PollEvents::READABLE, buf, |buf| self.connection.peek(buf))
    }

    pub(super) async fn recv_some(&self) -> io::Result<RecvBuf> {
        loop {
            match self.connection.recv().await {
                Err(error) if self.may_retry(&error, PollEvents::READABLE).await => {}
                result => return result,
            }
        }
    }

    pub(super) async fn write_some<T: IoBuf>(&self, mut buf: T) -> BufResult<usize, T> {
        loop {
            let (result, back) = self.connection.send(buf).await;
            match result {
                Err(error) if self.may_retry(&error, PollEvents::WRITABLE).await => buf = back,
                result => return (result, back),
            }
        }
    }

    pub(super) fn write_some_vectored<T: IoBuf>(
        &self,
        bufs: Vec<T>,
    ) -> impl Future<Output = BufResult<usize, Vec<T>>> {
        self.retrying(PollEvents::WRITABLE, bufs, |bufs| self.connection.send_vectored(bufs))
    }

    pub(super) async fn end(&self, how: ShutdownHow) -> io::Result<()> {
        uninterrupted(async || self.connection.shutdown(how).await).await
    }

    /// Whether to try again after `error`, having waited if need be.
    async fn may_retry(&self, error: &io::Error, events: PollEvents) -> bool {
        may_retry(self.connection.driver(), self.connection.fd(), error, events).await
    }

    fn retrying<B, F>(
        &self,
        events: PollEvents,
        buf: B,
        transfer: impl Fn(B) -> F,
    ) -> impl Future<Output = BufResult<usize, B>>
    where
        F: Future<Output = BufResult<usize, B>>,
    {
        retrying(self.connection.driver(), self.connection.fd(), events, buf, transfer)
    }
}

impl AsyncRead for TcpStream {
    async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
        self.read_some(buf).await
    }
}

impl AsyncWrite for TcpStream {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.write_some(buf).await
    }

    async fn write_vectored<T: IoBuf>(&mut self, bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
        self.write_some_vectored(bufs).await
    }

    /// Ends the sends, and closes the connection.
    async fn close(self) -> io::Result<()> {
        self.end(ShutdownHow::Sends).await?;
        self.connection.close().await
    }
}

impl AsRef<Self> for TcpStream {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// For calls that are not here.
///
/// # Panics
/// On a simulated kernel.
impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.fd().as_fd()
    }
}
