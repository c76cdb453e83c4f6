//! Threads that wait for a queue, wakes, and descriptors for foreign loops.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sakia::Builder;
use sakia::engine::queue::{Request, Submitted};
use sakia_testkit::random::Random;

use crate::support::{engine, on_each_backend};

on_each_backend! {
    each_wake_ends_a_wait_that_would_have_no_end
    all_outcomes_reach_threads_that_sleep
    a_thread_that_leaves_outcomes_wakes_the_next
    the_descriptor_tells_what_there_is
    a_wake_and_an_outcome_that_go_together_leave_nothing_to_read
    a_thread_of_the_engine_does_not_wait_for_itself
}

fn each_wake_ends_a_wait_that_would_have_no_end(builder: &Builder) {
    const WAKES: u64 = 2_000;
    let queue = engine(builder).queue().unwrap();
    let (seen, asked) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let waker = queue.waker();
            for wake in 1..=WAKES {
                asked.store(wake, Ordering::Release);
                waker.wake();
                while seen.load(Ordering::Acquire) < wake {
                    thread::yield_now();
                }
            }
        });
        while seen.load(Ordering::Relaxed) < WAKES {
            assert_eq!(queue.wait(None).unwrap(), 0);
            seen.store(asked.load(Ordering::Acquire), Ordering::Release);
        }
    });
    let waker = queue.waker();
    drop(queue);
    waker.wake(); // harmless
}

/// No outcome is left behind while threads sleep: each token is submitted after the last was taken.
fn all_outcomes_reach_threads_that_sleep(builder: &Builder) {
    const TOKENS: u64 = 3_000;
    let queue = engine(builder).queue().unwrap();
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut outcomes = Vec::new();
                while taken.load(Ordering::Acquire) < TOKENS {
                    queue.wait(None).unwrap();
                    // One at a time: the rest is for the others.
                    taken.fetch_add(queue.take(1, &mut outcomes) as u64, Ordering::AcqRel);
                }
                queue.waker().wake(); // the next one
            });
        }
        let mut token = 0;
        while token < TOKENS {
            let mut batch = queue.batch();
            for _ in 0..(1 + token % 4).min(TOKENS - token) {
                assert!(matches!(batch.add(Request::Nop, token), Ok(Submitted::UnderWay(_))));
                token += 1;
            }
            batch.submit();
            while taken.load(Ordering::Acquire) < token {
                thread::yield_now();
            }
        }
    });
    assert_eq!(queue.under_way(), 0);
}

/// Outcomes that come together wake one thread. It takes one of them, and is busy until another thread has
/// taken the next.
fn a_thread_that_leaves_outcomes_wakes_the_next(builder: &Builder) {
    const ROUNDS: u64 = 100;
    let queue = engine(&builder.clone().threads(1)).queue().unwrap();
    let both = Barrier::new(3);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let mut outcomes = Vec::new();
                    while queue.take(1, &mut outcomes) == 0 {
                        queue.wait(None).unwrap();
                    }
                    both.wait();
                }
            });
        }
        for round in 0..ROUNDS {
            thread::sleep(Duration::from_micros(200)); // both sleep by then, as a rule
            let mut batch = queue.batch();
            for token in 0..2 {
                let _ = batch.add(Request::Nop, 2 * round + token).unwrap();
            }
            batch.submit();
            both.wait();
        }
    });
}

fn the_descriptor_tells_what_there_is(builder: &Builder) {
    let queue = engine(builder).queue().unwrap();
    let waker = queue.waker();
    waker.wake(); // before there is a descriptor
    let event = queue.pollable().unwrap();
    let is_readable = |patience: &Timespec| {
        let mut events = [PollFd::new(&event, PollFlags::IN)];
        poll(&mut events, Some(patience)).unwrap() == 1
    };
    let at_once = |()| is_readable(&Timespec::default());
    let (mut is_woken, mut submitted, mut random) = (true, 0, Random::new(7));
    let mut outcomes = Vec::new();
    for _ in 0..3_000 {
        match random.below(5) {
            0 => {
                waker.wake();
                is_woken = true;
            }
            1 => {
                let _ = queue.submit(Request::Nop, 1).unwrap();
                submitted += 1;
                while queue.under_way() > 0 && !is_readable(&Timespec { tv_sec: 60, tv_nsec: 0 }) {}
            }
            2 => submitted -= queue.take(1 + random.below(3) as usize, &mut outcomes),
            3 => {
                queue.wait(Some(Duration::ZERO)).unwrap();
                is_woken = false;
            }
            _ => {
                // All are there.
                while submitted > 0 {
                    queue.wait(None).unwrap();
                    is_woken = false;
                    submitted -= queue.take(usize::MAX, &mut outcomes);
                }
            }
        }
        if submitted == 0 {
            assert_eq!(at_once(()), is_woken);
        } else if is_woken {
            assert!(at_once(()));
        }
    }
}

/// One thread sees the wake while another takes the outcome.
fn a_wake_and_an_outcome_that_go_together_leave_nothing_to_read(builder: &Builder) {
    let queue = engine(builder).queue().unwrap();
    let event = queue.pollable().unwrap();
    let is_readable = || {
        let mut events = [PollFd::new(&event, PollFlags::IN)];
        poll(&mut events, Some(&Timespec::default())).unwrap() == 1
    };
    // Both go on at the same moment, as far as there are two cores.
    let turns = AtomicU64::new(0);
    let turn = |number| {
        let arrived = turns.fetch_add(1, Ordering::AcqRel);
        for tries in arrived..arrived + u64::MAX / 2 {
            if turns.load(Ordering::Acquire) >= 2 * number {
                break;
            }
            if tries % 1_000 == 999 {
                thread::yield_now();
            }
        }
    };
    const ROUNDS: u64 = 4_000;
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                turn(2 * round + 1);
                (0..round % 50).for_each(|_| std::hint::spin_loop());
                queue.wait(Some(Duration::ZERO)).unwrap();
                turn(2 * round + 2);
            }
        });
        for round in 0..ROUNDS {
            let _ = queue.submit(Request::Nop, 1).unwrap();
            while queue.ready() == 0 {
                thread::yield_now();
            }
            queue.waker().wake();
            assert!(is_readable());
            turn(2 * round + 1);
            assert_eq!(queue.take(1, &mut Vec::new()), 1);
            turn(2 * round + 2);
            assert!(!is_readable(), "round {round}");
        }
    });
}

fn a_thread_of_the_engine_does_not_wait_for_itself(builder: &Builder) {
    let engine = engine(builder);
    let queue = engine.queue().unwrap();
    let inner = queue.clone();
    let result = engine.run(move || async move {
        let _ = inner.submit(Request::Nop, 3).unwrap();
        inner.wait(None).map_err(|error| error.raw_os_error())
    });
    // It may be done by then.
    assert!(matches!(result.wait().unwrap(), Err(Some(libc::EDEADLK)) | Ok(1)));
    assert_eq!(super::next(&queue).token, 3);
}
