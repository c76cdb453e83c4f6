//! The traits of `futures-io`.

use std::io::{self, IoSliceMut, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::futures_io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite};

use super::Compat;
use super::parts::{Readable, Seekable, impl_buf_read, impl_write, poll_read};

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
