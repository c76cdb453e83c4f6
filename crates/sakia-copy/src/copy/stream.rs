//! Files without a size and offsets: FIFOs and devices that are read, or written to if the caller has named
//! them. Both may wait for another program, so the blocking pool does the work.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags};

use super::entry::Outcome;
use super::existing::{directory, is_directory, refused};
use super::file::Opened;
use super::{At, Copy, EntryError, Result, Spot};
use crate::crew::Fiber;
use crate::kernel::OwnedFd;
use crate::options::{Follow, Reflink};
use crate::place::OpenDir;
use crate::{kernel, stopped, sys};

/// Bytes moved at a time.
const PART: usize = 128 << 10;

impl Copy {
    /// Creates a file from the contents of a FIFO or a device, until its end.
    pub(super) async fn copy_stream(&self, spot: &mut Spot<'_>) -> Result<Outcome> {
        let stat = self.stat_source(spot)?;
        // Opening the source may wait for a long time, and may consume data.
        if self.is_up_to_date(spot, &stat)? {
            return Ok(Outcome::Skipped);
        }
        if self.stat_overwritten(spot, sys::kind(&stat))?.is_some_and(|there| is_directory(&there))
        {
            return Err(directory());
        }
        if spot.target.is_some() {
            let mut flags = OFlags::RDONLY | OFlags::CLOEXEC;
            flags.set(OFlags::NOFOLLOW, self.options.follow == Follow::Never);
            let source = open(spot.fiber, spot.source, spot.name, flags).await.at_source("open")?;
            let (source, stat) = (source.as_fd(), sys::stat(&source).at_source("stat")?);
            match self.make(spot, source, &stat, false)? {
                Opened::File(made) => {
                    let moved = self.move_all(spot.fiber, source, made.fd.as_fd()).await;
                    let count = self.complete(spot, source, &stat, &made, moved)?;
                    spot.fiber.tally.counts.bytes += count;
                }
                Opened::Named => self.write_to_named(spot, source).await?,
                Opened::InUse => return Ok(Outcome::Aside),
            }
        }
        spot.fiber.tally.counts.files += 1;
        Ok(Outcome::Copied)
    }

    /// Writes contents to a device or a FIFO that the caller has named, and leaves its attributes alone.
    pub(super) async fn write_to_named(
        &self,
        spot: &mut Spot<'_>,
        source: BorrowedFd<'_>,
    ) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let opened =
            open(spot.fiber, spot.target_dir()?, spot.to, flags).await.at_target("open")?;
        let is_file = sys::kind(&sys::stat(&opened).at_target("stat")?) == FileType::RegularFile;
        if is_file {
            return Err(refused("a file has replaced it meanwhile"));
        }
        spot.fiber.tally.counts.bytes += self.move_all(spot.fiber, source, opened.as_fd()).await?;
        Ok(())
    }

    /// Moves all bytes, and returns their number. If blocks must be shared it fails, with the kernel's error
    /// for such files.
    async fn move_all(
        &self,
        fiber: &Fiber<Self>,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
    ) -> Result<u64> {
        if self.options.reflink == Reflink::Always {
            kernel::ioctl_ficlone(target, source).at_target("share blocks with")?;
        }
        let source = source.try_clone_to_owned().at_source("open")?;
        let target = target.try_clone_to_owned().at_target("open")?;
        // The pump may wait for ever; meanwhile it keeps only the files alive.
        let crew = Arc::downgrade(fiber.crew());
        let is_stopped = move || crew.upgrade().is_none_or(|crew| crew.is_stopped());
        waiting(fiber, move || Ok(pump(&source, &target, is_stopped))).await.at_source("read")?
    }
}

/// Moves all bytes, and returns their number.
fn pump(source: impl AsFd, target: impl AsFd, is_stopped: impl Fn() -> bool) -> Result<u64> {
    let mut buf = vec![0; PART];
    let mut moved = 0;
    while !is_stopped() {
        let count = sys::retry(|| kernel::read(&source, &mut buf[..])).at_source("read")?;
        if count == 0 {
            return Ok(moved);
        }
        if is_stopped() {
            break;
        }
        sys::write_all(&buf[..count], |rest| kernel::write(&target, rest)).at_target("write")?;
        moved += count as u64;
    }
    Err(EntryError::source("copy", stopped::error()))
}

/// Makes a call that may wait for another program, unless the work is stopped.
async fn waiting<T: Send + 'static>(
    fiber: &Fiber<Copy>,
    call: impl FnOnce() -> sys::Result<T> + Send + 'static,
) -> io::Result<T> {
    match fiber.unless_stopped(sakia::blocking::shared().spawn(call)).await? {
        Ok(result) => Ok(result?),
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
