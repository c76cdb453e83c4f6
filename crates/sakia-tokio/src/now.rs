//! What is done where it is asked for: reads that the page cache can serve, and short calls.

use std::fs::File;
use std::io::{self, IoSliceMut};

use rustix::fs::{AtFlags, FileType, OFlags, SeekFrom, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// The offset that stands for the position of the open file.
const AT_POSITION: u64 = u64::MAX;

/// Whether reads of a file find their bytes in the page cache, and can say so: learned from what they come to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heat {
    /// Nothing is known.
    Unknown,
    /// The last read found them.
    Warm,
    /// The next so many reads do not try.
    Cold(u8),
    /// It cannot be asked, or bypasses the cache.
    Never,
}

impl Heat {
    /// Reads that do not try after one that found nothing.
    const SKIPS: u8 = 15;

    /// Reads at the file's position what is there to be had without waiting. `None` where that may be less
    /// than there is.
    pub(crate) fn read(&mut self, file: &File, buf: &mut [u8]) -> Option<io::Result<usize>> {
        if !self.is_worth_a_try(file) {
            return None;
        }
        let is_empty = buf.is_empty();
        let parts = &mut [IoSliceMut::new(buf)];
        match rustix::io::preadv2(file, parts, AT_POSITION, ReadWriteFlags::NOWAIT) {
            // The end of the file, or of what was there to be had without waiting.
            Ok(0) if !is_empty => is_at_end(file).then_some(Ok(0)),
            Ok(count) => {
                *self = Self::Warm;
                Some(Ok(count))
            }
            Err(Errno::AGAIN) => {
                *self = Self::Cold(Self::SKIPS);
                None
            }
            Err(Errno::INTR) => None,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => {
                *self = Self::Never;
                None
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    fn is_worth_a_try(&mut self, file: &File) -> bool {
        match self {
            Self::Warm | Self::Cold(0) => true,
            Self::Never => false,
            Self::Cold(left) => {
                *left -= 1;
                false
            }
            Self::Unknown => {
                let bypasses = |flags: OFlags| flags.contains(OFlags::DIRECT);
                let is_cached = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| !bypasses(flags));
                *self = if is_cached { Self::Warm } else { Self::Never };
                is_cached
            }
        }
    }
}

/// Whether a regular file has nothing after its position. Only for files whose reads can refuse to wait:
/// these say at once how long they are.
fn is_at_end(file: &File) -> bool {
    let position = rustix::fs::tell(file);
    let size = rustix::fs::fstat(file).map(|stat| {
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_regular.then_some(stat.st_size)
    });
    match (position, size) {
        (Ok(position), Ok(Some(size))) => u64::try_from(size).is_ok_and(|size| position >= size),
        _ => false,
    }
}

/// Whether what is done with a file ends by itself. Asks no other machine.
pub(crate) fn ends_by_itself(file: &File) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(statx) = rustix::fs::statx(file, c"", flags, StatxFlags::TYPE) else { return true };
    ends(FileType::from_raw_mode(statx.stx_mode.into()))
}

/// Whether opening a path ends by itself. Asks the file system.
pub(crate) fn opens_by_itself(path: &std::path::Path) -> bool {
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
