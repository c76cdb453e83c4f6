//! Completions that no operation waits for: they are counted, and nothing else changes.

use std::collections::HashSet;

use sakia_driver::{Driver, Wait};
use sakia_ring::{CqeFlags, Opcode};

use crate::scripted::{Cancels, FILE, MORE, PIPE, Stage, scripted};
use crate::support::{Buf, DropCounter, Random, drain};

/// Returns the facts that must stay the same.
fn facts(driver: &Driver) -> (u32, u32, u64) {
    (driver.in_flight(), driver.live_operations(), driver.counters().finished)
}

/// Posts a completion that belongs to no operation, and asserts that it is only counted.
#[track_caller]
fn assert_ignored(driver: &Driver, stage: &Stage, user_data: u64, res: i32) {
    let (before, stale) = (facts(driver), driver.counters().stale);
    stage.post(user_data, res, CqeFlags(0));
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(facts(driver), before, "{user_data:#x} had an effect");
    assert_eq!(driver.counters().stale, stale + 1);
}

#[test]
fn unknown_keys_and_kinds_are_ignored() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let mut read = driver.read(&fd, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    let live = stage.in_flight(Opcode::READ)[0].user_data;
    for user_data in [0, u64::MAX, u64::MAX << 8, 0xffff_ff00, 1 << 8, 255 << 8, 256 << 8] {
        if user_data != live {
            assert_ignored(&driver, &stage, user_data, 4);
        }
    }
    // Kind 2 is another thread's wake, which ends nothing either.
    for kind in (1..=255).filter(|&kind| kind != 2) {
        assert_ignored(&driver, &stage, live | kind, 4);
    }
    for bit in 8..64 {
        assert_ignored(&driver, &stage, live ^ (1 << bit), 4);
    }
    let before = facts(&driver);
    stage.post(live | 2, 4, CqeFlags(0));
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(facts(&driver), before);
    stage.complete_read(b"12345678");
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(read.try_take().unwrap().0.unwrap(), 8);
    counter.assert_each_dropped_once();
}

#[test]
fn an_old_generation_is_ignored_though_its_slot_is_taken_again() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    let mut old = Vec::new();
    let counter = DropCounter::new();
    for _ in 0..50 {
        let mut read = driver.read(&fd, Buf::new(8, &counter), 0);
        driver.turn(Wait::Poll).unwrap();
        let key = stage.in_flight(Opcode::READ)[0].user_data;
        for &key in &old {
            assert_ignored(&driver, &stage, key, 4);
        }
        assert!(read.try_take().is_none(), "a stale completion ended another operation");
        assert_eq!(counter.live(), 1);
        stage.complete_read(b"12345678");
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(read.try_take().unwrap().0.unwrap(), 8);
        old.push(key);
    }
    let slots: HashSet<u64> = old.iter().map(|key| (key >> 8) & 0xff_ffff).collect();
    assert_eq!((old.len(), slots.len()), (50, 1), "the same slot each time");
}

#[test]
fn duplicates_are_ignored_while_the_result_waits_and_after() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, FILE);
    let counter = DropCounter::new();
    let mut read = driver.read(&fd, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    let key = stage.complete_read(b"12345678").user_data;
    stage.post(key, -5, CqeFlags(0)); // in the same batch
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(driver.counters().stale, 1);
    assert_ignored(&driver, &stage, key, 3);
    assert_eq!(read.try_take().unwrap().0.unwrap(), 8, "the first one counts");
    assert_ignored(&driver, &stage, key, 3);
    // The duplicates released no credits: as many operations as before go out at a time.
    let reads: Vec<_> = (0..40).map(|_| driver.read(&fd, Buf::new(8, &counter), 0)).collect();
    for _ in 0..10 {
        driver.turn(Wait::Poll).unwrap();
    }
    assert_eq!(stage.in_flight(Opcode::READ).len(), 14, "16 completions less the reserve of 2");
    drop(reads);
}

#[test]
fn completions_of_requests_to_cancel_count_once_each() {
    let (driver, stage) = scripted(8, 16);
    stage.state().cancels = Cancels::Manual;
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    // No request to cancel was sent.
    let reads: Vec<_> = (0..3).map(|_| driver.read(&fd, Buf::new(8, &counter), 0)).collect();
    driver.turn(Wait::Poll).unwrap();
    let key = stage.in_flight(Opcode::READ)[0].user_data;
    for _ in 0..10 {
        assert_ignored(&driver, &stage, key | 1, 0);
    }
    assert_eq!((driver.in_flight(), counter.dropped()), (3, 0));
    // Two requests are sent, and the third waits for room.
    drop(reads);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!((driver.in_flight(), driver.counters().cancels), (5, 2));
    for _ in 0..10 {
        stage.post(key | 1, 0, CqeFlags(0));
    }
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(counter.dropped(), 0);
    assert!(driver.in_flight() >= 3, "the driver forgot operations in flight");
    for _ in 0..3 {
        stage.complete(Opcode::READ, -125);
    }
    driver.turn(Wait::Poll).unwrap();
    counter.assert_each_dropped_once();
}

#[test]
fn the_end_waits_for_operations_whatever_completions_came_in_excess() {
    let (driver, stage) = scripted(8, 16);
    stage.state().cancels = Cancels::Fail;
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let read = driver.read(&fd, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    stage.post(1, 0, CqeFlags(0));
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(driver.in_flight(), 1);
    drop(read);
    let drained = driver.shutdown(std::time::Duration::from_secs(1));
    assert_eq!((drained.leaked, counter.dropped()), (1, 0));
}

#[test]
fn a_hundred_thousand_random_completions_change_nothing() {
    let (driver, stage) = scripted(16, 32);
    stage.state().cancels = Cancels::Fail;
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let mut random = Random::new(20);
    let mut reads = Vec::new();
    let mut ended = Vec::new();
    for round in 0..1000 {
        while reads.len() < 20 {
            let read = driver.read(&fd, Buf::new(8, &counter), 0);
            driver.turn(Wait::Poll).unwrap();
            let key = stage.state().in_flight.last().unwrap().user_data;
            reads.push((key, read));
        }
        let live: HashSet<u64> = reads.iter().map(|(key, _)| *key).collect();
        let finished = driver.counters().finished;
        for _ in 0..100 {
            let (near, _) = reads[random.below(20) as usize];
            let user_data = match random.below(6) {
                0 => random.next(),
                1 => near ^ 1 << random.below(64),
                2 => near ^ random.next() & 0xff,
                3 => near ^ (1 + random.below(1 << 31)) << 32,
                4 => random.next() & 0xffff,
                _ => ended.get(random.below(1 + round) as usize).copied().unwrap_or(u64::MAX),
            };
            let flags = random.next() as u32;
            if !live.contains(&user_data) {
                stage.post(user_data, random.next() as i32, CqeFlags(flags));
            } else if flags & MORE.0 != 0 {
                stage.post(user_data, 1, CqeFlags(flags));
            }
        }
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(driver.counters().finished, finished, "in round {round}");
        assert_eq!((driver.in_flight(), counter.live()), (20, 20));
        // One genuine completion, which the random ones do not influence.
        let (key, mut read) = reads.swap_remove(random.below(20) as usize);
        stage.state().in_flight.retain(|sqe| sqe.user_data != key);
        stage.post(key, 7, CqeFlags(0));
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(read.try_take().unwrap().0.unwrap(), 7);
        ended.push(key);
    }
    assert!(driver.counters().stale > 90_000);
    for (key, _) in &reads {
        stage.post(*key, 0, CqeFlags(0));
    }
    drain(&driver);
    drop(reads);
    counter.assert_each_dropped_once();
    assert_eq!(driver.live_operations(), 0);
}
