//! A TCP connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use sakia_driver::{BufResult, IoBuf, IoBufMut, RecvBuf, SocketAddress};

use super::Result;
use super::lookup::ToSocketAddrs;
use super::options::ConnectOptions;
use super::socket::private::{Address, Connected};
use super::socket::{Socket, Stream, stream};
use super::sockopt::{self as options, Keepalive, option, tune};
use super::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};

/// A TCP connection. Dropping it closes it.
///
/// Bytes are sent and received in order, also when futures are dropped. Bytes that are received for a dropped
/// future go to the next one.
///
/// # Examples
/// ```
/// use std::net::Shutdown;
///
/// use sakia::io::BufResultExt;
/// use sakia::net::{TcpListener, TcpStream};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let mut client = TcpStream::connect(listener.local_addr()?).await?;
///     let (mut server, _) = listener.accept().await?;
///
///     client.write_all("a question").await.value()?;
///     client.shutdown(Shutdown::Write).await?;
///     let question = server.recv().await?;
///     assert_eq!(&*question, b"a question");
///     assert!(server.recv().await?.is_empty(), "there is no more");
///     server.write_all("an answer").await.value()?;
///     assert_eq!(&*client.recv().await?, b"an answer");
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct TcpStream {
    socket: Socket,
}

impl TcpStream {
    /// Connects to the first address of `to` that answers. The addresses are tried one after the other.
    /// [`ConnectOptions`] has more settings.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// As [`ConnectOptions::connect`]: the last failure, with all addresses that were tried.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`TcpStream`](TcpStream#examples).
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub async fn connect(to: impl ToSocketAddrs) -> Result<Self> {
        ConnectOptions::new().connect(to).await
    }

    /// As [`connect`](TcpStream::connect), with a time limit on the whole.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) without an errno when the time is up. Otherwise as
    /// [`connect`](TcpStream::connect).
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia::net::{TcpListener, TcpStream};
    ///
    /// # sakia::block_on(async {
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let limit = Duration::from_secs(10);
    /// let stream = TcpStream::connect_timeout(listener.local_addr()?, limit).await?;
    /// assert_eq!(stream.peer_addr()?, listener.local_addr()?);
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub async fn connect_timeout(to: impl ToSocketAddrs, timeout: Duration) -> Result<Self> {
        ConnectOptions::new().timeout(timeout).connect(to).await
    }

    /// Sets whether small pieces are sent at once, instead of being gathered while earlier ones are under way
    /// (`TCP_NODELAY`).
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia::net::{Keepalive, TcpListener, TcpStream};
    ///
    /// # sakia::block_on(async {
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// stream.set_nodelay(true)?;
    /// stream.set_keepalive(Some(Keepalive::new().idle(Duration::from_secs(60))))?;
    /// stream.set_user_timeout(Some(Duration::from_secs(30)))?;
    /// assert!(stream.nodelay()? && stream.keepalive()?.is_some());
    /// assert_eq!(stream.user_timeout()?, Some(Duration::from_secs(30)));
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        tune(self.socket.fd(), |fd| sockopt::set_tcp_nodelay(fd, nodelay))
    }

    /// Returns whether small pieces are sent at once.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    ///
    /// # Examples
    /// See [`TcpStream::set_nodelay`].
    pub fn nodelay(&self) -> io::Result<bool> {
        option(self.socket.fd(), sockopt::tcp_nodelay)
    }

    /// Sets whether received bytes are acknowledged at once. The kernel changes this by itself later on.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "TCP_QUICKACK")]
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        tune(self.socket.fd(), |fd| sockopt::set_tcp_quickack(fd, quickack))
    }

    /// Returns whether received bytes are acknowledged at once, now.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn quickack(&self) -> io::Result<bool> {
        option(self.socket.fd(), sockopt::tcp_quickack)
    }

    /// Sets the TTL (IPv4) or hop limit (IPv6).
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// See [`UdpSocket::set_ttl`](super::UdpSocket::set_ttl).
    #[doc(alias = "IP_TTL")]
    #[doc(alias = "IPV6_UNICAST_HOPS")]
    pub fn set_ttl(&self, hops: u8) -> io::Result<()> {
        options::set_ttl(self.socket.fd(), hops)
    }

    /// Returns the TTL (IPv4) or hop limit (IPv6).
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn ttl(&self) -> io::Result<u8> {
        options::ttl(self.socket.fd())
    }

    /// Sets the effect of closing on bytes that were not sent yet. Without a time, the default, closing
    /// returns and the kernel goes on sending. With 0, the bytes are discarded and the peer sees a reset.
    /// With more, in whole seconds rounded up, closing waits that long, on another thread if need be.
    ///
    /// # Errors
    /// As `setsockopt(2)`; `EOPNOTSUPP` on a simulated kernel.
    ///
    /// # Examples
    /// Breaks the connection off:
    /// ```
    /// use std::io::ErrorKind;
    /// use std::time::Duration;
    ///
    /// use sakia::net::{TcpListener, TcpStream};
    ///
    /// # sakia::block_on(async {
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let client = TcpStream::connect(listener.local_addr()?).await?;
    /// let (mut server, _) = listener.accept().await?;
    /// client.set_linger(Some(Duration::ZERO))?;
    /// client.close().await?;
    /// assert_eq!(server.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "SO_LINGER")]
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.socket.fd().note_linger();
        option(self.socket.fd(), |fd| sockopt::set_socket_linger(fd, linger))
    }

    /// Returns the time set by [`set_linger`](TcpStream::set_linger).
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        option(self.socket.fd(), sockopt::socket_linger)
    }

    /// Sets whether, and when, an idle peer is probed.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// See [`TcpStream::set_nodelay`].
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        options::set_keepalive(self.socket.fd(), keepalive)
    }

    /// Returns when an idle peer is probed. `None`: never.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    ///
    /// # Examples
    /// See [`TcpStream::set_nodelay`].
    pub fn keepalive(&self) -> io::Result<Option<Keepalive>> {
        options::keepalive(self.socket.fd())
    }

    /// Sets how long sent bytes may stay unacknowledged before the connection fails with `ETIMEDOUT`; in
    /// whole milliseconds. Without a time the system decides, which is many minutes.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// See [`TcpStream::set_nodelay`].
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        options::set_user_timeout(self.socket.fd(), timeout)
    }

    /// Returns the time set by [`set_user_timeout`](TcpStream::set_user_timeout).
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    ///
    /// # Examples
    /// See [`TcpStream::set_nodelay`].
    pub fn user_timeout(&self) -> io::Result<Option<Duration>> {
        options::user_timeout(self.socket.fd())
    }

    /// Sets the size of the kernel's send buffer in bytes; the kernel doubles the number, for its own
    /// records, and limits it.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "SO_SNDBUF")]
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        tune(self.socket.fd(), |fd| sockopt::set_socket_send_buffer_size(fd, bytes))
    }

    /// Returns the size of the kernel's send buffer in bytes, its own records included.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        option(self.socket.fd(), sockopt::socket_send_buffer_size)
    }

    /// Sets the size of the kernel's receive buffer in bytes; the kernel doubles the number, for its own
    /// records, and limits it.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// See [`UdpSocket::set_ttl`](super::UdpSocket::set_ttl).
    #[doc(alias = "SO_RCVBUF")]
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        tune(self.socket.fd(), |fd| sockopt::set_socket_recv_buffer_size(fd, bytes))
    }

    /// Returns the size of the kernel's receive buffer in bytes, its own records included.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        option(self.socket.fd(), sockopt::socket_recv_buffer_size)
    }
}

stream!(TcpStream, std::net::TcpStream, SocketAddr);

impl Address for SocketAddr {
    fn of(address: &SocketAddress) -> io::Result<Self> {
        Ok(address.inet().ok_or(Errno::AFNOSUPPORT)?)
    }
}
