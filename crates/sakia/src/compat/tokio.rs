//! The traits of `tokio::io`.

use std::io::{self, IoSlice, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use super::Compat;
use super::parts::{Readable, Seekable, Writable, poll_read, poll_write_vectored};

impl<T: Readable> AsyncRead for Compat<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buf.remaining();
        let put = |bytes: &[u8]| buf.put_slice(bytes);
        poll_read(&mut self.get_mut().inner, cx, room, put).map_ok(|_| ())
    }
}

impl<T: Readable> AsyncBufRead for Compat<T> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.inner.poll_fill(cx))?;
        Poll::Ready(Ok(this.inner.buffered()))
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        self.get_mut().inner.consume(count);
    }
}

impl<T: Writable> AsyncWrite for Compat<T> {
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
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_write_vectored(&mut self.get_mut().inner, cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner.poll_close(cx)
    }
}

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
        // Without a seek it answers where the position is.
        let to = inner.pending_seek().unwrap_or(SeekFrom::Current(0));
        let result = ready!(inner.poll_seek(cx, to));
        *inner.pending_seek() = None;
        Poll::Ready(result)
    }
}
