//! Waits with and without registered memory for their timeouts have the same outcome.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use sakia_ring::{Builder, Ring, SignalMask, Sqe};

use crate::hosts::Rigged;
use crate::support::{PATIENCE, complete, enter, push, push_nops, reap_all, skip};

const MOMENT: Duration = Duration::from_millis(5);

fn both() -> [Ring; 2] {
    [true, false].map(|registered| {
        let ring = Ring::builder().registered_wait(registered).build().unwrap();
        assert!(registered || !ring.report().registered_wait);
        ring
    })
}

#[test]
fn registered_waits_are_granted() {
    let report = Ring::builder().build().unwrap().report().clone();
    if !report.registered_wait {
        skip!("registered waits are refused (kernel 6.13): {:?}", report.steps);
    }
    assert!(report.steps.is_empty(), "{:?}", report.steps);
}

#[test]
fn nothing_comes_in_time() {
    for mut ring in both() {
        for timeout in [Duration::ZERO, Duration::from_nanos(1), MOMENT] {
            let entered = enter(&mut ring, 1, Some(timeout));
            assert!(entered.timed_out, "{timeout:?}");
            assert_eq!(entered.consumed, 0);
        }
    }
}

#[test]
fn enough_is_there_already() {
    for mut ring in both() {
        push_nops(&mut ring, 0..2);
        ring.submit().unwrap();
        for timeout in [None, Some(Duration::ZERO), Some(PATIENCE)] {
            let entered = enter(&mut ring, 2, timeout);
            assert!(!entered.timed_out, "{timeout:?}");
        }
        assert_eq!(reap_all(&mut ring).len(), 2);
    }
}

#[test]
fn what_is_submitted_completes_at_once() {
    for mut ring in both() {
        for timeout in [None, Some(Duration::ZERO), Some(PATIENCE)] {
            push_nops(&mut ring, 0..3);
            let entered = enter(&mut ring, 3, timeout);
            assert_eq!((entered.consumed, entered.timed_out), (3, false));
            assert_eq!(reap_all(&mut ring).len(), 3);
        }
    }
}

/// The kernel returns one answer: the number of consumed entries, the readiness of completions, or the reason
/// for the return.
#[test]
fn a_timeout_does_not_show_when_there_is_better_news() {
    for mut ring in both() {
        push_nops(&mut ring, 0..1);
        let entered = enter(&mut ring, 2, Some(MOMENT));
        assert_eq!((entered.consumed, entered.timed_out), (1, false));
        assert_eq!(ring.cq_ready(), 1);
        let entered = enter(&mut ring, 2, Some(MOMENT));
        assert_eq!((entered.consumed, entered.timed_out), (0, false));
        reap_all(&mut ring);
        assert!(enter(&mut ring, 2, Some(MOMENT)).timed_out);
    }
}

#[test]
fn a_wait_for_nothing_comes_back() {
    for mut ring in both() {
        for timeout in [None, Some(Duration::ZERO), Some(PATIENCE)] {
            assert!(!ring.enter(0, timeout).unwrap().timed_out);
        }
    }
}

/// A timeout beyond the kernel's arithmetic never expires, and causes no busy loop.
#[test]
fn a_completion_ends_a_wait_of_any_length() {
    for mut ring in both() {
        for timeout in [None, Some(PATIENCE), Some(Duration::MAX)] {
            let (read, write) = rustix::pipe::pipe().unwrap();
            push(&mut ring, Sqe::poll_add(read.as_raw_fd(), 1)).unwrap();
            ring.submit().unwrap();
            let writer = thread::spawn(move || {
                thread::sleep(MOMENT);
                rustix::io::write(&write, b"x").unwrap();
                write
            });
            let entered = enter(&mut ring, 1, timeout);
            assert!(!entered.timed_out, "{timeout:?}");
            assert_eq!(complete(&mut ring, 1)[0].res & 1, 1);
            writer.join().unwrap();
        }
    }
}

#[test]
fn a_signal_ends_a_wait_with_an_error() {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: a handler that does nothing, for a signal that no other test uses; without SA_RESTART, so that
    // the signal interrupts the wait.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
    }
    for mut ring in both() {
        // SAFETY: the signal goes to this thread, which waits for the other one to end.
        let this = unsafe { libc::pthread_self() };
        let done = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    thread::sleep(MOMENT);
                    // SAFETY: as above; the thread is in this scope's function.
                    unsafe { libc::pthread_kill(this, libc::SIGUSR2) };
                }
            });
            let result = ring.enter(1, Some(PATIENCE));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            let error = result.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINTR));
        });
        assert_eq!(ring.sq_pending(), 0);
        crate::support::assert_works(&mut ring);
    }
}

/// The number of signals that the handler got.
static HANDLED: AtomicU32 = AtomicU32::new(0);

#[test]
fn a_signal_mask_is_in_force_while_the_thread_sleeps() {
    extern "C" fn count(_: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: a handler that counts, for a signal that no other test uses; this thread alone blocks it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()), 0);
        let mut set = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGURG);
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()), 0);
    }
    let own = SignalMask::of_thread().unwrap();
    let mask = own.without([libc::SIGURG]).unwrap();
    assert!(own.blocks(libc::SIGURG) && !mask.blocks(libc::SIGURG));
    for mut ring in both() {
        for timeout in [None, Some(PATIENCE), Some(Duration::MAX)] {
            let before = HANDLED.load(Ordering::Relaxed);
            // SAFETY: the signal goes to this thread.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGURG) };
            // Blocked in the wait, too.
            let entered = ring.enter_with_signals(1, Some(MOMENT), &own).unwrap();
            assert!(entered.timed_out && HANDLED.load(Ordering::Relaxed) == before);
            let error = ring.enter_with_signals(1, timeout, &mask).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINTR), "{timeout:?}");
            assert_eq!(HANDLED.load(Ordering::Relaxed), before + 1);
            assert_eq!(SignalMask::of_thread().unwrap(), own);
        }
        push_nops(&mut ring, [1]);
        assert_eq!(ring.enter_with_signals(1, None, &mask).unwrap().consumed, 1);
        assert_eq!(reap_all(&mut ring).len(), 1);
        crate::support::assert_works(&mut ring);
    }
}

#[test]
fn a_host_that_masks_no_signals_is_not_asked_to() {
    let mut ring = Builder::with_host(Rigged::new()).build().unwrap();
    push_nops(&mut ring, [1]);
    for timeout in [None, Some(PATIENCE)] {
        let error = ring.enter_with_signals(1, timeout, &SignalMask::NONE).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
        assert_eq!(ring.sq_pending(), 1);
    }
    assert_eq!(ring.enter(1, None).unwrap().consumed, 1);
}
