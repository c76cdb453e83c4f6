//! Shutting down a connection, or one direction of it.

use sakia_ring::Sqe;

use crate::address::ShutdownHow;
use crate::call::{Function, System};
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::shutdown_socket`].
#[derive(Debug)]
pub struct Shutdown {
    fd: Fd,
    how: ShutdownHow,
}

impl Handle {
    /// Shuts down one or both directions of a connection, for all descriptors of the socket. Operations that
    /// wait for that direction end. The descriptor stays open.
    ///
    /// It may overtake a send that is not done yet, which then fails: wait for the send first.
    ///
    /// # Errors
    /// - `ENOTCONN`: the socket is not connected. `ENOTSOCK`: not a socket. Otherwise as `shutdown(2)`.
    ///
    /// # Examples
    /// See [`Handle::socket_pair`].
    ///
    /// # Kernel
    /// 5.11. Source: `io_uring_prep_shutdown(3)`.
    #[doc(alias = "shutdown")]
    pub fn shutdown_socket(&self, fd: &Fd, how: ShutdownHow) -> Op<Shutdown> {
        self.start(Shutdown { fd: self.held(fd), how })
    }
}

of_numbers! {
    |it: Shutdown| Bounded; Socket;
    entry Sqe::shutdown(it.fd.raw(), it.how as u32);
    call System::on(Function::Shutdown, it.fd.raw(), [it.how as usize]);
}
