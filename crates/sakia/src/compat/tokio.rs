//! The traits of `tokio::io`.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use super::Compat;
use super::parts::{Readable, Seekable, Target, impl_buf_read, impl_write};

impl<T: Readable> AsyncRead for Compat<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().inner.poll_read(cx, buf).map_ok(|_| ())
    }
}

impl Target for ReadBuf<'_> {
    fn room(&self) -> usize {
        self.remaining()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.put_slice(bytes);
    }

    fn fill(&mut self, fill: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let count = fill(self.initialize_unfilled())?;
        self.advance(count);
        Ok(count)
    }
}

impl_buf_read!(AsyncBufRead);
impl_write!(AsyncWrite, poll_shutdown, is_write_vectored);

impl<T: Seekable> AsyncSeek for Compat<T> {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        let pending = self.get_mut().inner.pending_seek();
        if pending.is_some() {
            return Err(io::Error::other("another seek is under way"));
        }
        *pending = Some(to);
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let inner = &mut self.get_mut().inner;
        // Without a pending seek it returns the position.
        let to = inner.pending_seek().unwrap_or(SeekFrom::Current(0));
        let result = ready!(inner.poll_seek(cx, to));
        *inner.pending_seek() = None;
        Poll::Ready(result)
    }
}
