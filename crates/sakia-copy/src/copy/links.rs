//! Hard links: names of the same file.
//!
//! The first name found has the file copied. The fiber that copies it also handles names found meanwhile;
//! later ones are created at once. Directories of the copy are remembered, not kept open.
//!
//! If nothing is to be overwritten, a name of an earlier copy may be found after others became names of a
//! new one. Then these become names of the earlier one.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use super::{Copy, Spot};
use crate::crew::Folder;
use crate::place::{Id, Name, Place};
use crate::sys::lock;

/// Files of the source with several names.
#[derive(Default)]
pub(super) struct Links {
    files: Mutex<HashMap<Id, File>>,
}

struct File {
    /// The number of names that were not found yet, or lie outside of the source.
    left: u64,
    state: State,
}

enum State {
    /// It is being copied; these names wait for it.
    Copying(Vec<Waiting>),
    /// The place of the copy.
    Copied {
        name: Name,
        /// Its names so far, as long as another copy to keep may be found.
        made: Option<Vec<Waiting>>,
    },
}

/// A name of the source that is, or will be, a name of the copy.
#[derive(Clone)]
pub(super) struct Waiting {
    pub(super) folder: Option<Arc<Folder<Copy>>>,
    pub(super) name: CString,
    /// The name of the copy; it differs from `name` at the root only.
    pub(super) to: CString,
    /// The copy, if it exists and others may rename it.
    pub(super) id: Option<Id>,
}

impl Waiting {
    pub(super) fn of(spot: &Spot<'_>) -> Self {
        let (name, to) = (spot.name.to_owned(), spot.to.to_owned());
        Self { folder: spot.folder.cloned(), name, to, id: spot.made }
    }

    pub(super) fn name(&self) -> Name {
        let place = self.folder.as_ref().and_then(|folder| folder.facts.target.place.as_ref());
        let place = Arc::clone(place.unwrap_or(Place::current()));
        Name { place, name: self.to.clone(), id: self.id }
    }
}

/// The action for a name.
pub(super) enum Claim {
    /// Copy the file.
    Copy,
    /// Create a link to the copy.
    Link(Name),
    /// None: the fiber that copies the file does it.
    Wait,
}

impl Links {
    /// Returns the action for a name of a file that has `count` names.
    pub(super) fn claim(&self, id: Id, count: u64, waiting: impl FnOnce() -> Waiting) -> Claim {
        let mut files = lock(&self.files);
        let Some(file) = files.get_mut(&id) else {
            let state = State::Copying(Vec::new());
            files.insert(id, File { left: count.saturating_sub(1), state });
            return Claim::Copy;
        };
        file.left = file.left.saturating_sub(1);
        match &mut file.state {
            State::Copying(names) => {
                names.push(waiting());
                Claim::Wait
            }
            State::Copied { name, made } => {
                let name = name.clone();
                if let Some(made) = made {
                    made.push(waiting());
                } else if file.left == 0 {
                    files.remove(&id);
                }
                Claim::Link(name)
            }
        }
    }

    /// Records that the file was copied. Returns the names that wait for it. `may_change`: another copy to
    /// keep may be found.
    pub(super) fn copied(&self, id: Id, first: Waiting, may_change: bool) -> Vec<Waiting> {
        let mut files = lock(&self.files);
        let Some(file) = files.get_mut(&id) else { return Vec::new() };
        let State::Copying(waiting) = &mut file.state else { return Vec::new() };
        let waiting = std::mem::take(waiting);
        let name = first.name();
        let made = may_change.then(|| {
            let mut made = waiting.clone();
            // First the name that others link to, so that none becomes a name of the new file any more.
            made.insert(0, first);
            made
        });
        if file.left == 0 && made.is_none() {
            files.remove(&id);
        } else {
            file.state = State::Copied { name, made };
        }
        waiting
    }

    /// Records that a kept copy has this name. Returns the names of the other copy; all names found from now
    /// on become names of this one. `None`: the other one is kept as well, or another is.
    pub(super) fn found(&self, id: Id, kept: Name) -> Option<Vec<Waiting>> {
        match lock(&self.files).get_mut(&id).map(|file| &mut file.state) {
            Some(State::Copied { name, made }) if made.is_some() => {
                *name = kept;
                made.take()
            }
            _ => None,
        }
    }

    /// Returns a name of the copy, if there is one.
    pub(super) fn name(&self, id: Id) -> Option<Name> {
        match &lock(&self.files).get(&id)?.state {
            State::Copied { name, .. } => Some(name.clone()),
            State::Copying(_) => None,
        }
    }

    /// Records that the file could not be copied under its first name. Returns the next one, to try again.
    pub(super) fn failed(&self, id: Id) -> Option<Waiting> {
        let mut files = lock(&self.files);
        let file = files.get_mut(&id)?;
        if let State::Copying(names) = &mut file.state
            && let Some(next) = names.pop()
        {
            return Some(next);
        }
        files.remove(&id);
        None
    }
}
