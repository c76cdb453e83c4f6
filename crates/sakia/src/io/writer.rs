//! Writing with buffers that the writer owns, filled from slices that ordinary code lends.
//!
//! A writer consists of a queue of blocks between two sides: the methods of [`Writer`] put bytes in, and a
//! separate task, the *pump*, which owns the sink, takes them out. The pump runs when the writing task waits,
//! so that all bytes written up to then leave together. One operation is in flight at a time.
//!
//! The pump ends when the writer is closed, or dropped and all bytes are written, or when its runtime ends.
//! An error of the sink is kept, ends all writing, and makes the pump wait for the writer's end.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};

use sakia_driver::{BufResult, IoBuf, Slice, wake_all};

use super::blocks::{self, Blocks};
use super::file_range::FileRange;
use super::source::{AsyncWrite, AsyncWriteAt, Block, Level};
use crate::error::copy_error;
use crate::executor::spawn_at;
use crate::join::JoinHandle;

/// The default size of a block in bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// The default limit on waiting bytes.
const BOUND_BYTES: usize = 4 * BLOCK_BYTES;
/// The most bytes of a file in one entry of the queue.
const FILE_BYTES_MAX: usize = sakia_driver::SEND_FILE_BYTES_MAX;
/// The size of a writer's first block in bytes, unless more are written at once.
const FIRST_BYTES: usize = 4 << 10;
/// Growth factor of full blocks that are smaller than the final size.
const GROWTH: usize = 4;
/// The most blocks in one operation.
const BATCH: usize = 64;

/// Errors that were not reported to any caller, since the writer was dropped before.
static UNREPORTED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of this process's writers that lost bytes after they were dropped: their sink failed,
/// or their runtime ended first. [`Writer::close`] returns the error instead.
///
/// # Examples
/// ```
/// use sakia::io::{Writer, pipe, unreported_write_errors};
///
/// # sakia::block_on(async {
/// let before = unreported_write_errors();
/// let (reader, writer) = pipe()?;
/// let mut writer = Writer::new(writer);
/// reader.close().await?;
/// writer.write_all(b"for no reader").await?;
/// drop(writer);
/// while unreported_write_errors() == before {
///     sakia::yield_now().await;
/// }
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub fn unreported_write_errors() -> u64 {
    UNREPORTED.load(Ordering::Relaxed)
}

/// Writes from a buffer of its own, which it fills from slices that callers lend.
///
/// Writing copies bytes to blocks and does not wait while there is room. All bytes that a task writes before
/// it waits leave together if the sink is written in order ([`new`](Writer::new)). To a file
/// ([`at`](Writer::at)) bytes leave by whole blocks, and the rest when flushed, closed or dropped. When the
/// [bound](Writer::bound_bytes) is reached, writing waits until there is room.
///
/// The first error of the sink ends all writing. The next call of a method that can fail returns it, and so
/// does each call after that; [`written`](Writer::written) returns how many bytes the sink had taken by then.
///
/// Dropping a writer does not lose written bytes: they still leave, in the background, as long as the runtime
/// lives. Their errors are not reported, but counted: see [`unreported_write_errors`].
/// [`close`](Writer::close) waits, and returns the outcome.
///
/// # Examples
/// ```
/// use sakia::io::{BufResultExt, Level, Writer, pipe};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let (mut reader, writer) = pipe()?;
///     let mut writer = Writer::new(writer);
///     for word in ["a", " few", " words"] {
///         writer.write_all(word.as_bytes()).await?;
///     }
///     assert_eq!(writer.flush(Level::Accepted).await?, Level::Accepted);
///     assert_eq!(writer.written(), 11);
///     writer.close().await?;
///     let text = reader.read_to_end(Vec::new()).await.buffer()?;
///     assert_eq!(text, b"a few words");
///     Ok(())
/// })
/// # }
/// ```
pub struct Writer<W> {
    shared: Rc<Shared>,
    /// Resolves to the sink if that was requested.
    pump: JoinHandle<Option<W>>,
}

type Shared = RefCell<WriterState>;

/// The state that a writer and its pump share.
struct WriterState {
    block_bytes: usize,
    bound_bytes: usize,
    gathers: Gathers,
    /// See [`AsyncWrite::SENDS_FILES`].
    sends_files: bool,
    /// Bytes to be written, oldest first. The last block may have room.
    queue: VecDeque<Part>,
    /// Blocks not in use.
    spare: Blocks,
    /// The number of bytes in the queue and in flight.
    waiting: usize,
    /// The number of bytes put in, in all.
    accepted: u64,
    /// The number of bytes the sink took, in all.
    written: u64,
    /// Bytes up to here are to be written without waiting for more.
    flush_to: u64,
    sync: Sync,
    end: End,
    /// The sink's first error.
    error: Option<Failure>,
    /// Set when the pump is gone.
    is_ended: bool,
    /// The waker of the writer, which waits for room, a flush, or the end.
    writer: Option<Waker>,
    /// The waker of the pump, which waits for something to do.
    pump: Option<Waker>,
}

/// How far the sink is to be synced, and was.
#[derive(Clone, Copy, Debug)]
struct Sync {
    /// One more than the number of bytes that are to be synced, and 0 without such a request. A sync of no
    /// bytes is a sync, too: others may have written to the sink.
    to: u64,
    /// The same for the bytes that were synced, and reached `level`.
    done: u64,
    /// The level of durability that syncing reaches.
    level: Level,
}

impl Sync {
    /// Returns whether a sync was asked for that was not made.
    fn is_due(self) -> bool {
        self.to > self.done
    }
}

/// The time at which bytes leave that do not fill a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gathers {
    /// When the writing task waits.
    Turn,
    /// When flushed.
    Block,
}

/// The way in which the pump is to end, once all bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is not to end yet.
    No,
    /// By closing the sink.
    Close,
    /// By closing the sink, without a caller that waits.
    Dropped,
    /// By returning the sink.
    Give,
}

/// Bytes to be written.
enum Part {
    /// Bytes of a block.
    Bytes {
        block: Block,
        range: Range<usize>,
        /// Set if the block is the writer's own: it is replaced by a larger one before a second block is
        /// begun.
        grows: bool,
    },
    /// Bytes of a file, which the sink sends.
    File(FileRange),
}

/// An error that can be returned more than once.
struct Failure {
    error: io::Error,
    is_told: bool,
}

impl Failure {
    fn tell(&mut self) -> io::Error {
        self.is_told = true;
        let copy = copy_error(&self.error);
        std::mem::replace(&mut self.error, copy)
    }
}

impl WriterState {
    /// Returns the error, if there is one.
    fn check(&mut self) -> io::Result<()> {
        match &mut self.error {
            Some(error) => Err(error.tell()),
            None => Ok(()),
        }
    }

    /// As [`check`](WriterState::check), and fails when the writer is closed.
    fn check_open(&mut self) -> io::Result<()> {
        self.check()?;
        match self.end {
            End::No => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the writer is closed")),
        }
    }

    /// Returns an unused block with room, `len` bytes long.
    fn block(&mut self, len: usize) -> Block {
        self.spare.take(len)
    }

    fn recycle(&mut self, block: Block) {
        if self.spare.len() * block.len() < self.bound_bytes.saturating_add(block.len()) {
            self.spare.push(block);
        } else {
            blocks::give(block);
        }
    }

    /// Copies `bytes` to the queue.
    fn put(&mut self, mut bytes: &[u8]) {
        self.waiting += bytes.len();
        self.accepted += bytes.len() as u64;
        while !bytes.is_empty() {
            let (block, range) = match self.queue.back_mut() {
                Some(Part::Bytes { block, range, .. }) if range.end < block.len() => (block, range),
                _ => {
                    self.make_room(bytes.len());
                    continue;
                }
            };
            let room = &mut block[range.end..];
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            range.end += count;
            bytes = &bytes[count..];
        }
    }

    /// Makes room for the first of `count` bytes: at the end of the last block, in a larger block instead of
    /// it, or in another block. So a few bytes take a small block, and many fill whole ones.
    fn make_room(&mut self, count: usize) {
        let block_bytes = self.block_bytes;
        let len_for = |count: usize| match count.checked_next_power_of_two() {
            Some(len) => len.clamp(FIRST_BYTES.min(block_bytes), block_bytes),
            None => block_bytes,
        };
        match self.queue.back_mut() {
            Some(Part::Bytes { block, range, grows: true }) if block.len() < block_bytes => {
                let wanted =
                    range.len().saturating_add(count).max(block.len().saturating_mul(GROWTH));
                let mut larger = self.spare.take(len_for(wanted));
                larger[..range.len()].copy_from_slice(&block[range.clone()]);
                *range = 0..range.len();
                blocks::give(std::mem::replace(block, larger));
            }
            _ => {
                let block = self.block(len_for(count));
                self.queue.push_back(Part::Bytes { block, range: 0..0, grows: true });
            }
        }
    }

    /// Returns the number of bytes for which there is room.
    fn room(&self) -> usize {
        self.bound_bytes.saturating_sub(self.waiting)
    }

    /// Returns whether the pump has something to write.
    fn is_writable(&self) -> bool {
        let is_whole = match self.queue.front() {
            Some(Part::Bytes { block, range, grows }) => {
                range.end == block.len() && !(*grows && block.len() < self.block_bytes)
            }
            Some(Part::File(_)) => true,
            None => return false,
        };
        self.gathers == Gathers::Turn
            || self.queue.len() > 1
            || is_whole
            || self.written < self.flush_to
            || self.end != End::No
            || self.room() == 0
    }

    /// Takes the waker of the pump, if the pump has something to do.
    fn pump_waker(&mut self) -> Option<Waker> {
        let has_work = self.error.is_none() && (self.is_writable() || self.sync.is_due());
        self.pump.take_if(|_| has_work || self.end != End::No)
    }

    /// Keeps the waker of the writer. The returned waker is to be dropped outside the borrow.
    #[must_use]
    fn wait(&mut self, cx: &Context<'_>) -> Option<Waker> {
        match &self.writer {
            Some(waker) if waker.will_wake(cx.waker()) => None,
            _ => self.writer.replace(cx.waker().clone()),
        }
    }

    /// Notes that the sink has failed: the bytes in the queue will not be written.
    fn fail(&mut self, error: io::Error) {
        self.error.get_or_insert(Failure { error, is_told: false });
        self.waiting = 0;
        self.queue.clear();
        self.spare.give_all();
    }

    /// Counts an error that was not reported, and will not be.
    fn count_loss(&mut self) {
        let untold = self.error.as_mut().filter(|failure| !failure.is_told);
        if let Some(failure) = untold {
            failure.is_told = true;
            UNREPORTED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes `count` written bytes off the front of `batch`. Returns their number, which is at most that of
    /// the bytes in `batch`.
    fn advance(&mut self, batch: &mut Vec<Slice<Block>>, count: usize) -> usize {
        let mut left = count;
        let mut full = 0;
        while let Some(slice) = batch.get(full).filter(|slice| slice.bytes_len() <= left) {
            left -= slice.bytes_len();
            full += 1;
        }
        for slice in batch.drain(..full) {
            self.recycle(slice.into_inner());
        }
        match batch.first_mut() {
            Some(first) => {
                first.advance(left);
                count
            }
            None => count - left,
        }
    }
}

/// The next step of the pump.
enum Work {
    Write,
    Sync(u64),
    End(End),
}

impl<W: AsyncWrite + 'static> Writer<W> {
    /// Writes to `sink` in order, on the calling thread's runtime.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`Writer`](Writer#examples).
    #[track_caller]
    pub fn new(sink: W) -> Self {
        Self::new_at(sink, Location::caller())
    }

    /// As [`new`](Writer::new), with the place that is shown as that of the writer's task.
    #[track_caller]
    pub(crate) fn new_at(sink: W, made_at: &'static Location<'static>) -> Self {
        let pump = |ended| pump(sink, |sink| sink, ended);
        Self::start(Gathers::Turn, W::SENDS_FILES, pump, made_at)
    }
}

impl<W: AsyncWriteAt + 'static> Writer<W> {
    /// Writes to `file` from byte `offset` on, on the calling thread's runtime. The file's own position is
    /// not used.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, File};
    /// use sakia::io::{Level, Writer};
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-writer-at-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let mut writer = Writer::at(File::create(&path).await?, 0);
    /// for number in 0..3 {
    ///     writer.write_all(format!("line {number}\n").as_bytes()).await?;
    /// }
    /// // What was written so far is there after a power failure.
    /// assert_eq!(writer.flush(Level::Durable).await?, Level::Durable);
    /// writer.close().await?;
    /// assert_eq!(fs::read(&path).await?, b"line 0\nline 1\nline 2\n");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn at(file: W, offset: u64) -> Self {
        let pump = |ended| pump(AtOffset { file, offset }, |sink| sink.file, ended);
        Self::start(Gathers::Block, false, pump, Location::caller())
    }
}

impl<W: 'static> Writer<W> {
    #[track_caller]
    fn start<F, P>(
        gathers: Gathers,
        sends_files: bool,
        pump: F,
        made_at: &'static Location<'static>,
    ) -> Self
    where
        F: FnOnce(Ended) -> P,
        P: Future<Output = Option<W>> + 'static,
    {
        let shared = Rc::new(RefCell::new(WriterState {
            block_bytes: BLOCK_BYTES,
            bound_bytes: BOUND_BYTES,
            gathers,
            sends_files,
            queue: VecDeque::new(),
            spare: Blocks::default(),
            waiting: 0,
            accepted: 0,
            written: 0,
            flush_to: 0,
            sync: Sync { to: 0, done: 0, level: Level::Accepted },
            end: End::No,
            error: None,
            is_ended: false,
            writer: None,
            pump: None,
        }));
        let pump = spawn_at(pump(Ended(Rc::clone(&shared))), made_at);
        Self { shared, pump }
    }
}

impl<W> Writer<W> {
    /// Sets the size of a block in bytes, at least 1. Without this call 64 KiB.
    ///
    /// # Examples
    /// See [`Writer::bound_bytes`].
    #[must_use]
    pub fn block_bytes(self, bytes: usize) -> Self {
        self.shared.borrow_mut().block_bytes = bytes.max(1);
        self
    }

    /// Sets the limit on waiting bytes, at least 1: those put in and not written, in flight included. Without
    /// this call 256 KiB.
    ///
    /// # Examples
    /// Writing waits for a slow reader, so that no more than the bound is kept:
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia::io::{Level, Writer, pipe};
    /// use sakia::time::timeout;
    ///
    /// # sakia::block_on(async {
    /// let (mut reader, writer) = pipe()?;
    /// let mut writer = Writer::new(writer).block_bytes(4096).bound_bytes(1 << 16);
    /// let million = vec![0; 1 << 20];
    /// let write = writer.write_all(&million);
    /// assert!(timeout(Duration::from_millis(10), write).await.is_err());
    /// assert!(writer.accepted() - writer.written() <= 1 << 16);
    /// # drop(reader.read(vec![0; 1]).await);
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn bound_bytes(self, bytes: usize) -> Self {
        self.shared.borrow_mut().bound_bytes = bytes.max(1);
        self
    }

    /// Returns the number of bytes put in so far.
    ///
    /// # Examples
    /// See [`Writer::bound_bytes`].
    pub fn accepted(&self) -> u64 {
        self.shared.borrow().accepted
    }

    /// Returns the number of bytes that the sink took so far. After an error it is the number of bytes known
    /// to be written, from the first one on.
    ///
    /// # Examples
    /// See [`Writer`](Writer#examples).
    pub fn written(&self) -> u64 {
        self.shared.borrow().written
    }

    /// Copies bytes, as many as there is room for, and resolves to their number; waits when there is no room.
    /// Dropping the future copies none.
    ///
    /// # Cancel safety
    /// Dropping the future copies nothing.
    ///
    /// # Errors
    /// - The error of the sink, now or before; see [`written`](Writer::written). Never `EINTR`.
    /// - `WriteZero`: the sink takes no bytes.
    /// - `BrokenPipe`: the writer is closed. `ECANCELED`: the runtime has ended.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::{BufResultExt, Writer, pipe};
    ///
    /// # sakia::block_on(async {
    /// let (mut reader, writer) = pipe()?;
    /// let mut writer = Writer::new(writer).bound_bytes(4);
    /// // As many as there is room for.
    /// assert_eq!(writer.write(b"hello").await?, 4);
    /// writer.close().await?;
    /// assert_eq!(reader.read_to_end(Vec::new()).await.buffer()?, b"hell");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write(cx, bytes)).await
    }

    /// See [`write`](Writer::write).
    ///
    /// # Errors
    /// As for [`write`](Writer::write).
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.shared.borrow_mut();
        state.check_open()?;
        let count = bytes.len().min(state.room());
        state.put(&bytes[..count]);
        let is_full = count == 0 && !bytes.is_empty();
        let previous = if is_full { state.wait(cx) } else { None };
        release(state, previous);
        if is_full { Poll::Pending } else { Poll::Ready(Ok(count)) }
    }

    /// Copies all of `bytes`, and waits for room as often as need be.
    ///
    /// # Cancel safety
    /// Dropping the future leaves a part of `bytes` copied; [`accepted`](Writer::accepted) tells how many.
    ///
    /// # Errors
    /// As for [`write`](Writer::write).
    ///
    /// # Examples
    /// See [`Writer`](Writer#examples).
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.write(bytes).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Writes all bytes that were put in, and resolves to the level that they reached: at least
    /// [`Level::Accepted`]; [`Level::Durable`] if requested and supported by the sink, as by files.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the request.
    ///
    /// # Errors
    /// As for [`write`](Writer::write). `EIO`, `ENOSPC`, `EDQUOT` if durability was requested: written bytes
    /// may be lost.
    ///
    /// # Examples
    /// See [`Writer`](Writer#examples).
    pub async fn flush(&mut self, level: Level) -> io::Result<Level> {
        poll_fn(|cx| self.poll_flush(cx, level)).await
    }

    /// See [`flush`](Writer::flush).
    ///
    /// # Errors
    /// As for [`flush`](Writer::flush).
    pub fn poll_flush(&mut self, cx: &mut Context<'_>, level: Level) -> Poll<io::Result<Level>> {
        let mut state = self.shared.borrow_mut();
        state.check_open()?;
        let all = state.accepted;
        state.flush_to = all;
        let mut reached = Level::Accepted;
        let mut is_done = state.written == all;
        if level == Level::Durable {
            state.sync.to = all + 1;
            is_done &= !state.sync.is_due();
            reached = state.sync.level;
        }
        let previous = if is_done { None } else { state.wait(cx) };
        release(state, previous);
        if is_done { Poll::Ready(Ok(reached)) } else { Poll::Pending }
    }

    /// Writes all bytes that were put in, closes the sink, and returns the outcome. A further call returns
    /// the same.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop this; a further call returns the outcome.
    ///
    /// # Errors
    /// As for [`flush`](Writer::flush); otherwise the error of closing. The sink is gone in any case.
    ///
    /// # Examples
    /// See [`Writer`](Writer#examples).
    pub async fn close(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_close(cx)).await
    }

    /// See [`close`](Writer::close).
    ///
    /// # Errors
    /// As for [`close`](Writer::close).
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_end(cx, End::Close));
        Poll::Ready(self.shared.borrow_mut().check())
    }

    /// Returns whether it is to be closed.
    #[cfg(any(feature = "futures-io", feature = "hyper", feature = "tokio"))]
    pub(crate) fn is_closing(&self) -> bool {
        self.shared.borrow().end == End::Close
    }

    /// Writes all bytes that were put in, and gives the sink back.
    ///
    /// # Cancel safety
    /// Dropping the future has the effect of dropping the writer: the bytes still leave, and the sink is
    /// closed.
    ///
    /// # Errors
    /// As for [`flush`](Writer::flush). The sink is gone then.
    ///
    /// # Examples
    /// ```
    /// use sakia::io::{BufResultExt, Writer, pipe};
    ///
    /// # sakia::block_on(async {
    /// let (mut reader, writer) = pipe()?;
    /// let mut writer = Writer::new(writer);
    /// writer.write_all(b"buffered, ").await?;
    /// let mut writer = writer.into_inner().await?;
    /// writer.write_all("and not").await.value()?;
    /// drop(writer);
    /// let text = reader.read_to_end(Vec::new()).await.buffer()?;
    /// assert_eq!(text, b"buffered, and not");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn into_inner(mut self) -> io::Result<W> {
        self.shared.borrow_mut().check_open()?;
        poll_fn(|cx| self.poll_end(cx, End::Give)).await;
        self.shared.borrow_mut().check()?;
        let sink = (&mut self.pump).await;
        sink.ok().flatten().ok_or_else(canceled)
    }

    /// Asks the pump to end, and waits for it.
    fn poll_end(&mut self, cx: &mut Context<'_>, end: End) -> Poll<()> {
        let mut state = self.shared.borrow_mut();
        if state.end == End::No {
            state.end = end;
        }
        let is_ended = state.is_ended;
        let previous = if is_ended { None } else { state.wait(cx) };
        release(state, previous);
        if is_ended { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns an unused block of `len` bytes.
    pub(crate) fn spare_block(&mut self, len: usize) -> Block {
        self.shared.borrow_mut().block(len)
    }

    /// Waits until `count` bytes fit, or nothing else is in the queue.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>, count: usize) -> Poll<io::Result<()>> {
        let mut state = self.shared.borrow_mut();
        state.check_open()?;
        if state.waiting == 0 || state.room() >= count {
            return Poll::Ready(Ok(()));
        }
        // Lets the pump take bytes that fill no block: there is no room for more.
        state.flush_to = state.accepted;
        let previous = state.wait(cx);
        release(state, previous);
        Poll::Pending
    }

    /// Puts in bytes of a block, without copying them. There must be [room](Self::poll_room).
    pub(crate) fn put_block(&mut self, block: Block, range: Range<usize>) {
        self.put_part(range.len(), Part::Bytes { block, range, grows: false });
    }

    /// Returns the most bytes of a file that can be put in at once; 0 if the sink does not send files.
    pub(crate) fn file_bytes_max(&self) -> usize {
        let state = self.shared.borrow();
        if state.sends_files { state.bound_bytes.min(FILE_BYTES_MAX) } else { 0 }
    }

    /// Puts in [some](Self::file_bytes_max) bytes of a file. There must be [room](Self::poll_room).
    pub(crate) fn put_file(&mut self, range: FileRange) {
        self.put_part(range.len() as usize, Part::File(range));
    }

    fn put_part(&mut self, len: usize, part: Part) {
        let mut state = self.shared.borrow_mut();
        state.waiting += len;
        state.accepted += len as u64;
        state.queue.push_back(part);
        release(state, None);
    }
}

impl<W> Drop for Writer<W> {
    fn drop(&mut self) {
        let mut state = self.shared.borrow_mut();
        if state.is_ended {
            state.count_loss();
        } else {
            state.end = End::Dropped;
        }
        let writer = state.writer.take();
        release(state, writer);
    }
}

impl<W> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.borrow();
        let mut debug = f.debug_struct("Writer");
        debug.field("accepted", &state.accepted).field("written", &state.written);
        debug.field("is_failed", &state.error.is_some()).finish_non_exhaustive()
    }
}

fn canceled() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::CANCELED.raw_os_error())
}

/// Ends the borrow, and wakes the pump if it has something to do. `unused` is dropped outside of the borrow,
/// since this runs users' code.
fn release(mut state: RefMut<'_, WriterState>, unused: Option<Waker>) {
    let pump = state.pump_waker();
    drop(state);
    drop(unused);
    wake_all(pump);
}

/// A file that is written from `offset` on.
struct AtOffset<W> {
    file: W,
    offset: u64,
}

impl<W: AsyncWriteAt> AsyncWrite for AtOffset<W> {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        let (result, buf) = self.file.write_at(buf, self.offset).await;
        self.offset += result.as_ref().map_or(0, |&count| count as u64);
        (result, buf)
    }

    async fn write_vectored<T: IoBuf>(&mut self, bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
        let (result, bufs) = self.file.write_vectored_at(bufs, self.offset).await;
        self.offset += result.as_ref().map_or(0, |&count| count as u64);
        (result, bufs)
    }

    async fn sync(&mut self) -> io::Result<Level> {
        self.file.sync_data().await.map(|()| Level::Durable)
    }

    async fn close(self) -> io::Result<()> {
        self.file.close().await
    }
}

/// Tells the writer when the pump is gone, by a panic too.
struct Ended(Rc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.is_ended = true;
        // The runtime has ended, or the sink panicked.
        if state.waiting > 0 {
            state.fail(canceled());
        } else if state.end == End::No && state.error.is_none() {
            state.fail(canceled());
            state.check().ok(); // every byte was written: there is no loss to report
        }
        if state.end == End::Dropped {
            state.count_loss();
        }
        let (writer, pump) = (state.writer.take(), state.pump.take());
        drop(state);
        drop(pump);
        wake_all(writer);
    }
}

/// Takes bytes out of the queue and writes them to `sink`, until it is to end. If the sink is to be given
/// back, returns `into_inner` of it. `ended` is dropped with the future even if that never ran.
async fn pump<S, W>(mut sink: S, into_inner: fn(S) -> W, ended: Ended) -> Option<W>
where
    S: AsyncWrite,
{
    let shared = Rc::clone(&ended.0);
    let mut batch = Vec::new();
    loop {
        match poll_fn(|cx| poll_work(&shared, cx)).await {
            Work::Write => write_batch(&mut sink, &shared, &mut batch).await,
            Work::Sync(to) => {
                let result = sink.sync().await;
                let mut state = shared.borrow_mut();
                match result {
                    Ok(level) => (state.sync.done, state.sync.level) = (to, level),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => state.fail(error),
                }
            }
            Work::End(end) => {
                let mut given = None;
                if end == End::Give {
                    given = Some(into_inner(sink));
                } else if let Err(error) = sink.close().await {
                    shared.borrow_mut().fail(error);
                }
                drop(ended);
                return given;
            }
        }
        let writer = shared.borrow_mut().writer.take();
        wake_all(writer);
    }
}

fn poll_work(shared: &Rc<Shared>, cx: &mut Context<'_>) -> Poll<Work> {
    let mut state = shared.borrow_mut();
    if state.error.is_none() {
        if state.is_writable() {
            return Poll::Ready(Work::Write);
        }
        if state.sync.is_due() {
            return Poll::Ready(Work::Sync(state.sync.to));
        }
    }
    if state.end != End::No {
        return Poll::Ready(Work::End(state.end));
    }
    let previous = state.pump.replace(cx.waker().clone());
    drop(state);
    drop(previous);
    Poll::Pending
}

/// Writes the bytes in the queue, and returns when all of them are written or the sink fails.
async fn write_batch<S: AsyncWrite>(
    sink: &mut S,
    shared: &Rc<Shared>,
    batch: &mut Vec<Slice<Block>>,
) {
    let range = take_parts(&mut shared.borrow_mut().queue, batch);
    if let Some(range) = range {
        return send_file(sink, shared, range).await;
    }
    while !batch.is_empty() {
        let result = if batch.len() == 1 {
            let slice = batch.pop().expect("there is one");
            let (result, slice) = sink.write(slice).await;
            batch.push(slice);
            result
        } else {
            let (result, slices) = sink.write_vectored(std::mem::take(batch)).await;
            *batch = slices;
            result
        };
        let count = match result {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result,
        };
        let mut state = shared.borrow_mut();
        match count {
            Ok(count) => {
                let count = state.advance(batch, count);
                state.waiting -= count;
                state.written += count as u64;
            }
            Err(error) => {
                batch.clear();
                state.fail(error);
            }
        }
        // The writer learns of the new room at once.
        let writer = state.writer.take_if(|_| !batch.is_empty());
        drop(state);
        wake_all(writer);
    }
}

/// Takes the first parts out of the queue: to `batch`, or a range of a file.
fn take_parts(queue: &mut VecDeque<Part>, batch: &mut Vec<Slice<Block>>) -> Option<FileRange> {
    while batch.len() < BATCH {
        match queue.pop_front()? {
            Part::Bytes { block, range, .. } => batch.push(block.slice(range)),
            Part::File(range) if batch.is_empty() => return Some(range),
            file @ Part::File(_) => {
                queue.push_front(file);
                break;
            }
        }
    }
    None
}

/// Has the sink send the ranges of a file in the queue.
async fn send_file<S: AsyncWrite>(sink: &mut S, shared: &Rc<Shared>, range: FileRange) {
    let len = range.len();
    let (result, sent) = sink.send_range(range).await;
    let mut state = shared.borrow_mut();
    state.waiting -= sent as usize;
    state.written += sent;
    match result {
        Ok(()) if sent < len => {
            let error = "the file became shorter while it was sent";
            state.fail(io::Error::new(io::ErrorKind::UnexpectedEof, error));
        }
        Ok(()) => {}
        Err(error) => state.fail(error),
    }
}
