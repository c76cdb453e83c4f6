//! Accepting TCP connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt;
use sakia_driver::{Fd, Handle, Incoming, PollEvents};

use super::lookup::ToSocketAddrs;
use super::options::ListenOptions;
use super::sockopt::{option, set_ttl, take_error, ttl};
use super::{Error, Result, TcpStream};
use crate::error::Object;
use crate::executor::current;

/// A socket that accepts TCP connections. Dropping it closes it, and the connections that wait to be
/// accepted.
///
/// Once it was asked for a connection, the kernel accepts some ahead, up to 64. They have a descriptor before
/// anybody takes them.
///
/// # Examples
/// ```
/// use sakia::net::{TcpListener, TcpStream};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let mut client = TcpStream::connect(listener.local_addr()?).await?;
///     let (mut server, peer) = listener.accept().await?;
///     assert_eq!(peer, client.local_addr()?);
///
///     client.write_all("hello").await.0?;
///     let (result, buf) = server.read(vec![0; 100]).await;
///     assert_eq!(&buf[..result?], b"hello");
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct TcpListener {
    incoming: Incoming,
    driver: Handle,
}

impl TcpListener {
    pub(super) fn new(fd: Fd, driver: Handle) -> Self {
        Self { incoming: driver.incoming(fd), driver }
    }

    /// Listens on the first of the addresses that `on` stands for where that is possible. With port 0 the
    /// kernel chooses one; [`local_addr`](TcpListener::local_addr) tells. [`ListenOptions`] has more ways.
    ///
    /// # Errors
    /// As [`ListenOptions::bind`].
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Kernel
    /// 6.11 for bind and listen on the ring. Source: `io_uring_prep_listen(3)`.
    pub async fn bind(on: impl ToSocketAddrs) -> Result<Self> {
        ListenOptions::new().bind(on).await
    }

    /// Waits for a connection. Resolves to it and to its peer's address.
    ///
    /// A connection that ended before it could be accepted is left out, as is one that the network failed:
    /// the next one is waited for. Dropping the future loses none: one that comes for it goes to the next
    /// call.
    ///
    /// # Errors
    /// All leave the listener as it was, and the connection waiting:
    /// - `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left. Asked again at once, it
    ///   fails again; wait until something was closed, as [`serve`](super::serve) does.
    /// - `EPERM`: a firewall's rule. `EINVAL`: the socket does not listen.
    /// - `ECANCELED`: the runtime has ended. Otherwise as `accept(2)`.
    ///
    /// # Kernel
    /// 5.5; 5.19 to accept several with one entry. Source: `io_uring_prep_multishot_accept(3)`.
    pub async fn accept(&self) -> Result<(TcpStream, SocketAddr)> {
        self.accept_next(true).await
    }

    /// As [`accept`](TcpListener::accept). Only with `ahead` the kernel may accept more than this one.
    pub(super) async fn accept_next(&self, ahead: bool) -> Result<(TcpStream, SocketAddr)> {
        loop {
            let accepted = match ahead {
                true => self.incoming.accept().await,
                false => self.incoming.accept_one().await,
            };
            let error = match accepted {
                Ok(fd) => {
                    let stream = TcpStream { connection: self.driver.connection(fd) };
                    match stream.peer_addr() {
                        Ok(peer) => return Ok((stream, peer)),
                        // It has ended since: who it was with nobody knows any more.
                        Err(error) if error.kind() == io::ErrorKind::NotConnected => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                Some(errno) if is_of_the_connection(errno) => {}
                // Somebody made the socket non-blocking, such as a service manager.
                Some(Errno::AGAIN) => {
                    let ready = self.driver.poll(self.incoming.fd(), PollEvents::READABLE).await;
                    ready.map_err(|error| self.accept_error(error))?;
                }
                _ => return Err(self.accept_error(error)),
            }
        }
    }

    fn accept_error(&self, error: io::Error) -> Error {
        Error::new("accept on", Object::Addresses(Vec::from_iter(self.local_addr())), error)
    }

    /// The address that it listens on, by a plain call.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = self.driver.local_address(self.incoming.fd())?;
        Ok(address.inet().ok_or(Errno::AFNOSUPPORT)?)
    }

    /// The most routers that packets of its connections may pass.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "IP_TTL")]
    #[doc(alias = "IPV6_UNICAST_HOPS")]
    pub fn set_ttl(&self, hops: u8) -> io::Result<()> {
        set_ttl(self.incoming.fd(), hops)
    }

    /// The most routers that packets of its connections may pass.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn ttl(&self) -> io::Result<u8> {
        ttl(self.incoming.fd())
    }

    /// Whether it takes no connections by version 4. See [`ListenOptions::only_v6`].
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn only_v6(&self) -> io::Result<bool> {
        option(self.incoming.fd(), sockopt::ipv6_v6only)
    }

    /// The error that waits on the socket, which has none afterwards.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    #[doc(alias = "SO_ERROR")]
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        take_error(self.incoming.fd())
    }

    /// Takes over a listener that `std` made, whether it blocks or not. It stays as it is for others that
    /// share it.
    ///
    /// # Errors
    /// `EINVAL`: it does not listen. As `getsockopt(2)`.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        if !sockopt::socket_acceptconn(&listener)? {
            return Err(Errno::INVAL.into());
        }
        let local = current();
        Ok(Self::new(local.driver.adopt(listener.into()), local.driver.handle().clone()))
    }

    /// Gives the listener to `std`, when what is under way on it has ended. The number of the descriptor may
    /// change. Connections that were accepted ahead, or for a dropped future, are closed.
    ///
    /// # Errors
    /// `EMFILE`: it needs another descriptor. As `close(2)`. It is closed then.
    ///
    /// # Panics
    /// On a simulated kernel.
    pub async fn into_std(self) -> io::Result<std::net::TcpListener> {
        let fd = self.incoming.fd().clone();
        drop(self.incoming);
        Ok(release(&self.driver, fd).await?.into())
    }

    /// Closes the listener, and tells how it went.
    ///
    /// # Errors
    /// As `close(2)`. The descriptor is gone in any case.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_close(3)`.
    pub async fn close(self) -> io::Result<()> {
        let fd = self.incoming.fd().clone();
        drop(self.incoming);
        self.driver.close(fd).await
    }
}

/// For calls that are not here.
///
/// # Panics
/// On a simulated kernel.
impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.incoming.fd().as_fd()
    }
}

/// Takes a descriptor out of its driver, when nothing uses it any more.
pub(super) async fn release(driver: &Handle, fd: Fd) -> io::Result<OwnedFd> {
    match fd.into_owned() {
        Ok(fd) => Ok(fd),
        Err(fd) => {
            // Operations of dropped futures still use it. Closing it waits for them.
            let duplicate = fd.as_fd().try_clone_to_owned()?;
            driver.close(fd).await?;
            Ok(duplicate)
        }
    }
}

/// Whether an error of accepting says something of one connection only: it broke off, or it has errors of
/// the network, which `accept(2)` passes on.
fn is_of_the_connection(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::CONNABORTED
            | Errno::INTR
            | Errno::NETDOWN
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
    )
}
