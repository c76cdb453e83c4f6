//! Directories of a tree, open as long as there are descriptors for them.
//!
//! A [`Place`] knows the directory above and its own name there, so it can be closed to make room and
//! opened again, however long its path is. What is opened again is compared with what it was: somebody
//! may have moved it meanwhile.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::fs::{CWD, OFlags, Stat};
use rustix::io::Errno;
use sakia::{Budget, Permit, Resource};

use crate::sys;

/// Device and inode: what a file is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Id {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// An open directory, or the one that the process is in.
pub(crate) struct OpenDir {
    /// `None`: the current directory.
    fd: Option<OwnedFd>,
    _permit: Option<Permit>,
}

impl OpenDir {
    /// A directory that takes no share of any budget.
    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), _permit: None }
    }

    /// Whether it is the directory that the process is in.
    pub(crate) fn is_current(&self) -> bool {
        self.fd.is_none()
    }
}

impl AsFd for OpenDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().map_or(CWD, AsFd::as_fd)
    }
}

/// A directory of a tree.
pub(crate) struct Place {
    /// `None`: the current directory.
    above: Option<Above>,
    /// What it was when it was first opened, found out at the latest when it is closed.
    id: OnceLock<Id>,
    open: Mutex<Option<Arc<OpenDir>>>,
    /// The last link is followed when it is opened again.
    follows: bool,
}

struct Above {
    place: Arc<Place>,
    name: CString,
}

impl Place {
    /// The directory that the process is in, in which operands are looked up.
    pub(crate) fn current() -> &'static Arc<Self> {
        static CURRENT: LazyLock<Arc<Place>> = LazyLock::new(|| {
            let open = Mutex::new(Some(Arc::new(OpenDir { fd: None, _permit: None })));
            Arc::new(Place { above: None, id: OnceLock::new(), open, follows: true })
        });
        &CURRENT
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<OpenDir>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_current(&self) -> bool {
        self.above.is_none()
    }

    /// What it was when it was first opened, if that has been asked for.
    pub(crate) fn id(&self) -> Option<Id> {
        self.id.get().copied()
    }

    /// Takes its descriptor, if it has one and can be known again without.
    fn close(&self) -> Option<Arc<OpenDir>> {
        let mut open = self.lock();
        if self.id.get().is_none() {
            self.id.set(Id::of(&sys::stat(&**open.as_ref()?).ok()?)).ok();
        }
        open.take()
    }

    /// The directories above it, itself first; without the current directory.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = &Self> {
        let mut next = Some(self);
        let lineage = std::iter::from_fn(move || {
            let place = next?;
            next = place.above.as_ref().map(|above| &*above.place);
            Some(place)
        });
        lineage.filter(|place| !place.is_current())
    }

    /// The path of `name` in it, for messages.
    pub(crate) fn path_of(&self, name: &CStr) -> PathBuf {
        let mut names = vec![name];
        names.extend(self.lineage().filter_map(Self::name));
        let names = names.into_iter().rev();
        names.map(|name| OsStr::from_bytes(name.to_bytes())).collect()
    }

    /// The directory above, and its name there.
    pub(crate) fn above(&self) -> Option<(&Arc<Self>, &CStr)> {
        self.above.as_ref().map(|above| (&above.place, &*above.name))
    }

    /// Its name in the directory above.
    pub(crate) fn name(&self) -> Option<&CStr> {
        self.above.as_ref().map(|above| &*above.name)
    }

    /// Its own path, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.above {
            Some(above) => above.place.path_of(&above.name),
            None => PathBuf::from("."),
        }
    }
}

impl Drop for Place {
    /// One level after the other: a tree may be deeper than the stack.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(place) = above.and_then(|above| Arc::into_inner(above.place)) {
            let mut place = place;
            above = place.above.take();
        }
    }
}

/// The directories that are open, and the descriptors that they may take.
pub(crate) struct Places {
    budget: Budget,
    open: Mutex<Open>,
}

/// Directories in the order of their opening: those that lead to the others first.
struct Open {
    places: Vec<Weak<Place>>,
    /// How many of them there are before those that are gone are looked for.
    prune_at: usize,
}

/// Places kept before any is looked at.
const PRUNE_AT_MIN: usize = 256;

impl Places {
    pub(crate) fn new(budget: Budget) -> Self {
        let open = Open { places: Vec::new(), prune_at: PRUNE_AT_MIN };
        Self { budget, open: Mutex::new(open) }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a place of a directory that was opened as `name` in `above`. What it is need not be known.
    pub(crate) fn adopt(
        &self,
        above: &Arc<Place>,
        name: &CStr,
        fd: OwnedFd,
        stat: Option<&Stat>,
        follows: bool,
    ) -> Arc<Place> {
        let above = Some(Above { place: Arc::clone(above), name: name.to_owned() });
        let open = Some(Arc::new(self.permitted(fd)));
        let id = stat.map_or_else(OnceLock::new, |stat| Id::of(stat).into());
        let place = Place { above, id, open: Mutex::new(open), follows };
        let place = Arc::new(place);
        self.note(&place);
        place
    }

    /// Takes a share of the budget for a descriptor, if need be by closing another.
    fn permitted(&self, fd: OwnedFd) -> OpenDir {
        let acquire = || self.budget.try_acquire(Resource::Descriptors, 1);
        let permit = acquire().or_else(|| {
            self.close_some();
            acquire()
        });
        OpenDir { fd: Some(fd), _permit: permit }
    }

    fn note(&self, place: &Arc<Place>) {
        let mut open = self.lock();
        if open.places.len() >= open.prune_at {
            open.places.retain(|place| place.upgrade().is_some_and(|place| place.lock().is_some()));
            open.prune_at = (2 * open.places.len()).max(PRUNE_AT_MIN);
        }
        open.places.push(Arc::downgrade(place));
    }

    /// Closes half of the directories that are open: those that were opened first, from which the work
    /// is farthest away.
    pub(crate) fn close_some(&self) {
        let mut open = self.lock();
        open.places.retain(|place| place.upgrade().is_some_and(|place| place.lock().is_some()));
        let count = open.places.len().div_ceil(2);
        let closed: Vec<_> =
            open.places.drain(..count).filter_map(|place| place.upgrade()?.close()).collect();
        drop(open);
        // Those that are being used are closed when that is over.
        drop(closed);
    }

    /// Does what needs a descriptor, once more after some were closed if there was none.
    pub(crate) fn with_room<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        match call() {
            Err(error) if sys::is(&error, Errno::MFILE) => {
                self.close_some();
                call()
            }
            result => result,
        }
    }

    /// The directory's descriptor. It stays open as long as the result is kept.
    ///
    /// # Errors
    /// `ENOENT`: it is not where it was. Otherwise as `open(2)`.
    pub(crate) fn open(&self, place: &Arc<Place>) -> io::Result<Arc<OpenDir>> {
        if let Some(open) = &*place.lock() {
            return Ok(Arc::clone(open));
        }
        // From the nearest one that is open, down again.
        let mut closed = vec![Arc::clone(place)];
        let mut open = loop {
            let last = closed.last().and_then(|place| place.above.as_ref());
            let Some(above) = last.map(|above| Arc::clone(&above.place)) else {
                return Err(Errno::BADF.into());
            };
            if let Some(open) = &*above.lock() {
                break Arc::clone(open);
            }
            closed.push(above);
        };
        while let Some(place) = closed.pop() {
            let Some(above) = &place.above else { return Err(Errno::BADF.into()) };
            let flags = flags_of_directory(place.follows);
            let fd = self.with_room(|| sys::open_again(open.as_fd(), &above.name, flags))?;
            open = self.opened_again(fd, &place)?;
            if closed.is_empty() {
                self.keep(&place, &open);
            }
        }
        Ok(open)
    }

    /// The work goes on in the directory above: it is opened again if it was closed, from here and not all
    /// the way from the top. If that fails, who needs it will try the other way.
    pub(crate) fn return_above(&self, place: &Arc<Place>) {
        let Some((above, _)) = place.above() else { return };
        if above.lock().is_some() {
            return;
        }
        let opened = self.open(place).and_then(|open| {
            let fd = self.with_room(|| sys::open_again(open.as_fd(), c"..", sys::DIRECTORY))?;
            self.opened_again(fd, above)
        });
        if let Ok(open) = opened {
            self.keep(above, &open);
        }
    }

    fn opened_again(&self, fd: OwnedFd, place: &Place) -> io::Result<Arc<OpenDir>> {
        if Some(Id::of(&sys::stat(&fd)?)) == place.id() {
            Ok(Arc::new(self.permitted(fd)))
        } else {
            Err(Errno::NOENT.into())
        }
    }

    fn keep(&self, place: &Arc<Place>, open: &Arc<OpenDir>) {
        *place.lock() = Some(Arc::clone(open));
        self.note(place);
    }
}

/// How a directory is opened.
pub(crate) fn flags_of_directory(follows: bool) -> OFlags {
    if follows { sys::DIRECTORY.difference(OFlags::NOFOLLOW) } else { sys::DIRECTORY }
}
