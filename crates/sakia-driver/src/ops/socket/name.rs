//! Addresses and peers of sockets, and pairs of them, by plain calls.

use std::io;

use rustix::io::Errno;

use crate::address::{Credentials, SocketAddress, SocketType};
use crate::call::Function;
use crate::fd::Fd;
use crate::handle::Handle;

impl Handle {
    /// Returns the socket's own address, by a plain call.
    ///
    /// # Errors
    /// `ENOTSOCK`: not a socket. Otherwise as `getsockname(2)`.
    ///
    /// # Examples
    /// See [`Handle::accept`].
    #[doc(alias = "getsockname")]
    pub fn local_address(&self, fd: &Fd) -> io::Result<SocketAddress> {
        self.check(fd);
        // SAFETY: the clone keeps the descriptor open.
        unsafe { self.shared.calls.address(fd.raw(), Function::Getsockname) }
    }

    /// Returns the address of the socket's peer, by a plain call.
    ///
    /// # Errors
    /// `ENOTCONN`: it is not connected. `ENOTSOCK`: not a socket. Otherwise as `getpeername(2)`.
    ///
    /// # Examples
    /// See [`Handle::accept`].
    #[doc(alias = "getpeername")]
    pub fn peer_address(&self, fd: &Fd) -> io::Result<SocketAddress> {
        self.check(fd);
        // SAFETY: the clone keeps the descriptor open.
        unsafe { self.shared.calls.address(fd.raw(), Function::Getpeername) }
    }

    /// Makes two connected sockets within the machine, by a plain call.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptor left. `ESOCKTNOSUPPORT`, `EINVAL`: no such sockets here. Otherwise
    /// as `socketpair(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use sakia_driver::{ShutdownHow, SocketType};
    ///
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// let (near, far) = driver.socket_pair(SocketType::STREAM)?;
    /// run(&driver, driver.send(&near, "bye", 0))?.0?;
    /// run(&driver, driver.shutdown_socket(&near, ShutdownHow::Sends))??;
    /// assert_eq!(run(&driver, driver.recv(&far, vec![0; 100], 0))?.0?, 3);
    /// assert_eq!(run(&driver, driver.recv(&far, vec![0; 100], 0))?.0?, 0, "the end");
    /// assert_eq!(driver.peer_credentials(&near)?.process, std::process::id());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "socketpair")]
    pub fn socket_pair(&self, kind: SocketType) -> io::Result<(Fd, Fd)> {
        let raws = self.shared.calls.socket_pair(kind)?;
        // SAFETY: the kernel has just made both for this call; they have no other owner.
        let [one, other] = raws.map(|raw| unsafe { Fd::socket(raw, self.owner(), false) });
        Ok((one, other))
    }

    /// Returns the credentials of the peer's process at the time of the connect, by a plain call.
    ///
    /// # Errors
    /// `ENOTCONN`: it has no peer, or is not within the machine. `ENOTSOCK`: not a socket. Otherwise as
    /// `getsockopt(2)`.
    ///
    /// # Examples
    /// See [`Handle::socket_pair`].
    #[doc(alias = "SO_PEERCRED")]
    pub fn peer_credentials(&self, fd: &Fd) -> io::Result<Credentials> {
        /// The user in the kernel's result if there is no peer.
        const NO_USER: u32 = u32::MAX;
        self.check(fd);
        // SAFETY: the clone keeps the descriptor open.
        let credentials = unsafe { self.shared.calls.peer_credentials(fd.raw()) }?;
        if credentials.user == NO_USER { Err(Errno::NOTCONN.into()) } else { Ok(credentials) }
    }
}
