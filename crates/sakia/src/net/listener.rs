//! Accepting connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt;
use sakia_driver::{Fd, Handle, Incoming, PollEvents, SocketAddress};

use self::private::Accepts;
use super::lookup::ToSocketAddrs;
use super::options::ListenOptions;
use super::socket::private::Address;
use super::socket::{Socket, Stream};
use super::sockopt::{option, set_ttl, ttl};
use super::{Error, Result, TcpStream};
use crate::error::Object;
use crate::executor::current;

/// A source of connections for [`serve`](super::serve): a [`TcpListener`], a
/// [`UnixListener`](super::UnixListener), or a pointer to one of them. No other type has this trait.
///
/// # Examples
/// See [`serve()`](super::serve()#examples).
pub trait Listener: Accepts {}

impl<L: Accepts> Listener for L {}

pub(super) mod private {
    use super::{AcceptSocket, Stream};

    /// The private part of a [`Listener`](super::Listener).
    #[diagnostic::on_unimplemented(
        message = "`{Self}` accepts no connections",
        label = "not a listener of Sakia",
        note = "pass a `sakia::net::TcpListener` or `UnixListener`, or a pointer to one, such as \
                `&listener` or `Rc::clone(&listener)`; `TcpListener::from_std` takes a listener of `std`"
    )]
    pub trait Accepts {
        /// The type of its connections.
        type Stream: Stream;

        fn socket(&self) -> &AcceptSocket;
    }
}

#[diagnostic::do_not_recommend]
impl<P> Accepts for P
where
    P: Deref,
    P::Target: Accepts,
{
    type Stream = <P::Target as Accepts>::Stream;

    fn socket(&self) -> &AcceptSocket {
        (**self).socket()
    }
}

/// A socket that accepts TCP connections. Dropping it closes it, and the connections that wait to be
/// accepted.
///
/// After the first request for a connection, the kernel accepts up to 64 ahead. They have a descriptor before
/// a task takes them.
///
/// # Examples
/// ```
/// use sakia::io::BufResultExt;
/// use sakia::net::{TcpListener, TcpStream};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let mut client = TcpStream::connect(listener.local_addr()?).await?;
///     let (mut server, peer) = listener.accept().await?;
///     assert_eq!(peer, client.local_addr()?);
///
///     client.write_all("hello").await.value()?;
///     let (result, buf) = server.read(vec![0; 100]).await;
///     assert_eq!(&buf[..result?], b"hello");
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct TcpListener {
    socket: AcceptSocket,
}

impl TcpListener {
    /// Listens on the first usable address of `on`. With port 0 the kernel chooses one;
    /// [`local_addr`](TcpListener::local_addr) returns it. [`ListenOptions`] has more settings.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// As [`ListenOptions::bind`].
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`TcpListener`](TcpListener#examples).
    ///
    /// # Kernel
    /// 6.11 for bind and listen on the ring. Source: `io_uring_prep_listen(3)`.
    pub async fn bind(on: impl ToSocketAddrs) -> Result<Self> {
        ListenOptions::new().bind(on).await
    }

    /// Sets the TTL (IPv4) or hop limit (IPv6) of its connections.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "IP_TTL")]
    #[doc(alias = "IPV6_UNICAST_HOPS")]
    pub fn set_ttl(&self, hops: u8) -> io::Result<()> {
        set_ttl(self.socket.fd(), hops)
    }

    /// Returns the TTL (IPv4) or hop limit (IPv6) of its connections.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn ttl(&self) -> io::Result<u8> {
        ttl(self.socket.fd())
    }

    /// Returns whether it refuses IPv4 connections. See [`ListenOptions::only_v6`].
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn only_v6(&self) -> io::Result<bool> {
        option(self.socket.fd(), sockopt::ipv6_v6only)
    }
}

/// A socket that accepts connections of any family.
pub struct AcceptSocket {
    incoming: Incoming,
    driver: Handle,
}

impl AcceptSocket {
    pub fn new(fd: Fd, driver: Handle) -> Self {
        Self { incoming: driver.incoming(fd), driver }
    }

    /// Takes over a descriptor.
    ///
    /// # Errors
    /// `EINVAL`: it does not listen. As `getsockopt(2)`.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        if !sockopt::socket_acceptconn(&fd)? {
            return Err(Errno::INVAL.into());
        }
        let local = current();
        Ok(Self::new(local.driver.adopt(fd), local.driver.handle().clone()))
    }

    pub fn fd(&self) -> &Fd {
        self.incoming.fd()
    }

    /// Accepts a connection. With `ahead` the kernel may accept further ones.
    pub async fn accept<S: Stream>(&self, ahead: bool) -> Result<(S, S::Address)> {
        loop {
            let accepted = match ahead {
                true => self.incoming.accept().await,
                false => self.incoming.accept_one().await,
            };
            let error = match accepted {
                Ok(fd) => {
                    let connection = self.driver.connection(fd);
                    match connection.peer_address().and_then(|peer| S::Address::of(&peer)) {
                        Ok(peer) => return Ok((S::of(Socket::new(connection)), peer)),
                        // The connection has ended since, and its peer's address is no longer known.
                        Err(error) if error.kind() == io::ErrorKind::NotConnected => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                Some(errno) if is_of_the_connection(errno) => {}
                // Other code made the socket non-blocking, such as a service manager.
                Some(Errno::AGAIN) => {
                    let ready = self.driver.poll(self.incoming.fd(), PollEvents::READABLE).await;
                    ready.map_err(|error| self.accept_error(error))?;
                }
                _ => return Err(self.accept_error(error)),
            }
        }
    }

    fn accept_error(&self, error: io::Error) -> Error {
        let object =
            self.address().map_or(Object::Addresses(Vec::new()), |address| object(&address));
        Error::new("accept on", object, error)
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> io::Result<SocketAddress> {
        self.driver.local_address(self.incoming.fd())
    }

    /// Gives the descriptor up, once the operations under way on it have ended.
    pub async fn into_owned(self) -> io::Result<OwnedFd> {
        let fd = self.incoming.fd().clone();
        drop(self.incoming);
        release(&self.driver, fd).await
    }

    pub async fn close(self) -> io::Result<()> {
        let fd = self.incoming.fd().clone();
        drop(self.incoming);
        self.driver.close(fd).await
    }
}

impl fmt::Debug for AcceptSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.incoming.fmt(f)
    }
}

/// Returns the address as the object of an error.
pub(super) fn object(address: &SocketAddress) -> Object {
    match (address.inet(), address.path()) {
        (Some(inet), _) => Object::Addresses(vec![inet]),
        (_, Some(path)) => Object::Path(path.to_owned()),
        _ => Object::Name(format!("{address:?}")),
    }
}

/// The methods of a listener that are the same in all families, given the types of its streams, of its
/// counterpart in `std`, and of its addresses.
macro_rules! listener {
    ($listener:ident, $stream:ident, $std:ty, $address:ty) => {
        impl $listener {
            pub(super) fn new(fd: Fd, driver: Handle) -> Self {
                Self { socket: AcceptSocket::new(fd, driver) }
            }

            /// Waits for a connection. Resolves to it and to its peer's address.
            ///
            /// A connection that ended before it could be accepted, or that failed by a network error, is
            /// skipped, and the next one is awaited.
            ///
            /// # Cancel safety
            /// Dropping the future loses no connection: one that comes for it goes to the next call.
            ///
            /// # Errors
            /// All errors leave the listener as it was, and the connection waiting:
            /// - `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left. A retry at once fails
            ///   again; wait until something was closed, as [`serve`](super::serve) does.
            /// - `EPERM`: a firewall's rule. `EINVAL`: the socket does not listen.
            /// - `ECANCELED`: the runtime has ended. Otherwise as `accept(2)`.
            ///
            /// # Examples
            /// See [`TcpListener`](crate::net::TcpListener#examples).
            ///
            /// # Kernel
            /// 5.5; 5.19 to accept several with one entry. Source: `io_uring_prep_multishot_accept(3)`.
            pub async fn accept(&self) -> Result<($stream, $address)> {
                self.socket.accept(true).await
            }

            /// Returns the address that it listens on, by a plain call.
            ///
            /// # Errors
            /// As `getsockname(2)`.
            pub fn local_addr(&self) -> io::Result<$address> {
                Address::of(&self.socket.address()?)
            }

            /// Takes and clears the socket's pending error.
            ///
            /// # Errors
            /// As `getsockopt(2)`.
            #[doc(alias = "SO_ERROR")]
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                $crate::net::sockopt::take_error(self.socket.fd())
            }

            /// Takes over a listener of `std`, in blocking mode or not. The mode stays as it is for other
            /// users of the socket.
            ///
            /// # Errors
            /// `EINVAL`: it does not listen. As `getsockopt(2)`.
            ///
            /// # Panics
            /// Outside of a runtime, and on a simulated kernel.
            pub fn from_std(listener: $std) -> io::Result<Self> {
                Ok(Self { socket: AcceptSocket::adopt(listener.into())? })
            }

            /// Gives the listener to `std`, once the operations under way on it have ended. The number of the
            /// descriptor may change. Connections that were accepted ahead, or for a dropped future, are
            /// closed.
            ///
            /// # Cancel safety
            /// Dropping the future closes the listener.
            ///
            /// # Errors
            /// `EMFILE`: it needs another descriptor. As `close(2)`. It is closed then.
            ///
            /// # Panics
            /// On a simulated kernel.
            pub async fn into_std(self) -> io::Result<$std> {
                Ok(self.socket.into_owned().await?.into())
            }

            /// Closes the listener, and returns the result.
            ///
            /// # Cancel safety
            /// Dropping the future loses the result; the listener is closed all the same.
            ///
            /// # Errors
            /// As `close(2)`. The descriptor is gone in any case.
            ///
            /// # Kernel
            /// 5.6. Source: `io_uring_prep_close(3)`.
            pub async fn close(self) -> io::Result<()> {
                self.socket.close().await
            }
        }

        impl Accepts for $listener {
            type Stream = $stream;

            fn socket(&self) -> &AcceptSocket {
                &self.socket
            }
        }

        /// For system calls that this type does not offer.
        ///
        /// # Panics
        /// On a simulated kernel.
        impl AsFd for $listener {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.socket.fd().as_fd()
            }
        }
    };
}
pub(super) use listener;

listener!(TcpListener, TcpStream, std::net::TcpListener, SocketAddr);

/// Takes a descriptor out of its driver, once nothing uses it any more.
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

/// Returns whether an error of accepting concerns one connection only: it was aborted, or it has an error of
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
