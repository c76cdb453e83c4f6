//! The two directions of a connection.

use std::error;
use std::fmt;
use std::io;
use std::panic::Location;
use std::rc::Rc;

use sakia_driver::{BufResult, IoBuf, IoBufMut, RecvBuf, ShutdownHow};

use super::socket::{Socket, Stream};
use super::{TcpStream, addresses, async_read, async_writes, readers, writers};
use crate::executor::try_current;
use crate::io::AsyncWrite;

/// The receiving direction of a connection. Dropping it tells the peer nothing; the connection is closed when
/// both halves are gone.
///
/// # Examples
/// One task answers while another one still asks:
/// ```
/// use sakia::io::BufResultExt;
/// use sakia::net::UnixStream;
///
/// # sakia::block_on(async {
/// let (near, far) = UnixStream::pair()?;
/// let (mut input, mut output) = near.into_split();
/// let send = sakia::spawn(async move {
///     output.write_all("from the other task").await.value()?;
///     output.shutdown().await?;
///     std::io::Result::Ok(output)
/// });
/// let (mut peer_input, _peer_output) = far.into_split();
/// let text = peer_input.read_to_end(Vec::new()).await.buffer()?;
/// assert_eq!(text, b"from the other task");
///
/// let output = send.await.unwrap()?;
/// let near = input.reunite(output).expect("halves of one stream");
/// # drop(near);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct OwnedReadHalf<S = TcpStream> {
    stream: Rc<S>,
}

/// The sending direction of a connection. Dropping it tells the peer that no more bytes follow; the
/// connection is closed when both halves are gone.
///
/// # Examples
/// See [`OwnedReadHalf`](OwnedReadHalf#examples).
#[derive(Debug)]
pub struct OwnedWriteHalf<S: Stream = TcpStream> {
    stream: Rc<S>,
    /// Set while dropping it has to end the sends.
    is_open: bool,
    /// The place that took the stream apart, which is that of the task that ends the sends.
    split_at: &'static Location<'static>,
}

/// The borrowed receiving direction of a connection. See [`TcpStream::split`].
///
/// # Examples
/// Both directions at once, within one task:
/// ```
/// use sakia::io::BufResultExt;
/// use sakia::net::UnixStream;
///
/// # sakia::block_on(async {
/// let (mut near, mut far) = UnixStream::pair()?;
/// let (mut input, mut output) = near.split();
/// far.write_all("a question").await.value()?;
/// let (question, sent) = sakia::join!(input.recv(), output.write_all("an announcement"));
/// assert_eq!(&*question?, b"a question");
/// sent.value()?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct ReadHalf<'a, S = TcpStream> {
    stream: &'a S,
}

/// The borrowed sending direction of a connection. Dropping it changes nothing: the stream can go on sending.
/// See [`TcpStream::split`].
///
/// # Examples
/// See [`ReadHalf`](ReadHalf#examples).
#[derive(Debug)]
pub struct WriteHalf<'a, S = TcpStream> {
    stream: &'a S,
}

/// Takes the two directions apart.
#[track_caller]
pub(crate) fn into_halves<S: Stream>(stream: S) -> (OwnedReadHalf<S>, OwnedWriteHalf<S>) {
    let (stream, split_at) = (Rc::new(stream), Location::caller());
    (
        OwnedReadHalf { stream: Rc::clone(&stream) },
        OwnedWriteHalf { stream, is_open: true, split_at },
    )
}

impl<S: Stream> OwnedReadHalf<S> {
    /// Puts the halves together again.
    ///
    /// # Errors
    /// The halves are of different connections; they come back.
    ///
    /// # Examples
    /// See [`OwnedReadHalf`](OwnedReadHalf#examples).
    pub fn reunite(self, other: OwnedWriteHalf<S>) -> Result<S, ReuniteError<S>> {
        if !Rc::ptr_eq(&self.stream, &other.stream) {
            return Err(ReuniteError(self, other));
        }
        drop(self);
        Ok(Rc::into_inner(other.forget()).expect("a connection has two halves, and one is dropped"))
    }
}

impl<S: Stream> OwnedWriteHalf<S> {
    /// Tells the peer that no more bytes follow, after all that were sent. Further writes fail with `EPIPE`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the direction was ended. Call it again.
    ///
    /// # Errors
    /// `ENOTCONN`: the connection is broken. Otherwise as `shutdown(2)`.
    ///
    /// # Examples
    /// See [`OwnedReadHalf`](OwnedReadHalf#examples).
    ///
    /// # Kernel
    /// 5.11. Source: `io_uring_prep_shutdown(3)`.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.socket().end(ShutdownHow::Sends).await?;
        self.is_open = false;
        Ok(())
    }

    /// As [`OwnedReadHalf::reunite`].
    ///
    /// # Errors
    /// The halves are of different connections; they come back.
    ///
    /// # Examples
    /// See [`OwnedReadHalf`](OwnedReadHalf#examples).
    pub fn reunite(self, other: OwnedReadHalf<S>) -> Result<S, ReuniteError<S>> {
        other.reunite(self)
    }

    /// Drops the half, and leaves the direction open.
    fn forget(mut self) -> Rc<S> {
        self.is_open = false;
        Rc::clone(&self.stream)
    }
}

impl<'a, S: Stream> ReadHalf<'a, S> {
    pub(super) fn new(stream: &'a S) -> Self {
        Self { stream }
    }
}

impl<'a, S: Stream> WriteHalf<'a, S> {
    pub(super) fn new(stream: &'a S) -> Self {
        Self { stream }
    }

    /// Tells the peer that no more bytes follow, after all that were sent. Further writes fail with `EPIPE`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves unknown whether the direction was ended. Call it again.
    ///
    /// # Errors
    /// `ENOTCONN`: the connection is broken. Otherwise as `shutdown(2)`.
    ///
    /// # Kernel
    /// 5.11. Source: `io_uring_prep_shutdown(3)`.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.socket().end(ShutdownHow::Sends).await
    }
}

impl<S: Stream> Drop for OwnedWriteHalf<S> {
    fn drop(&mut self) {
        // Without the other half, closing the connection ends the sends anyway.
        let is_last = Rc::strong_count(&self.stream) == 1;
        if !self.is_open || is_last {
            return;
        }
        let Some(local) = try_current() else { return };
        // A task, since a send of a dropped future may have to end first. In a forked child the driver
        // refuses: the sends are its parent's to end.
        let stream = Rc::downgrade(&self.stream);
        let ending = async move {
            // If the other half goes before this runs, the connection is closed there and then.
            if let Some(stream) = stream.upgrade() {
                stream.socket().end(ShutdownHow::Sends).await.ok();
            }
        };
        local.spawn_at(ending, self.split_at).detach();
    }
}

impl<S: Stream> AsyncWrite for OwnedWriteHalf<S> {
    async_writes!();

    /// Ends the sends. The connection is closed when the other half is gone, too.
    async fn close(mut self) -> io::Result<()> {
        let result = self.shutdown().await;
        self.is_open = false; // even if it failed
        result
    }
}

impl<S: Stream> AsyncWrite for WriteHalf<'_, S> {
    async_writes!();

    /// Ends the sends.
    async fn close(mut self) -> io::Result<()> {
        self.shutdown().await
    }
}

async_read!([S: Stream] OwnedReadHalf<S>);
async_read!([S: Stream] ReadHalf<'_, S>);

/// Generates the methods that all halves have, and those of a direction.
macro_rules! half {
    ($type:ty, $methods:ident) => {
        impl<S: Stream> $type {
            $methods!();
            addresses!(S::Address);

            pub(super) fn socket(&self) -> &Socket {
                self.stream.socket()
            }
        }

        /// Returns the connection, for its options.
        impl<S: Stream> AsRef<S> for $type {
            fn as_ref(&self) -> &S {
                &self.stream
            }
        }
    };
}

half!(OwnedReadHalf<S>, readers);
half!(OwnedWriteHalf<S>, writers);
half!(ReadHalf<'_, S>, readers);
half!(WriteHalf<'_, S>, writers);

/// Two halves of different connections.
///
/// # Examples
/// ```
/// use sakia::net::UnixStream;
///
/// # sakia::block_on(async {
/// let ((one, _), (other, _)) = (UnixStream::pair()?, UnixStream::pair()?);
/// let ((read, write), (other_read, _other_write)) = (one.into_split(), other.into_split());
/// let error = other_read.reunite(write).unwrap_err();
/// // Nothing is lost: the error has them.
/// assert!(read.reunite(error.1).is_ok());
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct ReuniteError<S: Stream = TcpStream>(pub OwnedReadHalf<S>, pub OwnedWriteHalf<S>);

impl<S: Stream> fmt::Display for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are of different connections")
    }
}

impl<S: Stream> error::Error for ReuniteError<S> {}
