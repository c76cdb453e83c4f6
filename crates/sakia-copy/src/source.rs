//! Reading the source: cached data by plain calls, the rest by the runtime's ring if that takes long.

use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia::fs::{AlignedBuf, Dir, File, OpenOptions};
use sakia::io::IoBuf;
use sakia_driver::calls::is_in_memory;
use sakia_driver::{Attempt, CallMode, FileHint};

use crate::crew::{Fiber, Job};
use crate::kernel;
use crate::kernel::OwnedFd;
use crate::place::OpenDir;
use crate::sys;

/// An open file that is copied.
pub(crate) enum Source {
    Plain(OwnedFd),
    /// Owned by the runtime, since some of it was not cached. `None` only while it is lent.
    Lent(Option<File>),
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(fd) => fd.as_fd(),
            Self::Lent(Some(file)) => file.as_fd(),
            Self::Lent(None) => rustix::fs::CWD,
        }
    }
}

impl Source {
    /// Returns the file as the runtime has it.
    fn lent(&mut self) -> io::Result<&File> {
        if let Self::Plain(_) = self
            && let Self::Plain(fd) = std::mem::replace(self, Self::Lent(None))
        {
            *self = Self::Lent(Some(File::from_std(std::os::fd::OwnedFd::from(fd).into())?));
        }
        match self {
            Self::Lent(Some(file)) => Ok(file),
            _ => Err(Errno::BADF.into()),
        }
    }
}

impl<J: Job> Fiber<J> {
    /// Opens a directory for reading.
    pub(crate) async fn open_directory(
        &mut self,
        above: &Arc<OpenDir>,
        name: &CStr,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        self.tally.counters.plain_calls += 1;
        match self.open_source(above, name, flags).await? {
            Source::Plain(fd) => Ok(fd),
            Source::Lent(Some(file)) => {
                Ok(OwnedFd::from(std::os::fd::OwnedFd::from(file.into_std().await?)))
            }
            Source::Lent(None) => Err(Errno::BADF.into()),
        }
    }

    /// Opens a file for reading.
    pub(crate) async fn open_source(
        &mut self,
        above: &Arc<OpenDir>,
        name: &CStr,
        flags: OFlags,
    ) -> io::Result<Source> {
        let places = &self.crew().places;
        // Operands are paths that the ring's confined lookups do not accept.
        if above.is_current() {
            let opened = places.with_room(|| sys::open(above.as_fd(), name, flags));
            return Ok(Source::Plain(opened?));
        }
        match places.with_room(|| sys::open_now(above.as_fd(), name, flags))? {
            Some(fd) => Ok(Source::Plain(fd)),
            None => self.open_waiting(above, name, flags).await,
        }
    }

    /// Opens an entry that the caches do not have: by a plain call as long as that is quick.
    async fn open_waiting(
        &mut self,
        above: &Arc<OpenDir>,
        name: &CStr,
        flags: OFlags,
    ) -> io::Result<Source> {
        self.tally.counters.uncached_opens += 1;
        let worker = self.worker();
        if worker.opens.is_in_place() {
            let begin = Instant::now();
            let opened = self.crew().places.with_room(|| sys::open(above.as_fd(), name, flags));
            worker.opens.took(begin.elapsed());
            return Ok(Source::Plain(opened?));
        }
        self.about_to_wait();
        self.tally.counters.ring_opens += 1;
        if !flags.contains(OFlags::NOFOLLOW) {
            // A link may lead anywhere, and the ring's lookups are confined.
            let (dir, named) = (Arc::clone(above), name.to_owned());
            let open = move || sys::open(dir.as_fd(), &named, flags);
            return self.on_pool(open).await.map(Source::Plain);
        }
        let dir = Dir::lend(Arc::clone(above), "");
        let mut options = OpenOptions::new();
        options.read(true).custom_flags((flags - OFlags::RWMODE).bits().cast_signed());
        let opening = dir.open_with(sys::path(name), &options);
        let file = self.unless_stopped(opening).await?.map_err(sakia::fs::Error::into_io_error)?;
        Ok(Source::Lent(Some(file)))
    }

    /// Reads at `offset` until the range of the buffer is full or the file ends; the end is confirmed by a
    /// read unless it is at `size`. Returns the number of bytes.
    pub(crate) async fn read_range(
        &mut self,
        source: &mut Source,
        buf: &mut AlignedBuf,
        range: Range<usize>,
        offset: u64,
        size: u64,
        reads: &FileHint,
    ) -> io::Result<usize> {
        let mut done = 0;
        while done < range.len() {
            let rest = range.start + done..range.end;
            let count = self.read_at(source, buf, rest, offset + done as u64, reads).await?;
            done += count;
            if count == 0 || offset + done as u64 == size {
                break;
            }
        }
        Ok(done)
    }

    /// Reads from `offset` into `range` of the buffer. Returns 0 at the end.
    pub(crate) async fn read_at(
        &mut self,
        source: &mut Source,
        buf: &mut AlignedBuf,
        range: Range<usize>,
        offset: u64,
        reads: &FileHint,
    ) -> io::Result<usize> {
        self.tally.counters.plain_calls += 1;
        if reads.mode() == Some(CallMode::NonBlocking) {
            match kernel::read_nowait(source.as_fd(), &mut buf[range.clone()], offset)? {
                // It may mean that nothing was available without waiting.
                Attempt::Done(0) => {}
                Attempt::Done(count) => return Ok(count),
                Attempt::WouldBlock => return self.read_waiting(source, buf, range, offset).await,
                Attempt::Unsupported => {
                    reads.refused(CallMode::NonBlocking, || is_in_memory(&source));
                }
            }
        }
        match reads.mode() {
            None => self.read_waiting(source, buf, range, offset).await,
            Some(_) => Ok(sys::read_at(source.as_fd(), &mut buf[range], offset)?),
        }
    }

    async fn read_waiting(
        &mut self,
        source: &mut Source,
        buf: &mut AlignedBuf,
        range: Range<usize>,
        offset: u64,
    ) -> io::Result<usize> {
        self.about_to_wait();
        self.tally.counters.ring_reads += 1;
        let len = buf.len();
        let reading = source.lent()?.read_at(std::mem::take(buf).slice(range), offset);
        match self.unless_stopped(reading).await {
            Ok((result, slice)) => {
                *buf = slice.into_inner();
                result
            }
            Err(error) => {
                // The kernel owns the other one until it has answered.
                *buf = AlignedBuf::zeroed(len);
                Err(error)
            }
        }
    }
}
