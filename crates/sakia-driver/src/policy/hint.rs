//! Hints about a file: the page cache, and calls that do not block.

use std::sync::atomic::{AtomicU8, Ordering};

use super::CallMode;

/// Predicts whether transfers of a file find their bytes in the page cache: a saturating counter of two
/// bits, and the number of transfers since the last try.
///
/// Threads may share it. Updates are not atomic as a whole, so one of two concurrent ones may get lost.
#[derive(Debug)]
pub struct CacheHint(AtomicU8);

impl CacheHint {
    const LEVEL_MAX: u8 = 3;
    /// From this level on a non-blocking call is tried.
    const WARM: u8 = 2;
    /// One skipped transfer, in the bits above the level.
    const SKIPPED: u8 = Self::LEVEL_MAX + 1;
    /// A cold file is tried again after this many transfers.
    const SKIPS: u8 = 15;

    /// Returns the hint of a new file: its first transfer is tried.
    pub const fn new() -> Self {
        Self(AtomicU8::new(Self::WARM))
    }

    #[inline(always)]
    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(&self, hint: u8) {
        self.0.store(hint, Ordering::Relaxed);
    }

    /// Returns whether to try a non-blocking call; if not, counts the transfer as not tried.
    #[inline(always)]
    pub fn is_worth_a_try(&self) -> bool {
        let hint = self.get();
        if hint & Self::LEVEL_MAX >= Self::WARM || hint / Self::SKIPPED >= Self::SKIPS {
            return true;
        }
        self.set(hint + Self::SKIPPED);
        false
    }

    /// Records a call that found its bytes.
    #[inline(always)]
    pub fn hit(&self) {
        let hint = self.get();
        if hint != Self::LEVEL_MAX {
            let level = hint & Self::LEVEL_MAX;
            self.set((level + 1).clamp(Self::WARM, Self::LEVEL_MAX));
        }
    }

    /// Records a call that would have blocked.
    pub fn missed(&self) {
        self.set((self.get() & Self::LEVEL_MAX).saturating_sub(1));
    }
}

impl Default for CacheHint {
    fn default() -> Self {
        Self::new()
    }
}

/// The plain calls that do not block on a file, or on all files of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallSupport {
    /// Not known yet.
    #[default]
    Unknown,
    /// Calls with `RWF_NOWAIT`.
    NonBlocking,
    /// All calls: `RWF_NOWAIT` is not supported, but the file is in memory.
    Any,
    /// No calls.
    None,
}

impl CallSupport {
    const ALL: [Self; 4] = [Self::Unknown, Self::NonBlocking, Self::Any, Self::None];

    /// Returns the mode of a call that does not block; `NonBlocking` if nothing is known.
    #[inline(always)]
    pub fn mode(self) -> Option<CallMode> {
        match self {
            Self::Unknown | Self::NonBlocking => Some(CallMode::NonBlocking),
            Self::Any => Some(CallMode::Blocking),
            Self::None => None,
        }
    }
}

/// A [`CallSupport`] that threads share: one learns, the others see it eventually.
#[derive(Debug, Default)]
pub struct SharedCallSupport(AtomicU8);

impl SharedCallSupport {
    /// Returns one with this initial value.
    pub const fn new(support: CallSupport) -> Self {
        Self(AtomicU8::new(support as u8))
    }

    /// Returns the current value.
    #[inline(always)]
    pub fn get(&self) -> CallSupport {
        CallSupport::ALL[usize::from(self.0.load(Ordering::Relaxed)) % CallSupport::ALL.len()]
    }

    /// Sets the value, for all threads.
    #[inline(always)]
    pub fn set(&self, support: CallSupport) {
        self.0.store(support as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cold_file_is_tried_now_and_then_and_a_hot_one_always() {
        let hint = CacheHint::new();
        assert!(hint.is_worth_a_try());
        hint.missed();
        for _ in 0..CacheHint::SKIPS {
            assert!(!hint.is_worth_a_try());
        }
        assert!(hint.is_worth_a_try());
        hint.hit();
        assert!(hint.is_worth_a_try());
        hint.hit();
        hint.hit();
        hint.missed();
        assert!(hint.is_worth_a_try(), "one miss of a hot file is no rule");
        hint.missed();
        hint.missed();
        hint.missed();
        assert!(!hint.is_worth_a_try());
    }
}
