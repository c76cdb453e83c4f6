//! Receiving, so that nothing is lost.

use std::io;

use rustix::net::RecvFlags;
use sakia_ring::Sqe;

use super::turns::Turn;
use super::{Connection, RecvBuf};
use crate::backend::Backend;
use crate::buf::{BufResult, IoBufMut};
use crate::fd::Fd;
use crate::op::{Class, Completion, Operation};
use crate::ops::transfer_len;

/// Bytes of memory for a receive whose caller brings none.
const OWNED_BYTES: usize = 16 << 10;

impl<B: Backend> Connection<B> {
    /// Receives up to `buf.bytes_len()` bytes into `buf`, as soon as there are any.
    ///
    /// The kernel owns `buf` until the future resolves. Dropping the future gives up the buffer, and no
    /// byte: what had been received goes to the next receive.
    ///
    /// Resolves to the number of bytes, `0..=buf.bytes_len()`, and the buffer; 0 means that the peer sends
    /// no more, or an empty buffer.
    ///
    /// # Errors
    /// As [`Handle::recv`](crate::Handle::recv).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_recv(3)`.
    pub async fn read<T: IoBufMut>(&self, mut buf: T) -> BufResult<usize, T> {
        if buf.bytes_len() == 0 {
            return (Ok(0), buf); // the kernel would wait
        }
        let turn = Turn::to_receive(&self.inner).await;
        match self.inner.inbox.copy_to(buf.as_bytes_mut(), false) {
            0 => self.receive(turn, buf, 0).await,
            count => (Ok(count), buf),
        }
    }

    /// As [`read`](Connection::read), but leaves the bytes to the next receive.
    ///
    /// # Errors
    /// As [`read`](Connection::read).
    pub async fn peek<T: IoBufMut>(&self, mut buf: T) -> BufResult<usize, T> {
        if buf.bytes_len() == 0 {
            return (Ok(0), buf);
        }
        let turn = Turn::to_receive(&self.inner).await;
        match self.inner.inbox.copy_to(buf.as_bytes_mut(), true) {
            0 => self.receive(turn, buf, RecvFlags::PEEK.bits()).await,
            count => (Ok(count), buf),
        }
    }

    /// Receives some bytes, as soon as there are any, in memory that the connection brings. While nothing
    /// comes there is none. Dropping the future loses nothing.
    ///
    /// Resolves to at least one byte, or to none when the peer sends no more.
    ///
    /// # Errors
    /// As [`read`](Connection::read).
    pub async fn recv(&self) -> io::Result<RecvBuf> {
        let turn = Turn::to_receive(&self.inner).await;
        if let Some(buf) = self.inner.inbox.pop() {
            return Ok(buf);
        }
        let (result, mut bytes) = self.receive(turn, vec![0; OWNED_BYTES], 0).await;
        bytes.truncate(result?);
        Ok(RecvBuf::owned(bytes))
    }

    async fn receive<T: IoBufMut>(&self, turn: Turn, buf: T, flags: u32) -> BufResult<usize, T> {
        let fd = self.fd.clone();
        self.driver.start(StreamRecv { fd, buf, flags, turn }).await
    }
}

/// See [`Connection::read`].
#[derive(Debug)]
pub struct StreamRecv<T> {
    fd: Fd,
    buf: T,
    /// `MSG_*`.
    flags: u32,
    turn: Turn,
}

// SAFETY: the entry names the buffer's bytes, which the value owns and which stay put (the promise of
// `IoBufMut`), and the descriptor, which the value keeps open.
unsafe impl<T: IoBufMut> Operation for StreamRecv<T> {
    type Output = BufResult<usize, T>;

    #[inline(always)]
    fn class(&self) -> Class {
        Class::Waiting
    }

    #[inline(always)]
    fn entry(&mut self) -> Sqe {
        let len = transfer_len(self.buf.bytes_len());
        Sqe::recv(self.fd.raw(), self.buf.stable_mut_ptr(), len, self.flags)
    }

    #[inline(always)]
    fn complete(self, completion: Completion) -> Self::Output {
        (completion.count(self.buf.bytes_len()), self.buf)
    }

    fn dispose(self, completion: Completion) {
        let received = completion.count(self.buf.bytes_len()).unwrap_or(0);
        let is_peek = self.flags & RecvFlags::PEEK.bits() != 0;
        if received > 0 && !is_peek && !mutant!("late_receive_lost") {
            let bytes = self.buf.as_bytes()[..received].to_vec();
            self.turn.inner().inbox.push(RecvBuf::owned(bytes));
        }
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }
}
