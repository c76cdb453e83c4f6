//! A socket for datagrams, of whatever family: what [`UdpSocket`](super::UdpSocket) and
//! [`UnixDatagram`](super::UnixDatagram) have in common. They add the names of their addresses.
//!
//! A dropped receive loses nothing: its operation is canceled, and [`Kept`] until it has ended. What it
//! brought all the same, a datagram or an error, goes to the next receive.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketType, sockopt};
use sakia_driver::{
    self as driver, BufResult, ControlMessages, Fd, Handle, IoBuf, IoBufMut, Op, Operation,
    PollEvents, ReceivedControl, RecvFrom, SocketAddress,
};

use super::Address;
use super::listener::release;
use crate::executor::current;
use crate::io::transfer::{may_retry, retrying};

const DONT_WAIT: u32 = RecvFlags::DONTWAIT.bits();
const PEEK: u32 = RecvFlags::PEEK.bits();
const TELL_LENGTH: u32 = RecvFlags::TRUNC.bits();
/// Datagrams that the first batch asks for behind the one that it waits for.
const AHEAD_FIRST: usize = 4;
/// Of so many batches in which datagrams came one at a time, one looks for a second.
const LOOK_AGAIN: u8 = 8;

/// A datagram that was received into a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received<A> {
    /// How many bytes of the buffer it fills.
    pub len: usize,
    /// Its sender.
    pub from: A,
    /// It was longer than the buffer, and the rest is lost.
    pub is_truncated: bool,
    /// How many bytes it had. Only `recv_message` asks for that: of a batch this is `len`, and so it is of a
    /// datagram that came for a dropped receive of another sort.
    pub datagram_len: usize,
}

impl<A: Address> Received<A> {
    /// Takes what the driver tells.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`: a sender of another family.
    pub(super) fn of(received: driver::Received) -> io::Result<Self> {
        let driver::Received { len, from, is_truncated, datagram_len, .. } = received;
        Ok(Self { len, from: A::of(&from)?, is_truncated, datagram_len })
    }
}

/// Returns what a receive without control messages tells.
pub(super) fn len_and_sender<A: Address>(received: driver::Received) -> io::Result<(usize, A)> {
    Ok((received.len, A::of(&received.from)?))
}

/// The methods that receive and tell addresses, of which only the type `SocketAddr` differs.
macro_rules! receivers {
    () => {
        /// As [`recv`](Self::recv). Resolves to the number of bytes and the sender; a socket within the
        /// machine may have no address.
        ///
        /// # Errors
        /// As [`recv`](Self::recv).
        ///
        /// # Kernel
        /// 5.3. Source: `io_uring_prep_recvmsg(3)`.
        pub async fn recv_from<T: IoBufMut>(&self, buf: T) -> BufResult<(usize, SocketAddr), T> {
            let (result, buf) = self.inner.recv_from(buf).await;
            (result.and_then($crate::net::datagram::len_and_sender), buf)
        }

        /// As [`recv`](Self::recv), but leaves the datagram to the next receive.
        ///
        /// # Errors
        /// As [`recv`](Self::recv).
        pub async fn peek<T: IoBufMut>(&self, buf: T) -> BufResult<usize, T> {
            let (result, buf) = self.inner.peek_from(buf).await;
            (result.map(|received| received.len), buf)
        }

        /// As [`recv_from`](Self::recv_from), but leaves the datagram to the next receive.
        ///
        /// # Errors
        /// As [`recv`](Self::recv).
        pub async fn peek_from<T: IoBufMut>(&self, buf: T) -> BufResult<(usize, SocketAddr), T> {
            let (result, buf) = self.inner.peek_from(buf).await;
            (result.and_then($crate::net::datagram::len_and_sender), buf)
        }

        /// The socket's own address, by a plain call.
        ///
        /// # Errors
        /// As `getsockname(2)`.
        pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
            $crate::net::Address::of(&self.inner.local_address()?)
        }

        /// The address of the [peer](Self::connect), by a plain call.
        ///
        /// # Errors
        /// `ENOTCONN`: it has none. Otherwise as `getpeername(2)`.
        pub fn peer_addr(&self) -> std::io::Result<SocketAddr> {
            $crate::net::Address::of(&self.inner.peer_address()?)
        }
    };
}

pub(super) use receivers;

/// The socket.
pub(super) struct Datagrams {
    fd: Fd,
    driver: Handle,
    /// What dropped receives have brought or may still bring.
    kept: Kept,
    ahead: Ahead,
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fd.fmt(f)
    }
}

impl Datagrams {
    pub(super) fn new(fd: Fd, driver: Handle) -> Self {
        Self { fd, driver, kept: Kept::default(), ahead: Ahead::default() }
    }

    /// Takes over a socket of the process.
    ///
    /// # Errors
    /// `EPROTOTYPE`: it is not one for datagrams of these domains.
    pub(super) fn adopt(fd: OwnedFd, domains: &[AddressFamily]) -> io::Result<Self> {
        let is_right = sockopt::socket_type(&fd)? == SocketType::DGRAM
            && domains.contains(&sockopt::socket_domain(&fd)?);
        if !is_right {
            return Err(Errno::PROTOTYPE.into());
        }
        let local = current();
        Ok(Self::new(local.driver.adopt(fd), local.driver.handle().clone()))
    }

    pub(super) fn fd(&self) -> &Fd {
        &self.fd
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddress> {
        self.driver.local_address(&self.fd)
    }

    pub(super) fn peer_address(&self) -> io::Result<SocketAddress> {
        self.driver.peer_address(&self.fd)
    }

    pub(super) async fn bind(&self, address: &SocketAddress) -> io::Result<()> {
        self.driver.bind(&self.fd, address).await
    }

    pub(super) async fn connect(&self, to: &SocketAddress) -> io::Result<()> {
        self.driver.connect(&self.fd, to).await
    }

    pub(super) async fn release(self) -> io::Result<OwnedFd> {
        let (fd, driver) = (self.fd.clone(), self.driver.clone());
        drop(self);
        release(&driver, fd).await
    }

    pub(super) async fn close(self) -> io::Result<()> {
        let (fd, driver) = (self.fd.clone(), self.driver.clone());
        drop(self);
        driver.close(fd).await
    }
}

/// Sending.
impl Datagrams {
    pub(super) async fn send<T: IoBuf>(&self, buf: T) -> BufResult<usize, T> {
        let Self { driver, fd, .. } = self;
        retrying(driver, fd, PollEvents::WRITABLE, buf, |buf| driver.send(fd, buf, 0)).await
    }

    pub(super) async fn send_to<T: IoBuf>(
        &self,
        buf: T,
        to: &SocketAddress,
    ) -> BufResult<usize, T> {
        let Self { driver, fd, .. } = self;
        retrying(driver, fd, PollEvents::WRITABLE, buf, |buf| driver.send_to(fd, buf, to, 0)).await
    }

    /// Sends to the peer if `to` is unnamed.
    pub(super) async fn send_message<T: IoBuf>(
        &self,
        buf: T,
        to: &SocketAddress,
        control: ControlMessages,
    ) -> BufResult<usize, T> {
        let Self { driver, fd, .. } = self;
        let send = |buf| driver.send_message(fd, buf, to, control.clone(), 0);
        retrying(driver, fd, PollEvents::WRITABLE, buf, send).await
    }

    /// Sends all of them at once. Each has a result of its own.
    pub(super) async fn send_batch<T: IoBuf>(
        &self,
        messages: impl Iterator<Item = (T, SocketAddress)>,
    ) -> Vec<BufResult<usize, T>> {
        let start = |(buf, to)| (self.driver.send_to(&self.fd, buf, &to, 0), to);
        // All of them are started before the first is awaited.
        let started: Vec<_> = messages.map(start).collect();
        let mut results = Vec::with_capacity(started.len());
        for (sending, to) in started {
            let (result, buf) = sending.await;
            results.push(match result {
                Err(error) if self.may_retry(&error, PollEvents::WRITABLE).await => {
                    self.send_to(buf, &to).await
                }
                result => (result, buf),
            });
        }
        results
    }

    async fn may_retry(&self, error: &io::Error, events: PollEvents) -> bool {
        may_retry(&self.driver, &self.fd, error, events).await
    }
}

/// Receiving.
impl Datagrams {
    pub(super) fn recv_from<T: IoBufMut>(
        &self,
        buf: T,
    ) -> impl Future<Output = BufResult<driver::Received, T>> {
        self.receive(buf, false, |buf| self.driver.recv_from(&self.fd, buf, 0))
    }

    /// As [`recv_from`](Datagrams::recv_from), but leaves the datagram to the next receive.
    pub(super) fn peek_from<T: IoBufMut>(
        &self,
        buf: T,
    ) -> impl Future<Output = BufResult<driver::Received, T>> {
        self.receive(buf, true, |buf| self.driver.recv_from(&self.fd, buf, PEEK))
    }

    pub(super) fn recv_message<T: IoBufMut>(
        &self,
        buf: T,
        control_bytes: usize,
    ) -> impl Future<Output = BufResult<(driver::Received, ReceivedControl), T>> {
        self.receive(buf, false, move |buf| {
            self.driver.recv_message(&self.fd, buf, control_bytes, TELL_LENGTH)
        })
    }

    /// Receives one datagram, and those that have come by then. They fill the first of the buffers that come
    /// back.
    pub(super) async fn recv_batch<T: IoBufMut>(
        &self,
        bufs: Vec<T>,
    ) -> BufResult<Vec<driver::Received>, Vec<T>> {
        if bufs.is_empty() || bufs.iter().any(|buf| buf.bytes_room() == 0) {
            return (Err(Errno::INVAL.into()), bufs);
        }
        let mut rest = bufs.into_iter();
        let first = rest.next().expect("there is one, as was just found");
        let (result, buf) = self.recv_from(first).await;
        let received = match result {
            Ok(received) => received,
            Err(error) => return (Err(error), [buf].into_iter().chain(rest).collect()),
        };
        let mut gathered = Gathered { kept: &self.kept, done: vec![(received, buf)] };
        let mut unused = Vec::new();
        let mut count = self.ahead.next();
        while count > 0 && unused.is_empty() && rest.len() > 0 {
            let start = |buf| self.driver.recv_from(&self.fd, buf, DONT_WAIT);
            let receive = |buf| Receiving::new(start(buf), Some(&self.kept));
            let started: Vec<Receiving<'_, RecvFrom<T>, _, _>> =
                rest.by_ref().take(count).map(receive).collect();
            for receiving in started {
                let (result, buf) = receiving.await;
                match result {
                    Ok(received) => gathered.done.push((received, buf)),
                    Err(error) => {
                        unused.push(buf);
                        self.kept.add_error(error);
                    }
                }
            }
            count = gathered.done.len();
        }
        self.ahead.note(gathered.done.len() - 1, unused.is_empty());
        let (received, mut bufs): (_, Vec<_>) = mem::take(&mut gathered.done).into_iter().unzip();
        bufs.extend(unused.into_iter().chain(rest));
        (Ok(received), bufs)
    }

    /// Receives by an operation that `start` starts, unless something was kept.
    async fn receive<R: Shape, T: IoBufMut, O: Operation<Output = BufResult<R, T>>>(
        &self,
        mut buf: T,
        is_peek: bool,
        start: impl Fn(T) -> Op<O>,
    ) -> BufResult<R, T> {
        if !self.kept.is_empty() && buf.bytes_room() > 0 {
            match self.kept.take().await {
                Some(Ok(datagram)) => {
                    return (Ok(datagram.put(&mut buf, &self.kept, is_peek)), buf);
                }
                Some(Err(error)) => return (Err(error), buf),
                None => {}
            }
        }
        loop {
            // A peeked datagram is still in the kernel's queue.
            let kept = (!is_peek).then_some(&self.kept);
            let (result, back) = Receiving::new(start(buf), kept).await;
            match result {
                Err(error) if self.may_retry(&error, PollEvents::READABLE).await => buf = back,
                result => return (result, back),
            }
        }
    }
}

/// How many datagrams a batch asks for at once: as many as came the last time, since each that is not there
/// costs a receive.
struct Ahead {
    count: Cell<usize>,
    /// Batches in a row that asked for none.
    alone: Cell<u8>,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { count: Cell::new(AHEAD_FIRST), alone: Cell::new(0) }
    }
}

impl Ahead {
    fn next(&self) -> usize {
        let count = self.count.get();
        self.alone.set(if count == 0 { (self.alone.get() + 1) % LOOK_AGAIN } else { 0 });
        count.max(usize::from(count == 0 && self.alone.get() == 0))
    }

    /// Notes how many came. There may be more if none was missing.
    fn note(&self, came: usize, is_none_missing: bool) {
        self.count.set(came + usize::from(came > 0 && is_none_missing));
    }
}

/// What a receive tells besides the bytes. Some tell of control messages.
trait Shape: Sized + 'static {
    fn new(received: driver::Received, control: ReceivedControl) -> Self;
    fn into_parts(self) -> (driver::Received, ReceivedControl);
}

impl Shape for driver::Received {
    fn new(received: driver::Received, _: ReceivedControl) -> Self {
        received
    }

    fn into_parts(self) -> (driver::Received, ReceivedControl) {
        (self, ReceivedControl::default())
    }
}

impl Shape for (driver::Received, ReceivedControl) {
    fn new(received: driver::Received, control: ReceivedControl) -> Self {
        (received, control)
    }

    fn into_parts(self) -> (driver::Received, ReceivedControl) {
        self
    }
}

/// A datagram that a dropped receive has brought.
struct Datagram {
    bytes: Vec<u8>,
    received: driver::Received,
    control: ReceivedControl,
}

impl Datagram {
    fn new<T: IoBuf>(shape: impl Shape, buf: &T) -> Self {
        let (received, control) = shape.into_parts();
        Self { bytes: buf.as_bytes()[..received.len].to_vec(), received, control }
    }

    /// Puts it into a buffer, and for a peek back to what is kept.
    fn put<R: Shape, T: IoBufMut>(mut self, buf: &mut T, kept: &Kept, is_peek: bool) -> R {
        let len = buf.fill_from(&self.bytes);
        let is_truncated = self.received.is_truncated || len < self.bytes.len();
        let received = driver::Received { len, is_truncated, ..self.received };
        if is_peek {
            kept.put_back(Box::pin(ready(Some(Ok(self)))));
            return R::new(received, ReceivedControl::default());
        }
        R::new(received, mem::take(&mut self.control))
    }
}

/// A receive that was dropped. Resolves when the kernel is done with it, to what it brought, if anything.
type Dropped = Pin<Box<dyn Future<Output = Option<io::Result<Datagram>>>>>;

/// Dropped receives, in the order of dropping.
#[derive(Default)]
struct Kept(RefCell<VecDeque<Dropped>>);

impl Kept {
    fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    fn add(&self, dropped: Dropped) {
        self.0.borrow_mut().push_back(dropped);
    }

    fn put_back(&self, dropped: Dropped) {
        self.0.borrow_mut().push_front(dropped);
    }

    /// Adds an error that says more than that there was nothing.
    fn add_error(&self, error: io::Error) {
        if let Some(error) = of_the_socket(error) {
            self.add(Box::pin(ready(Some(Err(error)))));
        }
    }

    /// Waits until the dropped receives have ended, up to the first that brought something.
    async fn take(&self) -> Option<io::Result<Datagram>> {
        loop {
            let dropped = self.0.borrow_mut().pop_front()?;
            let mut waiting = Waiting { kept: self, dropped: Some(dropped) };
            let outcome = poll_fn(|cx| {
                let dropped = waiting.dropped.as_mut().expect("polled until it is ready");
                let outcome = dropped.as_mut().poll(cx);
                if outcome.is_ready() {
                    waiting.dropped = None;
                }
                outcome
            });
            if let Some(result) = outcome.await {
                return Some(result);
            }
        }
    }
}

/// A dropped receive for which the next one waits. If that is dropped, too, it is kept on.
struct Waiting<'a> {
    kept: &'a Kept,
    dropped: Option<Dropped>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            self.kept.put_back(dropped);
        }
    }
}

/// Returns an error that the socket tells once, and that the next receive has to tell if this one cannot.
fn of_the_socket(error: io::Error) -> Option<io::Error> {
    let says_nothing =
        matches!(Errno::from_io_error(&error), Some(Errno::CANCELED | Errno::INTR | Errno::AGAIN));
    (!says_nothing).then_some(error)
}

/// A receive under way. What it brings is kept if it is dropped.
struct Receiving<'a, O: Operation<Output = BufResult<R, T>>, R: Shape, T: IoBufMut> {
    op: Option<Op<O>>,
    kept: Option<&'a Kept>,
}

impl<'a, O: Operation<Output = BufResult<R, T>>, R: Shape, T: IoBufMut> Receiving<'a, O, R, T> {
    fn new(op: Op<O>, kept: Option<&'a Kept>) -> Self {
        Self { op: Some(op), kept }
    }
}

impl<O: Operation<Output = BufResult<R, T>>, R: Shape, T: IoBufMut> Future
    for Receiving<'_, O, R, T>
{
    type Output = O::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let op = self.op.as_mut().expect("a receive is not polled again after it was ready");
        let output = Pin::new(op).poll(cx);
        if output.is_ready() {
            self.op = None;
        }
        output
    }
}

impl<O: Operation<Output = BufResult<R, T>>, R: Shape, T: IoBufMut> Drop
    for Receiving<'_, O, R, T>
{
    fn drop(&mut self) {
        let (Some(mut op), Some(kept)) = (self.op.take(), self.kept) else { return };
        op.cancel();
        kept.add(Box::pin(async {
            let (result, buf) = op.await;
            match result {
                Ok(shape) => Some(Ok(Datagram::new(shape, &buf))),
                Err(error) => of_the_socket(error).map(Err),
            }
        }));
    }
}

/// Datagrams of a batch that goes on. They are kept if it is dropped.
struct Gathered<'a, T: IoBuf> {
    kept: &'a Kept,
    done: Vec<(driver::Received, T)>,
}

impl<T: IoBuf> Drop for Gathered<'_, T> {
    fn drop(&mut self) {
        for (received, buf) in self.done.drain(..).rev() {
            self.kept.put_back(Box::pin(ready(Some(Ok(Datagram::new(received, &buf))))));
        }
    }
}
