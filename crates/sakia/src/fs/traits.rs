//! Files as sources of readers and sinks of writers.

use std::io;
use std::ops::Range;

use sakia_driver::{BufResult, CURRENT_POSITION, Fd, IoBuf, IoBufMut, Op, Read};

use super::File;
use crate::io::file_range::FileRange;
use crate::io::source::write_first;
use crate::io::{AsyncRead, AsyncReadAt, AsyncWrite, AsyncWriteAt, Level};

/// Reads at the file's position.
impl AsyncRead for File {
    async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
        File::read(self, buf).await
    }
}

impl AsyncReadAt for File {
    type ReadAt<T: IoBufMut> = Op<Read<T>>;

    /// Begins to read; the future can fail with `EINTR`, unlike that of [`read_at`](File::read_at). A file
    /// without offsets is read sequentially.
    #[inline]
    fn start_read_at<T: IoBufMut>(&self, buf: T, offset: u64) -> Self::ReadAt<T> {
        // The kernel takes this one offset for the position; the next lower offset is as invalid.
        let offset = offset.min(CURRENT_POSITION - 1);
        let offset = if self.is_stream() { CURRENT_POSITION } else { offset };
        self.driver.read(&self.fd, buf, offset)
    }

    /// Returns for direct I/O an alignment that every common device supports: a page.
    fn read_alignment(&self) -> usize {
        if self.direct.is_some() { 4096 } else { 1 }
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }
}

impl File {
    /// Returns a range of the file, to be sent.
    pub(crate) fn range(&self, bytes: Range<u64>) -> FileRange {
        let (fd, alignment) = (self.fd.clone(), self.read_alignment());
        FileRange { fd, alignment, at: bytes.start, end: bytes.end }
    }
}

/// Writes at the file's position, or at its end if it was opened to append.
impl AsyncWrite for File {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        File::write(self, buf).await
    }

    async fn sync(&mut self) -> io::Result<Level> {
        if self.is_stream() {
            return Ok(Level::Accepted);
        }
        self.sync_data().await.map(|()| Level::Durable)
    }

    async fn close(self) -> io::Result<()> {
        File::close(self).await
    }
}

impl AsyncWriteAt for File {
    /// As [`write_at`](File::write_at); with direct I/O all of `buf`, the unaligned bytes at its end through
    /// the page cache.
    async fn write_at<T: IoBuf>(&self, buf: T, offset: u64) -> BufResult<usize, T> {
        if self.direct.is_none() {
            return File::write_at(self, buf, offset).await;
        }
        let len = buf.bytes_len();
        let (result, buf) = self.write_all_at(buf, offset).await;
        (result.map(|()| len), buf)
    }

    async fn write_vectored_at<T: IoBuf>(
        &self,
        bufs: Vec<T>,
        offset: u64,
    ) -> BufResult<usize, Vec<T>> {
        if self.direct.is_none() {
            return File::write_vectored_at(self, bufs, offset).await;
        }
        write_first(bufs, async |buf| AsyncWriteAt::write_at(self, buf, offset).await).await
    }

    async fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self).await
    }

    async fn close(self) -> io::Result<()> {
        File::close(self).await
    }
}
