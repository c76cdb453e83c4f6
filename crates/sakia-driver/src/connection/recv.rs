//! Receiving, so that nothing is lost.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Waker;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_ring::Sqe;

use super::pool::{Pool, Size};
use super::turns::Turn;
use super::{Connection, Inner, RecvBuf};
use crate::backend::Backend;
use crate::buf::{BufResult, IoBufMut};
use crate::fd::Fd;
use crate::op::{Class, Completion, Delivered, Operation};
use crate::ops::{PollEvents, transfer_len};

/// `MSG_PEEK`.
const PEEK: u32 = RecvFlags::PEEK.bits();

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
    pub async fn read<T: IoBufMut>(&self, buf: T) -> BufResult<usize, T> {
        self.receive(buf, 0).await
    }

    /// As [`read`](Connection::read), but leaves the bytes to the next receive.
    ///
    /// # Errors
    /// As [`read`](Connection::read).
    pub async fn peek<T: IoBufMut>(&self, buf: T) -> BufResult<usize, T> {
        self.receive(buf, PEEK).await
    }

    async fn receive_turn(&self) -> Turn<Inner> {
        Turn::take(self.inner(), |inner| &inner.receives).await
    }

    async fn receive<T: IoBufMut>(&self, mut buf: T, flags: u32) -> BufResult<usize, T> {
        if buf.bytes_len() == 0 {
            return (Ok(0), buf); // the kernel would wait
        }
        let inbox = &self.inner().inbox;
        let turn = self.receive_turn().await;
        // What is in flight for `recv` comes before whatever the kernel has.
        poll_fn(|cx| inbox.poll_news(cx)).await;
        match inbox.copy_to(buf.as_bytes_mut(), flags & PEEK != 0) {
            0 => {}
            count => return (Ok(count), buf),
        }
        if let Some(end) = inbox.take_end() {
            return (end.map(|()| 0), buf);
        }
        let fd = self.fd().clone();
        self.driver().start(StreamRecv { fd, buf, flags, turn }).await
    }

    /// Receives some bytes, as soon as there are any, in memory that the driver brings: the kernel picks it
    /// when something has come, so that a connection which waits has none. Dropping the future loses nothing.
    ///
    /// From the first call on the kernel receives without being asked again, as much as the connection may
    /// hold back: 256 KiB or 32 pieces. Then the peer has to wait.
    ///
    /// Resolves to at least one byte, or to none when the peer sends no more.
    ///
    /// # Errors
    /// As [`read`](Connection::read).
    ///
    /// # Kernel
    /// 6.0; before that as [`read`](Connection::read). Source: `io_uring_prep_recv_multishot(3)`.
    pub async fn recv(&self) -> io::Result<RecvBuf> {
        let inbox = &self.inner().inbox;
        let mut turn = Some(self.receive_turn().await);
        loop {
            if let Some(buf) = inbox.pop() {
                return Ok(buf);
            }
            if let Some(end) = inbox.take_end() {
                return end.map(|()| RecvBuf::owned(Vec::new()));
            }
            if self.fd().is_closing() {
                return Err(Errno::CANCELED.into());
            }
            if inbox.armed().is_none() && (inbox.is_single() || !self.arm()) {
                self.driver().poll(self.fd(), PollEvents::READABLE).await?;
                let turn = turn.take().expect("not given away before");
                let (fd, buf) = (self.fd().clone(), vec![0; inbox.size().bytes() as usize]);
                let (result, mut buf) =
                    self.driver().start(StreamRecv { fd, buf, flags: 0, turn }).await;
                buf.truncate(result?);
                inbox.is_size_wrong(buf.len());
                return Ok(RecvBuf::owned(buf));
            }
            poll_fn(|cx| inbox.poll_news(cx)).await;
        }
    }

    /// Starts the receive that goes on by itself. False when that cannot be.
    fn arm(&self) -> bool {
        let size = self.inner().inbox.size();
        let shared = &self.driver().shared;
        self.driver().check(self.fd());
        let mut core = shared.core.borrow_mut();
        let Some(pool) = core.offer(size) else { return false };
        let (fd, inner) = (self.fd().clone(), Rc::clone(self.inner()));
        let key = core.start_detached(MultiRecv { fd, inner, pool, size });
        self.inner().inbox.set_armed(Some(key));
        drop(core);
        shared.settle();
        true
    }
}

/// See [`Connection::read`].
#[derive(Debug)]
pub struct StreamRecv<T> {
    fd: Fd,
    buf: T,
    /// `MSG_*`.
    flags: u32,
    turn: Turn<Inner>,
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
        let is_peek = self.flags & PEEK != 0;
        if received > 0 && !is_peek && !mutant!("late_receive_lost") {
            let bytes = self.buf.as_bytes()[..received].to_vec();
            // Nobody waits for news while the turn is taken.
            self.turn.of().inbox.push(RecvBuf::owned(bytes));
        }
    }

    fn lose(&self) -> Option<Waker> {
        self.turn.give_up()
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }
}

/// A receive that goes on by itself, into buffers of the pool. See [`Connection::recv`].
struct MultiRecv {
    fd: Fd,
    inner: Rc<Inner>,
    pool: Rc<Pool>,
    size: Size,
}

impl MultiRecv {
    /// The bytes that a completion brought, if it did. An empty one when it names a buffer that the kernel
    /// did not have.
    fn bytes(&self, completion: Completion) -> Option<RecvBuf> {
        let id = completion.flags.buffer_id()?;
        let len = u32::try_from(completion.res).unwrap_or(0);
        let buf = RecvBuf::pooled(&self.pool, self.size, id, len);
        Some(buf.unwrap_or_else(|| RecvBuf::owned(Vec::new())))
    }
}

// SAFETY: the entry names no memory of the value's, but a group of buffers that lie in the pool, which the
// value keeps; and the descriptor, which the value keeps open. `deliver` reaches none but the buffer that the
// completion names.
unsafe impl Operation for MultiRecv {
    type Output = ();

    fn class(&self) -> Class {
        Class::Waiting
    }

    fn entry(&mut self) -> Sqe {
        Sqe::recv_multishot(self.fd.raw(), self.size.group(), 0)
    }

    fn deliver(&self, completion: Completion) -> Delivered {
        let Some(buf) = self.bytes(completion) else { return Delivered::default() };
        let inbox = &self.inner.inbox;
        let is_wrong = self.size == inbox.size() && inbox.is_size_wrong(buf.len());
        inbox.push(buf);
        let is_enough = is_wrong || inbox.is_full() && !mutant!("inbox_without_bound");
        if is_enough {
            inbox.set_paused();
        }
        Delivered { waker: inbox.reader(), is_enough }
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let inbox = &self.inner.inbox;
        inbox.set_armed(None);
        let is_paused = inbox.take_paused();
        if let Some(buf) = self.bytes(completion) {
            inbox.push(buf);
        }
        let end = match completion.result() {
            Ok(0) => Some(Ok(())),
            Ok(_) => None,
            Err(error) => match Errno::from_io_error(&error) {
                // To go on is the next receive's decision.
                Some(Errno::INTR | Errno::AGAIN) => None,
                Some(Errno::NOBUFS) => {
                    self.pool.grow(self.size);
                    None
                }
                Some(Errno::CANCELED) if is_paused => None,
                Some(Errno::INVAL) if !inbox.set_single() => None,
                _ => Some(Err(error)),
            },
        };
        if let Some(end) = end {
            inbox.end(end);
        }
        if let Some(waker) = inbox.reader() {
            waker.wake();
        }
    }

    fn lose(&self) -> Option<Waker> {
        self.inner.inbox.set_armed(None);
        self.inner.inbox.reader()
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }
}
