//! A host whose calls cost time and are counted, in place of a real enclave or sandbox.

use std::array;
use std::hint::black_box;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType,
};

use crate::{
    Control, Entry, EpollChange, EpollEvent, Events, Host, Kernel, Received, ReceivedMessage,
    SendControl,
};

/// The calls of a [`Host`], by the names of its methods.
macro_rules! host_calls {
    ($($(#[$about:meta])* $call:ident = $name:literal,)*) => {
        /// A call of a [`Host`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum HostCall {
            $($(#[$about])* $call,)*
        }

        impl HostCall {
            /// All calls.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$call),*];

            /// Returns the name of the method.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$call => $name,)*
                }
            }
        }
    };
}

host_calls! {
    /// [`Host::socket`].
    Socket = "socket",
    /// [`Host::pair`].
    Pair = "pair",
    /// [`Host::bind`].
    Bind = "bind",
    /// [`Host::listen`].
    Listen = "listen",
    /// [`Host::accept`].
    Accept = "accept",
    /// [`Host::connect`].
    Connect = "connect",
    /// [`Host::shutdown`].
    Shutdown = "shutdown",
    /// [`Host::local_address`].
    LocalAddress = "local_address",
    /// [`Host::peer_address`].
    PeerAddress = "peer_address",
    /// [`Host::receive`].
    Receive = "receive",
    /// [`Host::send`].
    Send = "send",
    /// [`Host::unread`].
    Unread = "unread",
    /// [`Host::take_error`].
    TakeError = "take_error",
    /// [`Host::set_option`].
    SetOption = "set_option",
    /// [`Host::option`].
    GetOption = "option",
    /// [`Host::receive_message`].
    ReceiveMessage = "receive_message",
    /// [`Host::send_message`].
    SendMessage = "send_message",
    /// [`Host::disconnect`].
    Disconnect = "disconnect",
    /// [`Host::unsent`].
    Unsent = "unsent",
    /// [`Host::is_at_mark`].
    IsAtMark = "is_at_mark",
    /// [`Host::raise_broken_pipe`].
    RaiseBrokenPipe = "raise_broken_pipe",
    /// [`Host::reset_on_close`].
    ResetOnClose = "reset_on_close",
    /// [`Host::set_nonblocking`].
    SetNonblocking = "set_nonblocking",
    /// [`Host::wait`].
    Wait = "wait",
    /// [`Host::epoll_create`].
    EpollCreate = "epoll_create",
    /// [`Host::epoll_control`].
    EpollControl = "epoll_control",
    /// [`Host::epoll_wait`].
    EpollWait = "epoll_wait",
    /// [`Host::event`].
    Event = "event",
    /// [`Host::signal`].
    Signal = "signal",
    /// [`Host::drain`].
    Drain = "drain",
    /// [`Host::park`].
    Park = "park",
    /// [`Host::unpark`].
    Unpark = "unpark",
    /// Closing a [`Host::Fd`].
    Close = "close",
    /// [`Host::now`]. It does not leave the enclave.
    Now = "now",
    /// [`Host::memory`]. It does not leave the enclave.
    Memory = "memory",
}

impl HostCall {
    /// Returns true if the call leaves the enclave. The clock is read from a page shared with the host, and
    /// memory comes from an allocator inside.
    pub fn leaves(self) -> bool {
        !matches!(self, Self::Now | Self::Memory)
    }
}

/// Numbers of calls, in all or between two [counts](ToyEnclave::counts) of an enclave.
///
/// # Examples
/// See [`ToyEnclave`](ToyEnclave#examples).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCounts([u64; HostCall::ALL.len()]);

impl HostCounts {
    /// Returns the number of calls of `call`.
    ///
    /// # Examples
    /// See [`ToyEnclave`](ToyEnclave#examples).
    pub fn of(&self, call: HostCall) -> u64 {
        self.0[call as usize]
    }

    /// Returns the number of calls that left the enclave.
    ///
    /// # Examples
    /// See [`ToyEnclave`](ToyEnclave#examples).
    pub fn exits(&self) -> u64 {
        let leaving = HostCall::ALL.into_iter().filter(|call| call.leaves());
        leaving.map(|call| self.of(call)).sum()
    }

    /// Returns the counts since `earlier`, an earlier state of the same enclave.
    ///
    /// # Examples
    /// See [`ToyEnclave`](ToyEnclave#examples).
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(array::from_fn(|call| self.0[call].wrapping_sub(earlier.0[call])))
    }

    /// Returns the calls that were made, with their numbers.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use rustix::net::{AddressFamily, SocketType};
    /// use sakia_socket::{Kernel, Layer, Options, ToyEnclave};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let layer = Layer::new(ToyEnclave::new(Kernel, Duration::ZERO), Options::default());
    /// drop(layer.socket(AddressFamily::INET, SocketType::STREAM, None)?);
    /// let counts = layer.host().counts();
    /// for (call, count) in counts.iter() {
    ///     println!("{}: {count}", call.name());
    /// }
    /// assert!(counts.iter().any(|(call, count)| call.name() == "socket" && count == 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (HostCall, u64)> + '_ {
        HostCall::ALL.into_iter().map(|call| (call, self.of(call))).filter(|&(_, count)| count > 0)
    }
}

/// A host that makes the calls of another one, burns a set time before each call that would leave an
/// enclave or a sandbox, and counts all calls by name.
///
/// It shows the cost of a design on any machine: an exit of an enclave takes 4 to 10 microseconds, a trap
/// of a sandbox one or more. The time is burnt in a loop of instructions, whose speed is measured when the
/// enclave is made, so that the processor is as busy as it would be with an exit.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
/// use sakia_socket::{HostCall, Kernel, Layer, Options, ToyEnclave};
///
/// # fn main() -> rustix::io::Result<()> {
/// let enclave = ToyEnclave::new(Kernel, Duration::from_micros(4));
/// let layer = Layer::new(enclave, Options::default());
/// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
/// let before = layer.host().counts();
/// a.send(b"hello", SendFlags::empty())?;
/// b.recv(&mut [0; 16], RecvFlags::empty())?;
/// let counts = layer.host().counts().since(&before);
/// assert_eq!((counts.of(HostCall::Send), counts.of(HostCall::Receive), counts.exits()), (1, 1, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ToyEnclave<H = Kernel> {
    host: H,
    gate: Arc<Gate>,
}

/// The exit of an enclave.
#[derive(Debug)]
struct Gate {
    /// Rounds of the loop before each call that leaves.
    rounds: u64,
    counts: [AtomicU64; HostCall::ALL.len()],
}

impl Gate {
    fn pass(&self, call: HostCall) {
        self.counts[call as usize].fetch_add(1, Ordering::Relaxed);
        if call.leaves() {
            spin(self.rounds);
        }
    }
}

/// A descriptor of a [`ToyEnclave`]: closing it leaves the enclave, too.
#[derive(Debug)]
pub struct EnclaveFd<F> {
    fd: F,
    gate: Arc<Gate>,
}

impl<F> EnclaveFd<F> {
    /// Returns the descriptor of the host inside.
    pub fn inner(&self) -> &F {
        &self.fd
    }
}

impl<F: AsFd> AsFd for EnclaveFd<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<F> Drop for EnclaveFd<F> {
    fn drop(&mut self) {
        self.gate.pass(HostCall::Close);
    }
}

impl<H: Host> ToyEnclave<H> {
    /// Makes an enclave around `host`. Each exit takes the time `exit`.
    ///
    /// # Examples
    /// See [`ToyEnclave`](ToyEnclave#examples).
    pub fn new(host: H, exit: Duration) -> Self {
        let rounds = if exit.is_zero() { 0 } else { rounds(|| host.now(), exit) };
        let gate = Gate { rounds, counts: [const { AtomicU64::new(0) }; HostCall::ALL.len()] };
        Self { host, gate: Arc::new(gate) }
    }

    /// Returns the numbers of calls so far, of all threads.
    ///
    /// # Examples
    /// See [`ToyEnclave`](ToyEnclave#examples).
    pub fn counts(&self) -> HostCounts {
        HostCounts(array::from_fn(|call| self.gate.counts[call].load(Ordering::Relaxed)))
    }

    /// Leaves the enclave: returns the host, to make the call there.
    fn leave(&self, call: HostCall) -> &H {
        self.gate.pass(call);
        &self.host
    }

    fn with_gate(&self, fd: H::Fd) -> EnclaveFd<H::Fd> {
        EnclaveFd { fd, gate: Arc::clone(&self.gate) }
    }
}

impl<H: Host> Host for ToyEnclave<H> {
    type Fd = EnclaveFd<H::Fd>;
    type Memory = H::Memory;

    fn socket(
        &self,
        family: AddressFamily,
        kind: SocketType,
        flags: SocketFlags,
        protocol: Option<Protocol>,
    ) -> Result<Self::Fd, Errno> {
        let fd = self.leave(HostCall::Socket).socket(family, kind, flags, protocol)?;
        Ok(self.with_gate(fd))
    }

    fn pair(
        &self,
        family: AddressFamily,
        kind: SocketType,
        flags: SocketFlags,
    ) -> Result<(Self::Fd, Self::Fd), Errno> {
        let (a, b) = self.leave(HostCall::Pair).pair(family, kind, flags)?;
        Ok((self.with_gate(a), self.with_gate(b)))
    }

    fn bind(&self, fd: &Self::Fd, address: &SocketAddrAny) -> Result<(), Errno> {
        self.leave(HostCall::Bind).bind(&fd.fd, address)
    }

    fn listen(&self, fd: &Self::Fd, backlog: i32) -> Result<(), Errno> {
        self.leave(HostCall::Listen).listen(&fd.fd, backlog)
    }

    fn accept(
        &self,
        fd: &Self::Fd,
        flags: SocketFlags,
    ) -> Result<(Self::Fd, Option<SocketAddrAny>), Errno> {
        let (fd, address) = self.leave(HostCall::Accept).accept(&fd.fd, flags)?;
        Ok((self.with_gate(fd), address))
    }

    fn connect(&self, fd: &Self::Fd, address: &SocketAddrAny) -> Result<(), Errno> {
        self.leave(HostCall::Connect).connect(&fd.fd, address)
    }

    fn shutdown(&self, fd: &Self::Fd, how: Shutdown) -> Result<(), Errno> {
        self.leave(HostCall::Shutdown).shutdown(&fd.fd, how)
    }

    fn local_address(&self, fd: &Self::Fd) -> Result<SocketAddrAny, Errno> {
        self.leave(HostCall::LocalAddress).local_address(&fd.fd)
    }

    fn peer_address(&self, fd: &Self::Fd) -> Result<Option<SocketAddrAny>, Errno> {
        self.leave(HostCall::PeerAddress).peer_address(&fd.fd)
    }

    fn receive(
        &self,
        fd: &Self::Fd,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Received, Errno> {
        self.leave(HostCall::Receive).receive(&fd.fd, buffers, flags)
    }

    fn send(
        &self,
        fd: &Self::Fd,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        self.leave(HostCall::Send).send(&fd.fd, buffers, flags, to)
    }

    fn unread(&self, fd: &Self::Fd) -> Result<u64, Errno> {
        self.leave(HostCall::Unread).unread(&fd.fd)
    }

    fn take_error(&self, fd: &Self::Fd) -> Result<Option<Errno>, Errno> {
        self.leave(HostCall::TakeError).take_error(&fd.fd)
    }

    fn reset_on_close(&self, fd: &Self::Fd) -> Result<(), Errno> {
        self.leave(HostCall::ResetOnClose).reset_on_close(&fd.fd)
    }

    fn set_option(&self, fd: &Self::Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.leave(HostCall::SetOption).set_option(&fd.fd, level, name, value)
    }

    fn option(
        &self,
        fd: &Self::Fd,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize, Errno> {
        self.leave(HostCall::GetOption).option(&fd.fd, level, name, value)
    }

    fn receive_message(
        &self,
        fd: &Self::Fd,
        buffers: &mut [IoSliceMut<'_>],
        room: usize,
        flags: RecvFlags,
    ) -> Result<ReceivedMessage<Self::Fd>, Errno> {
        let host = self.leave(HostCall::ReceiveMessage);
        let ReceivedMessage { received, control } =
            host.receive_message(&fd.fd, buffers, room, flags)?;
        let with_gates = |control| match control {
            Control::Rights(fds) => {
                Control::Rights(fds.into_iter().map(|fd| self.with_gate(fd)).collect())
            }
            Control::Credentials(credentials) => Control::Credentials(credentials),
            Control::Other { level, kind, data } => Control::Other { level, kind, data },
        };
        Ok(ReceivedMessage { received, control: control.into_iter().map(with_gates).collect() })
    }

    fn send_message(
        &self,
        fd: &Self::Fd,
        buffers: &[IoSlice<'_>],
        control: &[SendControl<'_, Self::Fd>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        let rights: Vec<Vec<&H::Fd>> = control
            .iter()
            .map(|control| match control {
                SendControl::Rights(fds) => fds.iter().map(|fd| &fd.fd).collect(),
                _ => Vec::new(),
            })
            .collect();
        let inner: Vec<SendControl<'_, H::Fd>> = control
            .iter()
            .zip(&rights)
            .map(|(control, rights)| match *control {
                SendControl::Rights(_) => SendControl::Rights(rights),
                SendControl::Credentials(credentials) => SendControl::Credentials(credentials),
                SendControl::TransmitTime(time) => SendControl::TransmitTime(time),
                SendControl::Other { level, kind, data } => {
                    SendControl::Other { level, kind, data }
                }
            })
            .collect();
        self.leave(HostCall::SendMessage).send_message(&fd.fd, buffers, &inner, flags, to)
    }

    fn disconnect(&self, fd: &Self::Fd) -> Result<(), Errno> {
        self.leave(HostCall::Disconnect).disconnect(&fd.fd)
    }

    fn unsent(&self, fd: &Self::Fd) -> Result<u64, Errno> {
        self.leave(HostCall::Unsent).unsent(&fd.fd)
    }

    fn is_at_mark(&self, fd: &Self::Fd) -> Result<bool, Errno> {
        self.leave(HostCall::IsAtMark).is_at_mark(&fd.fd)
    }

    fn raise_broken_pipe(&self) {
        self.leave(HostCall::RaiseBrokenPipe).raise_broken_pipe();
    }

    fn epoll_create(&self) -> Result<Self::Fd, Errno> {
        Ok(self.with_gate(self.leave(HostCall::EpollCreate).epoll_create()?))
    }

    fn epoll_control(
        &self,
        set: &Self::Fd,
        change: EpollChange,
        fd: &Self::Fd,
    ) -> Result<(), Errno> {
        self.leave(HostCall::EpollControl).epoll_control(&set.fd, change, &fd.fd)
    }

    fn epoll_wait(
        &self,
        set: &Self::Fd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        self.leave(HostCall::EpollWait).epoll_wait(&set.fd, events, timeout)
    }

    fn event(&self) -> Result<Self::Fd, Errno> {
        Ok(self.with_gate(self.leave(HostCall::Event).event()?))
    }

    fn signal(&self, event: &Self::Fd) -> Result<(), Errno> {
        self.leave(HostCall::Signal).signal(&event.fd)
    }

    fn drain(&self, event: &Self::Fd) -> Result<(), Errno> {
        self.leave(HostCall::Drain).drain(&event.fd)
    }

    fn set_nonblocking(&self, fd: &Self::Fd, is_nonblocking: bool) -> Result<(), Errno> {
        self.leave(HostCall::SetNonblocking).set_nonblocking(&fd.fd, is_nonblocking)
    }

    fn wait(
        &self,
        entries: &mut [Entry<'_, Self::Fd>],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let mut inner: Vec<Entry<'_, H::Fd>> = entries
            .iter()
            .map(|entry| Entry { fd: &entry.fd.fd, wanted: entry.wanted, ready: Events::NONE })
            .collect();
        let count = self.leave(HostCall::Wait).wait(&mut inner, timeout)?;
        for (entry, inner) in entries.iter_mut().zip(&inner) {
            entry.ready = inner.ready;
        }
        Ok(count)
    }

    fn park(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        self.leave(HostCall::Park).park(word, expected, timeout);
    }

    fn unpark(&self, word: &AtomicU32) {
        self.leave(HostCall::Unpark).unpark(word);
    }

    fn now(&self) -> Duration {
        self.leave(HostCall::Now).now()
    }

    fn memory(&self, len: usize) -> Self::Memory {
        self.leave(HostCall::Memory).memory(len)
    }
}

/// Keeps the processor busy for this many rounds, none of which can be optimized away or run in parallel.
fn spin(rounds: u64) {
    let mut state = rounds;
    for _ in 0..rounds {
        state = black_box(state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
    }
}

/// Returns the number of rounds that take `time`, by the clock `now`.
fn rounds(now: impl Fn() -> Duration, time: Duration) -> u64 {
    const TRIES: usize = 32;
    const ROUNDS: u64 = 10_000;
    let one_try = |_| {
        let begin = now();
        spin(ROUNDS);
        now().saturating_sub(begin)
    };
    // The shortest try was not interrupted.
    let least = (0..TRIES).map(one_try).min().unwrap_or_default().as_nanos().max(1);
    u64::try_from(time.as_nanos() * u128::from(ROUNDS) / least).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn each_call_is_counted_by_its_name() {
        let enclave = ToyEnclave::new(Kernel, Duration::ZERO);
        let before = enclave.counts();
        let flags = SocketFlags::CLOEXEC;
        let (a, b) =
            enclave.pair(AddressFamily::UNIX, SocketType::STREAM, flags).expect("two sockets");
        enclave.now();
        enclave.memory(1);
        let send = |bytes| enclave.send(&a, &[IoSlice::new(bytes)], SendFlags::empty(), None);
        assert_eq!((send(b"1"), send(b"23")), (Ok(1), Ok(2)));
        assert_eq!(enclave.unread(&b), Ok(3));
        let mut entries = [Entry { fd: &b, wanted: Events::IN, ready: Events::NONE }];
        assert_eq!(enclave.wait(&mut entries, None), Ok(1));
        assert_eq!(entries[0].ready, Events::IN);
        drop((a, b));
        let counts = enclave.counts().since(&before);
        let named: Vec<_> = counts.iter().map(|(call, count)| (call.name(), count)).collect();
        let expected = [
            ("pair", 1),
            ("send", 2),
            ("unread", 1),
            ("wait", 1),
            ("close", 2),
            ("now", 1),
            ("memory", 1),
        ];
        assert_eq!(named, expected);
        assert_eq!(counts.exits(), 7, "the clock and memory are inside");
    }

    /// The gate must know every method: one with a default body in the trait would bypass it unnoticed.
    #[test]
    fn every_call_of_a_host_is_known() {
        let (_, from_here) =
            include_str!("host.rs").split_once("pub trait Host").expect("the trait");
        let (body, _) = from_here.split_once("\n}\n").expect("its end");
        let methods = body.lines().filter_map(|line| line.strip_prefix("    fn "));
        let methods: Vec<&str> = methods.filter_map(|rest| rest.split(['(', '<']).next()).collect();
        assert!(methods.contains(&"socket"), "{methods:?}");
        for method in methods {
            let is_known = HostCall::ALL.iter().any(|call| call.name() == method);
            assert!(is_known, "{method} is no `HostCall`: count it in `ToyEnclave`");
        }
    }

    #[test]
    fn the_loop_is_as_long_as_the_clock_says() {
        let looks = Cell::new(0);
        // Each reading is 10 microseconds after the previous one, except one that is 1 microsecond after
        // it.
        let clock = || {
            looks.set(looks.get() + 1);
            Duration::from_micros(if looks.get() < 8 {
                10 * looks.get()
            } else {
                10 * looks.get() - 9
            })
        };
        assert_eq!(rounds(clock, Duration::from_micros(3)), 30_000);
        assert_eq!(ToyEnclave::new(Kernel, Duration::ZERO).gate.rounds, 0);
        assert!(ToyEnclave::new(Kernel, Duration::from_micros(1)).gate.rounds > 0);
    }
}
