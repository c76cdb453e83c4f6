//! Unix datagram sockets.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::SocketAddr;
use std::path::Path;

use rustix::net::{AddressFamily, sockopt};
use sakia_driver::{
    BufResult, ControlMessages, Domain, IoBuf, IoBufMut, ReceivedControl, SocketAddress, SocketType,
};

use super::datagram::{Datagrams, receivers};
use super::listener::object;
use super::received::Received;
use super::sockopt::{option, take_error};
use super::unix::own_address;
use super::{Error, Result};
use crate::error::Context;
use crate::executor::current;

/// A Unix datagram socket. Dropping it closes it; the file at its path stays, as with `std`.
///
/// Datagrams arrive once and in order. If the receiver has no room a send waits, and another waiting send may
/// then overtake it. Several tasks may send and receive at the same time; of receives that wait at the same
/// time, any may get the first datagram.
///
/// Dropping a receive loses no datagram: a waiting receive gets it, or else the next one; its descriptors go
/// to a [`recv_message`](UnixDatagram::recv_message). Dropping a send leaves unknown whether the datagram was
/// sent.
///
/// # Examples
/// ```
/// use sakia::io::BufResultExt;
/// use sakia::net::UnixDatagram;
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let (one, other) = UnixDatagram::pair()?;
///     one.send("hello").await.value()?;
///     let (len, buf) = other.recv(vec![0; 100]).await.both()?;
///     assert_eq!(&buf[..len], b"hello");
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct UnixDatagram {
    inner: Datagrams,
}

impl UnixDatagram {
    /// Makes a socket at `path`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket. Its file may have been made by then, and stays.
    ///
    /// # Errors
    /// The errors name the path:
    /// - `EADDRINUSE`: the path exists, perhaps as the file of a socket that is gone.
    /// - `ENOENT`, `ENOTDIR`, `EACCES`, `EROFS`: no socket can be made there.
    /// - `ENAMETOOLONG`: a path of more than 107 bytes. `EINVAL`: an empty path, or one with a NUL.
    /// - `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left. Otherwise as `bind(2)`.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::BufResultExt;
    /// use sakia::net::UnixDatagram;
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-unix-datagram-{}", std::process::id()));
    /// # std::fs::create_dir(&dir).unwrap();
    /// # sakia::block_on(async {
    /// let log = UnixDatagram::bind(dir.join("log")).await?;
    /// let sender = UnixDatagram::unbound().await?;
    /// sender.send_to("one line", dir.join("log")).await.value()?;
    /// let (len, buf) = log.recv(vec![0; 100]).await.both()?;
    /// assert_eq!(&buf[..len], b"one line");
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 6.11 for binding on the ring. Source: `io_uring_prep_bind(3)`.
    pub async fn bind(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::bind_to(SocketAddress::unix(path).at("bind", path)?).await
    }

    /// Makes a socket with an address, which may be an abstract name.
    ///
    /// # Cancel safety
    /// As [`bind`](UnixDatagram::bind).
    ///
    /// # Errors
    /// `EADDRINUSE`: another socket has the name. `EINVAL`: no address. Otherwise as
    /// [`bind`](UnixDatagram::bind).
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Kernel
    /// 6.11 for binding on the ring. Source: `io_uring_prep_bind(3)`.
    pub async fn bind_addr(address: &SocketAddr) -> Result<Self> {
        Self::bind_to(own_address("bind", address)?).await
    }

    async fn bind_to(address: SocketAddress) -> Result<Self> {
        let failed = |operation| move |error| Error::new(operation, object(&address), error);
        let socket = Self::unbound().await.map_err(failed("make a socket for"))?;
        socket.inner.bind(&address).await.map_err(failed("bind"))?;
        Ok(socket)
    }

    /// Makes a socket without an address: only its [peer](UnixDatagram::connect) can send to it.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left. As `socket(2)`.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`UnixDatagram::bind`].
    ///
    /// # Kernel
    /// 5.19. Source: `io_uring_prep_socket(3)`.
    pub async fn unbound() -> io::Result<Self> {
        let driver = current().driver.handle().clone();
        let fd = driver.socket(Domain::UNIX, SocketType::DATAGRAM, 0).await?;
        Ok(Self { inner: Datagrams::new(fd, driver) })
    }

    /// Makes two sockets that are each other's peer, and have no addresses.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: no descriptor or memory left. As `socketpair(2)`.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`UnixDatagram`](UnixDatagram#examples).
    #[doc(alias = "socketpair")]
    pub fn pair() -> io::Result<(Self, Self)> {
        let driver = current().driver.handle().clone();
        let (one, other) = driver.socket_pair(SocketType::DATAGRAM)?;
        let socket = |fd| Self { inner: Datagrams::new(fd, driver.clone()) };
        Ok((socket(one), socket(other)))
    }

    /// Makes the socket at `path` the peer: [`send`](UnixDatagram::send) sends to it, and datagrams of others
    /// are not received.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the socket has the peer.
    ///
    /// # Errors
    /// The errors name the path:
    /// - `ENOENT`: no such path. `ECONNREFUSED`: its socket is gone. `EACCES`: not allowed to write to it.
    /// - `EPROTOTYPE`: it is no datagram socket. `EPERM`: it has another peer.
    /// - `ENAMETOOLONG`, `EINVAL`: as for [`bind`](UnixDatagram::bind). Otherwise as `connect(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::BufResultExt;
    /// use sakia::net::UnixDatagram;
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-unix-connect-{}", std::process::id()));
    /// # std::fs::create_dir(&dir).unwrap();
    /// # sakia::block_on(async {
    /// let server = UnixDatagram::bind(dir.join("server")).await?;
    /// let client = UnixDatagram::bind(dir.join("client")).await?;
    /// client.connect(dir.join("server")).await?;
    /// client.send("a question").await.value()?;
    /// let ((_, peer), _) = server.recv_from(vec![0; 100]).await.both()?;
    /// server.send_to_addr("an answer", &peer).await.value()?;
    /// let (len, buf) = client.recv(vec![0; 100]).await.both()?;
    /// assert_eq!(&buf[..len], b"an answer");
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub async fn connect(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.connect_to(SocketAddress::unix(path).at("connect", path)?).await
    }

    /// As [`connect`](UnixDatagram::connect), with an address, which may be an abstract name.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the socket has the peer.
    ///
    /// # Errors
    /// `EINVAL`: no address. Otherwise as [`connect`](UnixDatagram::connect).
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub async fn connect_addr(&self, address: &SocketAddr) -> Result<()> {
        self.connect_to(own_address("connect", address)?).await
    }

    async fn connect_to(&self, address: SocketAddress) -> Result<()> {
        let connected = self.inner.connect(&address).await;
        connected.map_err(|error| Error::new("connect", object(&address), error))
    }

    /// Sends `buf` as one datagram to the [peer](UnixDatagram::connect), and waits until the peer has room
    /// for it.
    ///
    /// The kernel reads `buf` until the future resolves. Resolves to the number of bytes sent, which is all
    /// of them, and the buffer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the datagram was sent.
    ///
    /// # Errors
    /// - `EMSGSIZE`: longer than the socket's send buffer.
    /// - `ENOTCONN`: the socket has no peer. `ECONNREFUSED`, `ECONNRESET`: the peer is gone.
    /// - `ECANCELED`: the runtime has ended. Otherwise as `send(2)`; never `EINTR` or `EAGAIN`.
    ///
    /// # Examples
    /// See [`UnixDatagram`](UnixDatagram#examples).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_send(3)`.
    pub async fn send<T: IoBuf>(&self, buf: T) -> BufResult<usize, T> {
        self.inner.send(buf).await
    }

    /// As [`send`](UnixDatagram::send), to the socket at `path`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the datagram was sent.
    ///
    /// # Errors
    /// - `ENOENT`: no such path. `ECONNREFUSED`: its socket is gone. `EACCES`: not allowed to write to it.
    /// - `EPROTOTYPE`: it is no datagram socket. `EPERM`: it has another peer.
    /// - `ENAMETOOLONG`, `EINVAL`: as for [`bind`](UnixDatagram::bind).
    /// - `EISCONN`: the socket has a peer, on some kernels. Otherwise as [`send`](UnixDatagram::send).
    ///
    /// # Examples
    /// See [`UnixDatagram::bind`].
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_sendmsg(3)`.
    pub async fn send_to<T: IoBuf>(&self, buf: T, path: impl AsRef<Path>) -> BufResult<usize, T> {
        match SocketAddress::unix(&path).at("send to", path.as_ref()) {
            Ok(to) => self.inner.send_to(buf, &to).await,
            Err(error) => (Err(error.into()), buf),
        }
    }

    /// As [`send_to`](UnixDatagram::send_to), to an address, which may be an abstract name.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the datagram was sent.
    ///
    /// # Errors
    /// `EINVAL`: no address. Otherwise as [`send_to`](UnixDatagram::send_to).
    ///
    /// # Examples
    /// See [`UnixDatagram::connect`].
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_sendmsg(3)`.
    pub async fn send_to_addr<T: IoBuf>(
        &self,
        buf: T,
        address: &SocketAddr,
    ) -> BufResult<usize, T> {
        match own_address("send to", address) {
            Ok(to) => self.inner.send_to(buf, &to).await,
            Err(error) => (Err(error.into()), buf),
        }
    }

    /// Sends `buf` with descriptors and other control messages, to the address `to` or, without one, to the
    /// [peer](UnixDatagram::connect). Empty datagrams carry them, too.
    ///
    /// Descriptors stay open until they are sent. Those that the receiver never takes are closed.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the datagram was sent.
    ///
    /// # Errors
    /// - `EINVAL`: a control message that the socket does not support, more than 253 descriptors, or no
    ///   address.
    /// - `EPERM`: credentials of another process. `ETOOMANYREFS`: too many descriptors of this user are in
    ///   flight.
    /// - Otherwise as [`send_to`](UnixDatagram::send_to).
    ///
    /// # Panics
    /// When a descriptor belongs to another runtime.
    ///
    /// # Examples
    /// A descriptor, within a datagram:
    /// ```
    /// use sakia::fs::File;
    /// use sakia::io::BufResultExt;
    /// use sakia::net::{ControlMessage, ControlMessages, UnixDatagram};
    ///
    /// # sakia::block_on(async {
    /// let (near, far) = UnixDatagram::pair()?;
    /// let file = File::open("/proc/self/comm").await?;
    /// let control = ControlMessages::new().descriptor(file.as_ref());
    /// near.send_message("a file", None, control).await.value()?;
    /// let room = ControlMessage::space(4);
    /// let ((received, control), buf) = far.recv_message(vec![0; 100], room).await.both()?;
    /// assert_eq!((&buf[..received.len], control.descriptors.len()), (&b"a file"[..], 1));
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.12 for control messages on the ring; older kernels return `EINVAL`. Source:
    /// `io_uring_prep_sendmsg(3)`, `unix(7)`.
    #[doc(alias = "SCM_RIGHTS")]
    pub async fn send_message<T: IoBuf>(
        &self,
        buf: T,
        to: Option<&SocketAddr>,
        control: ControlMessages,
    ) -> BufResult<usize, T> {
        match to.map_or(Ok(SocketAddress::UNNAMED), |to| own_address("send to", to)) {
            Ok(to) => self.inner.send_message(buf, &to, control).await,
            Err(error) => (Err(error.into()), buf),
        }
    }

    /// Receives one datagram of up to `buf.len()` bytes (an empty `Vec`: up to its capacity), and waits until
    /// there is one.
    ///
    /// The kernel owns `buf` until the future resolves. Resolves to the number of bytes and the buffer; a
    /// datagram may be empty. A `Vec` that was empty then has as many bytes as were received: clear it before
    /// the next receive. The rest of a datagram that is longer than the buffer is lost, and descriptors that
    /// came with it are closed; [`recv_message`](UnixDatagram::recv_message) returns these.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the buffer, but loses no datagram: one that had come by then goes to a
    /// receive that waits, or else to the next.
    ///
    /// # Errors
    /// - `EINVAL`: a buffer without room (an empty one without capacity).
    /// - `ECONNRESET`: the peer is gone, with datagrams that it had not received. The socket goes on.
    /// - `ECANCELED`: the runtime has ended. Otherwise as `recv(2)`; never `EINTR` or `EAGAIN`.
    ///
    /// # Examples
    /// See [`UnixDatagram`](UnixDatagram#examples).
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_recvmsg(3)`.
    pub async fn recv<T: IoBufMut>(&self, buf: T) -> BufResult<usize, T> {
        let (result, buf) = self.inner.recv_from(buf).await;
        (result.map(|received| received.len), buf)
    }

    receivers!();

    /// As [`recv_from`](UnixDatagram::recv_from), with the descriptors and other control messages that come
    /// with the datagram, for which there are `control_bytes` bytes of room.
    /// [`ControlMessage::space`](super::ControlMessage::space) returns the room to ask for: `4 * n` bytes for
    /// `n` descriptors, 12 for credentials.
    ///
    /// The capacity of an empty `Vec` is zeroed before.
    ///
    /// From the first call on plain receives have the same room, so that control messages which come for a
    /// dropped receive are kept. Before the first call such a receive loses them, and `is_truncated` returns
    /// true.
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv); the control messages are kept, too.
    ///
    /// # Errors
    /// As [`recv`](UnixDatagram::recv). Descriptors for which there is no room, or no free number, are
    /// closed, and [`is_truncated`](ReceivedControl::is_truncated) returns true.
    ///
    /// # Examples
    /// See [`UnixDatagram::send_message`].
    ///
    /// # Kernel
    /// 5.12 for control messages on the ring; older kernels return `EINVAL`. Source:
    /// `io_uring_prep_recvmsg(3)`, `unix(7)`.
    #[doc(alias = "SCM_RIGHTS")]
    pub async fn recv_message<T: IoBufMut>(
        &self,
        buf: T,
        control_bytes: usize,
    ) -> BufResult<(Received<SocketAddr>, ReceivedControl), T> {
        let (result, buf) = self.inner.recv_message(buf, control_bytes).await;
        (result.and_then(|(received, control)| Ok((Received::of(received)?, control))), buf)
    }

    /// Sets whether [`recv_message`](UnixDatagram::recv_message) reports the process, the user and the group
    /// of the sender, as they were at the time of the send. See [`UCred::of`](super::UCred::of).
    ///
    /// # Errors
    /// As `setsockopt(2)`; `EOPNOTSUPP` on a simulated kernel.
    ///
    /// # Examples
    /// See [`UCred`](super::UCred#examples).
    #[doc(alias = "SO_PASSCRED")]
    pub fn set_passcred(&self, passcred: bool) -> io::Result<()> {
        option(self.inner.fd(), |fd| sockopt::set_socket_passcred(fd, passcred))
    }

    /// Returns whether [`recv_message`](UnixDatagram::recv_message) reports the process, the user and the
    /// group of the sender.
    ///
    /// # Errors
    /// As `getsockopt(2)`; `EOPNOTSUPP` on a simulated kernel.
    pub fn passcred(&self) -> io::Result<bool> {
        option(self.inner.fd(), sockopt::socket_passcred)
    }

    /// Takes and clears the socket's pending error.
    ///
    /// # Errors
    /// As `getsockopt(2)`; `EOPNOTSUPP` on a simulated kernel.
    #[doc(alias = "SO_ERROR")]
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        take_error(self.inner.fd())
    }

    /// Ends one or both directions, for all descriptors of the socket. Once the receives are ended, a receive
    /// (also one that waits) returns earlier datagrams, then 0 bytes from an unnamed sender; later sends to
    /// this socket fail with `EPIPE`. Once the sends are ended, they fail with `EPIPE`; the peer does not
    /// learn of it.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the direction was ended. Call it again.
    ///
    /// # Errors
    /// As `shutdown(2)`.
    ///
    /// # Kernel
    /// 5.11. Source: `io_uring_prep_shutdown(3)`.
    pub async fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.inner.shutdown(super::socket::direction(how)).await
    }

    /// Takes over a socket of `std`, in blocking mode or not.
    ///
    /// # Errors
    /// `EPROTOTYPE`: it is no Unix datagram socket. As `getsockopt(2)`.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// See [`UdpSocket::from_std`](super::UdpSocket::from_std).
    pub fn from_std(socket: std::os::unix::net::UnixDatagram) -> io::Result<Self> {
        Ok(Self { inner: Datagrams::adopt(socket.into(), &[AddressFamily::UNIX])? })
    }

    /// Gives the socket to `std`, once the operations under way on it have ended. The number of the
    /// descriptor may change. Datagrams that came for dropped receives or were received ahead, and were not
    /// taken, are lost.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// `EMFILE`: it needs another descriptor. As `close(2)`. It is closed then.
    ///
    /// # Panics
    /// On a simulated kernel.
    pub async fn into_std(self) -> io::Result<std::os::unix::net::UnixDatagram> {
        Ok(self.inner.release().await?.into())
    }

    /// Closes the socket, and returns the result.
    ///
    /// # Cancel safety
    /// Dropping the future loses the result; the socket is closed all the same.
    ///
    /// # Errors
    /// As `close(2)`. The descriptor is gone in any case.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_close(3)`.
    pub async fn close(self) -> io::Result<()> {
        self.inner.close().await
    }
}

/// For system calls that this type does not offer.
///
/// # Panics
/// On a simulated kernel.
#[cfg(feature = "sim")]
impl UnixDatagram {
    /// Returns a socket of a driver without a runtime, for checks that drive it themselves.
    #[doc(hidden)]
    pub fn of_driver(fd: sakia_driver::Fd, driver: sakia_driver::Handle) -> Self {
        Self { inner: Datagrams::new(fd, driver) }
    }
}

impl AsFd for UnixDatagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd().as_fd()
    }
}
