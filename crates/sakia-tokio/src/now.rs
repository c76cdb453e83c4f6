//! What is done where it is asked for, since it takes no wait.
//!
//! Reads and writes refuse to wait (`RWF_NOWAIT`), at the position that the kernel has of the open file. On
//! file systems in memory, which cannot be asked to, they are plain calls. What a file grants is learned from
//! what it answers.
//!
//! Source: `preadv2(2)`, `openat2(2)`.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, SeekFrom, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use sakia::Engine;

/// The offset that stands for the position of the open file.
const AT_POSITION: u64 = u64::MAX;
/// Bytes that are read at once where it is asked for: the copy alone holds up others there.
pub(crate) const READ_MAX: usize = 256 << 10;
/// Bytes beyond which nothing is written where it is asked for: it can be done elsewhere while the caller
/// goes on, who waits for a read in any case.
pub(crate) const WRITE_MAX: usize = 64 << 10;

/// Whether reads, or writes, of an open file are done where they are asked for: learned from what they come
/// to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heat {
    /// Nothing was asked for yet.
    Unknown,
    /// The last one was done.
    Warm,
    /// The next so many do not try.
    Cold(u8),
    /// It is in memory, where plain calls do not wait.
    Memory,
    /// It cannot be asked not to wait, or bypasses the cache.
    Never,
}

/// How a call is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It refuses to wait.
    NoWait,
    /// It would wait, and need not.
    Plain,
}

impl Heat {
    /// Calls that do not try after one that would have waited.
    const SKIPS: u8 = 15;

    /// Reads what is there to be had without waiting. `None` where that may be less than there is.
    pub(crate) fn read(&mut self, file: &File, buf: &mut [u8]) -> Option<io::Result<usize>> {
        let manner = self.manner(file, OFlags::empty())?;
        let parts = &mut [IoSliceMut::new(buf)];
        let result = self.transfer(file, manner, |manner| match manner {
            Manner::NoWait => rustix::io::preadv2(file, parts, AT_POSITION, ReadWriteFlags::NOWAIT),
            Manner::Plain => rustix::io::readv(file, parts),
        })?;
        match result {
            // The end of the file, or of what was there to be had without waiting.
            Ok(0) if *self != Self::Memory && !buf.is_empty() => is_at_end(file).then_some(Ok(0)),
            result => Some(result),
        }
    }

    /// Writes as much as takes no wait. `None` where that may be nothing.
    pub(crate) fn write(
        &mut self,
        file: &File,
        parts: &[IoSlice<'_>],
    ) -> Option<io::Result<usize>> {
        // Where a write would be done in two parts, others could append between these.
        let manner = self.manner(file, OFlags::APPEND)?;
        self.transfer(file, manner, |manner| match manner {
            Manner::NoWait => {
                rustix::io::pwritev2(file, parts, AT_POSITION, ReadWriteFlags::NOWAIT)
            }
            Manner::Plain => rustix::io::writev(file, parts),
        })
    }

    /// How a call is made, if it is: not on files that wait by their flags, or have one of `excluded`.
    fn manner(&mut self, file: &File, excluded: OFlags) -> Option<Manner> {
        match self {
            Self::Warm | Self::Cold(0) => Some(Manner::NoWait),
            Self::Memory => Some(Manner::Plain),
            Self::Never => None,
            Self::Cold(left) => {
                *left -= 1;
                None
            }
            Self::Unknown => {
                let waits = OFlags::DIRECT | OFlags::SYNC | OFlags::DSYNC | excluded;
                let flags = rustix::fs::fcntl_getfl(file).unwrap_or(OFlags::DIRECT);
                *self = if flags.intersects(waits) { Self::Never } else { Self::Warm };
                (*self == Self::Warm).then_some(Manner::NoWait)
            }
        }
    }

    /// Makes a call, and learns from it.
    fn transfer(
        &mut self,
        file: &File,
        manner: Manner,
        mut call: impl FnMut(Manner) -> rustix::io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        match call(manner) {
            Ok(count) => {
                if manner == Manner::NoWait {
                    *self = Self::Warm;
                }
                Some(Ok(count))
            }
            Err(Errno::AGAIN) => {
                *self = Self::Cold(Self::SKIPS);
                None
            }
            Err(Errno::INTR) => None,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => {
                if manner == Manner::Plain || !is_in_memory(file) {
                    *self = Self::Never;
                    return None;
                }
                *self = Self::Memory;
                call(Manner::Plain).ok().map(Ok)
            }
            Err(error) => Some(Err(error.into())),
        }
    }
}

/// Whether a file is one of a file system in memory, or of memory alone: only these know of seals.
fn is_in_memory(file: &File) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok()
}

/// Whether a regular file has nothing after its position. Only for files whose reads can refuse to wait:
/// these say at once how long they are.
#[cold]
fn is_at_end(file: &File) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    is_regular && rustix::fs::tell(file).is_ok_and(|position| position >= size)
}

/// Opens a regular file to read it, if the caches know it.
pub(crate) fn open_to_read(path: &Path) -> Option<io::Result<File>> {
    // Only where the engine knows that no other machine is to be asked.
    let place = match Engine::global().ok()?.try_lookup(path, true)? {
        Ok(place) => place,
        Err(error) => return Some(Err(error)),
    };
    let expected = rustix::fs::fstat(&place).ok()?;
    if FileType::from_raw_mode(expected.st_mode) != FileType::RegularFile {
        return None;
    }
    // What is at that path may be another one by now, and a FIFO even.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::empty();
    let file = match rustix::fs::openat2(CWD, path, flags, mode, ResolveFlags::CACHED) {
        Ok(file) => file,
        Err(Errno::AGAIN | Errno::INTR) => return None,
        Err(error) => return Some(Err(error.into())),
    };
    let opened = rustix::fs::fstat(&file).ok()?;
    if (opened.st_dev, opened.st_ino) != (expected.st_dev, expected.st_ino) {
        return None;
    }
    rustix::fs::fcntl_setfl(&file, OFlags::empty()).ok()?;
    Some(Ok(file.into()))
}

/// Whether what is done with an open file ends by itself: whether it is on a device of this machine, or in
/// memory. Asks no other machine.
pub(crate) fn ends_by_itself(file: &File) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(statx) = rustix::fs::statx(file, c"", flags, StatxFlags::TYPE) else { return false };
    // Without a device it may be anywhere.
    let is_local = statx.stx_dev_major != 0 || is_in_memory(file);
    is_local && ends(FileType::from_raw_mode(statx.stx_mode.into()))
}

/// Whether opening a path ends by itself. Asks the file system.
pub(crate) fn opens_by_itself(path: &Path) -> bool {
    rustix::fs::stat(path).map_or(true, |stat| ends(FileType::from_raw_mode(stat.st_mode)))
}

fn ends(kind: FileType) -> bool {
    matches!(
        kind,
        FileType::RegularFile | FileType::Directory | FileType::BlockDevice | FileType::Symlink
    )
}

/// Moves a file's position by `count` bytes back. `false` if it has none.
pub(crate) fn step_back(file: &File, count: usize) -> io::Result<bool> {
    let back = -i64::try_from(count).expect("no buffer is that large");
    match rustix::fs::seek(file, SeekFrom::Current(back)) {
        Ok(_) => Ok(true),
        Err(Errno::SPIPE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
