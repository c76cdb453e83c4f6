//! The common part of the ecosystems' traits, so that each operation is written once.

use std::cell::RefCell;
use std::io::{self, IoSlice, SeekFrom};
use std::task::{Context, Poll, ready};

use crate::io::{Level, Reader, Source, Writer};

/// An object to read from.
#[diagnostic::on_unimplemented(
    message = "`Compat<{Self}>` does not read",
    label = "no reader of Sakia",
    note = "use `Compat::new(Reader::new(stream))`, `Compat::stream`, `Compat::unbuffered` or `Compat::file`"
)]
pub trait Readable {
    /// Moves the available bytes to `target`, up to its room; waits when there are none. Returns their
    /// number; 0 at the end.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut impl Target,
    ) -> Poll<io::Result<usize>>;
}

/// The destination of bytes that were read.
pub trait Target {
    /// Returns the number of bytes that have room.
    fn room(&self) -> usize;

    /// Copies bytes, for which there is room.
    fn put(&mut self, bytes: &[u8]);

    /// Lets `fill` write to the target's room, or to a part of it, and return the number of bytes it wrote.
    /// `fill` is a plain call: it fills no other target.
    fn fill(&mut self, fill: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        SCRATCH.with_borrow_mut(|scratch| {
            let room = self.room().min(SCRATCH_BYTES);
            let count = fill(&mut scratch[..room])?;
            self.put(&scratch[..count]);
            Ok(count)
        })
    }
}

/// Bytes read at a time into room that is not initialized.
const SCRATCH_BYTES: usize = 8 << 10;

thread_local! {
    /// Memory for such reads, zeroed once: zeroing it for each read would take longer than the rest of a
    /// short one.
    static SCRATCH: RefCell<[u8; SCRATCH_BYTES]> = const { RefCell::new([0; SCRATCH_BYTES]) };
}

impl Target for &mut [u8] {
    fn room(&self) -> usize {
        self.len()
    }

    fn put(&mut self, bytes: &[u8]) {
        self[..bytes.len()].copy_from_slice(bytes);
    }

    fn fill(&mut self, fill: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        fill(self)
    }
}

/// An object that is read through a buffer.
#[diagnostic::on_unimplemented(
    message = "`Compat<{Self}>` does not read through a buffer",
    label = "no buffered reader of Sakia",
    note = "use `Compat::new(Reader::new(stream))`, `Compat::stream` or `Compat::file`; an `Unbuffered` \
            connection goes into a `BufReader`"
)]
pub trait Buffered {
    /// Waits until bytes are buffered, or the end is reached.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Returns the buffered bytes.
    fn buffered(&self) -> &[u8];

    /// Consumes buffered bytes.
    fn consume(&mut self, count: usize);
}

/// An object that is written through a buffer.
#[diagnostic::on_unimplemented(
    message = "`Compat<{Self}>` does not write",
    label = "no writer of Sakia",
    note = "use `Compat::new(Writer::new(stream))`, `Compat::stream`, `Compat::unbuffered` or `Compat::file`"
)]
pub trait Writable {
    /// Copies bytes to the buffer, up to its room; waits when there is none.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Copies one slice after the other to the buffer, up to its room.
    fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut done = 0;
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            match self.poll_write(cx, slice) {
                Poll::Ready(Ok(count)) => {
                    done += count;
                    if count < slice.len() {
                        break;
                    }
                }
                // The bytes taken before count first; the next call returns the error again.
                _ if done > 0 => break,
                first => return first,
            }
        }
        Poll::Ready(Ok(done))
    }

    /// Waits until the kernel has taken all buffered bytes.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Flushes, and ends the writing.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// An object with a position.
#[diagnostic::on_unimplemented(
    message = "`Compat<{Self}>` does not seek",
    label = "no object with a position",
    note = "use `Compat::file`"
)]
pub trait Seekable {
    /// Moves the position, and returns the new one.
    fn poll_seek(&mut self, cx: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>>;

    /// Returns tokio's pending seek: tokio names the target in another call than the one that waits.
    #[cfg(feature = "tokio")]
    fn pending_seek(&mut self) -> &mut Option<SeekFrom>;
}

/// Implements a family's trait of buffered reading for an adapter. The families differ in the trait's path
/// alone.
#[cfg(any(feature = "futures-io", feature = "tokio"))]
macro_rules! impl_buf_read {
    ($buf_read:path) => {
        impl<T: $crate::compat::parts::Buffered> $buf_read for Compat<T> {
            fn poll_fill_buf(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<&[u8]>> {
                let this = self.get_mut();
                std::task::ready!(this.inner.poll_fill(cx))?;
                Poll::Ready(Ok(this.inner.buffered()))
            }

            fn consume(self: Pin<&mut Self>, count: usize) {
                self.get_mut().inner.consume(count);
            }
        }
    };
}

/// Implements a family's trait of writing for an adapter. The families differ in the trait's path, in the
/// name of closing, and in whether a method tells that vectored writes are of use.
#[cfg(any(feature = "futures-io", feature = "hyper", feature = "tokio"))]
macro_rules! impl_write {
    ($write:path, $poll_close:ident $(, $is_vectored:ident)?) => {
        impl<T: $crate::compat::parts::Writable> $write for Compat<T> {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().inner.poll_write(cx, bytes)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().inner.poll_write_vectored(cx, slices)
            }
            $(
                fn $is_vectored(&self) -> bool {
                    true
                }
            )?

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.get_mut().inner.poll_flush(cx)
            }

            fn $poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.get_mut().inner.poll_close(cx)
            }
        }
    };
}

#[cfg(any(feature = "futures-io", feature = "tokio"))]
pub(super) use impl_buf_read;
#[cfg(any(feature = "futures-io", feature = "hyper", feature = "tokio"))]
pub(super) use impl_write;

#[diagnostic::do_not_recommend]
impl<R: Buffered> Readable for R {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut impl Target,
    ) -> Poll<io::Result<usize>> {
        let room = target.room();
        if room == 0 {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_fill(cx))?;
        let bytes = self.buffered();
        let count = bytes.len().min(room);
        target.put(&bytes[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

impl<S: Source> Buffered for Reader<S> {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Reader::poll_fill(self, cx)
    }

    fn buffered(&self) -> &[u8] {
        Reader::buffered(self)
    }

    fn consume(&mut self, count: usize) {
        Reader::consume(self, count);
    }
}

impl<W> Writable for Writer<W> {
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Writer::poll_write(self, cx, bytes)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Closing flushes, and some code flushes again afterwards.
        if self.is_closing() {
            return Writer::poll_close(self, cx);
        }
        Writer::poll_flush(self, cx, Level::Accepted).map_ok(|_| ())
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Writer::poll_close(self, cx)
    }
}

impl<R: Buffered, W> Buffered for (R, W) {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_fill(cx)
    }

    fn buffered(&self) -> &[u8] {
        self.0.buffered()
    }

    fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

impl<R, W: Writable> Writable for (R, W) {
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.1.poll_write(cx, bytes)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.1.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.1.poll_close(cx)
    }
}

impl<T: Buffered> Buffered for &mut T {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        T::poll_fill(self, cx)
    }

    fn buffered(&self) -> &[u8] {
        T::buffered(self)
    }

    fn consume(&mut self, count: usize) {
        T::consume(self, count);
    }
}

impl<T: Writable> Writable for &mut T {
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        T::poll_write(self, cx, bytes)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        T::poll_flush(self, cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        T::poll_close(self, cx)
    }
}

impl<T: Seekable> Seekable for &mut T {
    fn poll_seek(&mut self, cx: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
        T::poll_seek(self, cx, to)
    }

    #[cfg(feature = "tokio")]
    fn pending_seek(&mut self) -> &mut Option<SeekFrom> {
        T::pending_seek(self)
    }
}
