//! Waiting until a descriptor is ready.
//!
//! The kernel polls a duplicate, which the driver owns. It refers to the same open file, so it is ready when
//! the original is, and it stays open as long as a poll is in flight, even if the original is closed. Each
//! wait is a poll of its own, so any number of tasks may wait at once.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use sakia_driver::PollEvents;

use super::stream::Stream;

/// Waits until any descriptor is ready: a socket, a pipe, a timer, a device, a descriptor from a library.
///
/// It keeps the descriptor's owner and gives it back with [`into_inner`](Async::into_inner). Any number of
/// tasks may wait at once, in both directions; each of them is woken.
///
/// The `*_with` methods try first and wait if that would block, so the descriptor should be non-blocking
/// (`O_NONBLOCK`): a call that blocks stops its whole thread. `new` does not change that flag, which belongs
/// to the open file and is shared with its other users.
///
/// The driver polls a duplicate of the descriptor, which is closed when the `Async` is dropped or taken
/// apart.
///
/// # Examples
/// ```
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
///
/// use sakia::io::Async;
///
/// # fn main() -> std::io::Result<()> {
/// let bytes = sakia::block_on(async {
///     let (near, mut far) = UnixStream::pair()?;
///     near.set_nonblocking(true)?;
///     let near = Async::new(near)?;
///     far.write_all(b"hello")?;
///     let mut bytes = [0; 5];
///     let count = near.read_with(|mut stream| stream.read(&mut bytes)).await?;
///     assert_eq!(count, 5);
///     std::io::Result::Ok(bytes)
/// })?;
/// assert_eq!(&bytes, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Async<T> {
    readiness: Stream,
    io: T,
}

impl<T: AsFd> Async<T> {
    /// Makes readiness of `io` awaitable on the calling thread's runtime.
    ///
    /// # Errors
    /// - `EMFILE`: no room for the duplicate.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// See [`Async`](Async#examples).
    pub fn new(io: T) -> io::Result<Self> {
        let duplicate = io.as_fd().try_clone_to_owned()?;
        Ok(Self { readiness: Stream::new(duplicate), io })
    }
}

impl<T> Async<T> {
    /// Waits until there are bytes to read, the end, an error, or a hang-up.
    ///
    /// Another task may take the bytes or the connection first.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait.
    ///
    /// # Errors
    /// - `EBADF`, `EPERM`: the descriptor cannot be polled.
    /// - `ECANCELED`: the runtime has ended. Otherwise as `poll(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::io::{Read, Write};
    /// use std::os::unix::net::UnixStream;
    ///
    /// use sakia::io::Async;
    ///
    /// # sakia::block_on(async {
    /// let (near, mut far) = UnixStream::pair()?;
    /// let near = Async::new(near)?;
    /// far.write_all(b"x")?;
    /// near.readable().await?;
    /// // It has something, so this does not block.
    /// assert_eq!(near.get_ref().read(&mut [0; 8])?, 1);
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_poll_add(3)`.
    #[doc(alias = "POLLIN")]
    pub async fn readable(&self) -> io::Result<()> {
        self.readiness.ready(PollEvents::READABLE).await
    }

    /// Waits until there is room to write, an error, or a hang-up.
    ///
    /// Another task may fill the room first.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait.
    ///
    /// # Errors
    /// As for [`readable`](Async::readable).
    ///
    /// # Examples
    /// ```
    /// use std::os::unix::net::UnixStream;
    ///
    /// use sakia::io::Async;
    ///
    /// # sakia::block_on(async {
    /// let (near, _far) = UnixStream::pair()?;
    /// let near = Async::new(near)?;
    /// near.writable().await?;
    /// let near: UnixStream = near.into_inner();
    /// # drop(near);
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_poll_add(3)`.
    #[doc(alias = "POLLOUT")]
    pub async fn writable(&self) -> io::Result<()> {
        self.readiness.ready(PollEvents::WRITABLE).await
    }

    /// Calls `f` until it no longer fails with `WouldBlock`, and waits for readability in between.
    /// `Interrupted` is retried at once. Resolves to the last result of `f`.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait. `f` runs only within a poll, so its last call has failed with
    /// `WouldBlock` then.
    ///
    /// # Errors
    /// As the last call of `f`, and as for [`readable`](Async::readable).
    ///
    /// # Examples
    /// See [`Async`](Async#examples).
    pub async fn read_with<R>(&self, f: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.retry(PollEvents::READABLE, f).await
    }

    /// As [`read_with`](Async::read_with), waiting for room to write.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait. `f` runs only within a poll, so its last call has failed with
    /// `WouldBlock` then.
    ///
    /// # Errors
    /// As the last call of `f`, and as for [`readable`](Async::readable).
    ///
    /// # Examples
    /// ```
    /// use std::io::{Read, Write};
    /// use std::os::unix::net::UnixStream;
    ///
    /// use sakia::io::Async;
    ///
    /// # sakia::block_on(async {
    /// let (near, mut far) = UnixStream::pair()?;
    /// near.set_nonblocking(true)?;
    /// let near = Async::new(near)?;
    /// assert_eq!(near.write_with(|mut stream| stream.write(b"hello")).await?, 5);
    /// let mut bytes = [0; 5];
    /// far.read_exact(&mut bytes)?;
    /// assert_eq!(&bytes, b"hello");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn write_with<R>(&self, f: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.retry(PollEvents::WRITABLE, f).await
    }

    async fn retry<R>(
        &self,
        events: PollEvents,
        mut f: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match f(&self.io) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readiness.ready(events).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Returns the descriptor's owner.
    pub fn get_ref(&self) -> &T {
        &self.io
    }

    /// Gives the descriptor's owner back.
    pub fn into_inner(self) -> T {
        self.io
    }
}

impl<T: fmt::Debug> fmt::Debug for Async<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Async").field(&self.io).finish()
    }
}
