//! Unix stream sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt;
use sakia_driver::{
    BufResult, ControlMessages, Credentials, Domain, Fd, Handle, IoBuf, IoBufMut, ReceivedControl,
    RecvBuf, SocketAddress, SocketType,
};

use super::listener::private::Accepts;
use super::listener::{AcceptSocket, listener, object};
use super::socket::private::{Address, Connected};
use super::socket::{Socket, Stream, stream};
use super::sockopt::{option, tune};
use super::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::{Error, Result};
use crate::error::{Context, Object};
use crate::executor::current;
use crate::time::sleep;

/// The most connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The pause before a connect is tried again after the queue was full: the shortest and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A Unix stream connection. Dropping it closes it.
///
/// It has the methods of a [`TcpStream`](super::TcpStream) for bytes, directions and addresses, not those for
/// options, and passes descriptors ([`send_message`](UnixStream::send_message)). Descriptors that came for a
/// dropped [`recv_message`](UnixStream::recv_message) go to the next one; they are closed by any other receive
/// instead, with the stream, or when it is given to `std`.
///
/// # Examples
/// ```
/// use sakia::fs::File;
/// use sakia::io::BufResultExt;
/// use sakia::net::{ControlMessage, ControlMessages, UnixStream};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let (mut near, mut far) = UnixStream::pair()?;
///     let file = File::open("/proc/self/comm").await?;
///     let control = ControlMessages::new().descriptor(file.as_ref());
///     near.send_message("a file", control).await.value()?;
///
///     let room = ControlMessage::space(4);
///     let ((count, control), buf) = far.recv_message(vec![0; 100], room).await.both()?;
///     assert_eq!(&buf[..count], b"a file");
///     for fd in control.descriptors {
///         let content = File::try_from(fd)?.read_at(Vec::with_capacity(100), 0).await.buffer()?;
///         assert!(content.ends_with(b"\n"));
///     }
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct UnixStream {
    socket: Socket,
}

impl UnixStream {
    /// Connects to the socket at `path`. While the listener's queue of connections is full, it waits.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// The errors name the path:
    /// - `ENOENT`: no such path. `ECONNREFUSED`: no socket listens there, perhaps not any more.
    /// - `EACCES`: not allowed to write to it. `EPROTOTYPE`: it is a datagram socket.
    /// - `ENAMETOOLONG`: a path of more than 107 bytes. `EINVAL`: an empty path, or one with a NUL.
    /// - `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left. Otherwise as `connect(2)`.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`UnixListener`](UnixListener#examples).
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::connect_to(SocketAddress::unix(path).at("connect", path)?).await
    }

    /// Connects to the socket with this address, which may be an abstract name.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// `EINVAL`: an unnamed address. Otherwise as [`connect`](UnixStream::connect).
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// ```
    /// use std::os::linux::net::SocketAddrExt;
    /// use std::os::unix::net::SocketAddr;
    ///
    /// use sakia::io::BufResultExt;
    /// use sakia::net::{UnixListener, UnixStream};
    ///
    /// # sakia::block_on(async {
    /// // A name in the abstract name space, which leaves no file behind.
    /// let name = format!("sakia-doc-{}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(name)?;
    /// let listener = UnixListener::bind_addr(&address).await?;
    /// let mut client = UnixStream::connect_addr(&address).await?;
    /// let (mut server, _) = listener.accept().await?;
    /// client.write_all("hello").await.value()?;
    /// assert_eq!(&*server.recv().await?, b"hello");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub async fn connect_addr(address: &SocketAddr) -> Result<Self> {
        Self::connect_to(own_address("connect", address)?).await
    }

    async fn connect_to(address: SocketAddress) -> Result<Self> {
        let driver = current().driver.handle().clone();
        let failed = |operation| move |error| Error::new(operation, object(&address), error);
        loop {
            let fd = driver.socket(Domain::UNIX, SocketType::STREAM, 0).await;
            let fd = fd.map_err(failed("make a socket for"))?;
            match connect(&driver, &fd, &address).await {
                Ok(()) => return Ok(Self::of(Socket::new(driver.connection(fd)))),
                // The state of the socket is unknown.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("connect")(error)),
            }
        }
    }

    /// Makes two streams that are connected with each other, and have no addresses.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: no descriptor or memory left. As `socketpair(2)`.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`UnixStream`](UnixStream#examples).
    #[doc(alias = "socketpair")]
    pub fn pair() -> io::Result<(Self, Self)> {
        let driver = current().driver.handle().clone();
        let (one, other) = driver.socket_pair(SocketType::STREAM)?;
        let stream = |fd| Self::of(Socket::new(driver.connection(fd)));
        Ok((stream(one), stream(other)))
    }

    /// Returns the process that connected, as it was at that time.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::net::UnixStream;
    ///
    /// # sakia::block_on(async {
    /// let (near, _far) = UnixStream::pair()?;
    /// let peer = near.peer_cred()?;
    /// assert_eq!(peer.pid(), i32::try_from(std::process::id()).ok());
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "SO_PEERCRED")]
    pub fn peer_cred(&self) -> io::Result<UCred> {
        let driver = self.socket.connection().driver();
        let Credentials { process, user, group } = driver.peer_credentials(self.socket.fd())?;
        Ok(UCred::new(process, user, group))
    }

    /// Sets whether received messages have the credentials of their sender. See [`UCred::of`].
    ///
    /// # Errors
    /// As `setsockopt(2)`; `EOPNOTSUPP` on a simulated kernel.
    ///
    /// # Examples
    /// See [`UCred`](UCred#examples).
    #[doc(alias = "SO_PASSCRED")]
    pub fn set_passcred(&self, passcred: bool) -> io::Result<()> {
        option(self.socket.fd(), |fd| sockopt::set_socket_passcred(fd, passcred))
    }

    /// Returns whether received messages have the credentials of their sender.
    ///
    /// # Errors
    /// As `getsockopt(2)`; `EOPNOTSUPP` on a simulated kernel.
    pub fn passcred(&self) -> io::Result<bool> {
        option(self.socket.fd(), sockopt::socket_passcred)
    }
}

/// The method that sends control messages.
macro_rules! sends_messages {
    () => {
        /// Sends up to `buf.bytes_len()` bytes, with descriptors and other control messages, which go with
        /// the first of the bytes. If the kernel takes fewer bytes, send the rest by `write_all`.
        ///
        /// Descriptors stay open until they are sent. Those that the receiver never takes are closed.
        ///
        /// Resolves to the number of bytes sent and the buffer.
        ///
        /// # Cancel safety
        /// As `write`: dropping the future leaves unknown whether the descriptors and some of the bytes were
        /// sent.
        ///
        /// # Errors
        /// - `EINVAL`: no bytes, so that no control message can be sent; a control message that the socket
        ///   does not support; more than 253 descriptors.
        /// - `ETOOMANYREFS`: too many descriptors of this user are in flight.
        /// - Otherwise as `write`.
        ///
        /// # Panics
        /// When a descriptor belongs to another runtime.
        ///
        /// # Examples
        /// See [`UnixStream`](crate::net::UnixStream#examples).
        ///
        /// # Kernel
        /// 5.3; on the ring, control messages since 5.12; older kernels return `EINVAL`. Source:
        /// `io_uring_prep_sendmsg(3)`, `unix(7)`.
        #[doc(alias = "sendmsg")]
        #[doc(alias = "SCM_RIGHTS")]
        pub async fn send_message<T: IoBuf>(
            &mut self,
            buf: T,
            control: ControlMessages,
        ) -> BufResult<usize, T> {
            self.socket().send_message(buf, control).await
        }
    };
}

/// The method that receives control messages.
macro_rules! receives_messages {
    () => {
        /// Receives up to `buf.len()` bytes (an empty `Vec`: up to its capacity), and the control messages
        /// that came with them, for which there are `control_bytes` bytes of room.
        /// [`ControlMessage::space`](crate::net::ControlMessage::space) returns the room to ask for: `4 * n`
        /// bytes for `n` descriptors, 12 for credentials.
        ///
        /// A receive ends with the bytes that descriptors came with, but bytes that were sent earlier may
        /// precede them: let the bytes say which message has descriptors. Descriptors come in the order in
        /// which they were sent.
        ///
        /// **All other receiving methods close the descriptors** that come with their bytes, and `recv`
        /// receives ahead. So if descriptors are expected, receive by this method only.
        ///
        /// Resolves to the number of bytes and the control messages that came with them; 0 bytes mean that
        /// the peer sends no more.
        ///
        /// # Cancel safety
        /// Dropping the future loses nothing: bytes and descriptors that had come by then go to the next
        /// call.
        ///
        /// # Errors
        /// As `read`. Descriptors for which there is no room, or no free number, are closed, and
        /// [`is_truncated`](ReceivedControl::is_truncated) returns true.
        ///
        /// # Examples
        /// See [`UnixStream`](crate::net::UnixStream#examples).
        ///
        /// # Kernel
        /// 5.3; on the ring, room for control messages since 5.12; older kernels return `EINVAL`. Source:
        /// `io_uring_prep_recvmsg(3)`, `unix(7)`.
        #[doc(alias = "recvmsg")]
        pub async fn recv_message<T: IoBufMut>(
            &mut self,
            buf: T,
            control_bytes: usize,
        ) -> BufResult<(usize, ReceivedControl), T> {
            self.socket().recv_message(buf, control_bytes).await
        }
    };
}

impl UnixStream {
    sends_messages!();
    receives_messages!();
}

impl OwnedReadHalf<UnixStream> {
    receives_messages!();
}

impl OwnedWriteHalf<UnixStream> {
    sends_messages!();
}

impl ReadHalf<'_, UnixStream> {
    receives_messages!();
}

impl WriteHalf<'_, UnixStream> {
    sends_messages!();
}

/// A socket that accepts Unix stream connections. Dropping it closes it, and the connections that wait to be
/// accepted. The file at its path stays, as with `std`.
///
/// After the first request for a connection, the kernel accepts up to 64 ahead. They have a descriptor before
/// a task takes them.
///
/// # Examples
/// ```
/// use sakia::io::BufResultExt;
/// use sakia::net::{UnixListener, UnixStream};
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("sakia-unix-{}", std::process::id()));
/// sakia::block_on(async {
///     let listener = UnixListener::bind(&path).await?;
///     let mut client = UnixStream::connect(&path).await?;
///     let (mut server, peer) = listener.accept().await?;
///     assert!(peer.is_unnamed());
///     client.write_all("hello").await.value()?;
///     assert_eq!(&*server.recv().await?, b"hello");
///     sakia::fs::remove_file(&path).await?;
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct UnixListener {
    socket: AcceptSocket,
}

impl UnixListener {
    /// Makes a socket at `path`, and listens on it.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket. Its file may have been made by then, and stays.
    ///
    /// # Errors
    /// The errors name the path:
    /// - `EADDRINUSE`: the path exists, perhaps as the file of a listener that has ended.
    /// - `ENOENT`, `ENOTDIR`, `EACCES`, `EROFS`: no socket can be made there.
    /// - `ENAMETOOLONG`: a path of more than 107 bytes. `EINVAL`: an empty path, or one with a NUL.
    /// - `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left. Otherwise as `bind(2)`.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`UnixListener`](UnixListener#examples).
    ///
    /// # Kernel
    /// 6.11 for bind and listen on the ring. Source: `io_uring_prep_listen(3)`.
    pub async fn bind(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::bind_to(SocketAddress::unix(path).at("bind", path)?).await
    }

    /// Listens on an address, which may be an abstract name.
    ///
    /// # Cancel safety
    /// As [`bind`](UnixListener::bind).
    ///
    /// # Errors
    /// `EADDRINUSE`: another socket has the name. `EINVAL`: no address. Otherwise as
    /// [`bind`](UnixListener::bind).
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`UnixStream::connect_addr`].
    ///
    /// # Kernel
    /// 6.11 for bind and listen on the ring. Source: `io_uring_prep_listen(3)`.
    pub async fn bind_addr(address: &SocketAddr) -> Result<Self> {
        Self::bind_to(own_address("bind", address)?).await
    }

    async fn bind_to(address: SocketAddress) -> Result<Self> {
        let driver = current().driver.handle().clone();
        let failed = |operation| move |error| Error::new(operation, object(&address), error);
        let fd = driver.socket(Domain::UNIX, SocketType::STREAM, 0).await;
        let fd = fd.map_err(failed("make a socket for"))?;
        driver.bind(&fd, &address).await.map_err(failed("bind"))?;
        driver.listen(&fd, BACKLOG).await.map_err(failed("listen on"))?;
        Ok(Self::new(fd, driver))
    }
}

stream!(UnixStream, std::os::unix::net::UnixStream, SocketAddr);
listener!(UnixListener, UnixStream, std::os::unix::net::UnixListener, SocketAddr);

impl Address for SocketAddr {
    fn of(address: &SocketAddress) -> io::Result<Self> {
        match (address.path(), address.name()) {
            (Some(path), _) => Self::from_pathname(path),
            (_, Some(name)) => Self::from_abstract_name(name),
            _ if address.is_unnamed() => Self::from_pathname(""),
            _ => Err(Errno::AFNOSUPPORT.into()),
        }
    }
}

/// Connects a socket, and tries again as long as the listener's queue is full: a blocking socket would wait
/// for that in a worker of the kernel.
async fn connect(driver: &Handle, fd: &Fd, address: &SocketAddress) -> io::Result<()> {
    let set_nonblocking = |is_nonblocking| {
        let flags = if is_nonblocking { OFlags::NONBLOCK } else { OFlags::empty() };
        tune(fd, |fd| fcntl_setfl(fd, flags))
    };
    let mut pause = PAUSE_MIN;
    set_nonblocking(true)?;
    loop {
        match driver.connect(fd, address).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            result => return result.and_then(|()| set_nonblocking(false)),
        }
    }
}

/// Returns an address in the driver's form.
pub(super) fn own_address(operation: &'static str, address: &SocketAddr) -> Result<SocketAddress> {
    let own = match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => SocketAddress::unix(path),
        (_, Some(name)) => SocketAddress::abstract_name(name),
        _ => Err(Errno::INVAL.into()),
    };
    own.map_err(|error| Error::new(operation, Object::Name(format!("{address:?}")), error))
}

/// A process and its user, as the kernel knows them.
///
/// # Examples
/// The sender of each message:
/// ```
/// use sakia::io::BufResultExt;
/// use sakia::net::{ControlMessage, UCred, UnixStream};
///
/// # sakia::block_on(async {
/// let (mut near, mut far) = UnixStream::pair()?;
/// far.set_passcred(true)?;
/// near.write_all("hello").await.value()?;
/// let room = ControlMessage::space(12);
/// let ((count, control), buf) = far.recv_message(vec![0; 100], room).await.both()?;
/// assert_eq!(&buf[..count], b"hello");
/// let sender = UCred::of(&control).expect("it was asked for");
/// assert_eq!(sender.pid(), i32::try_from(std::process::id()).ok());
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UCred {
    pid: Option<i32>,
    uid: u32,
    gid: u32,
}

impl UCred {
    /// Returns the sender of a message that [`recv_message`](UnixStream::recv_message) received. `None`
    /// without [`set_passcred`](UnixStream::set_passcred), or if there was no room.
    ///
    /// # Examples
    /// See [`UCred`](UCred#examples).
    #[doc(alias = "SCM_CREDENTIALS")]
    pub fn of(control: &ReceivedControl) -> Option<Self> {
        const SOL_SOCKET: u32 = 1;
        const SCM_CREDENTIALS: u32 = 2;
        let is_it = |level, kind| (level, kind) == (SOL_SOCKET, SCM_CREDENTIALS);
        let message = control.messages().find(|message| is_it(message.level, message.kind))?;
        let bytes: [u8; 12] = message.bytes.try_into().ok()?;
        let [pid, uid, gid] = [0, 4, 8]
            .map(|at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
        Some(Self::new(pid, uid, gid))
    }

    /// Converts the kernel's numbers. 0 stands for a process without a number in this name space.
    fn new(pid: u32, uid: u32, gid: u32) -> Self {
        Self { pid: i32::try_from(pid).ok().filter(|&pid| pid > 0), uid, gid }
    }

    /// Returns the number of the process; `None` if it has none in this process's name space.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Returns the number of its user.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the number of its group.
    pub fn gid(&self) -> u32 {
        self.gid
    }
}
