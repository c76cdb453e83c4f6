//! Options of sockets for connecting and listening.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::sockopt;
use sakia_driver::{Domain, Fd, Handle, SocketAddress, SocketType};

use super::lookup::{ToSocketAddrs, resolve};
use super::socket::Socket;
use super::socket::private::Connected;
use super::sockopt::{Common, common_options, option, tune};
use super::{Error, Result, TcpStream};
use crate::error::Object;
use crate::executor::current;
use crate::time::timeout_at;

/// Options for connecting.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia::net::{ConnectOptions, TcpListener};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let stream = ConnectOptions::new()
///         .nodelay(true)
///         .timeout(Duration::from_secs(10))
///         .connect(listener.local_addr()?)
///         .await?;
///     assert!(stream.nodelay()?);
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectOptions {
    pub(super) common: Common,
    local: Option<SocketAddr>,
    is_address_reused: bool,
    timeout: Option<Duration>,
}

impl ConnectOptions {
    /// Returns the options of [`TcpStream::connect`].
    ///
    /// # Examples
    /// See [`ConnectOptions`](ConnectOptions#examples).
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the address to connect from; with port 0, any port there. Without this call the kernel chooses
    /// both. Remote addresses of the other IP version are skipped.
    ///
    /// # Examples
    /// ```
    /// use sakia::net::{ConnectOptions, TcpListener};
    ///
    /// # sakia::block_on(async {
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let options = ConnectOptions::new().local_addr(([127, 0, 0, 5], 0).into());
    /// let _client = options.connect(listener.local_addr()?).await?;
    /// let (_, peer) = listener.accept().await?;
    /// assert_eq!(peer.ip().to_string(), "127.0.0.5");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "bind")]
    #[must_use]
    pub fn local_addr(mut self, address: SocketAddr) -> Self {
        self.local = Some(address);
        self
    }

    /// Sets whether a [local address](ConnectOptions::local_addr) may be in use by earlier connections in the
    /// state `TIME_WAIT`. Without this call it may not.
    #[doc(alias = "SO_REUSEADDR")]
    #[must_use]
    pub fn reuse_addr(mut self, reuse: bool) -> Self {
        self.is_address_reused = reuse;
        self
    }

    /// Sets the time limit of the whole: looking the name up, and trying each of its addresses. Without this
    /// call the kernel's limit holds, which is minutes for each address that does not answer.
    ///
    /// # Examples
    /// See [`ConnectOptions`](ConnectOptions#examples).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    common_options!();

    /// Connects to the first address of `to` that answers. The addresses are tried one after the other.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// The last failure, with all addresses that were tried:
    /// - `ECONNREFUSED`: no program listens there. `ECONNRESET`: the peer reset the connection.
    /// - `ENETUNREACH`, `EHOSTUNREACH`: no route to the address. `ETIMEDOUT`: no answer came.
    /// - `EADDRNOTAVAIL`: the local address is not this machine's, or no port is left. `EADDRINUSE`: another
    ///   socket uses the local address.
    /// - `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left.
    /// - [`TimedOut`](io::ErrorKind::TimedOut) without an errno: the [timeout](ConnectOptions::timeout).
    /// - Without addresses: the error of [`lookup_host`](super::lookup_host).
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`ConnectOptions`](ConnectOptions#examples).
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub async fn connect(&self, to: impl ToSocketAddrs) -> Result<TcpStream> {
        let mut tried = Vec::new();
        let Some(timeout) = self.timeout else {
            return self.connect_to_any(&to, &mut tried).await;
        };
        let deadline = crate::time::now() + timeout;
        match timeout_at(deadline, self.connect_to_any(&to, &mut tried)).await {
            Ok(result) => result,
            Err(elapsed) => Err(Error::new("connect", Object::Addresses(tried), elapsed.into())),
        }
    }

    async fn connect_to_any(
        &self,
        to: &impl ToSocketAddrs,
        tried: &mut Vec<SocketAddr>,
    ) -> Result<TcpStream> {
        let is_possible = |address: &SocketAddr| {
            self.local.is_none_or(|local| local.is_ipv4() == address.is_ipv4())
        };
        let driver = current().driver.handle().clone();
        let mut failure = None;
        for address in resolve(to).await?.into_iter().filter(is_possible) {
            tried.push(address);
            match self.connect_to(&driver, address).await {
                Ok(fd) => return Ok(TcpStream::of(Socket::new(driver.connection(fd)))),
                Err(error) => failure = Some(error),
            }
        }
        let (operation, error) = failure.unwrap_or_else(|| {
            let message = "no address is of the version of the local one";
            ("connect", io::Error::new(io::ErrorKind::InvalidInput, message))
        });
        Err(Error::new(operation, Object::Addresses(std::mem::take(tried)), error))
    }

    /// Tries one address. The error names the step that failed.
    async fn connect_to(
        &self,
        driver: &Handle,
        address: SocketAddr,
    ) -> Result<Fd, (&'static str, io::Error)> {
        loop {
            let made = socket(driver, SocketType::STREAM, address).await;
            let fd = made.map_err(|error| ("make a socket for", error))?;
            let prepared = self.prepare(driver, &fd).await;
            prepared.map_err(|error| ("prepare a socket for", error))?;
            match driver.connect(&fd, &SocketAddress::from(address)).await {
                Ok(()) => return Ok(fd),
                // The state of the socket is unknown.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(("connect", error)),
            }
        }
    }

    async fn prepare(&self, driver: &Handle, fd: &Fd) -> io::Result<()> {
        self.common.apply(fd)?;
        if self.is_address_reused {
            tune(fd, |fd| sockopt::set_socket_reuseaddr(fd, true))?;
        }
        match self.local {
            Some(local) => driver.bind(fd, &SocketAddress::from(local)).await,
            None => Ok(()),
        }
    }
}

/// Options for listening. Accepted connections inherit those of the listener.
///
/// # Examples
/// ```
/// use sakia::net::ListenOptions;
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     // Two sockets on one port, among which the kernel divides the connections.
///     let options = ListenOptions::new().reuse_port(true).backlog(64);
///     let one = options.bind("127.0.0.1:0").await?;
///     let other = options.bind(one.local_addr()?).await?;
///     assert_eq!(one.local_addr()?, other.local_addr()?);
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    pub(super) common: Common,
    binding: Binding,
    backlog: u32,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            common: Common::default(),
            binding: Binding { is_address_reused: true, ..Binding::default() },
            backlog: 1024,
        }
    }
}

impl ListenOptions {
    /// Returns the options of [`TcpListener::bind`](super::TcpListener::bind).
    ///
    /// # Examples
    /// See [`ListenOptions`](ListenOptions#examples).
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the address may be in use by earlier connections in the state `TIME_WAIT`; otherwise a
    /// restarted server has to wait. Without this call it may.
    #[doc(alias = "SO_REUSEADDR")]
    #[must_use]
    pub fn reuse_addr(mut self, reuse: bool) -> Self {
        self.binding.is_address_reused = reuse;
        self
    }

    /// Sets whether other listeners with this option may have the same port. The kernel divides the
    /// connections among them, so each thread of a server can have its own listener. Without this call they
    /// may not.
    ///
    /// A connection that waits to be accepted is reset when its listener is closed. Not on the simulated
    /// kernel.
    ///
    /// # Examples
    /// See [`ListenOptions`](ListenOptions#examples).
    #[doc(alias = "SO_REUSEPORT")]
    #[must_use]
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.binding.is_port_shared = reuse;
        self
    }

    /// Sets whether a listener on `[::]` refuses IPv4 connections. Without this call the system decides;
    /// usually it accepts them. Not on the simulated kernel.
    #[doc(alias = "IPV6_V6ONLY")]
    #[must_use]
    pub fn only_v6(mut self, only_v6: bool) -> Self {
        self.binding.only_v6 = Some(only_v6);
        self
    }

    /// Sets roughly how many connections may wait to be accepted, up to the system's limit (`somaxconn`).
    /// Without this call 1024.
    ///
    /// # Examples
    /// See [`ListenOptions`](ListenOptions#examples).
    #[must_use]
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    common_options!();

    /// Listens on the first usable address of `on`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// The last failure, with all addresses that were tried:
    /// - `EADDRINUSE`: another socket listens there. `EADDRNOTAVAIL`: the address is not this machine's.
    /// - `EACCES`: the port is privileged.
    /// - `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left.
    /// - Without addresses: the error of [`lookup_host`](super::lookup_host).
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`ListenOptions`](ListenOptions#examples).
    ///
    /// # Kernel
    /// 6.11 for bind and listen on the ring. Source: `io_uring_prep_listen(3)`.
    pub async fn bind(&self, on: impl ToSocketAddrs) -> Result<super::TcpListener> {
        let driver = current().driver.handle().clone();
        let fd = first_of(&on, async |address| self.listen_on(&driver, address).await).await?;
        Ok(super::TcpListener::new(fd, driver))
    }

    /// Tries one address. The error names the step that failed.
    async fn listen_on(
        &self,
        driver: &Handle,
        address: SocketAddr,
    ) -> Result<Fd, (&'static str, io::Error)> {
        let prepare = |fd: &Fd| self.common.apply(fd);
        let fd = self.binding.bind(driver, SocketType::STREAM, address, prepare).await?;
        let listens = driver.listen(&fd, self.backlog).await;
        listens.map_err(|error| ("listen on", error))?;
        Ok(fd)
    }
}

/// The way in which a socket gets its address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Binding {
    pub(super) is_address_reused: bool,
    pub(super) is_port_shared: bool,
    pub(super) only_v6: Option<bool>,
}

impl Binding {
    /// Makes a socket with an address and the options that `prepare` sets. The error names the step that
    /// failed.
    pub(super) async fn bind(
        &self,
        driver: &Handle,
        kind: SocketType,
        address: SocketAddr,
        prepare: impl FnOnce(&Fd) -> io::Result<()>,
    ) -> Result<Fd, (&'static str, io::Error)> {
        let made = socket(driver, kind, address).await;
        let fd = made.map_err(|error| ("make a socket for", error))?;
        let prepared = prepare(&fd).and_then(|()| self.prepare(&fd, address));
        prepared.map_err(|error| ("prepare a socket for", error))?;
        let bound = driver.bind(&fd, &SocketAddress::from(address)).await;
        bound.map_err(|error| ("bind", error))?;
        Ok(fd)
    }

    fn prepare(&self, fd: &Fd, address: SocketAddr) -> io::Result<()> {
        if self.is_address_reused {
            tune(fd, |fd| sockopt::set_socket_reuseaddr(fd, true))?;
        }
        if self.is_port_shared {
            option(fd, |fd| sockopt::set_socket_reuseport(fd, true))?;
        }
        match self.only_v6.filter(|_| address.is_ipv6()) {
            Some(only_v6) => option(fd, |fd| sockopt::set_ipv6_v6only(fd, only_v6)),
            None => Ok(()),
        }
    }
}

/// Tries the addresses of `host` one after the other, up to the first with which `attempt` succeeds.
///
/// # Errors
/// The last failure, with all addresses.
pub(super) async fn first_of<T>(
    host: &impl ToSocketAddrs,
    mut attempt: impl AsyncFnMut(SocketAddr) -> Result<T, (&'static str, io::Error)>,
) -> Result<T> {
    let mut tried = Vec::new();
    let mut failure = None;
    for address in resolve(host).await? {
        tried.push(address);
        match attempt(address).await {
            Ok(value) => return Ok(value),
            Err(error) => failure = Some(error),
        }
    }
    let (operation, error) = failure.expect("a name has one address at least");
    Err(Error::new(operation, Object::Addresses(tried), error))
}

/// Makes a socket of the family of `address`.
async fn socket(driver: &Handle, kind: SocketType, address: SocketAddr) -> io::Result<Fd> {
    let domain = if address.is_ipv4() { Domain::INET } else { Domain::INET6 };
    driver.socket(domain, kind, 0).await
}
