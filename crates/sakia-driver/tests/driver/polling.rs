//! Waiting for readiness.

use std::fs::File;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use sakia_driver::{PollEvents, Wait};

use crate::support::{TempDir, driver, errno, finish, pipe, write_all};

#[test]
fn until_there_is_something_to_read() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let mut poll = driver.poll(&fd, PollEvents::READABLE);
    driver.turn(Wait::Poll).unwrap();
    assert!(poll.try_take().is_none());
    write_all(&write, b"x");
    let events = finish(&driver, &mut poll).unwrap();
    assert!(events.contains(PollEvents::READABLE) && !events.contains(PollEvents::HANG_UP));
    // It is said again for as long as it is so.
    let mut again = driver.poll(&fd, PollEvents::READABLE | PollEvents::WRITABLE);
    assert!(finish(&driver, &mut again).unwrap().contains(PollEvents::READABLE));
}

#[test]
fn until_there_is_room_to_write() {
    let driver = driver();
    let (read, write) = pipe(&driver);
    rustix::io::ioctl_fionbio(&write, true).unwrap();
    while rustix::io::write(&write, &[0; 4096]).is_ok() {}
    let write = driver.adopt(write);
    let mut poll = driver.poll(&write, PollEvents::WRITABLE);
    driver.turn(Wait::Poll).unwrap();
    assert!(poll.try_take().is_none());
    finish(&driver, &mut driver.read(&read, vec![0; 1 << 20], 0)).0.unwrap();
    assert_eq!(finish(&driver, &mut poll).unwrap(), PollEvents::WRITABLE);
}

#[test]
fn until_the_other_end_is_gone() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let mut poll = driver.poll(&fd, PollEvents::READABLE);
    driver.turn(Wait::Poll).unwrap();
    drop(write);
    assert!(finish(&driver, &mut poll).unwrap().contains(PollEvents::HANG_UP));

    let (read, write) = pipe(&driver);
    let write = driver.adopt(write);
    let mut poll = driver.poll(&write, PollEvents(0));
    driver.turn(Wait::Poll).unwrap();
    drop(read);
    assert!(finish(&driver, &mut poll).unwrap().contains(PollEvents::ERROR));

    let (ours, theirs) = UnixStream::pair().unwrap();
    let socket = driver.adopt(ours.into());
    drop(theirs);
    let mut poll = driver.poll(&socket, PollEvents::READABLE);
    let events = finish(&driver, &mut poll).unwrap();
    assert!(events.contains(PollEvents::HANG_UP | PollEvents::READABLE));
}

#[test]
fn until_it_is_canceled() {
    let driver = driver();
    let (fd, _write) = pipe(&driver);
    let mut polls: Vec<_> = (0..50).map(|_| driver.poll(&fd, PollEvents::READABLE)).collect();
    driver.turn(Wait::Poll).unwrap();
    polls.iter_mut().for_each(sakia_driver::Op::cancel);
    for poll in &mut polls {
        assert_eq!(errno(finish(&driver, poll)), Errno::CANCELED);
    }
    assert_eq!(driver.counters().cancels, 50);
}

#[test]
fn of_what_has_no_readiness() {
    let folder = TempDir::new();
    let driver = driver();
    let file = driver.adopt(File::open(folder.file("file", 1)).unwrap().into());
    // A regular file is always ready, or cannot be polled: kernels differ.
    match finish(&driver, &mut driver.poll(&file, PollEvents::READABLE)) {
        Ok(events) => assert!(events.contains(PollEvents::READABLE)),
        Err(error) => {
            assert!(matches!(Errno::from_io_error(&error), Some(Errno::BADF | Errno::PERM)))
        }
    }
}
