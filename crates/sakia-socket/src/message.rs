//! Messages: bytes in several buffers, with control messages.

use std::io::{IoSlice, IoSliceMut};

use rustix::io::Errno;
use rustix::net::{RecvFlags, ReturnFlags, SendFlags, SocketAddrAny};

use crate::control::{ReceivedMessage, SendControl, cut};
use crate::open::{Kind, Open};
use crate::pieces;
use crate::{Host, Socket};

/// `MSG_FASTOPEN`: the send connects the socket.
const FASTOPEN: u32 = 0x2000_0000;

impl<H: Host> Socket<H> {
    /// `readv(2)`, or `recvmsg(2)` without a name and control messages: fills `buffers` one after the other.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// See [`Socket::send_vectored`].
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
    ///
    /// # Examples
    /// ```
    /// use std::io::{IoSlice, IoSliceMut};
    ///
    /// use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
    /// use sakia_socket::{Kernel, Layer, Options};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let layer = Layer::new(Kernel, Options::default());
    /// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
    /// let parts = [IoSlice::new(b"head, "), IoSlice::new(b"body")];
    /// assert_eq!(a.send_vectored(&parts, SendFlags::empty())?, 10);
    /// let (mut head, mut body) = ([0; 4], [0; 6]);
    /// let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut body)];
    /// assert_eq!(b.recv_vectored(&mut parts, RecvFlags::empty())?, 10);
    /// assert_eq!((&head, &body), (b"head", b", body"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_vectored(&self, buffers: &[IoSlice<'_>], flags: SendFlags) -> Result<usize, Errno> {
        self.open().send(buffers, flags)
    }

    /// `recvmsg(2)` with `room` bytes for control messages, see [`control_space`](crate::control_space). With
    /// `MSG_CTRUNC` in the result's flags there were more of them. Bytes of a stream that wait in memory came
    /// without control messages.
    ///
    /// [`Kernel`](crate::Kernel) supports descriptors and credentials only, and drops others.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// See [`Socket::send_message`].
    pub fn recv_message(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        room: usize,
        flags: RecvFlags,
    ) -> Result<ReceivedMessage<H::Fd>, Errno> {
        self.open().receive_message(buffers, room, flags)
    }

    /// `sendmsg(2)` with control messages, which belong to the first byte: delayed bytes are sent first.
    ///
    /// # Errors
    /// Those of [`send`](Socket::send), and `EAGAIN` if delayed bytes are left and the call must not wait.
    /// `EOPNOTSUPP` if the host does not support a control message: [`Kernel`](crate::Kernel) supports no
    /// `Other`.
    ///
    /// # Examples
    /// Passes a descriptor:
    /// ```
    /// use std::io::{IoSlice, IoSliceMut, Read};
    ///
    /// use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
    /// use sakia_socket::{Control, Kernel, Layer, Options, SendControl, control_space};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let layer = Layer::new(Kernel, Options::default());
    /// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
    /// let file = std::fs::File::open("Cargo.toml").expect("a file").into();
    /// let control = [SendControl::Rights(&[&file])];
    /// a.send_message(&[IoSlice::new(b"a file")], &control, SendFlags::empty(), None)?;
    ///
    /// let (mut buffer, room) = ([0; 16], control_space(4));
    /// let parts = &mut [IoSliceMut::new(&mut buffer)];
    /// let message = b.recv_message(parts, room, RecvFlags::empty())?;
    /// assert_eq!(message.received.bytes, 6);
    /// let Some(Control::Rights(files)) = message.control.into_iter().next() else { panic!("none came") };
    /// let mut text = String::new();
    /// for file in files {
    ///     std::fs::File::from(file).read_to_string(&mut text).expect("text");
    /// }
    /// assert!(text.starts_with("[package]"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_message(
        &self,
        buffers: &[IoSlice<'_>],
        control: &[SendControl<'_, H::Fd>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        let open = self.open();
        // An established TCP stream ignores an address; on any other socket the kernel decides.
        let is_named =
            to.is_some() && (open.kind != Kind::Internet || !open.ignores_address(flags));
        if control.is_empty() && !is_named {
            return open.send(buffers, flags);
        }
        if open.kind != Kind::Datagrams {
            open.drain(flags)?;
        }
        if control.is_empty() {
            return open.send_plainly(buffers, flags, to);
        }
        let call = open.with_signal(flags);
        let count = open.host().send_message(&open.fd, buffers, control, call, to)?;
        if count > pieces::len(buffers) { Err(open.break_off()) } else { Ok(count) }
    }
}

impl<H: Host> Open<H> {
    /// Returns true if a send with `flags` does not connect to its address.
    fn ignores_address(&self, flags: SendFlags) -> bool {
        flags.bits() & FASTOPEN == 0
    }

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
