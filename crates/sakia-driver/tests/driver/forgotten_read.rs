//! A read that is forgotten (`std::mem::forget`): its buffer belongs to the driver for ever.

use std::os::unix::net::UnixStream;

use sakia_driver::{CURRENT_POSITION, Driver, Op, Read, Wait};

use crate::support::{
    Buf, DropCounter, Reuse, content, counting_waker, drain, driver, open_direct, pipe, poll_once,
    poll_with, turn_until, write_all,
};
use crate::support::{TempDir, identity};

/// Forgets a read in flight, makes its data arrive, and checks memory that was allocated meanwhile.
fn forget_then_feed(
    driver: Driver,
    read: Op<Read<Buf>>,
    counter: DropCounter,
    feed: impl FnOnce(),
) {
    let (waker, wakes) = counting_waker();
    let mut read = read;
    assert!(poll_with(&mut read, &waker).is_pending());
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(driver.in_flight(), 1);
    std::mem::forget(read);
    assert_eq!(counter.dropped(), 0, "the buffer of a read in flight was dropped");
    let reuse = Reuse::take(64, 4096);
    feed();
    turn_until(&driver, || wakes.get() == 1);
    reuse.assert_untouched();
    assert_eq!((driver.in_flight(), driver.live_operations()), (0, 1));
    drop(driver);
    assert_eq!(counter.dropped(), 0, "the result of a forgotten read was dropped");
}

#[test]
fn of_a_pipe() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let counter = DropCounter::new();
    let read = driver.read(&fd, Buf::new(4096, &counter), CURRENT_POSITION);
    forget_then_feed(driver, read, counter, || write_all(&write, &[1; 4096]));
}

#[test]
fn of_a_socket() {
    let driver = driver();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let fd = driver.adopt(ours.into());
    let counter = DropCounter::new();
    let read = driver.read(&fd, Buf::new(4096, &counter), CURRENT_POSITION);
    forget_then_feed(driver, read, counter, || write_all(&theirs.into(), &[1; 4096]));
}

#[test]
fn of_a_file_with_direct_io() {
    const LEN: usize = 64 << 10;
    let folder = TempDir::new();
    let Some(file) = open_direct(&folder.file("file", 32 * LEN)) else { return };
    let driver = driver();
    let fd = driver.adopt(file);
    let counter = DropCounter::new();
    for place in 0..32 {
        let mut read = driver.read(&fd, Buf::new(LEN, &counter), (place * LEN) as u64);
        assert!(poll_once(&mut read).is_pending());
        std::mem::forget(read);
    }
    driver.turn(Wait::Poll).unwrap();
    let reuse = Reuse::take(32, LEN);
    drain(&driver);
    reuse.assert_untouched();
    assert_eq!((counter.dropped(), driver.live_operations()), (0, 32));
    // The driver works on: forgotten reads occupy slots and nothing else.
    let mut read = driver.read(&fd, Buf::new(LEN, &counter), 0);
    let (result, buf) = crate::support::finish(&driver, &mut read);
    assert_eq!(result.unwrap(), LEN);
    assert!(buf.bytes().iter().enumerate().all(|(at, &byte)| byte == content(at)));
}

#[test]
fn until_the_driver_ends() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let counter = DropCounter::new();
    for _ in 0..10 {
        let mut read = driver.read(&fd, Buf::new(4096, &counter), CURRENT_POSITION);
        assert!(poll_once(&mut read).is_pending());
        std::mem::forget(read);
    }
    driver.turn(Wait::Poll).unwrap();
    drop(driver);
    let reuse = Reuse::take(64, 4096);
    assert_eq!(counter.dropped(), 0, "the end freed what forgotten reads own");
    rustix::io::write(&write, &[1; 4096]).unwrap(); // no read takes it any more
    reuse.assert_untouched();
    assert!(identity(fd.raw()).is_some(), "the operations' descriptor is still theirs");
}
