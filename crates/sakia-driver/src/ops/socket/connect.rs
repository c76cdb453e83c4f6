//! Connecting a socket.

use sakia_ring::Sqe;

use crate::address::SocketAddress;
use crate::call::{SocketCall, Verb, word};
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::connect`].
#[derive(Debug)]
pub struct Connect {
    fd: Fd,
    address: SocketAddress,
}

impl Handle {
    /// Connects the socket to `address`, and waits until that is done. A socket of datagrams gets a peer
    /// by it, and is done at once.
    ///
    /// After a failure, or when it was canceled, the state of the socket is not known: make another one.
    ///
    /// # Errors
    /// - `ECONNREFUSED`: nobody listens there. `ENOENT`: nothing is at that path.
    /// - `ETIMEDOUT`, `ENETUNREACH`, `EHOSTUNREACH`: nobody answered.
    /// - `EADDRNOTAVAIL`: no port left. `EISCONN`: the socket is connected.
    /// - `ECANCELED`: canceled before it was connected. Otherwise as `connect(2)`.
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_connect(3)`.
    pub fn connect(&self, fd: &Fd, address: &SocketAddress) -> Op<Connect> {
        self.start(Connect { fd: self.held(fd), address: *address })
    }
}

// SAFETY: the entry names the address, which is part of the value, and a descriptor that the value keeps
// open.
operation! {
    unsafe |it: Connect| Waiting, fd; Connect;
    entry {
        let address = it.address.as_bytes();
        Sqe::connect(it.fd.raw(), address.as_ptr(), address.len() as u32)
    };
    call {
        let address = it.address.as_bytes();
        SocketCall::on(Verb::Connect, it.fd.raw(), [word(address.as_ptr()), address.len()], 0)
    };
}
