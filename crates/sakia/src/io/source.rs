//! The traits of objects that can be read and written, and sources of blocks for readers.
//!
//! Four small traits describe an object's abilities: [`AsyncRead`] and [`AsyncWrite`] for objects that are
//! read and written in order, [`AsyncReadAt`] and [`AsyncWriteAt`] for objects with positions. Buffers go in
//! by value and come back. Three of them have futures that borrow the object, as `async fn` makes them. The
//! future of a read at a position does not borrow it, since reading ahead keeps several such futures at a
//! time.
//!
//! A [`Source`] turns one of these objects into a sequence of blocks, for [`Reader`](super::Reader). Blocks
//! are recycled: the caller returns the last one when it asks for the next.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use sakia_driver::{
    AlignedBuf, BufResult, Fd, FileKind, IoBuf, IoBufMut, MAX_RW_BYTES, Slice, limits,
};

use super::blocks::{self, Blocks, Held};
use super::file_range::FileRange;

/// Memory that is read into, and written from.
pub(crate) type Block = AlignedBuf;

/// An object that is read in order: a pipe, standard input, a socket, or a layer on top of one.
///
/// # Examples
/// ```
/// use sakia::io::{AsyncRead, BufResult, IoBufMut, Reader};
///
/// /// Reads the letter a for ever.
/// struct Letters;
///
/// impl AsyncRead for Letters {
///     async fn read<T: IoBufMut>(&mut self, mut buf: T) -> BufResult<usize, T> {
///         (Ok(buf.fill_from(&[b'a'; 100])), buf)
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let mut reader = Reader::new(Letters);
///     assert_eq!(reader.peek(3).await?, b"aaa");
///     Ok(())
/// })
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not read in order by `sakia::io::AsyncRead`",
    label = "no stream or file of Sakia",
    note = "open it by `sakia::fs`, `sakia::net` or `sakia::io`, whose types are read in order; sockets of \
            `std` become Sakia's by `from_std`"
)]
pub trait AsyncRead {
    /// Reads up to `buf.bytes_room()` bytes, as soon as any are available, into the front of `buf`.
    ///
    /// Resolves to the number of bytes read and the buffer; 0 means the end.
    ///
    /// # Cancel safety
    /// As the type says. A [`Reader`](super::Reader) never drops a read that has begun.
    ///
    /// # Errors
    /// `EINVAL` when there is no room. Otherwise as the type says. The caller may retry `Interrupted` at
    /// once.
    fn read<T: IoBufMut>(&mut self, buf: T) -> impl Future<Output = BufResult<usize, T>>;
}

/// An object that is read at positions: a file.
///
/// The future does not borrow the object and begins at once, so that several reads are in flight at a
/// time. Dropping it gives the buffer up.
///
/// # Examples
/// ```
/// use std::future::{Ready, ready};
///
/// use sakia::io::{AsyncReadAt, BufResult, IoBufMut, Reader};
///
/// # sakia::block_on(async {
/// /// A file in memory.
/// struct Memory(&'static [u8]);
///
/// impl AsyncReadAt for Memory {
///     type ReadAt<T: IoBufMut> = Ready<BufResult<usize, T>>;
///
///     fn start_read_at<T: IoBufMut>(&self, mut buf: T, offset: u64) -> Self::ReadAt<T> {
///         let rest = self.0.get(offset as usize..).unwrap_or_default();
///         let count = buf.fill_from(rest);
///         ready((Ok(count), buf))
///     }
/// }
///
/// let mut reader = Reader::with_depth(Memory(b"one\ntwo\n"), 4096, 2);
/// assert_eq!(reader.line(80).await?, Some("one"));
/// assert_eq!(reader.line(80).await?, Some("two"));
/// assert_eq!(reader.line(80).await?, None);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not read at positions by `sakia::io::AsyncReadAt`",
    label = "no file of Sakia",
    note = "open it by `sakia::fs::File::open`; pipes and connections are read in order, by `Reader::new`"
)]
pub trait AsyncReadAt {
    /// A read under way.
    type ReadAt<T: IoBufMut>: Future<Output = BufResult<usize, T>> + Unpin;

    /// Begins to read up to `buf.bytes_room()` bytes from byte `offset` on, even before it is polled.
    ///
    /// Resolves to the number of bytes read and the buffer; 0 means the end, but fewer bytes than asked do
    /// not. A buffer without room is refused with `EINVAL`.
    fn start_read_at<T: IoBufMut>(&self, buf: T, offset: u64) -> Self::ReadAt<T>;

    /// Returns the alignment of offsets and lengths of reads in bytes, as with `O_DIRECT`. Only a read at the
    /// end brings a number of bytes that is no multiple of it; a [`Reader`](super::Reader) goes on from the
    /// multiple before.
    fn read_alignment(&self) -> usize {
        1
    }

    /// Returns the file that is read, if the object is a file: the kernel may send it.
    #[doc(hidden)]
    fn descriptor(&self) -> Option<&Fd> {
        None
    }
}

/// An object that is written in order: a pipe, standard output, a socket, or a layer on top of one.
///
/// # Examples
/// ```
/// use std::io;
///
/// use sakia::io::{AsyncWrite, BufResult, IoBuf, Level, Writer};
///
/// # sakia::block_on(async {
/// /// Counts bytes, and keeps none.
/// #[derive(Default)]
/// struct Count(usize);
///
/// impl AsyncWrite for Count {
///     async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
///         self.0 += buf.bytes_len();
///         (Ok(buf.bytes_len()), buf)
///     }
///
///     async fn close(self) -> io::Result<()> {
///         Ok(())
///     }
/// }
///
/// let mut writer = Writer::new(Count::default());
/// writer.write_all(b"hello").await?;
/// writer.flush(Level::Accepted).await?;
/// assert_eq!(writer.into_inner().await?.0, 5);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not written in order by `sakia::io::AsyncWrite`",
    label = "no stream or file of Sakia",
    note = "open it by `sakia::fs`, `sakia::net` or `sakia::io`, whose types are written in order; sockets \
            of `std` become Sakia's by `from_std`"
)]
pub trait AsyncWrite {
    /// Writes up to `buf.bytes_len()` bytes, as soon as there is room for any.
    ///
    /// Resolves to the number of bytes written and the buffer. It may be fewer than asked.
    ///
    /// # Cancel safety
    /// As the type says. A [`Writer`](super::Writer) never drops a write that has begun, unless its runtime
    /// ends.
    ///
    /// # Errors
    /// As the type says. The caller may retry `Interrupted` at once.
    fn write<T: IoBuf>(&mut self, buf: T) -> impl Future<Output = BufResult<usize, T>>;

    /// As [`write`](AsyncWrite::write), taking one buffer after the other. Unless a type does better,
    /// only the first that is not empty is written.
    ///
    /// # Errors
    /// As for [`write`](AsyncWrite::write).
    fn write_vectored<T: IoBuf>(
        &mut self,
        bufs: Vec<T>,
    ) -> impl Future<Output = BufResult<usize, Vec<T>>> {
        write_first(bufs, async move |buf| self.write(buf).await)
    }

    /// Writes bytes that the object itself buffers, and makes all bytes durable if the type supports that.
    /// Resolves to the level that was reached: [`Level::Accepted`] unless a type does better.
    ///
    /// # Errors
    /// As the type says.
    fn sync(&mut self) -> impl Future<Output = io::Result<Level>> {
        async { Ok(Level::Accepted) }
    }

    /// `true` if [`send_range`](AsyncWrite::send_range) may be called.
    #[doc(hidden)]
    const SENDS_FILES: bool = false;

    /// Sends a range of a file. Resolves to the number of bytes sent, on error too; fewer if the file ends
    /// early.
    #[doc(hidden)]
    fn send_range(&mut self, _: FileRange) -> impl Future<Output = BufResult<(), u64>> {
        async { (Err(io::ErrorKind::Unsupported.into()), 0) }
    }

    /// Tells the other side that no more bytes follow, and drops the object.
    ///
    /// # Errors
    /// As the type says. The object is gone in any case.
    fn close(self) -> impl Future<Output = io::Result<()>>
    where
        Self: Sized;
}

/// An object that is written at positions: a file.
///
/// # Examples
/// ```
/// use std::io;
///
/// use sakia::io::{AsyncWriteAt, BufResult, IoBuf, Writer};
///
/// # sakia::block_on(async {
/// /// Remembers how far it was written.
/// #[derive(Default)]
/// struct End(std::cell::Cell<u64>);
///
/// impl AsyncWriteAt for End {
///     async fn write_at<T: IoBuf>(&self, buf: T, offset: u64) -> BufResult<usize, T> {
///         let count = buf.bytes_len();
///         self.0.set(self.0.get().max(offset + count as u64));
///         (Ok(count), buf)
///     }
///
///     async fn sync_data(&self) -> io::Result<()> {
///         Ok(())
///     }
///
///     async fn close(self) -> io::Result<()> {
///         assert_eq!(self.0.get(), 1005);
///         Ok(())
///     }
/// }
///
/// let mut writer = Writer::at(End::default(), 1000);
/// writer.write_all(b"hello").await?;
/// writer.close().await?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not written at positions by `sakia::io::AsyncWriteAt`",
    label = "no file of Sakia",
    note = "open it by `sakia::fs::File::create`; pipes and connections are written in order, by \
            `Writer::new`"
)]
pub trait AsyncWriteAt {
    /// Writes up to `buf.bytes_len()` bytes from byte `offset` on.
    ///
    /// Resolves to the number of bytes written and the buffer. It may be fewer than asked.
    ///
    /// # Cancel safety
    /// As the type says.
    ///
    /// # Errors
    /// As the type says. The caller may retry `Interrupted` at once.
    fn write_at<T: IoBuf>(&self, buf: T, offset: u64) -> impl Future<Output = BufResult<usize, T>>;

    /// As [`write_at`](AsyncWriteAt::write_at), taking one buffer after the other. Unless a type does
    /// better, only the first that is not empty is written.
    ///
    /// # Errors
    /// As for [`write_at`](AsyncWriteAt::write_at).
    fn write_vectored_at<T: IoBuf>(
        &self,
        bufs: Vec<T>,
        offset: u64,
    ) -> impl Future<Output = BufResult<usize, Vec<T>>> {
        write_first(bufs, async move |buf| self.write_at(buf, offset).await)
    }

    /// Makes the written bytes durable, with those of the file's attributes that reading them back needs.
    ///
    /// # Errors
    /// As the type says.
    fn sync_data(&self) -> impl Future<Output = io::Result<()>>;

    /// Closes the object, and returns the result.
    ///
    /// # Errors
    /// As the type says. The object is gone in any case.
    fn close(self) -> impl Future<Output = io::Result<()>>
    where
        Self: Sized;
}

/// Writes the first of `bufs` that is not empty.
pub(crate) async fn write_first<T: IoBuf>(
    mut bufs: Vec<T>,
    write: impl AsyncFnOnce(T) -> BufResult<usize, T>,
) -> BufResult<usize, Vec<T>> {
    let Some(at) = bufs.iter().position(|buf| buf.bytes_len() > 0) else {
        return (Ok(0), bufs);
    };
    let (result, buf) = write(bufs.remove(at)).await;
    bufs.insert(at, buf);
    (result, bufs)
}

/// The point that written bytes have reached.
///
/// # Examples
/// See [`Writer::at`](super::Writer::at).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The kernel has taken them: they survive the end of the process.
    Accepted,
    /// The device has them: they survive the end of the machine's power, if it keeps its promises.
    Durable,
}

/// Implements a trait by forwarding to a shared object.
macro_rules! shared {
    ($($type:ty),*) => {$(
        impl<F: AsyncReadAt> AsyncReadAt for $type {
            type ReadAt<T: IoBufMut> = F::ReadAt<T>;

            #[inline]
            fn start_read_at<T: IoBufMut>(&self, buf: T, offset: u64) -> Self::ReadAt<T> {
                F::start_read_at(self, buf, offset)
            }

            fn read_alignment(&self) -> usize {
                F::read_alignment(self)
            }

            fn descriptor(&self) -> Option<&Fd> {
                F::descriptor(self)
            }
        }

        /// Drops this reference; the object stays open for its other owners.
        impl<F: AsyncWriteAt> AsyncWriteAt for $type {
            async fn write_at<T: IoBuf>(&self, buf: T, offset: u64) -> BufResult<usize, T> {
                F::write_at(self, buf, offset).await
            }

            async fn write_vectored_at<T: IoBuf>(
                &self,
                bufs: Vec<T>,
                offset: u64,
            ) -> BufResult<usize, Vec<T>> {
                F::write_vectored_at(self, bufs, offset).await
            }

            async fn sync_data(&self) -> io::Result<()> {
                F::sync_data(self).await
            }

            async fn close(self) -> io::Result<()> {
                Ok(())
            }
        }
    )*};
}

shared!(&F, Rc<F>);

/// The source of a [`Reader`](super::Reader)'s blocks: [`Streamed`], [`Positional`] or
/// [`Offloaded`](super::Offloaded). All other objects are read through one of these.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no source of blocks",
    label = "not what a `Reader` reads from",
    note = "a `Reader` is made by `Reader::new` of a stream or `Reader::with_depth` of a file"
)]
pub trait Source: private::Blocks {}

#[diagnostic::do_not_recommend]
impl<S: private::Blocks> Source for S {}

pub(crate) mod private {
    use super::{Block, Context, FileRange, Poll, Range, io};

    /// A block and its bytes, or the end.
    pub type Next = io::Result<Option<(Block, Range<usize>)>>;

    /// A sequence of blocks.
    pub trait Blocks {
        /// Takes back the block returned last, and returns the next with its bytes, at least one; `None` at
        /// the end. A further call after the end or an error tries to go on.
        ///
        /// It takes `spent` also when it has to wait.
        fn poll_block(&mut self, cx: &mut Context<'_>, spent: &mut Option<Block>) -> Poll<Next>;

        /// Returns the file from the first byte on that was not returned, if the blocks are those of a file.
        fn file(&self) -> Option<FileRange> {
            None
        }

        /// Skips all bytes of the file before this offset.
        fn go_on_at(&mut self, _: u64) {}
    }
}

/// Blocks of an object that is read in order, one read at a time, each begun when a block is requested.
///
/// A read goes on when the future that requested it is dropped; no bytes are lost.
///
/// # Examples
/// See [`Reader`](super::Reader#examples).
pub struct Streamed<R> {
    block_bytes: usize,
    /// A block that is not in use.
    spare: Held,
    link: Rc<Link>,
    /// Performs the reads requested by `link`, one after the other. A separate future, so that a read can
    /// borrow the object and still outlive the future that requests the block.
    pump: Pin<Box<dyn Future<Output = R>>>,
}

/// The messages between [`Streamed`] and its pump.
type Link = RefCell<BlockRequest>;

/// The progress of a read.
#[derive(Debug)]
enum BlockRequest {
    /// No request.
    Idle,
    /// A read was requested; the pump takes the request when polled.
    Wanted(Slice<Block>),
    /// The pump reads.
    Reading,
    /// The read is done.
    Done(BufResult<usize, Slice<Block>>),
    /// The object is to be given back.
    Leave,
}

impl<R: AsyncRead + 'static> Streamed<R> {
    pub(crate) fn new(source: R, block_bytes: usize) -> Self {
        let link = Rc::new(RefCell::new(BlockRequest::Idle));
        let pump = Box::pin(pump(source, Rc::clone(&link)));
        Self { block_bytes: block_bytes.max(1), spare: Held::default(), link, pump }
    }
}

impl<R> Streamed<R> {
    /// The object, unless a read is under way.
    pub(crate) fn into_source(mut self) -> Result<R, Self> {
        let is_idle = matches!(*self.link.borrow(), BlockRequest::Idle);
        if !is_idle {
            return Err(self);
        }
        *self.link.borrow_mut() = BlockRequest::Leave;
        match self.pump.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(source) => Ok(source),
            Poll::Pending => unreachable!("the pump waits for a request, and there is one"),
        }
    }
}

/// Reads from `source` on request, and gives it back at the end.
async fn pump<R: AsyncRead>(mut source: R, link: Rc<Link>) -> R {
    loop {
        // The side that sends a request polls afterwards: no waker is needed.
        let wanted = poll_fn(|_| {
            let mut request = link.borrow_mut();
            match std::mem::replace(&mut *request, BlockRequest::Reading) {
                BlockRequest::Wanted(buf) => Poll::Ready(Some(buf)),
                BlockRequest::Leave => Poll::Ready(None),
                other => {
                    *request = other;
                    Poll::Pending
                }
            }
        });
        let Some(buf) = wanted.await else { return source };
        let result = source.read(buf).await;
        *link.borrow_mut() = BlockRequest::Done(result);
    }
}

impl<R> private::Blocks for Streamed<R> {
    fn poll_block(
        &mut self,
        cx: &mut Context<'_>,
        spent: &mut Option<Block>,
    ) -> Poll<private::Next> {
        if let Some(block) = spent.take() {
            *self.spare = Some(block);
        }
        loop {
            if matches!(*self.link.borrow(), BlockRequest::Idle) {
                let block = self.spare.take();
                let block = block.unwrap_or_else(|| blocks::take(self.block_bytes));
                *self.link.borrow_mut() = BlockRequest::Wanted(block.slice(..));
            }
            let polled = self.pump.as_mut().poll(cx);
            assert!(polled.is_pending(), "the pump ends only when asked to leave");
            let mut request = self.link.borrow_mut();
            let (result, slice) = match std::mem::replace(&mut *request, BlockRequest::Idle) {
                BlockRequest::Done(done) => done,
                other => {
                    *request = other;
                    return Poll::Pending;
                }
            };
            let (len, block) = (slice.bytes_len(), slice.into_inner());
            match result {
                Ok(count) if count > 0 => {
                    return Poll::Ready(Ok(Some((block, 0..count.min(len)))));
                }
                Ok(_) => {
                    *self.spare = Some(block);
                    return Poll::Ready(Ok(None));
                }
                Err(error) => {
                    *self.spare = Some(block);
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Poll::Ready(Err(error));
                    }
                }
            }
        }
    }
}

impl<R> fmt::Debug for Streamed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streamed").field("block_bytes", &self.block_bytes).finish_non_exhaustive()
    }
}

/// Blocks of an object with positions, read ahead of the caller and delivered in order.
///
/// Up to `depth` blocks are in flight while the caller waits, one fewer while it works on a block. If reads
/// are done at once, several blocks come by one call: a *run*.
///
/// After a short read the bytes that came are delivered, and the missing bytes are read before anything that
/// was read ahead is delivered. Only if that read brings no bytes it is the end: then bytes read beyond it
/// are discarded. An error is handled like a read of no bytes, and is returned. So the caller sees the
/// results of a plain loop of reads.
///
/// # Examples
/// See [`Reader::with_depth`](super::Reader::with_depth).
pub struct Positional<F: AsyncReadAt> {
    pub(super) file: F,
    block_bytes: usize,
    /// See [`AsyncReadAt::read_alignment`].
    alignment: usize,
    depth: usize,
    /// Blocks that are not in use. At most `depth`.
    spare: Blocks,
    /// The number of blocks of a run; 1 if there are no runs.
    run_blocks: usize,
    /// The memory of a run, while not in use.
    run: Held,
    /// The offset at which reading began: the first blocks after it are small.
    begin: u64,
    /// Set if a block was read since the last seek, and the end was not found: there may be more.
    is_under_way: bool,
    /// Reads in flight or done, in the order of delivery.
    queue: VecDeque<Ahead<F>>,
    /// Bytes to be read and delivered before the queue, since a read was short or failed.
    gap: Option<Range<u64>>,
    /// The offset of the next read ahead.
    next: u64,
    /// Set when the end was found. Until there are bytes again, or a seek, reads are made one at a time.
    is_ended: bool,
}

/// The most bytes of the first read: few files of a tree have more, and a larger file costs two reads more.
const FIRST_BYTES: usize = 16 << 10;
/// The ratio of the file offsets at the end and at the beginning of the next read, until that is a whole
/// block.
const GROWTH: u64 = 4;

/// A read ahead.
struct Ahead<F: AsyncReadAt> {
    read: F::ReadAt<Slice<Block>>,
    /// The result, if the read was done as soon as it began.
    output: Option<BufResult<usize, Slice<Block>>>,
    /// The first byte wanted.
    offset: u64,
    /// The position of its first byte in the block: the bytes before it were delivered already.
    begin: usize,
    /// The position of its end in the block.
    end: usize,
}

impl<F: AsyncReadAt> Positional<F> {
    pub(crate) fn new(file: F, block_bytes: usize, depth: usize) -> Self {
        // Without offsets, what a short read leaves comes to the next read, which must not be under way yet.
        let has_offsets = file.descriptor().is_none_or(|fd| fd.kind() == FileKind::Bounded);
        let depth = if has_offsets { depth.max(1) } else { 1 };
        let alignment = file.read_alignment().max(1);
        // No read brings more. Rounding up does not overflow.
        let block_bytes = block_bytes.clamp(1, MAX_RW_BYTES).next_multiple_of(alignment);
        // With direct I/O every read waits, and other blocks can be read while a run would have to wait. One
        // call reads a run into several blocks, as long as no read has to wait. Smaller calls cost more per
        // byte: at 32 KiB a tenth more, with the effects on caches.
        let run_blocks =
            if alignment > 1 { 1 } else { (limits::CALL_BYTES / block_bytes).min(depth / 2) };
        Self {
            file,
            block_bytes,
            alignment,
            depth,
            spare: Blocks::default(),
            run_blocks: run_blocks.max(1),
            run: Held::default(),
            begin: 0,
            is_under_way: false,
            queue: VecDeque::with_capacity(depth + 1),
            gap: None,
            next: 0,
            is_ended: false,
        }
    }

    /// Goes on at `offset`. Bytes that were read ahead are discarded.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.queue.clear();
        (self.gap, self.next, self.is_ended) = (None, offset, false);
        (self.begin, self.is_under_way) = (offset, false);
    }

    /// Begins the reads for which there is room, up to one that is done at once: bytes that need no wait are
    /// best read when they are used, into memory that is in the processor's cache.
    fn read_ahead(&mut self) {
        if let Some(gap) = self.gap.take() {
            let read = self.start(gap);
            self.queue.push_front(read);
        }
        let depth = if self.is_ended { 1 } else { self.depth };
        // The first read may be a run.
        let more = self.queue.front().map_or(0, |first| (first.end - 1) / self.block_bytes);
        while self.queue.len() + more < depth
            && self.queue.back().is_none_or(|last| last.output.is_none())
            && (self.queue.is_empty() || self.may_read_ahead())
        {
            let mut ahead = self.start_next(1);
            // No task waits for this read yet: it is polled again when it is the first.
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(output) = Pin::new(&mut ahead.read).poll(&mut cx) {
                ahead.output = Some(output);
            }
            self.queue.push_back(ahead);
        }
    }

    /// Begins to read the blocks after all that were begun.
    #[inline]
    fn start_next(&mut self, blocks: usize) -> Ahead<F> {
        let bytes = self.next_bytes(blocks);
        // No file is that long: a read there returns 0 bytes, the end.
        let end = self.block_begin(self.next).saturating_add(bytes as u64);
        let ahead = self.start(self.next..end);
        self.next = end;
        ahead
    }

    /// Returns the size of the next read in bytes: `blocks` blocks, or less than one at the beginning of a
    /// file. The sizes of these first reads add up to a block, so that all blocks after them begin at the
    /// same offsets as without small reads.
    #[inline]
    fn next_bytes(&self, blocks: usize) -> usize {
        let read = self.next.saturating_sub(self.begin);
        if read >= self.block_bytes as u64 || self.block_bytes <= FIRST_BYTES || self.alignment > 1
        {
            return blocks * self.block_bytes;
        }
        let end = (read * GROWTH).clamp(FIRST_BYTES as u64, self.block_bytes as u64);
        (end - read) as usize
    }

    /// Returns whether another read may begin before the first has ended. As long as only the beginning of
    /// the file was read, a large read ahead may be in vain.
    fn may_read_ahead(&self) -> bool {
        let bytes = self.next_bytes(1);
        bytes <= limits::CALL_BYTES || bytes == self.block_bytes
    }

    /// Returns the result of the first read.
    #[inline]
    fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<Done> {
        if self.queue.is_empty() {
            debug_assert!(self.gap.is_none(), "a gap comes before something");
            let mut ahead = self.start_next(if self.is_under_way { self.run_blocks } else { 1 });
            if let Poll::Ready(output) = Pin::new(&mut ahead.read).poll(cx) {
                return Poll::Ready(ahead.done(output));
            }
            self.queue.push_back(ahead);
            self.read_ahead();
            return Poll::Pending;
        }
        self.poll_queue(cx)
    }

    /// As [`poll_first`](Self::poll_first), of reads in the queue.
    fn poll_queue(&mut self, cx: &mut Context<'_>) -> Poll<Done> {
        self.read_ahead();
        let ahead = self.queue.front_mut().expect("at least one read is in flight");
        let output = match ahead.output.take() {
            Some(output) => output,
            None => ready!(Pin::new(&mut ahead.read).poll(cx)),
        };
        let done = ahead.done(output);
        self.queue.pop_front();
        Poll::Ready(done)
    }

    /// Returns the offset at which a read must begin to bring byte `offset`.
    fn block_begin(&self, offset: u64) -> u64 {
        offset - offset % self.alignment as u64
    }

    /// Notes that the bytes `from..to` are missing before those read ahead.
    fn go_on(&mut self, from: u64, to: u64) {
        if self.queue.is_empty() {
            self.next = from;
        } else if from < to {
            self.gap = Some(from..to);
        }
    }

    /// Keeps memory for another read.
    fn keep(&mut self, block: Block) {
        if block.len() > self.block_bytes {
            *self.run = Some(block);
        } else if self.spare.len() < self.depth {
            self.spare.push(block);
        } else {
            blocks::give(block);
        }
    }

    /// Returns memory for a read of `len` bytes. Unused blocks that are too small go back to the thread,
    /// which has other uses for them.
    fn block(&mut self, len: usize) -> Block {
        while let Some(block) = self.spare.pop() {
            if block.len() >= len {
                return block;
            }
            blocks::give(block);
        }
        // Only few different lengths, so that the thread has some of each.
        blocks::take(len.next_multiple_of(FIRST_BYTES).min(self.block_bytes))
    }

    /// Begins to read bytes that are in one block, or in a run of them.
    fn start(&mut self, bytes: Range<u64>) -> Ahead<F> {
        let from = self.block_begin(bytes.start);
        // At most the bytes of a block, or of a run.
        let (begin, end) = ((bytes.start - from) as usize, (bytes.end - from) as usize);
        let block = if end > self.block_bytes {
            let run = self.run.take();
            run.unwrap_or_else(|| blocks::take(self.run_blocks * self.block_bytes))
        } else {
            self.block(end)
        };
        let read = self.file.start_read_at(block.slice(..end), from);
        Ahead { read, output: None, offset: bytes.start, begin, end }
    }
}

/// A read that is done; see [`Ahead`].
struct Done {
    result: io::Result<usize>,
    block: Block,
    offset: u64,
    begin: usize,
    end: usize,
}

impl<F: AsyncReadAt> Ahead<F> {
    #[inline]
    fn done(&self, (result, slice): BufResult<usize, Slice<Block>>) -> Done {
        let &Self { offset, begin, end, .. } = self;
        Done { result, block: slice.into_inner(), offset, begin, end }
    }
}

impl<F: AsyncReadAt> private::Blocks for Positional<F> {
    fn file(&self) -> Option<FileRange> {
        let fd = self.file.descriptor()?.clone();
        let first = self.gap.as_ref().map(|gap| gap.start);
        let first = first.or_else(|| self.queue.front().map(|ahead| ahead.offset));
        let at = first.unwrap_or(self.next);
        Some(FileRange { fd, alignment: self.alignment, at, end: u64::MAX })
    }

    fn go_on_at(&mut self, offset: u64) {
        self.seek(offset);
    }

    fn poll_block(
        &mut self,
        cx: &mut Context<'_>,
        spent: &mut Option<Block>,
    ) -> Poll<private::Next> {
        if let Some(block) = spent.take() {
            self.keep(block);
        }
        loop {
            let Done { result, block, offset, begin, end } = ready!(self.poll_first(cx));
            let after = offset + (end - begin) as u64;
            match result {
                Ok(count) if count > begin => {
                    let count = count.min(end);
                    self.go_on(offset + (count - begin) as u64, after);
                    (self.is_ended, self.is_under_way) = (false, true);
                    return Poll::Ready(Ok(Some((block, begin..count))));
                }
                Ok(_) => {
                    self.seek(offset);
                    self.is_ended = true;
                    self.keep(block);
                    return Poll::Ready(Ok(None));
                }
                Err(error) => {
                    self.go_on(offset, after);
                    self.keep(block);
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Poll::Ready(Err(error));
                    }
                }
            }
        }
    }
}

impl<F: AsyncReadAt + fmt::Debug> fmt::Debug for Positional<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, block_bytes, depth, .. } = self;
        let mut debug = f.debug_struct("Positional");
        debug.field("file", file).field("block_bytes", block_bytes).field("depth", depth);
        debug.finish_non_exhaustive()
    }
}
