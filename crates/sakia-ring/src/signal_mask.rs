//! The signals that a wait blocks, as the kernel takes them.
//!
//! Source: `sigprocmask(2)`, `signal(7)`, `include/uapi/asm/signal.h`.

use std::fmt;
use std::io;

use rustix::io::Errno;

use crate::sys;

/// A set of signals, which are blocked in a thread while it waits.
///
/// It is the kernel's set of 64 signals. `SIGKILL` and `SIGSTOP` may be in it, but the kernel never blocks
/// them.
///
/// # Examples
/// The present mask of the thread, without one signal:
/// ```
/// use sakia_ring::SignalMask;
///
/// let mask = SignalMask::blocking([libc::SIGTERM, libc::SIGUSR1])?.without([libc::SIGTERM])?;
/// assert!(mask.blocks(libc::SIGUSR1) && !mask.blocks(libc::SIGTERM));
/// let mask = SignalMask::of_thread()?.without([libc::SIGTERM])?;
/// assert!(!mask.blocks(libc::SIGTERM));
/// # std::io::Result::Ok(())
/// ```
#[doc(alias = "sigset_t")]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct SignalMask(u64);

impl SignalMask {
    /// Blocks no signal.
    pub const NONE: Self = Self(0);

    /// Returns the mask that blocks these signals, and no others.
    ///
    /// # Errors
    /// `EINVAL`: a number is not one of 1 to 64.
    ///
    /// # Examples
    /// See [`SignalMask`](SignalMask#examples).
    pub fn blocking(signals: impl IntoIterator<Item = i32>) -> io::Result<Self> {
        let mut bits = 0;
        for signal in signals {
            bits |= bit(signal).ok_or(Errno::INVAL)?;
        }
        Ok(Self(bits))
    }

    /// Returns the mask of the calling thread, as it is now.
    ///
    /// # Errors
    /// As `sigprocmask(2)`; only a filter of system calls makes it fail.
    ///
    /// # Examples
    /// See [`SignalMask`](SignalMask#examples).
    #[doc(alias = "pthread_sigmask")]
    pub fn of_thread() -> io::Result<Self> {
        let mut mask = Self::NONE;
        let to = (&raw mut mask).expose_provenance();
        // SAFETY: without a new mask, the call writes the old one to memory of this size, which outlives it.
        unsafe { sys::call(sys::__NR_rt_sigprocmask, [0, 0, to, size_of::<Self>(), 0, 0])? };
        Ok(mask)
    }

    /// Returns the mask without these signals.
    ///
    /// # Errors
    /// `EINVAL`: a number is not one of 1 to 64.
    ///
    /// # Examples
    /// See [`SignalMask`](SignalMask#examples).
    pub fn without(self, signals: impl IntoIterator<Item = i32>) -> io::Result<Self> {
        Ok(Self(self.0 & !Self::blocking(signals)?.0))
    }

    /// Returns whether the mask has this signal.
    ///
    /// # Examples
    /// See [`SignalMask`](SignalMask#examples).
    pub fn blocks(self, signal: i32) -> bool {
        bit(signal).is_some_and(|bit| self.0 & bit != 0)
    }

    /// Returns the mask with these bits. The lowest one is of signal 1.
    ///
    /// # Examples
    /// ```
    /// use sakia_ring::SignalMask;
    ///
    /// let mask = SignalMask::from_bits(1 << (libc::SIGTERM - 1));
    /// assert_eq!(mask, SignalMask::blocking([libc::SIGTERM])?);
    /// assert_eq!(SignalMask::from_bits(mask.to_bits()), mask);
    /// # std::io::Result::Ok(())
    /// ```
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the bits of the mask.
    ///
    /// # Examples
    /// See [`from_bits`](SignalMask::from_bits).
    pub const fn to_bits(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((1..=64).filter(|&signal| self.blocks(signal))).finish()
    }
}

/// Returns the bit of a signal, if there is such a signal.
fn bit(signal: i32) -> Option<u64> {
    matches!(signal, 1..=64).then(|| 1 << (signal - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_has_a_bit_and_no_other_number_has_one() {
        for signal in 1..=64 {
            let mask = SignalMask::blocking([signal]).unwrap();
            assert_eq!(mask.to_bits(), 1 << (signal - 1));
            assert!((1..=64).all(|other| mask.blocks(other) == (other == signal)));
            assert_eq!(mask.without([signal]).unwrap(), SignalMask::NONE);
            let others = SignalMask::from_bits(u64::MAX).without([signal]).unwrap();
            assert_eq!(others.to_bits(), !mask.to_bits());
            assert_eq!(format!("{mask:?}"), format!("{{{signal}}}"));
        }
        for signal in [i32::MIN, -1, 0, 65, 128, i32::MAX] {
            let error = SignalMask::blocking([1, signal]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
            let error = SignalMask::NONE.without([signal]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
            assert!(!SignalMask::from_bits(u64::MAX).blocks(signal));
        }
    }
}
