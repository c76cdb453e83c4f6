//! Receiving without losing bytes.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Waker;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_ring::Sqe;

use super::inbox::Inbox;
use super::permits::{Permit, WithPermit};
use super::{Connection, Inner, RecvBuf};
use crate::buf::{BufResult, IoBufMut, fill_with};
use crate::call::Call;
use crate::counters::OpKind;
use crate::decide::limits::BUFFERS_MAX;
use crate::decide::{Route, Rules, Streams};
use crate::fd::Fd;
use crate::operation::{Completion, Delivered, Operation};
use crate::ops::{
    PollEvents, Received, ReceivedControl, RecvMessage, SocketRecv, SocketRecvVectored, acts_on,
    room_of_all,
};
use crate::pool::{Pool, Size};

/// `MSG_PEEK`.
const PEEK: u32 = RecvFlags::PEEK.bits();

impl Connection {
    /// Receives up to `buf.len()` bytes (an empty `Vec`: up to its capacity), as soon as there are any.
    ///
    /// The kernel owns `buf` until the future resolves.
    ///
    /// Resolves to the number of bytes and the buffer; 0 means that the peer sends no more. An initially
    /// empty `Vec` gets the length of the bytes received: clear it before the next receive, see [`IoBufMut`].
    ///
    /// # Cancel safety
    /// Dropping the future loses the buffer but no byte: received bytes go to the next receive.
    ///
    /// # Errors
    /// As [`Handle::recv`](crate::Handle::recv); in particular, a buffer without room is `EINVAL`.
    ///
    /// # Examples
    /// See [`Connection`](Connection#examples).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_recv(3)`.
    pub async fn read<T: IoBufMut>(&self, buf: T) -> BufResult<usize, T> {
        self.receive(buf, 0).await
    }

    /// As [`read`](Connection::read), but leaves the bytes to the next receive.
    ///
    /// # Cancel safety
    /// As [`read`](Connection::read).
    ///
    /// # Errors
    /// As [`read`](Connection::read).
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use sakia_driver::SocketType;
    ///
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// let (near, far) = driver.socket_pair(SocketType::STREAM)?;
    /// let (near, far) = (driver.connection(near), driver.connection(far));
    /// let talk = async {
    ///     near.send("hello").await.0?;
    ///     assert_eq!(far.peek(vec![0; 2]).await.1, b"he");
    ///     assert_eq!(far.read(vec![0; 5]).await.1, b"hello");
    ///     std::io::Result::Ok(())
    /// };
    /// run(&driver, talk)??;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn peek<T: IoBufMut>(&self, buf: T) -> BufResult<usize, T> {
        self.receive(buf, PEEK).await
    }

    /// As [`read`](Connection::read), filling one buffer after the other. At most the first 1024 are used.
    ///
    /// # Cancel safety
    /// As [`read`](Connection::read).
    ///
    /// # Errors
    /// As [`read`](Connection::read).
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_recvmsg(3)`.
    pub async fn read_vectored<T: IoBufMut>(&self, mut bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
        if room_of_all(&bufs) == 0 {
            return (Err(Errno::INVAL.into()), bufs);
        }
        let copied = self.receive_turn_or(|inbox| {
            let mut copied = 0;
            for buf in bufs.iter_mut().take(BUFFERS_MAX) {
                let room = buf.bytes_room();
                // SAFETY: `copy_to` writes initialized bytes, and returns their number.
                let count = unsafe { fill_with(buf, |room| inbox.copy_to(room, false)) };
                copied += count;
                if count < room {
                    break;
                }
            }
            copied
        });
        let permit = match copied.await {
            Ok(permit) => permit,
            Err(result) => return (result, bufs),
        };
        let recv = SocketRecvVectored::new(self.fd().clone(), bufs, 0);
        let keep = |inner: &Inner, (result, bufs): BufResult<usize, Vec<T>>| {
            let mut left = result.unwrap_or(0);
            for buf in bufs {
                // The length of an initially empty buffer is the number of bytes that it received.
                let count = left.min(buf.bytes_len());
                inner.keep(&buf.as_bytes()[..count]);
                left -= count;
            }
        };
        self.driver().start(WithPermit::new(recv, permit, keep)).await
    }

    /// As [`read`](Connection::read), with the control messages that came with the bytes, for which there are
    /// `control_bytes` bytes of room.
    ///
    /// All other methods that receive close the descriptors that come with their bytes.
    ///
    /// # Cancel safety
    /// As [`read`](Connection::read); no descriptor is lost, either.
    ///
    /// # Errors
    /// As [`read`](Connection::read).
    ///
    /// # Kernel
    /// As [`Handle::recv_message`](crate::Handle::recv_message).
    pub async fn recv_message<T: IoBufMut>(
        &self,
        mut buf: T,
        control_bytes: usize,
    ) -> BufResult<(usize, ReceivedControl), T> {
        if buf.bytes_room() == 0 {
            return (Err(Errno::INVAL.into()), buf);
        }
        let mut control = ReceivedControl::default();
        let copied = self.receive_turn_or(|inbox| {
            control = inbox.take_control();
            // SAFETY: `copy_to` writes initialized bytes, and returns their number.
            unsafe { fill_with(&mut buf, |room| inbox.copy_to(room, false)) }
        });
        let permit = match copied.await {
            Ok(permit) => permit,
            Err(result) => return (result.map(|count| (count, control)), buf),
        };
        let recv = RecvMessage::new(self.driver(), self.fd(), buf, control_bytes, 0);
        let keep = |inner: &Inner, (result, buf): BufResult<(_, _), T>| {
            let Ok((received, control)): io::Result<(Received, _)> = result else { return };
            inner.keep(&buf.as_bytes()[..received.len]);
            inner.inbox.keep_control(control);
        };
        let (result, buf) = self.driver().start(WithPermit::new(recv, permit, keep)).await;
        (result.map(|(received, control)| (received.len, control)), buf)
    }

    async fn receive<T: IoBufMut>(&self, mut buf: T, flags: u32) -> BufResult<usize, T> {
        if buf.bytes_room() == 0 {
            return (Err(Errno::INVAL.into()), buf);
        }
        let is_peek = flags & PEEK != 0;
        // SAFETY: `copy_to` writes initialized bytes, and returns their number.
        let copy =
            |inbox: &Inbox| unsafe { fill_with(&mut buf, |room| inbox.copy_to(room, is_peek)) };
        let copied = self.receive_turn_or(copy);
        let permit = match copied.await {
            Ok(permit) => permit,
            Err(result) => return (result, buf),
        };
        self.receive_alone(buf, flags, permit).await
    }

    /// Makes one receive of the data that the kernel has. Bytes that come for a dropped future stay here.
    async fn receive_alone<T: IoBufMut>(
        &self,
        buf: T,
        flags: u32,
        permit: Permit<Inner>,
    ) -> BufResult<usize, T> {
        let recv = SocketRecv::new(self.fd().clone(), buf, flags);
        let is_peek = flags & PEEK != 0;
        let keep = move |inner: &Inner, (result, buf): BufResult<usize, T>| {
            if !is_peek {
                inner.keep(&buf.as_bytes()[..result.unwrap_or(0)]);
            }
        };
        self.driver().start(WithPermit::new(recv, permit, keep)).await
    }

    async fn receive_permit(&self) -> Permit<Inner> {
        Permit::take(self.inner(), |inner| &inner.receives).await
    }

    /// Returns the permit if no earlier bytes are left. Otherwise returns the number of those that `take`
    /// took, or the end of the stream.
    async fn receive_turn_or(
        &self,
        take: impl FnOnce(&Inbox) -> usize,
    ) -> Result<Permit<Inner>, io::Result<usize>> {
        let inbox = &self.inner().inbox;
        let permit = self.receive_permit().await;
        // Bytes of the receive in flight come before those that the kernel still has.
        poll_fn(|cx| inbox.poll_ready(cx)).await;
        match take(inbox) {
            0 => {}
            count => return Err(Ok(count)),
        }
        match inbox.take_end() {
            Some(end) => Err(end.map(|()| 0)),
            None => Ok(permit),
        }
    }

    /// Receives some bytes, as soon as there are any, in memory of the driver. The kernel picks the memory
    /// when bytes have come, so a waiting connection holds none.
    ///
    /// From the first call on the kernel receives ahead, up to the connection's limit of 256 KiB or 32
    /// pieces. Then the peer has to wait.
    ///
    /// Resolves to at least one byte, or to none if the peer sends no more.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`read`](Connection::read).
    ///
    /// # Examples
    /// See [`Connection`](Connection#examples).
    ///
    /// # Kernel
    /// 6.0; before that as [`read`](Connection::read). Source: `io_uring_prep_recv_multishot(3)`.
    pub async fn recv(&self) -> io::Result<RecvBuf> {
        let inbox = &self.inner().inbox;
        let mut permit = Permit::try_take(self.inner(), |inner| &inner.receives);
        if permit.is_none() {
            permit = Some(self.receive_permit().await);
        }
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
            if !inbox.multishot.is_armed() && (inbox.multishot.is_single() || !self.arm()) {
                self.driver().poll(self.fd(), PollEvents::READABLE).await?;
                let permit = permit.take().expect("not given away before");
                let room = inbox.size().bytes() as usize;
                let (result, mut buf) =
                    self.receive_alone(Vec::with_capacity(room), 0, permit).await;
                buf.truncate(result?);
                inbox.is_size_wrong(buf.len(), buf.len() >= room);
                return Ok(RecvBuf::owned(buf));
            }
            poll_fn(|cx| inbox.poll_ready(cx)).await;
        }
    }

    /// Receives the bytes that have already come, by a plain call, without waiting.
    ///
    /// Returns the number of bytes; 0 means that the peer sends no more, or a `buf` without room.
    ///
    /// # Errors
    /// `EAGAIN`: nothing has come, or another receive is in flight; wait for that with
    /// [`receives_settled`](Self::receives_settled). Otherwise as [`read`](Connection::read), and `EINTR`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use std::io::{ErrorKind, IoSlice};
    ///
    /// use sakia_driver::SocketType;
    ///
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// let (near, far) = driver.socket_pair(SocketType::STREAM)?;
    /// let (near, far) = (driver.connection(near), driver.connection(far));
    /// let mut buf = [0; 100];
    /// assert_eq!(far.try_recv(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
    /// near.try_send(&[IoSlice::new(b"hel"), IoSlice::new(b"lo")])?;
    /// assert_eq!((far.try_recv(&mut buf)?, &buf[..5]), (5, &b"hello"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let inbox = &self.inner().inbox;
        if self.inner().receives.is_busy() {
            return Err(Errno::AGAIN.into());
        }
        let count = inbox.copy_out(buf);
        if count > 0 {
            return Ok(count);
        }
        if let Some(end) = inbox.take_end() {
            return end.map(|()| 0);
        }
        if self.is_receiving() {
            return Err(Errno::AGAIN.into());
        }
        let calls = &self.driver().shared.calls;
        // SAFETY: the connection keeps the descriptor open.
        let count = unsafe { calls.try_recv(self.fd().raw(), buf) }?;
        Ok(count.min(buf.len()))
    }

    /// Returns whether a receive is in flight, possibly one that receives ahead or that of a dropped future.
    pub fn is_receiving(&self) -> bool {
        self.inner().receives.is_busy() || self.inner().inbox.multishot.is_armed()
    }

    /// Waits until no receive is in flight. Bytes that have come by then stay for the next receive.
    pub async fn receives_settled(&self) {
        let _permit = self.receive_permit().await;
        let multishot = &self.inner().inbox.multishot;
        if multishot.is_armed() {
            multishot.pause(self.driver());
            poll_fn(|cx| multishot.poll_ready(false, cx)).await;
        }
    }

    /// Ends the multishot receive that [`recv`](Connection::recv) has started: the kernel no longer receives
    /// ahead. Resolves to the bytes that came and were not taken.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: bytes that came stay for the next receive.
    ///
    /// # Errors
    /// As [`read`](Connection::read), if the stream has failed. The end of the stream is no error: the next
    /// receive reports it.
    pub async fn stop_receiving(&self) -> io::Result<Vec<u8>> {
        let inbox = &self.inner().inbox;
        self.receives_settled().await;
        let mut ahead = Vec::new();
        while let Some(buf) = inbox.pop() {
            ahead.extend_from_slice(&buf);
        }
        inbox.take_end().unwrap_or(Ok(()))?;
        Ok(ahead)
    }

    /// Starts the multishot receive. Returns false if it cannot be started.
    fn arm(&self) -> bool {
        self.driver().check(self.fd());
        let mut core = self.driver().shared.core.borrow_mut();
        let mode = core.stream_mode();
        let other = (mode != Streams::Queue).then_some(Streams::Queue);
        let inbox = &self.inner().inbox;
        let mut offers = [Some(mode), other].into_iter().flatten().flat_map(|mode| {
            // If there are no more buffers of the best size, a smaller one is better than none.
            let sizes = std::iter::successors(Some(inbox.size()), |size| size.smaller());
            sizes.map(move |size| (size, mode))
        });
        let offered = offers.find_map(|(size, mode)| Some((size, core.offer(size, mode)?)));
        let Some((size, pool)) = offered else { return false };
        let are_calls_plain = core.makes_calls();
        drop(core);
        inbox.sends_now(pool.mode == Streams::Readiness || are_calls_plain);
        let (fd, inner) = (self.fd().clone(), Rc::clone(self.inner()));
        let recv = MultiRecv { fd, inner, pool, size };
        self.inner().inbox.multishot.start(self.driver(), recv);
        true
    }
}

impl Inner {
    /// Keeps bytes that were received for a dropped future.
    fn keep(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.inbox.push(RecvBuf::owned(bytes.to_vec()));
        }
    }
}

/// A multishot receive into buffers of the pool. See [`Connection::recv`].
struct MultiRecv {
    fd: Fd,
    inner: Rc<Inner>,
    pool: Rc<Pool>,
    size: Size,
}

impl MultiRecv {
    fn group(&self) -> u16 {
        self.size.group(self.pool.mode)
    }

    /// Returns the bytes that a completion brought, if any. Empty if it names a buffer that the kernel did
    /// not have.
    fn bytes(&self, completion: Completion) -> Option<RecvBuf> {
        let id = completion.flags.buffer_id()?;
        let len = u32::try_from(completion.res).unwrap_or(0);
        let buf = RecvBuf::pooled(&self.pool, self.size, id, len);
        Some(buf.unwrap_or_else(|| RecvBuf::owned(Vec::new())))
    }
}

// SAFETY: the entry names no memory of the value's own. It names a group of buffers that lie in the pool,
// which the value keeps, and the descriptor, which the value keeps open. `deliver` reaches only the buffer
// that the completion names.
unsafe impl Operation for MultiRecv {
    type Output = ();
    const KIND: OpKind = OpKind::Recv;

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::recv_multishot(self.fd.raw(), self.group(), 0))
    }

    fn call(&mut self) -> Call {
        Call::RecvMany { raw: self.fd.raw(), group: self.group(), flags: 0, message: None }
    }

    fn route(&self, _: &Rules) -> Route {
        if self.pool.mode == Streams::Queue { Route::Queue } else { Route::Readiness }
    }

    fn deliver(&self, completion: Completion) -> Delivered {
        let Some(buf) = self.bytes(completion) else { return Delivered::default() };
        let inbox = &self.inner.inbox;
        let is_wrong =
            self.size == inbox.size() && inbox.is_size_wrong(buf.len(), inbox.ends_full());
        let is_old = self.pool.mode != self.pool.streams.mode.get();
        inbox.push(buf);
        inbox.multishot.deliver(is_wrong || is_old || inbox.is_full())
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let inbox = &self.inner.inbox;
        let (result, waiter) = inbox.multishot.end(completion);
        if let Some(buf) = self.bytes(completion) {
            inbox.push(buf);
        }
        match result {
            Ok(Some(0)) => inbox.end(Ok(())),
            Ok(_) => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => {
                self.pool.grow(self.size);
            }
            // A limit of epoll. The queue has none.
            Err(error)
                if self.pool.mode == Streams::Readiness
                    && matches!(
                        Errno::from_io_error(&error),
                        Some(Errno::NOSPC | Errno::NOMEM)
                    ) =>
            {
                self.pool.streams.mode.set(Streams::Queue);
            }
            Err(error) => inbox.end(Err(error)),
        }
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    fn lose(&self) -> Option<Waker> {
        self.inner.inbox.multishot.lose()
    }

    acts_on!(Waiting, fd);
}
