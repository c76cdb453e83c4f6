//! The end of a driver while the device is still writing into hundreds of buffers.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sakia_driver::{Driver, Op, Read, Wait};

use crate::support::{Buf, DropCounter, Reuse, TempDir, content, driver, open_direct, poll_once};

const READS: usize = 512;
const LEN: usize = 64 << 10;
/// The number of places in the file; further reads read the same places again.
const PLACES: usize = 128;

fn file() -> Option<(TempDir, OwnedFd)> {
    let folder = TempDir::new();
    let file = open_direct(&folder.file("file", PLACES * LEN))?;
    Some((folder, file))
}

/// Starts and polls all reads, and submits them to the kernel.
fn start(driver: &Driver, file: OwnedFd, counter: &DropCounter) -> Vec<Op<Read<Buf>>> {
    let fd = driver.adopt(file);
    let reads: Vec<_> = (0..READS)
        .map(|number| {
            let offset = (number % PLACES * LEN) as u64;
            let mut read = driver.read(&fd, Buf::new(LEN, counter), offset);
            assert!(poll_once(&mut read).is_pending());
            read
        })
        .collect();
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(driver.counters().started, READS as u64);
    reads
}

#[test]
fn with_the_handles_dropped_before() {
    let Some((_folder, file)) = file() else { return };
    let counter = DropCounter::new();
    let driver = driver();
    let handle = driver.handle().clone();
    let reads = start(&driver, file, &counter);
    drop(reads);
    drop(driver);
    let reuse = Reuse::take(READS, LEN);
    counter.assert_each_dropped_once();
    assert_eq!((handle.in_flight(), handle.live_operations()), (0, 0), "freed while in flight");
    let counters = handle.counters();
    assert_eq!((counters.finished, counters.leaked), (counters.started, 0));
    reuse.assert_untouched();
}

#[test]
fn with_the_handles_kept() {
    let Some((_folder, file)) = file() else { return };
    let counter = DropCounter::new();
    let driver = driver();
    let handle = driver.handle().clone();
    let mut reads = start(&driver, file, &counter);
    drop(driver);
    assert_eq!((counter.dropped(), handle.in_flight()), (0, 0));
    for (number, read) in reads.iter_mut().enumerate() {
        let (result, buf) = read.try_take().expect("the end waits for results");
        match result {
            Ok(len) => {
                assert_eq!(len, LEN);
                let base = number % PLACES * LEN;
                let same = |(at, &byte): (usize, &u8)| byte == content(base + at);
                assert!(buf.bytes().iter().enumerate().all(same), "read {number} is wrong");
            }
            Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED)),
        }
    }
    drop(reads);
    counter.assert_each_dropped_once();
    assert_eq!(handle.live_operations(), 0);
}

#[test]
fn with_the_driver_forgotten_and_the_thread_gone() {
    for handles_dropped in [true, false] {
        let Some((_folder, file)) = file() else { return };
        let counter = DropCounter::new();
        let dropped = std::thread::spawn(move || {
            let driver = driver();
            let reads = start(&driver, file, &counter);
            if handles_dropped {
                drop(reads);
            } else {
                std::mem::forget(reads);
            }
            std::mem::forget(driver);
            counter.dropped()
        });
        let dropped = dropped.join().unwrap();
        let reuse = Reuse::take(READS, LEN);
        // Completed reads were freed before; the others never are.
        assert_eq!(counter.dropped(), dropped);
        reuse.assert_untouched();
    }
}
