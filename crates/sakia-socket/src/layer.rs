//! A host with its sockets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType};

use crate::open::{Kind, Open, Shared};
use crate::pump::{Occasion, Pump};
use crate::{Host, Options, Socket};

/// Makes sockets on a host, and sends their delayed bytes. Clones are the same layer.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use rustix::net::{AddressFamily, SocketType};
/// use sakia_socket::{HostCall, Kernel, Layer, Options, ToyEnclave};
///
/// # fn main() -> rustix::io::Result<()> {
/// let layer = Layer::new(ToyEnclave::new(Kernel, Duration::ZERO), Options::default());
/// let same = layer.clone();
/// let (a, b) = same.pair(AddressFamily::UNIX, SocketType::STREAM)?;
/// assert_eq!(layer.host().counts().of(HostCall::Pair), 1);
/// # drop((a, b));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Layer<H: Host> {
    shared: Arc<Shared<H>>,
}

impl<H: Host> Clone for Layer<H> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<H: Host> Layer<H> {
    /// Makes a layer on `host`. It starts a thread with the first delayed write, and none before.
    ///
    /// # Examples
    /// See [`Layer`](Layer#examples).
    pub fn new(host: H, options: Options) -> Self {
        let (host, pump) = (Arc::new(host), Arc::new(Pump::new(options.limits.delay)));
        let (beds, nesting, spare) = Default::default();
        Self { shared: Arc::new(Shared { host, options, pump, beds, nesting, spare }) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<H>> {
        &self.shared
    }

    /// Returns the host.
    ///
    /// # Examples
    /// See [`Layer`](Layer#examples).
    pub fn host(&self) -> &H {
        &self.shared.host
    }

    /// Makes a socket, as `socket(2)` does; `SOCK_CLOEXEC` is set.
    ///
    /// # Errors
    /// Those of `socket(2)`.
    ///
    /// # Examples
    /// See [`sakia_socket`](crate#examples).
    pub fn socket(
        &self,
        family: AddressFamily,
        kind: SocketType,
        protocol: Option<Protocol>,
    ) -> Result<Socket<H>, Errno> {
        let fd = self.shared.host.socket(family, kind, SocketFlags::CLOEXEC, protocol)?;
        Ok(self.with(fd, Kind::of(family, kind, protocol)))
    }

    /// Makes two connected sockets, as `socketpair(2)` does; `SOCK_CLOEXEC` is set.
    ///
    /// # Errors
    /// Those of `socketpair(2)`.
    ///
    /// # Examples
    /// See [`Layer`](Layer#examples).
    pub fn pair(
        &self,
        family: AddressFamily,
        kind: SocketType,
    ) -> Result<(Socket<H>, Socket<H>), Errno> {
        let (a, b) = self.shared.host.pair(family, kind, SocketFlags::CLOEXEC)?;
        let kind = Kind::of(family, kind, None);
        let [a, b] = [a, b].map(|fd| {
            let open = Open::new(&self.shared, fd, kind);
            open.is_connected.store(true, Ordering::Relaxed);
            Socket::of(open)
        });
        Ok((a, b))
    }

    /// Makes a socket of a descriptor, which must be in blocking mode and of type `kind`; an Internet stream
    /// must be TCP. No other part of the program may read or write the descriptor in other ways, or the order
    /// of bytes is lost. Its timeouts and `SO_LINGER` are read from the host.
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::os::unix::net::UnixStream;
    ///
    /// use rustix::net::{RecvFlags, SocketType};
    /// use sakia_socket::{Kernel, Layer, Options};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let (near, mut far) = UnixStream::pair().expect("two sockets");
    /// let layer = Layer::new(Kernel, Options::default());
    /// let near = layer.adopt(near.into(), SocketType::STREAM)?;
    /// std::io::Write::write_all(&mut far, b"hello").expect("there is room");
    /// let mut buffer = [0; 5];
    /// assert_eq!(near.recv(&mut buffer, RecvFlags::empty())?, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn adopt(&self, fd: H::Fd, kind: SocketType) -> Result<Socket<H>, Errno> {
        let family = self.host().local_address(&fd)?.address_family();
        let socket = self.with(fd, Kind::of(family, kind, None));
        socket.open().load_settings();
        Ok(socket)
    }

    fn with(&self, fd: H::Fd, kind: Kind) -> Socket<H> {
        Socket::of(Open::new(&self.shared, fd, kind))
    }

    /// Sends all delayed bytes of all sockets, as far as the host has room: before the program waits by a
    /// call that this library does not make, and before it exits.
    ///
    /// # Examples
    /// See [`Socket::flush`](crate::Socket::flush).
    pub fn flush(&self) {
        self.shared.wait_began();
        self.shared.pump.send_all(&*self.shared.host, Occasion::Flush);
    }
}
