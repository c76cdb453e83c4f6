//! A buffered file with one position for reads, writes and seeks.
//!
//! The position is the file's own. Reads move it when bytes are consumed, not when they come into the buffer;
//! writes move it when the kernel takes the bytes. So a read or seek first waits until the written bytes have
//! left the buffer: then the position is right, and the reader goes on from there. The reader keeps its
//! buffer as long as the position is within it and nothing was written.

use std::fmt;
use std::future::Future;
use std::io::{self, SeekFrom};
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use sakia_driver::{BufResult, IoBuf};

use super::parts::{Buffered, Seekable, Writable};
use crate::fs::File;
use crate::halves::{Half, Halves};
use crate::io::{AsyncWrite, Level, Positional, Reader, Writer};

/// Bytes read at a time.
const BLOCK_BYTES: usize = 64 << 10;

/// A file that is read, written and sought at its position, by way of buffers. From
/// [`Compat::file`](super::Compat::file), which gives it the traits.
///
/// It is for regular files and block devices. FIFOs and terminals have no position: use a
/// [`Reader`](crate::io::Reader) or a [`Writer`](crate::io::Writer) for these. A file opened to append is
/// written at its end, wherever the position is; afterwards the position is after the written bytes.
///
/// Reads and seeks wait until earlier writes have left the buffer, and return their error if they failed.
/// Then reads and seeks work again, from the position after the written bytes, but writing has ended.
///
/// Closing, which tokio calls shutting down, flushes and leaves the file open. Dropping it closes it, once
/// everything is written; [`Compat::into_file`](super::Compat::into_file) gives it back.
///
/// # Examples
#[cfg_attr(feature = "tokio", doc = "```")]
#[cfg_attr(not(feature = "tokio"), doc = "```ignore")]
/// use std::io::SeekFrom;
///
/// use sakia::compat::Compat;
/// use sakia::fs::File;
/// use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("sakia-compat-{}", std::process::id()));
/// sakia::block_on(async {
///     let mut file = Compat::file(File::create_new(&path).await?);
///     file.write_all(b"hello, world").await?;
///     file.seek(SeekFrom::Start(7)).await?;
///     let mut word = String::new();
///     file.read_to_string(&mut word).await?;
///     assert_eq!(word, "world");
///     file.into_file().await?.close().await?;
/// #   std::fs::remove_file(&path)?;
///     Ok(())
/// })
/// # }
/// ```
pub struct BufferedFile {
    file: Rc<File>,
    reader: Reader<Positional<Rc<File>>>,
    /// The file offset of the reader's next byte; `None` if its buffered data may be out of date.
    reader_at: Option<u64>,
    /// `Some` once something was written.
    writer: Option<Writer<Next>>,
    /// Set when bytes were put in that may not be written yet.
    is_dirty: bool,
    /// The tasks that wait for the writer.
    halves: Halves,
    /// A seek that has begun.
    seek: Option<Seek>,
    /// A seek that was requested by a call that does not wait.
    pending_seek: Option<SeekFrom>,
    /// The place that made this one, which is that of the writer's task.
    made_at: &'static Location<'static>,
}

/// A seek under way.
struct Seek {
    to: SeekFrom,
    future: Pin<Box<dyn Future<Output = io::Result<u64>>>>,
}

/// Writes at the file's position, and moves it.
struct Next(Rc<File>);

impl AsyncWrite for Next {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.0.write_next(buf).await
    }

    /// Leaves the file open for its other users.
    async fn close(self) -> io::Result<()> {
        Ok(())
    }
}

impl BufferedFile {
    /// Takes a file, at its position.
    ///
    /// # Examples
    /// See [`BufferedFile`](BufferedFile#examples).
    #[track_caller]
    pub fn new(file: File) -> Self {
        let file = Rc::new(file);
        Self {
            reader: Reader::with_depth(Rc::clone(&file), BLOCK_BYTES, 1),
            reader_at: None,
            file,
            writer: None,
            is_dirty: false,
            halves: Halves::default(),
            seek: None,
            pending_seek: None,
            made_at: Location::caller(),
        }
    }

    /// Returns the file. Its position is unspecified, and written bytes may not have reached it before a
    /// flush.
    pub fn get_ref(&self) -> &File {
        &self.file
    }

    /// See [`Compat::into_file`](super::Compat::into_file).
    pub(super) async fn into_file(self) -> io::Result<File> {
        let Self { file, reader, writer, seek, .. } = self;
        drop((reader, seek));
        if let Some(writer) = writer {
            drop(writer.into_inner().await?);
        }
        Ok(Rc::try_unwrap(file).expect("the file is no longer shared"))
    }

    /// Waits for the writer on behalf of one half.
    fn poll_writer<T>(
        &mut self,
        cx: &Context<'_>,
        half: Half,
        poll: impl FnOnce(&mut Writer<Next>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let writer = self
            .writer
            .get_or_insert_with(|| Writer::new_at(Next(Rc::clone(&self.file)), self.made_at));
        poll(writer, &mut Context::from_waker(self.halves.register(half, cx)))
    }

    /// Waits until the bytes that were put in are written, if there are any.
    fn poll_settle(&mut self, cx: &Context<'_>, half: Half) -> Poll<io::Result<()>> {
        if self.is_dirty {
            let flush = |writer: &mut Writer<_>, cx: &mut Context<'_>| {
                writer.poll_flush(cx, Level::Accepted)
            };
            let result = ready!(self.poll_writer(cx, half, flush));
            // After an error nothing is left to write.
            self.is_dirty = false;
            result?;
        }
        Poll::Ready(Ok(()))
    }

    /// Finishes a requested seek before another operation begins, and forgets a seek whose future was
    /// dropped.
    fn poll_sought(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.pending_seek {
            Some(to) => {
                let result = ready!(self.poll_seek(cx, to));
                self.pending_seek = None;
                Poll::Ready(result.map(|_| ()))
            }
            None => {
                self.seek = None;
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Moves the reader to the file's position.
    fn place_reader(&mut self) {
        let position = self.file.position.get();
        let buffered = self.reader.buffered().len() as u64;
        match self.reader_at.and_then(|at| position.checked_sub(at)) {
            Some(ahead) if ahead <= buffered => {
                self.reader.consume(usize::try_from(ahead).expect("at most what is buffered"));
            }
            _ => self.reader.seek(position),
        }
        self.reader_at = Some(position);
    }
}

impl Buffered for BufferedFile {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_sought(cx))?;
        ready!(self.poll_settle(cx, Half::Reading))?;
        self.place_reader();
        self.reader.poll_fill(cx)
    }

    fn buffered(&self) -> &[u8] {
        self.reader.buffered()
    }

    fn consume(&mut self, count: usize) {
        self.reader.consume(count);
        let position = self.file.position.get() + count as u64;
        self.file.position.set(position);
        self.reader_at = Some(position);
    }
}

impl Writable for BufferedFile {
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_sought(cx))?;
        let count =
            ready!(self.poll_writer(cx, Half::Writing, |writer, cx| writer.poll_write(cx, bytes)))?;
        if count > 0 {
            self.is_dirty = true;
            self.reader_at = None;
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Also without bytes to write, to report an error again.
        self.is_dirty |= self.writer.is_some();
        self.poll_settle(cx, Half::Writing)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

impl Seekable for BufferedFile {
    fn poll_seek(&mut self, cx: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
        ready!(self.poll_settle(cx, Half::Reading))?;
        let seek = match &mut self.seek {
            Some(seek) if seek.to == to => seek,
            other => {
                let file = Rc::clone(&self.file);
                let future = Box::pin(async move { file.seek_next(to).await });
                other.insert(Seek { to, future })
            }
        };
        let result = ready!(seek.future.as_mut().poll(cx));
        self.seek = None;
        Poll::Ready(result)
    }

    #[cfg(feature = "tokio")]
    fn pending_seek(&mut self) -> &mut Option<SeekFrom> {
        &mut self.pending_seek
    }
}

impl fmt::Debug for BufferedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, reader, writer, .. } = self;
        let mut debug = f.debug_struct("BufferedFile");
        debug.field("file", file).field("reader", reader).field("writer", writer);
        debug.finish_non_exhaustive()
    }
}
