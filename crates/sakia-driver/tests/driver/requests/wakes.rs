//! Wakes from other threads and from signal handlers, signals, and foreign loops.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use sakia_driver::{CURRENT_POSITION, Driver, Epoll, FileHandle, Loop, LoopWaker, Request, Wait};

use super::{next, on_both};
use crate::children;

#[test]
fn each_wake_ends_a_wait_that_would_have_no_end() {
    /// Wakes of each thread, each of which the loop must see before the next.
    const WAKES: u64 = 2_000;
    on_both(|ring| {
        let (seen, asked) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            let (waker, seen, asked) = (ring.waker(), &seen, &asked);
            scope.spawn(move || {
                for wake in 1..=WAKES {
                    asked.store(wake, Ordering::Release);
                    waker.wake();
                    while seen.load(Ordering::Acquire) < wake {
                        thread::yield_now();
                    }
                }
            });
            while seen.load(Ordering::Relaxed) < WAKES {
                assert_eq!(ring.wait(Wait::Forever).unwrap(), 0);
                seen.store(asked.load(Ordering::Acquire), Ordering::Release);
            }
        });
    });
}

#[test]
fn wakes_and_results_come_together() {
    on_both(|ring| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = FileHandle::new(reader);
        let waker = ring.waker();
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..2_000 {
                    writer.write_all(b"x").unwrap();
                    waker.wake();
                    waker.wake();
                }
            });
            let mut count = 0;
            while count < 2_000 {
                ring.submit(Request::read(&reader, vec![0; 8].into(), CURRENT_POSITION), 0)
                    .unwrap();
                count += next(ring).result.unwrap();
            }
        });
        assert_eq!(ring.under_way(), 0);
    });
}

#[test]
fn a_wake_before_the_wait_ends_it_and_counts_once() {
    on_both(|ring| {
        let waker = ring.waker();
        for _ in 0..3 {
            waker.wake();
            waker.clone().wake();
            assert_eq!(ring.wait(Wait::Forever).unwrap(), 0);
            // Nothing is left of it: this one ends by its time.
            ring.wait(Wait::For(Duration::from_millis(2))).unwrap();
        }
        // It is harmless after the end.
        let mut ended = Loop::on(Driver::new(Epoll::new().unwrap())).unwrap();
        let waker = ended.waker();
        let _ = ended.stop(Duration::ZERO);
        waker.wake();
        drop(ended);
        waker.wake();
    });
}

#[test]
fn a_foreign_loop_sees_wakes_and_results() {
    on_both(|ring| {
        let pollable = ring.pollable().unwrap();
        let waker = ring.waker();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = FileHandle::new(reader);
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..500 {
                    writer.write_all(b"x").unwrap();
                    waker.wake();
                }
            });
            let (mut count, mut has_read) = (0, false);
            while count < 500 {
                if !has_read {
                    let read = Request::read(&reader, vec![0; 8].into(), CURRENT_POSITION);
                    ring.submit(read, 0).unwrap();
                    has_read = true;
                }
                if ring.wait(Wait::Poll).unwrap() == 0 {
                    poll(&mut [PollFd::new(&pollable, PollFlags::IN)], None).unwrap();
                }
                while let Some(outcome) = ring.take() {
                    count += outcome.result.unwrap();
                    has_read = false;
                }
            }
        });
    });
}

/// The loop's waker, for the handler.
static WAKER: OnceLock<LoopWaker> = OnceLock::new();
/// The number of signals that were handled.
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
    WAKER.get().expect("it is set before the first signal").wake();
}

/// A handler wakes the loop of the thread that it interrupts: in its wait, in a wake, in a submit.
#[test]
fn signal_handlers_wake_the_loop() {
    children::run("requests_signals");
}

pub fn scene_signals() {
    const SIGNALS: u64 = 5_000;
    // SAFETY: the handler calls what is safe in one: atomics, and a system call that keeps `errno`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let mut ring = Loop::new().unwrap();
    WAKER.set(ring.waker()).unwrap();
    // SAFETY: returns a number.
    let target = unsafe { libc::pthread_self() };
    let other = thread::spawn(move || {
        for sent in 0..SIGNALS {
            // SAFETY: the thread lives until this one was joined.
            assert_eq!(unsafe { libc::pthread_kill(target, libc::SIGUSR1) }, 0);
            while HANDLED.load(Ordering::Relaxed) <= sent {
                thread::yield_now();
            }
        }
    });
    let waker = ring.waker();
    let mut token = 0;
    while HANDLED.load(Ordering::Relaxed) < SIGNALS {
        if token % 3 == 0 {
            waker.wake(); // may be interrupted by one
        }
        ring.submit_nop(token).unwrap();
        token += 1;
        ring.wait(Wait::Forever).unwrap();
        while ring.take().is_some() {}
        if HANDLED.load(Ordering::Relaxed) < SIGNALS {
            // Nothing else is due: a signal ends it, by itself or by its wake.
            ring.wait(Wait::Forever).unwrap();
        }
    }
    other.join().unwrap();
}
