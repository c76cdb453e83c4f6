//! Binding a socket to an address, and listening.

use sakia_ring::Sqe;

use crate::address::SocketAddress;
use crate::call::{Function, System, word};
use crate::counters::OpKind;
use crate::decide::Route;
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::bind`].
#[derive(Debug)]
pub struct Bind {
    fd: Fd,
    address: SocketAddress,
}

/// See [`Handle::listen`].
#[derive(Debug)]
pub struct Listen {
    fd: Fd,
    backlog: u32,
}

impl Handle {
    /// Binds the socket to an address. With port 0 the kernel chooses a free one, which
    /// [`local_address`](Handle::local_address) returns.
    ///
    /// A path is created, and stays when the socket is closed: the program has to remove it.
    ///
    /// # Errors
    /// - `EADDRINUSE`: another socket has the address, or the path exists.
    /// - `EADDRNOTAVAIL`: the address is not this machine's. `EINVAL`: the socket has an address.
    /// - `EACCES`: the port is not permitted. Otherwise as `bind(2)`.
    ///
    /// # Examples
    /// See [`Handle::accept`].
    ///
    /// # Kernel
    /// 6.11; a plain call, on a thread of a lane, before. Source: `io_uring_prep_bind(3)`.
    pub fn bind(&self, fd: &Fd, address: &SocketAddress) -> Op<Bind> {
        self.start(Bind { fd: self.held(fd), address: *address })
    }

    /// Makes the socket listen for connections, to be [accepted](Handle::accept). About `backlog` connections
    /// may be in its queue, up to the system's limit; further clients wait.
    ///
    /// # Errors
    /// - `EADDRINUSE`: another socket listens there. `EOPNOTSUPP`: the socket takes no connections.
    /// - `EDESTADDRREQ`, `EINVAL`: the socket has no address, or is connected. Otherwise as `listen(2)`.
    ///
    /// # Examples
    /// See [`Handle::accept`].
    ///
    /// # Kernel
    /// 6.11; a plain call, on a thread of a lane, before. Source: `io_uring_prep_listen(3)`.
    pub fn listen(&self, fd: &Fd, backlog: u32) -> Op<Listen> {
        self.start(Listen { fd: self.held(fd), backlog })
    }
}

// SAFETY: the entry names the address, which is part of the value, and a descriptor that the value keeps
// open.
operation! {
    unsafe |it: Bind| Bounded, fd; Socket;
    entry {
        let address = it.address.as_bytes();
        Sqe::bind(it.fd.raw(), address.as_ptr(), address.len() as u32)
    };
    call {
        let address = it.address.as_bytes();
        System::on(Function::Bind, it.fd.raw(), [word(address.as_ptr()), address.len()])
    };
    route |rules| match it.address.path() {
        None => rules.of(OpKind::Socket).route_short_call(),
        // A path has to be looked up and created, perhaps on a device.
        Some(_) => Route::Queue,
    };
}

of_numbers! {
    |it: Listen| Bounded; Socket;
    entry Sqe::listen(it.fd.raw(), it.backlog);
    call System::on(Function::Listen, it.fd.raw(), [it.backlog as usize]);
    route |rules| rules.of(OpKind::Socket).route_short_call();
}
