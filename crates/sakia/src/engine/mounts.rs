//! The mounts that another machine or process serves, which may never answer.
//!
//! Callers' threads do not touch files on such mounts. The mount table is read when an engine begins, and
//! again whenever it has changed, which a task on one of the engine's threads watches. Without `/proc` no
//! such mounts are known.
//!
//! A mount made a moment ago may not be known yet: then a caller waits for its server.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, TryLockError};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use sakia_driver::{PollEvents, RemoteMounts};

use crate::executor::current;

/// The contents of the table of mounts.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    /// Set if any mount is remote; read without the lock.
    has_remote: AtomicBool,
    /// The remote mounts.
    remote: RwLock<RemoteMounts>,
}

impl Mounts {
    /// Returns the mounts as they are now.
    pub(super) fn new() -> Self {
        let mounts = Self::default();
        mounts.read();
        mounts
    }

    fn read(&self) {
        self.set(RemoteMounts::read());
    }

    fn set(&self, remote: RemoteMounts) {
        let has_remote = !remote.is_empty();
        *self.remote.write().unwrap_or_else(PoisonError::into_inner) = remote;
        self.has_remote.store(has_remote, Ordering::Release);
    }

    /// Reads the table again whenever it has changed. Runs on a thread of the engine; ends when the table
    /// cannot be watched.
    ///
    /// # Errors
    /// As `open(2)` and `poll(2)`.
    pub(super) async fn watch(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let table = rustix::fs::open(c"/proc/self/mountinfo", flags, Mode::empty())?;
        let driver = current().driver.handle().clone();
        let table = current().driver.adopt(table);
        loop {
            // The next poll reports changes from here on.
            let told = driver.poll(&table, PollEvents::PRIORITY);
            self.read();
            told.await?;
        }
    }

    /// Returns whether there is a remote mount, so that lookups of paths must not touch it.
    #[inline]
    pub(super) fn has_remote(&self) -> bool {
        self.has_remote.load(Ordering::Acquire)
    }

    /// Returns whether the file at this path may be on a remote mount, links aside.
    #[inline]
    pub(super) fn may_hold(&self, path: &Path) -> bool {
        self.has_remote() && self.holds(path)
    }

    #[cold]
    fn holds(&self, path: &Path) -> bool {
        self.ask(|remote| remote.may_hold(path, || std::env::current_dir().ok()))
    }

    /// Returns whether an open file is on a remote mount.
    #[inline]
    pub(super) fn has_file(&self, file: BorrowedFd<'_>) -> bool {
        self.has_remote() && self.has_device_of(file)
    }

    #[cold]
    fn has_device_of(&self, file: BorrowedFd<'_>) -> bool {
        // Attributes that need a request to a server are left out.
        let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let Ok(stat) = rustix::fs::statx(file, c"", at, StatxFlags::TYPE) else { return false };
        let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        self.ask(|remote| remote.has_device(device))
    }

    /// Answers a question. While the table is being replaced the answer is yes, and so it always is in a
    /// child that was forked meanwhile.
    fn ask(&self, question: impl FnOnce(&RemoteMounts) -> bool) -> bool {
        match self.remote.try_read() {
            Ok(remote) => question(&remote),
            Err(TryLockError::Poisoned(remote)) => question(&remote.into_inner()),
            Err(TryLockError::WouldBlock) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use sakia_driver::MountTable;

    use super::*;

    #[test]
    fn paths_that_lead_there_are_known_by_their_letters() {
        let mounts = Mounts::default();
        assert!(!mounts.may_hold(Path::new("/net/a")) && !mounts.may_hold(Path::new("../a")));
        let table = MountTable::parse(b"31 28 0:50 / /net rw - nfs4 host:/export rw\n");
        mounts.set(table.into());
        for (path, expected) in
            [("/net", true), ("/net/a", true), ("/network", false), ("a", false), ("/a/../b", true)]
        {
            assert_eq!(mounts.may_hold(Path::new(path)), expected, "{path}");
        }
        assert!(!mounts.has_file(std::io::stdin().as_fd()));
    }
}
