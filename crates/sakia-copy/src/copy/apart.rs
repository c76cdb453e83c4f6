//! Spreads directories over the disk if creating files is slow.
//!
//! ext4 places new files near their directory, and new directories near their parent. Without a journal it
//! avoids inodes deleted in the last minutes if others exist, and checks each such inode in that block group
//! whenever it needs a new one. A copy right after a deletion gets stuck in such a group, with everything
//! below its root.
//!
//! The flag `FS_TOPDIR_FL` (`chattr +T`) marks a directory as the top of unrelated ones: ext4 places new
//! directories in it where the disk is least used. While creating files is slow, the copy sets this flag on
//! directories in which it is about to create others, for as long as it copies to them. The slow phase is
//! soon over then: entries below a spread directory stay with it. With a journal, or on another file system,
//! nothing is spread: creating files may be slow there for another reason, and neighbors are faster to read.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{IFlags, major, minor};

use super::Learned;
use crate::crew::Tally;
use crate::pace::Making;
use crate::place::OpenDir;
use crate::{kernel, sys};

/// The placement of a directory of the copy, and of the directories in it.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// It was spread, or is in a spread directory.
    is_apart: bool,
    /// This copy has created it, so its flags are this copy's, too.
    is_ours: bool,
    /// It has the flag, which must be cleared at the end.
    is_top: AtomicBool,
}

impl Apart {
    /// Returns the state of a directory of the copy. A killed copy may have left the flag on its directory.
    pub(super) fn new(is_apart: bool, is_made: bool, was_unfinished: bool) -> Self {
        Self { is_apart, is_ours: is_made, is_top: was_unfinished.into() }
    }

    /// Makes ext4 place a directory that is about to be created in this one where creation is faster.
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
                // Otherwise another program set it, or another worker just now.
                if !flags.contains(IFlags::TOPDIR) {
                    self.is_top.store(true, Ordering::Relaxed);
                }
                kernel::ioctl_setflags(dir, flags | IFlags::TOPDIR)
            });
            if set.is_err() {
                // The directory is gone or refuses flags; spreading is optional.
                return self.is_apart;
            }
        }
        tally.counters.apart += 1;
        true
    }

    /// Returns whether it has to be [ended](Self::end).
    pub(super) fn is_top(&self) -> bool {
        self.is_top.load(Ordering::Relaxed)
    }

    /// Clears the flag: no more entries will be created in the directory.
    pub(super) fn end(dir: &OpenDir, tally: &mut Tally) -> sys::Result<()> {
        tally.counters.plain_calls += 2;
        let Ok(flags) = kernel::ioctl_getflags(dir) else { return Ok(()) };
        if !flags.contains(IFlags::TOPDIR) {
            return Ok(());
        }
        sys::retry(|| kernel::ioctl_setflags(dir, flags - IFlags::TOPDIR))
    }
}

/// Returns whether a device has an ext4 without a journal, as far as the kernel reports it.
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

        // A directory in a spread one counts as spread, and stays with it unless creation is slow again.
        let apart = Apart::new(true, true, false);
        assert!(put(&apart, Making::Quick));
        assert!(put(&apart, Making::WasSlow));
        assert_eq!(tally.counters.apart, 1);
        Apart::end(&dir, tally).unwrap();
        assert!(!top());
        assert!(apart.put(&dir, device, Making::Slow, &learned, tally));
        assert!(top() && apart.is_top());

        // Another program's flag is not cleared.
        let other = Apart::new(false, true, false);
        assert!(other.put(&dir, device, Making::Slow, &learned, tally));
        assert!(!other.is_top());
    }
}
