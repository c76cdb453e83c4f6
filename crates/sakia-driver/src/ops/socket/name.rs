//! Addresses and peers of sockets, and pairs of them, by plain calls.

use std::io;

use rustix::io::Errno;

use crate::address::{Credentials, SocketAddress, SocketType};
use crate::fd::Fd;
use crate::handle::Handle;

impl Handle {
    /// The socket's own address, by a plain call.
    ///
    /// # Errors
    /// `ENOTSOCK`: not a socket. Otherwise as `getsockname(2)`.
    #[doc(alias = "getsockname")]
    pub fn local_address(&self, fd: &Fd) -> io::Result<SocketAddress> {
        self.check(fd);
        // SAFETY: the clone keeps the descriptor open.
        unsafe { self.shared.descriptors.local_address(fd.raw()) }
    }

    /// The address of the socket's peer, by a plain call.
    ///
    /// # Errors
    /// `ENOTCONN`: it is not connected. `ENOTSOCK`: not a socket. Otherwise as `getpeername(2)`.
    #[doc(alias = "getpeername")]
    pub fn peer_address(&self, fd: &Fd) -> io::Result<SocketAddress> {
        self.check(fd);
        // SAFETY: the clone keeps the descriptor open.
        unsafe { self.shared.descriptors.peer_address(fd.raw()) }
    }

    /// Makes two sockets within the machine that are connected with each other, by a plain call.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptor left. `ESOCKTNOSUPPORT`, `EINVAL`: no such sockets here. Otherwise
    /// as `socketpair(2)`.
    #[doc(alias = "socketpair")]
    pub fn socket_pair(&self, kind: SocketType) -> io::Result<(Fd, Fd)> {
        let raws = self.shared.descriptors.socket_pair(kind)?;
        // SAFETY: the kernel has just made both for this call, and nobody else knows of them.
        let [one, other] = raws.map(|raw| unsafe { Fd::socket(raw, self.owner()) });
        Ok((one, other))
    }

    /// The credentials that the process of the socket's peer had when they were connected, by a plain call.
    ///
    /// # Errors
    /// `ENOTCONN`: it has no peer, or is not within the machine. `ENOTSOCK`: not a socket. Otherwise as
    /// `getsockopt(2)`.
    #[doc(alias = "SO_PEERCRED")]
    pub fn peer_credentials(&self, fd: &Fd) -> io::Result<Credentials> {
        /// The kernel's answer where there is no peer has no user.
        const NO_USER: u32 = u32::MAX;
        self.check(fd);
        // SAFETY: the clone keeps the descriptor open.
        let credentials = unsafe { self.shared.descriptors.peer_credentials(fd.raw()) }?;
        if credentials.user == NO_USER { Err(Errno::NOTCONN.into()) } else { Ok(credentials) }
    }
}
