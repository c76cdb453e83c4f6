//! Options of sockets, by plain calls.
//!
//! The simulated kernel's sockets have no options. There, setting an option that changes the speed of
//! transfers, or the time at which an absent peer is noticed, has no effect, so that programs run; setting an
//! option with another effect, and reading any, fails with `EOPNOTSUPP`.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{
    Ipv4PacketInfo, Ipv4RecvErr, Ipv4RecvTtl, Ipv6RecvErr, Ipv6RecvHopLimit, Ipv6RecvPacketInfo,
    UdpGroSegment,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use sakia_driver::Fd;

/// The keepalive settings of a connection: when an idle peer is probed. Settings that are not made are the
/// system's defaults.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia::net::Keepalive;
///
/// let keepalive = Keepalive::new().idle(Duration::from_secs(60)).probes(3);
/// assert_eq!(keepalive, Keepalive::new().probes(3).idle(Duration::from_secs(60)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keepalive {
    pub(super) idle: Option<Duration>,
    pub(super) interval: Option<Duration>,
    pub(super) probes: Option<u32>,
}

impl Keepalive {
    /// Returns the system's defaults: usually, a probe after two hours.
    ///
    /// # Examples
    /// See [`Keepalive`](Keepalive#examples).
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long the peer must be silent before the first probe. Whole seconds, rounded up; at least one.
    ///
    /// # Examples
    /// See [`Keepalive`](Keepalive#examples).
    #[doc(alias = "TCP_KEEPIDLE")]
    #[must_use]
    pub fn idle(self, idle: Duration) -> Self {
        Self { idle: Some(idle), ..self }
    }

    /// Sets the time between probes. Whole seconds, rounded up; at least one.
    #[doc(alias = "TCP_KEEPINTVL")]
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval: Some(interval), ..self }
    }

    /// Sets the number of unanswered probes after which the connection fails with `ETIMEDOUT`.
    ///
    /// # Examples
    /// See [`Keepalive`](Keepalive#examples).
    #[doc(alias = "TCP_KEEPCNT")]
    #[must_use]
    pub fn probes(self, probes: u32) -> Self {
        Self { probes: Some(probes), ..self }
    }
}

/// Sets an option that has no effect on the simulated kernel.
pub(super) fn tune(
    fd: &Fd,
    set: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<()>,
) -> io::Result<()> {
    if fd.is_simulated() {
        return Ok(());
    }
    Ok(set(fd.peek())?)
}

/// Sets or reads an option that the simulated kernel does not have.
pub(super) fn option<'a, T>(
    fd: &'a Fd,
    call: impl FnOnce(BorrowedFd<'a>) -> rustix::io::Result<T>,
) -> io::Result<T> {
    if fd.is_simulated() {
        return Err(Errno::OPNOTSUPP.into());
    }
    Ok(call(fd.peek())?)
}

pub(super) fn set_keepalive(fd: &Fd, keepalive: Option<Keepalive>) -> io::Result<()> {
    tune(fd, |fd| {
        if let Some(Keepalive { idle, interval, probes }) = keepalive {
            if let Some(idle) = idle {
                sockopt::set_tcp_keepidle(fd, idle)?;
            }
            if let Some(interval) = interval {
                sockopt::set_tcp_keepintvl(fd, interval)?;
            }
            if let Some(probes) = probes {
                sockopt::set_tcp_keepcnt(fd, probes)?;
            }
        }
        // Last, so that no peer is probed at the wrong time.
        sockopt::set_socket_keepalive(fd, keepalive.is_some())
    })
}

pub(super) fn keepalive(fd: &Fd) -> io::Result<Option<Keepalive>> {
    option(fd, |fd| {
        if !sockopt::socket_keepalive(fd)? {
            return Ok(None);
        }
        Ok(Some(Keepalive {
            idle: Some(sockopt::tcp_keepidle(fd)?),
            interval: Some(sockopt::tcp_keepintvl(fd)?),
            probes: Some(sockopt::tcp_keepcnt(fd)?),
        }))
    })
}

/// Returns whether the socket is an IPv6 one.
fn is_v6(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(sockopt::socket_domain(fd)? == AddressFamily::INET6)
}

pub(super) fn set_ttl(fd: &Fd, hops: u8) -> io::Result<()> {
    tune(fd, |fd| match is_v6(fd)? {
        true => sockopt::set_ipv6_unicast_hops(fd, Some(hops)),
        false => sockopt::set_ip_ttl(fd, hops.into()),
    })
}

pub(super) fn ttl(fd: &Fd) -> io::Result<u8> {
    option(fd, |fd| match is_v6(fd)? {
        true => sockopt::ipv6_unicast_hops(fd),
        false => sockopt::ip_ttl(fd).map(|hops| u8::try_from(hops).unwrap_or(u8::MAX)),
    })
}

pub(super) fn set_traffic_class(fd: &Fd, class: u8) -> io::Result<()> {
    tune(fd, |fd| match is_v6(fd)? {
        true => sockopt::set_ipv6_tclass(fd, class.into()),
        false => sockopt::set_ip_tos(fd, class),
    })
}

pub(super) fn traffic_class(fd: &Fd) -> io::Result<u8> {
    option(fd, |fd| match is_v6(fd)? {
        true => sockopt::ipv6_tclass(fd).map(|class| u8::try_from(class).unwrap_or(u8::MAX)),
        false => sockopt::ip_tos(fd),
    })
}

/// The facts about each datagram that a socket can report by control messages.
#[derive(Clone, Copy)]
pub(super) enum Told {
    TrafficClass,
    Ttl,
    PacketInfo,
}

/// Sets whether datagrams come with a control message. An IPv6 socket also gets that of IPv4, for IPv4
/// datagrams.
pub(super) fn set_told(fd: &Fd, told: Told, on: bool) -> io::Result<()> {
    option(fd, |fd| {
        if is_v6(fd)? {
            match told {
                Told::TrafficClass => sockopt::set_ipv6_recvtclass(fd, on)?,
                Told::Ttl => by_nix(setsockopt(&fd, Ipv6RecvHopLimit, &on))?,
                Told::PacketInfo => by_nix(setsockopt(&fd, Ipv6RecvPacketInfo, &on))?,
            }
        }
        match told {
            Told::TrafficClass => sockopt::set_ip_recvtos(fd, on),
            Told::Ttl => by_nix(setsockopt(&fd, Ipv4RecvTtl, &on)),
            Told::PacketInfo => by_nix(setsockopt(&fd, Ipv4PacketInfo, &on)),
        }
    })
}

pub(super) fn set_recv_errors(fd: &Fd, on: bool) -> io::Result<()> {
    option(fd, |fd| {
        if is_v6(fd)? {
            by_nix(setsockopt(&fd, Ipv6RecvErr, &on))?;
        }
        by_nix(setsockopt(&fd, Ipv4RecvErr, &on))
    })
}

pub(super) fn set_gro(fd: &Fd, on: bool) -> io::Result<()> {
    option(fd, |fd| by_nix(setsockopt(&fd, UdpGroSegment, &on)))
}

fn by_nix<T>(result: nix::Result<T>) -> rustix::io::Result<T> {
    result.map_err(|errno| Errno::from_raw_os_error(errno as i32))
}

pub(super) fn set_user_timeout(fd: &Fd, timeout: Option<Duration>) -> io::Result<()> {
    let millis = match timeout {
        // 0 would be the system's default.
        Some(timeout) => u32::try_from(timeout.as_millis()).map_err(|_| Errno::INVAL)?.max(1),
        None => 0,
    };
    tune(fd, |fd| sockopt::set_tcp_user_timeout(fd, millis))
}

pub(super) fn user_timeout(fd: &Fd) -> io::Result<Option<Duration>> {
    let millis = option(fd, sockopt::tcp_user_timeout)?;
    Ok((millis > 0).then(|| Duration::from_millis(millis.into())))
}

/// Takes and clears the socket's pending error (`SO_ERROR`).
pub(super) fn take_error(fd: &Fd) -> io::Result<Option<io::Error>> {
    Ok(option(fd, sockopt::socket_error)?.err().map(io::Error::from))
}

/// Options that listeners and connections have in common, set before they listen or connect.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Common {
    pub(super) nodelay: Option<bool>,
    pub(super) keepalive: Option<Keepalive>,
    pub(super) send_buffer: Option<usize>,
    pub(super) recv_buffer: Option<usize>,
}

impl Common {
    pub(super) fn apply(&self, fd: &Fd) -> io::Result<()> {
        if let Some(nodelay) = self.nodelay {
            tune(fd, |fd| sockopt::set_tcp_nodelay(fd, nodelay))?;
        }
        if self.keepalive.is_some() {
            set_keepalive(fd, self.keepalive)?;
        }
        if let Some(bytes) = self.send_buffer {
            tune(fd, |fd| sockopt::set_socket_send_buffer_size(fd, bytes))?;
        }
        if let Some(bytes) = self.recv_buffer {
            tune(fd, |fd| sockopt::set_socket_recv_buffer_size(fd, bytes))?;
        }
        Ok(())
    }
}

/// The methods of a builder that sets [`Common`] options, in its field `common`.
macro_rules! common_options {
    () => {
        /// Sets whether small pieces are sent at once, instead of being gathered while earlier ones are on
        /// their way. Without this call the kernel gathers.
        #[doc(alias = "TCP_NODELAY")]
        #[must_use]
        pub fn nodelay(mut self, nodelay: bool) -> Self {
            self.common.nodelay = Some(nodelay);
            self
        }

        /// Probes an idle peer. Without this call it is not probed.
        #[doc(alias = "SO_KEEPALIVE")]
        #[must_use]
        pub fn keepalive(mut self, keepalive: $crate::net::Keepalive) -> Self {
            self.common.keepalive = Some(keepalive);
            self
        }

        $crate::net::sockopt::buffer_options!();
    };
}

/// The methods of a builder that set the sizes of buffers, of a field `common` with [`Common`] options.
macro_rules! buffer_options {
    () => {
        /// Sets the size of the kernel's send buffer in bytes; the kernel doubles the number, for its own
        /// records, and limits it. Without this call it adapts the size by itself.
        #[doc(alias = "SO_SNDBUF")]
        #[must_use]
        pub fn send_buffer_size(mut self, bytes: usize) -> Self {
            self.common.send_buffer = Some(bytes);
            self
        }

        /// Sets the size of the kernel's receive buffer in bytes; the kernel doubles the number, for its own
        /// records, and limits it. Without this call it adapts the size by itself.
        #[doc(alias = "SO_RCVBUF")]
        #[must_use]
        pub fn recv_buffer_size(mut self, bytes: usize) -> Self {
            self.common.recv_buffer = Some(bytes);
            self
        }
    };
}

pub(super) use {buffer_options, common_options};

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    type Call = fn(&Fd) -> io::Result<()>;

    const SECOND: Option<Duration> = Some(Duration::from_secs(1));
    const NONE: Keepalive = Keepalive { idle: None, interval: None, probes: None };
    const UNSET: Common =
        Common { nodelay: None, keepalive: None, send_buffer: None, recv_buffer: None };

    const CALLS: &[(&str, Call)] = &[
        ("set_keepalive", |fd| set_keepalive(fd, Some(NONE))),
        ("set_keepalive idle", |fd| set_keepalive(fd, Some(Keepalive { idle: SECOND, ..NONE }))),
        ("set_keepalive off", |fd| set_keepalive(fd, None)),
        ("keepalive", |fd| keepalive(fd).map(drop)),
        ("set_ttl", |fd| set_ttl(fd, 1)),
        ("ttl", |fd| ttl(fd).map(drop)),
        ("set_traffic_class", |fd| set_traffic_class(fd, 1)),
        ("traffic_class", |fd| traffic_class(fd).map(drop)),
        ("set_told class", |fd| set_told(fd, Told::TrafficClass, true)),
        ("set_told ttl", |fd| set_told(fd, Told::Ttl, true)),
        ("set_told info", |fd| set_told(fd, Told::PacketInfo, true)),
        ("set_recv_errors", |fd| set_recv_errors(fd, true)),
        ("set_gro", |fd| set_gro(fd, true)),
        ("set_user_timeout", |fd| set_user_timeout(fd, SECOND)),
        ("user_timeout", |fd| user_timeout(fd).map(drop)),
        ("take_error", |fd| take_error(fd).map(drop)),
        ("nodelay", |fd| Common { nodelay: Some(true), ..UNSET }.apply(fd)),
        ("keepalive before", |fd| Common { keepalive: Some(NONE), ..UNSET }.apply(fd)),
        ("send_buffer", |fd| Common { send_buffer: Some(9000), ..UNSET }.apply(fd)),
        ("recv_buffer", |fd| Common { recv_buffer: Some(9000), ..UNSET }.apply(fd)),
    ];

    #[test]
    fn each_option_tells_an_error() {
        crate::block_on(async {
            let no_socket = crate::io::adopt(rustix::pipe::pipe().expect("a pipe").0);
            for (name, call) in CALLS {
                let errno = call(&no_socket).err().and_then(|error| error.raw_os_error());
                assert_eq!(errno, Some(Errno::NOTSOCK.raw_os_error()), "{name}");
            }
        });
    }

    #[test]
    fn each_part_of_keepalive_is_refused_by_itself() {
        crate::block_on(async {
            let socket = crate::io::adopt(TcpListener::bind("127.0.0.1:0").expect("a port"));
            let long = Some(Duration::from_secs(100_000));
            for wrong in [
                Keepalive { idle: long, ..NONE },
                Keepalive { interval: long, ..NONE },
                Keepalive { probes: Some(1000), ..NONE },
            ] {
                let error = set_keepalive(&socket, Some(wrong)).expect_err("it is too large");
                assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()), "{wrong:?}");
                assert_eq!(keepalive(&socket).expect("a socket"), None, "{wrong:?}");
            }
            let error = set_user_timeout(&socket, Some(Duration::MAX)).expect_err("too long");
            assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        });
    }
}
