//! What is known of a file.

use std::sync::atomic::{AtomicU8, Ordering};

use super::CallMode;

/// Whether transfers of a file find their bytes in the page cache: a counter of two bits, and how many have
/// gone by without asking.
///
/// Threads may share it, which need not agree: what one of them learns may get lost.
#[derive(Debug)]
pub struct CacheHint(AtomicU8);

impl CacheHint {
    const LEVEL_MAX: u8 = 3;
    /// From this level on a call that does not wait is tried.
    const WARM: u8 = 2;
    /// One that has gone by, beside the level.
    const SKIPPED: u8 = Self::LEVEL_MAX + 1;
    /// A cold file is tried again after so many.
    const SKIPS: u8 = 15;

    /// Of a file of which nothing is known: its first transfer is tried.
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

    /// Whether to try a call that does not wait. If not, that is counted.
    #[inline(always)]
    pub fn is_worth_a_try(&self) -> bool {
        let hint = self.get();
        if hint & Self::LEVEL_MAX >= Self::WARM || hint / Self::SKIPPED >= Self::SKIPS {
            return true;
        }
        self.set(hint + Self::SKIPPED);
        false
    }

    /// A call found its bytes.
    #[inline(always)]
    pub fn hit(&self) {
        let hint = self.get();
        if hint != Self::LEVEL_MAX {
            let level = hint & Self::LEVEL_MAX;
            self.set((level + 1).clamp(Self::WARM, Self::LEVEL_MAX));
        }
    }

    /// A call would have waited.
    pub fn missed(&self) {
        self.set((self.get() & Self::LEVEL_MAX).saturating_sub(1));
    }
}

impl Default for CacheHint {
    fn default() -> Self {
        Self::new()
    }
}

/// Which plain calls take no wait, on a file or on all files of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallSupport {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// Those that refuse to wait.
    NonBlocking,
    /// All, and none can be asked to refuse: what is read and written is in memory.
    Any,
    /// None, as far as is known.
    None,
}

impl CallSupport {
    const ALL: [Self; 4] = [Self::Unknown, Self::NonBlocking, Self::Any, Self::None];

    /// How a call is made that takes no wait; where nobody has looked, one that refuses to.
    #[inline(always)]
    pub fn mode(self) -> Option<CallMode> {
        match self {
            Self::Unknown | Self::NonBlocking => Some(CallMode::NonBlocking),
            Self::Any => Some(CallMode::Blocking),
            Self::None => None,
        }
    }
}

/// The same for all threads that use it: what one learns the others know, sooner or later.
#[derive(Debug, Default)]
pub struct SharedCallSupport(AtomicU8);

impl SharedCallSupport {
    /// Where this is known.
    pub const fn new(support: CallSupport) -> Self {
        Self(AtomicU8::new(support as u8))
    }

    /// What is known by now.
    #[inline(always)]
    pub fn get(&self) -> CallSupport {
        CallSupport::ALL[usize::from(self.0.load(Ordering::Relaxed)) % CallSupport::ALL.len()]
    }

    /// Notes what a call has shown.
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
