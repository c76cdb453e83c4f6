//! What has no size and no offsets: FIFOs and devices that are read, or written to since the caller has
//! named them. Both may wait for another program, and so they are left to the blocking pool.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::content::go_on;
use super::entry::Outcome;
use super::existing::{directory, is_directory};
use super::{Copy, EntryError, Result, Spot};
use crate::crew::Fiber;
use crate::options::{Follow, Reflink};
use crate::place::OpenDir;
use crate::{kernel, sys};

/// Bytes moved at a time.
const PART: usize = 128 << 10;

impl Copy {
    /// Makes a file of what a FIFO or a device gives until its end.
    pub(super) async fn copy_stream(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
    ) -> Result<Outcome> {
        let stat = self.stat_source(spot)?;
        // Opening the source may wait for long, and take something from it.
        let kind = FileType::from_raw_mode(stat.st_mode);
        if self.is_up_to_date(spot, &stat)? {
            return Ok(Outcome::Skipped);
        }
        if self.stat_overwritten(spot, kind)?.is_some_and(|there| is_directory(&there)) {
            return Err(directory());
        }
        if spot.target.is_none() {
            fiber.tally.counts.files += 1;
            return Ok(Outcome::Copied);
        }
        let mut flags = OFlags::RDONLY | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, self.options.follow == Follow::Never);
        let opened = open(fiber, spot.source, spot.name, flags).await;
        let source = opened.map_err(EntryError::source("open"))?;
        let stat = sys::stat(&source).map_err(EntryError::source("stat"))?;
        let Some(made) = self.make(fiber, spot, &stat, false)? else {
            self.write_to_named(fiber, spot, source.as_fd()).await?;
            fiber.tally.counts.files += 1;
            return Ok(Outcome::Copied);
        };
        let moved = self.move_all(fiber, source.as_fd(), made.fd.as_fd()).await;
        fiber.tally.counts.bytes +=
            self.complete(fiber, spot, source.as_fd(), &stat, &made, moved)?;
        fiber.tally.counts.files += 1;
        Ok(Outcome::Copied)
    }

    /// Writes contents to a device or a FIFO that the caller has named, and leaves it as it is otherwise.
    pub(super) async fn write_to_named(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        source: BorrowedFd<'_>,
    ) -> Result<()> {
        let Some(target) = spot.target else {
            return Err(EntryError::target("open")(Errno::BADF.into()));
        };
        let opened = open(fiber, target, spot.to, OFlags::WRONLY | OFlags::CLOEXEC).await;
        let opened = opened.map_err(EntryError::target("open"))?;
        let moved = self.move_all(fiber, source, opened.as_fd()).await?;
        fiber.tally.counts.bytes += moved;
        Ok(())
    }

    /// Moves all bytes, and returns how many they are. If blocks must be shared that fails, since there are
    /// none, with the error that the kernel has for these files.
    async fn move_all(
        &self,
        fiber: &Fiber<Self>,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
    ) -> Result<u64> {
        if self.options.reflink == Reflink::Always {
            kernel::ioctl_ficlone(target, source)
                .map_err(|errno| EntryError::target("share blocks with")(errno.into()))?;
        }
        pump(fiber, source, target).await
    }
}

/// Does what may wait for another program, until all is to be stopped.
async fn waiting<T: Send + 'static>(
    fiber: &Fiber<Copy>,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match fiber.unless_stopped(sakia::spawn_blocking(call)).await? {
        Ok(result) => result,
        Err(error) => Err(io::Error::other(error.resume_panic())),
    }
}

async fn open(
    fiber: &Fiber<Copy>,
    dir: &Arc<OpenDir>,
    name: &std::ffi::CStr,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let (dir, name) = (Arc::clone(dir), name.to_owned());
    waiting(fiber, move || sys::open(dir.as_fd(), &name, flags)).await
}

/// Moves all bytes, and returns how many they are.
async fn pump(fiber: &Fiber<Copy>, source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<u64> {
    let owned = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
    let source = Arc::new(owned(source).map_err(EntryError::source("open"))?);
    let target = Arc::new(owned(target).map_err(EntryError::target("open"))?);
    let mut buf = vec![0; PART];
    let mut moved = 0;
    loop {
        go_on(fiber)?;
        let from = Arc::clone(&source);
        let read = waiting(fiber, move || {
            let count = sys::retry(|| kernel::read(&from, &mut buf[..]))?;
            Ok((count, buf))
        });
        let (count, bytes) = read.await.map_err(EntryError::source("read"))?;
        if count == 0 {
            return Ok(moved);
        }
        let to = Arc::clone(&target);
        let written = waiting(fiber, move || {
            let mut done = 0;
            while done < count {
                match sys::retry(|| kernel::write(&to, &bytes[done..count]))? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    more => done += more,
                }
            }
            Ok(bytes)
        });
        buf = written.await.map_err(EntryError::target("write"))?;
        moved += count as u64;
    }
}
