//! The facts that a driver learns about a mount.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{RwLock, TryLockError};

use super::{Breaker, CallMode, Lane, Route, limits};
use crate::mounts::{
    RemoteMounts, closes_at_once, has_positions, is_in_memory, is_local, is_remote,
};
use crate::sys::Direction;

/// Support of `RWF_NOWAIT` by a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Support {
    /// Not tried yet.
    #[default]
    Unknown,
    /// Supported: such a call has returned without blocking, or refused to block.
    Yes,
    /// Unsupported: every such call fails with `EOPNOTSUPP`.
    No,
    /// It claims support, but has reported the end of a file at a wrong offset.
    Lies,
}

/// The facts that a driver has learned about one mounted file system.
///
/// # Examples
/// See [`Handle::mounts`](crate::Handle::mounts).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountFacts {
    /// The device, as `st_dev`.
    pub device: u64,
    /// The file system's type, as in `/proc/self/mountinfo`; empty if it is missing there.
    pub file_system: String,
    /// Another machine or process serves it, so that any call may block for ever.
    pub is_remote: bool,
    /// Support of `RWF_NOWAIT` by reads.
    pub nowait_read: Support,
    /// Support of `RWF_NOWAIT` by writes.
    pub nowait_write: Support,
    /// Plain calls have been slow, and are not made for a while.
    pub is_slow: bool,
    /// The number of times that plain calls have been slow.
    pub slow_count: u64,
}

impl MountFacts {
    /// Returns the route of a read that a rule wants inline: buffered, and small enough for the rule. The
    /// route is the queue for a file whose bytes were not in the page cache lately.
    pub fn read_route(&self) -> Route {
        transfer_route(self.is_remote, self.nowait_read)
    }

    /// Returns the route of a write that a rule wants inline.
    pub fn write_route(&self) -> Route {
        transfer_route(self.is_remote, self.nowait_write)
    }
}

/// Returns the route of a transfer on a mount with these properties.
fn transfer_route(is_remote: bool, nowait: Support) -> Route {
    if is_remote { Route::Lane(Lane::Elastic) } else { local_route(nowait) }
}

/// Returns the route of a transfer on a local file system.
#[inline(always)]
pub(crate) fn local_route(nowait: Support) -> Route {
    match nowait {
        Support::Yes | Support::Unknown => Route::Now(CallMode::NonBlocking),
        Support::No => Route::Now(CallMode::Blocking),
        Support::Lies => Route::Queue,
    }
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mount {
    device: u64,
    file_system: Box<str>,
    pub(crate) is_remote: bool,
    /// The kernel alone serves it, and never returns `ECANCELED`; see [`is_local`].
    pub(crate) is_local: bool,
    /// Closing a file tells no server.
    pub(crate) closes_at_once: bool,
    /// Its regular files take transfers at offsets.
    pub(crate) has_positions: bool,
    /// There is no device to wait for.
    pub(crate) is_in_memory: bool,
    nowait: [Cell<Support>; 2],
    pub(crate) breaker: Breaker,
}

impl Mount {
    pub(crate) fn new(device: u64, file_system: &str) -> Self {
        Self {
            device,
            file_system: file_system.into(),
            is_remote: is_remote(file_system),
            is_local: is_local(file_system),
            closes_at_once: closes_at_once(file_system),
            has_positions: has_positions(file_system),
            is_in_memory: is_in_memory(file_system),
            nowait: [const { Cell::new(Support::Unknown) }; 2],
            breaker: Breaker::new(),
        }
    }

    /// Returns the file system's type; empty if it is unknown.
    pub(crate) fn file_system(&self) -> &str {
        &self.file_system
    }

    fn facts(&self) -> MountFacts {
        MountFacts {
            device: self.device,
            file_system: self.file_system.to_string(),
            is_remote: self.is_remote,
            nowait_read: self.nowait(Direction::Read),
            nowait_write: self.nowait(Direction::Write),
            is_slow: self.breaker.is_open(),
            slow_count: self.breaker.opened(),
        }
    }

    /// Returns whether a read on the driver's thread may block, since the file system cannot refuse to.
    pub(crate) fn reads_wait(&self) -> bool {
        !self.is_remote && self.nowait(Direction::Read) == Support::No
    }

    #[inline(always)]
    pub(crate) fn nowait(&self, direction: Direction) -> Support {
        self.nowait[direction as usize].get()
    }

    #[inline(always)]
    pub(crate) fn learn(&self, direction: Direction, support: Support) {
        self.nowait[direction as usize].set(support);
    }
}

/// The file systems that a driver has met, and the paths whose open may wait for a server.
///
/// The number of a device is that of another file system after an unmount. So a file system is found by the
/// mount that a file is on, whose number no other ever gets; each mount that is new is asked for its type. If
/// the kernel has no such numbers (before 6.8), the first type that was met with a device stays.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    /// The one that was found last: most files of a program are on one mount.
    last: RefCell<Option<(Place, Rc<Mount>)>>,
    by_mount: RefCell<HashMap<u64, Rc<Mount>>>,
    /// The last one with each device.
    by_device: RefCell<HashMap<u64, Rc<Mount>>>,
    remote: RefCell<RemotePaths>,
    /// The last small file read as a whole was on a mount without `RWF_NOWAIT`, so the next one's mount is
    /// queried before the read.
    pub(crate) asks_first: Cell<bool>,
    names_in_memory: NamesInMemory,
}

/// The place of a file: its device, and the number of its mount.
pub(crate) type Place = (u64, Option<u64>);

/// The places of files that calls without a driver have met, for all threads: whether calls there wait for no
/// server. No method waits for another thread.
#[derive(Debug, Default)]
pub(crate) struct SharedPlaces {
    known: RwLock<HashMap<Place, bool>>,
}

impl SharedPlaces {
    /// Returns whether calls at this place wait for no server. `None`: it is new, or another thread adds one.
    pub(crate) fn has_no_server(&self, place: Place) -> Option<bool> {
        match self.known.try_read() {
            Ok(known) => known.get(&place).copied(),
            Err(TryLockError::Poisoned(known)) => known.into_inner().get(&place).copied(),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Adds a place with this answer, unless another thread is just looking.
    pub(crate) fn add(&self, place: Place, has_no_server: bool) {
        let mut known = match self.known.try_write() {
            Ok(known) => known,
            Err(TryLockError::Poisoned(known)) => known.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if known.len() >= limits::MOUNTS {
            known.clear(); // most of them are gone; the others are asked once more
        }
        known.insert(place, has_no_server);
    }
}

/// Predicts whether names are created on file systems in memory. A wrong try costs three calls.
#[derive(Debug, Default)]
struct NamesInMemory {
    /// The number of names to skip before the next try.
    skipped: Cell<u32>,
    /// The number of names that are skipped after the next miss.
    pause: Cell<u32>,
}

/// The last reading of the table of mounts. Looking a path up on a network or FUSE file system, and opening
/// it, may wait for the server, cached or not.
#[derive(Debug, Default)]
struct RemotePaths {
    mounts: RemoteMounts,
    /// The working directory at that time.
    here: PathBuf,
    /// Opens until the table of mounts is read again.
    openings_left: u32,
}

impl Mounts {
    /// Returns whether opening this path may wait for a server. `look` reads the table of mounts: at first,
    /// and again after many opens, or after meeting a new mount.
    pub(crate) fn may_wait(
        &self,
        path: &[u8],
        look: impl FnOnce() -> (RemoteMounts, PathBuf),
    ) -> bool {
        let mut remote = self.remote.borrow_mut();
        if remote.openings_left == 0 {
            let (mounts, here) = look();
            *remote = RemotePaths { mounts, here, openings_left: limits::MOUNT_OPENINGS };
        }
        remote.openings_left -= 1;
        let RemotePaths { mounts, here, .. } = &*remote;
        // By the text of the path: a symbolic link to such a mount is followed on this thread.
        mounts.may_hold(Path::new(OsStr::from_bytes(path)), || Some(here.clone()))
    }

    /// Returns whether the next name is worth a try, because it may be made in a directory in memory. Few of
    /// the names that are made elsewhere are tried.
    pub(crate) fn tries_in_memory(&self) -> bool {
        let NamesInMemory { skipped, .. } = &self.names_in_memory;
        let left = skipped.get();
        skipped.set(left.saturating_sub(1));
        left == 0
    }

    /// Records the result of a try.
    pub(crate) fn note_in_memory(&self, is_in_memory: bool) {
        let NamesInMemory { skipped, pause } = &self.names_in_memory;
        let next =
            if is_in_memory { 0 } else { (pause.get() * 2).clamp(1, limits::IN_MEMORY_SKIPS) };
        pause.set(next);
        skipped.set(next);
    }

    /// Returns the file system of a file at this place. If its mount is new, `file_system` returns the type.
    pub(crate) fn get(&self, place: Place, file_system: impl FnOnce() -> String) -> Rc<Mount> {
        if let Some((last, mount)) = &*self.last.borrow()
            && *last == place
        {
            return Rc::clone(mount);
        }
        let mount = self.find(place).unwrap_or_else(|| self.add(place, &file_system()));
        *self.last.borrow_mut() = Some((place, Rc::clone(&mount)));
        mount
    }

    #[inline(never)]
    fn find(&self, (device, mount_id): Place) -> Option<Rc<Mount>> {
        match mount_id {
            Some(id) => self.by_mount.borrow().get(&id).map(Rc::clone),
            None => self.by_device.borrow().get(&device).map(Rc::clone),
        }
    }

    /// Adds a mount of a file system of this type.
    #[cold]
    fn add(&self, (device, mount_id): Place, file_system: &str) -> Rc<Mount> {
        // Other mounts may be new, too.
        self.remote.borrow_mut().openings_left = 0;
        let (mut by_device, mut by_mount) =
            (self.by_device.borrow_mut(), self.by_mount.borrow_mut());
        let same = by_device.get(&device).filter(|mount| mount.file_system() == file_system);
        let mount = same.map_or_else(|| Rc::new(Mount::new(device, file_system)), Rc::clone);
        by_device.insert(device, Rc::clone(&mount));
        if let Some(id) = mount_id {
            if by_mount.len() >= limits::MOUNTS {
                by_mount.clear(); // most of them are gone; the others are asked once more
            }
            by_mount.insert(id, Rc::clone(&mount));
        }
        mount
    }

    pub(crate) fn facts(&self) -> Vec<MountFacts> {
        let mut facts: Vec<_> =
            self.by_device.borrow().values().map(|mount| mount.facts()).collect();
        facts.sort_by_key(|facts| facts.device);
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::MountTable;

    #[test]
    fn what_a_mount_leads_to() {
        let routes = |file_system, support| {
            let mount = Mount::new(1, file_system);
            mount.learn(Direction::Read, support);
            let facts = mount.facts();
            assert_eq!(facts.write_route(), transfer_route(facts.is_remote, Support::Unknown));
            facts.read_route()
        };
        assert_eq!(routes("ext4", Support::Unknown), Route::Now(CallMode::NonBlocking));
        assert_eq!(routes("ext4", Support::Yes), Route::Now(CallMode::NonBlocking));
        assert_eq!(routes("tmpfs", Support::No), Route::Now(CallMode::Blocking));
        assert_eq!(routes("odd", Support::Lies), Route::Queue);
        for support in [Support::Unknown, Support::Yes, Support::No, Support::Lies] {
            assert_eq!(routes("nfs4", support), Route::Lane(Lane::Elastic));
        }
    }

    #[test]
    fn places_are_known_until_there_are_too_many() {
        let places = SharedPlaces::default();
        assert_eq!(places.has_no_server((1, Some(1))), None);
        places.add((1, Some(1)), true);
        places.add((1, Some(2)), false);
        assert_eq!(places.has_no_server((1, Some(1))), Some(true));
        assert_eq!(places.has_no_server((1, Some(2))), Some(false), "another mount of the device");
        let held = places.known.read().unwrap();
        places.add((1, Some(3)), true);
        drop(held);
        assert_eq!(places.has_no_server((1, Some(3))), None, "it does not wait");
        let held = places.known.write().unwrap();
        assert_eq!(places.has_no_server((1, Some(1))), None);
        drop(held);
        for id in 3..3 * limits::MOUNTS as u64 {
            places.add((1, Some(id)), true);
        }
        assert!(places.known.read().unwrap().len() <= limits::MOUNTS);
    }

    #[test]
    fn names_on_disks_are_rarely_tried_in_memory() {
        let mounts = Mounts::default();
        let tries = |count| (0..count).filter(|_| mounts.tries_in_memory()).count();
        assert_eq!(tries(10), 10);
        mounts.note_in_memory(false);
        assert_eq!(tries(2), 1);
        for _ in 0..10 {
            mounts.note_in_memory(false);
        }
        assert_eq!(tries(65), 1);
        mounts.note_in_memory(true);
        assert_eq!(tries(10), 10);
    }

    #[test]
    fn what_lies_on_a_remote_mount_may_wait_to_be_opened() {
        let mounts = Mounts::default();
        let remote = |point: &str, here: &str| {
            let table =
                MountTable::parse(format!("31 28 0:50 / {point} rw - nfs4 host:/ rw").as_bytes());
            (RemoteMounts::from(table), here.into())
        };
        let look = || remote("/net/host", "/home");
        for (path, expected) in [
            ("/net/host", true),
            ("/net/host/a/b", true),
            ("/net/hostess/a", false),
            ("/net", false),
            ("relative", false),
            ("../net/host", true),
            ("/net/../net/host", true),
        ] {
            assert_eq!(mounts.may_wait(path.as_bytes(), look), expected, "{path}");
        }
        assert!(!Mounts::default().may_wait(b"/net/host/a", <_>::default));
        let within = || remote("/net/host", "/net/host/a");
        assert!(Mounts::default().may_wait(b"relative", within));
        let above = || remote("/net/host", "/net");
        assert!(Mounts::default().may_wait(b"host/a", above));
        assert!(!Mounts::default().may_wait(b"a", above));
        let root = || remote("/", "/");
        assert!(Mounts::default().may_wait(b"/a/b", root));
        assert!(Mounts::default().may_wait(b"/", root));
        // The table is read again when a mount turns out to be new.
        let mounts = Mounts::default();
        assert!(!mounts.may_wait(b"/net/host/a", <_>::default));
        assert!(!mounts.may_wait(b"/net/host/a", look));
        mounts.get((7, None), || "ext4".into());
        assert!(mounts.may_wait(b"/net/host/a", look));
    }

    #[test]
    fn the_device_of_an_unmounted_file_system_may_be_that_of_another() {
        let mounts = Mounts::default();
        let at = |mount_id| (50, mount_id);
        let first = mounts.get(at(Some(1)), || "tmpfs".into());
        // Mounted at another place, too.
        let again = mounts.get(at(Some(2)), || "tmpfs".into());
        assert!(Rc::ptr_eq(&first, &again));
        let other = mounts.get(at(Some(3)), || "fuse".into());
        assert!(first.is_local && !other.is_local && other.is_remote);
        assert_eq!(mounts.facts().len(), 1);
        for _ in 0..2 {
            let known = mounts.get(at(Some(3)), || panic!("it is known"));
            assert!(Rc::ptr_eq(&known, &other));
        }
        // Without numbers of mounts the device decides.
        assert!(Rc::ptr_eq(&mounts.get(at(None), || panic!("it is known")), &other));
        for id in 4..3 * limits::MOUNTS as u64 {
            mounts.get(at(Some(id)), || "fuse".into());
        }
        assert!(mounts.by_mount.borrow().len() <= limits::MOUNTS);
    }
}
