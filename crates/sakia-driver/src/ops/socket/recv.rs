//! Receiving on a connection.

use sakia_ring::Sqe;

use super::RECV_FLAGS;
use crate::backend::Backend;
use crate::buf::{BufResult, IoBufMut, initialize};
use crate::fd::Fd;
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation};
use crate::ops::{filled, transfer_len};

/// See [`Handle::recv`].
#[derive(Debug)]
pub struct SocketRecv<T> {
    fd: Fd,
    buf: T,
    /// `MSG_*`.
    flags: u32,
    /// What is asked for in bytes.
    len: u32,
}

impl<B: Backend> Handle<B> {
    /// Receives up to `buf.len()` bytes (an empty `Vec`: up to its capacity) on the socket `fd`, and waits
    /// until there are some. `flags` are of the kernel's `MSG_*`: `MSG_PEEK`, which leaves what it brings to
    /// the next receive, `MSG_DONTWAIT`, or none.
    ///
    /// The kernel owns `buf` until the operation is done. Dropping the handle keeps it alive until then,
    /// and cancels a receive that waits. What it had received by then is lost; what it had not goes to
    /// the next one.
    ///
    /// Resolves to the number of bytes received and the buffer. On a stream 0 means that the peer sends no
    /// more. A `Vec` that was empty has as many bytes as were received: clear it before the next receive, see
    /// [`IoBufMut`]. Of a datagram the rest is lost that is longer than the buffer;
    /// [`recv_from`](Handle::recv_from) tells.
    ///
    /// # Errors
    /// - `ECONNRESET`: the peer broke the connection off. `ETIMEDOUT`: it is no longer there.
    /// - `ECONNREFUSED`: nobody is where a datagram was sent to.
    /// - `EAGAIN`: with `MSG_DONTWAIT` it would have waited. `EINVAL`: other flags, or a buffer without room.
    /// - `ENOTCONN`: not connected. `ENOTSOCK`: not a socket.
    /// - `ECANCELED`: canceled before there was anything. Otherwise as `recv(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_recv(3)`.
    pub fn recv<T: IoBufMut>(&self, fd: &Fd, buf: T, flags: u32) -> Op<SocketRecv<T>, B> {
        self.check(fd);
        self.start_flagged(SocketRecv::new(fd.clone(), buf, flags), flags, RECV_FLAGS)
    }
}

impl<T: IoBufMut> SocketRecv<T> {
    #[inline(always)]
    pub(crate) fn new(fd: Fd, buf: T, flags: u32) -> Self {
        let len = transfer_len(buf.bytes_room());
        Self { fd, buf, flags, len }
    }
}

// SAFETY: the entry names the buffer's bytes, which the value owns and which stay put (the promise of
// `IoBufMut`), and the descriptor, which the value keeps open.
unsafe impl<T: IoBufMut> Operation for SocketRecv<T> {
    type Output = BufResult<usize, T>;

    #[inline(always)]
    fn class(&self) -> Class {
        Class::Waiting
    }

    #[inline(always)]
    fn entry(&mut self) -> Sqe {
        Sqe::recv(self.fd.raw(), self.buf.stable_mut_ptr(), self.len, self.flags)
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

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }
}
