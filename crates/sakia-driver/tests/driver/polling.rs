//! Polls: waiting for readiness.

use std::fs::File;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, PollEvents, Wait};

use crate::support::{TempDir, driver, finish, pipe};

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
    finish(&driver, &mut driver.read(&read, vec![0; 1 << 20], CURRENT_POSITION)).0.unwrap();
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
