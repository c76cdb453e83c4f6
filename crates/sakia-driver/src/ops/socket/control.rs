//! Control messages: data of a message besides its bytes.
//!
//! They lie one after the other: each has a header (length, level, type), its content, and padding.
//! Descriptors travel as numbers in the content of type `SCM_RIGHTS`. This makes the difference for safety:
//! - To send: only [`ControlMessages::descriptor`] writes numbers of descriptors, and keeps them open. Other
//!   messages are limited to levels and types whose content the kernel reads as plain values: some protocols
//!   find addresses there (`RDS_CMSG_RDMA_ARGS`).
//! - To receive: the room is zeroed, and only the kernel writes to it, for one receive. So a message of type
//!   `SCM_RIGHTS` in it names descriptors that the kernel has installed for that receive.
//! - Only the headers determine the places of messages, and the first invalid header ends the list. The
//!   length that the kernel reports is ignored: since 6.17 a ring's receive may leave messages of its earlier
//!   attempts in front, which that length does not count (<https://github.com/axboe/liburing/issues/1509>).
//!   Descriptors behind them would never be closed.
//!
//! Sources: `cmsg(3)`, `unix(7)`, `ip(7)`, `ipv6(7)`, `udp(7)`, `linux/socket.h`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::io;
use std::ptr;
use std::rc::Rc;

use linux_raw_sys::net::{
    IP_PKTINFO, IP_TOS, IP_TTL, IPV6_HOPLIMIT, IPV6_PKTINFO, IPV6_TCLASS, SCM_CREDENTIALS, SCM_INQ,
    SCM_RIGHTS, SCM_TXTIME, SO_MARK, SO_PRIORITY, SO_TIMESTAMPING_NEW, SO_TIMESTAMPING_OLD, SOL_IP,
    SOL_IPV6, SOL_SCTP, SOL_SOCKET, SOL_TLS, SOL_UDP,
};
use rustix::io::Errno;

use crate::fd::{Fd, Owner};
use crate::sys::{ControlMessage, array};

const SCM_PIDFD: u32 = 4;
const UDP_SEGMENT: u32 = 103;
const UDP_GRO: u32 = 104;

impl ControlMessage<'_> {
    /// Returns the traffic class, whose two lowest bits are the ECN field: of `IP_TOS` and `IPV6_TCLASS`.
    pub fn traffic_class(self) -> Option<u8> {
        match (self.level, self.kind) {
            (SOL_IP, IP_TOS) => self.bytes.first().copied(),
            (SOL_IPV6, IPV6_TCLASS) => {
                u32::from_ne_bytes(self.bytes.try_into().ok()?).try_into().ok()
            }
            _ => None,
        }
    }

    /// Returns the TTL or hop limit: of `IP_TTL` and `IPV6_HOPLIMIT`.
    pub fn hop_limit(self) -> Option<u8> {
        let is_it = matches!((self.level, self.kind), (SOL_IP, IP_TTL) | (SOL_IPV6, IPV6_HOPLIMIT));
        let bytes = self.bytes.try_into().ok().filter(|_| is_it)?;
        u32::from_ne_bytes(bytes).try_into().ok()
    }

    /// Returns the interface and the addresses of a received packet: of `IP_PKTINFO` and `IPV6_PKTINFO`.
    pub fn packet_info(self) -> Option<PacketInfo> {
        match (self.level, self.kind) {
            (SOL_IP, IP_PKTINFO) => {
                let bytes: [u8; 12] = self.bytes.try_into().ok()?;
                let [interface, local, destination] = [0, 4, 8].map(|at| array(&bytes, at));
                let [local, destination] = [local, destination].map(|ip| Ipv4Addr::from(ip).into());
                let interface = u32::from_ne_bytes(interface);
                Some(PacketInfo { interface, local, destination })
            }
            (SOL_IPV6, IPV6_PKTINFO) => {
                let bytes: [u8; 20] = self.bytes.try_into().ok()?;
                let destination = Ipv6Addr::from(array::<16>(&bytes, 0)).into();
                let interface = u32::from_ne_bytes(array(&bytes, 16));
                Some(PacketInfo { interface, local: destination, destination })
            }
            _ => None,
        }
    }

    /// Returns the length of each of the datagrams received as one, the last of which may be shorter: of
    /// `UDP_GRO`.
    pub fn segment_bytes(self) -> Option<usize> {
        if (self.level, self.kind) != (SOL_UDP, UDP_GRO) {
            return None;
        }
        Some(u32::from_ne_bytes(self.bytes.try_into().ok()?) as usize)
    }

    /// Returns whether the kernel reads the content of such a message as plain values, and never as
    /// descriptors or addresses.
    fn is_plain(&self) -> bool {
        match self.level {
            SOL_IP | SOL_IPV6 | SOL_UDP | SOL_SCTP | SOL_TLS => true,
            SOL_SOCKET => matches!(
                self.kind,
                SCM_CREDENTIALS
                    | SO_PRIORITY
                    | SO_MARK
                    | SO_TIMESTAMPING_OLD
                    | SO_TIMESTAMPING_NEW
                    | SCM_TXTIME
            ),
            _ => false,
        }
    }
}

/// The bytes of control messages. The usual ones of a packet need no allocation.
#[derive(Clone, Debug)]
pub(super) enum ControlBytes {
    Few { bytes: [u8; FEW], len: usize },
    Many(Vec<u8>),
}

/// Maximum number of bytes held without an allocation.
const FEW: usize = 128;

impl ControlBytes {
    const NONE: Self = Self::zeros_of_few(0);

    const fn zeros_of_few(len: usize) -> Self {
        Self::Few { bytes: [0; FEW], len }
    }

    /// Returns zeros.
    pub(super) fn zeros(len: usize) -> Self {
        if len <= FEW { Self::zeros_of_few(len) } else { Self::Many(vec![0; len]) }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Few { bytes, len } => &bytes[..*len],
            Self::Many(bytes) => bytes,
        }
    }

    /// Returns the address and the number of the bytes; a null pointer if there are none.
    pub(super) fn place(&mut self) -> (*mut u8, usize) {
        match self {
            Self::Few { len: 0, .. } => (ptr::null_mut(), 0),
            Self::Few { bytes, len } => (bytes.as_mut_ptr(), *len),
            Self::Many(bytes) => (bytes.as_mut_ptr(), bytes.len()),
        }
    }
}

impl Default for ControlBytes {
    fn default() -> Self {
        Self::NONE
    }
}

impl Extend<u8> for ControlBytes {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, added: I) {
        for byte in added {
            match self {
                Self::Few { bytes, len } if *len < FEW => {
                    bytes[*len] = byte;
                    *len += 1;
                }
                Self::Few { bytes, .. } => *self = Self::Many([&bytes[..], &[byte]].concat()),
                Self::Many(bytes) => bytes.push(byte),
            }
        }
    }
}

/// The path of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketInfo {
    /// The index of the network interface.
    pub interface: u32,
    /// The machine's own address, for the answer.
    pub local: IpAddr,
    /// The destination address of the packet, which may be that of a group.
    pub destination: IpAddr,
}

/// Control messages to be sent, see [`Handle::send_message`](crate::Handle::send_message).
///
/// # Examples
/// ```
/// use sakia_driver::ControlMessages;
///
/// let explicit_congestion = ControlMessages::new().ip_tos(2).segment_bytes(1200);
/// // Messages that the kernel would read as descriptors or addresses are refused.
/// assert!(ControlMessages::new().plain(1, 1, &0_i32.to_ne_bytes()).is_err());
/// # let _ = explicit_congestion;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ControlMessages<D = Fd> {
    descriptors: Vec<D>,
    /// All other messages, in the kernel's form.
    bytes: ControlBytes,
}

impl<D> Default for ControlMessages<D> {
    fn default() -> Self {
        Self { descriptors: Vec::new(), bytes: ControlBytes::NONE }
    }
}

impl ControlMessages {
    /// Returns an empty list of messages.
    pub const fn new() -> Self {
        Self { descriptors: Vec::new(), bytes: ControlBytes::NONE }
    }

    /// Adds a descriptor, of which the receiver gets a copy if the sockets are within the machine; network
    /// sockets ignore it. It stays open until the message has been sent. A message carries at most 253
    /// descriptors.
    ///
    /// # Examples
    /// See [`Handle::send_message`](crate::Handle::send_message).
    #[doc(alias = "SCM_RIGHTS")]
    pub fn descriptor(mut self, fd: &Fd) -> Self {
        fd.share_mode();
        self.descriptors.push(fd.clone());
        self
    }

    /// Returns the descriptors in them.
    pub(super) fn descriptors(&self) -> &[Fd] {
        &self.descriptors
    }

    /// Returns the messages in the kernel's form, and the descriptors that they name by number. The caller
    /// keeps the descriptors as long as it uses the bytes.
    pub(super) fn encode(self) -> (ControlBytes, Vec<Fd>) {
        let Self { descriptors, mut bytes } = self;
        if !descriptors.is_empty() {
            let numbers = descriptors.iter().flat_map(|fd| fd.raw().to_ne_bytes());
            ControlMessage::rights(&numbers.collect::<Vec<u8>>()).put(&mut bytes);
        }
        (bytes, descriptors)
    }
}

impl<D> ControlMessages<D> {
    /// Returns the messages with descriptors of a driver.
    ///
    /// # Errors
    /// That of the first descriptor that is not found.
    pub(crate) fn on_driver(
        self,
        mut find: impl FnMut(D) -> Result<Fd, Errno>,
    ) -> Result<ControlMessages, Errno> {
        let descriptors = self.descriptors.into_iter().map(|descriptor| {
            let fd = find(descriptor)?;
            fd.share_mode();
            Ok(fd)
        });
        Ok(ControlMessages {
            descriptors: descriptors.collect::<Result<_, _>>()?,
            bytes: self.bytes,
        })
    }

    /// Adds a descriptor as a user has it.
    pub(crate) fn with_descriptor(mut self, descriptor: D) -> Self {
        self.descriptors.push(descriptor);
        self
    }

    /// Sets the traffic class of IPv4 packets, whose two lowest bits are the ECN field.
    ///
    /// # Examples
    /// See [`ControlMessages`](ControlMessages#examples).
    #[doc(alias = "IP_TOS")]
    pub fn ip_tos(self, class: u8) -> Self {
        self.with(SOL_IP, IP_TOS, &[class])
    }

    /// Sets the traffic class of IPv6 packets, whose two lowest bits are the ECN field.
    #[doc(alias = "IPV6_TCLASS")]
    pub fn ipv6_traffic_class(self, class: u8) -> Self {
        self.with(SOL_IPV6, IPV6_TCLASS, &u32::from(class).to_ne_bytes())
    }

    /// Sets the TTL of IPv4 packets; 0 is refused.
    #[doc(alias = "IP_TTL")]
    pub fn ip_ttl(self, hops: u8) -> Self {
        self.with(SOL_IP, IP_TTL, &u32::from(hops).to_ne_bytes())
    }

    /// Sets the hop limit of IPv6 packets.
    #[doc(alias = "IPV6_HOPLIMIT")]
    pub fn ipv6_hop_limit(self, hops: u8) -> Self {
        self.with(SOL_IPV6, IPV6_HOPLIMIT, &u32::from(hops).to_ne_bytes())
    }

    /// Sets the source address of packets, one of this machine's, and the index of the outgoing interface, 0
    /// for the usual one.
    #[doc(alias = "IP_PKTINFO")]
    #[doc(alias = "IPV6_PKTINFO")]
    pub fn source(self, source: IpAddr, interface: u32) -> Self {
        let interface = interface.to_ne_bytes();
        match source {
            IpAddr::V4(ip) => {
                let info = [interface, ip.octets(), [0; 4]].concat();
                self.with(SOL_IP, IP_PKTINFO, &info)
            }
            IpAddr::V6(ip) => {
                let info = [&ip.octets()[..], &interface].concat();
                self.with(SOL_IPV6, IPV6_PKTINFO, &info)
            }
        }
    }

    /// Makes the kernel split the message into datagrams of this size, the last of which may be shorter.
    /// Since Linux 4.18.
    ///
    /// # Examples
    /// See [`ControlMessages`](ControlMessages#examples).
    #[doc(alias = "UDP_SEGMENT")]
    pub fn segment_bytes(self, bytes: u16) -> Self {
        self.with(SOL_UDP, UDP_SEGMENT, &bytes.to_ne_bytes())
    }

    /// Adds another message by its level, one of the kernel's `SOL_*`, and its type.
    ///
    /// # Errors
    /// `EINVAL`: not known as a message of plain values. The known ones are the levels `SOL_IP`, `SOL_IPV6`,
    /// `SOL_UDP`, `SOL_SCTP` and `SOL_TLS`, and of `SOL_SOCKET` the types `SCM_CREDENTIALS`, `SCM_TXTIME`,
    /// `SO_MARK`, `SO_PRIORITY` and `SO_TIMESTAMPING`.
    ///
    /// # Examples
    /// See [`ControlMessages`](ControlMessages#examples).
    pub fn plain(self, level: u32, kind: u32, bytes: &[u8]) -> io::Result<Self> {
        if !(ControlMessage { level, kind, bytes }).is_plain() {
            return Err(Errno::INVAL.into());
        }
        Ok(self.with(level, kind, bytes))
    }

    fn with(mut self, level: u32, kind: u32, bytes: &[u8]) -> Self {
        ControlMessage { level, kind, bytes }.put(&mut self.bytes);
        self
    }
}

/// Control messages that were received, see [`Handle::recv_message`](crate::Handle::recv_message).
///
/// Dropping it closes the descriptors that were not taken out.
///
/// # Examples
/// See [`Handle::send_message`](crate::Handle::send_message).
#[derive(Debug)]
#[non_exhaustive]
pub struct ReceivedControl<D = Fd> {
    /// The descriptors, in the order of the sender. Child programs do not inherit them.
    pub descriptors: Vec<D>,
    /// A descriptor of the process that sent the message (`SCM_PIDFD`), if the socket has `SO_PASSPIDFD`.
    pub process: Option<D>,
    /// There was too little room, or no descriptor number left. The remaining messages are lost.
    pub is_truncated: bool,
    /// The messages in the kernel's form, descriptors included.
    bytes: ControlBytes,
}

impl<D> Default for ReceivedControl<D> {
    fn default() -> Self {
        let (descriptors, process, bytes) = (Vec::new(), None, ControlBytes::NONE);
        Self { descriptors, process, is_truncated: false, bytes }
    }
}

impl<D> ReceivedControl<D> {
    /// Returns the other messages, in the kernel's order, except those of type `SCM_INQ`: since 6.17 some
    /// kernels add them, unrequested, to a ring's receives from a socket within the machine.
    pub fn messages(&self) -> impl Iterator<Item = ControlMessage<'_>> {
        ControlMessage::all(self.bytes.as_slice()).filter(|message| {
            let is_hidden = matches!(message.kind, SCM_RIGHTS | SCM_PIDFD | SCM_INQ);
            message.level != SOL_SOCKET || !is_hidden
        })
    }
}

impl ReceivedControl {
    /// Returns the same with other owners of the descriptors.
    pub(crate) fn map<D>(self, own: impl FnMut(Fd) -> D + Copy) -> ReceivedControl<D> {
        let Self { descriptors, process, is_truncated, bytes } = self;
        let descriptors = descriptors.into_iter().map(own).collect();
        ReceivedControl { descriptors, process: process.map(own), is_truncated, bytes }
    }

    /// Does the same as [`of`](Self::of) with a copy of these bytes.
    ///
    /// # Safety
    ///
    /// - The driver's kernel reports that it has written all of them for one successful receive, and no
    ///   other `ReceivedControl` was made of them.
    pub(crate) unsafe fn copied(bytes: &[u8], is_truncated: bool, owner: &Rc<dyn Owner>) -> Self {
        let mut copy = ControlBytes::NONE;
        copy.extend(bytes.iter().copied());
        // SAFETY: the caller's promise: the kernel has written all of them.
        unsafe { Self::of(copy, is_truncated, owner) }
    }

    /// Takes the control messages of a receive, and adopts their descriptors for the driver.
    ///
    /// # Safety
    ///
    /// - The bytes were zeros, or all of them were overwritten. Only the driver's kernel has written to
    ///   them, for one successful receive, and no other `ReceivedControl` was made of them.
    pub(super) unsafe fn of(
        bytes: ControlBytes,
        is_truncated: bool,
        owner: &Rc<dyn Owner>,
    ) -> Self {
        let mut control = Self { is_truncated, ..Self::default() };
        for message in ControlMessage::all(bytes.as_slice()) {
            let is_process = (message.level, message.kind) == (SOL_SOCKET, SCM_PIDFD);
            let rights = if is_process { ControlMessage::rights(message.bytes) } else { message };
            // The kernel may put an error number in place of a pidfd.
            for raw in rights.numbers().filter(|&raw| raw >= 0) {
                // SAFETY: the kernel has written this message for the receive (the caller's promise). Its
                // numbers are those of descriptors that the kernel has installed for the receive, so they
                // have no other owner (the promise of `Backend`), and this loop takes each number once.
                let fd = unsafe { Fd::new(raw, Rc::clone(owner)) };
                match is_process {
                    true => control.process = Some(fd),
                    false => control.descriptors.push(fd),
                }
            }
        }
        control.bytes = bytes;
        control
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: usize = ControlMessage::space(0);

    /// A small generator: xorshift.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn below(&mut self, bound: usize) -> usize {
            (self.next() % bound as u64) as usize
        }
    }

    fn encoded(messages: &[ControlMessage<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.put(&mut bytes));
        bytes
    }

    fn message(level: u32, kind: u32, bytes: &[u8]) -> ControlMessage<'_> {
        ControlMessage { level, kind, bytes }
    }

    #[test]
    fn messages_are_found_as_they_were_put() {
        let numbers = [3, 4].map(i32::to_ne_bytes).concat();
        let size = 1200_u32.to_ne_bytes();
        let messages = [
            message(SOL_IP, IP_TOS, &[2]),
            ControlMessage::rights(&numbers),
            message(SOL_UDP, UDP_GRO, &size),
            message(SOL_TLS, 1, b""),
        ];
        let mut bytes = encoded(&messages);
        let space: usize = messages.iter().map(|its| ControlMessage::space(its.bytes.len())).sum();
        assert_eq!(bytes.len(), space);
        bytes.resize(space + 40, 0);
        assert!(ControlMessage::all(&bytes).eq(messages));
        let numbers: Vec<i32> =
            ControlMessage::all(&bytes).flat_map(|its| its.numbers().collect::<Vec<_>>()).collect();
        assert_eq!(numbers, [3, 4]);
        // The kernel leaves no padding where there is no room for it.
        let last = encoded(&messages[..1]);
        assert!(ControlMessage::all(&last[..HEADER + 1]).eq(messages[..1].iter().copied()));
    }

    #[test]
    fn many_messages_move_to_the_heap() {
        let mut all = ControlMessages::new();
        assert_eq!(all.bytes.place(), (ptr::null_mut(), 0));
        for count in 1..20_u8 {
            all = all.ip_tos(count);
            let (address, len) = all.bytes.place();
            assert_eq!((address.cast_const(), len), {
                let bytes = all.bytes.as_slice();
                (bytes.as_ptr(), bytes.len())
            });
            assert_eq!(matches!(all.bytes, ControlBytes::Few { .. }), len <= FEW);
            let classes = ControlMessage::all(all.bytes.as_slice()).map(|its| its.traffic_class());
            assert!(classes.eq((1..=count).map(Some)));
        }
        for len in [0, 1, FEW, FEW + 1, 9999] {
            assert_eq!(ControlBytes::zeros(len).as_slice(), vec![0; len]);
        }
    }

    #[test]
    fn the_form_is_the_kernels() {
        let (bytes, held) = ControlMessages::new().ip_tos(3).segment_bytes(1200).encode();
        let expected = [
            &(HEADER + 1).to_ne_bytes()[..],
            &0_u32.to_ne_bytes(),
            &1_u32.to_ne_bytes(),
            &[3],
            &[0; size_of::<usize>() - 1],
            &(HEADER + 2).to_ne_bytes(),
            &17_u32.to_ne_bytes(),
            &103_u32.to_ne_bytes(),
            &1200_u16.to_ne_bytes(),
            &[0; size_of::<usize>() - 2],
        ];
        assert_eq!((bytes.as_slice(), held.len()), (&expected.concat()[..], 0));
        assert_eq!(ControlMessage::space(usize::MAX) % size_of::<usize>(), 0);
    }

    #[test]
    fn values_are_read_from_messages_of_their_type_and_length_only() {
        let class = |level, kind, bytes: &[u8]| message(level, kind, bytes).traffic_class();
        assert_eq!(class(SOL_IP, IP_TOS, &[2]), Some(2));
        assert_eq!(class(SOL_IPV6, IPV6_TCLASS, &3_u32.to_ne_bytes()), Some(3));
        assert_eq!(class(SOL_IPV6, IPV6_TCLASS, &[3]), None);
        assert_eq!(class(SOL_IPV6, IPV6_TCLASS, &999_u32.to_ne_bytes()), None);
        assert_eq!(class(SOL_IP, IP_TOS, &[]), None);
        assert_eq!(class(SOL_UDP, IP_TOS, &[2]), None);
        let hops = |level, kind, bytes: &[u8]| message(level, kind, bytes).hop_limit();
        assert_eq!(hops(SOL_IP, IP_TTL, &64_u32.to_ne_bytes()), Some(64));
        assert_eq!(hops(SOL_IPV6, IPV6_HOPLIMIT, &1_u32.to_ne_bytes()), Some(1));
        assert_eq!(hops(SOL_IPV6, IPV6_HOPLIMIT, &256_u32.to_ne_bytes()), None);
        assert_eq!((hops(SOL_IP, IP_TTL, &[64]), hops(SOL_IP, IP_TOS, &[0; 4])), (None, None));
        let size = |bytes: &[u8]| message(SOL_UDP, UDP_GRO, bytes).segment_bytes();
        assert_eq!((size(&7_u32.to_ne_bytes()), size(&[7])), (Some(7), None));
        for ip in [IpAddr::from([1, 2, 3, 4]), IpAddr::from([7_u16; 8])] {
            let (bytes, _) = ControlMessages::new().source(ip, 5).encode();
            let info =
                ControlMessage::all(bytes.as_slice()).next().and_then(|its| its.packet_info());
            assert_eq!(info.map(|info| (info.local, info.interface)), Some((ip, 5)));
        }
        assert_eq!(message(SOL_IP, IP_PKTINFO, &[0; 20]).packet_info(), None);
    }

    #[test]
    fn what_may_hold_descriptors_or_addresses_is_refused() {
        const SOL_RDS: u32 = 276;
        let is_taken = |level, kind| ControlMessages::new().plain(level, kind, &[0; 4]).is_ok();
        assert!(is_taken(SOL_IP, IP_TOS) && is_taken(SOL_SOCKET, SO_MARK));
        assert!(!is_taken(SOL_RDS, 1) && !is_taken(u32::MAX, SCM_RIGHTS));
        for kind in [SCM_RIGHTS, SCM_PIDFD, SCM_INQ, 0, u32::MAX] {
            assert!(!is_taken(SOL_SOCKET, kind), "{kind}");
        }
    }

    /// For any bytes, nothing is read outside them, and only messages with a header are found.
    #[test]
    fn any_bytes_are_read_within_their_bounds() {
        let mut random = Random(0x5eed);
        let rounds = if cfg!(miri) { 200 } else { 100_000 };
        let mut found = 0;
        for _ in 0..rounds {
            // Valid messages with some bytes changed, then cut anywhere.
            let mut bytes = Vec::new();
            for _ in 0..random.below(5) {
                let content = vec![random.next() as u8; random.below(30)];
                let (level, kind) = (random.below(3) as u32, random.below(3) as u32);
                message(level, kind, &content).put(&mut bytes);
            }
            for _ in 0..random.below(4) {
                if let Some(last) = bytes.len().checked_sub(1) {
                    bytes[random.below(last + 1)] = random.next() as u8;
                }
            }
            bytes.truncate(random.below(bytes.len() + 1));
            let range = bytes.as_ptr_range();
            let mut total = 0;
            for message in ControlMessage::all(&bytes) {
                let its = message.bytes.as_ptr_range();
                assert!(range.start <= its.start && its.end <= range.end);
                total += HEADER + message.bytes.len();
                let is_rights = (message.level, message.kind) == (SOL_SOCKET, SCM_RIGHTS);
                let count = message.numbers().count();
                assert_eq!(count, if is_rights { message.bytes.len() / 4 } else { 0 });
                let _ = (message.traffic_class(), message.packet_info(), message.segment_bytes());
                found += 1;
            }
            assert!(total <= bytes.len());
        }
        assert!(found > rounds / 4, "{found} messages");
        // A length that would overflow.
        for len in [0, 1, HEADER - 1, usize::MAX, usize::MAX - 7, isize::MAX as usize] {
            let bytes = [&len.to_ne_bytes()[..], &[1; 64]].concat();
            assert_eq!(ControlMessage::all(&bytes).count(), 0, "{len}");
        }
    }
}
