//! The mode of entries that are not complete.
//!
//! Only the owner can use such an entry, and no program creates one for itself: the sticky bit has no
//! meaning for files. So this mode identifies the remains of a killed copy.

use rustix::fs::{FileType, Stat};

use crate::sys;

/// A file with missing contents.
pub(super) const FILE: u32 = 0o1200;
/// A directory whose final mode is set when it is complete.
pub(super) const DIRECTORY: u32 = 0o1700;

/// Returns whether a killed copy left it.
pub(super) fn is_unfinished(stat: &Stat, user: u32) -> bool {
    let mode = stat.st_mode & sys::PERMISSIONS;
    stat.st_uid == user
        && match sys::kind(stat) {
            FileType::RegularFile => mode == FILE,
            FileType::Directory => mode == DIRECTORY,
            _ => false,
        }
}
