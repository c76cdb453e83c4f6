//! Connections: streams of bytes in both directions, with no byte lost or overtaken.
//!
//! The bytes of a stream are ordered; operations on a ring are not. So a [`Connection`] has at most one send
//! and one receive in flight. Further ones wait for it, even if its future was dropped: the operation
//! continues until the kernel has canceled or finished it.
//!
//! Data received for a dropped future is kept: the next receive gets those bytes.

mod buf;
mod crowd;
mod datagrams;
mod inbox;
mod incoming;
mod multishot;
mod permits;
mod recv;
mod send;

use std::cell::Cell;
use std::fmt;
use std::io;
use std::rc::{Rc, Weak};

pub use self::buf::RecvBuf;
pub use self::datagrams::{Datagram, DatagramOptions, DatagramReceiver};
use self::inbox::Inbox;
pub use self::incoming::Incoming;
use self::permits::Permits;
use crate::address::{ShutdownHow, SocketAddress};
use crate::fd::Fd;
use crate::handle::Handle;

/// A connected stream socket. Clones are the same connection.
///
/// Only one task may receive and one may send at a time: of two that wait for the same, the first may never
/// be woken.
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
/// let (near, far) = (driver.connection(near), driver.connection(far));
/// let talk = async {
///     near.send("a question").await.0?;
///     assert_eq!(&*far.recv().await?, b"a question");
///     far.send("an answer").await.0?;
///     far.shutdown(ShutdownHow::Sends).await?;
///     let (result, buf) = near.read(vec![0; 100]).await;
///     assert_eq!(&buf[..result?], b"an answer");
///     assert!(near.recv().await?.is_empty(), "the end");
///     near.close().await
/// };
/// run(&driver, talk)??;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Connection {
    shared: Rc<Owned>,
}

/// The state that all clones share. Dropping it ends the multishot receive.
struct Owned {
    fd: Fd,
    driver: Handle,
    inner: Rc<Inner>,
}

/// The state that a connection shares with its operations.
#[derive(Default)]
struct Inner {
    receives: Permits,
    sends: Permits,
    inbox: Inbox,
    /// A request has all bytes that come.
    is_streamed: Cell<bool>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.inner.inbox.multishot.cancel(&self.driver);
        self.driver.shared.withdraw(&self.fd);
    }
}

/// The claim of a request to all bytes that come.
pub(crate) struct Streamed(Connection);

impl Streamed {
    /// `None` while there is another claim.
    pub(crate) fn claim(connection: &Connection) -> Option<Self> {
        let is_first = !connection.inner().is_streamed.replace(true);
        is_first.then(|| Self(connection.clone()))
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.0
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        self.0.inner().is_streamed.set(false);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("fd", self.fd()).finish_non_exhaustive()
    }
}

impl Handle {
    /// Makes a connection of a connected stream socket on which nothing is in flight. While a clone of the
    /// descriptor belongs to a connection, the result is a clone of that one: a stream has one order of its
    /// sends, and its received bytes are kept once.
    ///
    /// # Panics
    /// When the descriptor belongs to another driver.
    ///
    /// # Examples
    /// See [`Connection`](crate::Connection#examples).
    pub fn connection(&self, fd: Fd) -> Connection {
        self.check(&fd);
        if let Some(Ok(shared)) = fd.connection().map(Rc::downcast) {
            return Connection { shared };
        }
        let shared = Rc::new(Owned { fd, driver: self.clone(), inner: Rc::default() });
        let found: Weak<Owned> = Rc::downgrade(&shared);
        shared.fd.set_connection(found);
        Connection { shared }
    }
}

impl Connection {
    /// Returns the descriptor.
    pub fn fd(&self) -> &Fd {
        &self.shared.fd
    }

    /// Returns the driver's handle with which operations are started.
    pub fn driver(&self) -> &Handle {
        &self.shared.driver
    }

    fn inner(&self) -> &Rc<Inner> {
        &self.shared.inner
    }

    /// Returns the socket's own address, by a plain call.
    ///
    /// # Errors
    /// As [`Handle::local_address`].
    pub fn local_address(&self) -> io::Result<SocketAddress> {
        self.driver().local_address(self.fd())
    }

    /// Returns the peer's address, by a plain call.
    ///
    /// # Errors
    /// As [`Handle::peer_address`].
    ///
    /// # Examples
    /// See [`Handle::accept`](crate::Handle::accept).
    pub fn peer_address(&self) -> io::Result<SocketAddress> {
        self.driver().peer_address(self.fd())
    }

    /// Shuts down one or both directions, once the sends in progress have ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the direction was ended.
    ///
    /// # Errors
    /// As [`Handle::shutdown_socket`].
    ///
    /// # Examples
    /// See [`Connection`](Connection#examples).
    pub async fn shutdown(&self, how: ShutdownHow) -> io::Result<()> {
        if how != ShutdownHow::Receives {
            // A dropped future's send may still be in flight, and would fail half-way.
            self.inner().sends.free().await;
        }
        self.driver().shutdown_socket(self.fd(), how).await
    }

    /// Closes the connection: cancels the operations on it, those of clones included, and returns the result
    /// of closing.
    ///
    /// # Cancel safety
    /// Dropping the future loses the result; the connection is closed all the same.
    ///
    /// # Errors
    /// As [`Handle::close`].
    ///
    /// # Examples
    /// See [`Connection`](Connection#examples).
    pub async fn close(self) -> io::Result<()> {
        let (fd, driver) = (self.fd().clone(), self.driver().clone());
        drop(self);
        driver.close(fd).await
    }
}
