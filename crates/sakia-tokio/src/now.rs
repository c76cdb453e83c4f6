//! Checks for inline work.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, SeekFrom, StatxFlags};
use rustix::io::Errno;
use sakia_driver::calls::is_in_memory;

/// Returns whether operations on an open file end by themselves: it is on a local device, or in memory.
/// Involves no other machine.
pub(crate) fn ends_by_itself(file: &File) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(statx) = rustix::fs::statx(file, c"", flags, StatxFlags::TYPE) else { return false };
    // Without a device it may be remote.
    let is_local = statx.stx_dev_major != 0 || is_in_memory(file);
    is_local && ends(FileType::from_raw_mode(statx.stx_mode.into()))
}

/// Returns whether opening a path ends by itself, by asking the file system.
pub(crate) fn opens_by_itself(path: &Path) -> bool {
    rustix::fs::stat(path).map_or(true, |stat| ends(FileType::from_raw_mode(stat.st_mode)))
}

fn ends(kind: FileType) -> bool {
    matches!(
        kind,
        FileType::RegularFile | FileType::Directory | FileType::BlockDevice | FileType::Symlink
    )
}

/// Moves a file's position back by `count` bytes. Returns `false` if it has no position.
pub(crate) fn step_back(file: &File, count: usize) -> io::Result<bool> {
    let back = -i64::try_from(count).expect("no buffer is that large");
    match rustix::fs::seek(file, SeekFrom::Current(back)) {
        Ok(_) => Ok(true),
        Err(Errno::SPIPE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
