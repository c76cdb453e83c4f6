//! The facts that are remembered of a file: the page cache, and calls that do not block.

use std::sync::atomic::{AtomicU8, Ordering};

use super::CallMode;

/// Predicts, for the reads or the writes of a file, which plain calls do not block: the calls that it has
/// ([`CallSupport`]), and whether they find their bytes in the page cache. One byte: a saturating counter of
/// two bits, the number of transfers since the last try, and the support.
///
/// Threads may share it. Updates are not atomic as a whole, so one of two concurrent ones may get lost, and
/// is learned again.
///
/// # Examples
/// ```
/// use sakia_driver::{CallMode, CallSupport, FileHint};
///
/// let hint = FileHint::new(CallSupport::NonBlocking);
/// assert_eq!(hint.mode(), Some(CallMode::NonBlocking));
/// hint.missed();
/// assert_eq!(hint.mode(), None, "a cold file is tried now and then");
/// hint.refused(CallMode::NonBlocking, || true);
/// assert_eq!(hint.mode(), Some(CallMode::Blocking), "a file in memory never waits");
/// ```
#[derive(Debug)]
pub struct FileHint(AtomicU8);

impl FileHint {
    const LEVEL_MAX: u8 = 3;
    /// From this level on a non-blocking call is tried.
    const WARM: u8 = 2;
    /// One skipped transfer, in the bits above the level.
    const SKIPPED: u8 = Self::LEVEL_MAX + 1;
    /// A cold file is tried again after this many transfers, which have four bits.
    const SKIPS: u8 = 15;
    /// The support is in the bits above the skipped transfers.
    const SUPPORT: u8 = Self::SKIPPED * (Self::SKIPS + 1);

    /// Returns the hint of a file with this support: its first transfer is tried.
    ///
    /// # Examples
    /// See [`FileHint`].
    pub const fn new(support: CallSupport) -> Self {
        Self(AtomicU8::new(support as u8 * Self::SUPPORT + Self::WARM))
    }

    #[inline(always)]
    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(&self, hint: u8) {
        self.0.store(hint, Ordering::Relaxed);
    }

    /// Returns the support.
    ///
    /// # Examples
    /// See [`FileHint`].
    #[inline(always)]
    pub fn support(&self) -> CallSupport {
        CallSupport::ALL[usize::from(self.get() / Self::SUPPORT)]
    }

    /// Sets the support.
    ///
    /// # Examples
    /// See [`FileHint`].
    #[inline(always)]
    pub fn set_support(&self, support: CallSupport) {
        self.set(support as u8 * Self::SUPPORT + self.get() % Self::SUPPORT);
    }

    /// Returns the mode of the next transfer's plain call; `None` if none is to be made, which is counted.
    ///
    /// # Examples
    /// See [`FileHint`].
    #[inline(always)]
    pub fn mode(&self) -> Option<CallMode> {
        match self.support() {
            CallSupport::Unknown | CallSupport::NonBlocking => {
                self.is_worth_a_try().then_some(CallMode::NonBlocking)
            }
            CallSupport::Any => Some(CallMode::Blocking),
            CallSupport::None => None,
        }
    }

    /// Returns whether to try a non-blocking call; if not, counts the transfer as not tried.
    #[inline(always)]
    pub(crate) fn is_worth_a_try(&self) -> bool {
        let hint = self.get();
        if hint & Self::LEVEL_MAX >= Self::WARM
            || hint % Self::SUPPORT / Self::SKIPPED >= Self::SKIPS
        {
            return true;
        }
        self.set(hint + Self::SKIPPED);
        false
    }

    /// Records a call that found its bytes.
    ///
    /// # Examples
    /// See [`FileHint`].
    #[inline(always)]
    pub fn hit(&self) {
        let hint = self.get();
        let level = hint & Self::LEVEL_MAX;
        if level != Self::LEVEL_MAX {
            let level = (level + 1).clamp(Self::WARM, Self::LEVEL_MAX);
            self.set(hint / Self::SUPPORT * Self::SUPPORT + level);
        }
    }

    /// Records a call that would have blocked.
    ///
    /// # Examples
    /// See [`FileHint`].
    pub fn missed(&self) {
        let hint = self.get();
        let level = (hint & Self::LEVEL_MAX).saturating_sub(1);
        self.set(hint / Self::SUPPORT * Self::SUPPORT + level);
    }

    /// Records that the file has no call of this mode. Without non-blocking ones a file in memory has all
    /// calls, and any other none.
    ///
    /// # Examples
    /// See [`FileHint`].
    #[cold]
    pub fn refused(&self, mode: CallMode, is_in_memory: impl FnOnce() -> bool) {
        let has_all = mode == CallMode::NonBlocking && is_in_memory();
        self.set_support(if has_all { CallSupport::Any } else { CallSupport::None });
    }
}

impl Default for FileHint {
    /// Returns the hint of a file of which nothing is known.
    fn default() -> Self {
        Self::new(CallSupport::Unknown)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cold_file_is_tried_now_and_then_and_a_hot_one_always() {
        let hint = FileHint::default();
        assert!(hint.is_worth_a_try());
        hint.missed();
        for _ in 0..FileHint::SKIPS {
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

    /// All that is in the one byte, against a plain structure.
    #[test]
    fn its_parts_do_not_disturb_each_other() {
        use CallSupport::{Any, NonBlocking, None, Unknown};
        let supports = [Unknown, NonBlocking, Any, None];
        let (mut support, mut level, mut skipped) = (Unknown, 2_u8, 0_u8);
        let hint = FileHint::default();
        let mut state = 1_u64;
        for step in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match state >> 61 {
                0 => {
                    support = supports[(state >> 40) as usize % 4];
                    hint.set_support(support);
                }
                1 => {
                    hint.hit();
                    // A hot file is not written to again, whatever was skipped: nothing is.
                    (level, skipped) = if level == 3 { (3, 0) } else { ((level + 1).max(2), 0) };
                }
                2 => {
                    hint.missed();
                    (level, skipped) = (level.saturating_sub(1), 0);
                }
                3 if state >> 50 & 7 == 0 => {
                    let in_memory = state >> 40 & 1 == 0;
                    let mode =
                        [CallMode::NonBlocking, CallMode::Blocking][(state >> 41 & 1) as usize];
                    hint.refused(mode, || in_memory);
                    support = if in_memory && mode == CallMode::NonBlocking { Any } else { None };
                }
                _ => {
                    let tried = level >= 2 || skipped == FileHint::SKIPS;
                    let expected = match support {
                        Any => Some(CallMode::Blocking),
                        None => Option::None,
                        Unknown | NonBlocking if tried => Some(CallMode::NonBlocking),
                        Unknown | NonBlocking => {
                            skipped += 1;
                            Option::None
                        }
                    };
                    assert_eq!(hint.mode(), expected, "step {step}");
                }
            }
            assert_eq!(hint.support(), support, "step {step}");
        }
    }
}
