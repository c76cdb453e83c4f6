//! Several buffers at once, on a connection.

use sakia_ring::{IoVec, Sqe};

use super::{NO_SIGNAL, RECV_FLAGS, SEND_FLAGS};
use crate::buf::{BufResult, IoBuf, IoBufMut, initialize};
use crate::call::{Call, SocketCall, Verb, word};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};
use crate::ops::vectored::BUFFERS_MAX;
use crate::ops::{note_all_filled, room_of_all};
use crate::sys::Message;

/// Several buffers with what describes them to the kernel.
#[derive(Debug)]
struct Parts<T> {
    fd: Fd,
    bufs: Vec<T>,
    /// `MSG_*`.
    flags: u32,
    /// Points to the buffers' bytes; filled when the entry is made.
    vector: Vec<IoVec>,
    /// Points to the vector; filled when the entry is made.
    message: Message,
}

impl<T: IoBuf> Parts<T> {
    fn new(fd: Fd, bufs: Vec<T>, flags: u32) -> Self {
        let vector = Vec::with_capacity(bufs.len().min(BUFFERS_MAX));
        Self { fd, bufs, flags, vector, message: Message::EMPTY }
    }

    /// Describes the buffers, and returns where the message is.
    fn describe(&mut self, part: impl Fn(&mut T) -> IoVec) -> *mut Message {
        self.vector.clear();
        self.vector.extend(self.bufs.iter_mut().take(BUFFERS_MAX).map(part));
        self.message = Message::of_parts(&mut self.vector);
        &raw mut self.message
    }
}

/// See [`Handle::send_vectored`].
#[derive(Debug)]
pub struct SocketSendVectored<T>(Parts<T>);

/// See [`Handle::recv_vectored`].
#[derive(Debug)]
pub struct SocketRecvVectored<T>(Parts<T>);

impl Handle {
    /// As [`send`](Handle::send), taking one buffer after the other. At most the first 1024 are used.
    ///
    /// # Errors
    /// As [`send`](Handle::send).
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

    /// As [`recv`](Handle::recv), filling one buffer after the other, each `Vec` that is empty up to its
    /// capacity. At most the first 1024 are used.
    ///
    /// # Errors
    /// - `EINVAL`: none of these buffers has room. Otherwise as [`recv`](Handle::recv).
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
        Self(Parts::new(fd, bufs, flags))
    }

    fn message(&mut self) -> *const Message {
        let part = |buf: &mut T| IoVec { base: buf.stable_ptr().cast_mut(), len: buf.bytes_len() };
        self.0.describe(part)
    }
}

impl<T: IoBufMut> SocketRecvVectored<T> {
    pub(crate) fn new(fd: Fd, bufs: Vec<T>, flags: u32) -> Self {
        Self(Parts::new(fd, bufs, flags))
    }

    fn message(&mut self) -> *mut Message {
        let part = |buf: &mut T| IoVec { base: buf.stable_mut_ptr(), len: buf.bytes_room() };
        self.0.describe(part)
    }
}

// SAFETY: the entry names the message, which is part of the value. That names the vector, whose memory stays
// put when the value moves, and the vector the buffers' bytes, which the value owns and which stay put, too
// (the promise of `IoBuf`). The descriptor the value keeps open.
unsafe impl<T: IoBuf> Operation for SocketSendVectored<T> {
    type Output = BufResult<usize, Vec<T>>;
    const KIND: OpKind = OpKind::Send;

    fn entry(&mut self) -> Option<Sqe> {
        let message = self.message();
        Some(Sqe::sendmsg(self.0.fd.raw(), message, self.0.flags | NO_SIGNAL))
    }

    fn call(&mut self) -> Call {
        let args = [word(self.message()), 0];
        SocketCall::on(Verb::SendMessage, self.0.fd.raw(), args, self.0.flags | NO_SIGNAL)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let parts = self.0.bufs.iter().take(BUFFERS_MAX);
        let bytes = parts.map(T::bytes_len).fold(0, usize::saturating_add);
        (completion.count(bytes), self.0.bufs)
    }

    acts_on!(Waiting, 0.fd);
}

// SAFETY: as for `SocketSendVectored`, with the promise of `IoBufMut`.
unsafe impl<T: IoBufMut> Operation for SocketRecvVectored<T> {
    type Output = BufResult<usize, Vec<T>>;
    const KIND: OpKind = OpKind::Recv;

    fn entry(&mut self) -> Option<Sqe> {
        let message = self.message();
        Some(Sqe::recvmsg(self.0.fd.raw(), message, self.0.flags))
    }

    fn call(&mut self) -> Call {
        let args = [word(self.message()), 0];
        SocketCall::on(Verb::RecvMessage, self.0.fd.raw(), args, self.0.flags)
    }

    fn has_room(&self) -> bool {
        room_of_all(&self.0.bufs) > 0
    }

    fn initialize(&mut self) {
        self.0.bufs.iter_mut().take(BUFFERS_MAX).for_each(initialize);
    }

    fn complete(mut self, completion: Completion) -> Self::Output {
        let room = room_of_all(&self.0.bufs);
        (note_all_filled(completion, &mut self.0.bufs, room), self.0.bufs)
    }

    acts_on!(Waiting, 0.fd);
}
