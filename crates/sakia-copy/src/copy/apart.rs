//! Putting directories apart from each other, where making files takes long.
//!
//! ext4 keeps what is made in a directory near that directory, and new directories near the one that they
//! are in. Without a journal it does not use an inode again that was deleted in the last minutes, if it has
//! others, and looks at each such inode in that part of the disk whenever it needs one. A copy that comes
//! right after a deletion gets stuck in such a part, with all that is below its root.
//!
//! A directory can be said to be the top of unrelated ones (`FS_TOPDIR_FL`, `chattr +T`): those made in it
//! are put where the disk is least used. So that is said, for as long as it is copied to, of directories of
//! the copy in which others are about to be made while making files takes long. It is soon over then: what is
//! made below a directory that was put apart stays with it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::IFlags;

use super::Learned;
use crate::crew::Tally;
use crate::pace::Making;
use crate::place::OpenDir;
use crate::{kernel, sys};

/// Where a directory of the copy is, and where those in it are put.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// It was put apart, or is in one that was.
    is_apart: bool,
    /// This copy has made it, so that its flags are this copy's, too.
    is_ours: bool,
    /// It has a flag that it must not keep.
    is_top: AtomicBool,
}

impl Apart {
    /// Of a directory in `above`. One that a copy has left which was killed, may have kept the flag.
    pub(super) fn new(is_apart: bool, is_made: bool, was_unfinished: bool) -> Self {
        Self { is_apart, is_ours: is_made, is_top: was_unfinished.into() }
    }

    /// Sees to it that a directory which is about to be made in this one is put where that takes less long.
    /// Returns whether it will be.
    pub(super) fn put(
        &self,
        dir: &OpenDir,
        making: Making,
        learned: &Learned,
        tally: &mut Tally,
    ) -> bool {
        let is_slow = match making {
            Making::Quick => false,
            Making::WasSlow => !self.is_apart,
            Making::Slow => true,
        };
        if !is_slow || !self.is_ours || learned.no_flags.load(Ordering::Relaxed) {
            return self.is_apart;
        }
        if !self.is_top() {
            tally.counters.plain_calls += 2;
            let set = kernel::ioctl_getflags(dir).and_then(|flags| {
                // Otherwise it was set by somebody else, or just now by another worker.
                if !flags.contains(IFlags::TOPDIR) {
                    self.is_top.store(true, Ordering::Relaxed);
                }
                kernel::ioctl_setflags(dir, flags | IFlags::TOPDIR)
            });
            if set.is_err() {
                // Other file systems do not know it, and nobody misses it.
                learned.no_flags.store(true, Ordering::Relaxed);
                return self.is_apart;
            }
        }
        tally.counters.apart += 1;
        true
    }

    /// Whether it has to be [ended](Self::end).
    pub(super) fn is_top(&self) -> bool {
        self.is_top.load(Ordering::Relaxed)
    }

    /// Nothing more will be made in it.
    pub(super) fn end(dir: &OpenDir, tally: &mut Tally) -> io::Result<()> {
        tally.counters.plain_calls += 2;
        let Ok(flags) = kernel::ioctl_getflags(dir) else { return Ok(()) };
        if !flags.contains(IFlags::TOPDIR) {
            return Ok(());
        }
        sys::retry(|| kernel::ioctl_setflags(dir, flags - IFlags::TOPDIR))
    }
}
