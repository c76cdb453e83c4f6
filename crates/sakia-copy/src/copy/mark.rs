//! The mode of entries that are not complete.
//!
//! Only the owner can use such an entry, and no program creates one for itself: the sticky bit has no
//! meaning for files. So this mode identifies the remains of a killed copy. Links and other special files
//! have no mark: see [`stage`](super::stage).

use rustix::fs::{FileType, Stat};

use crate::sys;

/// A file with missing contents.
pub(super) const FILE: u32 = 0o1200;
/// A directory whose final mode is set when it is complete.
pub(super) const DIRECTORY: u32 = 0o1700;
/// The owner's rights, which a umask may have taken from a mark.
const OWNER: u32 = 0o700;

/// Returns whether an entry has such a mode.
pub(super) fn has_mark(stat: &Stat) -> bool {
    let mode = stat.st_mode & sys::PERMISSIONS;
    match sys::kind(stat) {
        FileType::RegularFile => mode == FILE || mode == FILE & !OWNER,
        FileType::Directory => mode & !OWNER == DIRECTORY & !OWNER,
        _ => false,
    }
}
