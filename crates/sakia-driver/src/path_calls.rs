//! Lookups and opens by path that wait for no device and no server, for any thread.
//!
//! A cached path may still lead to a file system that another machine or process serves, which may never
//! answer. So no call is made for a path that may lead to such a mount.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, TryLockError};

use rustix::fs::{CWD, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use crate::calls::{open_cached, statx_here};
use crate::decide::Attempt;
use crate::mounts::RemoteMounts;

/// The plain calls by path that do not wait, and the mounts that they keep away from: those that another
/// machine or process serves, as [`RemoteMounts`] has them.
///
/// The table of mounts is read at the beginning and by [`read_mounts`](Self::read_mounts); a mount that was
/// made since is not known, and then a call waits for its server. Without `/proc` no such mounts are known.
///
/// # Examples
/// ```
/// use rustix::fs::OFlags;
/// use sakia_driver::PathCalls;
///
/// let calls = PathCalls::new();
/// match calls.open(c"/proc/self/comm", OFlags::RDONLY) {
///     Some(file) => println!("{:?}", file?),
///     None => println!("a thread has to open it"),
/// }
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug, Default)]
pub struct PathCalls {
    /// Set if any mount is remote; read without the lock.
    has_remote: AtomicBool,
    remote: RwLock<RemoteMounts>,
}

impl PathCalls {
    /// Reads the table of mounts.
    ///
    /// # Examples
    /// See [`PathCalls`].
    pub fn new() -> Self {
        let calls = Self::default();
        calls.read_mounts();
        calls
    }

    /// Reads the table of mounts again.
    pub fn read_mounts(&self) {
        self.set(RemoteMounts::read());
    }

    fn set(&self, remote: RemoteMounts) {
        let has_remote = !remote.is_empty();
        *self.remote.write().unwrap_or_else(PoisonError::into_inner) = remote;
        self.has_remote.store(has_remote, Ordering::Release);
    }

    #[inline]
    fn has_remote(&self) -> bool {
        self.has_remote.load(Ordering::Acquire)
    }

    /// Returns whether a call for this path may wait for a server, links aside.
    #[inline]
    pub fn may_wait(&self, path: &Path) -> bool {
        self.has_remote() && self.leads_away(path)
    }

    #[cold]
    fn leads_away(&self, path: &Path) -> bool {
        self.ask(|remote| remote.may_hold(path, || std::env::current_dir().ok()))
    }

    /// Returns whether a call for an open file may wait for a server.
    #[inline]
    pub fn may_wait_for(&self, file: BorrowedFd<'_>) -> bool {
        self.has_remote() && self.is_served(file)
    }

    #[cold]
    fn is_served(&self, file: BorrowedFd<'_>) -> bool {
        let Ok(stat) = statx_here(file, StatxFlags::TYPE) else { return false };
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

    /// Opens a path from the working directory that the dentry cache can resolve; with `O_NONBLOCK` or
    /// `O_PATH` in `flags` without waiting for another opener either. `None` if it may need a wait.
    ///
    /// # Errors
    /// As `open(2)`.
    ///
    /// # Kernel
    /// 5.12 (`RESOLVE_CACHED`); `None` below. Source: `openat2(2)`.
    ///
    /// # Examples
    /// See [`PathCalls`].
    pub fn open(&self, path: &CStr, flags: OFlags) -> Option<io::Result<OwnedFd>> {
        if self.may_wait(Path::new(OsStr::from_bytes(path.to_bytes()))) {
            return None;
        }
        // A symbolic link may lead to a remote mount.
        let has_remote = self.has_remote();
        let resolve = if has_remote { ResolveFlags::NO_SYMLINKS } else { ResolveFlags::empty() };
        match open_cached(CWD, path, flags | OFlags::CLOEXEC, resolve) {
            Err(Errno::LOOP) if has_remote => None,
            attempt => attempt.map(Attempt::done).map_err(io::Error::from).transpose(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::mounts::MountTable;

    #[test]
    fn paths_that_lead_there_are_known_by_their_letters() {
        let calls = PathCalls::default();
        assert!(!calls.may_wait(Path::new("/net/a")) && !calls.may_wait(Path::new("../a")));
        let table = MountTable::parse(b"31 28 0:50 / /net rw - nfs4 host:/export rw\n");
        calls.set(table.into());
        for (path, expected) in
            [("/net", true), ("/net/a", true), ("/network", false), ("a", false), ("/a/../b", true)]
        {
            assert_eq!(calls.may_wait(Path::new(path)), expected, "{path}");
        }
        assert!(!calls.may_wait_for(std::io::stdin().as_fd()));
    }

    /// A link that the cache has may lead to a server's mount, if there is one.
    #[test]
    fn links_are_followed_where_no_server_is() {
        let calls = PathCalls::default();
        let open = |path: &CStr| calls.open(path, OFlags::PATH).map(Result::unwrap);
        if open(c"/proc/self/comm").is_none() {
            return; // a kernel without such lookups
        }
        let table = MountTable::parse(b"31 28 0:50 / /net rw - nfs4 host:/export rw\n");
        calls.set(table.into());
        assert!(open(c"/").is_some());
        assert!(open(c"/proc/self/comm").is_none(), "`self` is a link");
        assert!(open(c"/net/a").is_none());
    }
}
