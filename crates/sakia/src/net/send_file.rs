//! Sending files: within the kernel if possible, else by way of a buffer.

use std::io;
use std::ops::{Bound, RangeBounds};

use rustix::io::Errno;
use sakia_driver::{
    AlignedBuf, BufResult, CURRENT_POSITION, IoBuf, PollEvents, SEND_FILE_BYTES_MAX,
};

use super::socket::Socket;
use crate::fs::File;
use crate::io::file_range::FileRange;
use crate::io::transfer::retrying;

/// Bytes that are read at a time if the kernel does not send the file itself.
const COPIED_BYTES: usize = 64 << 10;

impl Socket {
    /// See [`TcpStream::send_file`](super::TcpStream::send_file).
    pub async fn send_file(&self, file: &File, range: impl RangeBounds<u64>) -> BufResult<(), u64> {
        let begin = match range.start_bound() {
            Bound::Included(&begin) => begin,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => match file.range(begin..u64::MAX).file_size().await {
                // A file of size 0 may have bytes all the same, as those of `/proc` do.
                Ok(size) => size.filter(|&size| size > 0).unwrap_or(u64::MAX),
                Err(error) => return (Err(error), 0),
            },
        };
        self.send_range(file.range(begin..end)).await
    }

    /// Sends a range of a file. Resolves to the number of bytes sent, on error too; fewer if the file ends
    /// early.
    pub async fn send_range(&self, range: FileRange) -> BufResult<(), u64> {
        let begin = range.at;
        let mut sending = Sending { socket: self, rest: range, copies: None };
        let result = sending.run().await;
        (result, sending.rest.at - begin)
    }
}

/// A file that is being sent.
struct Sending<'a> {
    socket: &'a Socket,
    /// The bytes that were not sent.
    rest: FileRange,
    /// The buffer, if the kernel does not send this file to this socket.
    copies: Option<AlignedBuf>,
}

impl Sending<'_> {
    async fn run(&mut self) -> io::Result<()> {
        while self.rest.len() > 0 {
            let count = match self.copies.take() {
                Some(block) => self.copy(block).await?,
                None => self.send().await?,
            };
            if count == Some(0) {
                break;
            }
        }
        Ok(())
    }

    /// Has the kernel send a piece. `None` if nothing was sent, and the caller is to try again.
    async fn send(&mut self) -> io::Result<Option<usize>> {
        let FileRange { fd, at, .. } = &self.rest;
        let len = self.rest.len().min(SEND_FILE_BYTES_MAX as u64) as usize;
        let error = match self.socket.connection().send_file(fd, *at, len).await {
            Ok(count) => {
                self.rest.at += count as u64;
                if 0 < count && count < len {
                    // The next call would read the file for nothing, since the socket has no room.
                    self.ready().await?;
                }
                return Ok(Some(count));
            }
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::INTR) => {}
            Some(Errno::AGAIN) => self.ready().await?,
            // The kernel does not support this file, socket or offset, or the call. If the file is at fault,
            // reading fails.
            Some(
                Errno::INVAL | Errno::SPIPE | Errno::OVERFLOW | Errno::OPNOTSUPP | Errno::PERM,
            ) => self.copies = Some(AlignedBuf::zeroed(COPIED_BYTES)),
            _ => return Err(error),
        }
        Ok(None)
    }

    /// Waits until there is room; if the file is a pipe, also until that has bytes.
    async fn ready(&self) -> io::Result<()> {
        let driver = self.socket.connection().driver();
        if self.rest.is_stream() {
            driver.poll(&self.rest.fd, PollEvents::READABLE).await?;
        }
        driver.poll(self.socket.fd(), PollEvents::WRITABLE).await.map(|_| ())
    }

    /// Reads a block, and sends it. Resolves to the number of bytes sent, which are all that were read.
    async fn copy(&mut self, block: AlignedBuf) -> io::Result<Option<usize>> {
        let FileRange { fd, alignment, at, .. } = &self.rest;
        // With direct I/O a read begins earlier, and ends later.
        let skipped = (at % *alignment as u64) as usize;
        let wanted = self.rest.len().min((COPIED_BYTES - skipped) as u64) as usize;
        // Bytes of a stream that are not requested stay in it.
        let is_stream = self.rest.is_stream();
        let asked = if is_stream { wanted } else { COPIED_BYTES };
        let from = if is_stream { CURRENT_POSITION } else { at - skipped as u64 };
        let driver = self.socket.connection().driver();
        let read = |block| driver.read(fd, block, from);
        let asked = block.slice(..asked);
        let (result, block) = retrying(driver, fd, PollEvents::READABLE, asked, read).await;
        let count = result?.saturating_sub(skipped).min(wanted);
        let mut sent = block.into_inner().slice(skipped..skipped + count);
        while sent.bytes_len() > 0 {
            let (result, back) = self.socket.write_some(sent).await;
            sent = back;
            let count = result?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            sent.advance(count);
            self.rest.at += count as u64;
        }
        self.copies = Some(sent.into_inner());
        Ok(Some(count))
    }
}
