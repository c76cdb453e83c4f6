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
//! made below a directory that was put apart stays with it. Where there is a journal, or another file system,
//! nothing is put apart: making files may be slow there for another reason, and what is together is read more
//! quickly.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{IFlags, major, minor};

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
    /// Of a directory of the copy. One that a copy has left which was killed may have kept the flag.
    pub(super) fn new(is_apart: bool, is_made: bool, was_unfinished: bool) -> Self {
        Self { is_apart, is_ours: is_made, is_top: was_unfinished.into() }
    }

    /// Sees to it that a directory which is about to be made in this one is put where that takes less long.
    /// Returns whether it will be.
    pub(super) fn put(
        &self,
        dir: &OpenDir,
        device: u64,
        making: Making,
        learned: &Learned,
        tally: &mut Tally,
    ) -> bool {
        let is_slow = match making {
            Making::Quick => false,
            Making::WasSlow => !self.is_apart,
            Making::Slow => true,
        };
        if !is_slow
            || !self.is_ours
            || !*learned.needs_apart.get_or_init(|| is_without_journal(device))
        {
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
                // Nobody misses it.
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
    pub(super) fn end(dir: &OpenDir, tally: &mut Tally) -> sys::Result<()> {
        tally.counters.plain_calls += 2;
        let Ok(flags) = kernel::ioctl_getflags(dir) else { return Ok(()) };
        if !flags.contains(IFlags::TOPDIR) {
            return Ok(());
        }
        sys::retry(|| kernel::ioctl_setflags(dir, flags - IFlags::TOPDIR))
    }
}

/// Whether a device has an ext4 without a journal, as far as the kernel tells.
fn is_without_journal(device: u64) -> bool {
    let link = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let Ok(device) = fs::read_link(link) else { return false };
    let Some(name) = device.file_name() else { return false };
    let task = Path::new("/sys/fs/ext4").join(name).join("journal_task");
    fs::read_to_string(task).is_ok_and(|task| task.trim() == "<none>")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use sakia_testkit::available;
    use sakia_testkit::small_fs::SmallFs;

    use super::*;

    #[test]
    fn file_systems_without_a_journal_are_known() {
        for (has_journal, expected) in [(false, true), (true, false)] {
            let small = available!(SmallFs::ext4_in_memory(64 << 20, has_journal));
            let device = fs::metadata(small.path()).unwrap().dev();
            assert_eq!(is_without_journal(device), expected);
        }
        let small = available!(SmallFs::tmpfs(1 << 20));
        assert!(!is_without_journal(fs::metadata(small.path()).unwrap().dev()));
    }

    #[test]
    fn what_is_made_while_that_is_slow_is_put_apart() {
        let small = available!(SmallFs::ext4_in_memory(64 << 20, false));
        let device = fs::metadata(small.path()).unwrap().dev();
        let (learned, tally) = (Learned::default(), &mut Tally::default());
        let top = || {
            let dir = File::open(small.path()).unwrap();
            rustix::fs::ioctl_getflags(dir).unwrap().contains(IFlags::TOPDIR)
        };
        let dir = OpenDir::of(std::os::fd::OwnedFd::from(File::open(small.path()).unwrap()).into());
        let mut put = |apart: &Apart, making| apart.put(&dir, device, making, &learned, tally);

        let others = Apart::new(false, false, false);
        assert!(!put(&others, Making::Slow));
        let near = Apart::new(false, true, false);
        assert!(!put(&near, Making::Quick));
        assert!(!top() && !near.is_top());
        assert!(put(&near, Making::WasSlow));
        assert!(top() && near.is_top());

        // What is in a directory that was put apart is so, too, and stays with it unless that is slow again.
        let apart = Apart::new(true, true, false);
        assert!(put(&apart, Making::Quick));
        assert!(put(&apart, Making::WasSlow));
        assert_eq!(tally.counters.apart, 1);
        Apart::end(&dir, tally).unwrap();
        assert!(!top());
        assert!(apart.put(&dir, device, Making::Slow, &learned, tally));
        assert!(top() && apart.is_top());

        // Somebody else's flag is not taken back.
        let other = Apart::new(false, true, false);
        assert!(other.put(&dir, device, Making::Slow, &learned, tally));
        assert!(!other.is_top());
    }
}
