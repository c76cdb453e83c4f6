//! The calls from the library to its host.

use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType,
};

use crate::Events;
use crate::control::{Received, ReceivedMessage, SendControl};

/// Makes the calls of this library to the kernel, or to another host: sockets, waits, parking, time and
/// memory.
///
/// A library operating system implements it by the calls that leave its enclave or sandbox. Each method is
/// one call of the host, named after the corresponding system call, with its errors. The results are checked:
/// whatever they are, no byte outside of the given memory is read or written.
pub trait Host: Debug + Send + Sync + 'static {
    /// A descriptor, which is closed when it is dropped.
    type Fd: Debug + Send + Sync;
    /// Memory that the host can read and write.
    type Memory: AsRef<[u8]> + AsMut<[u8]> + Debug + Send;

    /// `socket(2)`.
    fn socket(
        &self,
        family: AddressFamily,
        kind: SocketType,
        flags: SocketFlags,
        protocol: Option<Protocol>,
    ) -> Result<Self::Fd, Errno>;

    /// `socketpair(2)`.
    fn pair(
        &self,
        family: AddressFamily,
        kind: SocketType,
        flags: SocketFlags,
    ) -> Result<(Self::Fd, Self::Fd), Errno>;

    /// `bind(2)`.
    fn bind(&self, fd: &Self::Fd, address: &SocketAddrAny) -> Result<(), Errno>;

    /// `listen(2)`.
    fn listen(&self, fd: &Self::Fd, backlog: i32) -> Result<(), Errno>;

    /// `accept4(2)`: the connection, and the peer's address if it has one.
    fn accept(
        &self,
        fd: &Self::Fd,
        flags: SocketFlags,
    ) -> Result<(Self::Fd, Option<SocketAddrAny>), Errno>;

    /// `connect(2)`.
    fn connect(&self, fd: &Self::Fd, address: &SocketAddrAny) -> Result<(), Errno>;

    /// `shutdown(2)`.
    fn shutdown(&self, fd: &Self::Fd, how: Shutdown) -> Result<(), Errno>;

    /// `getsockname(2)`.
    fn local_address(&self, fd: &Self::Fd) -> Result<SocketAddrAny, Errno>;

    /// `getpeername(2)`; `None` for a peer without a name.
    fn peer_address(&self, fd: &Self::Fd) -> Result<Option<SocketAddrAny>, Errno>;

    /// `recvmsg(2)` without control messages.
    fn receive(
        &self,
        fd: &Self::Fd,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Received, Errno>;

    /// `sendmsg(2)` without control messages: the number of bytes sent.
    fn send(
        &self,
        fd: &Self::Fd,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno>;

    /// `ioctl(FIONREAD)`: bytes that can be read.
    fn unread(&self, fd: &Self::Fd) -> Result<u64, Errno>;

    /// `getsockopt(SO_ERROR)`: takes the pending error of the socket.
    fn take_error(&self, fd: &Self::Fd) -> Result<Option<Errno>, Errno>;

    /// `setsockopt(SO_LINGER)` with zero seconds: closing the socket resets the connection.
    fn reset_on_close(&self, fd: &Self::Fd) -> Result<(), Errno>;

    /// `setsockopt(2)` with the kernel's numbers and the bytes of `value`. The default implementation has no
    /// options: `ENOPROTOOPT`.
    fn set_option(&self, fd: &Self::Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        let _ = (fd, level, name, value);
        Err(Errno::NOPROTOOPT)
    }

    /// `getsockopt(2)`: fills `value` and returns the number of bytes. The default implementation has no
    /// options: `ENOPROTOOPT`.
    fn option(
        &self,
        fd: &Self::Fd,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize, Errno> {
        let _ = (fd, level, name, value);
        Err(Errno::NOPROTOOPT)
    }

    /// `recvmsg(2)` with `room` bytes for control messages, which may be more than one. The default
    /// implementation receives none.
    fn receive_message(
        &self,
        fd: &Self::Fd,
        buffers: &mut [IoSliceMut<'_>],
        room: usize,
        flags: RecvFlags,
    ) -> Result<ReceivedMessage<Self::Fd>, Errno> {
        let _ = room;
        self.receive(fd, buffers, flags).map(ReceivedMessage::from)
    }

    /// `sendmsg(2)` with control messages: the number of bytes sent. The default implementation fails with
    /// `EOPNOTSUPP`.
    fn send_message(
        &self,
        fd: &Self::Fd,
        buffers: &[IoSlice<'_>],
        control: &[SendControl<'_, Self::Fd>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        let _ = (fd, buffers, control, flags, to);
        Err(Errno::OPNOTSUPP)
    }

    /// `connect(2)` with `AF_UNSPEC`: removes the socket's peer. The default implementation fails with
    /// `EOPNOTSUPP`.
    fn disconnect(&self, fd: &Self::Fd) -> Result<(), Errno> {
        let _ = fd;
        Err(Errno::OPNOTSUPP)
    }

    /// `ioctl(SIOCOUTQ)`: bytes that were sent and have not arrived, as far as the host knows. The default
    /// implementation fails with `ENOTTY`.
    fn unsent(&self, fd: &Self::Fd) -> Result<u64, Errno> {
        let _ = fd;
        Err(Errno::NOTTY)
    }

    /// `ioctl(SIOCATMARK)`: whether the host's next byte is the urgent one. The default implementation fails
    /// with `ENOTTY`.
    fn is_at_mark(&self, fd: &Self::Fd) -> Result<bool, Errno> {
        let _ = fd;
        Err(Errno::NOTTY)
    }

    /// Raises `SIGPIPE` in the program's thread that made the call. The default implementation does nothing.
    fn raise_broken_pipe(&self) {}

    /// `fcntl(F_SETFL)` with or without `O_NONBLOCK`.
    fn set_nonblocking(&self, fd: &Self::Fd, is_nonblocking: bool) -> Result<(), Errno>;

    /// `poll(2)`: sets the [ready](Entry::ready) events of each entry, and returns the number of entries with
    /// such events.
    fn wait(
        &self,
        entries: &mut [Entry<'_, Self::Fd>],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno>;

    /// `epoll_create1(2)` with `EPOLL_CLOEXEC`. The default implementation has no sets: `ENOSYS`.
    fn epoll_create(&self) -> Result<Self::Fd, Errno> {
        Err(Errno::NOSYS)
    }

    /// `epoll_ctl(2)`. An event may have any bits. The default implementation fails with `ENOSYS`.
    fn epoll_control(
        &self,
        set: &Self::Fd,
        change: EpollChange,
        fd: &Self::Fd,
    ) -> Result<(), Errno> {
        let _ = (set, change, fd);
        Err(Errno::NOSYS)
    }

    /// `epoll_pwait2(2)`: fills `events` from the front, and returns their number. The default implementation
    /// fails with `ENOSYS`.
    fn epoll_wait(
        &self,
        set: &Self::Fd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let _ = (set, events, timeout);
        Err(Errno::NOSYS)
    }

    /// `eventfd(2)` with `EFD_NONBLOCK` and `EFD_CLOEXEC`: a descriptor that wakes threads which sleep in
    /// [`wait`](Host::wait) or [`epoll_wait`](Host::epoll_wait). The default implementation fails with
    /// `ENOSYS`; then such a thread does not learn of bytes or errors that another one brings to memory.
    fn event(&self) -> Result<Self::Fd, Errno> {
        Err(Errno::NOSYS)
    }

    /// `write(2)` to a descriptor of [`event`](Host::event): makes it readable.
    fn signal(&self, event: &Self::Fd) -> Result<(), Errno> {
        let _ = event;
        Err(Errno::NOSYS)
    }

    /// `read(2)` from a descriptor of [`event`](Host::event): makes it unreadable again; `EAGAIN` if it
    /// already was.
    fn drain(&self, event: &Self::Fd) -> Result<(), Errno> {
        let _ = event;
        Err(Errno::NOSYS)
    }

    /// `futex(FUTEX_WAIT)`: sleeps while `word` is `expected`, at most for `timeout`; it may also return
    /// early.
    fn park(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>);

    /// `futex(FUTEX_WAKE)`: wakes a thread that sleeps at `word`.
    fn unpark(&self, word: &AtomicU32);

    /// The time since some fixed moment; it never goes back.
    fn now(&self) -> Duration;

    /// Returns `len` bytes of memory.
    fn memory(&self, len: usize) -> Self::Memory;
}

/// One descriptor of a [wait](Host::wait).
#[derive(Debug)]
pub struct Entry<'a, F> {
    /// The descriptor.
    pub fd: &'a F,
    /// The events that end the wait, besides errors and hang-ups.
    pub wanted: Events,
    /// The events that occurred.
    pub ready: Events,
}

/// An event of an `epoll` set, `struct epoll_event`.
///
/// # Examples
/// See [`Epoll`](crate::Epoll#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollEvent {
    /// The events to wait for, with bits such as [`Events::EDGE`], or those that occurred.
    pub events: Events,
    /// The number that the program gave the entry.
    pub data: u64,
}

/// A change of the host's set: an operation of `epoll_ctl(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpollChange {
    /// `EPOLL_CTL_ADD`.
    Add(EpollEvent),
    /// `EPOLL_CTL_MOD`.
    Modify(EpollEvent),
    /// `EPOLL_CTL_DEL`.
    Delete,
}
