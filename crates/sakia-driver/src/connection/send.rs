//! Sending, one after the other.

use rustix::net::SendFlags;
use sakia_ring::{IoVec, Sqe};

use super::turns::Turn;
use super::{Connection, Inner};
use crate::backend::Backend;
use crate::buf::{BufResult, IoBuf};
use crate::epoll::sys::Message;
use crate::fd::Fd;
use crate::op::{Class, Completion, Operation};
use crate::ops::transfer_len;

/// What cannot be sent any more fails, and raises no `SIGPIPE`.
const NO_SIGNAL: u32 = SendFlags::NOSIGNAL.bits();

/// The most buffers of one vectored send: the kernel's `UIO_MAXIOV`.
const BUFFERS_MAX: usize = 1024;

impl<B: Backend> Connection<B> {
    /// Sends up to `buf.bytes_len()` bytes, as soon as there is room for any.
    ///
    /// The kernel reads `buf` until the future resolves. Dropping the future cancels a send that waits for
    /// room; some bytes may have been sent by then. Later sends wait for it.
    ///
    /// Resolves to the number of bytes sent and the buffer. It may be fewer than asked.
    ///
    /// # Errors
    /// As [`Handle::send`](crate::Handle::send).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_send(3)`.
    pub async fn send<T: IoBuf>(&self, buf: T) -> BufResult<usize, T> {
        let turn = self.send_turn().await;
        self.driver().start(StreamSend { fd: self.fd().clone(), buf, turn }).await
    }

    async fn send_turn(&self) -> Turn<Inner> {
        Turn::take(self.inner(), |inner| &inner.sends).await
    }

    /// As [`send`](Connection::send), taking one buffer after the other. At most the first 1024 are used.
    ///
    /// # Errors
    /// As [`send`](Connection::send).
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_sendmsg(3)`.
    pub async fn send_vectored<T: IoBuf>(&self, bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
        let turn = self.send_turn().await;
        let vector = Vec::with_capacity(bufs.len().min(BUFFERS_MAX));
        let (fd, message) = (self.fd().clone(), Message::EMPTY);
        self.driver().start(StreamSendVectored { fd, bufs, vector, message, turn }).await
    }
}

/// See [`Connection::send`].
#[derive(Debug)]
pub struct StreamSend<T> {
    fd: Fd,
    buf: T,
    #[expect(dead_code, reason = "passed on when the operation is over")]
    turn: Turn<Inner>,
}

// SAFETY: the entry names the buffer's bytes, which the value owns and which stay put (the promise of
// `IoBuf`), and the descriptor, which the value keeps open.
unsafe impl<T: IoBuf> Operation for StreamSend<T> {
    type Output = BufResult<usize, T>;

    /// A peer that does not read makes it wait for ever.
    #[inline(always)]
    fn class(&self) -> Class {
        Class::Waiting
    }

    #[inline(always)]
    fn entry(&mut self) -> Sqe {
        let len = transfer_len(self.buf.bytes_len());
        Sqe::send(self.fd.raw(), self.buf.stable_ptr(), len, NO_SIGNAL)
    }

    #[inline(always)]
    fn complete(self, completion: Completion) -> Self::Output {
        (completion.count(self.buf.bytes_len()), self.buf)
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }
}

/// See [`Connection::send_vectored`].
#[derive(Debug)]
pub struct StreamSendVectored<T> {
    fd: Fd,
    bufs: Vec<T>,
    /// Points to the buffers' bytes; filled when the entry is made.
    vector: Vec<IoVec>,
    /// Points to the vector; filled when the entry is made.
    message: Message,
    #[expect(dead_code, reason = "passed on when the operation is over")]
    turn: Turn<Inner>,
}

// SAFETY: the entry names the message, which is part of the value. That names the vector, whose memory stays
// put when the value moves, and the vector the buffers' bytes, which the value owns and which stay put, too
// (the promise of `IoBuf`). The descriptor the value keeps open.
unsafe impl<T: IoBuf> Operation for StreamSendVectored<T> {
    type Output = BufResult<usize, Vec<T>>;

    fn class(&self) -> Class {
        Class::Waiting
    }

    fn entry(&mut self) -> Sqe {
        let part = |buf: &T| IoVec { base: buf.stable_ptr().cast_mut(), len: buf.bytes_len() };
        self.vector.clear();
        self.vector.extend(self.bufs.iter().take(BUFFERS_MAX).map(part));
        self.message = Message::of_parts(&mut self.vector);
        Sqe::sendmsg(self.fd.raw(), &raw const self.message, NO_SIGNAL)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let parts = self.bufs.iter().take(BUFFERS_MAX);
        let bytes = parts.map(T::bytes_len).fold(0, usize::saturating_add);
        (completion.count(bytes), self.bufs)
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }
}
