//! The traits of other ecosystems, so that code written for them reads, writes and serves on Sakia.
//!
//! [`Compat`] has them. Each ecosystem is a feature of this crate, and none is on by default:
//!
//! | feature | [`Compat`] implements | besides |
//! |---|---|---|
//! | `futures-io` | `AsyncRead`, `AsyncBufRead`, `AsyncWrite`, `AsyncSeek` of `futures-io` | |
//! | `tokio` | the same traits of `tokio::io` | |
//! | `hyper` | `Read`, `Write` of `hyper::rt` | `hyper::SakiaExecutor`, `hyper::SakiaTimer` |
//!
//! Those traits lend a buffer for the time of a poll, while the kernel needs it for the time of an operation.
//! So an adapter has buffers of its own, those of [`Reader`] and [`Writer`], and bytes are copied once more
//! than with these types themselves. An [`Unbuffered`] connection has no buffers, and makes plain calls
//! instead.
//!
//! Like all of this crate, an adapter belongs to the runtime thread on which it was made, and is not `Send`.
//! Foreign code may poll it anywhere on that thread within the runtime; functions that ask for `Send`, such
//! as `tokio::spawn`, do not take it.
//!
//! [`Reader`]: crate::io::Reader
//! [`Writer`]: crate::io::Writer

mod file;
#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "hyper")]
pub mod hyper;
mod parts;
#[cfg(feature = "tokio")]
mod tokio;
mod unbuffered;

use std::io;

pub use self::file::BufferedFile;
pub use self::unbuffered::Unbuffered;
use crate::fs::File;
use crate::io::{Reader, Streamed, Writer};
use crate::net::{OwnedReadHalf, OwnedWriteHalf, Stream, TcpStream};

/// Implements the traits of other ecosystems for the value in it.
///
/// | `T` | reads | writes | seeks |
/// |---|---|---|---|
/// | [`Reader`](crate::io::Reader) | yes | | |
/// | [`Writer`](crate::io::Writer) | | yes | |
/// | a pair of a reader and a writer; of a connection, by [`Compat::stream`] | its first | its second | |
/// | [`Unbuffered`], a connection, by [`Compat::unbuffered`] | yes | yes | |
/// | [`BufferedFile`], by [`Compat::file`] | yes | yes | yes |
/// | `&mut` one of these | as that | as that | as that |
///
/// Reads are those of the [`Reader`](crate::io::Reader): a poll that is given up loses no bytes, and errors
/// come after the bytes before them, with their errno.
///
/// An [`Unbuffered`] connection is read and written by plain calls. For all others, writes are those of the
/// [`Writer`](crate::io::Writer):
/// - A write copies bytes to the buffer, and waits while that is full. Its success does not mean that the
///   bytes were written.
/// - Flushing waits until the kernel has all of them, [`Level::Accepted`](crate::io::Level::Accepted).
/// - Closing, which tokio calls shutting down, writes all of them and closes the sink; but not a
///   [`BufferedFile`]. Writes fail with `BrokenPipe` then, and flushes have nothing to do.
/// - The first error ends all writing: the next write, flush or close returns it.
/// - Dropping leaves the rest to be written in the background; the outcome is not reported.
///
/// # Examples
#[cfg_attr(feature = "tokio", doc = "```")]
#[cfg_attr(not(feature = "tokio"), doc = "```ignore")]
/// use sakia::compat::Compat;
/// use sakia::io::{Reader, Writer, pipe};
/// use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let (reader, writer) = pipe()?;
///     let mut writer = Compat::new(Writer::new(writer));
///     writer.write_all(b"one\ntwo\n").await?;
///     writer.shutdown().await?;
///
///     let mut lines = Compat::new(Reader::new(reader)).lines();
///     assert_eq!(lines.next_line().await?.as_deref(), Some("one"));
///     assert_eq!(lines.next_line().await?.as_deref(), Some("two"));
///     assert_eq!(lines.next_line().await?, None);
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct Compat<T> {
    inner: T,
}

/// Nothing is pinned here: the value is used by `&mut`.
impl<T> Unpin for Compat<T> {}

impl<T> Compat<T> {
    /// Adapts `inner`; the table above says which types have which traits then.
    ///
    /// # Examples
    /// See [`Compat`](Compat#examples).
    pub fn new(inner: T) -> Self {
        Self { inner }
    }

    /// Returns the adapted object.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Returns the adapted object. It may be used between the uses of the adapter: both have the same
    /// buffers.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Gives back the adapted object, with its buffers.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<S: Stream> Compat<(Reader<Streamed<OwnedReadHalf<S>>>, Writer<OwnedWriteHalf<S>>)> {
    /// Adapts a connection, for reads and writes by way of buffers. Closing ends its sends, and the peer may
    /// still answer; dropping the adapter closes the connection, too.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn stream(stream: S) -> Self {
        let (reader, writer) = crate::net::into_halves(stream);
        Self::new((Reader::new(reader), Writer::new(writer)))
    }
}

impl Compat<(Reader<Streamed<OwnedReadHalf>>, Writer<OwnedWriteHalf>)> {
    /// Adapts a TCP connection; see [`Compat::stream`].
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn tcp(stream: TcpStream) -> Self {
        Self::stream(stream)
    }
}

impl<S: Stream> Compat<Unbuffered<S>> {
    /// Adapts a connection without buffers, with the behavior of tokio's connections. Reads and writes are
    /// plain calls on the caller's buffer, and a poll that is given up has done nothing. Written bytes are on
    /// their way, without a flush and whatever is dropped. Closing ends the sends, and the peer may still
    /// answer.
    ///
    /// It is for code that never flushes, or relies on the result of a write. For small pieces, a call for
    /// each costs more than [buffers](Compat::stream) do.
    pub fn unbuffered(stream: S) -> Self {
        Self::new(Unbuffered::new(stream))
    }
}

impl Compat<BufferedFile> {
    /// Adapts a file that is read, written and sought at its position. See [`BufferedFile`].
    ///
    /// # Examples
    /// See [`BufferedFile`](BufferedFile#examples).
    #[track_caller]
    pub fn file(file: File) -> Self {
        Self::new(BufferedFile::new(file))
    }

    /// Writes all buffered bytes, and gives the file back, at the position that it has here.
    ///
    /// # Cancel safety
    /// Dropping the future has the effect of dropping the adapter: the file is closed once everything is
    /// written.
    ///
    /// # Errors
    /// As for writing. The file is closed then.
    ///
    /// # Examples
    /// See [`BufferedFile`](BufferedFile#examples).
    pub async fn into_file(self) -> io::Result<File> {
        self.inner.into_file().await
    }
}
