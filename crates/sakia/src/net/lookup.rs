//! Addresses and host names.
//!
//! Addresses are used at once. The C library looks up names, which may wait for servers; this runs on a
//! thread of the pool for blocking code.

use std::io;
use std::net::{self, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::{Error, Result};
use crate::blocking;
use crate::error::Object;
use crate::executor::current;

/// One or more socket addresses, or a name to look them up by.
///
/// - [`SocketAddr`], [`SocketAddrV4`], [`SocketAddrV6`], and pairs of an IP address and a port.
/// - `"host:port"` as [`str`] or [`String`], and pairs of a host and a port: `("example.org", 80)`. The host
///   may be an address, too: `"127.0.0.1:80"`, `"[::1]:80"`, `("::1", 80)`.
/// - Several [`SocketAddr`]: slices, arrays and vectors of them.
/// - References to all of these.
///
/// Addresses cost nothing. A host name is looked up on a thread of the [pool](crate::blocking::shared) for
/// blocking code, so that other tasks go on meanwhile. The end of the runtime does not wait for it.
///
/// # Examples
/// ```
/// use sakia::net::{TcpListener, TcpStream};
///
/// # sakia::block_on(async {
/// let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
/// let port = listener.local_addr()?.port();
/// TcpStream::connect(("localhost", port)).await?;
/// TcpStream::connect(format!("127.0.0.1:{port}")).await?;
/// TcpStream::connect([listener.local_addr()?]).await?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no address of a socket",
    label = "not an address with a port",
    note = "pass `\"host:port\"`, `(\"host\", port)`, a `SocketAddr`, a pair of an IP address and a port, \
            or several `SocketAddr`s: a slice, an array or a `Vec`"
)]
pub trait ToSocketAddrs: private::Resolve {}

#[diagnostic::do_not_recommend]
impl<T: private::Resolve + ?Sized> ToSocketAddrs for T {}

/// Resolves to the addresses of a name or an address, in the order in which they should be tried.
///
/// # Cancel safety
/// Dropping the future gives up the result; a lookup that has begun goes on, on its thread.
///
/// # Errors
/// The name is unknown, or no name server answered; these have no errno. `InvalidInput`: the port is missing,
/// or is not a number.
///
/// # Panics
/// Outside of a runtime.
///
/// # Simulation
/// On the [simulated kernel](crate::sim) there are no names but `localhost`.
///
/// # Examples
/// ```
/// use sakia::net::lookup_host;
///
/// # fn main() -> sakia::net::Result<()> {
/// sakia::block_on(async {
///     let addresses: Vec<_> = lookup_host(("127.0.0.1", 80)).await?.collect();
///     assert_eq!(addresses, ["127.0.0.1:80".parse().unwrap()]);
///     assert!(lookup_host("localhost:80").await?.all(|address| address.ip().is_loopback()));
///     Ok(())
/// })
/// # }
/// ```
#[doc(alias = "getaddrinfo")]
pub async fn lookup_host(host: impl ToSocketAddrs) -> Result<impl Iterator<Item = SocketAddr>> {
    Ok(resolve(&host).await?.into_iter())
}

/// Returns the addresses of a host. At least one.
pub(super) async fn resolve<A: ToSocketAddrs + ?Sized>(host: &A) -> Result<Vec<SocketAddr>> {
    let addresses = match host.target() {
        Target::One(address) => return Ok(vec![address]),
        Target::Many(addresses) => addresses.to_vec(),
        Target::Host(host, port) => match host.parse::<IpAddr>() {
            Ok(ip) => return Ok(vec![SocketAddr::new(ip, port)]),
            Err(_) => return look_up(host, port).await,
        },
        Target::Invalid(text) => {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a host and a port");
            return Err(Error::new("look up", Object::Name(text.to_owned()), error));
        }
    };
    if addresses.is_empty() {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "no addresses were given");
        return Err(Error::new("look up", Object::Addresses(addresses), error));
    }
    Ok(addresses)
}

/// Returns the first address of a host. An address that needs no lookup needs no allocation either.
pub(super) async fn resolve_first<A: ToSocketAddrs + ?Sized>(host: &A) -> Result<SocketAddr> {
    match host.target() {
        Target::One(address) => Ok(address),
        _ => Ok(resolve(host).await?[0]),
    }
}

async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let fail = |error| Error::new("look up", Object::Name(format!("{host}:{port}")), error);
    let known = current().environment.addresses(host, port);
    let addresses = match known {
        Some(addresses) => addresses,
        None => {
            let host = host.to_owned();
            let ask = move || net::ToSocketAddrs::to_socket_addrs(&(&*host, port));
            let asked = blocking::shared().spawn(move || ask().map(Iterator::collect)).await;
            // An error of the pool: it has no thread, or has ended.
            asked.unwrap_or_else(|error| Err(io::Error::other(error)))
        }
    };
    let addresses: Vec<_> = addresses.map_err(fail)?;
    if addresses.is_empty() {
        return Err(fail(io::Error::new(io::ErrorKind::NotFound, "the name has no addresses")));
    }
    Ok(addresses)
}

/// The parsed form of a [`ToSocketAddrs`].
#[derive(Debug)]
pub enum Target<'a> {
    One(SocketAddr),
    Many(&'a [SocketAddr]),
    Host(&'a str, u16),
    Invalid(&'a str),
}

mod private {
    use super::Target;

    /// A type that has addresses, or a name to look them up by.
    pub trait Resolve {
        fn target(&self) -> Target<'_>;
    }
}

use private::Resolve;

impl<T: Resolve + ?Sized> Resolve for &T {
    fn target(&self) -> Target<'_> {
        T::target(self)
    }
}

/// Implements [`Resolve`] for these types.
macro_rules! targets {
    ($($type:ty: |$value:ident| $target:expr;)*) => {$(
        impl Resolve for $type {
            fn target(&self) -> Target<'_> {
                let $value = self;
                $target
            }
        }
    )*};
}

targets! {
    SocketAddr: |address| Target::One(*address);
    SocketAddrV4: |address| Target::One((*address).into());
    SocketAddrV6: |address| Target::One((*address).into());
    (IpAddr, u16): |address| Target::One((*address).into());
    (Ipv4Addr, u16): |address| Target::One((*address).into());
    (Ipv6Addr, u16): |address| Target::One((*address).into());
    [SocketAddr]: |addresses| Target::Many(addresses);
    Vec<SocketAddr>: |addresses| Target::Many(addresses);
    (&str, u16): |host| Target::Host(host.0, host.1);
    (String, u16): |host| Target::Host(&host.0, host.1);
    String: |text| text.as_str().target();
}

impl<const N: usize> Resolve for [SocketAddr; N] {
    fn target(&self) -> Target<'_> {
        Target::Many(self)
    }
}

impl Resolve for str {
    fn target(&self) -> Target<'_> {
        if let Ok(address) = self.parse() {
            return Target::One(address);
        }
        let parts = self.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        match parts {
            Some((host, port)) => Target::Host(host, port),
            None => Target::Invalid(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Returns the result of a lookup in the first poll, without another thread.
    fn at_once(target: &(impl Resolve + ?Sized)) -> Vec<SocketAddr> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(resolve(target)).poll(&mut context) {
            Poll::Ready(addresses) => addresses.expect("an address"),
            Poll::Pending => panic!("an address was looked up by another thread"),
        }
    }

    #[test]
    fn addresses_never_leave_the_thread() {
        crate::block_on(async {
            let both = ["127.0.0.1:80", "[::1]:81"].map(|text| text.parse().expect("an address"));
            assert_eq!(at_once("127.0.0.1:80"), both[..1]);
            assert_eq!(at_once("[::1]:81"), both[1..]);
            assert_eq!(at_once("::1:81"), both[1..]);
            assert_eq!(at_once(&("::1", 81)), both[1..]);
            assert_eq!(at_once(&(Ipv4Addr::LOCALHOST, 80)), both[..1]);
            assert_eq!(at_once(&both), both);
            assert_eq!(at_once(&both[..]), both);
            assert_eq!(at_once(&vec![both[0]]), both[..1]);
        });
    }

    #[test]
    fn what_is_no_address_is_refused_at_once() {
        crate::block_on(async {
            for text in ["", "localhost", "localhost:", "localhost:http", "localhost:65536"] {
                let error = resolve(text).await.expect_err("no port");
                assert_eq!((error.kind(), error.name()), (io::ErrorKind::InvalidInput, Some(text)));
            }
            let none: [SocketAddr; 0] = [];
            let error = resolve(&none).await.expect_err("none");
            assert_eq!(error.to_string(), "look up: no addresses were given");
        });
    }
}
