//! The faults that the kernels of runs injected.

use std::fmt;

use sakia_driver::sim::{FaultKind, SimHandle};

/// Counts of faults that took effect, by kind: a kind that never did has none.
///
/// It prints as `ShortTransfer 12, Errno 1`, or as `none`.
///
/// # Examples
/// See [`Summary`](super::Summary#examples).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// In the order of [`FaultKind::ALL`].
    counts: Vec<(FaultKind, u64)>,
}

impl Faults {
    /// Returns the faults that the kernel has injected.
    pub(super) fn of(kernel: &SimHandle) -> Self {
        let count = |&kind| (kind, kernel.injected(kind));
        let counts = FaultKind::ALL.iter().map(count).filter(|&(_, count)| count > 0);
        Self { counts: counts.collect() }
    }

    /// Adds the counts of another run.
    pub(super) fn add(&mut self, other: &Self) {
        let sum = |&kind: &FaultKind| (kind, self.count(kind) + other.count(kind));
        let counts = FaultKind::ALL.iter().map(sum).filter(|&(_, count)| count > 0);
        self.counts = counts.collect();
    }

    /// Returns how often a fault of this kind took effect.
    ///
    /// # Examples
    /// See [`Summary`](super::Summary#examples).
    pub fn count(&self, kind: FaultKind) -> u64 {
        self.iter().find(|&(of, _)| of == kind).map_or(0, |(_, count)| count)
    }

    /// Returns the kinds of faults that took effect, with their counts.
    ///
    /// # Examples
    /// See [`Summary`](super::Summary#examples).
    pub fn iter(&self) -> impl Iterator<Item = (FaultKind, u64)> {
        self.counts.iter().copied()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.counts.is_empty() {
            return f.write_str("none");
        }
        for (place, (kind, count)) in self.iter().enumerate() {
            write!(f, "{}{kind:?} {count}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
