//! Contents: shared blocks if possible, copied within the kernel, or through a buffer; holes stay holes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, Stat};
use rustix::io::{Errno, retry_on_intr};
use sakia::fs::AlignedBuf;
use sakia::{Permit, Resource};
use sakia_driver::Attempt;
use sakia_driver::calls::is_in_memory;

use super::file::SMALL;
use super::ranges::{Entry, Help, Ranges, Rest, Shared};
use super::{At, Copy, EntryError, Learned, Result, Spot};
use crate::crew::Fiber;
use crate::kernel::OwnedFd;
use crate::options::{Reflink, Sparse};
use crate::source::Source;
use crate::{kernel, sys};

/// The most bytes copied at a time: between parts others can run, and the copy can be stopped.
const PART_MAX: usize = 8 << 20;
/// The size of the first part; later parts are larger if that is quick.
const PART_FIRST: usize = 1 << 20;
/// The size of the smallest part.
const PART_MIN: usize = 256 << 10;
/// A part that takes longer is followed by a smaller one.
const SLOW: Duration = Duration::from_millis(50);
/// A part that takes no longer is followed by a larger one.
const QUICK: Duration = Duration::from_millis(20);
/// The buffer of a file with helpers is this many times as large: they change turns less often.
const SHARED_BUFFER: usize = 4;
/// A file with helpers is written in pieces of this size: for larger ones the kernel makes larger pages,
/// which a virtual machine may not have, as its host takes them back.
const WRITE_SHARED: usize = 128 << 10;
/// Files beside such a large one are given away before directories: those are more, and smaller, pieces of
/// work, which are better for the end.
const HUGE: u64 = 16 << 20;
/// The size of a block of zeros that can become a hole.
const BLOCK: usize = 4096;
/// The unit of `st_blocks` in bytes.
const SECTOR: i64 = 512;

impl Copy {
    /// Returns whether the file may have holes that are to be kept.
    pub(super) fn has_holes(&self, stat: &Stat) -> bool {
        match self.options.sparse {
            Sparse::Auto => stat.st_blocks * SECTOR < stat.st_size && stat.st_size >= BLOCK as i64,
            Sparse::Always => true,
            Sparse::Never => false,
        }
    }

    /// Copies the contents of a file, and counts the bytes. Returns its size.
    pub(super) async fn fill_large(
        &self,
        spot: &mut Spot<'_>,
        source: &mut Source,
        target: &OwnedFd,
        stat: &Stat,
        buf: &mut AlignedBuf,
    ) -> Result<u64> {
        if self.may_share(spot) {
            spot.fiber.tally.counters.plain_calls += 1;
            match kernel::ioctl_ficlone(target, source.as_fd()) {
                Ok(()) => {
                    spot.fiber.tally.counts.bytes += sys::size(stat);
                    return Ok(sys::size(stat));
                }
                Err(errno) if self.options.reflink == Reflink::Always => {
                    return Err(EntryError::target("share blocks with", errno));
                }
                Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::NOSYS) => {
                    spot.learned.no_clone.store(true, Ordering::Relaxed);
                }
                Err(_) => {}
            }
        }
        let size = sys::size(stat);
        let has_holes = self.options.sparse == Sparse::Auto && self.has_holes(stat);
        let entry = Entry::of(spot);
        let mut run = Run {
            copy: self,
            learned: spot.learned,
            fiber: &mut *spot.fiber,
            source,
            target: target.as_fd(),
            buf,
            ranges: Ranges::new(Rest::of(size, has_holes)),
            method: None,
            can_offer: None,
            large: None,
            position: 0,
            part: PART_FIRST,
            told: 0,
            entry: (size >= SMALL).then_some(entry),
            is_huge: size >= HUGE,
        };
        let copied = run.all().await;
        let told = run.told;
        drop(run);
        match &copied {
            Ok(end) => spot.fiber.tally.counts.bytes += end.saturating_sub(told),
            Err(_) => spot.fiber.crew().progress.take_back_bytes(told),
        }
        copied
    }

    /// Copies ranges of a file that another fiber has created.
    pub(super) async fn help_with(&self, fiber: &mut Fiber<Self>, shared: &Arc<Shared>) {
        let Some((files, help)) = Help::begin(shared) else { return };
        fiber.begin_part(shared.place(), &shared.name);
        let nothing = Learned::default();
        let folder = shared.folder.as_ref();
        let mut source = Source::Plain(files.source);
        let mut buf = std::mem::take(&mut fiber.kit.buf);
        let mut run = Run {
            copy: self,
            learned: folder.map_or(&nothing, |folder| &folder.facts.target.learned),
            fiber: &mut *fiber,
            source: &mut source,
            target: files.target.as_fd(),
            buf: &mut buf,
            ranges: help.ranges(),
            method: None,
            can_offer: None,
            large: None,
            position: 0,
            part: PART_FIRST,
            told: 0,
            entry: None,
            is_huge: false,
        };
        let result = run.parts().await;
        let told = run.told;
        drop(run);
        fiber.kit.buf = buf;
        // Before the file gets its attributes: some are set again by the last close.
        drop((source, files.target));
        help.end(result, told);
    }
}

/// The copy of one file's contents, or of some of its ranges.
struct Run<'a> {
    copy: &'a Copy,
    learned: &'a Learned,
    fiber: &'a mut Fiber<Copy>,
    source: &'a mut Source,
    target: BorrowedFd<'a>,
    buf: &'a mut AlignedBuf,
    ranges: Ranges,
    /// The method of the last range, and its end.
    method: Option<(Method, u64)>,
    /// Helpers are of use, if known.
    can_offer: Option<bool>,
    /// A larger buffer for a file with helpers.
    large: Option<(AlignedBuf, Permit)>,
    /// The target's own file position.
    position: u64,
    /// The size of the kernel's next part.
    part: usize,
    /// The bytes reported to the progress.
    told: u64,
    /// The name of a file whose copy takes longer than its creation: while it is copied, other workers may
    /// take the rest of its directory, or some of its ranges. `None`: another one, or a helper's.
    entry: Option<Entry<'a>>,
    is_huge: bool,
}

/// The system call that moves the contents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    /// `copy_file_range(2)`, with which file systems copy internally.
    Range,
    /// `sendfile(2)`: between page caches.
    Send,
    Buffer,
}

impl Run<'_> {
    /// Copies all ranges, some of them by helpers. Returns the file's end.
    async fn all(&mut self) -> Result<u64> {
        let mut result = self.parts().await;
        if let Some(helpers) = self.ranges.close(&mut result)
            && !helpers.is_closed()
        {
            self.fiber.about_to_wait();
            // Nothing is sent to it: it ends with the last helper.
            helpers.recv().await.ok();
        }
        let (rest, told, shared) = self.ranges.outcome();
        self.told += told;
        result.and(shared)?;
        let end = rest.reached();
        // It may have grown.
        let end = if rest.is_short { end } else { self.range(end, None).await? };
        // A hole may be the last part, and a helper may have copied more of a file that became shorter.
        if rest.has_holes || rest.is_short || self.copy.options.sparse == Sparse::Always {
            truncate(self.target, end)?;
        }
        Ok(end)
    }

    /// Copies ranges until none is left.
    async fn parts(&mut self) -> Result<()> {
        loop {
            let (most, tally) = (self.part as u64, &mut self.fiber.tally);
            let range = self.ranges.take(most, self.source.as_fd(), tally)?;
            let Some(range) = range else { return Ok(()) };
            let reached = self.range(range.start, Some(range.end)).await?;
            if reached < range.end {
                self.ranges.ends_at(reached);
            }
        }
    }

    /// Gives work to an idle worker: other files of the directory, or else ranges of this one.
    ///
    /// Only reads are done at the same time, so helpers are of use between page caches. A file system that
    /// copies a range by itself, or a disk that must be read, needs none. In memory, making pages takes most
    /// of the time, and is done under the file's lock.
    fn share(&mut self, method: Method) {
        let Self { fiber, ranges, source, target, can_offer, entry: Some(entry), .. } = self else {
            return;
        };
        let rest = || {
            let is_cached = method == Method::Send || ranges.is_shared();
            let may = is_cached && *can_offer.get_or_insert_with(|| !is_in_memory(*target));
            if may { ranges.offer(*entry, source.as_fd(), *target) } else { None }
        };
        fiber.copying_large(self.is_huge, rest);
    }

    /// Copies from `offset` to `end`, or to the end of the file. Returns the end of the copied range.
    async fn range(&mut self, mut offset: u64, end: Option<u64>) -> Result<u64> {
        let mut method = match self.method {
            Some((method, end)) if end == offset => method,
            _ => self.first_method(offset),
        };
        loop {
            let left = end.map_or(u64::MAX, |end| end - offset);
            if left == 0 {
                break;
            }
            self.fiber.go_on().at_source("copy")?;
            self.share(method);
            if self.ranges.is_shared() {
                method = Method::Buffer;
            }
            let count = match method {
                Method::Buffer => Some(self.by_buffer(offset, left).await?),
                method => self.by_kernel(method, offset, left)?,
            };
            match count {
                Some(0) => break,
                Some(count) => {
                    offset += count;
                    self.told += count;
                    self.fiber.crew().progress.add_bytes(count);
                }
                None if method == Method::Range => method = Method::Send,
                None => method = Method::Buffer,
            }
            sakia::yield_now().await;
        }
        self.method = Some((method, offset));
        Ok(offset)
    }

    /// Returns the best method that was not refused. For uncached contents the kernel would wait for a disk.
    fn first_method(&mut self, offset: u64) -> Method {
        let is_refused = |refused: &AtomicBool| refused.load(Ordering::Relaxed);
        let is_read = self.copy.options.sparse == Sparse::Always || self.ranges.is_shared();
        if is_read || !self.is_cached(offset) {
            Method::Buffer
        } else if !is_refused(&self.learned.no_range) && self.copy.options.reflink != Reflink::Never
        {
            // Some file systems share blocks for it.
            Method::Range
        } else if !is_refused(&self.learned.no_send) {
            Method::Send
        } else {
            Method::Buffer
        }
    }

    /// Returns whether the page cache has the contents at `offset`; otherwise the kernel's own copy would
    /// wait for a disk.
    fn is_cached(&mut self, offset: u64) -> bool {
        let mut byte = [0];
        self.fiber.tally.counters.plain_calls += 1;
        let attempt = kernel::read_nowait(self.source.as_fd(), &mut byte, offset);
        !matches!(attempt, Ok(Attempt::WouldBlock))
    }

    /// Copies within the kernel. `None` if that is impossible between these files; a refusal that holds for
    /// all files of these file systems is remembered.
    fn by_kernel(&mut self, method: Method, offset: u64, left: u64) -> Result<Option<u64>> {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(self.part);
        if method == Method::Send && self.position != offset {
            self.fiber.tally.counters.plain_calls += 1;
            if kernel::seek(self.target, SeekFrom::Start(offset)).is_err() {
                return Ok(None);
            }
        }
        self.fiber.tally.counters.plain_calls += 1;
        let begin = Instant::now();
        let (source, mut from, mut to) = (self.source.as_fd(), offset, offset);
        let copied = retry_on_intr(|| match method {
            Method::Send => kernel::sendfile(self.target, source, Some(&mut from), len),
            _ => kernel::copy_file_range(source, Some(&mut from), self.target, Some(&mut to), len),
        });
        self.took(begin.elapsed());
        let count = match copied {
            // Files without a size return 0 here on some file systems, such as `/proc`.
            Ok(0) if offset == 0 => None,
            Ok(count) => Some(count as u64),
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let Learned { no_range, no_send, .. } = self.learned;
                let refused = if method == Method::Send { no_send } else { no_range };
                refused.store(true, Ordering::Relaxed);
                None
            }
            // Reading and writing will show which of the two files an error is about.
            Err(Errno::INVAL | Errno::PERM | Errno::TXTBSY | Errno::BADF | Errno::IO) => None,
            Err(errno) => return Err(EntryError::target("write", errno)),
        };
        if method == Method::Send {
            self.position = offset + count.unwrap_or(0);
        }
        Ok(count)
    }

    /// Adjusts the size of the next part, so that it takes at most about 50 ms.
    fn took(&mut self, time: Duration) {
        if time > SLOW {
            self.part = (self.part / 2).max(PART_MIN);
        } else if time < QUICK {
            self.part = (self.part * 2).min(PART_MAX);
        }
    }

    async fn by_buffer(&mut self, offset: u64, left: u64) -> Result<u64> {
        if self.ranges.is_shared() && self.large.is_none() {
            let len = self.buf.len() * SHARED_BUFFER;
            let permit = self.fiber.crew().budget().try_acquire(Resource::Bytes, len as u64);
            self.large = permit.map(|permit| (AlignedBuf::zeroed(len), permit));
        }
        let buf = self.large.as_mut().map_or(&mut *self.buf, |(buf, _)| buf);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let (source, reads) = (&mut *self.source, &self.learned.reads);
        let count = self.fiber.read_at(source, buf, 0..len, offset, reads).await;
        let count = count.at_source("read")?;
        self.fiber.tally.counters.plain_calls += 1;
        let mut done = 0;
        let turn = self.ranges.turn();
        let most = if turn.is_some() { WRITE_SHARED } else { PART_MAX };
        for bytes in buf[..count].chunks(most) {
            self.fiber.go_on().at_source("copy")?;
            let written = if self.copy.options.sparse == Sparse::Always {
                write_dense(self.target, bytes, offset + done)
            } else {
                sys::write_all_at(self.target, bytes, offset + done)
            };
            written.at_target("write")?;
            done += bytes.len() as u64;
        }
        Ok(done)
    }
}

/// Writes the blocks that are not all zeros. The caller sets the file's size afterwards.
fn write_dense(target: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> io::Result<()> {
    let is_zero = |block: &&[u8]| block.iter().all(|&byte| byte == 0);
    let mut done = 0;
    let mut begin = 0;
    for block in bytes.chunks(BLOCK) {
        if is_zero(&block) {
            sys::write_all_at(target, &bytes[begin..done], offset + begin as u64)?;
            begin = done + block.len();
        }
        done += block.len();
    }
    sys::write_all_at(target, &bytes[begin..done], offset + begin as u64)
}

fn truncate(target: BorrowedFd<'_>, size: u64) -> Result<()> {
    sys::retry(|| kernel::ftruncate(target, size)).at_target("truncate")
}
