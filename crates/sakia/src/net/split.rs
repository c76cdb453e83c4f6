//! The two directions of a connection.

use std::error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use sakia_driver::{BufResult, IoBuf, IoBufMut, RecvBuf, ShutdownHow};

use super::{TcpStream, readers, writers};
use crate::executor::try_current;
use crate::io::{AsyncRead, AsyncWrite};

/// The direction of a [`TcpStream`] in which bytes come. Dropping it tells the peer nothing; the connection
/// is closed when both halves are gone.
#[derive(Debug)]
pub struct OwnedReadHalf {
    stream: Rc<TcpStream>,
}

/// The direction of a [`TcpStream`] in which bytes go. Dropping it tells the peer that no more comes; the
/// connection is closed when both halves are gone.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Rc<TcpStream>,
    /// Dropping it ends the sends.
    is_open: bool,
}

impl OwnedReadHalf {
    pub(super) fn new(stream: Rc<TcpStream>) -> Self {
        Self { stream }
    }

    readers!();

    /// The socket's own address, by a plain call.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// The peer's address, by a plain call.
    ///
    /// # Errors
    /// `ENOTCONN`: the connection has broken off. Otherwise as `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Puts the halves together again.
    ///
    /// # Errors
    /// They are of different connections; they come back.
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if !Rc::ptr_eq(&self.stream, &other.stream) {
            return Err(ReuniteError(self, other));
        }
        drop(self);
        Ok(Rc::into_inner(other.forget()).expect("a connection has two halves, and one is dropped"))
    }
}

impl OwnedWriteHalf {
    pub(super) fn new(stream: Rc<TcpStream>) -> Self {
        Self { stream, is_open: true }
    }

    writers!();

    /// Tells the peer that no more comes, after all that was sent. Further writes fail with `EPIPE`.
    ///
    /// # Errors
    /// `ENOTCONN`: the connection has broken off. Otherwise as `shutdown(2)`.
    ///
    /// # Kernel
    /// 5.11. Source: `io_uring_prep_shutdown(3)`.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.stream.end(ShutdownHow::Sends).await?;
        self.is_open = false;
        Ok(())
    }

    /// The socket's own address, by a plain call.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// The peer's address, by a plain call.
    ///
    /// # Errors
    /// `ENOTCONN`: the connection has broken off. Otherwise as `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// As [`OwnedReadHalf::reunite`].
    ///
    /// # Errors
    /// They are of different connections; they come back.
    pub fn reunite(self, other: OwnedReadHalf) -> Result<TcpStream, ReuniteError> {
        other.reunite(self)
    }

    /// Gives up the half, and leaves the direction open.
    fn forget(mut self) -> Rc<TcpStream> {
        self.is_open = false;
        Rc::clone(&self.stream)
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        // Without the other half, closing the connection says as much.
        let is_last = Rc::strong_count(&self.stream) == 1;
        if !self.is_open || is_last {
            return;
        }
        let Some(local) = try_current() else { return };
        // A task, since a send of a dropped future may have to end before.
        let stream = Rc::clone(&self.stream);
        let ending = async move { stream.end(ShutdownHow::Sends).await.ok() };
        local.spawn(ending).detach();
    }
}

impl AsyncRead for OwnedReadHalf {
    async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
        self.stream.read_some(buf).await
    }
}

impl AsyncWrite for OwnedWriteHalf {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.stream.write_some(buf).await
    }

    async fn write_vectored<T: IoBuf>(&mut self, bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
        self.stream.write_some_vectored(bufs).await
    }

    /// Ends the sends. The connection is closed when the other half is gone, too.
    async fn close(mut self) -> io::Result<()> {
        let result = self.shutdown().await;
        self.is_open = false; // it was tried
        result
    }
}

/// The connection, for its options.
impl AsRef<TcpStream> for OwnedReadHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}

/// The connection, for its options.
impl AsRef<TcpStream> for OwnedWriteHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}

/// Two halves that are not of the same connection.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are of different connections")
    }
}

impl error::Error for ReuniteError {}
