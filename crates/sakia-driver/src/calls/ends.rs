//! Calls that end by themselves: those for files of this machine, however long their device takes.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};
use rustix::io::Errno;

use super::is_in_memory;
use crate::decide::Lane;

/// Returns the lane of operations on an open file: the bounded one if they end by themselves, since the file
/// is on a local device, or in memory. Involves no other machine.
///
/// # Examples
/// ```
/// use sakia_driver::Lane;
/// use sakia_driver::calls::lane_of;
///
/// let (reader, _writer) = std::io::pipe()?;
/// assert_eq!(lane_of(&reader), Lane::Elastic, "the writer may never come");
/// # std::io::Result::Ok(())
/// ```
pub fn lane_of(file: impl AsFd) -> Lane {
    let Ok(statx) = statx_here(file.as_fd(), StatxFlags::TYPE) else { return Lane::Elastic };
    // Without a device it may be remote.
    let is_local = statx.stx_dev_major != 0 || is_in_memory(&file);
    let ends = is_local && ends(FileType::from_raw_mode(statx.stx_mode.into()));
    if ends { Lane::Bounded } else { Lane::Elastic }
}

/// Returns whether opening a path ends by itself, by asking the file system, which may take long.
///
/// # Examples
/// ```
/// use std::path::Path;
///
/// use sakia_driver::calls::opens_by_itself;
///
/// assert!(opens_by_itself(Path::new("Cargo.toml")));
/// assert!(opens_by_itself(Path::new("no such file")));
/// ```
pub fn opens_by_itself(path: &Path) -> bool {
    rustix::fs::stat(path).map_or(true, |stat| ends(FileType::from_raw_mode(stat.st_mode)))
}

/// Returns attributes of an open file. Those that need a request to a file server are omitted: the server may
/// never answer.
///
/// # Errors
/// As `statx(2)`.
pub(crate) fn statx_here(fd: BorrowedFd<'_>, wanted: StatxFlags) -> Result<Statx, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted)
}

fn ends(kind: FileType) -> bool {
    matches!(
        kind,
        FileType::RegularFile | FileType::Directory | FileType::BlockDevice | FileType::Symlink
    )
}
