//! Reasons for which a sleep ends: completions, time, signals, other threads.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::thread;

use super::*;

const SIGNAL: i32 = libc::SIGUSR2;

thread_local! {
    static SIGNALS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

extern "C" fn count_signal(_: i32) {
    SIGNALS.set(SIGNALS.get() + 1);
}

/// Sends signals to the thread that made it, about a thousand a second, until it is dropped. Their handler
/// does nothing, and no interrupted call is restarted.
pub(super) struct Storm {
    is_over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Storm {
    pub(super) fn new() -> Self {
        // SAFETY: the handler touches a thread-local counter without a destructor; the structure is
        // plain data. The target lives until the sender was joined.
        let target = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count_signal as *const () as libc::sighandler_t;
            assert_eq!(libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()), 0);
            libc::pthread_self()
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            while !its.load(Ordering::Relaxed) {
                // SAFETY: as above.
                unsafe { libc::pthread_kill(target, SIGNAL) };
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self { is_over, thread: Some(thread) }
    }

    /// Returns the number of signals that this thread got so far.
    pub(super) fn count() -> u32 {
        SIGNALS.get()
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

#[test]
fn a_timeout_is_told_when_there_is_nothing_else_to_tell() {
    let mut test = Loop::new();
    let (reader, writer) = pipe();
    let buffer = Lendable::zeroed(1);
    let mut enter =
        |min, nanos| test.epoll.enter(min, Some(Duration::from_nanos(nanos)), None).unwrap();
    for nanos in [0, 1, 999_999, 1_000_000, 1_000_001] {
        let entered = enter(1, nanos);
        assert_eq!((entered.consumed, entered.timed_out), (0, true), "{nanos}");
    }
    assert!(!enter(0, 0).timed_out, "nothing was waited for");
    test.push(1, receive(&reader, &buffer));
    let entered = test.epoll.enter(1, Some(Duration::from_micros(1)), None).unwrap();
    assert_eq!((entered.consumed, entered.timed_out), (1, false));
    rustix::io::write(&writer, b"x").unwrap();
    let entered = test.epoll.enter(2, Some(Duration::from_micros(1)), None).unwrap();
    assert!(!entered.timed_out, "a completion is there");
    assert_eq!(test.reap(), [(1, 1)]);
}

#[test]
fn endless_timeouts_are_no_timeouts() {
    let mut test = Loop::new();
    let wake = test.epoll.wake_handle();
    for timeout in [Some(Duration::MAX), Some(Duration::from_secs(u64::MAX / 2)), None] {
        let wake = wake.clone();
        let waker = thread::spawn(move || wake.wake());
        let entered = test.epoll.enter(1, timeout, None).unwrap();
        assert!(!entered.timed_out);
        waker.join().unwrap();
    }
}

#[test]
fn a_wake_ends_the_sleep_of_now_or_the_next_one() {
    let mut test = Loop::new();
    let wake = test.epoll.wake_handle();
    wake.wake();
    wake.wake();
    assert!(!test.epoll.enter(1, None, None).unwrap().timed_out);
    let barrier = Arc::new(Barrier::new(2));
    let waker = {
        let barrier = Arc::clone(&barrier);
        thread::spawn(move || {
            for _ in 0..2000 {
                barrier.wait();
                wake.wake();
            }
        })
    };
    for _ in 0..2000 {
        barrier.wait();
        // Hangs if a wake is lost.
        test.epoll.enter(1, None, None).unwrap();
    }
    waker.join().unwrap();
}

#[test]
fn a_wake_after_the_end_does_nothing() {
    let test = Loop::new();
    let wake = test.epoll.wake_handle();
    drop(test);
    wake.wake();
}

#[test]
fn a_signal_is_an_error_only_when_there_is_nothing_to_tell() {
    let mut test = Loop::new();
    let (reader, writer) = pipe();
    let buffer = Lendable::zeroed(1);
    let _storm = Storm::new();
    let error = test.epoll.enter(1, None, None).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::INTR));
    test.push(1, receive(&reader, &buffer));
    let entered = test.epoll.enter(1, None, None).unwrap();
    assert_eq!((entered.consumed, entered.timed_out), (1, false));
    let error = test.epoll.enter(1, None, None).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::INTR));
    rustix::io::write(&writer, b"x").unwrap();
    while test.epoll.cq_ready() == 0 {
        let _ = test.epoll.enter(1, None, None);
    }
    assert!(test.epoll.enter(2, None, None).is_ok(), "a completion is there");
    assert_eq!(test.reap(), [(1, 1)]);
}

#[test]
fn a_loop_that_never_sleeps_gets_its_events() {
    let mut test = Loop::new();
    let (reader, writer) = pipe();
    let buffer = Lendable::zeroed(1);
    assert!(!test.epoll.needs_enter(), "nothing is watched");
    test.push(1, receive(&reader, &buffer));
    assert_eq!(test.turn(), []);
    assert!(!test.epoll.needs_enter(), "it has just been looked");
    assert!(test.epoll.needs_enter() && test.epoll.needs_enter());
    rustix::io::write(&writer, b"x").unwrap();
    assert_eq!(test.turn(), [(1, 1)]);
    assert!(!test.epoll.needs_enter() && !test.epoll.needs_enter());
}

#[test]
fn a_lanes_result_is_announced_without_an_enter() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let file = test.open(&dir.file("file", b"abc"), OFlags::RDONLY).unwrap();
    let buffer = Lendable::zeroed(3);
    test.push(1, read(&file, &buffer, 0));
    assert_eq!(test.submit(), []);
    wait_until(|| test.epoll.needs_enter());
    assert_eq!(test.epoll.cq_ready(), 0);
    assert_eq!(test.turn(), [(1, 3)]);
}

/// Returns whether a foreign loop that polls this descriptor is woken within this time.
fn is_readable(pollable: &OwnedFd, patience: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut polled = [PollFd::new(pollable, PollFlags::IN)];
    let timeout = rustix::thread::Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
    poll(&mut polled, Some(&timeout)).unwrap() == 1
}

#[test]
fn a_foreign_loop_is_told_of_what_was_there_before_it_came() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let file = test.open(&dir.file("file", b"abc"), OFlags::RDONLY).unwrap();
    let bytes = Lendable::zeroed(3);
    test.push(1, read(&file, &bytes, 0));
    assert_eq!(test.submit(), []);
    wait_until(|| test.epoll.needs_enter());
    let pollable = test.epoll.pollable().unwrap();
    assert!(is_readable(&pollable, Duration::ZERO), "a result");
    assert_eq!(test.enter(1), [(1, 3)]);
    drop((test, pollable));
    let mut test = Loop::new();
    test.epoll.wake_handle().wake();
    let pollable = test.epoll.pollable().unwrap();
    assert!(is_readable(&pollable, Duration::ZERO), "a wake");
}

/// A watch must not rest then: the foreign loop would not be woken at the end of the rest.
#[test]
fn nothing_rests_when_a_foreign_loop_looks() {
    let Some((near, far)) = super::streams::erring_socket() else {
        eprintln!("SKIP {}: no sockets with a queue of errors", module_path!());
        return;
    };
    let mut test = Loop::new();
    let buffer = Lendable::zeroed(3);
    test.push(1, receive(&near, &buffer));
    assert_eq!(test.submit(), []);
    (0..100).for_each(|_| assert_eq!(test.turn(), []));
    let pollable = test.epoll.pollable().unwrap();
    (0..100).for_each(|_| assert_eq!(test.turn(), []));
    rustix::io::write(&far, b"abc").unwrap();
    assert!(is_readable(&pollable, Duration::ZERO));
    assert_eq!(test.turn(), [(1, 3)]);
}

#[test]
fn a_foreign_loop_is_told_of_whatever_comes() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let file = test.open(&dir.file("file", b"abc"), OFlags::RDONLY).unwrap();
    let (reader, writer) = pipe();
    let (bytes, byte) = (Lendable::zeroed(3), Lendable::zeroed(1));
    let pollable = test.epoll.pollable().unwrap();
    let wake = test.epoll.remote_wake().unwrap();
    let is_readable = |patience| is_readable(&pollable, patience);
    let none = Duration::ZERO;
    assert!(!is_readable(none));
    for round in 0..100 {
        test.push(1, receive(&reader, &byte));
        assert_eq!(test.submit(), []);
        assert!(!is_readable(none), "{round}: nothing has come");
        // A descriptor becomes ready, a lane has a result, another thread wakes the backend.
        rustix::io::write(&writer, b"x").unwrap();
        assert!(is_readable(PATIENCE), "{round}: data");
        test.epoll.clear_readiness();
        assert!(!is_readable(none), "{round}: it was taken");
        assert_eq!(test.turn(), [(1, 1)]);
        test.push(2, read(&file, &bytes, 0));
        assert_eq!(test.submit(), []);
        assert!(is_readable(PATIENCE), "{round}: a result");
        test.epoll.clear_readiness();
        assert!(!is_readable(none), "{round}: it was taken");
        assert_eq!(test.turn(), [(2, 3)]);
        let wake = wake.clone();
        let waker = thread::spawn(move || wake.wake());
        assert!(is_readable(PATIENCE), "{round}: a wake");
        waker.join().unwrap();
        test.epoll.clear_readiness();
        assert!(!is_readable(none), "{round}: it was taken");
        assert!(!test.epoll.enter(1, None, None).unwrap().timed_out, "{round}: and not lost");
    }
}
