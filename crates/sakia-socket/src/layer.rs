//! A host with its sockets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType};

use crate::open::{Kind, Open, Shared};
use crate::pump::{Occasion, Pump};
use crate::{Host, Options, Socket};

/// Makes sockets on a host, and sends their delayed bytes. Clones are the same layer.
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
    pub fn new(host: H, options: Options) -> Self {
        let (host, pump) = (Arc::new(host), Arc::new(Pump::new(options.limits.delay)));
        let (beds, nesting, spare) = Default::default();
        Self { shared: Arc::new(Shared { host, options, pump, beds, nesting, spare }) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<H>> {
        &self.shared
    }

    /// Returns the host.
    pub fn host(&self) -> &H {
        &self.shared.host
    }

    /// Makes a socket, as `socket(2)` does; `SOCK_CLOEXEC` is set.
    ///
    /// # Errors
    /// Those of `socket(2)`.
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
    pub fn flush(&self) {
        self.shared.wait_began();
        self.shared.pump.send_all(&*self.shared.host, Occasion::Flush);
    }
}
