//! Socket options: by type, and as the bytes of `setsockopt(2)`.
//!
//! Most options concern the kernel alone, and one call of the host sets them. Some have further effects:
//! - `SO_RCVTIMEO`, `SO_SNDTIMEO` and `SO_LINGER` also apply to bytes in memory, and are kept;
//! - `SO_ERROR` also returns the error of delayed bytes;
//! - `TCP_NODELAY` and `TCP_CORK` apply from the next byte on: delayed bytes are sent first;
//! - an option that might change the result of reads gives the socket to the kernel for good, as
//!   [`hand_back`](crate::Socket::hand_back) does: bytes that wait in memory are read first, as they came
//!   before the change, and then each call is a call of the host. This applies to each option that this
//!   module does not name;
//! - for an option that changes how the kernel treats bytes it already has, such as `TCP_ULP`, the kernel
//!   must have all of them: the call fails with `EBUSY` while bytes wait in memory to be read. A program sees
//!   this only if it changes the protocol in the middle of a stream that was read ahead.

use std::marker::PhantomData;
use std::time::Duration;

use linux_raw_sys::net as raw;
use rustix::io::Errno;

/// The level of options of sockets.
pub const SOL_SOCKET: i32 = raw::SOL_SOCKET as i32;
/// The level of options of IPv4.
pub const IPPROTO_IP: i32 = 0;
/// The level of options of TCP.
pub const IPPROTO_TCP: i32 = 6;
/// The level of options of IPv6.
pub const IPPROTO_IPV6: i32 = 41;

/// An option with values of type `T`.
///
/// # Examples
/// See [`Socket::set_option`](crate::Socket::set_option).
#[derive(Debug)]
pub struct SocketOption<T> {
    pub(crate) level: i32,
    pub(crate) name: i32,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for SocketOption<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SocketOption<T> {}

impl<T: OptionValue> SocketOption<T> {
    const fn new(level: i32, name: u32) -> Self {
        Self { level, name: name as i32, value: PhantomData }
    }
}

/// A type of options: `bool`, `i32`, and times.
pub trait OptionValue: Sized + sealed::Form {}

impl<T: sealed::Form> OptionValue for T {}

pub(crate) mod sealed {
    use rustix::io::Errno;

    /// A value in the kernel's form.
    pub trait Form: Sized {
        fn to_bytes(&self, name: i32) -> Result<Vec<u8>, Errno>;
        fn of_bytes(name: i32, bytes: &[u8]) -> Option<Self>;
    }
}

/// Defines options.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $type:ty = ($level:ident, $number:expr);)*) => {
        $($(#[$doc])* pub const $name: SocketOption<$type> = SocketOption::new($level, $number);)*
    };
}

options! {
    /// The time limit of a receive; then it fails with `EAGAIN`, or returns the bytes that came.
    SO_RCVTIMEO: Option<Duration> = (SOL_SOCKET, raw::SO_RCVTIMEO);
    /// The time limit of a send or `connect(2)`; then it fails with `EAGAIN`, or returns the number of bytes
    /// that were taken, which stay taken.
    SO_SNDTIMEO: Option<Duration> = (SOL_SOCKET, raw::SO_SNDTIMEO);
    /// The time that closing waits for sent bytes to arrive, in whole seconds; a time of zero resets the
    /// connection.
    SO_LINGER: Option<Duration> = (SOL_SOCKET, raw::SO_LINGER);
    /// The size of the kernel's receive buffer in bytes; it doubles the value.
    SO_RCVBUF: i32 = (SOL_SOCKET, raw::SO_RCVBUF);
    /// The size of the kernel's send buffer in bytes; it doubles the value.
    SO_SNDBUF: i32 = (SOL_SOCKET, raw::SO_SNDBUF);
    /// Lets `bind(2)` take an address that was used before.
    SO_REUSEADDR: bool = (SOL_SOCKET, raw::SO_REUSEADDR);
    /// Lets several sockets have one address.
    SO_REUSEPORT: bool = (SOL_SOCKET, raw::SO_REUSEPORT);
    /// Probes the peer of an idle connection.
    SO_KEEPALIVE: bool = (SOL_SOCKET, raw::SO_KEEPALIVE);
    /// Permits broadcast datagrams.
    SO_BROADCAST: bool = (SOL_SOCKET, raw::SO_BROADCAST);
    /// Makes urgent data part of the stream. Setting it gives the socket to the kernel.
    SO_OOBINLINE: bool = (SOL_SOCKET, raw::SO_OOBINLINE);
    /// Receives the senders' credentials.
    SO_PASSCRED: bool = (SOL_SOCKET, raw::SO_PASSCRED);
    /// The socket's type, such as `SOCK_STREAM`. It cannot be set.
    SO_TYPE: i32 = (SOL_SOCKET, raw::SO_TYPE);
    /// The socket's family. It cannot be set.
    SO_DOMAIN: i32 = (SOL_SOCKET, raw::SO_DOMAIN);
    /// The socket's protocol. It cannot be set.
    SO_PROTOCOL: i32 = (SOL_SOCKET, raw::SO_PROTOCOL);
    /// Set if the socket listens. It cannot be changed.
    SO_ACCEPTCONN: bool = (SOL_SOCKET, raw::SO_ACCEPTCONN);
    /// The pending error, which reading it clears. It cannot be set.
    SO_ERROR: i32 = (SOL_SOCKET, raw::SO_ERROR);
    /// The fewest bytes that a receive waits for. More than one gives the socket to the kernel.
    SO_RCVLOWAT: i32 = (SOL_SOCKET, raw::SO_RCVLOWAT);
    /// Sends small pieces at once.
    TCP_NODELAY: bool = (IPPROTO_TCP, raw::TCP_NODELAY);
    /// Sends only full packets, for 200 ms.
    TCP_CORK: bool = (IPPROTO_TCP, raw::TCP_CORK);
    /// The maximum segment size.
    TCP_MAXSEG: i32 = (IPPROTO_TCP, raw::TCP_MAXSEG);
    /// Acknowledges packets at once.
    TCP_QUICKACK: bool = (IPPROTO_TCP, raw::TCP_QUICKACK);
    /// Seconds before an idle connection is probed.
    TCP_KEEPIDLE: i32 = (IPPROTO_TCP, raw::TCP_KEEPIDLE);
    /// Seconds between probes.
    TCP_KEEPINTVL: i32 = (IPPROTO_TCP, raw::TCP_KEEPINTVL);
    /// Probes before the connection ends.
    TCP_KEEPCNT: i32 = (IPPROTO_TCP, raw::TCP_KEEPCNT);
    /// Milliseconds that bytes wait to be acknowledged before the connection ends.
    TCP_USER_TIMEOUT: i32 = (IPPROTO_TCP, raw::TCP_USER_TIMEOUT);
    /// The TTL of packets.
    IP_TTL: i32 = (IPPROTO_IP, raw::IP_TTL);
    /// The type of service of packets.
    IP_TOS: i32 = (IPPROTO_IP, raw::IP_TOS);
    /// Excludes peers of IPv4 from an IPv6 socket.
    IPV6_V6ONLY: bool = (IPPROTO_IPV6, raw::IPV6_V6ONLY);
    /// The hop limit of IPv6 packets.
    IPV6_UNICAST_HOPS: i32 = (IPPROTO_IPV6, raw::IPV6_UNICAST_HOPS);
}

impl sealed::Form for i32 {
    fn to_bytes(&self, _: i32) -> Result<Vec<u8>, Errno> {
        Ok(self.to_ne_bytes().into())
    }

    fn of_bytes(_: i32, bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().copied().map(Self::from_ne_bytes)
    }
}

impl sealed::Form for bool {
    fn to_bytes(&self, name: i32) -> Result<Vec<u8>, Errno> {
        i32::from(*self).to_bytes(name)
    }

    fn of_bytes(name: i32, bytes: &[u8]) -> Option<Self> {
        i32::of_bytes(name, bytes).map(|value| value != 0)
    }
}

/// A word of `struct timeval`.
type Word = isize;
pub(crate) const WORD: usize = size_of::<Word>();

impl sealed::Form for Option<Duration> {
    fn to_bytes(&self, name: i32) -> Result<Vec<u8>, Errno> {
        if name == SO_LINGER.name {
            let seconds = self.map_or(0, |time| time.as_secs().min(i32::MAX as u64) as i32);
            return Ok([i32::from(self.is_some()), seconds].map(i32::to_ne_bytes).concat());
        }
        // A time of zero would mean for ever.
        let time = self.map_or(Duration::ZERO, |time| time.max(Duration::from_micros(1)));
        let seconds = Word::try_from(time.as_secs()).map_err(|_| Errno::DOM)?;
        let microseconds = time.subsec_nanos().div_ceil(1000).min(999_999) as Word;
        Ok([seconds, microseconds].map(Word::to_ne_bytes).concat())
    }

    fn of_bytes(name: i32, bytes: &[u8]) -> Option<Self> {
        if name == SO_LINGER.name {
            let (is_on, seconds) = bytes.split_first_chunk()?;
            // The kernel takes a negative number as a large one.
            let seconds = u32::from_ne_bytes(*seconds.first_chunk()?);
            let is_on = i32::from_ne_bytes(*is_on) != 0;
            return Some(is_on.then(|| Duration::from_secs(seconds.into())));
        }
        let (seconds, microseconds) = bytes.split_first_chunk::<WORD>()?;
        let seconds = Word::from_ne_bytes(*seconds);
        let microseconds = Word::from_ne_bytes(*microseconds.first_chunk()?);
        let microseconds = u32::try_from(microseconds).ok().filter(|part| *part < 1_000_000)?;
        // Before now: the kernel does not wait at all.
        let Ok(seconds) = u64::try_from(seconds) else { return Some(Some(Duration::ZERO)) };
        let time = Duration::new(seconds, microseconds * 1000);
        Some(Some(time).filter(|time| !time.is_zero()))
    }
}

/// The effect of an option on bytes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// None: it does not concern bytes that may be in memory.
    None,
    /// It applies to bytes from now on: delayed bytes are sent first, as far as there is room.
    Sending,
    /// It may change the result of reads: the kernel serves the socket, after the bytes in memory.
    Receiving,
    /// It also changes bytes that the kernel already has, so the kernel must have all bytes.
    All,
}

impl Part {
    pub(crate) fn of(level: i32, name: i32, value: &[u8]) -> Self {
        let is_in = |names: &[u32]| names.contains(&(name as u32));
        match level {
            SOL_SOCKET if name == SO_RCVLOWAT.name => {
                let is_usual = <i32 as sealed::Form>::of_bytes(name, value).is_some_and(|n| n <= 1);
                if is_usual { Self::None } else { Self::Receiving }
            }
            SOL_SOCKET if is_in(HARMLESS) => Self::None,
            SOL_SOCKET if is_in(&[raw::SO_PEEK_OFF, raw::SO_ZEROCOPY]) => Self::All,
            IPPROTO_TCP if is_in(&[raw::TCP_NODELAY, raw::TCP_CORK]) => Self::Sending,
            IPPROTO_TCP if is_in(HARMLESS_TCP) => Self::None,
            IPPROTO_TCP if is_in(WHOLE_TCP) => Self::All,
            IPPROTO_IP if is_in(HARMLESS_IP) => Self::None,
            IPPROTO_IPV6 if is_in(HARMLESS_IPV6) => Self::None,
            _ => Self::Receiving,
        }
    }
}

/// Options of sockets that leave bytes as they are.
const HARMLESS: &[u32] = &[
    raw::SO_RCVTIMEO_OLD,
    raw::SO_RCVTIMEO_NEW,
    raw::SO_SNDTIMEO_OLD,
    raw::SO_SNDTIMEO_NEW,
    raw::SO_LINGER,
    raw::SO_RCVBUF,
    raw::SO_SNDBUF,
    raw::SO_RCVBUFFORCE,
    raw::SO_SNDBUFFORCE,
    raw::SO_REUSEADDR,
    raw::SO_REUSEPORT,
    raw::SO_KEEPALIVE,
    raw::SO_BROADCAST,
    raw::SO_TYPE,
    raw::SO_DOMAIN,
    raw::SO_PROTOCOL,
    raw::SO_ACCEPTCONN,
    raw::SO_ERROR,
    raw::SO_PRIORITY,
    raw::SO_MARK,
    raw::SO_DONTROUTE,
    raw::SO_BINDTODEVICE,
    raw::SO_INCOMING_CPU,
    raw::SO_COOKIE,
    raw::SO_BUSY_POLL,
    raw::SO_MAX_PACING_RATE,
    raw::SO_PASSCRED,
    raw::SO_PEERCRED,
];

/// Options of TCP that leave bytes as they are.
const HARMLESS_TCP: &[u32] = &[
    raw::TCP_MAXSEG,
    raw::TCP_QUICKACK,
    raw::TCP_KEEPIDLE,
    raw::TCP_KEEPINTVL,
    raw::TCP_KEEPCNT,
    raw::TCP_USER_TIMEOUT,
    raw::TCP_SYNCNT,
    raw::TCP_LINGER2,
    raw::TCP_DEFER_ACCEPT,
    raw::TCP_WINDOW_CLAMP,
    raw::TCP_INFO,
    raw::TCP_CONGESTION,
    raw::TCP_THIN_LINEAR_TIMEOUTS,
    raw::TCP_FASTOPEN,
    raw::TCP_NOTSENT_LOWAT,
];

/// Options of TCP for which the kernel must have all bytes.
const WHOLE_TCP: &[u32] = &[
    raw::TCP_ULP,
    raw::TCP_REPAIR,
    raw::TCP_REPAIR_QUEUE,
    raw::TCP_QUEUE_SEQ,
    raw::TCP_REPAIR_OPTIONS,
    raw::TCP_REPAIR_WINDOW,
    raw::TCP_ZEROCOPY_RECEIVE,
    raw::TCP_INQ,
    raw::TCP_MD5SIG,
];

/// Options of IPv4 that leave bytes as they are.
const HARMLESS_IP: &[u32] = &[
    raw::IP_TTL,
    raw::IP_TOS,
    raw::IP_MTU,
    raw::IP_MTU_DISCOVER,
    raw::IP_FREEBIND,
    raw::IP_TRANSPARENT,
    raw::IP_MULTICAST_IF,
    raw::IP_MULTICAST_TTL,
    raw::IP_MULTICAST_LOOP,
    raw::IP_BIND_ADDRESS_NO_PORT,
];

/// Options of IPv6 that leave bytes as they are.
const HARMLESS_IPV6: &[u32] = &[
    raw::IPV6_V6ONLY,
    raw::IPV6_UNICAST_HOPS,
    raw::IPV6_MULTICAST_IF,
    raw::IPV6_MULTICAST_HOPS,
    raw::IPV6_MULTICAST_LOOP,
    raw::IPV6_MTU,
    raw::IPV6_MTU_DISCOVER,
    raw::IPV6_TCLASS,
    raw::IPV6_FREEBIND,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_may_change_what_reads_return_is_not_harmless() {
        let of = |level, name: u32| Part::of(level, name as i32, &1_i32.to_ne_bytes());
        for name in [
            raw::SO_OOBINLINE,
            raw::SO_TIMESTAMP_OLD,
            raw::SO_TIMESTAMPNS_OLD,
            raw::SO_TIMESTAMPING_OLD,
            raw::SO_TIMESTAMP_NEW,
            raw::SO_ATTACH_FILTER,
            raw::SO_ATTACH_BPF,
            raw::SO_DETACH_FILTER,
            raw::SO_RXQ_OVFL,
            9999,
        ] {
            assert_eq!(of(SOL_SOCKET, name), Part::Receiving, "{name}");
        }
        for (level, name) in [
            (SOL_SOCKET, raw::SO_PEEK_OFF),
            (SOL_SOCKET, raw::SO_ZEROCOPY),
            (IPPROTO_TCP, raw::TCP_ULP),
            (IPPROTO_TCP, raw::TCP_REPAIR),
            (IPPROTO_TCP, raw::TCP_INQ),
            (IPPROTO_TCP, raw::TCP_ZEROCOPY_RECEIVE),
        ] {
            assert_eq!(of(level, name), Part::All, "{level} {name}");
        }
        // Control messages with each receive, and levels that the module does not know.
        for (level, name) in [(IPPROTO_IP, 8), (IPPROTO_IPV6, 49), (282, 1), (9999, 1)] {
            assert_eq!(of(level, name), Part::Receiving, "{level} {name}");
        }
        for (value, part) in [(0, Part::None), (1, Part::None), (2, Part::Receiving)] {
            assert_eq!(Part::of(SOL_SOCKET, SO_RCVLOWAT.name, &i32::to_ne_bytes(value)), part);
        }
    }
}
