//! Directories of a tree, kept open as long as there are descriptors for them.
//!
//! A [`Place`] knows its parent and its own name there, so it can be closed to make room and opened again,
//! however long its path is. A reopened directory is compared with its former identity: another program may
//! have moved it meanwhile.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rustix::fs::{CWD, OFlags, Stat};
use rustix::io::Errno;
use sakia::engine::__private::PerProcess;
use sakia::{Budget, Permit, Resource};

use crate::kernel::OwnedFd;
use crate::sys::{self, lock};

/// Device and inode: the identity of a file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(u64, u64);

impl Id {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }

    pub(crate) fn inode(self) -> u64 {
        self.1
    }
}

/// An open directory, or the current one.
pub(crate) struct OpenDir {
    /// `None`: the current directory.
    fd: Option<OwnedFd>,
    _permit: Option<Permit>,
}

impl OpenDir {
    /// Returns a directory that is not charged to a budget.
    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), _permit: None }
    }

    /// Returns whether it is the current directory.
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
    above: Option<Name>,
    /// Its identity at the first open, determined at the latest when it is closed.
    id: OnceLock<Id>,
    open: Mutex<Option<Arc<OpenDir>>>,
    /// The last link is followed when it is opened again.
    follows: bool,
}

/// A name in a directory, or in the current one.
#[derive(Clone)]
pub(crate) struct Name {
    pub(crate) place: Arc<Place>,
    pub(crate) name: CString,
    /// Its file, if others may exchange that for another one.
    pub(crate) id: Option<Id>,
}

impl Name {
    /// Returns whether it is the same name in the same directory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.place, &other.place) && self.name == other.name
    }
}

impl Place {
    /// Returns the current directory, in which operands are looked up.
    pub(crate) fn current() -> &'static Arc<Self> {
        static CURRENT: PerProcess<Arc<Place>> = PerProcess::new();
        CURRENT.get_or_init(|| {
            let open = Mutex::new(Some(Arc::new(OpenDir { fd: None, _permit: None })));
            Arc::new(Place { above: None, id: OnceLock::new(), open, follows: true })
        })
    }

    pub(crate) fn is_current(&self) -> bool {
        self.above.is_none()
    }

    /// Returns its identity at the first open, if determined.
    pub(crate) fn id(&self) -> Option<Id> {
        self.id.get().copied()
    }

    /// Takes its descriptor, if it has one and can be identified again without it.
    fn close(&self) -> Option<Arc<OpenDir>> {
        let mut open = lock(&self.open);
        if self.id.get().is_none() {
            self.id.set(Id::of(&sys::stat(&**open.as_ref()?).ok()?)).ok();
        }
        open.take()
    }

    /// Returns the place and its parents up to the root; without the current directory.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = &Self> {
        let lineage = std::iter::successors(Some(self), |place| Some(&*place.above()?.place));
        lineage.filter(|place| !place.is_current())
    }

    /// Returns the names that lead to it, the root's first.
    pub(crate) fn names(&self) -> Vec<&Path> {
        let names = self.lineage().filter_map(Self::above);
        let mut names: Vec<_> = names.map(|above| sys::path(&above.name)).collect();
        names.reverse();
        names
    }

    /// Returns the path of `name` in it, for messages.
    pub(crate) fn path_of(&self, name: &CStr) -> PathBuf {
        self.names().into_iter().chain([sys::path(name)]).collect()
    }

    /// Returns its name in the parent.
    pub(crate) fn above(&self) -> Option<&Name> {
        self.above.as_ref()
    }

    /// Returns its own path, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.above().map_or(".".into(), |above| above.place.path_of(&above.name))
    }
}

impl Drop for Place {
    /// Iterative: a tree may be deeper than the stack.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut place) = above.and_then(|above| Arc::into_inner(above.place)) {
            above = place.above.take();
        }
    }
}

/// The open directories, and their budget of descriptors.
pub(crate) struct Places {
    budget: Budget,
    open: Mutex<Open>,
}

/// Directories in the order of their opening: parents first.
struct Open {
    places: Vec<Weak<Place>>,
    /// The number of entries at which dropped ones are removed.
    prune_at: usize,
}

impl Open {
    /// Removes the closed and dropped ones.
    fn prune(&mut self) {
        let is_open = |place: Arc<Place>| lock(&place.open).is_some();
        self.places.retain(|place| place.upgrade().is_some_and(is_open));
    }
}

/// The smallest number of entries to prune.
const PRUNE_AT_MIN: usize = 256;

impl Places {
    pub(crate) fn new(budget: Budget) -> Self {
        let open = Open { places: Vec::new(), prune_at: PRUNE_AT_MIN };
        Self { budget, open: Mutex::new(open) }
    }

    /// Makes a place of a directory that was opened as `name` in `above`. Its identity may be unknown.
    pub(crate) fn adopt(
        &self,
        above: &Arc<Place>,
        name: &CStr,
        fd: OwnedFd,
        stat: Option<&Stat>,
        follows: bool,
    ) -> Arc<Place> {
        let above = Some(Name { place: Arc::clone(above), name: name.to_owned(), id: None });
        let open = Some(Arc::new(self.permitted(fd)));
        let id = stat.map_or_else(OnceLock::new, |stat| Id::of(stat).into());
        let place = Arc::new(Place { above, id, open: Mutex::new(open), follows });
        self.note(&place);
        place
    }

    /// Charges a descriptor to the budget, closing another if necessary.
    pub(crate) fn permitted(&self, fd: OwnedFd) -> OpenDir {
        let acquire = || self.budget.try_acquire(Resource::Descriptors, 1);
        let permit = acquire().or_else(|| {
            self.close_some();
            acquire()
        });
        OpenDir { fd: Some(fd), _permit: permit }
    }

    fn note(&self, place: &Arc<Place>) {
        let mut open = lock(&self.open);
        if open.places.len() >= open.prune_at {
            open.prune();
            open.prune_at = (2 * open.places.len()).max(PRUNE_AT_MIN);
        }
        open.places.push(Arc::downgrade(place));
    }

    /// Closes half of the open directories: those opened first, which are farthest from the current work.
    pub(crate) fn close_some(&self) {
        let mut open = lock(&self.open);
        open.prune();
        let count = open.places.len().div_ceil(2);
        let closed: Vec<_> =
            open.places.drain(..count).filter_map(|place| place.upgrade()?.close()).collect();
        drop(open);
        // A directory in use is closed after its use.
        drop(closed);
    }

    /// Makes a call that needs a descriptor; if there is none, closes some and repeats the call.
    pub(crate) fn with_room<T>(&self, mut call: impl FnMut() -> sys::Result<T>) -> sys::Result<T> {
        match call() {
            Err(Errno::MFILE) => {
                self.close_some();
                call()
            }
            result => result,
        }
    }

    /// Returns the directory, open as long as the result is kept.
    ///
    /// # Errors
    /// `ENOENT`: it is not where it was. Otherwise as `open(2)`.
    pub(crate) fn open(&self, place: &Arc<Place>) -> sys::Result<Arc<OpenDir>> {
        // From the nearest open one, downwards.
        let mut closed = Vec::new();
        let mut next = place;
        let mut open = loop {
            if let Some(open) = &*lock(&next.open) {
                break Arc::clone(open);
            }
            let above = next.above().ok_or(Errno::BADF)?;
            closed.push((next, &above.name));
            next = &above.place;
        };
        if closed.is_empty() {
            return Ok(open);
        }
        for (place, name) in closed.into_iter().rev() {
            let flags = flags_of_directory(place.follows);
            let fd = self.with_room(|| sys::open_again(open.as_fd(), name, flags))?;
            open = self.opened_again(fd, place)?;
        }
        self.keep(place, &open);
        Ok(open)
    }

    /// Opens the parent again if it was closed, since the work continues there: from here, and not all the
    /// way from the root. On failure the next user tries the other way.
    pub(crate) fn return_above(&self, place: &Arc<Place>) {
        let Some(Name { place: above, .. }) = place.above() else { return };
        if lock(&above.open).is_some() {
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

    fn opened_again(&self, fd: OwnedFd, place: &Place) -> sys::Result<Arc<OpenDir>> {
        if Some(Id::of(&sys::stat(&fd)?)) == place.id() {
            Ok(Arc::new(self.permitted(fd)))
        } else {
            Err(Errno::NOENT)
        }
    }

    fn keep(&self, place: &Arc<Place>, open: &Arc<OpenDir>) {
        *lock(&place.open) = Some(Arc::clone(open));
        self.note(place);
    }
}

/// Returns the flags to open a directory.
pub(crate) fn flags_of_directory(follows: bool) -> OFlags {
    if follows { sys::DIRECTORY.difference(OFlags::NOFOLLOW) } else { sys::DIRECTORY }
}
