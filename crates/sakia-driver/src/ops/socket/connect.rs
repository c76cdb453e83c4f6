//! Connecting a socket.

use sakia_ring::Sqe;

use crate::address::SocketAddress;
use crate::call::{Call, SocketCall, Verb, word};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::operation::Operation;

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
unsafe impl Operation for Connect {
    const KIND: OpKind = OpKind::Connect;

    fn entry(&mut self) -> Option<Sqe> {
        let address = self.address.as_bytes();
        Some(Sqe::connect(self.fd.raw(), address.as_ptr(), address.len() as u32))
    }

    fn call(&mut self) -> Call {
        let address = self.address.as_bytes();
        let args = [word(address.as_ptr()), address.len()];
        SocketCall::on(Verb::Connect, self.fd.raw(), args, 0)
    }

    no_output!();
    acts_on!(Waiting, fd);
}
