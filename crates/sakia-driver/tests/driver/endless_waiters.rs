//! Ten thousand operations that wait without end, on a ring of eight entries.

use std::fs::File;
use std::os::fd::OwnedFd;

use sakia_driver::{CURRENT_POSITION, Driver, Fd, Op, Poll, PollEvents, Read, Wait};

use crate::support::{
    Buf, DropCounter, TempDir, drain, finish, pipe, sized, turn_until, write_all,
};

const PIPES: usize = 100;
/// The number of polls per polled pipe, and of reads per other pipe.
const WAITERS: usize = 50;

struct Waiters {
    polled: Vec<(Fd, OwnedFd)>,
    read: Vec<(Fd, OwnedFd)>,
    polls: Vec<Op<Poll>>,
    reads: Vec<Op<Read<Buf>>>,
}

fn start(driver: &Driver, counter: &DropCounter) -> Waiters {
    let polled: Vec<_> = (0..PIPES).map(|_| pipe(driver)).collect();
    let read: Vec<_> = (0..PIPES).map(|_| pipe(driver)).collect();
    let (mut polls, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..WAITERS {
        polls.extend(polled.iter().map(|(fd, _)| driver.poll(fd, PollEvents::READABLE)));
        reads.extend(
            read.iter().map(|(fd, _)| driver.read(fd, Buf::new(1, counter), CURRENT_POSITION)),
        );
    }
    // While they wait, reads of a file complete.
    let folder = TempDir::new();
    let file = driver.adopt(File::open(folder.file("file", 4096)).unwrap().into());
    for _ in 0..1000 {
        let mut read = driver.read(&file, vec![0; 64], 0);
        assert_eq!(finish(driver, &mut read).0.unwrap(), 64);
    }
    assert_eq!(driver.in_flight() as usize, 2 * PIPES * WAITERS);
    Waiters { polled, read, polls, reads }
}

#[test]
fn become_ready_all_at_once() {
    let driver = sized(8, 16);
    let counter = DropCounter::new();
    let Waiters { polled, read, mut polls, mut reads } = start(&driver, &counter);
    for (number, op) in (0..).zip(&mut polls) {
        op.set_token(number);
    }
    for (number, op) in (polls.len() as u64..).zip(&mut reads) {
        op.set_token(number);
    }
    for (_, write) in &polled {
        write_all(write, b"x");
    }
    for (_, write) in &read {
        write_all(write, &[7; WAITERS]);
    }
    let mut done = vec![0; polls.len() + reads.len()];
    turn_until(&driver, || {
        while let Some(token) = driver.next_done() {
            let token = token as usize;
            done[token] += 1;
            if let Some(poll) = polls.get_mut(token) {
                let events = poll.try_take().unwrap().unwrap();
                assert!(events.contains(PollEvents::READABLE));
            } else {
                let (result, buf) = reads[token - PIPES * WAITERS].try_take().unwrap();
                assert_eq!((result.unwrap(), buf.bytes()), (1, &[7][..]));
            }
        }
        driver.in_flight() == 0
    });
    assert!(done.iter().all(|&count| count == 1));
    assert!(driver.counters().overflows > 0, "16 places were enough?");
    counter.assert_each_dropped_once();
    assert_eq!((driver.live_operations(), driver.counters().stale), (0, 0));
}

#[test]
fn are_dropped_and_all_canceled() {
    let driver = sized(8, 16);
    let counter = DropCounter::new();
    let waiters = start(&driver, &counter);
    drop((waiters.polls, waiters.reads));
    assert_eq!(counter.dropped(), 0);
    drain(&driver);
    counter.assert_each_dropped_once();
    assert_eq!(driver.live_operations(), 0);
    assert_eq!(driver.counters().cancels as usize, 2 * PIPES * WAITERS);
    // Every pipe still works as before.
    for (fd, write) in waiters.polled.iter().chain(&waiters.read) {
        write_all(write, b"x");
        let mut read = driver.read(fd, vec![0; 8], CURRENT_POSITION);
        assert_eq!(finish(&driver, &mut read).0.unwrap(), 1);
    }
}

#[test]
fn are_dropped_before_the_kernel_saw_all_of_them() {
    let driver = sized(8, 16);
    let counter = DropCounter::new();
    let (fd, write) = pipe(&driver);
    let mut reads: Vec<_> =
        (0..1000).map(|_| driver.read(&fd, Buf::new(1, &counter), CURRENT_POSITION)).collect();
    while let Some(read) = reads.pop() {
        drop(read);
        if reads.len() % 7 == 0 {
            driver.turn(Wait::Poll).unwrap();
        }
        if reads.len() % 50 == 0 {
            write_all(&write, b"x");
        }
    }
    drain(&driver);
    counter.assert_each_dropped_once();
    assert_eq!(driver.live_operations(), 0);
}
