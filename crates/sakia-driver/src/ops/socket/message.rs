//! Messages: datagrams to and from an address, and control messages.

use std::ptr;

use sakia_ring::IoVec;

use super::control::{ControlBytes, ControlMessages, ReceivedControl};
use super::{NO_SIGNAL, RECV_FLAGS, SEND_FLAGS};
use crate::address::{AddressRoom, SocketAddress};
use crate::buf::{BufResult, IoBuf, IoBufMut, initialize};
use crate::counters::OpKind;
use crate::decide::limits::CONTROL_BYTES_MAX;
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};
use crate::ops::{filled, transfer_len};
use crate::sys::Message;

/// `MSG_TRUNC`: the datagram was longer than the buffer. As a request: report its whole length.
pub(crate) const TRUNCATED: u32 = rustix::net::ReturnFlags::TRUNC.bits();
/// `MSG_CTRUNC`: there was no room for some control message.
pub(crate) const CONTROL_TRUNCATED: u32 = rustix::net::ReturnFlags::CTRUNC.bits();
/// `MSG_CMSG_CLOEXEC`: child programs do not inherit received descriptors.
pub(crate) const CLOSE_ON_EXEC: u32 = rustix::net::RecvFlags::CMSG_CLOEXEC.bits();
/// The flags of receives of messages.
const MESSAGE_FLAGS: u32 = RECV_FLAGS | TRUNCATED;

/// See [`Handle::send_to`].
#[derive(Debug)]
pub struct SendTo<T> {
    fd: Fd,
    buf: T,
    address: SocketAddress,
    /// `MSG_*`.
    flags: u32,
    /// They point into the value and to the buffer, and are filled when the entry is made.
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
    /// They point into the value and to the buffer, and are filled when the entry is made.
    vector: IoVec,
    message: Message,
}

/// See [`Handle::send_message`].
#[derive(Debug)]
pub struct SendMessage<T> {
    send: SendTo<T>,
    /// In the kernel's form.
    control: ControlBytes,
    /// The descriptors that the control messages name.
    #[expect(dead_code, reason = "kept open")]
    descriptors: Vec<Fd>,
}

/// See [`Handle::recv_message`].
#[derive(Debug)]
pub struct RecvMessage<T> {
    recv: RecvFrom<T>,
    /// Zeros, until the kernel fills them.
    control: ControlBytes,
}

/// A datagram that was received.
///
/// # Examples
/// See [`Handle::send_to`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The number of bytes filled in the buffer.
    pub len: usize,
    /// The sender. On a stream the kernel may not report it: then it is
    /// [unnamed](SocketAddress::is_unnamed).
    pub from: SocketAddress,
    /// It was longer than the buffer, and the rest is lost.
    pub is_truncated: bool,
    /// It had control messages, for example descriptors, for which this receive had no room; they are lost.
    pub is_control_truncated: bool,
    /// Its length, if requested with `MSG_TRUNC`; otherwise as `len`.
    pub datagram_len: usize,
}

impl Handle {
    /// Sends `buf.bytes_len()` bytes as one datagram to `address`, and waits until there is room for it.
    /// `flags` and the ownership of `buf` are as in [`send`](Handle::send).
    ///
    /// Resolves to the number of bytes sent, and the buffer.
    ///
    /// # Errors
    /// - `EMSGSIZE`: too long for a datagram. `EISCONN`, `EOPNOTSUPP`: a stream within the machine; a
    ///   network stream sends to its peer whatever the address.
    /// - `ECONNREFUSED`, `ENOENT`: there is no receiver, as far as the machine knows.
    /// - `ENETUNREACH`, `EHOSTUNREACH`: no route. Otherwise as [`send`](Handle::send).
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use std::net::SocketAddr;
    ///
    /// use sakia_driver::{Domain, SocketType};
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
    /// let socket = || run(&driver, driver.socket(Domain::INET, SocketType::DATAGRAM, 0))?;
    /// let (one, other) = (socket()?, socket()?);
    /// let any = SocketAddr::from(([127, 0, 0, 1], 0));
    /// for socket in [&one, &other] {
    ///     run(&driver, driver.bind(socket, &any.into()))??;
    /// }
    /// let to = driver.local_address(&other)?;
    /// run(&driver, driver.send_to(&one, "hello", &to, 0))?.0?;
    /// let (result, buf) = run(&driver, driver.recv_from(&other, vec![0; 1500], 0))?;
    /// let received = result?;
    /// assert_eq!(&buf[..received.len], b"hello");
    /// assert_eq!(received.from, driver.local_address(&one)?);
    /// # Ok(())
    /// # }
    /// ```
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
        self.start_flagged(SendTo::new(self.held(fd), buf, *address, flags), flags, SEND_FLAGS)
    }

    /// Receives one datagram of up to `buf.len()` bytes (an empty `Vec`: up to its capacity), and waits
    /// until there is one. `flags` and the ownership of `buf` are as in [`recv`](Handle::recv). With
    /// `MSG_TRUNC` as well, it reports the length of the datagram even if it is longer than `buf`, whose
    /// capacity is zeroed first. On a stream, `MSG_TRUNC` discards bytes.
    ///
    /// # Errors
    /// As [`recv`](Handle::recv).
    ///
    /// # Examples
    /// See [`Handle::send_to`].
    ///
    /// # Kernel
    /// 5.3. Source: `io_uring_prep_recvmsg(3)`.
    #[doc(alias = "recvmsg")]
    #[doc(alias = "recvfrom")]
    pub fn recv_from<T: IoBufMut>(&self, fd: &Fd, buf: T, flags: u32) -> Op<RecvFrom<T>> {
        self.start_flagged(RecvFrom::new(self.held(fd), buf, flags), flags, MESSAGE_FLAGS)
    }

    /// Sends `buf.bytes_len()` bytes with control messages, and waits until there is room. They go to
    /// `address`, or with [`SocketAddress::UNNAMED`] to the socket's peer. `flags` and the ownership of
    /// `buf` are as in [`send`](Handle::send).
    ///
    /// Descriptors in `control` stay open until the operation has ended, and closing one waits for that. On
    /// a stream they are sent with the first of the bytes, so an empty message carries none.
    ///
    /// Resolves to the number of bytes sent, and the buffer.
    ///
    /// # Errors
    /// - `EINVAL`: a control message that the socket does not support, or more than 253 descriptors.
    /// - `ETOOMANYREFS`: too many descriptors of this user are in transit. `ENOBUFS`: too many messages.
    /// - Otherwise as [`send_to`](Handle::send_to).
    ///
    /// # Panics
    /// When a descriptor belongs to another driver.
    ///
    /// # Examples
    /// A descriptor to another process, here to ourselves:
    /// ```
    /// use sakia_driver::{ControlMessage, ControlMessages, SocketAddress, SocketType};
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
    /// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// let control = ControlMessages::new().descriptor(&file);
    /// let peer = SocketAddress::UNNAMED;
    /// run(&driver, driver.send_message(&near, "a file", &peer, control, 0))?.0?;
    /// let room = ControlMessage::space(4);
    /// let (result, _) = run(&driver, driver.recv_message(&far, vec![0; 100], room, 0))?;
    /// let (_, control) = result?;
    /// let (result, buf) = run(&driver, driver.read(&control.descriptors[0], vec![0; 9], 0))?;
    /// assert_eq!((result?, &buf[..]), (9, &b"[package]"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.3. A ring takes control messages since 5.10 on sockets of the internet and since 5.12 on others;
    /// before, it answers `EINVAL`. Source: `io_uring_prep_sendmsg(3)`, `cmsg(3)`, `unix(7)`.
    #[doc(alias = "sendmsg")]
    pub fn send_message<T: IoBuf>(
        &self,
        fd: &Fd,
        buf: T,
        address: &SocketAddress,
        control: ControlMessages,
        flags: u32,
    ) -> Op<SendMessage<T>> {
        let send = SendMessage::new(self, fd, buf, *address, control, flags);
        self.start_flagged(send, flags, SEND_FLAGS)
    }

    /// Receives up to `buf.len()` bytes (an empty `Vec`: up to its capacity) and their control messages, for
    /// which there are `control_bytes` bytes of room, at most 64 KiB; up to 128 bytes need no allocation.
    /// [`ControlMessage::space`](crate::ControlMessage::space) returns the room for a message. `flags` and
    /// the ownership of `buf` are as in [`recv_from`](Handle::recv_from).
    ///
    /// Received descriptors belong to the driver. They are closed if the result or the handle is dropped. A
    /// peek returns copies of them. On a stream a receive ends after the bytes sent with descriptors.
    ///
    /// # Errors
    /// As [`recv`](Handle::recv). Descriptors that do not fit are no error, see
    /// [`is_truncated`](ReceivedControl::is_truncated).
    ///
    /// # Examples
    /// See [`Handle::send_message`].
    ///
    /// # Kernel
    /// 5.3. A ring takes room for control messages since 5.10 on sockets of the internet and since 5.12 on
    /// others; before, it answers `EINVAL`. Source: `io_uring_prep_recvmsg(3)`, `cmsg(3)`, `unix(7)`.
    #[doc(alias = "recvmsg")]
    pub fn recv_message<T: IoBufMut>(
        &self,
        fd: &Fd,
        buf: T,
        control_bytes: usize,
        flags: u32,
    ) -> Op<RecvMessage<T>> {
        let recv = RecvMessage::new(self, fd, buf, control_bytes, flags);
        self.start_flagged(recv, flags, MESSAGE_FLAGS)
    }
}

impl<T: IoBuf> SendTo<T> {
    fn new(fd: Fd, buf: T, address: SocketAddress, flags: u32) -> Self {
        Self { fd, buf, address, flags, vector: IoVec::EMPTY, message: Message::EMPTY }
    }

    /// Fills in the message for the current addresses.
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
    fn new(fd: Fd, mut buf: T, flags: u32) -> Self {
        if flags & TRUNCATED != 0 {
            // On a network stream with `MSG_TRUNC` the kernel writes nothing, but still counts bytes.
            initialize(&mut buf);
        }
        let (from, vector, message) = (AddressRoom::new(), IoVec::EMPTY, Message::EMPTY);
        Self { fd, buf, from, flags, vector, message }
    }

    /// Fills in the message for the current addresses of the room.
    fn message(&mut self) -> *mut Message {
        let base = self.buf.stable_mut_ptr();
        self.vector = IoVec { base, len: transfer_len(self.buf.bytes_room()) as usize };
        let (name, _) = self.from.pointers();
        self.message = Message::new((name, AddressRoom::BYTES), &raw mut self.vector);
        &raw mut self.message
    }
}

// SAFETY: the entry names the message, which is part of the value. The message names the address and the
// vector, which are parts, too, and the vector names the buffer's bytes, which the value owns and which do
// not move (the promise of `IoBuf`). The value keeps the descriptor open.
unsafe impl<T: IoBuf> Operation for SendTo<T> {
    type Output = BufResult<usize, T>;
    const KIND: OpKind = OpKind::Send;

    passes_message!(sendmsg, SendMessage, |it| it.fd, it.flags | NO_SIGNAL);

    fn complete(self, completion: Completion) -> Self::Output {
        (completion.count(self.buf.bytes_len()), self.buf)
    }

    acts_on!(Waiting, fd);
}

// SAFETY: as for `SendTo`, with room for an address in place of one.
unsafe impl<T: IoBufMut> Operation for RecvFrom<T> {
    type Output = BufResult<Received, T>;
    const KIND: OpKind = OpKind::Recv;

    passes_message!(recvmsg, RecvMessage, |it| it.fd, it.flags);

    fn has_room(&self) -> bool {
        self.buf.bytes_room() > 0
    }

    fn initialize(&mut self) {
        initialize(&mut self.buf);
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let room = transfer_len(self.buf.bytes_room());
        let told = completion.result().map_or(0, |told| told as usize);
        let (result, buf) = filled(completion, self.buf, room);
        let received = result.map(|len| Received {
            len,
            datagram_len: if self.flags & TRUNCATED == 0 { len } else { told },
            from: self.from.address_of(self.message.name_len),
            is_truncated: self.message.flags & TRUNCATED != 0,
            is_control_truncated: self.message.flags & CONTROL_TRUNCATED != 0,
        });
        (received, buf)
    }

    acts_on!(Waiting, fd);
}

impl<T: IoBuf> SendMessage<T> {
    /// # Panics
    /// When a descriptor belongs to another driver.
    pub(crate) fn new(
        driver: &Handle,
        fd: &Fd,
        buf: T,
        address: SocketAddress,
        control: ControlMessages,
        flags: u32,
    ) -> Self {
        control.descriptors().iter().for_each(|fd| driver.check(fd));
        let (control, descriptors) = control.encode();
        Self { send: SendTo::new(driver.held(fd), buf, address, flags), control, descriptors }
    }

    /// Fills in the message for the current addresses.
    fn message(&mut self) -> *const Message {
        self.send.message();
        let message = &mut self.send.message;
        if self.send.address.is_unnamed() {
            (message.name, message.name_len) = (ptr::null_mut(), 0);
        }
        (message.control, message.control_len) = self.control.place();
        message
    }

    fn flags(&self) -> u32 {
        self.send.flags | NO_SIGNAL
    }
}

impl<T: IoBufMut> RecvMessage<T> {
    /// # Panics
    /// When the descriptor belongs to another driver.
    pub(crate) fn new(driver: &Handle, fd: &Fd, buf: T, control_bytes: usize, flags: u32) -> Self {
        let recv = RecvFrom::new(driver.held(fd), buf, flags);
        let control = ControlBytes::zeros(control_bytes.min(CONTROL_BYTES_MAX));
        Self { recv, control }
    }

    /// Fills in the message for the current addresses of the room.
    fn message(&mut self) -> *mut Message {
        self.recv.message();
        let message = &mut self.recv.message;
        (message.control, message.control_len) = self.control.place();
        message
    }

    fn flags(&self) -> u32 {
        self.recv.flags | CLOSE_ON_EXEC
    }
}

// SAFETY: as for `SendTo`. The message also names the control messages, which the value owns, as a part or on
// the heap. The value keeps open the descriptors that these name by number.
unsafe impl<T: IoBuf> Operation for SendMessage<T> {
    type Output = BufResult<usize, T>;
    const KIND: OpKind = OpKind::Send;

    passes_message!(sendmsg, SendMessage, |it| it.send.fd, it.flags());

    fn complete(self, completion: Completion) -> Self::Output {
        self.send.complete(completion)
    }

    acts_on!(Waiting, send.fd);
}

// SAFETY: as for `RecvFrom`. The message also names the room for control messages, which the value owns, as
// a part or on the heap.
unsafe impl<T: IoBufMut> Operation for RecvMessage<T> {
    type Output = BufResult<(Received, ReceivedControl), T>;
    const KIND: OpKind = OpKind::Recv;

    passes_message!(recvmsg, RecvMessage, |it| it.recv.fd, it.flags());

    fn has_room(&self) -> bool {
        self.recv.has_room()
    }

    fn initialize(&mut self) {
        self.recv.initialize();
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let Self { recv, control } = self;
        // This comes first: the buffer's own code may panic, which then closes the descriptors.
        let control = if completion.res >= 0 {
            let is_truncated = recv.message.flags & CONTROL_TRUNCATED != 0;
            // SAFETY: `recv_message` filled the room with zeros. Only the entry or the call of this value
            // names it, which has succeeded, and `complete` takes the value.
            unsafe { ReceivedControl::of(control, is_truncated, recv.fd.owner()) }
        } else {
            ReceivedControl::default()
        };
        let (result, buf) = recv.complete(completion);
        (result.map(|received| (received, control)), buf)
    }

    fn dispose(self, completion: Completion) {
        drop(self.complete(completion)); // closes what came
    }

    acts_on!(Waiting, recv.fd);
}
