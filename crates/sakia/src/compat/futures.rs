//! The traits of `futures-io`.

use std::io::{self, IoSliceMut, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::futures_io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite};

use super::Compat;
use super::parts::{Readable, Seekable, Target, impl_buf_read, impl_write};

impl<T: Readable> AsyncRead for Compat<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().inner.poll_read(cx, &mut buf)
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().inner.poll_read(cx, &mut Slices(bufs))
    }
}

/// Several slices, filled one after the other.
struct Slices<'a, 'b>(&'a mut [IoSliceMut<'b>]);

impl Target for Slices<'_, '_> {
    fn room(&self) -> usize {
        self.0.iter().map(|buf| buf.len()).sum()
    }

    fn put(&mut self, mut bytes: &[u8]) {
        for buf in &mut *self.0 {
            let count = buf.len().min(bytes.len());
            buf[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
        }
    }
}

impl_buf_read!(AsyncBufRead);
impl_write!(AsyncWrite, poll_close);

impl<T: Seekable> AsyncSeek for Compat<T> {
    fn poll_seek(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        self.get_mut().inner.poll_seek(cx, to)
    }
}
