//! Which addresses a socket has.

use std::io;

use crate::address::SocketAddress;
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
}
