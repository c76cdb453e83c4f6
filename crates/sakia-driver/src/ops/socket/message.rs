//! Datagrams to and from an address.

use sakia_ring::{IoVec, Sqe};

use super::{NO_SIGNAL, RECV_FLAGS, SEND_FLAGS};
use crate::address::{AddressRoom, SocketAddress};
use crate::buf::{BufResult, IoBuf, IoBufMut, initialize};
use crate::call::{Call, SocketCall, Verb, word};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::handle::Op;
use crate::operation::{Completion, Operation};
use crate::ops::{filled, transfer_len};
use crate::sys::Message;

/// `MSG_TRUNC`: the datagram was longer than the buffer.
const TRUNCATED: u32 = rustix::net::ReturnFlags::TRUNC.bits();

/// See [`Handle::send_to`].
#[derive(Debug)]
pub struct SendTo<T> {
    fd: Fd,
    buf: T,
    address: SocketAddress,
    /// `MSG_*`.
    flags: u32,
    /// These point into the value and to the buffer; filled when the entry is made.
    vector: IoVec,
    message: Message,
}

/// See [`Handle::recv_from`].
#[derive(Debug)]
pub struct RecvFrom<T> {
    fd: Fd,
    buf: T,
    from: AddressRoom,
    /// `MSG_*`.
    flags: u32,
    /// These point into the value and to the buffer; filled when the entry is made.
    vector: IoVec,
    message: Message,
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// How many bytes of the buffer it fills.
    pub len: usize,
    /// Who sent it. On a stream the kernel need not tell: then it is
    /// [unnamed](SocketAddress::is_unnamed).
    pub from: SocketAddress,
    /// It was longer than the buffer, and the rest is lost.
    pub is_truncated: bool,
}

impl Handle {
    /// Sends `buf.bytes_len()` bytes as one datagram to `address`, and waits until there is room for it.
    /// `flags` as in [`send`](Handle::send), and what is said of `buf` there holds here.
    ///
    /// Resolves to the number of bytes sent, and the buffer.
    ///
    /// # Errors
    /// - `EMSGSIZE`: too long for a datagram. `EISCONN`, `EOPNOTSUPP`: a stream within the machine; one of
    ///   the network sends to its peer whatever the address.
    /// - `ECONNREFUSED`, `ENOENT`: nobody is there, as far as the machine knows.
    /// - `ENETUNREACH`, `EHOSTUNREACH`: no way leads there. Otherwise as [`send`](Handle::send).
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_sendmsg(3)`.
    #[doc(alias = "sendmsg")]
    #[doc(alias = "sendto")]
    pub fn send_to<T: IoBuf>(
        &self,
        fd: &Fd,
        buf: T,
        address: &SocketAddress,
        flags: u32,
    ) -> Op<SendTo<T>> {
        let (vector, message) = (IoVec::EMPTY, Message::EMPTY);
        let send = SendTo { fd: self.held(fd), buf, address: *address, flags, vector, message };
        self.start_flagged(send, flags, SEND_FLAGS)
    }

    /// Receives one datagram of up to `buf.len()` bytes (an empty `Vec`: up to its capacity), and waits until
    /// there is one. `flags` as in [`recv`](Handle::recv), and what is said of `buf` there holds here.
    ///
    /// # Errors
    /// As [`recv`](Handle::recv).
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_recvmsg(3)`.
    #[doc(alias = "recvmsg")]
    #[doc(alias = "recvfrom")]
    pub fn recv_from<T: IoBufMut>(&self, fd: &Fd, buf: T, flags: u32) -> Op<RecvFrom<T>> {
        let (from, vector, message) = (AddressRoom::new(), IoVec::EMPTY, Message::EMPTY);
        let recv = RecvFrom { fd: self.held(fd), buf, from, flags, vector, message };
        self.start_flagged(recv, flags, RECV_FLAGS)
    }
}

impl<T: IoBuf> SendTo<T> {
    /// Describes the message anew.
    fn message(&mut self) -> *const Message {
        let base = self.buf.stable_ptr().cast_mut();
        self.vector = IoVec { base, len: transfer_len(self.buf.bytes_len()) as usize };
        let address = self.address.as_bytes();
        let name = (address.as_ptr().cast_mut(), address.len() as u32);
        self.message = Message::new(name, &raw mut self.vector);
        &raw const self.message
    }
}

impl<T: IoBufMut> RecvFrom<T> {
    /// Describes anew what is to be filled.
    fn message(&mut self) -> *mut Message {
        let base = self.buf.stable_mut_ptr();
        self.vector = IoVec { base, len: transfer_len(self.buf.bytes_room()) as usize };
        let (name, _) = self.from.pointers();
        self.message = Message::new((name, AddressRoom::BYTES), &raw mut self.vector);
        &raw mut self.message
    }
}

// SAFETY: the entry names the message, which is part of the value. That names the address and the vector,
// which are, too, and the vector the buffer's bytes, which the value owns and which stay put (the promise
// of `IoBuf`). The descriptor the value keeps open.
unsafe impl<T: IoBuf> Operation for SendTo<T> {
    type Output = BufResult<usize, T>;
    const KIND: OpKind = OpKind::Send;

    fn entry(&mut self) -> Option<Sqe> {
        let message = self.message();
        Some(Sqe::sendmsg(self.fd.raw(), message, self.flags | NO_SIGNAL))
    }

    fn call(&mut self) -> Call {
        let args = [word(self.message()), 0];
        SocketCall::on(Verb::SendMessage, self.fd.raw(), args, self.flags | NO_SIGNAL)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        (completion.count(self.buf.bytes_len()), self.buf)
    }

    acts_on!(Waiting, fd);
}

// SAFETY: as for `SendTo`, with room for an address in place of one.
unsafe impl<T: IoBufMut> Operation for RecvFrom<T> {
    type Output = BufResult<Received, T>;
    const KIND: OpKind = OpKind::Recv;

    fn entry(&mut self) -> Option<Sqe> {
        let message = self.message();
        Some(Sqe::recvmsg(self.fd.raw(), message, self.flags))
    }

    fn call(&mut self) -> Call {
        let args = [word(self.message()), 0];
        SocketCall::on(Verb::RecvMessage, self.fd.raw(), args, self.flags)
    }

    fn has_room(&self) -> bool {
        self.buf.bytes_room() > 0
    }

    fn initialize(&mut self) {
        initialize(&mut self.buf);
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let room = transfer_len(self.buf.bytes_room());
        let (result, buf) = filled(completion, self.buf, room);
        let received = result.map(|len| Received {
            len,
            from: self.from.address_of(self.message.name_len),
            is_truncated: self.message.flags & TRUNCATED != 0,
        });
        (received, buf)
    }

    acts_on!(Waiting, fd);
}
