//! Enters that are ended by signals, that the kernel refuses, or that take only some of the entries.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, PollEvents, Wait};
use sakia_ring::Opcode;

use crate::hosts::{Fault, rigged};
use crate::scripted::{FILE, PIPE, scripted};
use crate::support::{
    Buf, DropCounter, Random, TempDir, content, drain, driver, errno, pipe, turn_until, write_all,
};

#[test]
fn a_signal_takes_nothing_along() {
    for failure in [Errno::INTR, Errno::AGAIN, Errno::BUSY] {
        let (driver, rig) = rigged(8, 16);
        let (read_end, write) = rustix::pipe::pipe().unwrap();
        let fd = driver.adopt(read_end);
        let counter = DropCounter::new();
        let mut reads: Vec<_> =
            (0..3).map(|_| driver.read(&fd, Buf::new(1, &counter), CURRENT_POSITION)).collect();
        driver.turn(Wait::Poll).unwrap();
        for wait in [Wait::Poll, Wait::For(Duration::from_secs(3600)), Wait::Forever] {
            let retries = driver.counters().retries;
            let nop = driver.nop(); // gives each turn a reason to enter
            rig.faults.borrow_mut().push_back(Fault::Fails(failure));
            driver.turn(wait).unwrap();
            assert_eq!(driver.in_flight(), 4, "forgotten after {failure}");
            assert_eq!(driver.counters().retries, retries + 1);
            drop(nop);
            turn_until(&driver, || driver.in_flight() == 3);
        }
        write_all(&write, b"xxx");
        drain(&driver);
        for read in &mut reads {
            assert_eq!(read.try_take().unwrap().0.unwrap(), 1);
        }
        counter.assert_each_dropped_once();
    }
}

#[test]
fn refused_and_partial_submits_lose_and_repeat_nothing() {
    let folder = TempDir::new();
    let (driver, rig) = rigged(16, 32);
    let fd = driver.adopt(File::open(folder.file("file", 1 << 16)).unwrap().into());
    let counter = DropCounter::new();
    let mut random = Random::new(3);
    let mut reads = Vec::new();
    for round in 0..20_000_u64 {
        let offset = random.below((1 << 16) - 16);
        reads.push((offset, driver.read(&fd, Buf::new(16, &counter), offset)));
        if random.below(2) == 0 {
            let fault = match random.below(5) {
                0 => Fault::Fails(Errno::INTR),
                1 if round % 10 == 0 => Fault::Fails(Errno::AGAIN), // costs a nap
                2 if round % 10 == 0 => Fault::Fails(Errno::BUSY),
                _ => Fault::Submits(random.below(3) as u32),
            };
            rig.faults.borrow_mut().push_back(fault);
        }
        if random.below(4) == 0 {
            driver.turn(Wait::Poll).unwrap();
        }
        if reads.len() > 40 {
            let (offset, mut read) = reads.remove(random.below(20) as usize);
            if random.below(3) == 0 {
                continue; // dropped in any state
            }
            let (result, buf) = crate::support::finish(&driver, &mut read);
            assert_eq!(result.unwrap(), 16);
            let same = |(at, &byte): (usize, &u8)| byte == content(offset as usize + at);
            assert!(buf.bytes().iter().enumerate().all(same), "round {round} at {offset}");
        }
    }
    drop(reads);
    rig.faults.borrow_mut().clear();
    drain(&driver);
    counter.assert_each_dropped_once();
    let counters = driver.counters();
    assert_eq!((counters.finished, counters.started), (20_000, 20_000));
    assert!(counters.retries > 1000);
    assert_eq!((counters.stale, driver.live_operations()), (0, 0));
}

#[test]
fn entries_not_consumed_can_still_be_taken_back() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let mut reads: Vec<_> = (0..5).map(|_| driver.read(&fd, Buf::new(1, &counter), 0)).collect();
    stage.state().failures.push_back(Errno::BUSY);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.state().naps, 1);
    assert_eq!(stage.in_flight(Opcode::READ).len(), 0);
    stage.state().consume_max = 3;
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.in_flight(Opcode::READ).len(), 3);
    drop(reads.pop()); // still pending
    drop(reads.remove(0)); // consumed
    assert_eq!(driver.counters().revoked, 1);
    stage.state().failures.push_back(Errno::INTR);
    driver.turn(Wait::Poll).unwrap();
    stage.state().consume_max = usize::MAX;
    driver.turn(Wait::Poll).unwrap();
    assert_eq!((counter.dropped(), driver.counters().cancels), (1, 1));
    while !stage.in_flight(Opcode::READ).is_empty() {
        stage.complete(Opcode::READ, 1);
    }
    stage.complete(Opcode::ASYNC_CANCEL, 0);
    drain(&driver);
    assert_eq!(driver.counters().stale, 0);
    drop(reads);
    counter.assert_each_dropped_once();
}

extern "C" fn ignore_signal(_: libc::c_int) {}

#[test]
fn a_thousand_signals_a_second() {
    // SAFETY: a handler that does nothing, for a signal that nothing else here uses; without `SA_RESTART`,
    // which enters ignore anyway.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    // SAFETY: no arguments.
    let target = unsafe { libc::pthread_self() };
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (stopped, count) = (Arc::clone(&stop), Arc::clone(&sent));
    let pest = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            // SAFETY: the target thread joins this one before it ends.
            unsafe { libc::pthread_kill(target, libc::SIGUSR1) };
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
        }
    });

    let driver = driver();
    let (fd, write) = pipe(&driver);
    let (echo, echo_write) = pipe(&driver);
    let feeder = std::thread::spawn(move || {
        let mut sum = 0_u64;
        for byte in 0..500_u32 {
            std::thread::sleep(Duration::from_micros(u64::from(byte % 7) * 300));
            rustix::io::retry_on_intr(|| rustix::io::write(&write, &[byte as u8])).unwrap();
            sum += u64::from(byte as u8);
        }
        drop(write);
        sum
    });
    let counter = DropCounter::new();
    let (mut sum, mut reads) = (0, 0);
    loop {
        let mut read = driver.read(&fd, Buf::new(1, &counter), CURRENT_POSITION);
        let poll = driver.poll(&echo, PollEvents::READABLE);
        let mut turns = 0;
        let (result, buf) = loop {
            if let Some(output) = read.try_take() {
                break output;
            }
            driver.turn(Wait::Forever).unwrap();
            turns += 1;
            assert!(turns < 1_000_000, "no more bytes arrive");
        };
        drop(poll);
        if result.unwrap() == 0 {
            break;
        }
        sum += u64::from(buf.bytes()[0]);
        reads += 1;
    }
    // However quick the feeder is, a few signals must have arrived while this thread slept.
    while driver.counters().retries < 20 {
        let poll = driver.poll(&echo, PollEvents::READABLE);
        driver.turn(Wait::For(Duration::from_millis(5))).unwrap();
        drop(poll);
    }
    stop.store(true, Ordering::Relaxed);
    pest.join().unwrap();
    assert_eq!((reads, sum), (500, feeder.join().unwrap()));
    drop(echo_write);
    drain(&driver);
    counter.assert_each_dropped_once();
    assert!(sent.load(Ordering::Relaxed) >= 20);
    assert_eq!((driver.counters().stale, driver.live_operations()), (0, 0));
}

/// A queue that is full enough is submitted by the start of an operation, which reports no errors.
#[test]
fn what_fails_for_good_between_turns_is_told_by_the_next() {
    let (driver, stage) = scripted(4, 16);
    let fd = stage.open(&driver, FILE);
    stage.state().failures.push_back(Errno::BADF);
    let reads: Vec<_> = (0..3).map(|_| driver.read(&fd, vec![0; 1], 0)).collect();
    assert!(stage.state().failures.is_empty(), "they were submitted");
    for _ in 0..2 {
        assert_eq!(errno(driver.turn(Wait::Poll)), Errno::BADF);
    }
    drop(reads);
}
