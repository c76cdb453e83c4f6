//! The cost of operations, in numbers of enters.

use std::fs::File;
use std::time::Duration;

use sakia_driver::{CURRENT_POSITION, OpKind, PollEvents, Wait};

use crate::hosts::rigged;
use crate::support::{TempDir, content, drain, driver, finish};

#[test]
fn sixty_four_hot_reads_cost_one_enter() {
    let folder = TempDir::new();
    let (driver, rig) = rigged(256, 4096);
    let fd = driver.adopt(File::open(folder.file("file", 1 << 18)).unwrap().into());
    let mut warm_up = driver.read(&fd, vec![0; 1 << 18], 0);
    finish(&driver, &mut warm_up).0.unwrap();
    let waits = driver.counters().waits;
    for _ in 0..20 {
        let enters = (rig.enters.get(), driver.counters().enters);
        let mut reads: Vec<_> =
            (0..64).map(|place| driver.read(&fd, vec![0; 4096], place * 4096)).collect();
        assert_eq!(driver.turn(Wait::Poll).unwrap(), 64);
        assert_eq!((rig.enters.get(), driver.counters().enters), (enters.0 + 1, enters.1 + 1));
        for (place, read) in reads.iter_mut().enumerate() {
            let (result, buf) = read.try_take().unwrap();
            assert_eq!((result.unwrap(), buf[7]), (4096, content(place * 4096 + 7)));
        }
    }
    assert_eq!(driver.counters().waits, waits);
}

#[test]
fn a_hundred_ready_completions_cost_one_turn_and_an_enter_for_each_twenty() {
    // The submission queue is flushed while the reads are started, so the turn finds all of them waiting in
    // the kernel. It finishes 20 in one enter.
    let (driver, rig) = rigged(32, 4096);
    let (read_end, write) = rustix::pipe::pipe().unwrap();
    let fd = driver.adopt(read_end);
    for round in 0..20 {
        let mut reads: Vec<_> =
            (0..96).map(|_| driver.read(&fd, vec![0; 1], CURRENT_POSITION)).collect();
        assert_eq!(driver.in_flight(), 96);
        rustix::io::write(&write, &[1; 96]).unwrap();
        let enters = (rig.enters.get(), driver.counters().enters);
        assert_eq!(driver.turn(Wait::Poll).unwrap(), 96);
        let cost = rig.enters.get() - enters.0;
        assert_eq!(u64::from(cost), driver.counters().enters - enters.1);
        assert!(cost <= 5, "{cost} enters in round {round}");
        for read in &mut reads {
            assert_eq!(read.try_take().unwrap().0.unwrap(), 1);
        }
    }
}

#[test]
fn an_idle_driver_does_not_enter() {
    let (driver, rig) = rigged(32, 64);
    let (read_end, write) = rustix::pipe::pipe().unwrap();
    let fd = driver.adopt(read_end);
    for _ in 0..100 {
        assert_eq!(driver.turn(Wait::Poll).unwrap(), 0);
        assert_eq!(driver.turn(Wait::For(Duration::ZERO)).unwrap(), 0);
        assert_eq!(driver.turn(Wait::Forever).unwrap(), 0, "nothing is in flight");
    }
    assert_eq!(rig.enters.get(), 0);
    // Turns with operations in flight cost none either, until one has become ready.
    let mut poll = driver.poll(&fd, PollEvents::READABLE);
    driver.turn(Wait::Poll).unwrap();
    let enters = rig.enters.get();
    for _ in 0..100 {
        assert_eq!(driver.turn(Wait::Poll).unwrap(), 0);
    }
    assert_eq!(rig.enters.get(), enters);
    rustix::io::write(&write, b"x").unwrap();
    assert_eq!(driver.turn(Wait::Poll).unwrap(), 1);
    assert!(poll.try_take().unwrap().unwrap().contains(PollEvents::READABLE));
    assert_eq!(rig.enters.get(), enters + 1);
}

#[test]
fn everything_that_is_started_is_counted() {
    let driver = driver();
    let fd = driver.adopt(File::open("/proc/self/status").unwrap().into());
    let mut statx = driver.statx_fd(&fd);
    finish(&driver, &mut statx).unwrap();
    let mut nops: Vec<_> = (0..10).map(|_| driver.nop()).collect();
    drop(nops.pop());
    drain(&driver);
    let counters = driver.counters();
    assert_eq!((counters.started, counters.finished, counters.pushed), (11, 11, 11));
    assert_eq!((counters.completions, counters.pooled, counters.boxed), (11, 1, 0));
    assert_eq!((counters.orphaned, counters.revoked, counters.stale), (1, 1, 0));
    let named: Vec<_> = counters.iter().collect();
    assert!(named.contains(&("started", 11)) && named.contains(&("leaked", 0)));
}

#[test]
fn operations_are_counted_by_kind() {
    let driver = driver();
    let (receiver, sender) = rustix::pipe::pipe().unwrap();
    let (receiver, sender) = (driver.adopt(receiver), driver.adopt(sender));
    let mut write = driver.write(&sender, "x", CURRENT_POSITION);
    let mut read = driver.read(&receiver, vec![0; 1], CURRENT_POSITION);
    let mut waiting = driver.read(&receiver, vec![0; 1], CURRENT_POSITION);
    while write.try_take().is_none() || read.try_take().is_none() {
        driver.turn(Wait::Forever).unwrap();
    }
    waiting.cancel();
    while waiting.try_take().is_none() {
        driver.turn(Wait::Forever).unwrap();
    }
    let counters = driver.counters();
    let submitted = |kind| counters.of(kind).submitted;
    assert_eq!(submitted(OpKind::Read), 2);
    assert_eq!((submitted(OpKind::Write), submitted(OpKind::Cancel)), (1, 1));
    assert_eq!((submitted(OpKind::Open), counters.pushed, counters.cancels), (0, 4, 1));
}
