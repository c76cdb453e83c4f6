//! Pipes.

use std::io;
use std::os::fd::OwnedFd;

use sakia_driver::{BufResult, IoBuf, IoBufMut};

use super::stream::{Stream, closer, reader, writer};
use crate::executor::current;

/// Makes a pipe: bytes written to the writer come out of the reader. Neither end is inherited by other
/// programs.
///
/// # Errors
/// - `EMFILE`, `ENFILE`: no descriptors left.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::io::{BufResultExt, pipe};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let (mut reader, mut writer) = pipe()?;
///     writer.write_all("through the pipe").await.value()?;
///     writer.close().await?;
///     let (result, bytes) = reader.read_to_end(Vec::new()).await;
///     assert_eq!(result?, 16);
///     assert_eq!(bytes, b"through the pipe");
///     Ok(())
/// })
/// # }
/// ```
#[doc(alias = "pipe2")]
pub fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let local = current();
    let (reader, writer) = local.environment.pipe(&local.driver)?;
    Ok((PipeReader { stream: Stream::of(reader) }, PipeWriter { stream: Stream::of(writer) }))
}

/// The end of a pipe to read from. Dropping it closes it.
///
/// # Examples
/// See [`pipe()`](pipe()#examples).
#[derive(Debug)]
pub struct PipeReader {
    stream: Stream,
}

/// The end of a pipe to write to. Dropping it closes it; the reader then sees the end.
///
/// # Examples
/// See [`pipe()`](pipe()#examples).
#[derive(Debug)]
pub struct PipeWriter {
    stream: Stream,
}

impl PipeReader {
    /// Takes over the reading end of a pipe made elsewhere, or any other descriptor that is read in order.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::{BufResultExt, PipeReader, PipeWriter};
    ///
    /// # sakia::block_on(async {
    /// let (reader, writer) = std::io::pipe()?;
    /// let mut reader = PipeReader::from_fd(reader.into());
    /// let mut writer = PipeWriter::from_fd(writer.into());
    /// writer.write_all("hello").await.value()?;
    /// drop(writer);
    /// assert_eq!(reader.read_to_end(Vec::new()).await.buffer()?, b"hello");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { stream: Stream::new(fd) }
    }

    /// Takes over the reading end of a pipe of the simulated kernel, by descriptor; see
    /// [`SimHandle::pipe`](crate::sim::SimHandle::pipe). With the feature `sim`.
    ///
    /// # Panics
    /// Outside of a runtime, and on another backend.
    #[cfg(feature = "sim")]
    pub fn from_simulated(raw: i32) -> Self {
        Self { stream: Stream::simulated(raw) }
    }
}

impl PipeWriter {
    /// Takes over the writing end of a pipe made elsewhere, or any other descriptor that is written in order.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// See [`PipeReader::from_fd`].
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { stream: Stream::new(fd) }
    }

    /// Takes over the writing end of a pipe of the simulated kernel, by descriptor; see
    /// [`SimHandle::pipe`](crate::sim::SimHandle::pipe). With the feature `sim`.
    ///
    /// # Panics
    /// Outside of a runtime, and on another backend.
    #[cfg(feature = "sim")]
    pub fn from_simulated(raw: i32) -> Self {
        Self { stream: Stream::simulated(raw) }
    }
}

reader!(PipeReader);
writer!(PipeWriter);
