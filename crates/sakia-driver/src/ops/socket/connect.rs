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
    /// Connects the socket to `address`, and waits for the result. For a datagram socket it sets the peer,
    /// and is done at once.
    ///
    /// After a failure or a cancellation the state of the socket is unknown: make another one.
    ///
    /// # Errors
    /// - `ECONNREFUSED`: no socket listens there. `ENOENT`: the path does not exist.
    /// - `ETIMEDOUT`, `ENETUNREACH`, `EHOSTUNREACH`: no answer.
    /// - `EADDRNOTAVAIL`: no port left. `EISCONN`: the socket is connected.
    /// - `ECANCELED`: canceled before it was connected. Otherwise as `connect(2)`.
    ///
    /// # Examples
    /// See [`Handle::accept`].
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
