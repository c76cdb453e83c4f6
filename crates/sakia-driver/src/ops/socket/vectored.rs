//! Several buffers at once, on a connection.

use sakia_ring::IoVec;

use super::{NO_SIGNAL, RECV_FLAGS, SEND_FLAGS};
use crate::buf::{BufResult, IoBuf, IoBufMut};
use crate::counters::OpKind;
use crate::decide::{Route, Rules};
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};
use crate::ops::vectored::Parts;
use crate::sys::Message;

/// Several buffers with their description for the kernel.
#[derive(Debug)]
struct Vectored<T> {
    fd: Fd,
    parts: Parts<T>,
    /// `MSG_*`.
    flags: u32,
    /// Points to the parts; filled when the entry is made.
    message: Message,
}

impl<T: IoBuf> Vectored<T> {
    fn new(fd: Fd, bufs: Vec<T>, flags: u32) -> Self {
        Self { fd, parts: Parts::new(bufs), flags, message: Message::EMPTY }
    }

    /// Describes the buffers, and returns the address of the message.
    fn describe(&mut self, parts: impl FnOnce(&mut Parts<T>) -> &mut [IoVec]) -> *mut Message {
        self.message = Message::of_parts(parts(&mut self.parts));
        &raw mut self.message
    }
}

/// See [`Handle::send_vectored`].
#[derive(Debug)]
pub struct SocketSendVectored<T> {
    inner: Vectored<T>,
    /// A plain call comes before the queue.
    is_now: bool,
}

/// See [`Handle::recv_vectored`].
#[derive(Debug)]
pub struct SocketRecvVectored<T>(Vectored<T>);

impl Handle {
    /// Sends as [`send`](Handle::send), taking one buffer after the other. At most the first 1024 are used.
    ///
    /// # Errors
    /// As [`send`](Handle::send).
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
    /// assert_eq!(run(&driver, driver.send_vectored(&near, vec!["head, ", "body"], 0))?.0?, 10);
    /// let bufs = vec![vec![0; 4], vec![0; 100]];
    /// let (result, bufs) = run(&driver, driver.recv_vectored(&far, bufs, 0))?;
    /// assert_eq!((result?, &bufs[0][..], &bufs[1][..6]), (10, &b"head"[..], &b", body"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_sendmsg(3)`.
    #[doc(alias = "sendmsg")]
    pub fn send_vectored<T: IoBuf>(
        &self,
        fd: &Fd,
        bufs: Vec<T>,
        flags: u32,
    ) -> Op<SocketSendVectored<T>> {
        self.start_flagged(SocketSendVectored::new(self.held(fd), bufs, flags), flags, SEND_FLAGS)
    }

    /// Receives as [`recv`](Handle::recv), filling one buffer after the other, each empty `Vec` up to its
    /// capacity. At most the first 1024 are used.
    ///
    /// # Errors
    /// - `EINVAL`: none of these buffers has room. Otherwise as [`recv`](Handle::recv).
    ///
    /// # Examples
    /// See [`Handle::send_vectored`].
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_recvmsg(3)`.
    #[doc(alias = "recvmsg")]
    pub fn recv_vectored<T: IoBufMut>(
        &self,
        fd: &Fd,
        bufs: Vec<T>,
        flags: u32,
    ) -> Op<SocketRecvVectored<T>> {
        self.start_flagged(SocketRecvVectored::new(self.held(fd), bufs, flags), flags, RECV_FLAGS)
    }
}

impl<T: IoBuf> SocketSendVectored<T> {
    pub(crate) fn new(fd: Fd, bufs: Vec<T>, flags: u32) -> Self {
        Self { inner: Vectored::new(fd, bufs, flags), is_now: false }
    }

    /// Returns the same send, tried by a plain call first if `is_now`.
    pub(crate) fn tried_now(self, is_now: bool) -> Self {
        Self { is_now, ..self }
    }

    fn message(&mut self) -> *const Message {
        self.inner.describe(Parts::bytes)
    }
}

impl<T: IoBufMut> SocketRecvVectored<T> {
    pub(crate) fn new(fd: Fd, bufs: Vec<T>, flags: u32) -> Self {
        Self(Vectored::new(fd, bufs, flags))
    }

    fn message(&mut self) -> *mut Message {
        self.0.describe(Parts::room)
    }
}

// SAFETY: the entry names the message, which is part of the value. The message names the vector, whose
// memory does not move with the value, and the vector names the buffers' bytes, which the value owns and
// which do not move either (the promise of `IoBuf`). The value keeps the descriptor open.
unsafe impl<T: IoBuf> Operation for SocketSendVectored<T> {
    type Output = BufResult<usize, Vec<T>>;
    const KIND: OpKind = OpKind::Send;

    passes_message!(sendmsg, SendMessage, |it| it.inner.fd, it.inner.flags | NO_SIGNAL);

    fn complete(self, completion: Completion) -> Self::Output {
        let parts = self.inner.parts;
        (completion.count(parts.bytes_len()), parts.into_inner())
    }

    fn route(&self, _: &Rules) -> Route {
        super::send_route(self.is_now)
    }

    acts_on!(Waiting, inner.fd);
}

// SAFETY: as for `SocketSendVectored`, with the promise of `IoBufMut`.
unsafe impl<T: IoBufMut> Operation for SocketRecvVectored<T> {
    type Output = BufResult<usize, Vec<T>>;
    const KIND: OpKind = OpKind::Recv;

    passes_message!(recvmsg, RecvMessage, |it| it.0.fd, it.0.flags);

    fn has_room(&self) -> bool {
        self.0.parts.room_len() > 0
    }

    fn initialize(&mut self) {
        self.0.parts.initialize();
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let room = self.0.parts.room_len();
        self.0.parts.filled(completion, room)
    }

    acts_on!(Waiting, 0.fd);
}
