//! Contents: shared where that is possible, copied within the kernel, or by way of a buffer; holes stay
//! holes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, Stat};
use rustix::io::Errno;
use sakia::fs::AlignedBuf;

use super::entry::SMALL;
use super::{Copy, EntryError, Learned, Result, Spot};
use crate::crew::Fiber;
use crate::options::{Reflink, Sparse};
use crate::source::Source;
use crate::{kernel, stopped, sys};

/// The most bytes that are copied at a time: between them others can run, and the copy can be stopped.
const PART_MAX: usize = 8 << 20;
/// Bytes that are copied first; more where that is quick.
const PART_FIRST: usize = 1 << 20;
/// The least, however slow it is.
const PART_MIN: usize = 256 << 10;
/// A part that takes longer is followed by a smaller one.
const SLOW: Duration = Duration::from_millis(50);
/// A part that takes no longer is followed by a larger one.
const QUICK: Duration = Duration::from_millis(20);
/// What a block of zeros is, where these are to become holes.
const BLOCK: usize = 4096;
/// Bytes in a unit of `st_blocks`.
const SECTOR: i64 = 512;

impl Copy {
    /// Whether the file may have holes that are to be kept.
    pub(super) fn has_holes(&self, stat: &Stat) -> bool {
        match self.options.sparse {
            Sparse::Auto => stat.st_blocks * SECTOR < stat.st_size && stat.st_size >= BLOCK as i64,
            Sparse::Always => true,
            Sparse::Never => false,
        }
    }

    /// Copies the contents of a file, and counts their bytes. Returns its size.
    pub(super) async fn fill_large(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        source: &mut Source,
        target: &OwnedFd,
        stat: &Stat,
        buf: &mut AlignedBuf,
    ) -> Result<u64> {
        if self.may_share(spot) {
            fiber.tally.counters.plain_calls += 1;
            match kernel::ioctl_ficlone(target, source.as_fd()) {
                Ok(()) => {
                    let size = u64::try_from(stat.st_size).unwrap_or(0);
                    fiber.tally.counts.bytes += size;
                    return Ok(size);
                }
                Err(errno) if self.options.reflink == Reflink::Always => {
                    return Err(EntryError::target("share blocks with")(errno.into()));
                }
                Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::NOSYS) => {
                    spot.learned.no_clone.store(true, Ordering::Relaxed);
                }
                Err(_) => {}
            }
        }
        let mut run = Run {
            copy: self,
            fiber,
            learned: spot.learned,
            target: target.as_fd(),
            position: 0,
            part: PART_FIRST,
            told: 0,
            is_large: u64::try_from(stat.st_size).is_ok_and(|size| size >= SMALL),
        };
        let copied = if self.options.sparse == Sparse::Auto && self.has_holes(stat) {
            run.sparse(source, stat, buf).await
        } else {
            match run.range(source, 0, None, buf).await {
                Ok(end) if self.options.sparse == Sparse::Always => {
                    truncate(target.as_fd(), end).map(|()| end)
                }
                result => result,
            }
        };
        let told = run.told;
        match &copied {
            Ok(end) => fiber.tally.counts.bytes += end.saturating_sub(told),
            Err(_) => fiber.crew().progress.take_back_bytes(told),
        }
        copied
    }
}

/// Goes on, unless all is to be stopped.
pub(super) fn go_on(fiber: &Fiber<Copy>) -> Result<()> {
    if fiber.crew().is_stopped() {
        return Err(EntryError::source("copy")(stopped::error()));
    }
    Ok(())
}

/// The copy of one file's contents.
struct Run<'a> {
    copy: &'a Copy,
    fiber: &'a mut Fiber<Copy>,
    learned: &'a Learned,
    target: BorrowedFd<'a>,
    /// Where the target's own position is.
    position: u64,
    /// Bytes to be copied next by the kernel.
    part: usize,
    /// Bytes that were told to the progress.
    told: u64,
    /// Copying it takes longer than making it.
    is_large: bool,
}

/// How contents get from file to file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `copy_file_range(2)`, by which file systems copy within themselves.
    Range,
    /// `sendfile(2)`: from one page cache to the other.
    Send,
    Buffer,
}

impl Run<'_> {
    /// Copies what is no hole.
    async fn sparse(
        &mut self,
        source: &mut Source,
        stat: &Stat,
        buf: &mut AlignedBuf,
    ) -> Result<u64> {
        let mut size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut offset = 0;
        while offset < size {
            self.fiber.tally.counters.plain_calls += 2;
            let begin = match kernel::seek(source.as_fd(), SeekFrom::Data(offset)) {
                Ok(begin) => begin,
                // Nothing but a hole is left, or it became shorter.
                Err(Errno::NXIO) => {
                    let end = kernel::seek(source.as_fd(), SeekFrom::End(0));
                    size = size.min(end.map_err(|errno| EntryError::source("seek")(errno.into()))?);
                    break;
                }
                // The file system does not tell.
                Err(Errno::INVAL | Errno::OPNOTSUPP) if offset == 0 => {
                    return self.range(source, 0, None, buf).await;
                }
                Err(errno) => return Err(EntryError::source("seek")(errno.into())),
            };
            let end = kernel::seek(source.as_fd(), SeekFrom::Hole(begin))
                .map_err(|errno| EntryError::source("seek")(errno.into()))?;
            let reached = self.range(source, begin, Some(end), buf).await?;
            if reached < end {
                // It became shorter.
                return Ok(reached);
            }
            offset = end;
        }
        truncate(self.target, size)?;
        Ok(size.max(offset))
    }

    /// Copies from `offset` to `end`, or to the end of the file. Returns what it came to.
    async fn range(
        &mut self,
        source: &mut Source,
        mut offset: u64,
        end: Option<u64>,
        buf: &mut AlignedBuf,
    ) -> Result<u64> {
        let mut way = self.first_way(source, offset);
        loop {
            go_on(self.fiber)?;
            if self.is_large {
                self.fiber.copying_large();
            }
            let left = end.map_or(u64::MAX, |end| end - offset);
            if left == 0 {
                return Ok(offset);
            }
            let count = match way {
                Way::Range => self.by_range(source, offset, left),
                Way::Send => self.by_sending(source, offset, left),
                Way::Buffer => self.by_buffer(source, offset, left, buf).await.map(Some),
            };
            match count? {
                Some(0) => return Ok(offset),
                Some(count) => {
                    offset += count;
                    self.told += count;
                    self.fiber.crew().progress.add_bytes(count);
                }
                None if way == Way::Range => way = Way::Send,
                None => way = Way::Buffer,
            }
            sakia::yield_now().await;
        }
    }

    /// The best way that has not been refused. The kernel would wait for a disk.
    fn first_way(&mut self, source: &Source, offset: u64) -> Way {
        if self.copy.options.sparse == Sparse::Always || !self.is_cached(source, offset) {
            Way::Buffer
        } else if !self.learned.no_range.load(Ordering::Relaxed)
            && self.copy.options.reflink != Reflink::Never
        {
            // Some file systems share blocks to do it.
            Way::Range
        } else if !self.learned.no_send.load(Ordering::Relaxed) {
            Way::Send
        } else {
            Way::Buffer
        }
    }

    /// Whether the page cache has what is at `offset`; the kernel's own copy would wait for a disk.
    fn is_cached(&mut self, source: &Source, offset: u64) -> bool {
        let mut byte = [0];
        self.fiber.tally.counters.plain_calls += 1;
        !matches!(sys::read_now(source.as_fd(), &mut byte, offset), Ok(sys::Attempt::Waits))
    }

    /// `None` if that is not possible between these files.
    fn by_range(&mut self, source: &Source, offset: u64, left: u64) -> Result<Option<u64>> {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(self.part);
        self.fiber.tally.counters.plain_calls += 1;
        let begin = Instant::now();
        let (mut from, mut to) = (offset, offset);
        let copied = sys::retry(|| {
            let (from, to) = (Some(&mut from), Some(&mut to));
            kernel::copy_file_range(source.as_fd(), from, self.target, to, len)
        });
        self.took(begin.elapsed());
        by_kernel(copied, offset, &self.learned.no_range)
    }

    /// `None` if that is not possible between these files.
    fn by_sending(&mut self, source: &Source, offset: u64, left: u64) -> Result<Option<u64>> {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(self.part);
        if self.position != offset {
            self.fiber.tally.counters.plain_calls += 1;
            if kernel::seek(self.target, SeekFrom::Start(offset)).is_err() {
                return Ok(None);
            }
        }
        self.fiber.tally.counters.plain_calls += 1;
        let begin = Instant::now();
        let mut from = offset;
        let sent =
            sys::retry(|| kernel::sendfile(self.target, source.as_fd(), Some(&mut from), len));
        self.took(begin.elapsed());
        let sent = by_kernel(sent, offset, &self.learned.no_send)?;
        self.position = offset + sent.unwrap_or(0);
        Ok(sent)
    }

    /// A part took so long: the next one has a size that takes some 50 ms at most.
    fn took(&mut self, time: Duration) {
        if time > SLOW {
            self.part = (self.part / 2).max(PART_MIN);
        } else if time < QUICK {
            self.part = (self.part * 2).min(PART_MAX);
        }
    }

    async fn by_buffer(
        &mut self,
        source: &mut Source,
        offset: u64,
        left: u64,
        buf: &mut AlignedBuf,
    ) -> Result<u64> {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let count = self.fiber.read_at(source, buf, 0..len, offset, self.learned).await;
        let count = count.map_err(EntryError::source("read"))?;
        self.fiber.tally.counters.plain_calls += 1;
        let mut done = 0;
        for bytes in buf[..count].chunks(PART_MAX) {
            go_on(self.fiber)?;
            let written = if self.copy.options.sparse == Sparse::Always {
                write_dense(self.target, bytes, offset + done)
            } else {
                sys::write_all_at(self.target, bytes, offset + done)
            };
            written.map_err(EntryError::target("write"))?;
            done += bytes.len() as u64;
        }
        Ok(done)
    }
}

/// What the kernel's own copy came to. `None` if there is none between these files, of which it tells
/// `refused` if it is so for all others of their file systems.
fn by_kernel(copied: io::Result<usize>, offset: u64, refused: &AtomicBool) -> Result<Option<u64>> {
    match copied {
        // Some file systems say so of files that have no size, in /proc for one.
        Ok(0) if offset == 0 => Ok(None),
        Ok(count) => Ok(Some(count as u64)),
        Err(error) => {
            let is = |errno| sys::is(&error, errno);
            if [Errno::XDEV, Errno::NOSYS, Errno::OPNOTSUPP].into_iter().any(is) {
                refused.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            // Which of the two files an error is about is found out by reading and writing.
            if [Errno::INVAL, Errno::PERM, Errno::TXTBSY, Errno::BADF, Errno::IO]
                .into_iter()
                .any(is)
            {
                return Ok(None);
            }
            Err(EntryError::target("write")(error))
        }
    }
}

/// Writes the blocks that are not all zeros. The file has to get its size afterwards.
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
    sys::retry(|| kernel::ftruncate(target, size)).map_err(EntryError::target("truncate"))
}
