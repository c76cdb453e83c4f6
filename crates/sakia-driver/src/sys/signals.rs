//! Blocking signals: `SIGPIPE` during writes to pipes, all others on lane threads.
//!
//! The ring returns `EPIPE` and raises no signal, and so must this backend. A send to a socket has
//! `MSG_NOSIGNAL`; for a pipe, and for a file that is sent, the supported kernels have no such flag.
//!
//! Rust's runtime makes the process ignore the signal before `main`. If that still holds, and the thread does
//! not block the signal, nothing is left to do. The check takes two calls, so its result is used until the
//! next [tick](Tick): a program that restores the default action may be ended by a write of the same tick.
//! Otherwise the signal is blocked around the write, and removed from the thread afterwards:
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

use std::cell::Cell;

use rustix::io::Errno;

use crate::sys::{self, MaskChange, SignalSet, Tick};

const fn bit(signal: u32) -> SignalSet {
    1 << (signal - 1)
}

const SIGPIPE_NUMBER: u32 = 13;
const SIGPIPE: SignalSet = bit(SIGPIPE_NUMBER);

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
    if !has_sigpipe_no_effect() {
        return with_sigpipe_blocked(write);
    }
    let result = write();
    if matches!(result, Err(Errno::PIPE)) {
        // Blocked since the last look, it would stay.
        let mask = sys::signal_mask(MaskChange::Block, 0)?;
        if mask & SIGPIPE != 0 {
            take_sigpipe();
        }
    }
    result
}

/// Returns whether nothing happens on a `SIGPIPE`: the process ignores it, and this thread does not block it.
fn has_sigpipe_no_effect() -> bool {
    thread_local! {
        /// The last answer, and its tick.
        static ANSWER: Cell<(Tick, bool)> = const { Cell::new((Tick::NEVER, false)) };
    }
    let (now, (found, answer)) = (Tick::now(), ANSWER.get());
    if found.lasts(now) {
        return answer;
    }
    let is_blocked = || sys::signal_mask(MaskChange::Block, 0).map(|mask| mask & SIGPIPE != 0);
    let has_none = sys::is_ignored(SIGPIPE_NUMBER) == Ok(true) && is_blocked() == Ok(false);
    ANSWER.set((now, has_none));
    has_none
}

fn with_sigpipe_blocked<T>(write: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let old = sys::signal_mask(MaskChange::Block, SIGPIPE)?;
    let was_blocked = old & SIGPIPE != 0;
    let was_pending = was_blocked && sys::signals_pending().is_ok_and(|set| set & SIGPIPE != 0);
    let result = write();
    if matches!(result, Err(Errno::PIPE)) && !was_pending {
        take_sigpipe();
    }
    if !was_blocked {
        restore(old);
    }
    result
}

fn take_sigpipe() {
    // `EAGAIN` means that the file was not a pipe and raised no signal.
    let _ = sys::retry(|| sys::take_signal(SIGPIPE));
}

/// Calls `spawn` with the signal mask of a lane thread, which the threads that it starts inherit.
pub fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
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
    use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

    fn mask() -> SignalSet {
        sys::signal_mask(MaskChange::Block, 0).unwrap()
    }

    /// Runs on a new thread, where the signal's default would end the process.
    fn alone(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    /// Writes to a socket that was shut down. A pipe whose reader was closed would not do: a child that
    /// another test has forked in between may still hold the reader.
    fn write_to_nobody() -> Result<usize, Errno> {
        let (writer, _peer) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        shutdown(&writer, Shutdown::Write).unwrap();
        without_sigpipe(|| rustix::io::write(&writer, b"x"))
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_socket_that_was_shut_down_says_epipe_and_leaves_nothing_behind() {
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
    fn a_thread_that_blocks_the_signal_since_the_last_look_keeps_none() {
        alone(|| {
            assert!(has_sigpipe_no_effect());
            for _ in 0..100 {
                sys::signal_mask(MaskChange::Block, SIGPIPE).unwrap();
                assert_eq!(write_to_nobody(), Err(Errno::PIPE));
                assert_eq!(sys::signals_pending().unwrap() & SIGPIPE, 0);
                restore(0);
                assert_eq!(write_to_nobody(), Err(Errno::PIPE));
            }
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_signal_that_would_end_the_process_is_blocked() {
        let run = |is_known_to_be_ignored: bool| {
            // SAFETY: until it exits, the child makes system calls only; nothing of them allocates.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let was_ignored = is_known_to_be_ignored && has_sigpipe_no_effect();
                // SAFETY: the child's own disposition.
                unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
                let is_over = write_to_nobody() == Err(Errno::PIPE);
                // SAFETY: ends the child without running the exit handlers of the parent's threads.
                unsafe { libc::_exit(i32::from(!is_over) + 2 * i32::from(was_ignored)) };
            }
            let mut status = 0;
            // SAFETY: waits for the child, whose status is this function's.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        };
        let is_ended_by_sigpipe =
            |status| libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGPIPE;
        // A new thread knows nothing yet.
        let status = std::thread::spawn(move || run(false)).join().unwrap();
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
        // A check earlier in the same tick is still trusted, as said above, so the signal can end the
        // process.
        let known = || std::thread::spawn(move || run(true)).join().unwrap();
        assert!((0..100).map(|_| known()).any(is_ended_by_sigpipe));
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_mask_for_lanes_is_inherited_and_does_not_stay() {
        alone(|| {
            let before = mask();
            let thread = without_signals(|| std::thread::spawn(mask));
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
