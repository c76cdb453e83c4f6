//! Contents: shared blocks if possible, copied within the kernel, or through a buffer; holes stay holes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, Stat};
use rustix::io::{Errno, retry_on_intr};
use sakia::fs::AlignedBuf;

use super::file::SMALL;
use super::{At, Copy, EntryError, Learned, Result, Spot};
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
        let mut run = Run {
            copy: self,
            spot,
            source,
            target: target.as_fd(),
            buf,
            position: 0,
            part: PART_FIRST,
            told: 0,
            is_large: sys::size(stat) >= SMALL,
        };
        let copied = if self.options.sparse == Sparse::Auto && self.has_holes(stat) {
            run.sparse(sys::size(stat)).await
        } else {
            match run.range(0, None).await {
                Ok(end) if self.options.sparse == Sparse::Always => {
                    truncate(target.as_fd(), end).map(|()| end)
                }
                result => result,
            }
        };
        let told = run.told;
        match &copied {
            Ok(end) => spot.fiber.tally.counts.bytes += end.saturating_sub(told),
            Err(_) => spot.fiber.crew().progress.take_back_bytes(told),
        }
        copied
    }
}

/// The copy of one file's contents.
struct Run<'a, 'b> {
    copy: &'a Copy,
    spot: &'a mut Spot<'b>,
    source: &'a mut Source,
    target: BorrowedFd<'a>,
    buf: &'a mut AlignedBuf,
    /// The target's own file position.
    position: u64,
    /// The size of the kernel's next part.
    part: usize,
    /// The bytes reported to the progress.
    told: u64,
    /// Copying it takes longer than creating it.
    is_large: bool,
}

/// The system call that moves the contents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `copy_file_range(2)`, with which file systems copy internally.
    Range,
    /// `sendfile(2)`: between page caches.
    Send,
    Buffer,
}

impl Run<'_, '_> {
    /// Copies a file that had `size` bytes, without its holes.
    async fn sparse(&mut self, mut size: u64) -> Result<u64> {
        let mut offset = 0;
        while offset < size {
            self.spot.fiber.tally.counters.plain_calls += 2;
            let begin = match kernel::seek(self.source.as_fd(), SeekFrom::Data(offset)) {
                // Only a hole is left, or the file became shorter.
                Err(Errno::NXIO) => {
                    let end = kernel::seek(self.source.as_fd(), SeekFrom::End(0));
                    size = size.min(end.at_source("seek")?);
                    break;
                }
                // The file system does not report holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) if offset == 0 => {
                    return self.range(0, None).await;
                }
                begin => begin.at_source("seek")?,
            };
            let end = kernel::seek(self.source.as_fd(), SeekFrom::Hole(begin)).at_source("seek")?;
            let reached = self.range(begin, Some(end)).await?;
            if reached < end {
                // The file became shorter.
                return Ok(reached);
            }
            offset = end;
        }
        truncate(self.target, size)?;
        Ok(size.max(offset))
    }

    /// Copies from `offset` to `end`, or to the end of the file. Returns the end of the copied range.
    async fn range(&mut self, mut offset: u64, end: Option<u64>) -> Result<u64> {
        let mut way = self.first_way(offset);
        loop {
            self.spot.fiber.go_on().at_source("copy")?;
            if self.is_large {
                self.spot.fiber.copying_large();
            }
            let left = end.map_or(u64::MAX, |end| end - offset);
            if left == 0 {
                return Ok(offset);
            }
            let count = match way {
                Way::Buffer => Some(self.by_buffer(offset, left).await?),
                way => self.by_kernel(way, offset, left)?,
            };
            match count {
                Some(0) => return Ok(offset),
                Some(count) => {
                    offset += count;
                    self.told += count;
                    self.spot.fiber.crew().progress.add_bytes(count);
                }
                None if way == Way::Range => way = Way::Send,
                None => way = Way::Buffer,
            }
            sakia::yield_now().await;
        }
    }

    /// Returns the best way that was not refused. For uncached contents the kernel would wait for a disk.
    fn first_way(&mut self, offset: u64) -> Way {
        let is_refused = |refused: &AtomicBool| refused.load(Ordering::Relaxed);
        if self.copy.options.sparse == Sparse::Always || !self.is_cached(offset) {
            Way::Buffer
        } else if !is_refused(&self.spot.learned.no_range)
            && self.copy.options.reflink != Reflink::Never
        {
            // Some file systems share blocks for it.
            Way::Range
        } else if !is_refused(&self.spot.learned.no_send) {
            Way::Send
        } else {
            Way::Buffer
        }
    }

    /// Returns whether the page cache has the contents at `offset`; otherwise the kernel's own copy would
    /// wait for a disk.
    fn is_cached(&mut self, offset: u64) -> bool {
        let mut byte = [0];
        self.spot.fiber.tally.counters.plain_calls += 1;
        !matches!(sys::read_now(self.source.as_fd(), &mut byte, offset), Ok(sys::Attempt::Waits))
    }

    /// Copies within the kernel. `None` if that is impossible between these files; a refusal that holds for
    /// all files of these file systems is remembered.
    fn by_kernel(&mut self, way: Way, offset: u64, left: u64) -> Result<Option<u64>> {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(self.part);
        if way == Way::Send && self.position != offset {
            self.spot.fiber.tally.counters.plain_calls += 1;
            if kernel::seek(self.target, SeekFrom::Start(offset)).is_err() {
                return Ok(None);
            }
        }
        self.spot.fiber.tally.counters.plain_calls += 1;
        let begin = Instant::now();
        let (source, mut from, mut to) = (self.source.as_fd(), offset, offset);
        let copied = retry_on_intr(|| match way {
            Way::Send => kernel::sendfile(self.target, source, Some(&mut from), len),
            _ => kernel::copy_file_range(source, Some(&mut from), self.target, Some(&mut to), len),
        });
        self.took(begin.elapsed());
        let count = match copied {
            // Files without a size return 0 here on some file systems, such as `/proc`.
            Ok(0) if offset == 0 => None,
            Ok(count) => Some(count as u64),
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let Learned { no_range, no_send, .. } = self.spot.learned;
                let refused = if way == Way::Send { no_send } else { no_range };
                refused.store(true, Ordering::Relaxed);
                None
            }
            // Reading and writing will show which of the two files an error is about.
            Err(Errno::INVAL | Errno::PERM | Errno::TXTBSY | Errno::BADF | Errno::IO) => None,
            Err(errno) => return Err(EntryError::target("write", errno)),
        };
        if way == Way::Send {
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
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(self.buf.len());
        let (source, reads) = (&mut *self.source, &self.spot.learned.reads);
        let count = self.spot.fiber.read_at(source, self.buf, 0..len, offset, reads).await;
        let count = count.at_source("read")?;
        self.spot.fiber.tally.counters.plain_calls += 1;
        let mut done = 0;
        for bytes in self.buf[..count].chunks(PART_MAX) {
            self.spot.fiber.go_on().at_source("copy")?;
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
