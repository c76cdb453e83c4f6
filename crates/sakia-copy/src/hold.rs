//! What a fiber is at, for those who would rather not wait for it.

use std::ffi::{CStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::place::Place;

/// An entry, or nothing. The lock is held for a few instructions, and by no call that waits.
#[derive(Default)]
pub(crate) struct Hold {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The directory; it stays until there is another, so that its users need not be counted for each entry.
    place: Option<Arc<Place>>,
    /// Nothing for the directory itself.
    name: Vec<u8>,
}

impl Hold {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `name` in `place` is begun.
    pub(crate) fn begin(&self, place: &Arc<Place>, name: &CStr) {
        let mut state = self.lock();
        let is_same = state.place.as_ref().is_some_and(|is| Arc::ptr_eq(is, place));
        let before = if is_same { None } else { state.place.replace(Arc::clone(place)) };
        state.name.clear();
        state.name.extend_from_slice(name.to_bytes());
        drop(state);
        // It may be the last to let go of it, which closes the directory.
        drop(before);
    }

    /// There is nothing more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        let before = state.place.take();
        drop(state);
        drop(before);
    }

    /// The path of what it is at.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let state = self.lock();
        let place = state.place.as_ref()?;
        let name = OsString::from_vec(state.name.clone());
        let path = if place.is_current() { PathBuf::new() } else { place.path() };
        Some(if name.is_empty() { place.path() } else { path.join(name) })
    }
}
