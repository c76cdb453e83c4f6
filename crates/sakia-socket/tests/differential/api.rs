//! The calls of programs, on both kinds of sockets.

use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{self as kernel_options, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrAny, SocketType,
};
use sakia_socket::{
    Control, Events, Kernel, Layer, Options, PollEntry, SendControl, Socket, control_space, sockopt,
};

use crate::support;
use crate::support::watched::{self, SIOCOUTQNSD, ioctl};

/// The connections of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Unix,
    Tcp,
    UnixDatagrams,
    Udp,
}

/// A message that was received: its length, flags, number of descriptors, and whether it had a sender.
pub type Message = (usize, ReturnFlags, usize, bool);

/// Makes sockets.
pub trait Maker {
    type End: End;

    fn pair(&self, wire: Wire) -> (Self::End, Self::End);
}

/// A handle of a socket.
pub trait End: Debug + Send + Sync + Sized + 'static {
    fn send(&self, pieces: &[IoSlice<'_>], flags: SendFlags) -> Result<usize, Errno>;
    fn recv(&self, pieces: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize, Errno>;
    fn pass(&self, bytes: &[u8], fds: &[&OwnedFd], flags: SendFlags) -> Result<usize, Errno>;
    fn message(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        room: usize,
        flags: RecvFlags,
    ) -> Result<Message, Errno>;
    fn events(&self, wanted: Events, timeout: Duration) -> Events;
    fn shutdown(&self, how: Shutdown) -> Result<(), Errno>;
    fn unread(&self) -> Result<u64, Errno>;
    /// Returns the number of bytes that the kernel has not sent yet.
    fn unsent(&self) -> i32;
    /// Returns whether the kernel would send the end of the stream at once.
    fn has_window(&self) -> bool;
    fn take_error(&self) -> Result<Option<Errno>, Errno>;
    fn has_peer(&self) -> Result<bool, Errno>;
    fn set_nonblocking(&self, is_nonblocking: bool) -> Result<(), Errno>;
    fn set_timeout(&self, is_sending: bool, timeout: Option<Duration>) -> Result<(), Errno>;
    fn timeout(&self, is_sending: bool) -> Result<Option<Duration>, Errno>;
    fn set_linger(&self, linger: Option<Duration>) -> Result<(), Errno>;
    fn set_buffers(&self, bytes: usize);
    fn set_oobinline(&self) -> Result<(), Errno>;
    fn set_keepalive(&self, is_on: bool) -> Result<(), Errno>;
    fn set_cork(&self, is_on: bool) -> Result<(), Errno>;
    fn disconnect(&self) -> Result<(), Errno>;
    fn another(&self) -> Self;
    /// Sends the delayed bytes of all sockets.
    fn flush(&self);
    /// Gives the socket back.
    fn hand_back(&self) {}
    /// Sends the delayed bytes of this socket.
    fn flush_this(&self) -> Result<usize, Errno> {
        Ok(0)
    }
}

/// Makes sockets of the kernel.
pub struct OfKernel;

/// A socket of the kernel.
#[derive(Debug)]
pub struct Plain(OwnedFd);

fn loopback() -> SocketAddrAny {
    SocketAddr::from(([127, 0, 0, 1], 0)).into()
}

/// Returns addresses for a pair of UDP sockets that no other pair has.
///
/// The kernel gives the port of a closed socket to another one, and a port that it has chosen is given up by
/// a disconnect: then the next send chooses one again, which may be the same.
fn udp_addresses() -> [SocketAddrAny; 2] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let ip = [127, (1 + process::id() % 250) as u8, high, low];
    [5001, 5002].map(|port| SocketAddr::from((ip, port)).into())
}

impl Maker for OfKernel {
    type End = Plain;

    fn pair(&self, wire: Wire) -> (Plain, Plain) {
        use rustix::net::*;
        let cloexec = SocketFlags::CLOEXEC;
        let unix = |kind| {
            let (a, b) = socketpair(AddressFamily::UNIX, kind, cloexec, None).expect("a pair");
            (Plain(a), Plain(b))
        };
        let internet = |kind, address| {
            let fd = socket_with(AddressFamily::INET, kind, cloexec, None).expect("a socket");
            bind(&fd, &address).expect("a port");
            fd
        };
        match wire {
            Wire::Unix => unix(SocketType::STREAM),
            Wire::UnixDatagrams => unix(SocketType::DGRAM),
            Wire::Tcp => {
                let listener = internet(SocketType::STREAM, loopback());
                listen(&listener, 1).expect("a listener");
                let a = socket_with(AddressFamily::INET, SocketType::STREAM, cloexec, None);
                let a = a.expect("a socket");
                connect(&a, &getsockname(&listener).expect("an address")).expect("a connection");
                let b = accept_with(&listener, cloexec).expect("a connection");
                for end in [&a, &b] {
                    kernel_options::set_tcp_nodelay(end, true).expect("an option");
                }
                (Plain(a), Plain(b))
            }
            Wire::Udp => {
                let [near, far] = udp_addresses();
                let a = internet(SocketType::DGRAM, near.clone());
                let b = internet(SocketType::DGRAM, far.clone());
                connect(&a, &far).expect("a peer");
                connect(&b, &near).expect("a peer");
                (Plain(a), Plain(b))
            }
        }
    }
}

impl End for Plain {
    fn send(&self, pieces: &[IoSlice<'_>], flags: SendFlags) -> Result<usize, Errno> {
        let flags = flags | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.0, pieces, &mut SendAncillaryBuffer::default(), flags)
    }

    fn recv(&self, pieces: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize, Errno> {
        let mut none = RecvAncillaryBuffer::default();
        rustix::net::recvmsg(&self.0, pieces, &mut none, flags).map(|message| message.bytes)
    }

    fn pass(&self, bytes: &[u8], fds: &[&OwnedFd], flags: SendFlags) -> Result<usize, Errno> {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); 64];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let pieces = [IoSlice::new(bytes)];
        rustix::net::sendmsg(&self.0, &pieces, &mut control, flags | SendFlags::NOSIGNAL)
    }

    fn message(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        room: usize,
        flags: RecvFlags,
    ) -> Result<Message, Errno> {
        let mut space = vec![MaybeUninit::uninit(); room + 8];
        let begin = space.as_ptr().align_offset(8);
        let mut control = RecvAncillaryBuffer::new(&mut space[begin..begin + room]);
        let message = rustix::net::recvmsg(&self.0, pieces, &mut control, flags)?;
        let fds = control.drain().map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.count(),
            _ => 0,
        });
        Ok((message.bytes, message.flags, fds.sum(), message.address.is_some()))
    }

    fn events(&self, wanted: Events, timeout: Duration) -> Events {
        let wanted = PollFlags::from_bits_retain(wanted.0 as u16);
        let mut fds = [PollFd::new(&self.0, wanted)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        poll(&mut fds, Some(&timeout)).expect("a poll");
        Events(fds[0].revents().bits().into())
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), Errno> {
        rustix::net::shutdown(&self.0, how)
    }

    fn unread(&self) -> Result<u64, Errno> {
        rustix::io::ioctl_fionread(&self.0)
    }

    fn unsent(&self) -> i32 {
        ioctl(&self.0, SIOCOUTQNSD).expect("a socket of TCP")
    }

    fn has_window(&self) -> bool {
        watched::has_window(&self.0)
    }

    fn take_error(&self) -> Result<Option<Errno>, Errno> {
        kernel_options::socket_error(&self.0).map(Result::err)
    }

    fn has_peer(&self) -> Result<bool, Errno> {
        rustix::net::getpeername(&self.0).map(|peer| peer.is_some())
    }

    fn set_nonblocking(&self, is_nonblocking: bool) -> Result<(), Errno> {
        let mut flags = fcntl_getfl(&self.0)?;
        flags.set(OFlags::NONBLOCK, is_nonblocking);
        fcntl_setfl(&self.0, flags)
    }

    fn set_timeout(&self, is_sending: bool, timeout: Option<Duration>) -> Result<(), Errno> {
        let which = if is_sending { Timeout::Send } else { Timeout::Recv };
        kernel_options::set_socket_timeout(&self.0, which, timeout)
    }

    fn timeout(&self, is_sending: bool) -> Result<Option<Duration>, Errno> {
        let which = if is_sending { Timeout::Send } else { Timeout::Recv };
        kernel_options::socket_timeout(&self.0, which)
    }

    fn set_linger(&self, linger: Option<Duration>) -> Result<(), Errno> {
        kernel_options::set_socket_linger(&self.0, linger)
    }

    fn set_buffers(&self, bytes: usize) {
        kernel_options::set_socket_send_buffer_size(&self.0, bytes).expect("an option");
        kernel_options::set_socket_recv_buffer_size(&self.0, bytes).expect("an option");
    }

    fn set_oobinline(&self) -> Result<(), Errno> {
        kernel_options::set_socket_oobinline(&self.0, true)
    }

    fn set_keepalive(&self, is_on: bool) -> Result<(), Errno> {
        kernel_options::set_socket_keepalive(&self.0, is_on)
    }

    fn set_cork(&self, is_on: bool) -> Result<(), Errno> {
        kernel_options::set_tcp_cork(&self.0, is_on)
    }

    fn disconnect(&self) -> Result<(), Errno> {
        rustix::net::connect_unspec(&self.0)
    }

    fn another(&self) -> Self {
        Self(rustix::io::dup(&self.0).expect("a descriptor"))
    }

    fn flush(&self) {}
}

/// Makes sockets of the library.
pub struct OfLayer(pub Layer<Kernel>);

impl OfLayer {
    pub fn new(options: Options) -> Self {
        Self(Layer::new(Kernel, options))
    }
}

/// A socket of the library.
#[derive(Debug)]
pub struct Ours {
    layer: Layer<Kernel>,
    socket: Socket,
}

impl Maker for OfLayer {
    type End = Ours;

    fn pair(&self, wire: Wire) -> (Ours, Ours) {
        let ours = |socket| Ours { layer: self.0.clone(), socket };
        let udp = |address| {
            let socket = self.0.socket(AddressFamily::INET, SocketType::DGRAM, None);
            let socket = socket.expect("a socket");
            socket.bind(address).expect("a port");
            socket
        };
        let (a, b) = match wire {
            Wire::Unix => support::unix(&self.0),
            Wire::Tcp => support::tcp(&self.0),
            Wire::UnixDatagrams => {
                self.0.pair(AddressFamily::UNIX, SocketType::DGRAM).expect("a pair")
            }
            Wire::Udp => {
                let [near, far] = udp_addresses();
                let (a, b) = (udp(&near), udp(&far));
                a.connect(&far).expect("a peer");
                b.connect(&near).expect("a peer");
                (a, b)
            }
        };
        (ours(a), ours(b))
    }
}

impl End for Ours {
    fn send(&self, pieces: &[IoSlice<'_>], flags: SendFlags) -> Result<usize, Errno> {
        self.socket.send_vectored(pieces, flags)
    }

    fn recv(&self, pieces: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize, Errno> {
        self.socket.recv_vectored(pieces, flags)
    }

    fn pass(&self, bytes: &[u8], fds: &[&OwnedFd], flags: SendFlags) -> Result<usize, Errno> {
        let control = [SendControl::Rights(fds)];
        self.socket.send_message(&[IoSlice::new(bytes)], &control, flags, None)
    }

    fn message(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        room: usize,
        flags: RecvFlags,
    ) -> Result<Message, Errno> {
        assert_eq!(control_space(4), 24, "as the kernel counts");
        let message = self.socket.recv_message(pieces, room, flags)?;
        let fds = message.control.iter().map(|control| match control {
            Control::Rights(fds) => fds.len(),
            _ => 0,
        });
        let received = &message.received;
        Ok((received.bytes, received.flags, fds.sum(), received.from.is_some()))
    }

    fn events(&self, wanted: Events, timeout: Duration) -> Events {
        let mut entries = [PollEntry::new(&self.socket, wanted)];
        let count = self.layer.poll(&mut entries, Some(timeout)).expect("a poll");
        assert_eq!(count, usize::from(!entries[0].ready().is_empty()));
        entries[0].ready()
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), Errno> {
        self.socket.shutdown(how)
    }

    fn unread(&self) -> Result<u64, Errno> {
        self.socket.unread()
    }

    fn unsent(&self) -> i32 {
        ioctl(self.socket.fd(), SIOCOUTQNSD).expect("a socket of TCP")
    }

    fn has_window(&self) -> bool {
        watched::has_window(self.socket.fd())
    }

    fn take_error(&self) -> Result<Option<Errno>, Errno> {
        self.socket.take_error()
    }

    fn has_peer(&self) -> Result<bool, Errno> {
        self.socket.peer_address().map(|peer| peer.is_some())
    }

    fn set_nonblocking(&self, is_nonblocking: bool) -> Result<(), Errno> {
        self.socket.set_nonblocking(is_nonblocking)
    }

    fn set_timeout(&self, is_sending: bool, timeout: Option<Duration>) -> Result<(), Errno> {
        let option = if is_sending { sockopt::SO_SNDTIMEO } else { sockopt::SO_RCVTIMEO };
        self.socket.set_option(option, timeout)
    }

    fn timeout(&self, is_sending: bool) -> Result<Option<Duration>, Errno> {
        let option = if is_sending { sockopt::SO_SNDTIMEO } else { sockopt::SO_RCVTIMEO };
        self.socket.option(option)
    }

    fn set_linger(&self, linger: Option<Duration>) -> Result<(), Errno> {
        self.socket.set_option(sockopt::SO_LINGER, linger)
    }

    fn set_buffers(&self, bytes: usize) {
        for option in [sockopt::SO_SNDBUF, sockopt::SO_RCVBUF] {
            self.socket.set_option(option, bytes as i32).expect("an option");
        }
    }

    fn set_oobinline(&self) -> Result<(), Errno> {
        self.socket.set_option(sockopt::SO_OOBINLINE, true)
    }

    fn set_keepalive(&self, is_on: bool) -> Result<(), Errno> {
        self.socket.set_option(sockopt::SO_KEEPALIVE, is_on)
    }

    fn set_cork(&self, is_on: bool) -> Result<(), Errno> {
        self.socket.set_option(sockopt::TCP_CORK, is_on)
    }

    fn disconnect(&self) -> Result<(), Errno> {
        self.socket.disconnect()
    }

    fn another(&self) -> Self {
        Self { layer: self.layer.clone(), socket: self.socket.clone() }
    }

    fn flush(&self) {
        self.layer.flush();
    }

    fn hand_back(&self) {
        if let Err(errno) = self.socket.hand_back() {
            assert!(matches!(errno, Errno::BUSY | Errno::AGAIN), "{errno:?}");
        }
    }

    fn flush_this(&self) -> Result<usize, Errno> {
        self.socket.flush()
    }
}
