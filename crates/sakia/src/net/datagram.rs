//! A datagram socket of any family: the common part of [`UdpSocket`](super::UdpSocket) and
//! [`UnixDatagram`](super::UnixDatagram), which add their types of addresses.
//!
//! A dropped receive loses no datagram: its operation is canceled, and [kept](super::kept) until it has
//! ended. If it brings a datagram or an error nevertheless, a waiting receive gets it, or else the next one.
//!
//! A socket is in one of two states, in which no datagram overtakes another one:
//! 1. The [receiver](DatagramReceiver) receives ahead, and all receives take datagrams from it.
//! 2. Receives and peeks have operations of their own. They take what was kept first.
//!
//! A plain call receives in neither of them: see `Datagrams::may_receive_now`.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketType, sockopt};
use sakia_driver::{
    self as driver, BufResult, DatagramOptions, DatagramReceiver, Fd, Handle, IoBufMut, LastFd, Op,
    Operation, PollEvents, ReceivedControl, RecvFrom, ShutdownHow, SocketAddress,
};

use super::kept::{Datagram, Earlier, Gathered, Kept, Receiving, Shape};
use super::listener::release;
use super::sends::{Counted, Sends};
use crate::executor::current;
use crate::io::transfer::{may_retry, uninterrupted};

/// The most datagrams that one call moves.
pub(super) const BATCH_MAX: usize = 64;
/// The most bytes of a datagram that is received into memory of the runtime.
const DATAGRAM_BYTES_MAX: usize = 1 << 20;
const DONT_WAIT: u32 = RecvFlags::DONTWAIT.bits();
const PEEK: u32 = RecvFlags::PEEK.bits();
const TELL_LENGTH: u32 = RecvFlags::TRUNC.bits();
/// The number of further datagrams that the first batch asks for, besides the one that it waits for.
const AHEAD_FIRST: usize = 4;
/// While datagrams come one at a time, one of this many batches asks for a second datagram: the least number.
/// It grows each time the second datagram is not there.
const LOOK_AGAIN_MIN: u8 = 8;
const LOOK_AGAIN_MAX: u8 = 64;

/// The methods that receive or return addresses, in which only the type `SocketAddr` differs.
macro_rules! receivers {
    () => {
        /// As [`recv`](Self::recv). Resolves to the number of bytes and the sender; a Unix socket may have no
        /// address.
        ///
        /// # Cancel safety
        /// As [`recv`](Self::recv).
        ///
        /// # Errors
        /// As [`recv`](Self::recv).
        ///
        /// # Examples
        /// See [`UdpSocket`](crate::net::UdpSocket#examples).
        ///
        /// # Kernel
        /// 5.3. Source: `io_uring_prep_recvmsg(3)`.
        pub async fn recv_from<T: IoBufMut>(&self, buf: T) -> BufResult<(usize, SocketAddr), T> {
            let (result, buf) = self.inner.recv_from(buf).await;
            (result.and_then($crate::net::received::len_and_sender), buf)
        }

        /// As [`recv`](Self::recv), but leaves the datagram to the next receive.
        ///
        /// # Cancel safety
        /// As [`recv`](Self::recv).
        ///
        /// # Errors
        /// As [`recv`](Self::recv).
        pub async fn peek<T: IoBufMut>(&self, buf: T) -> BufResult<usize, T> {
            let (result, buf) = self.inner.peek_from(buf).await;
            (result.map(|received| received.len), buf)
        }

        /// As [`recv_from`](Self::recv_from), but leaves the datagram to the next receive.
        ///
        /// # Cancel safety
        /// As [`recv`](Self::recv).
        ///
        /// # Errors
        /// As [`recv`](Self::recv).
        pub async fn peek_from<T: IoBufMut>(&self, buf: T) -> BufResult<(usize, SocketAddr), T> {
            let (result, buf) = self.inner.peek_from(buf).await;
            (result.and_then($crate::net::received::len_and_sender), buf)
        }

        /// Receives one datagram into memory of the runtime, and waits until there is one: no memory is used
        /// until it comes.
        ///
        /// From the first call on the kernel receives ahead: 256 KiB or 32 datagrams for a socket. Further
        /// ones stay in the socket's queue. The other receiving methods return datagrams received ahead
        /// first, in order, and end receiving ahead until the next call of this one; while a task waits here,
        /// they wait for those received ahead, too. While a task waits in one of them, nothing is received
        /// ahead. Datagrams received ahead and never taken are lost with the socket.
        ///
        /// [`set_datagram_room`](Self::set_datagram_room) sets the longest datagram, and whether control
        /// messages come with it.
        ///
        /// # Cancel safety
        /// As [`recv`](Self::recv).
        ///
        /// # Errors
        /// As [`recv`](Self::recv), but for buffers without room.
        ///
        /// # Examples
        /// See [`Datagram`](crate::net::Datagram#examples).
        ///
        /// # Kernel
        /// 5.3; 6.0 to receive several with one entry. Source: `io_uring_prep_recvmsg_multishot(3)`.
        pub async fn recv_datagram(&self) -> std::io::Result<$crate::net::Datagram<SocketAddr>> {
            $crate::net::Datagram::of(self.inner.recv_datagram().await?)
        }

        /// Sets the least room in bytes for a datagram of [`recv_datagram`](Self::recv_datagram), and the
        /// room for its control messages. At first 1500 and 0; at most 1 MiB and 64 KiB.
        ///
        /// # Errors
        /// `EBUSY`: there was a [`recv_datagram`](Self::recv_datagram) before.
        ///
        /// # Examples
        /// See [`UdpSocket::set_gro`](crate::net::UdpSocket::set_gro).
        pub fn set_datagram_room(
            &self,
            datagram_bytes: usize,
            control_bytes: usize,
        ) -> std::io::Result<()> {
            self.inner.set_datagram_room(datagram_bytes, control_bytes)
        }

        /// Returns the socket's own address, by a plain call.
        ///
        /// # Errors
        /// As `getsockname(2)`.
        pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
            $crate::net::Address::of(&self.inner.local_address()?)
        }

        /// Returns the address of the [peer](Self::connect), by a plain call.
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
    driver: Handle,
    /// The results that dropped receives have brought or may still bring.
    kept: Kept,
    ahead: Ahead,
    /// Set if it has a peer: an error may come up between two datagrams of a batch, and must not be lost.
    tells_errors: Cell<bool>,
    /// Receives into memory of the runtime.
    receiver: OnceCell<DatagramReceiver>,
    /// The space that `ahead` provides for each datagram.
    options: Cell<DatagramOptions>,
    /// The most room for control messages that a receive was given. From then on plain receives have it, too,
    /// so that descriptors which come for a dropped receive are kept.
    control_bytes: Cell<usize>,
    /// Set when its receives were shut down.
    receives_ended: Cell<bool>,
    pub(super) sends: Sends,
    /// The number of peeks that have operations of their own.
    peeks: Cell<usize>,
    /// Declared last: closed when all else is gone.
    fd: LastFd,
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fd.fmt(f)
    }
}

impl Datagrams {
    pub(super) fn new(fd: Fd, driver: Handle) -> Self {
        Self {
            fd: LastFd::new(fd, driver.clone()),
            driver,
            kept: Kept::default(),
            ahead: Ahead::default(),
            tells_errors: Cell::default(),
            receiver: OnceCell::new(),
            options: Cell::default(),
            control_bytes: Cell::default(),
            receives_ended: Cell::default(),
            sends: Sends::default(),
            peeks: Cell::default(),
        }
    }

    /// Takes over a socket of the process.
    ///
    /// # Errors
    /// `EPROTOTYPE`: it is no datagram socket of these domains.
    pub(super) fn adopt(fd: OwnedFd, domains: &[AddressFamily]) -> io::Result<Self> {
        let is_right = sockopt::socket_type(&fd)? == SocketType::DGRAM
            && domains.contains(&sockopt::socket_domain(&fd)?);
        if !is_right {
            return Err(Errno::PROTOTYPE.into());
        }
        let local = current();
        let adopted = Self::new(local.driver.adopt(fd), local.driver.handle().clone());
        adopted.tells_errors.set(adopted.peer_address().is_ok());
        Ok(adopted)
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
        self.expect_errors();
        self.driver.connect(&self.fd, to).await
    }

    /// Notes that errors may come up between two datagrams of a batch from now on.
    pub(super) fn expect_errors(&self) {
        self.tells_errors.set(true);
    }

    /// Returns whether errors may come up between two datagrams of a batch.
    pub(super) fn tells_errors(&self) -> bool {
        self.tells_errors.get()
    }

    pub(super) fn driver(&self) -> &Handle {
        &self.driver
    }

    /// Ends one or both directions.
    pub(super) async fn shutdown(&self, how: ShutdownHow) -> io::Result<()> {
        if how != ShutdownHow::Sends {
            self.receives_ended.set(true);
            if let Some(receiver) = self.receiver.get() {
                receiver.receive_singly();
            }
        }
        uninterrupted(async || self.driver.shutdown_socket(&self.fd, how).await).await
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

/// Receiving.
impl Datagrams {
    /// Waits until this turn may make plain calls.
    pub(super) async fn wait_for_budget(&self) {
        if !self.driver.has_inline_budget() {
            let _ = self.driver.next_turn().await; // there are no turns at the end of the runtime
        }
    }

    pub(super) async fn may_retry(&self, error: &io::Error, events: PollEvents) -> bool {
        may_retry(&self.driver, &self.fd, error, events).await
    }

    pub(super) async fn recv_from<T: IoBufMut>(&self, buf: T) -> BufResult<driver::Received, T> {
        let control_bytes = self.control_bytes.get();
        if control_bytes == 0 {
            return self.receive(buf, false, |buf| self.driver.recv_from(&self.fd, buf, 0)).await;
        }
        let start = |buf| self.driver.recv_message(&self.fd, buf, control_bytes, 0);
        let (result, buf) = Box::pin(self.receive(buf, false, start)).await;
        (result.map(|(received, _control): (_, ReceivedControl)| received), buf)
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
        self.control_bytes.set(self.control_bytes.get().max(control_bytes));
        self.receive(buf, false, move |buf| {
            self.driver.recv_message(&self.fd, buf, control_bytes, TELL_LENGTH)
        })
    }

    /// Receives one datagram, and those that have arrived by then; after a batch of one it mostly looks for
    /// no other, see [`Ahead`]. They fill the first of the buffers that are returned.
    pub(super) async fn recv_batch<T: IoBufMut>(
        &self,
        mut bufs: Vec<T>,
    ) -> BufResult<Vec<driver::Received>, Vec<T>> {
        if bufs.is_empty() || bufs.iter().any(|buf| buf.bytes_room() == 0) {
            return (Err(Errno::INVAL.into()), bufs);
        }
        let mut received = Vec::new();
        if self.ahead.is_any() {
            self.wait_for_budget().await;
            if self.may_receive_now() {
                match self.recv_now(&mut bufs, &mut received) {
                    Ok(Some(1..)) => return (Ok(received), bufs),
                    Ok(None | Some(0)) => {}
                    Err(error) => return (Err(error), bufs),
                }
            }
        }
        // Meanwhile the last buffer takes the place of the first one: moving all of them would cost more.
        let (result, buf) = self.recv_from(bufs.swap_remove(0)).await;
        bufs.push(buf);
        let last = bufs.len() - 1;
        bufs.swap(0, last);
        match result {
            Ok(first) => received.push(first),
            Err(error) => return (Err(error), bufs),
        }
        let count = self.ahead.next();
        if count == 0 {
            return (Ok(received), bufs);
        }
        if !self.may_receive_now() {
            self.take_earlier_now(&mut bufs[1..], &mut received);
            return (Ok(received), bufs);
        }
        if let Ok(None) = self.recv_now(&mut bufs[1..], &mut received) {
            let first = (received.remove(0), bufs.remove(0));
            return self.recv_by_operations(first, count, bufs).await;
        }
        (Ok(received), bufs)
    }

    /// Returns whether a plain call overtakes nothing: no datagram came for an earlier receive, and no
    /// receive waits.
    fn may_receive_now(&self) -> bool {
        self.kept.is_empty() && !self.kept.is_awaited() && self.is_ahead_empty()
    }

    /// Takes datagrams that have come for earlier receives, without waiting, up to an error.
    #[cold]
    fn take_earlier_now<T: IoBufMut>(&self, bufs: &mut [T], received: &mut Vec<driver::Received>) {
        for buf in bufs {
            let datagram = match self.kept.take_ready() {
                Some(Earlier { result: Ok(datagram), .. }) => datagram,
                Some(error) => return self.kept.put_back(error),
                None if !self.kept.is_empty() => return,
                None => match self.receiver.get().and_then(DatagramReceiver::try_take_ahead) {
                    Some(datagram) => Datagram::of(datagram),
                    None => return,
                },
            };
            received.push(datagram.put(buf));
        }
    }

    /// Receives datagrams that have arrived, by plain calls, behind those that were received before. Returns
    /// their number; `None` if plain calls are not allowed.
    fn recv_now<T: IoBufMut>(
        &self,
        bufs: &mut [T],
        received: &mut Vec<driver::Received>,
    ) -> io::Result<Option<usize>> {
        let before = received.len();
        let mut done = 0;
        let mut is_missing = false;
        while done < bufs.len() && !is_missing {
            let room = (bufs.len() - done).min(self.ahead.room().max(done));
            let came = self.driver.recv_batch_now(&self.fd, &mut bufs[done..][..room], received);
            let came = match came {
                Ok(None) if done == 0 => return Ok(None),
                Err(error) if before + done == 0 => return Err(error),
                Ok(came) => came.unwrap_or(0),
                Err(error) => {
                    self.kept.add_error(error);
                    0
                }
            };
            done += came;
            is_missing = came < room;
        }
        if let Some(behind_first) = (before + done).checked_sub(1) {
            self.ahead.note(behind_first, !is_missing);
        }
        Ok(Some(done))
    }

    /// Receives datagrams that have arrived after the first, of which `count` are requested, by operations
    /// that do not wait.
    async fn recv_by_operations<T: IoBufMut>(
        &self,
        first: (driver::Received, T),
        mut count: usize,
        rest: Vec<T>,
    ) -> BufResult<Vec<driver::Received>, Vec<T>> {
        let mut rest = rest.into_iter();
        let mut gathered = Gathered::new(&self.kept, first);
        let mut unused = Vec::new();
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

    pub(super) fn set_datagram_room(
        &self,
        datagram_bytes_max: usize,
        control_bytes: usize,
    ) -> io::Result<()> {
        if self.receiver.get().is_some() {
            return Err(Errno::BUSY.into());
        }
        self.options.set(DatagramOptions { datagram_bytes_max, control_bytes });
        Ok(())
    }

    /// Receives one datagram into memory of the runtime.
    pub(super) async fn recv_datagram(&self) -> io::Result<driver::Datagram> {
        loop {
            if !self.kept.is_empty()
                && let Some(kept) = self.kept.take().await
            {
                return kept.result.map(Datagram::into_driver);
            }
            if self.kept.is_awaited() || self.peeks.get() > 0 {
                return Box::pin(self.recv_alone()).await;
            }
            let receiver = self.receiver.get_or_init(|| {
                let receiver = self.driver.datagrams(self.fd.clone(), self.options.get());
                if self.receives_ended.get() {
                    receiver.receive_singly();
                }
                receiver
            });
            match receiver.recv().await {
                Err(error) if self.may_retry(&error, PollEvents::READABLE).await => {}
                result => return result,
            }
        }
    }

    /// Receives one datagram by an operation of its own. While other receives have such operations under way,
    /// datagrams received ahead would overtake theirs.
    async fn recv_alone(&self) -> io::Result<driver::Datagram> {
        let DatagramOptions { datagram_bytes_max, control_bytes } = self.options.get();
        let buf = Vec::with_capacity(datagram_bytes_max.clamp(1, DATAGRAM_BYTES_MAX));
        let (result, mut buf) = self.recv_message(buf, control_bytes).await;
        let (driver::Received { len, from, is_truncated, .. }, control) = result?;
        buf.truncate(len);
        buf.shrink_to_fit(); // the datagram may be kept for long
        Ok(driver::Datagram::new(buf, from, is_truncated, control))
    }

    /// Returns whether nothing is being received into memory of the runtime, and no such datagram is left.
    fn is_ahead_empty(&self) -> bool {
        self.receiver.get().is_none_or(DatagramReceiver::is_idle)
    }

    /// Puts the oldest datagram that came for an earlier receive into a buffer, or returns the error that
    /// came for one. `None`: there is none.
    async fn take_earlier<R: Shape, T: IoBufMut>(
        &self,
        buf: &mut T,
        is_peek: bool,
    ) -> Option<io::Result<R>> {
        if let Some(kept) = self.kept.take().await {
            return Some(match kept {
                Earlier { result: Ok(ref datagram), .. } if is_peek => {
                    let shown = datagram.show(buf);
                    self.kept.put_back(kept);
                    Ok(shown)
                }
                kept => kept.result.map(|datagram| datagram.put(buf)),
            });
        }
        let receiver = self.receiver.get()?;
        if is_peek {
            let first = receiver.peek_ahead(Datagram::without_control).await?;
            return Some(first.map(|datagram| datagram.put(buf)));
        }
        let first = receiver.take_ahead().await?;
        Some(first.map(|datagram| Datagram::of(datagram).put(buf)))
    }

    /// Receives by an operation that `start` starts, unless something was kept.
    async fn receive<R: Shape, T: IoBufMut, O: Operation<Output = BufResult<R, T>>>(
        &self,
        mut buf: T,
        is_peek: bool,
        start: impl Fn(T) -> Op<O>,
    ) -> BufResult<R, T> {
        if (!self.kept.is_empty() || !self.is_ahead_empty())
            && buf.bytes_room() > 0
            && let Some(earlier) = self.take_earlier(&mut buf, is_peek).await
        {
            return (earlier, buf);
        }
        let _peek = is_peek.then(|| Counted::new(&self.peeks));
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

/// The number of datagrams that a batch requests at once: as many as came the last time, since each missing
/// one costs a receive.
struct Ahead {
    count: Cell<usize>,
    /// Batches in a row that requested no further datagram.
    alone: Cell<u8>,
    /// The number of such batches after which one is requested.
    look_again: Cell<u8>,
}

impl Default for Ahead {
    fn default() -> Self {
        let (count, alone) = (Cell::new(AHEAD_FIRST), Cell::new(0));
        Self { count, alone, look_again: Cell::new(LOOK_AGAIN_MIN) }
    }
}

impl Ahead {
    fn next(&self) -> usize {
        let count = self.count.get();
        self.alone.set(if count == 0 { self.alone.get() + 1 } else { 0 });
        if self.alone.get() < self.look_again.get() {
            return count;
        }
        self.alone.set(0);
        self.look_again.set((2 * self.look_again.get()).min(LOOK_AGAIN_MAX));
        1
    }

    /// Returns whether several came the last time, so that some may be available without a wait.
    fn is_any(&self) -> bool {
        self.count.get() > 0
    }

    /// Returns the number that a plain call requests: more than are expected, since a missing one costs
    /// little.
    fn room(&self) -> usize {
        2 * self.count.get() + AHEAD_FIRST
    }

    /// Notes how many came. If none was missing, there may be more.
    fn note(&self, came: usize, is_none_missing: bool) {
        if came > 0 {
            self.look_again.set(LOOK_AGAIN_MIN);
        }
        self.count.set(came + usize::from(came > 0 && is_none_missing));
    }
}
