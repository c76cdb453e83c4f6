//! Reading with buffers that the reader owns, so that ordinary code can borrow from them.
//!
//! Bytes are in one of two places, in this order: in `carry`, where pieces that span blocks are put together,
//! and in the block that was read last. Bytes that a method has looked at and not consumed stay there, so
//! neither dropping any of its futures nor an error loses any.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;

use super::blocks::Held;
use super::file_range::FileRange;
use super::offload::Offloaded;
use super::source::{AsyncRead, AsyncReadAt, Block, Positional, Source, Streamed};

/// The default size of a block in bytes.
const BLOCK_BYTES: usize = 64 << 10;

/// Reads with a buffer of its own, from which ordinary code borrows.
///
/// There are three kinds, by the source of the blocks:
/// - [`new`](Reader::new) reads in order, on demand: pipes, sockets, standard input.
/// - [`with_depth`](Reader::with_depth) reads a file, with several blocks in flight.
/// - [`offload`](Reader::offload) has a thread read a file ahead.
///
/// Dropping any future of a reader loses no bytes: the next call goes on from there. Errors come after the
/// bytes before them, and the next call tries again at the same place. The end is detected only by a read
/// that brings no bytes at all; a later call sees bytes that were appended since. A reader that is dropped
/// with reads in flight leaves their memory to the driver.
///
/// # Examples
/// ```
/// use sakia::io::{BufResultExt, Reader, pipe};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let (reader, mut writer) = pipe()?;
///     writer.write_all("one\ntwo\nthree").await.value()?;
///     writer.close().await?;
///
///     let mut reader = Reader::new(reader);
///     assert_eq!(reader.line(80).await?, Some("one"));
///     assert_eq!(reader.peek(2).await?, b"tw");
///     assert_eq!(reader.line(80).await?, Some("two"));
///     let mut rest = Vec::new();
///     reader.read_to_end(&mut rest, 1000).await?;
///     assert_eq!(rest, b"three");
///     Ok(())
/// })
/// # }
/// ```
pub struct Reader<S: Source> {
    source: S,
    /// Bytes put together from several blocks; they come before those of `block`.
    carry: Vec<u8>,
    /// The bytes of `carry` from here on are not consumed.
    carry_at: usize,
    /// The block that was read last.
    block: Held,
    /// The bytes of `block` that are neither consumed nor in `carry`.
    range: Range<usize>,
    /// The number of bytes consumed in all.
    consumed: u64,
}

impl<R: AsyncRead + 'static> Reader<Streamed<R>> {
    /// Reads `source` in order, in blocks of 64 KiB.
    ///
    /// # Examples
    /// See [`Reader`](Reader#examples).
    pub fn new(source: R) -> Self {
        Self::with_block_bytes(source, BLOCK_BYTES)
    }

    /// Reads `source` in order, at most `block_bytes` at a time.
    ///
    /// # Examples
    /// For short messages less than the 64 KiB of [`new`](Reader::new) will do:
    /// ```
    /// use sakia::io::{BufResultExt, Reader, pipe};
    ///
    /// # sakia::block_on(async {
    /// let (reader, mut writer) = pipe()?;
    /// writer.write_all("a question\n").await.value()?;
    /// let mut reader = Reader::with_block_bytes(reader, 512);
    /// assert_eq!(reader.line(80).await?, Some("a question"));
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn with_block_bytes(source: R, block_bytes: usize) -> Self {
        Self::from_source(Streamed::new(source, block_bytes))
    }

    /// Gives the source back. Bytes that are [`buffered`](Reader::buffered) are lost.
    ///
    /// The reader itself, while a read is under way that a dropped future began; [`fill`](Reader::fill) waits
    /// for it.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::{BufResultExt, Reader, pipe};
    ///
    /// # sakia::block_on(async {
    /// let (reader, mut writer) = pipe()?;
    /// writer.write_all("head\n").await.value()?;
    /// let mut reader = Reader::new(reader);
    /// assert_eq!(reader.line(80).await?, Some("head"));
    /// assert!(reader.buffered().is_empty(), "nothing is lost");
    /// let mut pipe = reader.into_inner().expect("no read is under way");
    /// writer.write_all("body").await.value()?;
    /// assert_eq!(pipe.read(vec![0; 4]).await.buffer()?, b"body");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn into_inner(self) -> Result<R, Self> {
        self.source.into_source().map_err(|source| Self { source, ..self })
    }
}

impl<F: AsyncReadAt> Reader<Positional<F>> {
    /// Reads `file` from its first byte on, in blocks of `block_bytes`, with up to `depth` of them in flight.
    /// A block has at least one byte, and at most as many as one read can bring: 2 GiB less a page.
    ///
    /// There are `depth` buffers. They are small at first, for the sake of small files: the first read asks
    /// for 16 KiB at most, and each next one for as much as makes four times the bytes read so far, up to a
    /// block. Buffers of up to 64 KiB go to the thread's next readers and writers. While the caller works on
    /// one block, the others are being read, so with a depth of 1 nothing is read ahead. If reads are done at
    /// once, since the bytes are in the page cache, reading ahead begins with the first read that has to
    /// wait; until then one call brings up to half of the blocks, if that is no more than 64 KiB, in a buffer
    /// of its own, and [`fill`](Reader::fill) returns all of them. Blocks are delivered in order. A file that
    /// shrinks meanwhile ends early.
    ///
    /// For a file opened with `O_DIRECT`, `block_bytes` is rounded up to a multiple of its alignment. A file
    /// without offsets, such as a FIFO, is read in order, with a depth of 1.
    ///
    /// # Examples
    /// ```
    /// use sakia::{fs::File, io::Reader};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// sakia::block_on(async {
    ///     let file = File::open("/etc/passwd").await?;
    ///     let mut reader = Reader::with_depth(&file, 32 << 10, 8);
    ///     let mut lines = 0;
    ///     while reader.line(4096).await?.is_some() {
    ///         lines += 1;
    ///     }
    ///     assert!(lines > 0);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn with_depth(file: F, block_bytes: usize, depth: usize) -> Self {
        Self::from_source(Positional::new(file, block_bytes, depth))
    }

    /// Goes on at byte `offset`. Bytes that were read ahead are discarded.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, File};
    /// use sakia::io::Reader;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-reader-seek-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// fs::write(&path, "0123456789").await?;
    /// let mut reader = Reader::with_depth(File::open(&path).await?, 4096, 1);
    /// let mut digit = [0];
    /// for offset in [7, 2] {
    ///     reader.seek(offset);
    ///     reader.read_exact(&mut digit).await?;
    ///     assert_eq!(u64::from(digit[0] - b'0'), offset);
    /// }
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn seek(&mut self, offset: u64) {
        self.clear();
        self.source.seek(offset);
    }

    /// Returns the file that is read.
    pub fn get_ref(&self) -> &F {
        &self.source.file
    }

    /// Gives the file back.
    pub fn into_inner(self) -> F {
        self.source.file
    }
}

impl Reader<Offloaded> {
    /// Has a thread read `file` from its first byte on, up to a MiB ahead of the caller.
    ///
    /// On a machine with a spare core this overlaps copying bytes out of the kernel with the work on them,
    /// which pays if that work is quick: sums, searches, parsers. The thread makes plain calls, and sleeps
    /// while it is far enough ahead. It wakes the caller only when the caller waits and half of the blocks
    /// are full, or the device is slow. It ends soon after the reader is dropped.
    ///
    /// `file` should be a regular file. The runtime must be one that other threads can wake, which the
    /// simulated kernel is not.
    ///
    /// # Errors
    /// - `EAGAIN`: no thread could be started. The methods that read return the errors of reading.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::Reader;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// sakia::block_on(async {
    ///     let mut reader = Reader::offload(std::fs::File::open("/etc/passwd")?)?;
    ///     let mut sum = 0;
    ///     let mut chunks = reader.chunks(32 << 10);
    ///     while let Some(chunk) = chunks.next().await? {
    ///         sum += chunk.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    ///     }
    ///     assert!(sum > 0);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn offload(file: std::fs::File) -> io::Result<Self> {
        Self::offload_with(file, 0, Offloaded::BLOCK_BYTES, Offloaded::BLOCKS)
    }

    /// As [`offload`](Reader::offload), from byte `offset` on, with `blocks` blocks of `block_bytes`; at
    /// least 2 and 1.
    ///
    /// # Errors
    /// As for [`offload`](Reader::offload).
    ///
    /// # Examples
    /// See [`Reader::offload`].
    pub fn offload_with(
        file: std::fs::File,
        offset: u64,
        block_bytes: usize,
        blocks: usize,
    ) -> io::Result<Self> {
        Ok(Self::from_source(Offloaded::start(file, offset, block_bytes, blocks)?))
    }
}

/// The place of some bytes in a reader.
enum Place {
    Carry(Range<usize>),
    Block(Range<usize>),
}

impl<S: Source> Reader<S> {
    fn from_source(source: S) -> Self {
        let carry = Vec::new();
        Self { source, carry, carry_at: 0, block: Held::default(), range: 0..0, consumed: 0 }
    }

    /// Returns the bytes that [`fill`](Reader::fill) would return without waiting. They may be fewer than the
    /// reader has in memory.
    ///
    /// # Examples
    /// See [`Reader::into_inner`].
    pub fn buffered(&self) -> &[u8] {
        if self.carry_at < self.carry.len() {
            &self.carry[self.carry_at..]
        } else {
            self.block_bytes()
        }
    }

    /// Returns the bytes of the block that are not consumed.
    fn block_bytes(&self) -> &[u8] {
        match &*self.block {
            Some(block) => &block[self.range.clone()],
            None => &[],
        }
    }

    /// Returns the number of bytes in `carry` that are not consumed.
    fn carried(&self) -> usize {
        self.carry.len() - self.carry_at
    }

    /// Returns the number of bytes consumed so far, by any method.
    ///
    /// # Examples
    /// See [`Reader::fill`].
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Returns the next bytes, at least one; none at the end. They stay until [consumed](Reader::consume).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, and consumes nothing.
    ///
    /// # Errors
    /// As for reading, once all bytes before the error are consumed; never `EINTR`. The next call tries
    /// again.
    ///
    /// # Examples
    /// The sum of all bytes, which are never copied:
    /// ```
    /// use sakia::io::{BufResultExt, Reader, pipe};
    ///
    /// # sakia::block_on(async {
    /// let (reader, mut writer) = pipe()?;
    /// writer.write_all(vec![1; 1000]).await.value()?;
    /// writer.close().await?;
    /// let (mut reader, mut sum) = (Reader::new(reader), 0);
    /// loop {
    ///     let bytes = reader.fill().await?;
    ///     if bytes.is_empty() {
    ///         break;
    ///     }
    ///     sum += bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    ///     let count = bytes.len();
    ///     reader.consume(count);
    /// }
    /// assert_eq!((sum, reader.consumed()), (1000, 1000));
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn fill(&mut self) -> io::Result<&[u8]> {
        poll_fn(|cx| self.poll_fill(cx)).await?;
        Ok(self.buffered())
    }

    /// Waits until bytes are [`buffered`](Reader::buffered), or the end is reached.
    ///
    /// # Errors
    /// As for [`fill`](Reader::fill).
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffered().is_empty() {
            ready!(self.poll_next(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Gets the next block when the last one is used up. Returns false at the end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        debug_assert!(self.range.is_empty(), "the block before is used up");
        let next = ready!(self.source.poll_block(cx, &mut self.block))?;
        let Some((block, range)) = next else { return Poll::Ready(Ok(false)) };
        (*self.block, self.range) = (Some(block), range);
        Poll::Ready(Ok(true))
    }

    /// Consumes `count` of the bytes that are [`buffered`](Reader::buffered).
    ///
    /// # Panics
    /// When fewer are buffered.
    ///
    /// # Examples
    /// See [`Reader::fill`].
    pub fn consume(&mut self, count: usize) {
        let buffered = self.buffered().len();
        assert!(count <= buffered, "{count} bytes consumed of {buffered}");
        if self.carry_at < self.carry.len() {
            self.carry_at += count;
        } else {
            self.range.start += count;
        }
        self.consumed += count as u64;
    }

    fn clear(&mut self) {
        self.carry_at = self.carry.len();
        self.range = 0..0;
    }

    /// Moves `count` bytes of the block to `carry`.
    fn carry(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        self.carry.drain(..self.carry_at);
        self.carry_at = 0;
        let begin = self.range.start;
        let block = self.block.as_ref().expect("bytes of a block are carried");
        self.carry.extend_from_slice(&block[begin..begin + count]);
        self.range.start += count;
    }

    fn at(&self, place: Place) -> &[u8] {
        match place {
            Place::Carry(range) => &self.carry[range],
            Place::Block(range) => self.block.as_ref().map_or(&[], |block| &block[range]),
        }
    }

    /// Returns the place of the first `count` bytes, in one piece.
    fn first(&self, count: usize) -> Place {
        match self.carried() {
            0 => Place::Block(self.range.start..self.range.start + count),
            _ => Place::Carry(self.carry_at..self.carry_at + count),
        }
    }

    /// Returns the next `count` bytes in one piece, fewer at the end. They stay until
    /// [consumed](Reader::consume). The reader keeps `count` bytes of memory for this besides its blocks.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, and consumes nothing.
    ///
    /// # Errors
    /// As for [`fill`](Reader::fill). The bytes before the error stay.
    ///
    /// # Examples
    /// See [`Reader`](Reader#examples).
    pub async fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        let count = poll_fn(|cx| self.poll_peek(cx, count)).await?;
        Ok(self.at(self.first(count)))
    }

    /// Collects `count` bytes in one piece, fewer at the end; returns their number.
    fn poll_peek(&mut self, cx: &mut Context<'_>, count: usize) -> Poll<io::Result<usize>> {
        loop {
            let (carried, in_block) = (self.carried(), self.range.len());
            let in_one_piece = if carried == 0 { in_block } else { carried };
            if in_one_piece >= count {
                return Poll::Ready(Ok(count));
            }
            self.carry(in_block.min(count - carried));
            if self.range.is_empty() && self.carried() < count && !ready!(self.poll_next(cx))? {
                return Poll::Ready(Ok(self.carried()));
            }
        }
    }

    /// Copies available bytes to `buf`, at least one; none at the end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, and consumes nothing.
    ///
    /// # Errors
    /// `EINVAL` when `buf` is empty. Otherwise as for [`fill`](Reader::fill).
    ///
    /// # Examples
    /// ```
    /// use sakia::io::{BufResultExt, Reader, pipe};
    ///
    /// # sakia::block_on(async {
    /// let (reader, mut writer) = pipe()?;
    /// writer.write_all("hello").await.value()?;
    /// let mut reader = Reader::new(reader);
    /// let mut buf = [0; 100];
    /// let count = reader.read(&mut buf).await?;
    /// assert_eq!(&buf[..count], b"hello");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Err(Errno::INVAL.into()); // 0 bytes would mean the end
        }
        let bytes = self.fill().await?;
        let count = bytes.len().min(buf.len());
        buf[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Ok(count)
    }

    /// Fills `buf`.
    ///
    /// # Cancel safety
    /// Dropping the future, and an error, leave in `buf` the bytes consumed by then; see
    /// [`consumed`](Reader::consumed). To consume all or nothing, use [`peek`](Reader::peek).
    ///
    /// # Errors
    /// `UnexpectedEof` when the end comes first. Otherwise as for [`fill`](Reader::fill).
    ///
    /// # Examples
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// use sakia::io::{BufResultExt, Reader, pipe};
    ///
    /// # sakia::block_on(async {
    /// let (reader, mut writer) = pipe()?;
    /// writer.write_all("1234 and a little").await.value()?;
    /// drop(writer);
    /// let mut reader = Reader::new(reader);
    /// let mut head = [0; 4];
    /// reader.read_exact(&mut head).await?;
    /// assert_eq!(&head, b"1234");
    /// let error = reader.read_exact(&mut [0; 100]).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn read_exact(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.read(&mut buf[done..]).await? {
                0 => {
                    let message = format!("{done} bytes and the end, {} wanted", buf.len());
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
                }
                count => done += count,
            }
        }
        Ok(())
    }

    /// Consumes and returns the bytes up to and including the next `delimiter`; without one the bytes left
    /// before the end, and none at the end. At most `limit` bytes come before the delimiter.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, and consumes nothing.
    ///
    /// # Errors
    /// `InvalidData` when there are more than `limit` bytes without a delimiter. They are not consumed: a
    /// call with a higher limit, or any other method, finds them. Otherwise as for
    /// [`fill`](Reader::fill).
    ///
    /// # Examples
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// use sakia::io::{BufResultExt, Reader, pipe};
    ///
    /// # sakia::block_on(async {
    /// let (reader, mut writer) = pipe()?;
    /// writer.write_all("key=value").await.value()?;
    /// drop(writer);
    /// let mut reader = Reader::new(reader);
    /// // What is too long stays, for another try.
    /// let error = reader.read_until(b'=', 2).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidData);
    /// assert_eq!(reader.read_until(b'=', 80).await?, b"key=");
    /// assert_eq!(reader.read_until(b'=', 80).await?, b"value");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn read_until(&mut self, delimiter: u8, limit: usize) -> io::Result<&[u8]> {
        let count = self.find(delimiter, limit).await?;
        let place = self.take(count);
        Ok(self.at(place))
    }

    /// Returns the number of bytes up to and including a delimiter, or to the end. They are in one piece
    /// then.
    async fn find(&mut self, delimiter: u8, limit: usize) -> io::Result<usize> {
        let mut searched = 0;
        poll_fn(|cx| self.poll_find(cx, delimiter, limit, &mut searched)).await
    }

    fn poll_find(
        &mut self,
        cx: &mut Context<'_>,
        delimiter: u8,
        limit: usize,
        searched: &mut usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            // One byte more than the limit, which may be the delimiter.
            let bytes = self.buffered();
            let bytes = &bytes[..bytes.len().min(limit.saturating_add(1))];
            if let Some(at) = memchr::memchr(delimiter, &bytes[*searched..]) {
                return Poll::Ready(Ok(*searched + at + 1));
            }
            *searched = bytes.len();
            if *searched > limit {
                let message = format!("more than {limit} bytes without a delimiter");
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)));
            }
            if self.carried() > 0 && !self.range.is_empty() {
                let bytes = self.block_bytes();
                let bytes = &bytes[..bytes.len().min(limit.saturating_add(1) - *searched)];
                let found = memchr::memchr(delimiter, bytes);
                self.carry(found.map_or(bytes.len(), |at| at + 1));
                continue;
            }
            self.carry(self.range.len());
            if !ready!(self.poll_next(cx))? {
                return Poll::Ready(Ok(self.carried()));
            }
        }
    }

    /// Consumes the first `count` bytes, which are in one piece. They stay in their place until the next
    /// call.
    fn take(&mut self, count: usize) -> Place {
        let place = self.first(count);
        if count > 0 {
            self.consume(count);
        }
        place
    }

    /// Consumes the next line, and returns it without its end, `\n` or `\r\n`; `None` at the end. A line has
    /// at most `limit` bytes, a `\r` included.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, and consumes nothing.
    ///
    /// # Errors
    /// `InvalidData` when the line is longer, or is not UTF-8. The line is not consumed then;
    /// [`read_until`](Reader::read_until) returns its bytes. Otherwise as for [`fill`](Reader::fill).
    ///
    /// # Examples
    /// See [`Reader`](Reader#examples).
    pub async fn line(&mut self, limit: usize) -> io::Result<Option<&str>> {
        let count = self.find(b'\n', limit).await?;
        if count == 0 {
            return Ok(None);
        }
        let bytes = self.at(self.first(count));
        let bytes = bytes
            .strip_suffix(b"\n")
            .map_or(bytes, |line| line.strip_suffix(b"\r").unwrap_or(line));
        let len = bytes.len();
        std::str::from_utf8(bytes).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("a line is not UTF-8: {error}"))
        })?;
        let place = self.take(count);
        let line = std::str::from_utf8(&self.at(place)[..len]);
        Ok(Some(line.expect("it was UTF-8 just now")))
    }

    /// Returns the lines one after the other, each of at most `limit` bytes; see [`line`](Reader::line).
    ///
    /// # Examples
    /// ```
    /// use sakia::io::{BufResultExt, Reader, pipe};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// sakia::block_on(async {
    ///     let (reader, mut writer) = pipe()?;
    ///     writer.write_all("1\n2\r\n\n4").await.value()?;
    ///     drop(writer);
    ///     let mut reader = Reader::new(reader);
    ///     let mut lines = reader.lines(80);
    ///     let mut all = Vec::new();
    ///     while let Some(line) = lines.next().await? {
    ///         all.push(line.to_owned());
    ///     }
    ///     assert_eq!(all, ["1", "2", "", "4"]);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn lines(&mut self, limit: usize) -> Lines<'_, S> {
        Lines { reader: self, limit }
    }

    /// Returns pieces of `count` bytes, at least 1, one after the other; the last may be shorter. If `count`
    /// divides the size of a block, whole files are returned without copying.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::{BufResultExt, Reader, pipe};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// sakia::block_on(async {
    ///     let (reader, mut writer) = pipe()?;
    ///     writer.write_all("abcdefgh").await.value()?;
    ///     drop(writer);
    ///     let mut reader = Reader::new(reader);
    ///     let mut chunks = reader.chunks(3);
    ///     assert_eq!(chunks.next().await?, Some(&b"abc"[..]));
    ///     assert_eq!(chunks.next().await?, Some(&b"def"[..]));
    ///     assert_eq!(chunks.next().await?, Some(&b"gh"[..]));
    ///     assert_eq!(chunks.next().await?, None);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn chunks(&mut self, count: usize) -> Chunks<'_, S> {
        Chunks { reader: self, count: count.max(1) }
    }

    /// Reads until the end, and appends to `buf`, at most `limit` bytes. Resolves to the number of bytes.
    ///
    /// # Cancel safety
    /// Dropping the future, and an error, leave in `buf` the bytes consumed by then.
    ///
    /// # Errors
    /// `InvalidData` when there are more than `limit` bytes. Then `limit` bytes were appended, and the others
    /// are not consumed. Otherwise as for [`fill`](Reader::fill).
    ///
    /// # Examples
    /// See [`Reader`](Reader#examples).
    pub async fn read_to_end(&mut self, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let bytes = self.fill().await?;
            if bytes.is_empty() {
                return Ok(done);
            }
            if done == limit {
                let message = format!("more than {limit} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            let count = bytes.len().min(limit - done);
            buf.extend_from_slice(&bytes[..count]);
            self.consume(count);
            done += count;
        }
    }

    /// Reads and discards `count` bytes, fewer at the end. Resolves to their number.
    ///
    /// # Cancel safety
    /// Dropping the future, and an error, leave consumed what was discarded by then; see
    /// [`consumed`](Reader::consumed).
    ///
    /// # Errors
    /// As for [`fill`](Reader::fill).
    ///
    /// # Examples
    /// ```
    /// use sakia::io::{BufResultExt, Reader, pipe};
    ///
    /// # sakia::block_on(async {
    /// let (reader, mut writer) = pipe()?;
    /// writer.write_all("0123456789").await.value()?;
    /// drop(writer);
    /// let mut reader = Reader::new(reader);
    /// assert_eq!(reader.skip(7).await?, 7);
    /// assert_eq!(reader.line(80).await?, Some("789"));
    /// assert_eq!(reader.skip(100).await?, 0, "the end");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn skip(&mut self, count: u64) -> io::Result<u64> {
        let mut left = count;
        while left > 0 {
            let here = self.fill().await?.len();
            if here == 0 {
                break;
            }
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(here);
            self.consume(step);
            left -= step as u64;
        }
        Ok(count - left)
    }

    /// Returns the file from the next byte on, if the source is a file and no bytes of it are buffered.
    pub(crate) fn file(&self) -> Option<FileRange> {
        if self.buffered().is_empty() { self.source.file() } else { None }
    }

    /// Consumes the bytes of the [file](Self::file) before this range.
    pub(crate) fn consume_file(&mut self, range: &FileRange) {
        self.source.go_on_at(range.end);
        self.consumed += range.len();
    }

    /// Returns whether the next bytes are a block, or a large part of one.
    pub(crate) fn has_block(&self) -> bool {
        self.carried() == 0 && self.range.len() * 2 > self.size_of_block()
    }

    /// Returns the size of the block's memory in bytes.
    pub(crate) fn size_of_block(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.len())
    }

    /// Consumes the block of [`has_block`](Self::has_block), and takes it in exchange for `block`, which has
    /// the same size.
    pub(crate) fn exchange(&mut self, block: Block) -> (Block, Range<usize>) {
        debug_assert!(self.has_block() && block.len() == self.size_of_block());
        let range = std::mem::take(&mut self.range);
        self.consumed += range.len() as u64;
        (self.block.replace(block).expect("there is a block"), range)
    }
}

impl<S: Source + fmt::Debug> fmt::Debug for Reader<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Reader");
        debug.field("source", &self.source).field("consumed", &self.consumed);
        debug.field("buffered", &(self.carried() + self.range.len())).finish()
    }
}

/// See [`Reader::lines`].
///
/// # Examples
/// See [`Reader::lines`].
#[derive(Debug)]
pub struct Lines<'a, S: Source> {
    reader: &'a mut Reader<S>,
    limit: usize,
}

impl<S: Source> Lines<'_, S> {
    /// Returns the next line; `None` at the end. See [`Reader::line`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, and consumes nothing.
    ///
    /// # Errors
    /// As for [`Reader::line`].
    ///
    /// # Examples
    /// See [`Reader::lines`].
    pub async fn next(&mut self) -> io::Result<Option<&str>> {
        self.reader.line(self.limit).await
    }
}

/// See [`Reader::chunks`].
///
/// # Examples
/// See [`Reader::chunks`].
#[derive(Debug)]
pub struct Chunks<'a, S: Source> {
    reader: &'a mut Reader<S>,
    count: usize,
}

impl<S: Source> Chunks<'_, S> {
    /// Returns the next piece; `None` at the end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, and consumes nothing.
    ///
    /// # Errors
    /// As for [`Reader::fill`]. The bytes before the error stay.
    ///
    /// # Examples
    /// See [`Reader::chunks`].
    pub async fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let reader = &mut *self.reader;
        let count = poll_fn(|cx| reader.poll_peek(cx, self.count)).await?;
        if count == 0 {
            return Ok(None);
        }
        let place = reader.take(count);
        Ok(Some(reader.at(place)))
    }
}
