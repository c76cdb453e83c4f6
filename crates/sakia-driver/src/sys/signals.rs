//! Blocking signals: `SIGPIPE` during writes to pipes, all others on lane threads.
//!
//! The ring returns `EPIPE` and raises no signal, and so must this backend. A send to a socket has
//! `MSG_NOSIGNAL`; for a pipe the supported kernels have no such flag, so the signal is blocked around the
//! write and removed from the thread afterwards:
//! 1. Block `SIGPIPE`. The mask is the thread's own.
//! 2. If it was blocked before, check whether one is pending: that one must stay. If it was not blocked,
//!    none can be pending.
//! 3. Write. Without a reader, the kernel sends `SIGPIPE` to *this thread*, and fails with `EPIPE`. A
//!    blocked signal stays pending even if it is ignored.
//! 4. On `EPIPE` take the signal. The thread's own is taken before one sent to the whole process.
//! 5. Restore the mask.
//!
//! Lane threads block nearly all signals permanently. Pending ones end with the thread.
//!
//! Source: `sigprocmask(2)`, `sigtimedwait(2)`, `signal(7)`.

use rustix::io::Errno;

use crate::sys::{self, MaskChange, SignalSet};

const fn bit(signal: u32) -> SignalSet {
    1 << (signal - 1)
}

const SIGPIPE: SignalSet = bit(13);

/// The signals that a lane thread blocks. Not among them: those raised by its own instructions (ILL, TRAP,
/// BUS, FPE, SEGV, SYS), which must not be blocked, and the three that C libraries send to all threads and
/// wait for, for example when the process changes its user.
const KEPT_OFF_LANES: SignalSet =
    !(bit(4) | bit(5) | bit(7) | bit(8) | bit(11) | bit(31) | bit(32) | bit(33) | bit(34));

/// Calls `write`, which may write to a pipe without a reader, without a `SIGPIPE`.
///
/// # Errors
/// Those of `write`.
pub(crate) fn without_sigpipe<T>(write: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let old = sys::signal_mask(MaskChange::Block, SIGPIPE)?;
    let was_blocked = old & SIGPIPE != 0;
    let was_pending = was_blocked && sys::signals_pending().is_ok_and(|set| set & SIGPIPE != 0);
    let result = write();
    if matches!(result, Err(Errno::PIPE)) && !was_pending {
        // `EAGAIN` means that the file was not a pipe and raised no signal.
        let _ = sys::retry(|| sys::take_signal(SIGPIPE));
    }
    if !was_blocked {
        restore(old);
    }
    result
}

/// Calls `spawn` with the signal mask that a lane thread inherits.
pub(crate) fn with_lane_mask<T>(spawn: impl FnOnce() -> T) -> T {
    let old = sys::signal_mask(MaskChange::Block, KEPT_OFF_LANES);
    let result = spawn();
    if let Ok(old) = old {
        restore(old);
    }
    result
}

fn restore(old: SignalSet) {
    let restored = sys::signal_mask(MaskChange::Set, old);
    debug_assert!(restored.is_ok(), "a mask that was read can be set: {restored:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn mask() -> SignalSet {
        sys::signal_mask(MaskChange::Block, 0).unwrap()
    }

    /// Runs on a new thread, where the signal's default would end the process.
    fn alone(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    fn write_to_nobody() -> Result<usize, Errno> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(reader);
        without_sigpipe(|| rustix::io::write(&writer, b"x"))
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_pipe_without_reader_says_epipe_and_leaves_nothing_behind() {
        alone(|| {
            let before = mask();
            assert_eq!(write_to_nobody(), Err(Errno::PIPE));
            assert_eq!(mask(), before);
            sys::signal_mask(MaskChange::Block, SIGPIPE).unwrap();
            assert_eq!(sys::signals_pending().unwrap() & SIGPIPE, 0);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_signal_that_was_pending_before_stays_so() {
        alone(|| {
            sys::signal_mask(MaskChange::Block, SIGPIPE).unwrap();
            // SAFETY: sends a signal to this thread, where it is blocked.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
            assert_eq!(write_to_nobody(), Err(Errno::PIPE));
            assert_ne!(sys::signals_pending().unwrap() & SIGPIPE, 0);
            assert_ne!(mask() & SIGPIPE, 0);
            sys::take_signal(SIGPIPE).unwrap();
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_mask_for_lanes_is_inherited_and_does_not_stay() {
        alone(|| {
            let before = mask();
            let thread = with_lane_mask(|| std::thread::spawn(mask));
            let kept_off = thread.join().unwrap();
            assert_eq!(mask(), before);
            for signal in [libc::SIGTERM, libc::SIGPIPE, libc::SIGXFSZ, libc::SIGUSR1] {
                assert_ne!(kept_off & bit(signal as u32), 0, "{signal}");
            }
            for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS, 33] {
                assert_eq!(kept_off & bit(signal as u32), 0, "{signal}");
            }
        });
    }
}
