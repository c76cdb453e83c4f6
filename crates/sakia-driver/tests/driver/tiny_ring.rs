//! Queues of one and of two entries, under up to a hundred thousand operations.

use std::fs::File;

use sakia_driver::Wait;
use sakia_ring::Opcode;

use crate::scripted::{FILE, PIPE, scripted};
use crate::support::{Buf, DropCounter, TempDir, content, drain, sized, turn_until};

const OPERATIONS: u64 = 100_000;

#[test]
fn nops_complete_once_each_in_their_order() {
    for (sq, cq) in [(1, 1), (2, 4)] {
        let driver = sized(sq, cq);
        let count = if sq == 1 { OPERATIONS / 10 } else { OPERATIONS };
        let mut nops: Vec<_> = (0..count)
            .map(|token| {
                let mut nop = driver.nop();
                nop.set_token(token);
                nop
            })
            .collect();
        let mut done = 0;
        turn_until(&driver, || {
            while let Some(token) = driver.next_done() {
                assert_eq!(token, done, "out of order, or twice");
                nops[token as usize].try_take().unwrap().unwrap();
                done += 1;
            }
            done == count
        });
        let counters = driver.counters();
        assert_eq!((counters.finished, counters.completions), (count, count));
        assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
        assert!(counters.backlogged > 0);
    }
}

#[test]
fn nops_and_reads_complete_once_each() {
    let folder = TempDir::new();
    let driver = sized(2, 4);
    let fd = driver.adopt(File::open(folder.file("file", 1 << 16)).unwrap().into());
    let (mut nops, mut reads) = (Vec::new(), Vec::new());
    let mut seen = vec![false; OPERATIONS as usize];
    let (mut started, mut done) = (0, 0);
    turn_until(&driver, || {
        while started < OPERATIONS && started - done < 64 {
            if started % 2 == 0 {
                let mut nop = driver.nop();
                nop.set_token(started);
                nops.push(Some(nop));
            } else {
                let offset = started * 4099 % ((1 << 16) - 8);
                let mut read = driver.read(&fd, vec![0; 8], offset);
                read.set_token(started);
                reads.push(Some((offset, read)));
            }
            started += 1;
        }
        while let Some(token) = driver.next_done() {
            assert!(!std::mem::replace(&mut seen[token as usize], true), "{token} twice");
            let place = token as usize / 2;
            if token % 2 == 0 {
                nops[place].take().unwrap().try_take().unwrap().unwrap();
            } else {
                let (offset, mut read) = reads[place].take().unwrap();
                let (result, buf) = read.try_take().unwrap();
                assert_eq!(result.unwrap(), 8);
                let same = |(at, &byte): (usize, &u8)| byte == content(offset as usize + at);
                assert!(buf.iter().enumerate().all(same), "read {token} at {offset}");
            }
            done += 1;
        }
        done == OPERATIONS
    });
    assert!(seen.iter().all(|&seen| seen));
    assert_eq!(driver.counters().finished, OPERATIONS);
    assert_eq!(driver.live_operations(), 0);
}

#[test]
fn entries_leave_in_the_order_of_their_class() {
    let (driver, stage) = scripted(2, 4); // three credits
    let (file, pipe) = (stage.open(&driver, FILE), stage.open(&driver, PIPE));
    let counter = DropCounter::new();
    let mut reads = Vec::new();
    for offset in 0..30 {
        let fd = if offset % 3 == 0 { &pipe } else { &file };
        reads.push(driver.read(fd, Buf::new(8, &counter), offset));
    }
    let mut offset = 30;
    turn_until(&driver, || {
        let mut ready = stage.in_flight(Opcode::READ);
        if stage.state().consumed.len() > 50 {
            ready.truncate(1);
        }
        for _ in ready {
            stage.complete_read(b"12345678");
        }
        driver.turn(Wait::Poll).unwrap();
        // New operations must not overtake waiting ones, now that there is room.
        if offset < 60 {
            reads.push(driver.read(&file, Buf::new(8, &counter), offset));
            offset += 1;
        }
        reads.iter_mut().for_each(|read| drop(read.try_take()));
        counter.made() == 60 && counter.live() == 0
    });
    for raw in [FILE, PIPE] {
        let offsets: Vec<u64> = {
            let state = stage.state();
            let of_fd = state.consumed.iter().filter(|sqe| sqe.opcode == Opcode::READ);
            of_fd.filter(|sqe| sqe.fd == raw).map(|sqe| sqe.off).collect()
        };
        assert!(offsets.is_sorted(), "of {raw}: {offsets:?}");
    }
    drain(&driver);
    counter.assert_each_dropped_once();
}
