//! Files in use: one has a single writer, and no reader meanwhile.
//!
//! A file may be found several times: by other names of it, through followed links, in directories that are
//! mounted twice, and in those that ignore case. Written to by two fibers it would have contents of both, and
//! read while it is written to, it would be copied in part. So
//!
//! - an existing file is entered here while it is written to, and a source while it is read, if the copy goes
//!   to an existing directory. An entry whose file is in use is put aside.
//! - A file that the copy creates is not entered: nothing else could find it before, and the copy of new
//!   files costs no more for it. Its status shows that it changed after the begin of the copy. An entry that
//!   finds such a file is put aside, too.
//!
//! These entries are done one after the other, when nothing else is in progress: nothing waits for a file,
//! so nothing waits in a circle. Of several sources one is then the contents, as a whole, but not
//! always the last one, as with `cp`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use rustix::fs::Stat;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::{Copy, Spot};
use crate::options::Follow;
use crate::place::Id;
use crate::sys::lock;

/// The number of locks.
const SHARDS: u64 = 32;
/// Seconds between two file times on the coarsest file system.
const STEP_MAX: i64 = 2;

/// The files in use.
#[derive(Default)]
pub(super) struct InUse {
    shards: [Mutex<HashMap<Id, Use>>; SHARDS as usize],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// By so many fibers.
    Read(usize),
    Written,
}

/// The use of a file by a fiber, until it is dropped.
pub(super) struct Hold<'a> {
    files: &'a InUse,
    id: Id,
}

impl InUse {
    fn shard(&self, id: Id) -> &Mutex<HashMap<Id, Use>> {
        &self.shards[(id.inode() % SHARDS) as usize]
    }

    /// Begins to read a file. `None`: it is written to.
    fn read(&self, id: Id) -> Option<Hold<'_>> {
        let mut files = lock(self.shard(id));
        match files.entry(id).or_insert(Use::Read(0)) {
            Use::Read(count) => *count += 1,
            Use::Written => return None,
        }
        Some(Hold { files: self, id })
    }

    /// Begins to write to a file. `None`: it is in use.
    fn write(&self, id: Id) -> Option<Hold<'_>> {
        let mut files = lock(self.shard(id));
        if files.contains_key(&id) {
            return None;
        }
        files.insert(id, Use::Written);
        Some(Hold { files: self, id })
    }

    fn is_written(&self, id: Id) -> bool {
        lock(self.shard(id)).get(&id) == Some(&Use::Written)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut files = lock(self.files.shard(self.id));
        match files.get_mut(&self.id) {
            Some(Use::Read(count)) if *count > 1 => *count -= 1,
            _ => {
                files.remove(&self.id);
            }
        }
    }
}

/// The directories of the copy that are not complete, if a source may be one of them.
#[derive(Default)]
pub(super) struct Unfinished {
    /// Shared by those who create a directory, until it is entered here.
    creating: RwLock<()>,
    ids: Mutex<HashSet<Id>>,
}

impl Unfinished {
    /// To be called before a directory is created, and held until it is [added](Self::add).
    pub(super) fn create(&self) -> RwLockReadGuard<'_, ()> {
        self.creating.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, id: Id) {
        lock(&self.ids).insert(id);
    }

    pub(super) fn remove(&self, id: Id) {
        lock(&self.ids).remove(&id);
    }

    /// Returns whether an existing directory is one of them.
    pub(super) fn has(&self, id: Id) -> bool {
        // Another worker may have created it, and be about to enter it.
        drop(self.creating.write().unwrap_or_else(PoisonError::into_inner));
        lock(&self.ids).contains(&id)
    }
}

/// Returns the time of which a file has that changes now, on a file system with the finest times.
pub(super) fn file_time() -> Timespec {
    clock_gettime(ClockId::RealtimeCoarse)
}

/// Returns whether a file may have changed since that time.
fn changed_since(stat: &Stat, begin: &Timespec) -> bool {
    // Times that are whole seconds may have been rounded.
    let step = if stat.st_ctime_nsec == 0 { STEP_MAX } else { 0 };
    let nanoseconds = if step > 0 { i64::MAX } else { stat.st_ctime_nsec as i64 };
    (stat.st_ctime + step, nanoseconds) >= (begin.tv_sec, begin.tv_nsec)
}

impl Copy {
    /// Returns whether an entry is the only one in progress: the root, or one that was put aside.
    pub(super) fn is_alone(&self, spot: &Spot<'_>) -> bool {
        spot.folder.is_none() || self.is_last.load(Ordering::Relaxed)
    }

    /// Returns whether a source may be a part of the copy: through a link, or another mount of an existing
    /// directory.
    pub(super) fn may_be_copy(&self) -> bool {
        self.options.follow == Follow::Always || self.is_into_existing.load(Ordering::Relaxed)
    }

    /// Returns whether an entry may have changed since the begin of the copy.
    pub(super) fn changed_meanwhile(&self, stat: &Stat) -> bool {
        changed_since(stat, &self.begin)
    }

    /// Begins to read a source. `Err`: it is to be put aside.
    pub(super) fn hold_source(&self, spot: &Spot<'_>, stat: &Stat) -> Result<Option<Hold<'_>>, ()> {
        if spot.target.is_none() || self.is_alone(spot) {
            return Ok(None);
        }
        if self.may_be_copy()
            && stat.st_nlink == 1
            && (self.changed_meanwhile(stat) || self.is_marked(stat, stat))
        {
            return Err(());
        }
        // A new copy writes to no existing file of another one.
        if !self.is_into_existing.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.in_use.read(Id::of(stat)).map(Some).ok_or(())
    }

    /// Begins to write to an existing file. `Err`: the entry is to be put aside.
    pub(super) fn hold_target(
        &self,
        spot: &Spot<'_>,
        there: &Stat,
    ) -> Result<Option<Hold<'_>>, ()> {
        if self.is_alone(spot) {
            return Ok(None);
        }
        if self.is_fresh(spot, there) {
            return Err(());
        }
        self.in_use.write(Id::of(there)).map(Some).ok_or(())
    }

    /// Returns whether the existing entry may be a file that this copy has created and not completed. That
    /// has one name.
    pub(super) fn is_fresh(&self, spot: &Spot<'_>, there: &Stat) -> bool {
        there.st_nlink == 1 && self.changed_meanwhile(there) && !self.is_alone(spot)
    }

    /// Returns whether this copy is about to change the existing file.
    pub(super) fn is_changing(&self, spot: &Spot<'_>, there: &Stat) -> bool {
        !self.is_alone(spot)
            && (self.is_fresh(spot, there) || self.in_use.is_written(Id::of(there)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Returns the status of a new file.
    fn status() -> Stat {
        let path = std::env::temp_dir().join(format!(
            "sakia-in-use-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let file = File::create(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
        rustix::fs::fstat(file).unwrap()
    }

    #[test]
    fn a_file_has_readers_or_one_writer() {
        let (files, id) = (InUse::default(), Id::of(&status()));
        let readers = [files.read(id).unwrap(), files.read(id).unwrap()];
        assert!(files.write(id).is_none() && !files.is_written(id));
        let [one, other] = readers;
        drop(one);
        assert!(files.write(id).is_none());
        drop(other);
        let writer = files.write(id).unwrap();
        assert!(files.read(id).is_none() && files.write(id).is_none() && files.is_written(id));
        drop(writer);
        assert!(files.read(id).is_some());
        assert!(lock(files.shard(id)).is_empty());
    }

    #[test]
    fn a_directory_that_is_being_created_is_waited_for() {
        let (unfinished, id) = (Unfinished::default(), Id::of(&status()));
        std::thread::scope(|scope| {
            let creating = unfinished.create();
            let (begins, begun) = std::sync::mpsc::channel();
            let unfinished = &unfinished;
            let has = scope.spawn(move || {
                begins.send(()).unwrap();
                unfinished.has(id)
            });
            begun.recv().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            unfinished.add(id);
            drop(creating);
            assert!(has.join().unwrap());
        });
        unfinished.remove(id);
        assert!(!unfinished.has(id));
    }

    #[test]
    fn changes_are_told_from_older_ones() {
        let begin = file_time();
        let mut stat = status();
        assert!(changed_since(&stat, &begin));
        let time = |sec, nsec| Timespec { tv_sec: sec, tv_nsec: nsec };
        (stat.st_ctime, stat.st_ctime_nsec) = (100, 5);
        assert!(changed_since(&stat, &time(100, 5)) && !changed_since(&stat, &time(100, 6)));
        assert!(changed_since(&stat, &time(99, 6)) && !changed_since(&stat, &time(101, 0)));
        stat.st_ctime_nsec = 0;
        assert!(changed_since(&stat, &time(101, 900)) && changed_since(&stat, &time(102, 900)));
        assert!(!changed_since(&stat, &time(103, 0)));
    }
}
