//! What goes on, for those who look on.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::hold::Hold;
use crate::report::{Counts, Failure, Report};

type OnFailure = Box<dyn Fn(&Failure) + Send + Sync>;
type OnEntry = Box<dyn Fn(&Path, &Path) + Send + Sync>;

/// Counts of what has been done so far, for any thread to look at, and whom to tell.
///
/// Workers add to it after some 64 entries, and after each part of a large file. The parts of one that could
/// not be completed are taken back.
#[derive(Default)]
pub struct Progress {
    counts: [AtomicU64; 8],
    failures: Mutex<Vec<Failure>>,
    /// What its workers are at.
    holds: Mutex<Vec<Weak<Hold>>>,
    on_failure: Option<OnFailure>,
    on_entry: Option<OnEntry>,
}

impl Progress {
    /// One that tells nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `tell` at each failure, on the thread on which it came up.
    #[must_use]
    pub fn on_failure(mut self, tell: impl Fn(&Failure) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Box::new(tell));
        self
    }

    /// Calls `tell` with source and destination of each entry that was done, on the thread that did it.
    #[must_use]
    pub fn on_entry(mut self, tell: impl Fn(&Path, &Path) + Send + Sync + 'static) -> Self {
        self.on_entry = Some(Box::new(tell));
        self
    }

    /// What has been done so far.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (slot, count) in counts.fields_mut().into_iter().zip(&self.counts) {
            *slot = count.load(Ordering::Relaxed);
        }
        counts
    }

    /// The paths of entries that are being dealt with, and of directories that are being read: those that
    /// are waited for where nothing goes on.
    pub fn under_way(&self) -> Vec<PathBuf> {
        let holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner).clone();
        holds.iter().filter_map(|hold| hold.upgrade()?.path()).collect()
    }

    pub(crate) fn hold(&self) -> Arc<Hold> {
        let hold = Arc::<Hold>::default();
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.retain(|hold| hold.strong_count() > 0);
        holds.push(Arc::downgrade(&hold));
        hold
    }

    /// So many bytes more of a file that is not complete.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.add(&Counts { bytes, ..Counts::default() });
    }

    /// The file they are of could not be completed.
    pub(crate) fn take_back_bytes(&self, bytes: u64) {
        let less = Counts { bytes, ..Counts::default() };
        for (less, count) in less.fields().into_iter().zip(&self.counts) {
            count.fetch_sub(less, Ordering::Relaxed);
        }
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
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < Report::FAILURES_MAX {
            failures.push(failure);
        }
    }

    /// The failures so far, which are the report's from then on.
    pub(crate) fn take_failures(&self) -> Vec<Failure> {
        std::mem::take(&mut self.failures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether somebody wants to know of each entry.
    pub(crate) fn wants_entries(&self) -> bool {
        self.on_entry.is_some()
    }

    pub(crate) fn entry(&self, from: &Path, to: &Path) {
        if let Some(tell) = &self.on_entry {
            tell(from, to);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Progress").field(&self.counts()).finish()
    }
}
