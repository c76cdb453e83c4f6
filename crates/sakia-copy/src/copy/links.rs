//! Names of the same file.
//!
//! The first name that is found has the file copied. Names that are found while that goes on are left to
//! whom copies it; later ones are made at once. Directories of the copy are kept in mind, not open.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Copy;
use crate::crew::Folder;
use crate::place::{Id, Place};

/// Files of the source with several names.
#[derive(Default)]
pub(super) struct Links {
    files: Mutex<HashMap<Id, File>>,
}

struct File {
    /// Names of it that were not found yet, or lie outside of what is copied.
    left: u64,
    state: State,
}

enum State {
    /// It is being copied; these names wait for it.
    Copying(Vec<Waiting>),
    /// Where the copy is.
    Copied(Name),
}

/// A name of the copy: its directory, or the directory that the process is in.
#[derive(Clone)]
pub(super) struct Name {
    pub(super) place: Arc<Place>,
    pub(super) name: CString,
}

/// A name of the source that is to become a name of the copy.
pub(super) struct Waiting {
    pub(super) folder: Option<Arc<Folder<Copy>>>,
    pub(super) name: CString,
    /// Of the copy; it differs from `name` at the root only.
    pub(super) to: CString,
}

/// What is to be done with a name.
pub(super) enum Claim {
    /// To copy the file.
    Copy,
    /// To make a link to the copy.
    Link(Name),
    /// Nothing: who copies the file does.
    Wait,
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, HashMap<Id, File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what is to be done with a name of a file that has `count` names.
    pub(super) fn claim(&self, id: Id, count: u64, waiting: impl FnOnce() -> Waiting) -> Claim {
        let mut files = self.lock();
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
            State::Copied(name) => {
                let name = name.clone();
                if file.left == 0 {
                    files.remove(&id);
                }
                Claim::Link(name)
            }
        }
    }

    /// The file has been copied. Returns the names that wait for it.
    pub(super) fn copied(&self, id: Id, name: Name) -> Vec<Waiting> {
        let mut files = self.lock();
        let Some(file) = files.get_mut(&id) else { return Vec::new() };
        let state = std::mem::replace(&mut file.state, State::Copied(name));
        if file.left == 0 {
            files.remove(&id);
        }
        match state {
            State::Copying(names) => names,
            State::Copied(_) => Vec::new(),
        }
    }

    /// The file could not be copied under the name that was found first. Returns the next one, with which to
    /// try again.
    pub(super) fn failed(&self, id: Id) -> Option<Waiting> {
        let mut files = self.lock();
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
