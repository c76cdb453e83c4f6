//! Received messages, and control messages.

use rustix::net::SocketAddrAny;

/// The result of [`Host::receive`](crate::Host::receive).
///
/// # Examples
/// See [`Socket::send_to`](crate::Socket::send_to).
#[derive(Debug)]
pub struct Received {
    /// The number of bytes.
    pub bytes: usize,
    /// Flags of the message, such as `MSG_TRUNC`; only those of
    /// [`Host::receive_message`](crate::Host::receive_message) count.
    pub flags: rustix::net::ReturnFlags,
    /// The sender's address, if the socket has addresses.
    pub from: Option<SocketAddrAny>,
}

/// A control message that was received.
///
/// # Examples
/// See [`Socket::send_message`](crate::Socket::send_message).
#[derive(Debug)]
#[non_exhaustive]
pub enum Control<F> {
    /// Descriptors (`SCM_RIGHTS`). Dropping one closes it.
    Rights(Vec<F>),
    /// The sender (`SCM_CREDENTIALS`), on a socket with `SO_PASSCRED`.
    Credentials(Credentials),
    /// Any other control message, with the kernel's numbers and bytes: `IP_PKTINFO`, `IP_TTL`, timestamps.
    Other {
        /// `cmsg_level`.
        level: i32,
        /// `cmsg_type`.
        kind: i32,
        /// The bytes after the header.
        data: Vec<u8>,
    },
}

/// The result of [`Socket::recv_message`](crate::Socket::recv_message).
///
/// # Examples
/// See [`Socket::send_message`](crate::Socket::send_message).
#[derive(Debug)]
pub struct ReceivedMessage<F> {
    /// Its bytes, flags and sender.
    pub received: Received,
    /// Its control messages.
    pub control: Vec<Control<F>>,
}

impl<F> From<Received> for ReceivedMessage<F> {
    fn from(received: Received) -> Self {
        Self { received, control: Vec::new() }
    }
}

/// A control message to send.
///
/// # Examples
/// See [`Socket::send_message`](crate::Socket::send_message).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SendControl<'a, F> {
    /// Descriptors (`SCM_RIGHTS`). A [`Socket`](crate::Socket) has to be [handed
    /// back](crate::Socket::hand_back) before its descriptor is sent.
    Rights(&'a [&'a F]),
    /// The sender (`SCM_CREDENTIALS`).
    Credentials(Credentials),
    /// The time at which the bytes are to leave, in nanoseconds (`SCM_TXTIME`).
    TransmitTime(u64),
    /// Any other control message, with the kernel's numbers and bytes.
    Other {
        /// `cmsg_level`.
        level: i32,
        /// `cmsg_type`.
        kind: i32,
        /// The bytes after the header.
        data: &'a [u8],
    },
}

/// A process and its user, as numbers of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process.
    pub process: i32,
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
}

/// Returns the room for a control message with `len` bytes of data (`CMSG_SPACE`): 4 bytes for each
/// descriptor, 12 for credentials.
///
/// # Examples
/// See [`Socket::send_message`](crate::Socket::send_message).
pub const fn control_space(len: usize) -> usize {
    let word = size_of::<usize>();
    // The header has a length of one word, and two numbers of 4 bytes.
    let header = (word + 8).next_multiple_of(word);
    header.saturating_add(len.div_ceil(word).saturating_mul(word))
}

/// Drops control messages that do not fit, which a correct host does not return. Returns true if there were
/// any.
pub(crate) fn cut<F>(control: &mut Vec<Control<F>>, room: usize) -> bool {
    let mut used: usize = 0;
    let fitting = control.iter().take_while(|message| {
        let len = match message {
            Control::Rights(fds) => fds.len().saturating_mul(4),
            Control::Credentials(_) => 12,
            Control::Other { data, .. } => data.len(),
        };
        // The last one need not be padded.
        let is_fitting = used.saturating_add(control_space(0)).saturating_add(len) <= room;
        used = used.saturating_add(control_space(len));
        is_fitting
    });
    let count = fitting.count();
    let is_cut = count < control.len();
    control.truncate(count);
    is_cut
}

#[cfg(test)]
mod tests {
    use super::*;

    type Make = fn() -> Control<u8>;

    /// Each kind of message is kept if its last byte has room, and is cut with one byte less.
    #[test]
    fn what_has_room_to_the_last_byte_is_kept() {
        let credentials = || Control::Credentials(Credentials { process: 1, user: 2, group: 3 });
        let messages: [(Make, usize); 4] = [
            (|| Control::Rights(vec![7, 8]), 8),
            (|| Control::Rights(vec![7]), 4),
            (|| Control::Credentials(Credentials { process: 1, user: 2, group: 3 }), 12),
            (|| Control::Other { level: 1, kind: 2, data: vec![5; 3] }, 3),
        ];
        for (message, len) in messages {
            for before in 0..2 {
                let room = before * control_space(12) + control_space(0) + len;
                for (room, is_cut) in [(room, false), (room - 1, true)] {
                    let mut control: Vec<_> = (0..before).map(|_| credentials()).collect();
                    control.push(message());
                    assert_eq!(cut(&mut control, room), is_cut, "{:?} in {room}", message());
                    assert_eq!(control.len(), before + usize::from(!is_cut));
                }
            }
        }
    }
}
