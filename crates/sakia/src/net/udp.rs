//! UDP sockets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, sockopt};
use sakia_driver::{BufResult, ControlMessages, IoBuf, IoBufMut, ReceivedControl, SocketAddress};

use super::datagram::{Datagrams, receivers};
use super::lookup::{ToSocketAddrs, resolve_first};
use super::options::first_of;
use super::received::Received;
use super::sockopt::{self as options, Told, option, tune};
use super::{Result, UdpOptions};

/// A UDP socket. Dropping it closes it.
///
/// A datagram arrives as it was sent, or not at all; it may arrive twice, and overtake others on the network.
/// Those that have arrived are received in order. Several tasks may send and receive at the same time; of
/// receives that wait at the same time, any may get the first datagram.
///
/// Dropping a receive loses no datagram: a waiting receive gets it, or else the next one. Dropping a send
/// leaves unknown whether the datagram was sent.
///
/// # Examples
/// ```
/// use sakia::io::BufResultExt;
/// use sakia::net::UdpSocket;
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let server = UdpSocket::bind("127.0.0.1:0").await?;
///     let client = UdpSocket::bind("127.0.0.1:0").await?;
///     client.connect(server.local_addr()?).await?;
///
///     client.send("hello").await.value()?;
///     let ((len, peer), buf) = server.recv_from(vec![0; 1500]).await.both()?;
///     assert_eq!(&buf[..len], b"hello");
///     server.send_to("you too", peer).await.value()?;
///     let (len, buf) = client.recv(vec![0; 1500]).await.both()?;
///     assert_eq!(&buf[..len], b"you too");
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct UdpSocket {
    pub(super) inner: Datagrams,
}

impl UdpSocket {
    /// Makes a socket bound to the first usable address of `on`. With port 0 the kernel chooses one;
    /// [`local_addr`](UdpSocket::local_addr) returns it. [`UdpOptions`] has more settings.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// As [`UdpOptions::bind`].
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`UdpSocket`](UdpSocket#examples).
    ///
    /// # Kernel
    /// 6.11 for binding on the ring. Source: `io_uring_prep_bind(3)`.
    pub async fn bind(on: impl ToSocketAddrs) -> Result<Self> {
        UdpOptions::new().bind(on).await
    }

    /// Makes the first reachable address of `to` the socket's peer: [`send`](UdpSocket::send) sends to it,
    /// and datagrams of others are not received. Nothing is sent.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the socket has the peer.
    ///
    /// # Errors
    /// The last failure, with all addresses that were tried:
    /// - `ENETUNREACH`, `EHOSTUNREACH`: no route to the address. `EAFNOSUPPORT`: an address of the other IP
    ///   version.
    /// - `EACCES`: a broadcast address, without [`set_broadcast`](UdpSocket::set_broadcast).
    /// - Without addresses: the error of [`lookup_host`](super::lookup_host).
    ///
    /// # Examples
    /// See [`UdpSocket`](UdpSocket#examples).
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub async fn connect(&self, to: impl ToSocketAddrs) -> Result<()> {
        first_of(&to, async |address| {
            let connected = self.inner.connect(&SocketAddress::from(address)).await;
            connected.map_err(|error| ("connect", error))
        })
        .await
    }

    /// Sends `buf` as one datagram to the [peer](UdpSocket::connect), and waits until the socket's buffer has
    /// room for it. An empty one is sent, too.
    ///
    /// The kernel reads `buf` until the future resolves. Resolves to the number of bytes sent, which is all
    /// of them, and the buffer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the datagram was sent.
    ///
    /// # Errors
    /// - `EMSGSIZE`: too long for a datagram: over IPv4, above 65,507 bytes.
    /// - `EDESTADDRREQ`: the socket has no peer.
    /// - `ECONNREFUSED`: an earlier datagram reached a machine without a socket at that port (ICMP). The
    ///   error is reported once, by the next send or receive, and this datagram was not sent.
    /// - `ENETUNREACH`, `EHOSTUNREACH`: no route to the address.
    /// - `ECANCELED`: the runtime has ended. Otherwise as `send(2)`; never `EINTR` or `EAGAIN`.
    ///
    /// # Examples
    /// See [`UdpSocket`](UdpSocket#examples).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_send(3)`.
    pub async fn send<T: IoBuf>(&self, buf: T) -> BufResult<usize, T> {
        self.inner.send(buf).await
    }

    /// Sends `buf` to the first address of `to`; otherwise as [`send`](UdpSocket::send).
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the datagram was sent.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send), but for `EDESTADDRREQ`. Only sockets with a peer are told that no socket
    /// is at an address. The errors of [`lookup_host`](super::lookup_host).
    ///
    /// # Examples
    /// See [`UdpSocket`](UdpSocket#examples).
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_sendmsg(3)`.
    pub async fn send_to<T: IoBuf>(&self, buf: T, to: impl ToSocketAddrs) -> BufResult<usize, T> {
        match resolve_first(&to).await {
            Ok(to) => self.inner.send_to(buf, &to.into()).await,
            Err(error) => (Err(error.into()), buf),
        }
    }

    /// Sends `buf` with control messages, to the address `to` or, without one, to the
    /// [peer](UdpSocket::connect). [`ControlMessages`] has the ECN field and the traffic class, the TTL, the
    /// address to send from, and the size of the datagrams that the kernel cuts `buf` into (GSO).
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the datagram was sent.
    ///
    /// # Errors
    /// - `EINVAL`: a control message that the socket does not support; more datagrams than the kernel cuts,
    ///   64 or 128.
    /// - `EIO`: a device that cannot add the checksums of the datagrams cut from `buf`.
    /// - Otherwise as [`send`](UdpSocket::send).
    ///
    /// # Examples
    /// See [`UdpSocket::recv_message`].
    ///
    /// # Kernel
    /// 5.10. Source: `io_uring_prep_sendmsg(3)`, `cmsg(3)`, `ip(7)`, `udp(7)`.
    pub async fn send_message<T: IoBuf>(
        &self,
        buf: T,
        to: Option<SocketAddr>,
        control: ControlMessages,
    ) -> BufResult<usize, T> {
        let to = to.map_or(SocketAddress::UNNAMED, SocketAddress::from);
        self.inner.send_message(buf, &to, control).await
    }

    /// Sends all of these datagrams at once: with one system call on a ring. Resolves to a result for each,
    /// in the order of `messages`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown which of the datagrams were sent.
    ///
    /// # Errors
    /// For each datagram as for [`send_to`](UdpSocket::send_to). One that fails does not delay others.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::BufResultExt;
    /// use sakia::net::UdpSocket;
    ///
    /// # sakia::block_on(async {
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0").await?, UdpSocket::bind("127.0.0.1:0").await?);
    /// let to = other.local_addr()?;
    /// for sent in one.send_batch(vec![("a", to), ("bc", to)]).await {
    ///     sent.value()?;
    /// }
    /// let mut count = 0;
    /// while count < 2 {
    ///     let bufs = vec![vec![0; 1500]; 8];
    ///     let (received, bufs) = other.recv_batch(bufs).await.both()?;
    ///     for (datagram, buf) in received.iter().zip(&bufs) {
    ///         assert_eq!(&buf[..datagram.len], [&b"a"[..], b"bc"][count]);
    ///         count += 1;
    ///     }
    /// }
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_sendmsg(3)`.
    #[doc(alias = "sendmmsg")]
    pub async fn send_batch<T: IoBuf>(
        &self,
        messages: Vec<(T, SocketAddr)>,
    ) -> Vec<BufResult<usize, T>> {
        self.inner
            .send_batch(messages.into_iter().map(|(buf, to)| (buf, to.into())).collect())
            .await
    }

    /// Receives one datagram of up to `buf.len()` bytes (an empty `Vec`: up to its capacity), and waits until
    /// there is one: from the [peer](UdpSocket::connect), or without a peer from any sender.
    ///
    /// The kernel owns `buf` until the future resolves. Resolves to the number of bytes and the buffer; a
    /// datagram may be empty. A `Vec` that was empty then has as many bytes as were received: clear it before
    /// the next receive. The rest of a datagram that is longer than the buffer is lost;
    /// [`recv_message`](UdpSocket::recv_message) reports that.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the buffer, but loses no datagram: one that had come by then goes to a
    /// receive that waits, or else to the next.
    ///
    /// # Errors
    /// - `EINVAL`: a buffer without room (an empty one without capacity).
    /// - `ECONNREFUSED`: a datagram that was sent to the peer reached a machine without a socket at that
    ///   port. The socket goes on.
    /// - `ECANCELED`: the runtime has ended. Otherwise as `recv(2)`; never `EINTR` or `EAGAIN`.
    ///
    /// If receives are shut down by way of [`as_fd`](AsFd::as_fd), this method resolves to 0 bytes from then
    /// on, and those that return a sender fail with `EAFNOSUPPORT`.
    ///
    /// # Examples
    /// See [`UdpSocket`](UdpSocket#examples).
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_recvmsg(3)`.
    pub async fn recv<T: IoBufMut>(&self, buf: T) -> BufResult<usize, T> {
        let (result, buf) = self.inner.recv_from(buf).await;
        (result.map(|received| received.len), buf)
    }

    receivers!();

    /// As [`recv_from`](UdpSocket::recv_from), with the control messages that come with the datagram, for
    /// which there are `control_bytes` bytes of room; 128 are enough for all that a socket can be set to add:
    /// [the traffic class](UdpSocket::set_recv_tos), [the TTL](UdpSocket::set_recv_ttl), [interface and
    /// address](UdpSocket::set_recv_packet_info), and [segment size](UdpSocket::set_gro).
    ///
    /// The capacity of an empty `Vec` is zeroed before.
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv). Control messages that do not fit are no error; see
    /// [`is_truncated`](ReceivedControl::is_truncated).
    ///
    /// # Examples
    /// ```
    /// use sakia::io::BufResultExt;
    /// use sakia::net::{ControlMessages, UdpSocket};
    ///
    /// # sakia::block_on(async {
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0").await?, UdpSocket::bind("127.0.0.1:0").await?);
    /// other.set_recv_tos(true)?;
    /// let to = Some(other.local_addr()?);
    /// one.send_message("hello", to, ControlMessages::new().ip_tos(2)).await.value()?;
    ///
    /// let ((received, control), buf) = other.recv_message(vec![0; 1500], 128).await.both()?;
    /// assert_eq!((&buf[..received.len], received.from), (&b"hello"[..], one.local_addr()?));
    /// let class = control.messages().find_map(|message| message.traffic_class());
    /// assert_eq!(class, Some(2), "the ECN field");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.10. Source: `io_uring_prep_recvmsg(3)`, `cmsg(3)`.
    pub async fn recv_message<T: IoBufMut>(
        &self,
        buf: T,
        control_bytes: usize,
    ) -> BufResult<(Received<SocketAddr>, ReceivedControl), T> {
        let (result, buf) = self.inner.recv_message(buf, control_bytes).await;
        (result.and_then(|(received, control)| Ok((Received::of(received)?, control))), buf)
    }

    /// Receives a datagram, and those that have arrived by then, one into each buffer: with one or a few
    /// system calls on a ring.
    ///
    /// Resolves to the received datagrams, one at least, and all buffers: the first ones are filled, in this
    /// order. There may be fewer than have arrived: as long as datagrams come one at a time, most calls look
    /// for no second one, and those that came for earlier receives are not mixed with those that arrive now.
    ///
    /// # Cancel safety
    /// As [`recv`](UdpSocket::recv): dropping the future loses no datagram.
    ///
    /// # Errors
    /// - `EINVAL`: no buffers, or one without room. Otherwise as [`recv`](UdpSocket::recv). An error after
    ///   the first datagram goes to the next receive.
    ///
    /// # Examples
    /// See [`UdpSocket::send_batch`].
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_recvmsg(3)`.
    #[doc(alias = "recvmmsg")]
    pub async fn recv_batch<T: IoBufMut>(
        &self,
        bufs: Vec<T>,
    ) -> BufResult<Vec<Received<SocketAddr>>, Vec<T>> {
        let (result, bufs) = self.inner.recv_batch(bufs).await;
        (result.and_then(Received::of_batch), bufs)
    }

    /// Takes over a socket of `std`, in blocking mode or not.
    ///
    /// # Errors
    /// `EPROTOTYPE`: it is no UDP socket. As `getsockopt(2)`.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia::io::BufResultExt;
    /// use sakia::net::UdpSocket;
    ///
    /// # sakia::block_on(async {
    /// let one = UdpSocket::from_std(std::net::UdpSocket::bind("127.0.0.1:0")?)?;
    /// let other = UdpSocket::bind("127.0.0.1:0").await?;
    /// one.send_to("hello", other.local_addr()?).await.value()?;
    /// let other = other.into_std().await?;
    /// other.set_read_timeout(Some(Duration::from_secs(10)))?;
    /// let mut buf = [0; 16];
    /// assert_eq!(other.recv_from(&mut buf)?, (5, one.local_addr()?));
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        let domains = [AddressFamily::INET, AddressFamily::INET6];
        Ok(Self { inner: Datagrams::adopt(socket.into(), &domains)? })
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
    ///
    /// # Examples
    /// See [`UdpSocket::from_std`].
    pub async fn into_std(self) -> io::Result<std::net::UdpSocket> {
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

/// Options. Errors are those of `setsockopt(2)` and `getsockopt(2)`; on the simulated kernel see
/// [`net`](super).
impl UdpSocket {
    /// Sets whether datagrams may be sent to broadcast addresses.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// See [`UdpSocket::set_ttl`].
    #[doc(alias = "SO_BROADCAST")]
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        option(self.inner.fd(), |fd| sockopt::set_socket_broadcast(fd, broadcast))
    }

    /// Returns whether datagrams may be sent to broadcast addresses.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn broadcast(&self) -> io::Result<bool> {
        option(self.inner.fd(), sockopt::socket_broadcast)
    }

    /// Joins a group: receives the datagrams sent to it, on the interface with this address; on the default
    /// one if the address is unspecified.
    ///
    /// # Errors
    /// `EADDRINUSE`: it is in the group already. `ENODEV`: no such interface. As `setsockopt(2)`.
    ///
    /// # Examples
    /// ```no_run
    /// use std::net::Ipv4Addr;
    ///
    /// use sakia::io::BufResultExt;
    /// use sakia::net::UdpSocket;
    ///
    /// # sakia::block_on(async {
    /// let group = Ipv4Addr::new(239, 1, 2, 3);
    /// let socket = UdpSocket::bind("0.0.0.0:7000").await?;
    /// socket.join_multicast_v4(group, Ipv4Addr::UNSPECIFIED)?;
    /// socket.set_multicast_ttl_v4(4)?;
    /// socket.send_to("to all members", (group, 7000)).await.value()?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "IP_ADD_MEMBERSHIP")]
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        option(self.inner.fd(), |fd| sockopt::set_ip_add_membership(fd, &group, &interface))
    }

    /// Ends [`join_multicast_v4`](UdpSocket::join_multicast_v4).
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`: it is not in the group. As `setsockopt(2)`.
    #[doc(alias = "IP_DROP_MEMBERSHIP")]
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        option(self.inner.fd(), |fd| sockopt::set_ip_drop_membership(fd, &group, &interface))
    }

    /// Joins a group: receives the datagrams sent to it, on the interface with this index; 0 for the default
    /// one.
    ///
    /// # Errors
    /// `EADDRINUSE`: it is in the group already. `ENODEV`: no such interface. As `setsockopt(2)`.
    #[doc(alias = "IPV6_ADD_MEMBERSHIP")]
    pub fn join_multicast_v6(&self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        option(self.inner.fd(), |fd| sockopt::set_ipv6_add_membership(fd, &group, interface))
    }

    /// Ends [`join_multicast_v6`](UdpSocket::join_multicast_v6).
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`: it is not in the group. As `setsockopt(2)`.
    #[doc(alias = "IPV6_DROP_MEMBERSHIP")]
    pub fn leave_multicast_v6(&self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        option(self.inner.fd(), |fd| sockopt::set_ipv6_drop_membership(fd, &group, interface))
    }

    /// Sets whether sockets of this machine get datagrams that this socket sends to IPv4 groups.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "IP_MULTICAST_LOOP")]
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        option(self.inner.fd(), |fd| sockopt::set_ip_multicast_loop(fd, on))
    }

    /// Returns whether sockets of this machine get datagrams that this socket sends to IPv4 groups.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        option(self.inner.fd(), sockopt::ip_multicast_loop)
    }

    /// Sets whether sockets of this machine get datagrams that this socket sends to IPv6 groups.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "IPV6_MULTICAST_LOOP")]
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        option(self.inner.fd(), |fd| sockopt::set_ipv6_multicast_loop(fd, on))
    }

    /// Returns whether sockets of this machine get datagrams that this socket sends to IPv6 groups.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        option(self.inner.fd(), sockopt::ipv6_multicast_loop)
    }

    /// Sets the TTL of datagrams to groups: 1, the default, keeps them in the local network.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "IP_MULTICAST_TTL")]
    pub fn set_multicast_ttl_v4(&self, hops: u8) -> io::Result<()> {
        tune(self.inner.fd(), |fd| sockopt::set_ip_multicast_ttl(fd, hops.into()))
    }

    /// Returns the TTL of datagrams to groups.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn multicast_ttl_v4(&self) -> io::Result<u8> {
        let hops = option(self.inner.fd(), sockopt::ip_multicast_ttl)?;
        Ok(u8::try_from(hops).unwrap_or(u8::MAX))
    }

    /// Sets the TTL (IPv4) or hop limit (IPv6).
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::net::UdpSocket;
    ///
    /// # sakia::block_on(async {
    /// let socket = UdpSocket::bind("127.0.0.1:0").await?;
    /// socket.set_ttl(3)?;
    /// socket.set_tos(0b10)?;
    /// socket.set_broadcast(true)?;
    /// socket.set_recv_buffer_size(1 << 16)?;
    /// assert_eq!((socket.ttl()?, socket.tos()?, socket.broadcast()?), (3, 2, true));
    /// assert!(socket.recv_buffer_size()? >= 1 << 16, "with the kernel's own records");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "IP_TTL")]
    #[doc(alias = "IPV6_UNICAST_HOPS")]
    pub fn set_ttl(&self, hops: u8) -> io::Result<()> {
        options::set_ttl(self.inner.fd(), hops)
    }

    /// Returns the TTL (IPv4) or hop limit (IPv6).
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    ///
    /// # Examples
    /// See [`UdpSocket::set_ttl`].
    pub fn ttl(&self) -> io::Result<u8> {
        options::ttl(self.inner.fd())
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6), whose two lowest bits are the ECN field.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// See [`UdpSocket::set_ttl`].
    #[doc(alias = "IP_TOS")]
    #[doc(alias = "IPV6_TCLASS")]
    pub fn set_tos(&self, class: u8) -> io::Result<()> {
        options::set_traffic_class(self.inner.fd(), class)
    }

    /// Returns the type of service (IPv4) or traffic class (IPv6).
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn tos(&self) -> io::Result<u8> {
        options::traffic_class(self.inner.fd())
    }

    /// Sets whether [`recv_message`](UdpSocket::recv_message) reports the type of service or traffic class of
    /// a datagram, with the ECN field.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// See [`UdpSocket::recv_message`].
    #[doc(alias = "IP_RECVTOS")]
    #[doc(alias = "IPV6_RECVTCLASS")]
    pub fn set_recv_tos(&self, on: bool) -> io::Result<()> {
        options::set_told(self.inner.fd(), Told::TrafficClass, on)
    }

    /// Sets whether [`recv_message`](UdpSocket::recv_message) reports the remaining TTL or hop limit of a
    /// datagram.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "IP_RECVTTL")]
    #[doc(alias = "IPV6_RECVHOPLIMIT")]
    pub fn set_recv_ttl(&self, on: bool) -> io::Result<()> {
        options::set_told(self.inner.fd(), Told::Ttl, on)
    }

    /// Sets whether [`recv_message`](UdpSocket::recv_message) reports the interface and the address by which
    /// a datagram came.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "IP_PKTINFO")]
    #[doc(alias = "IPV6_RECVPKTINFO")]
    pub fn set_recv_packet_info(&self, on: bool) -> io::Result<()> {
        options::set_told(self.inner.fd(), Told::PacketInfo, on)
    }

    /// Sets whether datagrams of one sender, of the same size but for the last, may arrive as one (GRO).
    /// [`recv_message`](UdpSocket::recv_message) reports the size of each in a control message; other
    /// receives do not, so do not mix them. Buffers should then have 64 KiB.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::BufResultExt;
    /// use sakia::net::UdpSocket;
    ///
    /// # sakia::block_on(async {
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0").await?, UdpSocket::bind("127.0.0.1:0").await?);
    /// other.set_gro(true)?;
    /// // Room for all of them, and for the message that tells their size.
    /// other.set_datagram_room(65_535, 128)?;
    /// one.send_to("hello", other.local_addr()?).await.value()?;
    /// let datagram = other.recv_datagram().await?;
    /// let len = datagram.bytes.len();
    /// let size = datagram.control.messages().find_map(|message| message.segment_bytes());
    /// assert_eq!((len, size.unwrap_or(len)), (5, 5));
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.0.
    #[doc(alias = "UDP_GRO")]
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        options::set_gro(self.inner.fd(), on)
    }

    /// Returns whether the socket receives no IPv4 datagrams. See [`UdpOptions::only_v6`].
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn only_v6(&self) -> io::Result<bool> {
        option(self.inner.fd(), sockopt::ipv6_v6only)
    }

    /// Sets the size of the kernel's send buffer in bytes; the kernel doubles the number, for its own
    /// records, and limits it.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "SO_SNDBUF")]
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        tune(self.inner.fd(), |fd| sockopt::set_socket_send_buffer_size(fd, bytes))
    }

    /// Returns the size of the kernel's send buffer in bytes, its own records included.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        option(self.inner.fd(), sockopt::socket_send_buffer_size)
    }

    /// Sets the size of the kernel's receive buffer in bytes; the kernel doubles the number, for its own
    /// records, and limits it. Datagrams that come when it is full are lost.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    ///
    /// # Examples
    /// See [`UdpSocket::set_ttl`].
    #[doc(alias = "SO_RCVBUF")]
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        tune(self.inner.fd(), |fd| sockopt::set_socket_recv_buffer_size(fd, bytes))
    }

    /// Returns the size of the kernel's receive buffer in bytes, its own records included.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    ///
    /// # Examples
    /// See [`UdpSocket::set_ttl`].
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        option(self.inner.fd(), sockopt::socket_recv_buffer_size)
    }

    /// Takes and clears the socket's pending error, such as `ECONNREFUSED` of a datagram to the peer.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// use sakia::io::BufResultExt;
    /// use sakia::net::UdpSocket;
    ///
    /// # sakia::block_on(async {
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0").await?, UdpSocket::bind("127.0.0.1:0").await?);
    /// one.connect(other.local_addr()?).await?;
    /// other.close().await?;
    /// one.send("hello?").await.value()?;
    /// let error = one.take_error()?.expect("the machine says that the port is closed");
    /// assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "SO_ERROR")]
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        options::take_error(self.inner.fd())
    }
}

/// For system calls that this type does not offer.
///
/// # Panics
/// On a simulated kernel.
#[cfg(feature = "sim")]
impl UdpSocket {
    /// Returns a socket of a driver without a runtime, for checks that drive it themselves.
    #[doc(hidden)]
    pub fn of_driver(fd: sakia_driver::Fd, driver: sakia_driver::Handle) -> Self {
        Self { inner: Datagrams::new(fd, driver) }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd().as_fd()
    }
}
