//! The mode of what is not complete.
//!
//! Nobody but its owner can use such an entry, and no program makes one for itself: the sticky bit means
//! nothing for files. So a copy that was killed is known by it.

use rustix::fs::{FileType, Stat};

use crate::sys;

/// Of a file whose contents are not all there.
pub(super) const FILE: u32 = 0o1200;
/// Of a directory that gets another mode when it is complete.
pub(super) const DIRECTORY: u32 = 0o1700;

/// Whether a copy that was killed left it.
pub(super) fn is_unfinished(stat: &Stat, user: u32) -> bool {
    let mode = stat.st_mode & sys::PERMISSIONS;
    stat.st_uid == user
        && match sys::kind(stat) {
            FileType::RegularFile => mode == FILE,
            FileType::Directory => mode == DIRECTORY,
            _ => false,
        }
}
