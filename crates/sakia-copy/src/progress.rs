//! What goes on, for those who look on.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::report::{Counts, Failure, Report};

type OnFailure = Box<dyn Fn(&Failure) + Send + Sync>;
type OnEntry = Box<dyn Fn(&Path, &Path) + Send + Sync>;

/// Counts of what has been done so far, for any thread to look at, and whom to tell.
///
/// Workers add to it after some 64 entries, and after each mebibyte of a large file.
#[derive(Default)]
pub struct Progress {
    counts: [AtomicU64; 8],
    failures: Mutex<Vec<Failure>>,
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
