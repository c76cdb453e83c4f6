//! Receiving datagrams one after the other, so that none is lost.
//!
//! One receive is in flight: a multishot receive into buffers of the pool, or a single one. A buffer filled
//! by a multishot receive begins with a header and rooms for the sender's address and control messages
//! ([`MessageRooms`]). The lengths in the header are the kernel's, and are cut to the rooms. Of the room for
//! control messages, only the part that the kernel reports as written is read: behind it may lie bytes of an
//! earlier datagram or stream, which may look like descriptors.
//!
//! A datagram in this queue owns the descriptors that came with it, even before a caller takes it.
//!
//! A ring's multishot receive does not notice that the socket's receives were shut down, possibly by another
//! process. So a poll ([`EndWatch`]) waits for that beside the receive.
//!
//! Source: `io_uring_prep_recvmsg_multishot(3)`.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::Waker;

use rustix::io::Errno;
use sakia_ring::Sqe;

use super::RecvBuf;
use super::crowd::Crowd;
use super::inbox::{BUFS_MAX, BYTES_MAX};
use super::multishot::Multishot;
use super::permits::{Permit, Permits, WithPermit};
use crate::address::{AddressRoom, SocketAddress};
use crate::buf::BufResult;
use crate::call::{Call, MessageRooms};
use crate::counters::OpKind;
use crate::decide::Streams;
use crate::decide::limits::CONTROL_BYTES_MAX;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::key::Key;
use crate::operation::{Completion, Delivered, Operation};
use crate::ops::{
    CLOSE_ON_EXEC, CONTROL_TRUNCATED, PollEvents, Received, ReceivedControl, RecvMessage,
    TRUNCATED, acts_on,
};
use crate::pool::{Pool, Size};
use crate::sys::{Message, array};

/// Maximum room for a datagram. Only datagrams within the machine may be larger, if the administrator allows
/// sockets that much memory.
const DATAGRAM_BYTES_MAX: usize = 1 << 20;

/// A datagram that was received.
///
/// # Examples
/// See [`DatagramReceiver`](DatagramReceiver#examples).
#[derive(Debug)]
#[non_exhaustive]
pub struct Datagram {
    /// Its bytes, possibly none.
    pub bytes: RecvBuf,
    /// The sender's address: [unnamed](SocketAddress::is_unnamed) if its socket has none.
    pub from: SocketAddress,
    /// Set if it was longer than the room for it, so that the rest is lost.
    pub is_truncated: bool,
    /// The control messages that came with it, if [requested](DatagramOptions::control_bytes). Dropping them
    /// closes the descriptors that were not taken out.
    pub control: ReceivedControl,
}

impl Datagram {
    /// Makes a datagram that was received by other means.
    ///
    /// # Panics
    /// When it has more than 4 GiB.
    pub fn new(
        bytes: Vec<u8>,
        from: SocketAddress,
        is_truncated: bool,
        control: ReceivedControl,
    ) -> Self {
        Self { bytes: RecvBuf::owned(bytes), from, is_truncated, control }
    }

    /// Returns the result of receives once they are shut down.
    fn end() -> Self {
        Self::new(Vec::new(), SocketAddress::UNNAMED, false, ReceivedControl::default())
    }
}

/// The space that a [`DatagramReceiver`] provides for each datagram.
///
/// # Examples
/// See [`DatagramReceiver`](DatagramReceiver#examples).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramOptions {
    /// The length up to which a datagram is not truncated; a longer one may be truncated or not. The
    /// default is the size of an Ethernet packet; 65535 suffices for every datagram of a network, also those
    /// that `UDP_GRO` gathers. At most 1 MiB.
    pub datagram_bytes_max: usize,
    /// Room for control messages, see [`Handle::recv_message`]. 0 by default.
    pub control_bytes: usize,
}

impl Default for DatagramOptions {
    fn default() -> Self {
        Self { datagram_bytes_max: 1500, control_bytes: 0 }
    }
}

/// The datagrams that come to a socket. Dropping it loses those that were received but not taken.
///
/// Several tasks may receive at a time: each datagram goes to one of them.
///
/// # Examples
/// With `run` of [`Driver`](crate::Driver#examples):
/// ```
/// use std::net::UdpSocket;
///
/// use sakia_driver::DatagramOptions;
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
/// let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
/// one.send_to(b"hello", other.local_addr()?)?;
/// let datagrams = driver.datagrams(driver.adopt(other.into()), DatagramOptions::default());
/// let datagram = run(&driver, datagrams.recv())??;
/// assert_eq!(&*datagram.bytes, b"hello");
/// assert_eq!(datagram.from.inet(), Some(one.local_addr()?));
/// # Ok(())
/// # }
/// ```
pub struct DatagramReceiver {
    fd: Fd,
    driver: Handle,
    inner: Rc<Inner>,
    rooms: MessageRooms,
    /// The size of its buffers; `None` if no buffer of the pool is large enough.
    size: Option<Size>,
    /// Bytes of room for each datagram.
    room: usize,
}

/// Datagrams that were received and not taken yet.
#[derive(Default)]
struct Inner {
    receives: Permits,
    datagrams: RefCell<VecDeque<Datagram>>,
    /// The number of bytes in all of them.
    bytes: Cell<usize>,
    /// The reason why a receive has ended, to be reported once.
    error: Cell<Option<io::Error>>,
    /// The multishot receive that brings them.
    multishot: Multishot,
    /// The callers that the multishot receive serves.
    crowd: Crowd,
    /// The poll that waits for the end of receives.
    end_watch: Cell<Option<Key>>,
}

impl fmt::Debug for DatagramReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramReceiver").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl Drop for DatagramReceiver {
    fn drop(&mut self) {
        self.inner.multishot.cancel(&self.driver);
        if let Some(key) = self.inner.end_watch.get() {
            self.driver.shared.cancel_by_key(key);
        }
        self.driver.shared.withdraw(&self.fd);
    }
}

impl Handle {
    /// Returns the datagrams that come to `fd`, a socket on which no receive is in flight.
    ///
    /// # Panics
    /// When the descriptor belongs to another driver.
    ///
    /// # Examples
    /// See [`DatagramReceiver`](crate::DatagramReceiver#examples).
    #[doc(alias = "io_uring_prep_recvmsg_multishot")]
    pub fn datagrams(&self, fd: Fd, options: DatagramOptions) -> DatagramReceiver {
        self.check(&fd);
        let control = options.control_bytes.min(CONTROL_BYTES_MAX) as u32;
        let rooms = MessageRooms { name: AddressRoom::BYTES, control };
        let wanted = options.datagram_bytes_max.clamp(1, DATAGRAM_BYTES_MAX) + rooms.payload_at();
        let size = Size::ALL.into_iter().find(|size| size.bytes() as usize >= wanted);
        let bytes = size.map_or(wanted, |size| size.bytes() as usize);
        let room = bytes - rooms.payload_at();
        DatagramReceiver { fd, driver: self.clone(), inner: Rc::default(), rooms, size, room }
    }
}

impl DatagramReceiver {
    /// Returns the socket.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Receives one datagram, into memory of the driver.
    ///
    /// From the first call on the kernel receives ahead, as long as fewer than 256 KiB and 32 datagrams wait
    /// here. Further ones stay in the queue of the socket.
    ///
    /// # Cancel safety
    /// Dropping the future loses no datagram: one that arrives for it goes to the next call.
    ///
    /// # Errors
    /// As [`Handle::recv_message`]. Once receives are shut down, an empty datagram from an unnamed sender,
    /// see [`receive_singly`](DatagramReceiver::receive_singly). `ECONNREFUSED`: on a connected socket, the
    /// peer's port did not take an earlier datagram. After an error the next call continues.
    /// # Examples
    /// See [`DatagramReceiver`](DatagramReceiver#examples).
    ///
    /// # Kernel
    /// 6.0 to receive several with one entry; before that as [`Handle::recv_message`]. Source:
    /// `io_uring_prep_recvmsg_multishot(3)`.
    pub async fn recv(&self) -> io::Result<Datagram> {
        let inner = &self.inner;
        let multishot = &inner.multishot;
        let _member = inner.crowd.join();
        loop {
            if let Some(earlier) = inner.take() {
                return earlier;
            }
            if self.fd.is_closing() {
                return Err(Errno::CANCELED.into());
            }
            if inner.receives.is_busy() {
                inner.receives.free().await;
                continue;
            }
            if !multishot.is_armed() && (multishot.is_single() || !self.arm()) {
                let permit = Permit::take(inner, |inner| &inner.receives).await;
                return self.receive_alone(permit).await;
            }
            // A driver that has ended gives the operation up at once.
            if multishot.is_armed() {
                inner.crowd.change().await;
            }
        }
    }

    /// Ends the multishot receive, and resolves to the first datagram that it brought and that was not taken.
    /// `None`: there are no more, so the next datagram is in the queue of the socket.
    ///
    /// While a task waits in [`recv`](DatagramReceiver::recv), the multishot receive goes on, and this waits
    /// for a datagram, too.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`recv`](DatagramReceiver::recv).
    pub async fn take_ahead(&self) -> Option<io::Result<Datagram>> {
        self.ahead(Inner::take).await
    }

    /// As [`take_ahead`](DatagramReceiver::take_ahead), but leaves the datagram to the next call: `see` looks
    /// at it, and neither uses the driver nor drops what belongs to it.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`recv`](DatagramReceiver::recv). The error is not left to the next call.
    pub async fn peek_ahead<R>(&self, see: impl Fn(&Datagram) -> R) -> Option<io::Result<R>> {
        self.ahead(|inner| {
            let first = inner.datagrams.borrow().front().map(|first| Ok(see(first)));
            first.or_else(|| inner.error.take().map(Err))
        })
        .await
    }

    async fn ahead<R>(
        &self,
        take: impl Fn(&Inner) -> Option<io::Result<R>>,
    ) -> Option<io::Result<R>> {
        let inner = &self.inner;
        let multishot = &inner.multishot;
        loop {
            if let Some(earlier) = take(inner) {
                return Some(earlier);
            }
            if inner.receives.is_busy() {
                inner.receives.free().await;
                continue;
            }
            // A waiting task may have a future that it does not poll, so this starts the receive that serves
            // all of them.
            let is_wanted = inner.crowd.has_members() && !self.fd.is_closing();
            match (is_wanted, multishot.is_armed()) {
                (false, false) => return None,
                (false, true) => multishot.pause(&self.driver),
                (true, true) => {}
                (true, false) if multishot.is_single() || !self.arm() => return None,
                (true, false) => {}
            }
            // A driver that has ended gives the operation up at once.
            if multishot.is_armed() {
                inner.crowd.change().await;
            }
        }
    }

    /// Takes the first datagram that was received and not taken, without waiting. `None`: there is none. The
    /// multishot receive goes on: unless the receiver [is idle](DatagramReceiver::is_idle), it may bring the
    /// next datagram.
    pub fn try_take_ahead(&self) -> Option<Datagram> {
        self.inner.pop()
    }

    /// Returns whether no call waits, no receive is in flight, and no received datagram is left.
    pub fn is_idle(&self) -> bool {
        let inner = &self.inner;
        let is_busy = inner.receives.is_busy() || inner.multishot.is_armed();
        let error = inner.error.take();
        let has_error = error.is_some();
        inner.error.set(error);
        !is_busy && !has_error && !inner.crowd.has_members() && inner.datagrams.borrow().is_empty()
    }

    /// Makes each later call receive one datagram only, without a multishot receive. That happens anyway once
    /// the socket's receives are shut down, here or by another process.
    pub fn receive_singly(&self) {
        self.inner.receive_singly(&self.driver);
    }

    /// Receives one datagram into memory of its own. If the receiving future is dropped, the datagram stays
    /// here.
    async fn receive_alone(&self, permit: Permit<Inner>) -> io::Result<Datagram> {
        let (buf, control) = (Vec::with_capacity(self.room), self.rooms.control as usize);
        let recv = RecvMessage::new(&self.driver, &self.fd, buf, control, 0);
        let keep = |inner: &Inner, result| match datagram(result) {
            Ok(datagram) => inner.push(datagram),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::CANCELED) => {}
            Err(error) => inner.error.set(Some(error)),
        };
        datagram(self.driver.start(WithPermit::new(recv, permit, keep)).await)
    }

    /// Starts the multishot receive. Returns false if it cannot be started.
    fn arm(&self) -> bool {
        let offered = self.size.and_then(|size| {
            let pool = self.driver.shared.core.borrow_mut().offer(size, Streams::Queue)?;
            Some((size, pool))
        });
        let Some((size, pool)) = offered else { return false };
        let (fd, inner, rooms) = (self.fd.clone(), Rc::clone(&self.inner), self.rooms);
        let message = UnsafeCell::new(Message::EMPTY);
        let recv = MultiRecvMessage { fd, inner, pool, size, rooms, message };
        self.inner.multishot.start(&self.driver, recv);
        self.watch_end();
        true
    }

    /// Starts the poll for the end of receives, unless one is in flight or the backend reports the end
    /// itself.
    fn watch_end(&self) {
        let (inner, shared) = (&self.inner, &self.driver.shared);
        if inner.end_watch.get().is_some() || !shared.core.borrow().takes_entries() {
            return;
        }
        let (fd, driver) = (self.fd.clone(), self.driver.clone());
        let watch = EndWatch { fd, driver, inner: Rc::clone(inner) };
        let key = shared.core.borrow_mut().start_detached(watch);
        inner.end_watch.set(Some(key));
        shared.settle_later();
    }
}

/// Converts the result of a single receive.
fn datagram(result: BufResult<(Received, ReceivedControl), Vec<u8>>) -> io::Result<Datagram> {
    let (result, mut buf) = result;
    let (Received { len, from, is_truncated, .. }, control) = result?;
    buf.truncate(len);
    buf.shrink_to_fit(); // the datagram may be kept for long
    Ok(Datagram::new(buf, from, is_truncated, control))
}

impl Inner {
    fn push(&self, datagram: Datagram) {
        self.bytes.set(self.bytes.get() + datagram.bytes.len());
        self.datagrams.borrow_mut().push_back(datagram);
    }

    fn pop(&self) -> Option<Datagram> {
        let datagram = self.datagrams.borrow_mut().pop_front()?;
        self.bytes.set(self.bytes.get() - datagram.bytes.len());
        Some(datagram)
    }

    /// Takes the first datagram, or the error after the last one.
    fn take(&self) -> Option<io::Result<Datagram>> {
        self.pop().map(Ok).or_else(|| self.error.take().map(Err))
    }

    fn receive_singly(&self, driver: &Handle) {
        self.multishot.give_up();
        if self.multishot.is_armed() {
            self.multishot.pause(driver);
        }
    }

    /// Returns whether further datagrams should stay with the kernel for now.
    fn is_full(&self) -> bool {
        self.bytes.get() >= BYTES_MAX || self.datagrams.borrow().len() >= BUFS_MAX
    }
}

/// A multishot receive into buffers of the pool. See [`DatagramReceiver::recv`].
struct MultiRecvMessage {
    fd: Fd,
    inner: Rc<Inner>,
    pool: Rc<Pool>,
    size: Size,
    rooms: MessageRooms,
    /// Tells the kernel the rooms; filled when the entry is made. The kernel has it as long as it has the
    /// entry, so nothing else accesses it.
    message: UnsafeCell<Message>,
}

impl MultiRecvMessage {
    /// Returns the datagram that a completion brought. `None` if the completion makes no sense.
    fn datagram(&self, completion: Completion) -> Option<Datagram> {
        let id = completion.flags.buffer_id()?;
        let len = u32::try_from(completion.res).unwrap_or(0);
        let mut bytes = RecvBuf::pooled(&self.pool, self.size, id, len)?;
        let rooms = self.rooms;
        if bytes.len() < rooms.payload_at() {
            return None;
        }
        let field = |at| u32::from_ne_bytes(array(&bytes, at));
        let [name_len, control_len, len, flags] = [0, 4, 8, 12].map(field);
        let name = &bytes[MessageRooms::NAME_AT..][..name_len.min(rooms.name) as usize];
        let from = SocketAddress::from_bytes(name);
        let control = &bytes[rooms.control_at()..][..control_len.min(rooms.control) as usize];
        // SAFETY: the completion says that a receive of this operation succeeded, and the header says that
        // the kernel has written this number of bytes of control messages for it. The buffer was the kernel's
        // until now and is the `RecvBuf`'s from now on, so this happens once for each completion.
        let control = unsafe {
            ReceivedControl::copied(control, flags & CONTROL_TRUNCATED != 0, self.fd.owner())
        };
        bytes.advance(rooms.payload_at());
        bytes.truncate(len as usize);
        Some(Datagram { bytes, from, is_truncated: flags & TRUNCATED != 0, control })
    }
}

// SAFETY: the entry names the message, which is part of the value, has no pointers, and which nothing else
// accesses while the value stays in place; a group of buffers that lie in the pool, which the value keeps;
// and the descriptor, which the value keeps open. `deliver` reaches only the buffer that the completion
// names.
unsafe impl Operation for MultiRecvMessage {
    type Output = ();
    const KIND: OpKind = OpKind::Recv;

    fn entry(&mut self) -> Option<Sqe> {
        let MessageRooms { name, control } = self.rooms;
        let control_len = control as usize;
        *self.message.get_mut() = Message { name_len: name, control_len, ..Message::EMPTY };
        let (raw, group) = (self.fd.raw(), self.size.group(Streams::Queue));
        Some(Sqe::recvmsg_multishot(raw, self.message.get(), group, CLOSE_ON_EXEC))
    }

    fn call(&mut self) -> Call {
        let (raw, group, message) =
            (self.fd.raw(), self.size.group(Streams::Queue), Some(self.rooms));
        Call::RecvMany { raw, group, flags: CLOSE_ON_EXEC, message }
    }

    fn deliver(&self, completion: Completion) -> Delivered {
        let Some(datagram) = self.datagram(completion) else { return Delivered::default() };
        self.inner.push(datagram);
        let delivered = self.inner.multishot.deliver(self.inner.is_full());
        Delivered { waker: self.inner.crowd.tell(), ..delivered }
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let (result, _) = self.inner.multishot.end(completion);
        // The last completion may bring a datagram, too: an empty one.
        let datagram = self.datagram(completion);
        match result {
            Ok(Some(0)) if datagram.is_none() => self.inner.push(Datagram::end()),
            Ok(_) => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => {
                self.pool.grow(self.size);
            }
            Err(error) => self.inner.error.set(Some(error)),
        }
        if let Some(datagram) = datagram {
            self.inner.push(datagram);
        }
        if let Some(waiting) = self.inner.crowd.tell() {
            waiting.wake();
        }
    }

    fn lose(&self) -> Option<Waker> {
        self.inner.multishot.lose();
        self.inner.crowd.tell()
    }

    acts_on!(Waiting, fd);
}

/// Waits for the end of a socket's receives, and then makes each later receive a single one, which reports
/// the end.
struct EndWatch {
    fd: Fd,
    driver: Handle,
    inner: Rc<Inner>,
}

// SAFETY: entry and call name no memory, and a descriptor that the value keeps open.
unsafe impl Operation for EndWatch {
    type Output = ();
    const KIND: OpKind = OpKind::Poll;

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::poll_add(self.fd.raw(), PollEvents::READ_HANG_UP.0))
    }

    fn call(&mut self) -> Call {
        Call::Poll { raw: self.fd.raw(), events: PollEvents::READ_HANG_UP.0 }
    }

    fn complete(self, completion: Completion) -> Self::Output {
        self.inner.end_watch.set(None);
        // An error of the socket also ends the poll; the next multishot receive starts another.
        let events = completion.result().map(PollEvents);
        if events.is_ok_and(|events| events.contains(PollEvents::READ_HANG_UP)) {
            self.inner.receive_singly(&self.driver);
        }
    }

    acts_on!(Waiting, fd);
}
