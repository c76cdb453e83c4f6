//! The traits of objects that can be read and written, and the order in which their bytes arrive.
//!
//! Four small traits say what a type can do: [`AsyncRead`] and [`AsyncWrite`] for what is read and
//! written in order, [`AsyncReadAt`] and [`AsyncWriteAt`] for what has positions. Buffers go in by value
//! and come back. Three of them have futures that borrow the object, as `async fn` makes them; reading at
//! a position answers with a future that does not, since reading ahead keeps several at a time.
//!
//! A [`Source`] turns one of them into a sequence of blocks, for [`Reader`](super::Reader). Blocks are
//! recycled: the caller gives the last one back when it asks for the next.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use sakia_driver::{AlignedBuf, BufResult, Fd, IoBuf, IoBufMut, MAX_RW_BYTES, Slice};

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
pub trait AsyncRead {
    /// Reads up to `buf.bytes_room()` bytes, as soon as there are any, into the front of `buf`.
    ///
    /// Resolves to the number of bytes read and the buffer; 0 means the end.
    ///
    /// # Errors
    /// `EINVAL` when there is no room. Otherwise as the type says. `Interrupted` may be tried again at once.
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
pub trait AsyncReadAt {
    /// A read under way.
    type ReadAt<T: IoBufMut>: Future<Output = BufResult<usize, T>> + Unpin;

    /// Begins to read up to `buf.bytes_room()` bytes from byte `offset` on, polled or not.
    ///
    /// Resolves to the number of bytes read and the buffer; 0 means the end. Fewer bytes than asked do not
    /// mean the end. A buffer without room is refused with `EINVAL`.
    fn start_read_at<T: IoBufMut>(&self, buf: T, offset: u64) -> Self::ReadAt<T>;

    /// Returns the number of which offsets and lengths of reads must be a multiple, as with `O_DIRECT`. Only
    /// a read at the end brings another number of bytes; a [`Reader`](super::Reader) goes on from the
    /// multiple before.
    fn read_alignment(&self) -> usize {
        1
    }

    /// Returns the file that is read, if it is one: the kernel may send it.
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
pub trait AsyncWrite {
    /// Writes up to `buf.bytes_len()` bytes, as soon as there is room for any.
    ///
    /// Resolves to the number of bytes written and the buffer. It may be fewer than asked.
    ///
    /// # Errors
    /// As the type says. `Interrupted` may be tried again at once.
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

    /// Passes on what the type itself holds back, and makes it durable where the type knows what that
    /// means. Resolves to the level that was reached: [`Level::Accepted`] unless a type does better.
    ///
    /// # Errors
    /// As the type says.
    fn sync(&mut self) -> impl Future<Output = io::Result<Level>> {
        async { Ok(Level::Accepted) }
    }

    /// `true` if [`send_range`](AsyncWrite::send_range) may be called.
    #[doc(hidden)]
    const SENDS_FILES: bool = false;

    /// Sends a range of a file. Resolves to the number of bytes sent, too: fewer if it ends before.
    #[doc(hidden)]
    fn send_range(&mut self, _: FileRange) -> impl Future<Output = BufResult<(), u64>> {
        async { (Err(io::ErrorKind::Unsupported.into()), 0) }
    }

    /// Tells the other side that no more comes, and gives up the object.
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
pub trait AsyncWriteAt {
    /// Writes up to `buf.bytes_len()` bytes from byte `offset` on.
    ///
    /// Resolves to the number of bytes written and the buffer. It may be fewer than asked.
    ///
    /// # Errors
    /// As the type says. `Interrupted` may be tried again at once.
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

    /// Makes the written bytes durable, with as much of the file's attributes as reading it back needs.
    ///
    /// # Errors
    /// As the type says.
    fn sync_data(&self) -> impl Future<Output = io::Result<()>>;

    /// Gives up the object, and tells how that went.
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

/// Passes a shared object's methods on.
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

        /// Closing it leaves the object to those who share it.
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
pub trait Source: private::Blocks {}

impl<S: private::Blocks> Source for S {}

pub(crate) mod private {
    use super::{Block, Context, FileRange, Poll, Range, io};

    /// A block and its bytes, or the end.
    pub type Next = io::Result<Option<(Block, Range<usize>)>>;

    /// A sequence of blocks.
    pub trait Blocks {
        /// Takes back the block given out last, and gives the next with its bytes, at least one; `None`
        /// at the end. Asked again after the end or an error, it tries to go on.
        ///
        /// When it waits, it has taken `spent`.
        fn poll_block(&mut self, cx: &mut Context<'_>, spent: &mut Option<Block>) -> Poll<Next>;

        /// The file from the first byte on that was not given out, if the blocks are of one.
        fn file(&self) -> Option<FileRange> {
            None
        }

        /// Leaves out all bytes before this one of the file.
        fn go_on_at(&mut self, _: u64) {}
    }
}

/// Blocks of something that is read in order, one read at a time, each begun when a block is asked for.
///
/// A read goes on when the future that asked for it is dropped; nothing is lost.
///
/// # Examples
/// See [`Reader`](super::Reader#examples).
pub struct Streamed<R> {
    block_bytes: usize,
    /// Not in use.
    spare: Held,
    link: Rc<Link>,
    /// Performs the reads that `link` asks for, one after the other. A future of its own, so that a read can
    /// borrow the object and still outlive the future that requests the block.
    pump: Pin<Box<dyn Future<Output = R>>>,
}

/// The messages between [`Streamed`] and its pump.
type Link = RefCell<Request>;

/// The progress of a read.
#[derive(Debug)]
enum Request {
    /// Nothing is asked for.
    Idle,
    /// A read is asked for; the pump takes it when polled.
    Wanted(Slice<Block>),
    /// The pump is at it.
    Reading,
    /// It is done.
    Done(BufResult<usize, Slice<Block>>),
    /// The object is asked for.
    Leave,
}

impl<R: AsyncRead + 'static> Streamed<R> {
    pub(crate) fn new(source: R, block_bytes: usize) -> Self {
        let link = Rc::new(RefCell::new(Request::Idle));
        let pump = Box::pin(pump(source, Rc::clone(&link)));
        Self { block_bytes: block_bytes.max(1), spare: Held::default(), link, pump }
    }
}

impl<R> Streamed<R> {
    /// The object, unless a read is under way.
    pub(crate) fn into_source(mut self) -> Result<R, Self> {
        let is_idle = matches!(*self.link.borrow(), Request::Idle);
        if !is_idle {
            return Err(self);
        }
        *self.link.borrow_mut() = Request::Leave;
        match self.pump.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(source) => Ok(source),
            Poll::Pending => unreachable!("the pump waits for a request, and there is one"),
        }
    }
}

/// Reads from `source` when asked, and gives it back in the end.
async fn pump<R: AsyncRead>(mut source: R, link: Rc<Link>) -> R {
    loop {
        // The side that sends a request polls afterwards: no waker is needed.
        let wanted = poll_fn(|_| {
            let mut request = link.borrow_mut();
            match std::mem::replace(&mut *request, Request::Reading) {
                Request::Wanted(buf) => Poll::Ready(Some(buf)),
                Request::Leave => Poll::Ready(None),
                other => {
                    *request = other;
                    Poll::Pending
                }
            }
        });
        let Some(buf) = wanted.await else { return source };
        let result = source.read(buf).await;
        *link.borrow_mut() = Request::Done(result);
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
            if matches!(*self.link.borrow(), Request::Idle) {
                let block = self.spare.take();
                let block = block.unwrap_or_else(|| blocks::take(self.block_bytes));
                *self.link.borrow_mut() = Request::Wanted(block.slice(..));
            }
            let polled = self.pump.as_mut().poll(cx);
            assert!(polled.is_pending(), "the pump ends only when asked to leave");
            let mut request = self.link.borrow_mut();
            let (result, slice) = match std::mem::replace(&mut *request, Request::Idle) {
                Request::Done(done) => done,
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

/// Blocks of something that has positions, with reads ahead of the caller, delivered in order.
///
/// Up to `depth` blocks are in flight while the caller waits, one fewer while it works on a block. Where
/// reads are done at once, several blocks come by one call: a run.
///
/// The story of a short read: the bytes that came are delivered; what is missing is read next, before what
/// was read ahead is delivered. Only when nothing more comes there is it the end: what was read beyond
/// is thrown away then. An error is the same with no bytes, and is told. So the caller sees what a loop of
/// reads would have given it.
///
/// # Examples
/// See [`Reader::with_depth`](super::Reader::with_depth).
pub struct Positional<F: AsyncReadAt> {
    pub(super) file: F,
    block_bytes: usize,
    /// See [`AsyncReadAt::read_alignment`].
    alignment: usize,
    depth: usize,
    /// Not in use. At most `depth`.
    spare: Blocks,
    /// How many blocks a run has; 1 where there are none.
    run_blocks: usize,
    /// The memory of a run, while not in use.
    run: Held,
    /// The byte at which reading began: the first blocks after it are small ones.
    begin: u64,
    /// A block was read since the last seek, and the end not found: there may be more.
    is_under_way: bool,
    /// In flight or done, in the order of delivery.
    queue: VecDeque<Ahead<F>>,
    /// To be read and delivered before the queue: what a short or failed read left.
    gap: Option<Range<u64>>,
    /// The offset of the next read ahead.
    next: u64,
    /// The end was found. Until there are bytes again, reads are made one at a time.
    is_ended: bool,
}

/// Bytes that are read by one call, if that is several blocks, as long as no read has to wait. A call costs
/// the more the less it brings: on 32 KiB a tenth, with what the caches lose meanwhile. More than this would
/// no longer be done as a plain call, and leave the processor's nearer caches before it is used.
const RUN_BYTES: usize = 64 << 10;

/// The most bytes of the first read: few files of a tree have more, and a file that has costs two reads more.
const FIRST_BYTES: usize = 16 << 10;
/// How many times the bytes before it those up to the end of the next read are, until that is a block.
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
        let depth = depth.max(1);
        let alignment = file.read_alignment().max(1);
        // No read brings more. Rounded up it is far from the end of the numbers.
        let block_bytes = block_bytes.clamp(1, MAX_RW_BYTES).next_multiple_of(alignment);
        // With direct I/O every read waits. When a run has to, other blocks can be read meanwhile.
        let run_blocks = if alignment > 1 { 1 } else { (RUN_BYTES / block_bytes).min(depth / 2) };
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

    /// Goes on at `offset`. What was read ahead is thrown away.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.queue.clear();
        (self.gap, self.next, self.is_ended) = (None, offset, false);
        (self.begin, self.is_under_way) = (offset, false);
    }

    /// Begins the reads for which there is room, up to one that is done at once: what needs no waiting is
    /// best read when it is used, into memory that is in the processor's cache.
    fn read_ahead(&mut self) {
        if let Some(gap) = self.gap.take() {
            let read = self.start(gap);
            self.queue.push_front(read);
        }
        let depth = if self.is_ended { 1 } else { self.depth };
        // The first may be a run.
        let more = self.queue.front().map_or(0, |first| (first.end - 1) / self.block_bytes);
        while self.queue.len() + more < depth
            && self.queue.back().is_none_or(|last| last.output.is_none())
            && (self.queue.is_empty() || self.may_read_ahead())
        {
            let mut ahead = self.start_next(1);
            // No task waits for this one yet: it is polled again when it is the first.
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
        // No file is that long: there, 0 bytes tell the end.
        let end = self.block_begin(self.next).saturating_add(bytes as u64);
        let ahead = self.start(self.next..end);
        self.next = end;
        ahead
    }

    /// Returns the size of the next read in bytes: `blocks` blocks, or less than one at the beginning of a
    /// file. The ends of these first reads add up to a block, so that all blocks after it begin where they
    /// would without them.
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

    /// Returns whether another read may begin before the first has ended. A large one may be in vain as
    /// long as only the beginning of the file was read.
    fn may_read_ahead(&self) -> bool {
        let bytes = self.next_bytes(1);
        bytes <= RUN_BYTES || bytes == self.block_bytes
    }

    /// The first read's result.
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

    /// The same, of reads that are in the queue.
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

    /// The bytes `from..to` are missing before those read ahead.
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

    /// Memory for a read of so many bytes. Of what was used before it, blocks that are too small go to the
    /// thread, which has other uses for them.
    fn block(&mut self, len: usize) -> Block {
        while let Some(block) = self.spare.pop() {
            if block.len() >= len {
                return block;
            }
            blocks::give(block);
        }
        // Few lengths, of which the thread has some.
        blocks::take(len.next_multiple_of(FIRST_BYTES).min(self.block_bytes))
    }

    /// Begins to read bytes that are in one block, or in a run of them.
    fn start(&mut self, bytes: Range<u64>) -> Ahead<F> {
        let from = self.block_begin(bytes.start);
        // No more than a block has, or a run.
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
