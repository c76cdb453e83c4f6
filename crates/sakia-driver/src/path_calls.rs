//! Lookups and opens by path that wait for no device and no server, for any thread.
//!
//! A cached path may still lead to a file system that another machine or process serves, which may never
//! answer. So no call is made for a path that may lead to such a mount.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockWriteGuard, TryLockError};

use rustix::fs::{AtFlags, CWD, FileType, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use sakia_ring::PerProcess;

use crate::backend::{FileFacts, FileKind};
use crate::calls::{self, is_in_memory, open_cached, statx_here};
use crate::decide::{Attempt, Place, SharedPlaces, limits};
use crate::descriptors::{file_system_in, stat_here};
use crate::mounts::{self, MountTable, RemoteMounts};
use crate::stat::{StatxResult, are_known};
use crate::sys::OpenHow;
use crate::sys::open::{make_blocking, opens_at_once};

/// The calls of all files of the process that belong to no driver.
static OF_PROCESS: PerProcess<PathCalls> = PerProcess::new();

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
    /// The mounts of files that were found.
    places: SharedPlaces,
    /// Uses by [`of_process`](Self::of_process) until the table is read again.
    uses_left: AtomicU32,
}

impl PathCalls {
    /// Returns the calls of the process. No task watches the table of mounts for them. It is read again when
    /// a file is found on a mount that is new, and after many uses. `None` if it cannot be read,
    /// or another thread uses it then.
    pub(crate) fn of_process() -> Option<&'static Self> {
        let calls = OF_PROCESS.get_or_init(Self::default);
        let is_current =
            calls
                .uses_left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if is_current.is_err() {
            let is_set = calls.set_unless_in_use(MountTable::read().ok()?.into());
            return is_set.then_some(calls);
        }
        Some(calls)
    }

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
        self.put(remote, self.remote.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Replaces the table, unless another thread uses it. Returns whether it did.
    fn set_unless_in_use(&self, remote: RemoteMounts) -> bool {
        match self.remote.try_write() {
            Ok(held) => self.put(remote, held),
            Err(TryLockError::Poisoned(held)) => self.put(remote, held.into_inner()),
            Err(TryLockError::WouldBlock) => return false,
        }
        self.uses_left.store(limits::MOUNT_OPENINGS, Ordering::Relaxed);
        true
    }

    fn put(&self, remote: RemoteMounts, mut held: RwLockWriteGuard<'_, RemoteMounts>) {
        self.has_remote.store(!remote.is_empty(), Ordering::Release);
        *held = remote;
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
    /// `O_PATH` in `flags` without waiting for another opener either. `None` if it may need a wait; while
    /// there are remote mounts, also if a link is on the way, or if a relative path leads to another mount.
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
        self.open_at(None, path, flags, ResolveFlags::empty())
    }

    /// As [`open`](Self::open), relative to a directory and within the bounds of `resolve`.
    fn open_at(
        &self,
        directory: Option<BorrowedFd<'_>>,
        path: &CStr,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> Option<io::Result<OwnedFd>> {
        let directory = directory.unwrap_or(CWD);
        let mut added = ResolveFlags::empty();
        if self.has_remote() {
            // A symbolic link may lead to a remote mount, and so may a way down from a directory or up.
            let begins_at_root = path.to_bytes().starts_with(b"/");
            let may_wait = if begins_at_root && !resolve.contains(ResolveFlags::IN_ROOT) {
                self.leads_away(Path::new(OsStr::from_bytes(path.to_bytes())))
            } else {
                added |= ResolveFlags::NO_XDEV;
                self.is_served(directory)
            };
            if may_wait {
                return None;
            }
            added |= ResolveFlags::NO_SYMLINKS;
        }
        match open_cached(directory, path, flags | OFlags::CLOEXEC, resolve | added) {
            Err(Errno::LOOP) if added.contains(ResolveFlags::NO_SYMLINKS) => None,
            Err(Errno::XDEV) if added.contains(ResolveFlags::NO_XDEV) => None,
            attempt => attempt.map(Attempt::done).map_err(io::Error::from).transpose(),
        }
    }

    /// Opens a regular file or a directory that the dentry cache has, if the open makes and cuts nothing off;
    /// or anything with `O_PATH`. `None` for other files, and if it may need a wait.
    ///
    /// The kind and the mount are found out first, by a descriptor that does not open the file: even a moment
    /// would wake another opener of a FIFO. If another file has taken the name since, so that a FIFO was
    /// opened after all, it is closed, and the result is `None`.
    ///
    /// # Errors
    /// As `openat2(2)`.
    pub(crate) fn open_file(
        &self,
        directory: Option<BorrowedFd<'_>>,
        path: &CStr,
        how: OpenHow,
    ) -> Option<io::Result<OwnedFd>> {
        let OpenHow { flags, mode, resolve } = how;
        if calls::changes(flags) || mode != 0 {
            return None;
        }
        // The kernel has no more flags, and refuses unknown ones.
        let flags = OFlags::from_bits_retain(u32::try_from(flags).ok()?);
        let resolve = ResolveFlags::from_bits_retain(resolve);
        if flags.contains(OFlags::PATH) {
            return self.open_at(directory, path, flags, resolve);
        }
        let found = match self.open_at(
            directory,
            path,
            OFlags::PATH | flags & OFlags::NOFOLLOW,
            resolve,
        )? {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        if !opens_at_once(self.kind_of(found.as_fd())?) {
            return None;
        }
        drop(found); // the open may need the last number
        let opened = match self.open_at(directory, path, flags | OFlags::NONBLOCK, resolve)? {
            Ok(opened) => opened,
            Err(error) => return Some(Err(error)),
        };
        let kind = self.kind_of(opened.as_fd())?;
        if !kind.is_file() && !kind.is_dir() {
            return None;
        }
        if !flags.contains(OFlags::NONBLOCK)
            && let Err(errno) = make_blocking(opened.as_fd())
        {
            return Some(Err(errno.into()));
        }
        Some(Ok(opened))
    }

    /// Returns the status of a path that the dentry cache has, on a file system of this machine. `flags` are
    /// `AT_*`. `None` if it may need a wait.
    ///
    /// # Errors
    /// As `statx(2)`; `EINVAL` for newer flags.
    pub(crate) fn stat_path(
        &self,
        directory: Option<BorrowedFd<'_>>,
        path: &CStr,
        flags: u32,
    ) -> Option<io::Result<StatxResult>> {
        if !are_known(flags) {
            return Some(Err(Errno::INVAL.into()));
        }
        let flags = AtFlags::from_bits_retain(flags);
        if flags.contains(AtFlags::STATX_FORCE_SYNC) {
            return None;
        }
        if flags.contains(AtFlags::EMPTY_PATH) && path.is_empty() {
            return self.stat_file(directory.unwrap_or(CWD)).map(Ok);
        }
        let follows = !flags.contains(AtFlags::SYMLINK_NOFOLLOW);
        let nofollow = if follows { OFlags::empty() } else { OFlags::NOFOLLOW };
        match self.open_at(directory, path, OFlags::PATH | nofollow, ResolveFlags::empty())? {
            Ok(found) => self.stat_file(found.as_fd()).map(Ok),
            Err(error) if Errno::from_io_error(&error).is_some_and(calls::needs_none) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Returns the status of an open file, if no server has to be asked for it.
    fn stat_file(&self, file: BorrowedFd<'_>) -> Option<StatxResult> {
        let (stat, facts) = stat_here(file).ok()?;
        self.has_no_server(file, &facts)?.then_some(stat)
    }

    /// Returns the kind of an open file. `None` if a server may have it.
    fn kind_of(&self, file: BorrowedFd<'_>) -> Option<FileType> {
        Some(FileType::from_raw_mode(self.stat_file(file)?.mode.into()))
    }

    /// Returns whether calls for an open file with these facts wait for no server; `None` if the table of
    /// mounts cannot be read. A file that is on no mount of the table may have one, unless it is in memory, a
    /// pipe, a socket or the like.
    fn has_no_server(&self, file: BorrowedFd<'_>, facts: &FileFacts) -> Option<bool> {
        let place = (facts.device?, facts.mount_id);
        self.places.has_no_server(place).or_else(|| self.look(file, facts, place))
    }

    #[cold]
    fn look(&self, file: BorrowedFd<'_>, facts: &FileFacts, place: Place) -> Option<bool> {
        let table = MountTable::read().ok()?;
        let file_system = file_system_in(&table, file, facts);
        // Other mounts may be new, too.
        self.set_unless_in_use(table.into());
        if file_system.is_empty() {
            return Some(facts.kind == FileKind::Waiting || is_in_memory(file));
        }
        let found = mounts::has_no_server(&file_system);
        self.places.add(place, found);
        Some(found)
    }
}

/// Returns the status of an open file, if no server has to be asked for it. `has_no_server` is what is known
/// of the file, and is filled in.
pub(crate) fn stat_unless_served(
    file: BorrowedFd<'_>,
    has_no_server: &OnceLock<bool>,
) -> Option<StatxResult> {
    match has_no_server.get() {
        Some(true) => stat_here(file).ok().map(|(stat, _)| stat),
        Some(false) => None,
        None => {
            let (stat, facts) = stat_here(file).ok()?;
            let found = PathCalls::of_process()?.has_no_server(file, &facts)?;
            has_no_server.get_or_init(|| found).then_some(stat)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::mounts::MountTable;

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
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
    #[cfg_attr(miri, ignore = "makes system calls")]
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

    /// Neither a way down nor one up leaves a mount for a server's.
    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn relative_paths_stay_on_their_mount_where_a_server_is() {
        let calls = PathCalls::default();
        let root = rustix::fs::open("/", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let within = |path: &CStr, resolve| {
            let result = calls.open_at(Some(root.as_fd()), path, OFlags::PATH, resolve);
            result.map(|opened| opened.map(drop).map_err(|error| error.raw_os_error().unwrap()))
        };
        let any = ResolveFlags::empty();
        if within(c"proc", any).is_none() {
            return; // a kernel without such lookups
        }
        assert_eq!(within(c"proc", any), Some(Ok(())));
        let remote = |device: u64| {
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            let line = format!("31 28 {major}:{minor} / /net rw - nfs4 host:/ rw");
            calls.set(MountTable::parse(line.as_bytes()).into());
        };
        remote(rustix::fs::makedev(0, 4095));
        assert_eq!(within(c".", any), Some(Ok(())));
        assert_eq!(within(c"proc", any), None);
        assert_eq!(within(c"/proc", any), Some(Ok(())));
        assert_eq!(within(c"/proc", ResolveFlags::IN_ROOT), None);
        assert_eq!(within(c"/net/a", any), None);
        let held = calls.remote.write().unwrap();
        assert_eq!((within(c".", any), within(c"/proc", any)), (None, None), "it does not wait");
        drop(held);
        remote(rustix::fs::fstat(&root).unwrap().st_dev);
        assert_eq!(within(c".", any), None, "the directory is the server's");
    }

    #[test]
    fn a_table_in_use_is_replaced_later() {
        let calls = PathCalls::default();
        let table = || MountTable::parse(b"31 28 0:50 / /net rw - nfs4 host:/export rw\n").into();
        let held = calls.remote.read().unwrap();
        assert!(!calls.set_unless_in_use(table()) && !calls.has_remote());
        drop(held);
        assert!(calls.set_unless_in_use(table()) && calls.has_remote());
        assert!(calls.set_unless_in_use(RemoteMounts::default()) && !calls.has_remote());
    }
}
