//! The pending parts of a directory: its unfinished entries, and itself while it is being read.
//!
//! A part can be put aside until the rest of the tree is done. A directory whose pending parts are all put
//! aside is itself such a part of its parent. When that is true of the root, nothing is in progress, and the
//! parts are done one after the other. Both numbers are in one word, so that one of the calls that change
//! them, and only one, finds that they became equal.

use std::sync::atomic::{AtomicU64, Ordering};

/// A part that was put aside, besides the part itself.
const ASIDE: u64 = 1 << 32;

/// The numbers of pending parts, and of those among them that were put aside.
pub(super) struct Parts(AtomicU64);

/// The end of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is done.
    Done,
    /// It is put aside.
    Aside,
    /// It was put aside, and is done.
    DoneLate,
}

/// The pending parts of a directory after the end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    Some,
    /// The last ones are put aside.
    Aside,
    None,
}

impl Parts {
    /// Returns one part: the directory that is being read.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(1))
    }

    pub(super) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(super) fn end(&self, end: End) -> Pending {
        let (now, is_late) = match end {
            End::Done => (self.0.fetch_sub(1, Ordering::AcqRel) - 1, false),
            End::Aside => (self.0.fetch_add(ASIDE, Ordering::AcqRel) + ASIDE, false),
            End::DoneLate => (self.0.fetch_sub(ASIDE + 1, Ordering::AcqRel) - ASIDE - 1, true),
        };
        match (now % ASIDE, now / ASIDE) {
            (0, _) => Pending::None,
            (pending, aside) if pending == aside && !is_late => Pending::Aside,
            _ => Pending::Some,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_parts_are_those_that_were_put_aside() {
        let parts = Parts::new();
        parts.add(3);
        assert_eq!(parts.end(End::Aside), Pending::Some);
        assert_eq!(parts.end(End::Done), Pending::Some);
        assert_eq!(parts.end(End::Aside), Pending::Some);
        // The directory was read.
        assert_eq!(parts.end(End::Done), Pending::Aside);
        assert_eq!(parts.end(End::DoneLate), Pending::Some);
        assert_eq!(parts.end(End::DoneLate), Pending::None);

        let parts = Parts::new();
        parts.add(1);
        assert_eq!(parts.end(End::Done), Pending::Some);
        assert_eq!(parts.end(End::Aside), Pending::Aside);
        assert_eq!(parts.end(End::DoneLate), Pending::None);
    }
}
