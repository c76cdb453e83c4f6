//! Reference counts that one thread changes without atomic operations.
//!
//! References are counted in two places. The *home* thread counts those that it makes and drops in `local`,
//! which no other thread touches. Other threads count in `word`, atomically. Only the sum is the number of
//! references: one that was made here and dropped there is +1 in one and -1 in the other, so each of the two
//! may be negative. The story of a count:
//! 1. It begins *biased*, with the references that its home made; or [shared](Count::shared), and then
//!    `local` is never used.
//! 2. Home drops a reference: if `local` and `word` add up to zero, it was the last. Home may read an old
//!    value of `word`, but misses nothing. All changes that home has seen are a prefix of all changes to
//!    `word`. Each change was made by the owner of a reference; that reference was made by home, or by a
//!    change to `word` that comes earlier. So if no reference is left after the prefix, nothing follows it.
//! 3. Another thread drops a reference while the count is biased: it cannot know whether that was the last,
//!    and assumes that it was not. So home has to *merge* at some time, while it has a reference: it adds
//!    `local` to `word`, once, and sets [`MERGED`].
//! 4. From then on all threads, home as well, use `word` alone; the thread that brings it to zero has dropped
//!    the last reference.
//!
//! Harmless: a merge while other threads change `word`, since each change is one atomic step. A count that is
//! never merged may keep its object for ever.
//!
//! The lowest bits of `word` are flags, which the object's own protocol uses in the same atomic steps.

use std::cell::Cell;

use crate::sync::{AtomicU64, HomeCell, Ordering};
use crate::thread::ThreadId;

/// One reference, in `word`.
pub(crate) const ONE: u64 = 1 << 8;
/// The bits below the count.
const FLAGS: u64 = ONE - 1;
/// `word` has all references. Set once, by home or at the start; from then on `local` is not used.
pub(crate) const MERGED: u64 = 1;
/// More references than a process can have without having forgotten them for a year.
const REFERENCES_MAX: i64 = 1 << 53;

/// References to an object that has a home thread.
pub(crate) struct Count {
    /// Never changed. In a cell like all fields here, so that no reference to a count promises that it stays:
    /// another thread may free the count while a call of `release` returns.
    home: Cell<ThreadId>,
    /// References that the home thread has made, less those that it has dropped. Only home touches it, while
    /// [`MERGED`] is not set.
    local: HomeCell<i64>,
    /// References that other threads have made, less those that they have dropped, above the flags. Changed
    /// by read-modify-write only, so that each change sees everything done before the changes that it
    /// follows.
    word: AtomicU64,
}

// SAFETY: `home` is only read, and `word` is atomic. `local` is touched on the home thread only, of which
// there is one: `retain`, `release`, `revive`, `settle` and `merge` have found before that they run there,
// and callers of `retain_at_home` promise it.
unsafe impl Sync for Count {}

/// The result of [`Count::settle`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// There was one reference, the caller's: nothing else can reach the object.
    Last,
    /// The flags are set, all references are in the word, and the caller's was dropped.
    Done,
    /// Nothing was changed: the word was merged already, had one of the flags in the way, or changed just
    /// then.
    Not,
}

/// Returns the references in a word.
#[inline(always)]
fn references(word: u64) -> i64 {
    word.cast_signed() >> 8
}

impl Count {
    /// Returns a count with `references` of the calling thread, which is home.
    #[inline(always)]
    pub(crate) fn biased(references: i64) -> Self {
        let (local, word) = (HomeCell::new(references), AtomicU64::new(0));
        Self { home: Cell::new(ThreadId::current()), local, word }
    }

    /// Returns a merged count with `references`, whichever thread is home.
    #[inline]
    pub(crate) fn shared(home: ThreadId, references: u64, flags: u64) -> Self {
        let word = AtomicU64::new((references * ONE) | flags | MERGED);
        Self { home: Cell::new(home), local: HomeCell::new(0), word }
    }

    /// Returns whether the calling thread is home.
    #[inline(always)]
    pub(crate) fn is_home(&self) -> bool {
        self.home.get().is_current()
    }

    /// Returns the flags, and makes all that happened before they were set visible.
    #[inline(always)]
    pub(crate) fn flags(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// Sets flags; returns those from before.
    pub(crate) fn set(&self, flags: u64) -> u64 {
        self.word.fetch_or(flags, Ordering::AcqRel)
    }

    /// Clears flags; returns those from before.
    pub(crate) fn clear(&self, flags: u64) -> u64 {
        self.word.fetch_and(!flags, Ordering::AcqRel)
    }

    /// Counts one more reference; the caller has one.
    #[inline(always)]
    pub(crate) fn retain(&self) {
        // `MERGED` is set by home, or before the object was shared: home needs no order to see it.
        if self.is_home() && self.word.load(Ordering::Relaxed) & MERGED == 0 {
            self.local.set(self.local.get() + 1);
        } else {
            self.retain_shared();
        }
    }

    /// As [`retain`](Self::retain), without a test of what the caller knows.
    ///
    /// # Safety
    /// - The calling thread is home, and the count was not merged.
    #[inline(always)]
    pub(crate) unsafe fn retain_at_home(&self) {
        self.local.set(self.local.get() + 1);
    }

    #[inline(never)]
    fn retain_shared(&self) {
        // The reference from which this one is made keeps the object alive.
        let before = self.word.fetch_add(ONE, Ordering::Relaxed);
        if references(before) > REFERENCES_MAX {
            std::process::abort();
        }
    }

    /// Drops one reference. Returns true if it was the last: then the object belongs to the caller alone, who
    /// sees all that others did with it. The count has no meaning any more, unless it is
    /// [revived](Self::revive).
    #[inline(always)]
    #[must_use]
    pub(crate) fn release(&self) -> bool {
        if self.is_home() {
            // Pairs with changes of other threads: all that they did before they dropped their references is
            // visible.
            let word = self.word.load(Ordering::Acquire);
            if word & MERGED == 0 {
                let local = self.local.get() - 1;
                self.local.set(local);
                return local + references(word) == 0;
            }
        }
        self.release_shared()
    }

    /// As [`release`](Self::release), for a merged count.
    #[inline(always)]
    #[must_use]
    pub(crate) fn release_merged(&self) -> bool {
        // As in `release_shared`, which this saves a call if the reference is the only one.
        references(self.word.load(Ordering::Acquire)) == 1 || self.release_shared()
    }

    #[inline(never)]
    fn release_shared(&self) -> bool {
        // Only the owner of the last reference, here the caller, can make more of it. The load pairs with the
        // changes of threads that dropped theirs.
        let word = self.word.load(Ordering::Acquire);
        if word & MERGED != 0 && references(word) == 1 {
            return true;
        }
        // Release: the thread that drops the last reference sees all earlier uses. Acquire: in case it is
        // this thread.
        let before = self.word.fetch_sub(ONE, Ordering::AcqRel);
        before & MERGED != 0 && references(before) == 1
    }

    /// Counts one reference again, after the last one was dropped: the object belongs to the caller alone, at
    /// home or with a merged count.
    pub(crate) fn revive(&self) {
        let word = self.word.load(Ordering::Relaxed);
        if word & MERGED != 0 {
            self.word.store((word & FLAGS) | ONE, Ordering::Relaxed);
        } else if self.is_home() {
            self.local.set(1 - references(word));
        }
    }

    /// Merges, sets `flags` and drops the caller's reference, in one step, unless a flag of `but` is set.
    /// Must be called at home.
    #[inline(always)]
    pub(crate) fn settle(&self, flags: u64, but: u64) -> Settled {
        let word = self.word.load(Ordering::Acquire); // as in `release`
        if !self.is_home() || word & (MERGED | but) != 0 {
            return Settled::Not;
        }
        let left = self.local.get() + references(word) - 1;
        if left == 0 {
            return Settled::Last;
        }
        // Without the caller's reference, one is left at least.
        let new = (checked(left.cast_unsigned()) << 8) | (word & FLAGS) | flags | MERGED;
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        match self.word.compare_exchange(word, new, order.0, order.1) {
            Ok(_) => Settled::Done,
            Err(_) => Settled::Not,
        }
    }

    /// Merges, if that was not done before. Must be called at home, with a reference.
    pub(crate) fn merge(&self) {
        if self.is_home() && self.word.load(Ordering::Relaxed) & MERGED == 0 {
            let local = self.local.get();
            checked(local.unsigned_abs());
            let references = local.cast_unsigned() << 8;
            self.word.fetch_add(references.wrapping_add(MERGED), Ordering::AcqRel);
        }
    }
}

/// Returns this number of references, if a word has room for it. Ends the process otherwise.
#[inline(always)]
fn checked(references: u64) -> u64 {
    if references > REFERENCES_MAX.cast_unsigned() {
        std::process::abort();
    }
    references
}
