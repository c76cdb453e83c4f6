//! Socket options of this process's kernel: those for which rustix has a safe call, by the kernel's numbers.
//!
//! Setting an option by any number, with any bytes, would not be safe: some options contain addresses.

use std::os::fd::OwnedFd;
use std::time::Duration;

use linux_raw_sys::net as raw;
use rustix::io::Errno;
use rustix::net::sockopt::{self as rustix_options, Timeout};
use rustix::net::{AddressFamily, SocketType};

use crate::sockopt::sealed::Form;
use crate::sockopt::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SO_RCVTIMEO, SOL_SOCKET, WORD};

const SOCKET: u32 = SOL_SOCKET as u32;
const IP: u32 = IPPROTO_IP as u32;
const TCP: u32 = IPPROTO_TCP as u32;
const IPV6: u32 = IPPROTO_IPV6 as u32;

/// `setsockopt(2)`.
pub(crate) fn set(fd: &OwnedFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    use rustix_options as o;
    // A value that the kernel would refuse: whether the socket has the option at all comes first.
    let refused = || {
        let is_unix = || o::socket_domain(fd) == Ok(AddressFamily::UNIX);
        match get(fd, level, name, &mut [0; 16]) {
            _ if o::socket_type(fd) == Err(Errno::NOTSOCK) => Errno::NOTSOCK,
            _ if level == SOL_SOCKET => Errno::INVAL,
            Err(Errno::OPNOTSUPP) if is_unix() => Errno::OPNOTSUPP,
            Err(_) => Errno::NOPROTOOPT,
            // It can be read.
            Ok(_)
                if (level, name as u32) == (IPPROTO_IPV6, raw::IPV6_MULTICAST_HOPS)
                    && o::socket_type(fd) == Ok(SocketType::STREAM) =>
            {
                Errno::NOPROTOOPT
            }
            Ok(_) => Errno::INVAL,
        }
    };
    let timeout = |id| {
        if value.len() < 2 * WORD {
            return Err(refused());
        }
        // The bytes have the form of the option's usual number.
        let time = Form::of_bytes(SO_RCVTIMEO.name, value).ok_or(Errno::DOM)?;
        let time: Option<Duration> = time;
        // rustix refuses a zero time, which a negative one becomes.
        o::set_socket_timeout(fd, id, time.map(|time| time.max(Duration::from_micros(1))))
    };
    let int = || match value {
        // An option of IPv4 may be one byte.
        [byte, ..] if level == IPPROTO_IP && value.len() < size_of::<i32>() => Ok((*byte).into()),
        // Or none, which is 0.
        [] if level == IPPROTO_IP && [raw::IP_TOS, raw::IP_RECVTOS].contains(&(name as u32)) => {
            Ok(0)
        }
        _ => i32::of_bytes(name, value).ok_or_else(refused),
    };
    let is_on = || int().map(|value| value != 0);
    let is_one = || match int()? {
        value @ (0 | 1) => Ok(value == 1),
        _ => Err(refused()),
    };
    // The kernel has bounds for each option, and takes -1 for some of them.
    let number = || int().map(|value| value as u32);
    // It takes a negative size as a large one.
    let size = || int().map(|value| (value as u32).min(i32::MAX as u32) as usize);
    let forced = || int().map(|value| value.max(0) as usize);
    let seconds = || number().map(|value| Duration::from_secs(value.into()));
    match (level as u32, name as u32) {
        (SOCKET, raw::SO_RCVTIMEO_OLD) => timeout(Timeout::Recv),
        (SOCKET, raw::SO_SNDTIMEO_OLD) => timeout(Timeout::Send),
        (SOCKET, raw::SO_LINGER) => {
            let time = Form::of_bytes(name, value).ok_or_else(refused)?;
            // rustix has signed seconds.
            let time: Option<Duration> = time;
            let most = Duration::from_secs(i32::MAX as u64);
            o::set_socket_linger(fd, time.map(|time| time.min(most)))
        }
        (SOCKET, raw::SO_RCVBUF) => o::set_socket_recv_buffer_size(fd, size()?),
        (SOCKET, raw::SO_SNDBUF) => o::set_socket_send_buffer_size(fd, size()?),
        (SOCKET, raw::SO_RCVBUFFORCE) => o::set_socket_recv_buffer_size_force(fd, forced()?),
        (SOCKET, raw::SO_SNDBUFFORCE) => o::set_socket_send_buffer_size_force(fd, forced()?),
        (SOCKET, raw::SO_REUSEADDR) => o::set_socket_reuseaddr(fd, is_on()?),
        (SOCKET, raw::SO_REUSEPORT) => o::set_socket_reuseport(fd, is_on()?),
        (SOCKET, raw::SO_KEEPALIVE) => o::set_socket_keepalive(fd, is_on()?),
        (SOCKET, raw::SO_BROADCAST) => o::set_socket_broadcast(fd, is_on()?),
        (SOCKET, raw::SO_OOBINLINE) => o::set_socket_oobinline(fd, is_on()?),
        (SOCKET, raw::SO_PASSCRED) => o::set_socket_passcred(fd, is_on()?),
        (SOCKET, raw::SO_INCOMING_CPU) => o::set_socket_incoming_cpu(fd, number()?),
        (TCP, raw::TCP_NODELAY) => o::set_tcp_nodelay(fd, is_on()?),
        (TCP, raw::TCP_CORK) => o::set_tcp_cork(fd, is_on()?),
        (TCP, raw::TCP_QUICKACK) => o::set_tcp_quickack(fd, is_on()?),
        (TCP, raw::TCP_KEEPIDLE) => o::set_tcp_keepidle(fd, seconds()?),
        (TCP, raw::TCP_KEEPINTVL) => o::set_tcp_keepintvl(fd, seconds()?),
        (TCP, raw::TCP_KEEPCNT) => o::set_tcp_keepcnt(fd, number()?),
        (TCP, raw::TCP_USER_TIMEOUT) => o::set_tcp_user_timeout(fd, number()?),
        (TCP, raw::TCP_THIN_LINEAR_TIMEOUTS) => o::set_tcp_thin_linear_timeouts(fd, is_one()?),
        (IP, raw::IP_TTL) => o::set_ip_ttl(fd, number()?),
        // The kernel takes the last eight bits.
        (IP, raw::IP_TOS) => o::set_ip_tos(fd, int()? as u8),
        (IP, raw::IP_RECVTOS) => o::set_ip_recvtos(fd, is_on()?),
        (IP, raw::IP_FREEBIND) => o::set_ip_freebind(fd, is_on()?),
        (IP, raw::IP_MULTICAST_LOOP) => o::set_ip_multicast_loop(fd, is_on()?),
        (IP, raw::IP_MULTICAST_TTL) => o::set_ip_multicast_ttl(fd, number()?),
        (IPV6, raw::IPV6_V6ONLY) => o::set_ipv6_v6only(fd, is_on()?),
        (IPV6, raw::IPV6_UNICAST_HOPS) => {
            // -1 stands for the system's default.
            let hops = int()?;
            let byte = || u8::try_from(hops).map_err(|_| refused());
            let hops = if hops == -1 { None } else { Some(byte()?) };
            o::set_ipv6_unicast_hops(fd, hops)
        }
        (IPV6, raw::IPV6_TCLASS) => o::set_ipv6_tclass(fd, number()?),
        (IPV6, raw::IPV6_MULTICAST_LOOP) => o::set_ipv6_multicast_loop(fd, is_one()?),
        (IPV6, raw::IPV6_MULTICAST_HOPS) => o::set_ipv6_multicast_hops(fd, number()?),
        (IPV6, raw::IPV6_FREEBIND) => o::set_ipv6_freebind(fd, is_on()?),
        _ => Err(Errno::NOPROTOOPT),
    }
}

/// `getsockopt(2)`.
pub(crate) fn get(fd: &OwnedFd, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
    use rustix_options as o;
    let time = |time: Option<Duration>| time.to_bytes(name);
    let int = |value: i32| value.to_bytes(name);
    let is_on = |value: bool| value.to_bytes(name);
    let number = |value: u32| int(value as i32);
    let size = |value: usize| int(value as i32);
    let seconds = |value: Duration| int(value.as_secs() as i32);
    let bytes = match (level as u32, name as u32) {
        (SOCKET, raw::SO_RCVTIMEO_OLD) => time(o::socket_timeout(fd, Timeout::Recv)?),
        (SOCKET, raw::SO_SNDTIMEO_OLD) => time(o::socket_timeout(fd, Timeout::Send)?),
        (SOCKET, raw::SO_LINGER) => time(o::socket_linger(fd)?),
        (SOCKET, raw::SO_RCVBUF) => size(o::socket_recv_buffer_size(fd)?),
        (SOCKET, raw::SO_SNDBUF) => size(o::socket_send_buffer_size(fd)?),
        (SOCKET, raw::SO_REUSEADDR) => is_on(o::socket_reuseaddr(fd)?),
        (SOCKET, raw::SO_REUSEPORT) => is_on(o::socket_reuseport(fd)?),
        (SOCKET, raw::SO_KEEPALIVE) => is_on(o::socket_keepalive(fd)?),
        (SOCKET, raw::SO_BROADCAST) => is_on(o::socket_broadcast(fd)?),
        (SOCKET, raw::SO_OOBINLINE) => is_on(o::socket_oobinline(fd)?),
        (SOCKET, raw::SO_PASSCRED) => is_on(o::socket_passcred(fd)?),
        (SOCKET, raw::SO_INCOMING_CPU) => number(o::socket_incoming_cpu(fd)?),
        (SOCKET, raw::SO_TYPE) => number(o::socket_type(fd)?.as_raw()),
        (SOCKET, raw::SO_DOMAIN) => int(o::socket_domain(fd)?.as_raw().into()),
        (SOCKET, raw::SO_PROTOCOL) => {
            number(o::socket_protocol(fd)?.map_or(0, |protocol| protocol.as_raw().get()))
        }
        (SOCKET, raw::SO_ACCEPTCONN) => is_on(o::socket_acceptconn(fd)?),
        (SOCKET, raw::SO_ERROR) => int(o::socket_error(fd)?.err().map_or(0, Errno::raw_os_error)),
        (SOCKET, raw::SO_COOKIE) => {
            let cookie = o::socket_cookie(fd)?.to_ne_bytes();
            if value.len() < cookie.len() { Err(Errno::INVAL) } else { Ok(cookie.into()) }
        }
        (TCP, raw::TCP_NODELAY) => is_on(o::tcp_nodelay(fd)?),
        (TCP, raw::TCP_CORK) => is_on(o::tcp_cork(fd)?),
        (TCP, raw::TCP_QUICKACK) => is_on(o::tcp_quickack(fd)?),
        (TCP, raw::TCP_KEEPIDLE) => seconds(o::tcp_keepidle(fd)?),
        (TCP, raw::TCP_KEEPINTVL) => seconds(o::tcp_keepintvl(fd)?),
        (TCP, raw::TCP_KEEPCNT) => number(o::tcp_keepcnt(fd)?),
        (TCP, raw::TCP_USER_TIMEOUT) => number(o::tcp_user_timeout(fd)?),
        (TCP, raw::TCP_THIN_LINEAR_TIMEOUTS) => is_on(o::tcp_thin_linear_timeouts(fd)?),
        (IP, raw::IP_TTL) => number(o::ip_ttl(fd)?),
        (IP, raw::IP_TOS) => int(o::ip_tos(fd)?.into()),
        (IP, raw::IP_RECVTOS) => is_on(o::ip_recvtos(fd)?),
        (IP, raw::IP_FREEBIND) => is_on(o::ip_freebind(fd)?),
        (IP, raw::IP_MTU) => number(o::ip_mtu(fd)?),
        (IP, raw::IP_MULTICAST_LOOP) => is_on(o::ip_multicast_loop(fd)?),
        (IP, raw::IP_MULTICAST_TTL) => number(o::ip_multicast_ttl(fd)?),
        (IPV6, raw::IPV6_V6ONLY) => is_on(o::ipv6_v6only(fd)?),
        (IPV6, raw::IPV6_UNICAST_HOPS) => int(o::ipv6_unicast_hops(fd)?.into()),
        (IPV6, raw::IPV6_TCLASS) => number(o::ipv6_tclass(fd)?),
        (IPV6, raw::IPV6_MTU) => number(o::ipv6_mtu(fd)?),
        (IPV6, raw::IPV6_MULTICAST_LOOP) => is_on(o::ipv6_multicast_loop(fd)?),
        (IPV6, raw::IPV6_MULTICAST_HOPS) => number(o::ipv6_multicast_hops(fd)?),
        (IPV6, raw::IPV6_FREEBIND) => is_on(o::ipv6_freebind(fd)?),
        _ => Err(Errno::NOPROTOOPT),
    }?;
    // A small number of IPv4 is one byte if four do not fit.
    if level == IPPROTO_IP
        && (1..size_of::<i32>()).contains(&value.len())
        && let Some(Ok(byte)) = i32::of_bytes(name, &bytes).map(u8::try_from)
    {
        value[0] = byte;
        return Ok(1);
    }
    let count = bytes.len().min(value.len());
    value[..count].copy_from_slice(&bytes[..count]);
    Ok(count)
}
