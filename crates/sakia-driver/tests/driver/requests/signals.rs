//! Waits with a signal mask, and plain ones that a signal ends. Each scene is a process of its own, which is
//! killed if it hangs.

use std::io::{self, Write};
use std::mem::zeroed;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libc::{SIGTERM, SIGUSR1, SIGUSR2};
use sakia_driver::{
    Auto, Bypass, CURRENT_POSITION, Driver, Epoll, FileHandle, Loop, LoopWaker, OpKind, Policy,
    Request, SignalMask, Wait,
};
use sakia_testkit::forked;
use sakia_testkit::settings::{number, patience};

use super::{finish, next, on_both};
use crate::children;
use crate::hosts::rigged;

const HOUR: Duration = Duration::from_secs(3600);

/// How often the handler ran, by signal.
static HANDLED: [AtomicU64; 65] = [const { AtomicU64::new(0) }; 65];
/// The handler wakes this loop, if there is one.
static WAKER: OnceLock<LoopWaker> = OnceLock::new();

extern "C" fn handle(signal: libc::c_int) {
    HANDLED[signal as usize].fetch_add(1, Ordering::SeqCst);
    if let Some(waker) = WAKER.get() {
        waker.wake();
    }
}

fn handled(signal: i32) -> u64 {
    HANDLED[signal as usize].load(Ordering::SeqCst)
}

/// Has the handler called for these signals.
fn install(signals: &[i32]) {
    for &signal in signals {
        // SAFETY: the handler calls what is safe in one: atomics, and a system call that keeps `errno`.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = handle as *const () as usize;
            assert_eq!(libc::sigaction(signal, &raw const action, null_mut()), 0);
        }
    }
}

/// Adds the signals to those that this thread blocks, or takes them away. Returns its mask.
fn set_blocked(how: libc::c_int, signals: &[i32]) -> SignalMask {
    // SAFETY: the sets are of this frame.
    unsafe {
        let mut set = zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        assert_eq!(libc::pthread_sigmask(how, &raw const set, null_mut()), 0);
    }
    SignalMask::of_thread().unwrap()
}

/// Returns whether a signal of this thread or this process is pending.
fn is_pending(signal: i32) -> bool {
    // SAFETY: the set is of this frame.
    unsafe {
        let mut set = zeroed();
        assert_eq!(libc::sigpending(&raw mut set), 0);
        libc::sigismember(&raw const set, signal) == 1
    }
}

/// Sends a signal to this process.
fn send(signal: i32) {
    // SAFETY: takes numbers only.
    assert_eq!(unsafe { libc::kill(libc::getpid(), signal) }, 0);
}

/// Plays a scene in a process that is killed if it hangs.
fn played(scene: fn()) {
    assert_eq!(forked::run_with_threads(scene), Ok(()));
}

/// Waits with this mask while a signal is pending. It must be handled in the wait, once, and the thread's own
/// mask be the same afterwards. Returns the number of outcomes.
#[track_caller]
fn wait_for_pending(ring: &mut Loop, wait: Wait, mask: &SignalMask) -> usize {
    let (before, own) = (handled(SIGUSR1), SignalMask::of_thread().unwrap());
    send(SIGUSR1);
    assert_eq!((handled(SIGUSR1), is_pending(SIGUSR1)), (before, true), "it is blocked");
    let outcomes = ring.wait_with_signals(wait, mask).unwrap();
    assert_eq!((handled(SIGUSR1), is_pending(SIGUSR1)), (before + 1, false), "{wait:?}");
    assert_eq!(SignalMask::of_thread().unwrap(), own);
    outcomes
}

/// All lengths of waits: none, short ones in whole and in broken milliseconds, and those that only a signal
/// ends in time.
fn waits() -> [Wait; 8] {
    let nanosecond = Duration::from_nanos(1);
    [
        Wait::Poll,
        Wait::For(Duration::ZERO),
        Wait::For(nanosecond),
        Wait::For(Duration::from_millis(2)),
        Wait::For(HOUR),
        Wait::For(HOUR + nanosecond),
        Wait::For(Duration::MAX),
        Wait::Forever,
    ]
}

#[test]
fn a_pending_signal_is_handled_in_the_wait() {
    children::run("signals_pending");
}

pub fn scene_pending() {
    played(|| {
        install(&[SIGUSR1, SIGUSR2]);
        let own = set_blocked(libc::SIG_BLOCK, &[SIGUSR1, SIGUSR2, SIGTERM]);
        let mask = own.without([SIGUSR1]).unwrap();
        assert!(own.blocks(SIGUSR1) && mask.blocks(SIGTERM) && !mask.blocks(SIGUSR1));
        on_both(|ring| {
            for wait in waits() {
                assert_eq!(wait_for_pending(ring, wait, &mask), 0);
            }
            // Beside an operation under way.
            let (reader, mut writer) = io::pipe().unwrap();
            let reader = FileHandle::new(reader);
            ring.submit(Request::read(&reader, vec![0; 8].into(), CURRENT_POSITION), 1).unwrap();
            for wait in waits() {
                assert_eq!(wait_for_pending(ring, wait, &mask), 0);
            }
            writer.write_all(b"x").unwrap();
            assert_eq!(finish(ring)[&1].result.as_ref().unwrap(), &1);
            // Polled by a foreign loop.
            let _pollable = ring.pollable().unwrap();
            for wait in waits() {
                assert_eq!(wait_for_pending(ring, wait, &mask), 0);
            }
        });
        let (backend, _) = Auto::later(Policy::Auto, sakia_ring::Ring::builder()).unwrap();
        let mut ring = Loop::on(Driver::new(backend)).unwrap();
        assert_eq!(wait_for_pending(&mut ring, Wait::Forever, &mask), 0);
    });
}

#[test]
fn signals_that_the_mask_blocks_stay_pending() {
    children::run("signals_blocked");
}

pub fn scene_blocked() {
    played(|| {
        install(&[SIGUSR1, SIGUSR2]);
        let own = set_blocked(libc::SIG_BLOCK, &[SIGUSR1, SIGUSR2]);
        let mask = own.without([SIGUSR1]).unwrap();
        on_both(|ring| {
            let before = handled(SIGUSR2);
            send(SIGUSR2);
            for wait in waits() {
                assert_eq!(wait_for_pending(ring, wait, &mask), 0);
                assert!(is_pending(SIGUSR2));
            }
            for wait in [Wait::Poll, Wait::For(Duration::from_micros(1500))] {
                assert_eq!(ring.wait(wait).unwrap(), 0);
                assert_eq!(ring.wait_with_signals(wait, &own).unwrap(), 0);
                assert_eq!(ring.wait_with_signals(wait, &mask).unwrap(), 0);
            }
            assert_eq!((handled(SIGUSR2), is_pending(SIGUSR2)), (before, true));
            // All at once.
            send(SIGUSR1);
            let handled_before = handled(SIGUSR1);
            assert_eq!(ring.wait_with_signals(Wait::Forever, &SignalMask::NONE).unwrap(), 0);
            assert_eq!((handled(SIGUSR1), handled(SIGUSR2)), (handled_before + 1, before + 1));
            assert!(!is_pending(SIGUSR1) && !is_pending(SIGUSR2));
            assert_eq!(SignalMask::of_thread().unwrap(), own);
        });
        // Those that cannot be blocked may be in a mask.
        let all = SignalMask::from_bits(u64::MAX);
        assert!(all.blocks(libc::SIGKILL) && all.blocks(libc::SIGSTOP));
        on_both(|ring| {
            assert_eq!(
                ring.wait_with_signals(Wait::For(Duration::from_millis(1)), &all).unwrap(),
                0
            );
        });
        assert_eq!(SignalMask::of_thread().unwrap(), own);
    });
}

#[test]
fn signals_come_together_with_wakes_and_outcomes() {
    children::run("signals_together");
}

pub fn scene_together() {
    played(|| {
        install(&[SIGUSR1]);
        let mask = set_blocked(libc::SIG_BLOCK, &[SIGUSR1]).without([SIGUSR1]).unwrap();
        on_both(|ring| {
            for wait in waits() {
                ring.waker().wake();
                assert_eq!(wait_for_pending(ring, wait, &mask), 0);
                ring.submit(Request::Nop, 1).unwrap();
                assert_eq!(wait_for_pending(ring, wait, &mask), 1);
                // An outcome that is there already.
                assert_eq!(wait_for_pending(ring, wait, &mask), 1);
                ring.waker().wake();
                assert_eq!(wait_for_pending(ring, wait, &mask), 1);
                assert_eq!(ring.take().map(|outcome| outcome.token), Some(1));
            }
            // Without a signal the wait ends as it would without a mask.
            assert_eq!(
                ring.wait_with_signals(Wait::For(Duration::from_micros(1)), &mask).unwrap(),
                0
            );
            ring.waker().wake();
            assert_eq!(ring.wait_with_signals(Wait::Forever, &mask).unwrap(), 0);
            ring.submit(Request::Nop, 2).unwrap();
            while ring.wait_with_signals(Wait::Forever, &mask).unwrap() == 0 {}
            assert_eq!(ring.take().map(|outcome| outcome.token), Some(2));
        });
        // More sends than the kernel ends in one enter, to a peer that does not read.
        on_both(|ring| {
            let (mut socket, peer) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            while socket.write(&[0; 4096]).is_ok() {}
            socket.set_nonblocking(false).unwrap();
            let socket = FileHandle::new(OwnedFd::from(socket));
            for token in 0..64 {
                let (socket, buffer) = (socket.clone().into(), vec![0; 8].into());
                ring.submit(Request::Send { socket, buffer, flags: 0 }, token).unwrap();
            }
            assert_eq!(wait_for_pending(ring, Wait::Forever, &mask), 0);
            assert_eq!(wait_for_pending(ring, Wait::Forever, &mask), 0);
            drop(peer);
            assert!(finish(ring).values().all(|outcome| outcome.result.is_err()));
        });
        // A ring that has threads beside it, too.
        on_both(|ring| {
            ring.set_bypass(Bypass::Never);
            let file = FileHandle::new(std::fs::File::open("/proc/self/exe").unwrap());
            for _ in 0..100 {
                let read = Request::read(&file, vec![0; 8].into(), CURRENT_POSITION);
                ring.submit(read, 3).unwrap();
                wait_for_pending(ring, Wait::Forever, &mask);
                assert_eq!(next(ring).result.unwrap(), 8);
                for wait in [Wait::Forever, Wait::For(HOUR), Wait::Poll] {
                    assert_eq!(wait_for_pending(ring, wait, &mask), 0);
                }
            }
            assert!(ring.counters().of(OpKind::Read).lane >= 100, "by threads");
        });
        // The handler wakes the loop.
        on_both(|ring| {
            WAKER.set(ring.waker()).ok();
            for wait in waits() {
                assert_eq!(wait_for_pending(ring, wait, &mask), 0);
            }
        });
    });
}

/// Sends `count` signals at random moments, each after the one before was handled; on a busy machine, as many
/// as half of the patience is enough for. Returns their number and the longest time until one was handled.
/// `Err`: the number of one that was not.
fn pester(target: libc::pthread_t, count: u64) -> Result<(u64, Duration), u64> {
    let (mut random, mut longest) = (numbers(), Duration::ZERO);
    let start = Instant::now();
    for sent in 0..count {
        if start.elapsed() > patience() / 2 {
            return Ok((sent, longest));
        }
        match random() % 8 {
            0 => thread::yield_now(),
            1..6 => (0..random() % 2048).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
        let begin = Instant::now();
        if random() % 2 == 0 {
            send(SIGUSR1);
        } else {
            // SAFETY: the thread lives until this one was joined.
            assert_eq!(unsafe { libc::pthread_kill(target, SIGUSR1) }, 0);
        }
        while handled(SIGUSR1) <= sent {
            if begin.elapsed() > patience() / 4 {
                return Err(sent);
            }
            thread::yield_now();
        }
        longest = longest.max(begin.elapsed());
    }
    Ok((count, longest))
}

/// Returns a source of numbers that look random.
fn numbers() -> impl FnMut() -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    }
}

/// The sender waits until each signal was handled, and the loop has nothing else to do. So a signal that
/// comes in a gap between the look at a flag and the sleep would stay there. There are 20,000 in the quick
/// tier, or as many as `SAKIA_TEST_SIGNALS` says.
#[test]
fn no_signal_is_missed_by_a_loop_that_sleeps_without_end() {
    children::run("signals_at_random_on_the_ring");
    children::run("signals_at_random_on_epoll");
}

pub fn scene_at_random_on_the_ring() {
    played(|| at_random(Loop::on(Driver::uring().unwrap()).unwrap()));
}

pub fn scene_at_random_on_epoll() {
    played(|| {
        at_random(Loop::on(Driver::new(Epoll::new().unwrap())).unwrap());
    });
}

fn at_random(mut ring: Loop) {
    let count = number("SAKIA_TEST_SIGNALS", 20_000);
    install(&[SIGUSR1]);
    // Before there is another thread, which would get signals of the process.
    let mask = set_blocked(libc::SIG_BLOCK, &[SIGUSR1]).without([SIGUSR1]).unwrap();
    // SAFETY: returns a number.
    let target = unsafe { libc::pthread_self() };
    let (has_ended, waker) = (AtomicBool::new(false), ring.waker());
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let result = pester(target, count);
            has_ended.store(true, Ordering::SeqCst);
            waker.wake();
            result
        });
        while !has_ended.load(Ordering::SeqCst) {
            assert_eq!(ring.wait_with_signals(Wait::Forever, &mask).unwrap(), 0);
        }
        let sent = sender.join().unwrap();
        let (sent, longest) = sent.unwrap_or_else(|sent| panic!("signal {sent} was not handled"));
        println!("the longest of {sent} signals took {longest:?}");
        assert_eq!(handled(SIGUSR1), sent);
    });
}

#[test]
fn plain_waits_end_at_signals() {
    children::run("signals_plain");
}

pub fn scene_plain() {
    /// The number of waits that must end, for each length on each backend.
    const WAITS: u64 = 100;
    played(|| {
        install(&[SIGUSR1]);
        // SAFETY: returns a number.
        let target = unsafe { libc::pthread_self() };
        on_both(|ring| {
            let ended = AtomicU64::new(0);
            let lengths =
                [Wait::Forever, Wait::For(HOUR), Wait::For(HOUR + Duration::from_nanos(1))];
            thread::scope(|scope| {
                scope.spawn(|| {
                    // One that comes before the thread sleeps is lost, so there are always more.
                    while ended.load(Ordering::SeqCst) < WAITS * lengths.len() as u64 {
                        // SAFETY: the thread lives until this one was joined.
                        assert_eq!(unsafe { libc::pthread_kill(target, SIGUSR1) }, 0);
                        thread::sleep(Duration::from_micros(50));
                    }
                });
                for wait in lengths {
                    for _ in 0..WAITS {
                        let before = handled(SIGUSR1);
                        // The kernel rarely ends a sleep for no reason.
                        while handled(SIGUSR1) == before {
                            assert_eq!(ring.wait(wait).unwrap(), 0);
                        }
                        ended.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        });
    });
}

/// A host that makes the calls elsewhere has no signals of this thread.
#[test]
fn a_host_without_masks_says_so_and_submits_nothing() {
    let (driver, _rig) = rigged(8, 16);
    let mut ring = Loop::on(driver).unwrap();
    ring.submit(Request::Nop, 1).unwrap();
    let enters = ring.counters().enters;
    for wait in waits() {
        let error = ring.wait_with_signals(wait, &SignalMask::NONE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("signal mask"), "{error}");
    }
    assert_eq!((ring.counters().enters, ring.under_way()), (enters, 1));
    // It is no end of the loop.
    assert_eq!(next(&mut ring).token, 1);
}
