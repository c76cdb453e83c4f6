//! The traits of `futures-io`.

use std::io::{self, IoSlice, IoSliceMut, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::futures_io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite};

use super::Compat;
use super::parts::{Readable, Seekable, Writable, poll_read, poll_write_vectored};

impl<T: Readable> AsyncRead for Compat<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let room = buf.len();
        let put = |bytes: &[u8]| buf[..bytes.len()].copy_from_slice(bytes);
        poll_read(&mut self.get_mut().inner, cx, room, put)
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let room = bufs.iter().map(|buf| buf.len()).sum();
        let put = |mut bytes: &[u8]| {
            for buf in bufs {
                let count = buf.len().min(bytes.len());
                buf[..count].copy_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
            }
        };
        poll_read(&mut self.get_mut().inner, cx, room, put)
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

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner.poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner.poll_close(cx)
    }
}

impl<T: Seekable> AsyncSeek for Compat<T> {
    fn poll_seek(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        self.get_mut().inner.poll_seek(cx, to)
    }
}
