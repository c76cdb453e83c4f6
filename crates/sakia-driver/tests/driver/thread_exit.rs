//! A thread that ends with operations in flight.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::mpsc;

use sakia_driver::{CURRENT_POSITION, Driver, Handle, Op, Read, Wait};

use crate::support::{Buf, DropCounter, Reuse, driver, pipe, poll_once};

const READS: usize = 32;

fn start(driver: &Driver, counter: &DropCounter) -> (Vec<Op<Read<Buf>>>, OwnedFd) {
    let (fd, write) = pipe(driver);
    let mut reads: Vec<_> =
        (0..READS).map(|_| driver.read(&fd, Buf::new(4096, counter), CURRENT_POSITION)).collect();
    for read in &mut reads {
        assert!(poll_once(read).is_pending());
    }
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(driver.in_flight() as usize, READS);
    (reads, write)
}

/// Writes bytes for every read; only a read that is still in flight may get them.
fn assert_nothing_comes(write: &OwnedFd) {
    let reuse = Reuse::take(2 * READS, 4096);
    for _ in 0..READS {
        match rustix::io::write(write, &[1; 1024]) {
            Ok(_) | Err(rustix::io::Errno::PIPE) => {}
            Err(errno) => panic!("{errno}"),
        }
    }
    reuse.assert_untouched();
}

#[test]
fn with_the_driver_dropped() {
    let counter = DropCounter::new();
    let write = std::thread::spawn(move || {
        let driver = driver();
        let handle = driver.handle().clone();
        let (reads, write) = start(&driver, &counter);
        drop(driver); // before the handles
        assert_eq!((handle.in_flight(), counter.dropped()), (0, 0));
        drop(reads);
        counter.assert_each_dropped_once();
        write
    });
    let write = write.join().unwrap();
    counter.assert_each_dropped_once();
    assert_nothing_comes(&write);
}

#[test]
fn with_the_driver_forgotten() {
    for handles_dropped in [true, false] {
        let counter = DropCounter::new();
        let write = std::thread::spawn(move || {
            let driver = driver();
            let (reads, write) = start(&driver, &counter);
            if handles_dropped {
                drop(reads);
            } else {
                std::mem::forget(reads);
            }
            std::mem::forget(driver);
            write
        });
        let write = write.join().unwrap();
        assert_eq!(counter.dropped(), 0, "what the kernel may still use was freed");
        assert_nothing_comes(&write);
        assert_eq!(counter.dropped(), 0);
    }
}

/// The value of a thread-local, which lives until the end of the thread.
struct Local {
    /// Dropped first or last.
    driver: Option<Driver>,
    reads: Vec<Op<Read<Buf>>>,
    handle: Handle,
    counter: DropCounter,
    ended: mpsc::Sender<(u32, u32, u64)>,
    driver_first: bool,
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.driver_first {
            self.driver = None;
            assert_eq!(self.counter.dropped(), 0);
            self.reads.clear();
        } else {
            self.reads.clear();
            assert_eq!(self.counter.dropped(), 0);
            self.driver = None;
        }
        let leaked = self.handle.counters().leaked;
        let facts = (self.handle.in_flight(), self.handle.live_operations(), leaked);
        self.ended.send(facts).ok();
    }
}

#[test]
fn with_the_driver_in_a_thread_local() {
    thread_local! {
        static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) };
    }
    for driver_first in [true, false] {
        let counter = DropCounter::new();
        let (ended, outcome) = mpsc::channel();
        let write = std::thread::spawn(move || {
            let driver = driver();
            let (reads, write) = start(&driver, &counter);
            let handle = driver.handle().clone();
            let driver = Some(driver);
            let local = Local { driver, reads, handle, counter, ended, driver_first };
            LOCAL.with(|place| place.borrow_mut().replace(local));
            write
        });
        let write = write.join().unwrap();
        assert_eq!(outcome.recv(), Ok((0, 0, 0)), "driver first: {driver_first}");
        counter.assert_each_dropped_once();
        assert_nothing_comes(&write);
    }
}
