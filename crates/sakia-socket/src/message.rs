//! Messages: bytes in several buffers, with control messages.

use std::io::{IoSlice, IoSliceMut};

use rustix::io::Errno;
use rustix::net::{RecvFlags, ReturnFlags, SendFlags, SocketAddrAny};

use crate::open::{Kind, Open};
use crate::pieces;
use crate::{Host, Received, Socket};

pub(crate) mod kernel;

/// A control message that was received.
#[derive(Debug)]
#[non_exhaustive]
pub enum Control<F> {
    /// Descriptors (`SCM_RIGHTS`). One that is dropped is closed.
    Rights(Vec<F>),
    /// The sender (`SCM_CREDENTIALS`), on a socket with `SO_PASSCRED`.
    Credentials(Credentials),
    /// Any other, with the kernel's numbers and bytes: `IP_PKTINFO`, `IP_TTL`, timestamps.
    Other {
        /// `cmsg_level`.
        level: i32,
        /// `cmsg_type`.
        kind: i32,
        /// The bytes behind the header.
        data: Vec<u8>,
    },
}

/// The result of [`Socket::recv_message`].
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
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SendControl<'a, F> {
    /// Descriptors (`SCM_RIGHTS`). One of a [`Socket`] has to be [handed back](Socket::hand_back) before.
    Rights(&'a [&'a F]),
    /// The sender (`SCM_CREDENTIALS`).
    Credentials(Credentials),
    /// When the bytes are to leave, in nanoseconds (`SCM_TXTIME`).
    TransmitTime(u64),
    /// Any other, with the kernel's numbers and bytes.
    Other {
        /// `cmsg_level`.
        level: i32,
        /// `cmsg_type`.
        kind: i32,
        /// The bytes behind the header.
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

/// Returns the room that a control message of `len` bytes takes (`CMSG_SPACE`): 4 for each descriptor, 12
/// for credentials.
pub const fn control_space(len: usize) -> usize {
    let word = size_of::<usize>();
    // The header has a length of a word, and two numbers of 4 bytes.
    let header = (word + 8).next_multiple_of(word);
    header.saturating_add(len.div_ceil(word).saturating_mul(word))
}

impl<H: Host> Socket<H> {
    /// `readv(2)`, or `recvmsg(2)` without a name and control messages: fills `buffers` one after the other.
    ///
    /// # Errors
    /// Those of the call.
    pub fn recv_vectored(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        self.open().receive(buffers, flags)
    }

    /// `writev(2)`, or `sendmsg(2)` without a name and control messages.
    ///
    /// # Errors
    /// Those of [`send`](Socket::send).
    pub fn send_vectored(&self, buffers: &[IoSlice<'_>], flags: SendFlags) -> Result<usize, Errno> {
        self.open().send(buffers, flags)
    }

    /// `recvmsg(2)` with `room` bytes for control messages, see [`control_space`]. With `MSG_CTRUNC` among
    /// the flags of the result there were more of them. Bytes of a stream that wait in memory came without
    /// control messages.
    ///
    /// [`Kernel`](crate::Kernel) knows of descriptors and credentials only, and drops others.
    ///
    /// # Errors
    /// Those of the call.
    pub fn recv_message(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        room: usize,
        flags: RecvFlags,
    ) -> Result<ReceivedMessage<H::Fd>, Errno> {
        self.open().receive_message(buffers, room, flags)
    }

    /// `sendmsg(2)` with control messages, which belong to the first byte: delayed ones are sent before.
    ///
    /// # Errors
    /// Those of [`send`](Socket::send), and `EAGAIN` if delayed bytes are left of a call that must not
    /// wait. `EOPNOTSUPP` if the host does not know a control message, [`Kernel`](crate::Kernel) for one
    /// knows no `Other`.
    pub fn send_message(
        &self,
        buffers: &[IoSlice<'_>],
        control: &[SendControl<'_, H::Fd>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        let open = self.open();
        if control.is_empty() && (to.is_none() || open.kind != Kind::Datagrams) {
            return open.send(buffers, flags);
        }
        if open.kind != Kind::Datagrams {
            open.drain(flags)?;
        }
        if control.is_empty() {
            return open.send_plainly(buffers, flags, to);
        }
        let to = to.filter(|_| open.kind == Kind::Datagrams);
        let call = open.with_signal(flags);
        let count = open.host().send_message(&open.fd, buffers, control, call, to)?;
        if count > pieces::len(buffers) { Err(open.break_off()) } else { Ok(count) }
    }
}

impl<H: Host> Open<H> {
    fn receive_message(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        room: usize,
        flags: RecvFlags,
    ) -> Result<ReceivedMessage<H::Fd>, Errno> {
        if self.is_served(flags) {
            return self.receive_from(buffers, flags).map(ReceivedMessage::from);
        }
        if let Some(received) = self.received_before_error(buffers, flags)? {
            return Ok(received.into());
        }
        if !self.is_nonblocking(flags.contains(RecvFlags::DONTWAIT)) {
            self.shared.before_wait();
        }
        let mut message = self.host().receive_message(&self.fd, buffers, room, flags)?;
        message.received = self.checked(message.received, pieces::len(buffers), flags)?;
        if cut(&mut message.control, room) {
            message.received.flags |= ReturnFlags::CTRUNC;
        }
        Ok(message)
    }
}

/// Drops control messages that have no room, which a host that is right does not report. Returns true if
/// there were any.
fn cut<F>(control: &mut Vec<Control<F>>, room: usize) -> bool {
    let mut used: usize = 0;
    let fitting = control.iter().take_while(|message| {
        let len = match message {
            Control::Rights(fds) => fds.len().saturating_mul(4),
            Control::Credentials(_) => 12,
            Control::Other { data, .. } => data.len(),
        };
        // The last one need not be filled up.
        let is_fitting = used.saturating_add(control_space(0)).saturating_add(len) <= room;
        used = used.saturating_add(control_space(len));
        is_fitting
    });
    let count = fitting.count();
    let is_cut = count < control.len();
    control.truncate(count);
    is_cut
}
