//! Progress of the work, for observers.

use std::ffi::CStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::place::Place;
use crate::report::{Counters, Counts, Failure, Report};
use crate::sys::lock;

type OnFailure = Box<dyn Fn(&Failure) + Send + Sync>;
type OnEntry = Box<dyn Fn(&Path, &Path) + Send + Sync>;

/// Counts of the work so far, readable from any thread, and callbacks.
///
/// Workers add to it after about 64 entries, and after each part of a large file. The parts of a file that
/// could not be completed are subtracted again.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use sakia_copy::{Options, Progress, copy_tree};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-copy-progress-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let finished = Arc::new(AtomicU64::new(0));
/// let count = Arc::clone(&finished);
/// let progress = Progress::new()
///     .on_entry(move |_from, _to| drop(count.fetch_add(1, Ordering::Relaxed)))
///     .on_failure(|failure| eprintln!("{failure}"));
/// let progress = Arc::new(progress);
/// let (to, options) = (dir.join("to"), Options::new());
/// let report = sakia::block_on(copy_tree("src", to, &options, &progress))?;
/// // Another thread may look at the counts, and at what is under way, at any time.
/// assert_eq!(progress.counts().bytes, report.counts.bytes);
/// assert_eq!(finished.load(Ordering::Relaxed), report.counts.entries());
/// assert!(progress.under_way().is_empty());
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Default)]
pub struct Progress {
    counts: [AtomicU64; 8],
    failures: Mutex<Vec<Failure>>,
    /// The current work of each fiber.
    holds: Mutex<Vec<Weak<Hold>>>,
    on_failure: Option<OnFailure>,
    on_entry: Option<OnEntry>,
}

impl Progress {
    /// Returns a progress without callbacks.
    ///
    /// # Examples
    /// See [`Progress`](Progress#examples).
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `tell` at each failure, on the thread of the failure.
    ///
    /// # Examples
    /// See [`Progress`](Progress#examples).
    #[must_use]
    pub fn on_failure(mut self, tell: impl Fn(&Failure) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Box::new(tell));
        self
    }

    /// Calls `tell` with source and destination of each finished entry, on the thread that finished it.
    ///
    /// # Examples
    /// See [`Progress`](Progress#examples).
    #[must_use]
    pub fn on_entry(mut self, tell: impl Fn(&Path, &Path) + Send + Sync + 'static) -> Self {
        self.on_entry = Some(Box::new(tell));
        self
    }

    /// Returns the counts so far.
    ///
    /// # Examples
    /// See [`Progress`](Progress#examples).
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (slot, count) in counts.fields_mut().into_iter().zip(&self.counts) {
            *slot = count.load(Ordering::Relaxed);
        }
        counts
    }

    /// Returns the paths of entries in progress, and of directories being read: if the counts stand still,
    /// the work waits for these.
    ///
    /// # Examples
    /// See [`Progress`](Progress#examples).
    pub fn under_way(&self) -> Vec<PathBuf> {
        let holds = lock(&self.holds).clone();
        let mut paths = Vec::new();
        for path in holds.iter().filter_map(|hold| hold.upgrade()?.path()) {
            // Several may copy ranges of one file.
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }

    pub(crate) fn hold(&self) -> Arc<Hold> {
        let hold = Arc::<Hold>::default();
        let mut holds = lock(&self.holds);
        holds.retain(|hold| hold.strong_count() > 0);
        holds.push(Arc::downgrade(&hold));
        hold
    }

    /// Adds bytes of a file that is not complete.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.add(&Counts { bytes, ..Counts::default() });
    }

    /// Subtracts the bytes of a file that could not be completed.
    pub(crate) fn take_back_bytes(&self, bytes: u64) {
        // The addition wraps around.
        self.add_bytes(bytes.wrapping_neg());
    }

    pub(crate) fn add(&self, more: &Counts) {
        for (more, count) in more.fields().into_iter().zip(&self.counts) {
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn fail(&self, failure: Failure) {
        if let Some(tell) = &self.on_failure {
            tell(&failure);
        }
        let mut failures = lock(&self.failures);
        if failures.len() < Report::FAILURES_MAX {
            failures.push(failure);
        }
    }

    /// Returns a report of the counts since `before`, and moves the failures to it.
    pub(crate) fn report(&self, before: &Counts, counters: Counters, is_stopped: bool) -> Report {
        let mut counts = self.counts();
        for (count, before) in counts.fields_mut().into_iter().zip(before.fields()) {
            *count -= before;
        }
        let failures = std::mem::take(&mut *lock(&self.failures));
        Report { counts, counters, failures, is_stopped }
    }

    /// Counts a finished entry; its paths are computed only for a callback.
    pub(crate) fn entry(&self, paths: impl FnOnce() -> (PathBuf, PathBuf)) {
        if let Some(tell) = &self.on_entry {
            let (from, to) = paths();
            tell(&from, &to);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Progress").field(&self.counts()).finish()
    }
}

/// The entry that a fiber works on, or none. The lock is held for a few instructions, and never across a
/// blocking call.
#[derive(Default)]
pub(crate) struct Hold {
    state: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// The directory; it stays until the next one, so that its references need not be counted for each
    /// entry.
    place: Option<Arc<Place>>,
    /// With a final zero; empty for the directory itself.
    name: Vec<u8>,
}

impl Hold {
    /// Begins `name` in `place`.
    pub(crate) fn begin(&self, place: &Arc<Place>, name: &CStr) {
        let mut state = lock(&self.state);
        let is_same = state.place.as_ref().is_some_and(|is| Arc::ptr_eq(is, place));
        let before = if is_same { None } else { state.place.replace(Arc::clone(place)) };
        state.name.clear();
        state.name.extend_from_slice(name.to_bytes_with_nul());
        drop(state);
        // It may be the last reference, which closes the directory.
        drop(before);
    }

    /// Ends the current entry.
    pub(crate) fn end(&self) {
        let before = lock(&self.state).place.take();
        drop(before);
    }

    /// Returns the path of the current entry.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let state = lock(&self.state);
        let place = state.place.as_ref()?;
        let name = CStr::from_bytes_with_nul(&state.name).ok()?;
        Some(if name.is_empty() { place.path() } else { place.path_of(name) })
    }
}
