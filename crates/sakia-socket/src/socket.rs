//! The handle of an open socket.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags};

use crate::open::Open;
use crate::{Host, Kernel, Received};

/// A socket. Its methods are the POSIX calls of the same name, with their errors, and may be called from any
/// thread.
///
/// A clone is the same open socket, as after `dup(2)` but without a system call; the last one closes it.
/// Delayed bytes are sent before, in the background if the host has no room for them; with `SO_LINGER` the
/// close waits for room for that time. If received bytes were not read, the connection is reset and delayed
/// bytes are dropped, as the kernel does.
///
/// # Examples
/// ```
/// use rustix::io::Errno;
/// use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketType};
/// use sakia_socket::{Kernel, Layer, Options};
///
/// # fn main() -> rustix::io::Result<()> {
/// let layer = Layer::new(Kernel, Options::default());
/// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
/// a.send(b"hello", SendFlags::empty())?;
/// let mut buffer = [0; 16];
/// assert_eq!(b.recv(&mut buffer, RecvFlags::PEEK)?, 5);
/// assert_eq!(b.recv(&mut buffer, RecvFlags::empty())?, 5);
///
/// b.set_nonblocking(true)?;
/// assert_eq!(b.recv(&mut buffer, RecvFlags::empty()), Err(Errno::AGAIN));
/// a.shutdown(Shutdown::Write)?;
/// assert_eq!(b.recv(&mut buffer, RecvFlags::empty())?, 0, "the end");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Socket<H: Host = Kernel> {
    open: Arc<Open<H>>,
}

impl<H: Host> Clone for Socket<H> {
    fn clone(&self) -> Self {
        self.open.handles.fetch_add(1, Ordering::Relaxed);
        Self { open: Arc::clone(&self.open) }
    }
}

impl<H: Host> Drop for Socket<H> {
    fn drop(&mut self) {
        if self.open.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.open.news.close();
            self.open.close();
        }
    }
}

impl<H: Host> Socket<H> {
    pub(crate) fn of(open: Arc<Open<H>>) -> Self {
        Self { open }
    }

    pub(crate) fn open(&self) -> &Arc<Open<H>> {
        &self.open
    }

    /// `bind(2)`.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// See [`sakia_socket`](crate#examples).
    pub fn bind(&self, address: &SocketAddrAny) -> Result<(), Errno> {
        self.open.host().bind(&self.open.fd, address)
    }

    /// `listen(2)`.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// See [`sakia_socket`](crate#examples).
    pub fn listen(&self, backlog: i32) -> Result<(), Errno> {
        self.open.host().listen(&self.open.fd, backlog)
    }

    /// `accept4(2)` with `SOCK_CLOEXEC`: the connection and the peer's address, if it has one. The connection
    /// is in blocking mode, and inherits the same options as in the kernel.
    ///
    /// # Errors
    /// Those of the call, which leave the listener as it is.
    ///
    /// # Examples
    /// See [`sakia_socket`](crate#examples).
    pub fn accept(&self) -> Result<(Self, Option<SocketAddrAny>), Errno> {
        self.before_wait();
        let (fd, address) = self.open.host().accept(&self.open.fd, SocketFlags::CLOEXEC)?;
        let open = Open::new(&self.open.shared, fd, self.open.kind);
        open.is_connected.store(true, Ordering::Relaxed);
        open.is_plain.store(self.open.is_plain.load(Ordering::Relaxed), Ordering::Relaxed);
        if self.open.settings.is_any() {
            // A connection that was made before the listener's options were set has other options.
            open.load_settings();
        }
        Ok((Self::of(open), address))
    }

    /// `connect(2)`. On a stream in non-blocking mode it fails with `EINPROGRESS`, then `EALREADY`; once the
    /// socket is writable, [`take_error`](Socket::take_error) returns the result.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// See [`sakia_socket`](crate#examples).
    pub fn connect(&self, address: &SocketAddrAny) -> Result<(), Errno> {
        self.before_wait();
        self.open.host().connect(&self.open.fd, address)?;
        self.open.is_connected.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// `connect(2)` with `AF_UNSPEC`: removes the peer of a datagram socket, and resets a connection. Delayed
    /// bytes, and bytes that wait in memory to be read, are dropped like those in the kernel.
    ///
    /// # Errors
    /// Those of the call.
    pub fn disconnect(&self) -> Result<(), Errno> {
        self.open.disconnect()
    }

    /// `recv(2)`. `MSG_PEEK`, `MSG_WAITALL`, `MSG_TRUNC` and `MSG_DONTWAIT` are served from memory, too. With
    /// any other flag the kernel serves this call, and reading ahead ends for good.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// See [`Socket`](Socket#examples).
    pub fn recv(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        self.open.receive(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// `recvfrom(2)`: with `MSG_TRUNC` the result is the length of the whole datagram.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// See [`Socket::send_to`].
    pub fn recv_from(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<Received, Errno> {
        self.open.receive_from(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// `send(2)`. [`BrokenPipe`](crate::BrokenPipe) says when it raises `SIGPIPE`.
    ///
    /// # Errors
    /// Those of the call, and the error of earlier delayed bytes, once; `EPIPE` after it.
    ///
    /// # Examples
    /// See [`Socket`](Socket#examples).
    pub fn send(&self, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
        self.open.send(&[IoSlice::new(bytes)], flags)
    }

    /// `sendto(2)`.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// ```
    /// use std::net::SocketAddr;
    ///
    /// use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
    /// use sakia_socket::{Kernel, Layer, Options};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let layer = Layer::new(Kernel, Options::default());
    /// let one = layer.socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    /// let other = layer.socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    /// for socket in [&one, &other] {
    ///     socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    /// }
    /// one.send_to(b"hello", SendFlags::empty(), &other.local_address()?)?;
    /// let mut buffer = [0; 1500];
    /// let received = other.recv_from(&mut buffer, RecvFlags::empty())?;
    /// assert_eq!(&buffer[..received.bytes], b"hello");
    /// assert_eq!(received.from, Some(one.local_address()?));
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_to(
        &self,
        bytes: &[u8],
        flags: SendFlags,
        to: &SocketAddrAny,
    ) -> Result<usize, Errno> {
        self.send_message(&[IoSlice::new(bytes)], &[], flags, Some(to))
    }

    /// Sends the delayed bytes of this socket now, as far as the host has room. Returns the number of
    /// those left.
    ///
    /// # Errors
    /// Those of sending them, once; the bytes are dropped then.
    ///
    /// # Examples
    /// Writes that are always gathered leave when the program waits, or here:
    /// ```
    /// use std::net::SocketAddr;
    ///
    /// use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
    /// use sakia_socket::{Kernel, Layer, Options, When};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let mut options = Options::default();
    /// options.gather = When::Always;
    /// let layer = Layer::new(Kernel, options);
    /// let listener = layer.socket(AddressFamily::INET, SocketType::STREAM, None)?;
    /// listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    /// listener.listen(16)?;
    /// let client = layer.socket(AddressFamily::INET, SocketType::STREAM, None)?;
    /// client.connect(&listener.local_address()?)?;
    /// let (server, _) = listener.accept()?;
    ///
    /// client.send(b"hel", SendFlags::empty())?;
    /// client.send(b"lo", SendFlags::empty())?;
    /// assert_eq!(client.flush()?, 0);
    /// assert_eq!(client.delayed(), 0);
    /// let mut buffer = [0; 5];
    /// assert_eq!(server.recv(&mut buffer, RecvFlags::WAITALL)?, 5);
    /// assert_eq!(&buffer, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(&self) -> Result<usize, Errno> {
        self.open.flush()
    }

    /// `shutdown(2)`. Bytes that wait in memory can still be read. The peer sees the end after the last
    /// delayed byte.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// See [`Socket`](Socket#examples).
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Errno> {
        self.open.shut_down(how)
    }

    /// `fcntl(F_SETFL)` with or without `O_NONBLOCK`, for all clones.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// See [`Socket`](Socket#examples).
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> Result<(), Errno> {
        self.open.host().set_nonblocking(&self.open.fd, is_nonblocking)?;
        self.open.is_nonblocking.store(is_nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// `fcntl(F_GETFL)`: returns true with `O_NONBLOCK`.
    ///
    /// # Examples
    /// See [`Socket::set_nonblocking`].
    pub fn is_nonblocking(&self) -> bool {
        self.open.is_nonblocking(false)
    }

    /// `ioctl(FIONREAD)`: bytes that can be read, those in memory included.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// ```
    /// use rustix::net::{AddressFamily, SendFlags, SocketType};
    /// use sakia_socket::{Kernel, Layer, Options};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let layer = Layer::new(Kernel, Options::default());
    /// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
    /// a.send(b"hello", SendFlags::empty())?;
    /// assert_eq!((a.unread()?, b.unread()?), (0, 5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn unread(&self) -> Result<u64, Errno> {
        let unread = self.open.host().unread(&self.open.fd)?;
        Ok(unread.saturating_add(self.open.unread() as u64))
    }

    /// `ioctl(SIOCOUTQ)`: bytes that were sent and have not arrived, delayed ones included.
    ///
    /// # Errors
    /// Those of the call; `ENOTTY` if the host does not know, as [`Kernel`]: then add
    /// [`delayed`](Socket::delayed) to the result of the program's own call.
    pub fn unsent(&self) -> Result<u64, Errno> {
        let unsent = self.open.host().unsent(&self.open.fd)?;
        Ok(unsent.saturating_add(self.open.delayed() as u64))
    }

    /// Returns the number of bytes that are delayed.
    ///
    /// # Examples
    /// See [`Socket::flush`].
    pub fn delayed(&self) -> usize {
        self.open.delayed()
    }

    /// `ioctl(SIOCATMARK)`: returns true if the next byte is the urgent one. Bytes in memory come before it.
    ///
    /// # Errors
    /// Those of the call; `ENOTTY` if the host does not know, as [`Kernel`].
    pub fn is_at_mark(&self) -> Result<bool, Errno> {
        self.open.be_plain();
        Ok(self.open.host().is_at_mark(&self.open.fd)? && self.open.unread() == 0)
    }

    /// `getsockopt(SO_ERROR)`: takes the pending error, also one of delayed bytes.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// ```
    /// use std::net::SocketAddr;
    ///
    /// use rustix::io::Errno;
    /// use rustix::net::{AddressFamily, SocketType};
    /// use sakia_socket::{Events, Kernel, Layer, Options, PollEntry};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let layer = Layer::new(Kernel, Options::default());
    /// let gone = layer.socket(AddressFamily::INET, SocketType::STREAM, None)?;
    /// gone.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    /// let nowhere = gone.local_address()?;
    ///
    /// let client = layer.socket(AddressFamily::INET, SocketType::STREAM, None)?;
    /// client.set_nonblocking(true)?;
    /// if client.connect(&nowhere) == Err(Errno::INPROGRESS) {
    ///     layer.poll(&mut [PollEntry::new(&client, Events::OUT)], None)?;
    ///     assert_eq!(client.take_error()?, Some(Errno::CONNREFUSED));
    /// }
    /// assert_eq!(client.take_error()?, None, "it was taken");
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_error(&self) -> Result<Option<Errno>, Errno> {
        self.open
            .take_error()
            .map_or_else(|| self.open.host().take_error(&self.open.fd), |errno| Ok(Some(errno)))
    }

    /// `getsockname(2)`.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// See [`sakia_socket`](crate#examples).
    pub fn local_address(&self) -> Result<SocketAddrAny, Errno> {
        self.open.host().local_address(&self.open.fd)
    }

    /// `getpeername(2)`; `None` for a peer without a name.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Examples
    /// ```
    /// use rustix::net::{AddressFamily, SocketType};
    /// use sakia_socket::{Kernel, Layer, Options};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let layer = Layer::new(Kernel, Options::default());
    /// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
    /// assert!(a.peer_address()?.is_some() || b.peer_address()?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn peer_address(&self) -> Result<Option<SocketAddrAny>, Errno> {
        self.open.host().peer_address(&self.open.fd)
    }

    /// Returns the host's descriptor, for calls that do not concern the bytes of a stream and are not among
    /// these methods. For all other calls use [`hand_back`](Socket::hand_back).
    pub fn fd(&self) -> &H::Fd {
        &self.open.fd
    }

    /// Gives the socket back to the kernel for good, before a call that this library does not have, such as
    /// `splice(2)`. Delayed bytes are sent, and from now on each call is a call of the host.
    ///
    /// # Errors
    /// - `EAGAIN` if delayed bytes are left for which the host has no room; a later call may succeed.
    /// - The error of sending delayed bytes.
    /// - `EBUSY` if bytes wait in memory: read them first, then the next call succeeds.
    ///
    /// # Examples
    /// The kernel sends a file, behind all bytes that were sent before:
    /// ```
    /// use std::os::fd::AsFd;
    ///
    /// use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
    /// use sakia_socket::{Kernel, Layer, Options};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let layer = Layer::new(Kernel, Options::default());
    /// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
    /// let file = std::fs::File::open("Cargo.toml").expect("a file");
    /// a.send(b"size 9: ", SendFlags::empty())?;
    /// let fd = a.hand_back()?;
    /// assert_eq!(rustix::fs::sendfile(fd.as_fd(), &file, None, 9)?, 9);
    /// let mut buffer = [0; 17];
    /// b.recv(&mut buffer, RecvFlags::WAITALL)?;
    /// assert_eq!(&buffer, b"size 9: [package]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn hand_back(&self) -> Result<&H::Fd, Errno> {
        self.open.be_plain();
        if self.flush()? > 0 {
            return Err(Errno::AGAIN);
        }
        if self.open.unread() > 0 { Err(Errno::BUSY) } else { Ok(&self.open.fd) }
    }

    pub(crate) fn before_wait(&self) {
        if !self.open.is_nonblocking(false) {
            self.open.shared.before_wait();
        }
    }
}
