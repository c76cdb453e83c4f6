//! Options of UDP sockets for binding.

use sakia_driver::{Fd, SocketType};

use super::datagram::Datagrams;
use super::lookup::ToSocketAddrs;
use super::options::{Binding, first_of};
use super::sockopt::{Common, buffer_options};
use super::{Result, UdpSocket};
use crate::executor::current;

/// Options for binding a [`UdpSocket`].
///
/// # Examples
/// ```
/// use sakia::net::UdpOptions;
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     // Two sockets on one port, among which the kernel divides the senders.
///     let options = UdpOptions::new().reuse_port(true).recv_buffer_size(1 << 20);
///     let one = options.bind("127.0.0.1:0").await?;
///     let other = options.bind(one.local_addr()?).await?;
///     assert_eq!(one.local_addr()?, other.local_addr()?);
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpOptions {
    common: Common,
    binding: Binding,
}

impl UdpOptions {
    /// Returns the options of [`UdpSocket::bind`].
    ///
    /// # Examples
    /// See [`UdpOptions`](UdpOptions#examples).
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether other sockets with this option may have the same address and port: all of them get
    /// datagrams to a group or to a broadcast address, and the last one gets all others. Without this call
    /// they may not.
    #[doc(alias = "SO_REUSEADDR")]
    #[must_use]
    pub fn reuse_addr(mut self, reuse: bool) -> Self {
        self.binding.is_address_reused = reuse;
        self
    }

    /// Sets whether other sockets of the same user with this option may have the same address and port. The
    /// kernel divides the senders among them, so each thread of a server can have its own socket. Without
    /// this call they may not. Not on the simulated kernel.
    ///
    /// # Examples
    /// See [`UdpOptions`](UdpOptions#examples).
    #[doc(alias = "SO_REUSEPORT")]
    #[must_use]
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.binding.is_port_shared = reuse;
        self
    }

    /// Sets whether a socket on `[::]` receives no IPv4 datagrams. Without this call the system decides;
    /// usually it receives them. Not on the simulated kernel.
    #[doc(alias = "IPV6_V6ONLY")]
    #[must_use]
    pub fn only_v6(mut self, only_v6: bool) -> Self {
        self.binding.only_v6 = Some(only_v6);
        self
    }

    buffer_options!();

    /// Makes a socket bound to the first usable address of `on`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    ///
    /// # Errors
    /// The last failure, with all addresses that were tried:
    /// - `EADDRINUSE`: another socket has the address. `EADDRNOTAVAIL`: it is not this machine's.
    /// - `EACCES`: the port is privileged.
    /// - `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left.
    /// - Without addresses: the error of [`lookup_host`](super::lookup_host).
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`UdpOptions`](UdpOptions#examples).
    ///
    /// # Kernel
    /// 6.11 for binding on the ring. Source: `io_uring_prep_bind(3)`.
    pub async fn bind(&self, on: impl ToSocketAddrs) -> Result<UdpSocket> {
        let driver = current().driver.handle().clone();
        let prepare = |fd: &Fd| self.common.apply(fd);
        let fd = first_of(&on, async |address| {
            self.binding.bind(&driver, SocketType::DATAGRAM, address, prepare).await
        })
        .await?;
        Ok(UdpSocket { inner: Datagrams::new(fd, driver) })
    }
}
