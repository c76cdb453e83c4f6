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
//! Those traits lend a buffer for the time of a poll, while the kernel wants it for the time of an operation.
//! So what is adapted has buffers of its own, of [`Reader`] and [`Writer`], and bytes are copied once more
//! than with these themselves.
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

use std::io;

pub use self::file::BufferedFile;
use crate::fs::File;
use crate::io::{Reader, Streamed, Writer};
use crate::net::{OwnedReadHalf, OwnedWriteHalf, TcpStream};

/// Gives what it holds the traits of other ecosystems.
///
/// | `T` | reads | writes | seeks |
/// |---|---|---|---|
/// | [`Reader`](crate::io::Reader) | yes | | |
/// | [`Writer`](crate::io::Writer) | | yes | |
/// | a pair of a reader and a writer; of a connection, by [`Compat::tcp`] | its first | its second | |
/// | [`BufferedFile`], by [`Compat::file`] | yes | yes | yes |
/// | `&mut` one of these | as that | as that | as that |
///
/// Reading is reading of the [`Reader`](crate::io::Reader): a poll that is given up loses no bytes, and
/// errors come after the bytes before them, with their errno.
///
/// Writing is writing of the [`Writer`](crate::io::Writer):
/// - A write takes bytes into the buffer, and waits while that is full. That it succeeded does not mean that
///   the bytes were written.
/// - Flushing waits until the kernel has all of them, [`Level::Accepted`](crate::io::Level::Accepted).
/// - Closing, which tokio calls shutting down, writes all of them and closes the sink; but not a
///   [`BufferedFile`]. Writes fail with `BrokenPipe` then, and flushes have nothing to do.
/// - The first error ends all writing: whatever writes, flushes or closes next tells it.
/// - Dropping leaves the rest to be written in the background, and tells nobody how that went.
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

/// Nothing is pinned here: what is polled is reached by `&mut`.
impl<T> Unpin for Compat<T> {}

impl<T> Compat<T> {
    /// Adapts `inner`; the table above says which types have which traits then.
    pub fn new(inner: T) -> Self {
        Self { inner }
    }

    /// What is adapted.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// What is adapted. It may be used between the uses of the adapter: both have the same buffers.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Gives back what is adapted, with its buffers.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl Compat<(Reader<Streamed<OwnedReadHalf>>, Writer<OwnedWriteHalf>)> {
    /// Adapts a connection that is read and written. Closing ends its sends, and the peer may still answer;
    /// the connection is closed when the adapter is dropped, too.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn tcp(stream: TcpStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self::new((Reader::new(reader), Writer::new(writer)))
    }
}

impl Compat<BufferedFile> {
    /// Adapts a file that is read, written and sought at its position. See [`BufferedFile`].
    pub fn file(file: File) -> Self {
        Self::new(BufferedFile::new(file))
    }

    /// Writes everything that was put in, and gives the file back, at the position that it has here.
    ///
    /// # Errors
    /// What writing fails with. The file is gone then.
    pub async fn into_file(self) -> io::Result<File> {
        self.inner.into_file().await
    }
}
