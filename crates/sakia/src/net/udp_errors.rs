//! Errors that the network reports for sent datagrams: the socket's error queue.
//!
//! Source: `ip(7)` and `ipv6(7)`, at `IP_RECVERR`.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sockaddr_in, sockaddr_in6,
};
use rustix::net::sockopt;
use sakia_driver::PollEvents;

use super::UdpSocket;
use super::sockopt::{option, set_recv_errors};

/// The most bytes of the datagram that an error returns: an Ethernet packet.
const DATAGRAM_BYTES_MAX: usize = 1500;
/// Room for the control messages that a socket can be set to add, and for that of the error.
const CONTROL_BYTES: usize = 512;

/// An error that the network, or this machine, has reported for a datagram.
///
/// # Examples
/// See [`UdpSocket::recv_error`](super::UdpSocket::recv_error).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpError {
    /// The errno, such as `ECONNREFUSED`: [`io::Error::from_raw_os_error`] converts it.
    pub errno: i32,
    /// The source of the error.
    pub origin: UdpErrorOrigin,
    /// The type of the ICMP message, 0 if the error is none.
    pub kind: u8,
    /// The code of the ICMP message, 0 if the error is none.
    pub code: u8,
    /// With `EMSGSIZE` the path MTU: the most bytes of a packet on the way.
    pub info: u32,
    /// The machine that sent the ICMP message, if one did.
    pub offender: Option<IpAddr>,
    /// The address that the datagram was sent to. In an error from this machine the port is 0, unless the
    /// socket has a peer.
    pub to: SocketAddr,
    /// The returned bytes of the datagram.
    pub datagram: Vec<u8>,
}

/// The source of a datagram's error.
///
/// # Examples
/// See [`UdpSocket::recv_error`](super::UdpSocket::recv_error).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UdpErrorOrigin {
    /// This machine.
    #[doc(alias = "SO_EE_ORIGIN_LOCAL")]
    Local,
    /// An ICMP message.
    #[doc(alias = "SO_EE_ORIGIN_ICMP")]
    Icmp,
    /// An ICMPv6 message.
    #[doc(alias = "SO_EE_ORIGIN_ICMP6")]
    Icmp6,
    /// Another one of the kernel's `SO_EE_ORIGIN_*`.
    Other(u8),
}

impl UdpErrorOrigin {
    fn of(origin: u8) -> Self {
        match origin {
            1 => Self::Local,
            2 => Self::Icmp,
            3 => Self::Icmp6,
            other => Self::Other(other),
        }
    }
}

impl UdpSocket {
    /// Sets whether the kernel keeps the errors that the network reports for sent datagrams, for
    /// [`recv_error`](UdpSocket::recv_error). Sends and receives also return each of them once, even without
    /// a [peer](UdpSocket::connect), and the socket goes on.
    ///
    /// # Errors
    /// As `setsockopt(2)`; `EOPNOTSUPP` on a simulated kernel.
    ///
    /// # Examples
    /// See [`UdpSocket::recv_error`].
    #[doc(alias = "IP_RECVERR")]
    #[doc(alias = "IPV6_RECVERR")]
    pub fn set_recv_errors(&self, on: bool) -> io::Result<()> {
        self.inner.expect_errors();
        set_recv_errors(self.inner.fd(), on)
    }

    /// Takes the oldest error that the network has reported for a datagram, and waits until there is one.
    /// [`set_recv_errors`](UdpSocket::set_recv_errors) makes the kernel keep these errors.
    ///
    /// # Cancel safety
    /// Dropping the future loses no error.
    ///
    /// # Errors
    /// - A pending error of the socket that concerns no datagram.
    /// - `ESHUTDOWN`: both directions of the socket were ended.
    /// - `EOPNOTSUPP`: on a simulated kernel. `ECANCELED`: the runtime has ended. Otherwise as
    ///   `recvmsg(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::BufResultExt;
    /// use sakia::net::UdpSocket;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// sakia::block_on(async {
    ///     let gone = UdpSocket::bind("127.0.0.1:0").await?;
    ///     let nowhere = gone.local_addr()?;
    ///     gone.close().await?;
    ///
    ///     let socket = UdpSocket::bind("127.0.0.1:0").await?;
    ///     socket.set_recv_errors(true)?;
    ///     socket.send_to("anybody there?", nowhere).await.value()?;
    ///     let error = socket.recv_error().await?;
    ///     assert_eq!((error.to, &error.datagram[..]), (nowhere, &b"anybody there?"[..]));
    ///     let kind = std::io::Error::from_raw_os_error(error.errno).kind();
    ///     assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    #[doc(alias = "MSG_ERRQUEUE")]
    pub async fn recv_error(&self) -> io::Result<UdpError> {
        let fd = self.inner.fd();
        loop {
            if let Some(error) = option(fd, |fd| Ok(take(fd)))?? {
                return Ok(error);
            }
            let events = self.inner.driver().poll(fd, PollEvents::ERROR).await?;
            // Before the search for another reason: an error may have come meanwhile.
            if let Some(error) = take(fd)? {
                return Ok(error);
            }
            if let Err(errno) = sockopt::socket_error(fd)? {
                return Err(errno.into());
            }
            if events.contains(PollEvents::HANG_UP) {
                return Err(rustix::io::Errno::SHUTDOWN.into());
            }
        }
    }
}

/// Takes the oldest error of the queue, if there is one, by a plain call.
fn take(fd: impl AsFd) -> io::Result<Option<UdpError>> {
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    let mut control = [0; CONTROL_BYTES];
    let mut parts = [IoSliceMut::new(&mut datagram)];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let raw = fd.as_fd().as_raw_fd();
    let (found, to, len) = loop {
        match recvmsg::<SockaddrStorage>(raw, &mut parts, Some(&mut control), flags) {
            Ok(message) => {
                let found = message.cmsgs()?.find_map(found);
                break (found, message.address.as_ref().and_then(address), message.bytes);
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    };
    datagram.truncate(len);
    datagram.shrink_to_fit();
    let (Some((error, offender)), Some(to)) = (found, to) else {
        return Err(Errno::EPROTO.into()); // the kernel's queue has another kind of entry
    };
    Ok(Some(UdpError {
        errno: error.errno,
        origin: UdpErrorOrigin::of(error.origin),
        kind: error.kind,
        code: error.code,
        info: error.info,
        offender,
        to,
        datagram,
    }))
}

/// The contents of `struct sock_extended_err`.
struct Extended {
    errno: i32,
    origin: u8,
    kind: u8,
    code: u8,
    info: u32,
}

/// Returns the contents of an error's control message, and its sender.
fn found(message: ControlMessageOwned) -> Option<(Extended, Option<IpAddr>)> {
    let (error, offender) = match message {
        ControlMessageOwned::Ipv4RecvErr(error, from) => (error, from.and_then(v4)),
        ControlMessageOwned::Ipv6RecvErr(error, from) => (error, from.and_then(v6)),
        _ => return None,
    };
    let extended = Extended {
        errno: error.ee_errno as i32,
        origin: error.ee_origin,
        kind: error.ee_type,
        code: error.ee_code,
        info: error.ee_info,
    };
    Some((extended, offender))
}

/// Returns an IPv4 address; `None` if the family is unspecified.
fn v4(from: sockaddr_in) -> Option<IpAddr> {
    let address = IpAddr::from(from.sin_addr.s_addr.to_ne_bytes());
    (from.sin_family != 0).then_some(address)
}

/// Returns an IPv6 address, or the IPv4 address that it maps; `None` if the family is unspecified.
fn v6(from: sockaddr_in6) -> Option<IpAddr> {
    let address = IpAddr::from(from.sin6_addr.s6_addr).to_canonical();
    (from.sin6_family != 0).then_some(address)
}

fn address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|&v4| SocketAddr::V4(v4.into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|&v6| SocketAddr::V6(v6.into())))
}
