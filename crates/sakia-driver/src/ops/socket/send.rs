//! Sending on a connection.

use sakia_ring::Sqe;

use super::{NO_SIGNAL, SEND_FLAGS};
use crate::backend::Backend;
use crate::buf::{BufResult, IoBuf};
use crate::fd::Fd;
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation};
use crate::ops::transfer_len;

/// See [`Handle::send`].
#[derive(Debug)]
pub struct SocketSend<T> {
    fd: Fd,
    buf: T,
    /// `MSG_*`.
    flags: u32,
}

impl<B: Backend> Handle<B> {
    /// Sends up to `buf.bytes_len()` bytes on the connected socket `fd`, and waits until there is room for
    /// some. `flags` are of the kernel's `MSG_*`: `MSG_DONTWAIT`, `MSG_MORE` or none; `MSG_NOSIGNAL` is
    /// always added.
    ///
    /// The kernel reads `buf` until the operation is done. Dropping the handle keeps it alive until then,
    /// and cancels a send that waits for room.
    ///
    /// Resolves to the number of bytes sent, and the buffer. It may be fewer than asked, on a stream; the
    /// rest was not sent. One send at a time: of two on one stream, none need be first.
    ///
    /// # Errors
    /// - `EPIPE`: the connection was shut down, here or there. `ECONNRESET`: the peer broke it off.
    /// - `EAGAIN`: with `MSG_DONTWAIT` it would have waited. `EMSGSIZE`: too long for a datagram.
    /// - `ENOTCONN`, `EDESTADDRREQ`: not connected. `ENOTSOCK`: not a socket. `EINVAL`: other flags.
    /// - `ECANCELED`: canceled before anything was sent. Otherwise as `send(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_send(3)`.
    pub fn send<T: IoBuf>(&self, fd: &Fd, buf: T, flags: u32) -> Op<SocketSend<T>, B> {
        self.check(fd);
        self.start_flagged(SocketSend::new(fd.clone(), buf, flags), flags, SEND_FLAGS)
    }
}

impl<T: IoBuf> SocketSend<T> {
    #[inline(always)]
    pub(crate) fn new(fd: Fd, buf: T, flags: u32) -> Self {
        Self { fd, buf, flags }
    }
}

// SAFETY: the entry names the buffer's bytes, which the value owns and which stay put (the promise of
// `IoBuf`), and the descriptor, which the value keeps open.
unsafe impl<T: IoBuf> Operation for SocketSend<T> {
    type Output = BufResult<usize, T>;

    /// A peer that does not read makes it wait for ever.
    #[inline(always)]
    fn class(&self) -> Class {
        Class::Waiting
    }

    #[inline(always)]
    fn entry(&mut self) -> Sqe {
        let len = transfer_len(self.buf.bytes_len());
        Sqe::send(self.fd.raw(), self.buf.stable_ptr(), len, self.flags | NO_SIGNAL)
    }

    #[inline(always)]
    fn complete(self, completion: Completion) -> Self::Output {
        (completion.count(self.buf.bytes_len()), self.buf)
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }
}
