//! Receiving into one buffer on a connection, and sending from one.

use sakia_ring::Sqe;

use super::{NO_SIGNAL, RECV_FLAGS, SEND_FLAGS};
use crate::buf::{BufResult, IoBuf, IoBufMut, initialize};
use crate::call::{Call, SocketCall, Verb, word};
use crate::counters::OpKind;
use crate::decide::{Route, Rules};
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};
use crate::ops::{filled, transfer_len};

/// See [`Handle::recv`].
#[derive(Debug)]
pub struct SocketRecv<T> {
    fd: Fd,
    buf: T,
    /// `MSG_*`.
    flags: u32,
    /// The requested length in bytes.
    len: u32,
}

/// See [`Handle::send`].
#[derive(Debug)]
pub struct SocketSend<T> {
    fd: Fd,
    buf: T,
    /// `MSG_*`.
    flags: u32,
    /// A plain call comes before the queue.
    is_now: bool,
}

impl Handle {
    /// Receives up to `buf.len()` bytes (an empty `Vec`: up to its capacity) on the socket `fd`, and waits
    /// until there are some. `flags` are of the kernel's `MSG_*`: `MSG_PEEK`, which leaves the bytes to the
    /// next receive, `MSG_DONTWAIT`, or none.
    ///
    /// The kernel owns `buf` until the operation is done. Dropping the handle keeps it alive until then, and
    /// cancels a waiting receive. Bytes received by then are lost; later ones go to the next receive.
    ///
    /// Resolves to the number of bytes received and the buffer. On a stream 0 means that the peer has ended
    /// its side. An initially empty `Vec` gets the length of the bytes received: clear it before the next
    /// receive, see [`IoBufMut`]. The part of a datagram beyond the buffer is lost;
    /// [`recv_from`](Handle::recv_from) reports that.
    ///
    /// # Errors
    /// - `ECONNRESET`: the peer reset the connection. `ETIMEDOUT`: the peer is gone.
    /// - `ECONNREFUSED`: a datagram was sent to an address without a receiver.
    /// - `EAGAIN`: with `MSG_DONTWAIT` it would have blocked. `EINVAL`: other flags, or a buffer without
    ///   room.
    /// - `ENOTCONN`: not connected. `ENOTSOCK`: not a socket.
    /// - `ECANCELED`: canceled before any byte arrived. Otherwise as `recv(2)`.
    ///
    /// # Examples
    /// See [`Handle::accept`].
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_recv(3)`.
    pub fn recv<T: IoBufMut>(&self, fd: &Fd, buf: T, flags: u32) -> Op<SocketRecv<T>> {
        self.start_flagged(SocketRecv::new(self.held(fd), buf, flags), flags, RECV_FLAGS)
    }

    /// Sends up to `buf.bytes_len()` bytes on the connected socket `fd`, and waits until there is room for
    /// some. `flags` are of the kernel's `MSG_*`: `MSG_DONTWAIT`, `MSG_MORE` or none; `MSG_NOSIGNAL` is
    /// always added.
    ///
    /// The kernel reads `buf` until the operation is done. Dropping the handle keeps it alive until then,
    /// and cancels a send that waits for room.
    ///
    /// Resolves to the number of bytes sent, and the buffer. On a stream it may be fewer than requested; the
    /// rest was not sent. Have one send at a time in flight: the order of two on one stream is undefined.
    ///
    /// # Errors
    /// - `EPIPE`: the connection was shut down, on either side. `ECONNRESET`: the peer reset it.
    /// - `EAGAIN`: with `MSG_DONTWAIT` it would have blocked. `EMSGSIZE`: too long for a datagram.
    /// - `ENOTCONN`, `EDESTADDRREQ`: not connected. `ENOTSOCK`: not a socket. `EINVAL`: other flags.
    /// - `ECANCELED`: canceled before anything was sent. Otherwise as `send(2)`.
    ///
    /// # Examples
    /// See [`Handle::accept`].
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_send(3)`.
    pub fn send<T: IoBuf>(&self, fd: &Fd, buf: T, flags: u32) -> Op<SocketSend<T>> {
        self.start_flagged(SocketSend::new(self.held(fd), buf, flags), flags, SEND_FLAGS)
    }
}

impl<T: IoBufMut> SocketRecv<T> {
    #[inline(always)]
    pub(crate) fn new(fd: Fd, buf: T, flags: u32) -> Self {
        let len = transfer_len(buf.bytes_room());
        Self { fd, buf, flags, len }
    }
}

impl<T: IoBuf> SocketSend<T> {
    #[inline(always)]
    pub(crate) fn new(fd: Fd, buf: T, flags: u32) -> Self {
        Self { fd, buf, flags, is_now: false }
    }

    /// Returns the same send, tried by a plain call first if `is_now`.
    #[inline(always)]
    pub(crate) fn tried_now(self, is_now: bool) -> Self {
        Self { is_now, ..self }
    }
}

// SAFETY: the entry names the buffer's bytes, which the value owns and which do not move (the promise of
// `IoBufMut`), and the descriptor, which the value keeps open.
unsafe impl<T: IoBufMut> Operation for SocketRecv<T> {
    type Output = BufResult<usize, T>;
    const KIND: OpKind = OpKind::Recv;

    #[inline(always)]
    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::recv(self.fd.raw(), self.buf.stable_mut_ptr(), self.len, self.flags))
    }

    #[inline(always)]
    fn call(&mut self) -> Call {
        let args = [word(self.buf.stable_mut_ptr()), self.len as usize];
        SocketCall::on(Verb::Recv, self.fd.raw(), args, self.flags)
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        self.len > 0
    }

    fn initialize(&mut self) {
        initialize(&mut self.buf);
    }

    #[inline(always)]
    fn complete(self, completion: Completion) -> Self::Output {
        filled(completion, self.buf, self.len)
    }

    acts_on!(Waiting, fd);
}

// SAFETY: the entry names the buffer's bytes, which the value owns and which do not move (the promise of
// `IoBuf`), and the descriptor, which the value keeps open.
unsafe impl<T: IoBuf> Operation for SocketSend<T> {
    type Output = BufResult<usize, T>;
    const KIND: OpKind = OpKind::Send;

    #[inline(always)]
    fn entry(&mut self) -> Option<Sqe> {
        let len = transfer_len(self.buf.bytes_len());
        Some(Sqe::send(self.fd.raw(), self.buf.stable_ptr(), len, self.flags | NO_SIGNAL))
    }

    #[inline(always)]
    fn call(&mut self) -> Call {
        let args = [word(self.buf.stable_ptr()), transfer_len(self.buf.bytes_len()) as usize];
        SocketCall::on(Verb::Send, self.fd.raw(), args, self.flags | NO_SIGNAL)
    }

    #[inline(always)]
    fn complete(self, completion: Completion) -> Self::Output {
        (completion.count(self.buf.bytes_len()), self.buf)
    }

    #[inline(always)]
    fn route(&self, _: &Rules) -> Route {
        super::send_route(self.is_now)
    }

    // If the peer does not read, the send waits for ever.
    acts_on!(Waiting, fd);
}
