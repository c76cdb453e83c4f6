//! Accepting a connection.

use std::io;
use std::rc::Rc;

use sakia_ring::Sqe;

use super::create::CLOEXEC;
use crate::address::{AddressRoom, SocketAddress};
use crate::call::{Call, SocketCall, Verb, word};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};

/// See [`Handle::accept`].
#[derive(Debug)]
pub struct Accept {
    fd: Fd,
    peer: AddressRoom,
}

impl Handle {
    /// Accepts a connection of a socket that [listens](Handle::listen), or waits for one.
    ///
    /// Resolves to the connection and its peer's address. If the handle was dropped, a newly accepted
    /// connection is closed, and its peer notices; a connection not accepted by then goes to the next accept.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left; the connection stays in the
    ///   queue.
    /// - `ECONNABORTED`: the connection ended meanwhile; others may wait.
    /// - `EINVAL`: the socket does not listen. `EOPNOTSUPP`: it takes no connections.
    /// - `ECANCELED`: canceled before a connection came. Otherwise as `accept(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use std::net::SocketAddr;
    ///
    /// use sakia_driver::{Domain, SocketType};
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
    /// let listener = run(&driver, driver.socket(Domain::INET, SocketType::STREAM, 0))??;
    /// let any = SocketAddr::from(([127, 0, 0, 1], 0));
    /// run(&driver, driver.bind(&listener, &any.into()))??;
    /// run(&driver, driver.listen(&listener, 16))??;
    ///
    /// let client = run(&driver, driver.socket(Domain::INET, SocketType::STREAM, 0))??;
    /// run(&driver, driver.connect(&client, &driver.local_address(&listener)?))??;
    /// let (server, peer) = run(&driver, driver.accept(&listener))??;
    /// assert_eq!(peer, driver.local_address(&client)?);
    ///
    /// run(&driver, driver.send(&client, "hello", 0))?.0?;
    /// let (result, buf) = run(&driver, driver.recv(&server, vec![0; 100], 0))?;
    /// assert_eq!(&buf[..result?], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_accept(3)`.
    #[doc(alias = "accept4")]
    pub fn accept(&self, fd: &Fd) -> Op<Accept> {
        self.start(Accept::new(self.held(fd)))
    }
}

impl Accept {
    pub(crate) fn new(fd: Fd) -> Self {
        Self { fd, peer: AddressRoom::new() }
    }
}

// SAFETY: the entry names the room for an address, which is part of the value, and a descriptor that the
// value keeps open.
unsafe impl Operation for Accept {
    type Output = io::Result<(Fd, SocketAddress)>;
    const KIND: OpKind = OpKind::Accept;

    fn entry(&mut self) -> Option<Sqe> {
        let (peer, len) = self.peer.pointers();
        Some(Sqe::accept(self.fd.raw(), peer, len, CLOEXEC))
    }

    fn call(&mut self) -> Call {
        let (peer, len) = self.peer.pointers();
        SocketCall::on(Verb::Accept, self.fd.raw(), [word(peer), word(len)], CLOEXEC)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let raw = completion.result()?;
        let may_linger = self.fd.may_linger();
        // SAFETY: the kernel has just made it for this operation; it has no other owner.
        let connection = unsafe { Fd::socket(raw as i32, Rc::clone(self.fd.owner()), may_linger) };
        Ok((connection, self.peer.address()))
    }

    fn dispose(self, completion: Completion) {
        drop(self.complete(completion)); // closes the connection
    }

    acts_on!(Waiting, fd);
}
