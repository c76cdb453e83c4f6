//! Descriptors of the driver, lent for calls outside it, and given away.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};

use sakia_driver::{CURRENT_POSITION, FileKind, Wait};

use crate::support::{TempDir, driver, finish, identity, pipe};

#[test]
fn a_lent_descriptor_is_the_same_one() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    assert_eq!(fd.as_fd().as_raw_fd(), fd.raw());
    assert!(!fd.is_simulated());
    rustix::io::write(&write, b"x").unwrap();
    let mut byte = [0];
    assert_eq!(rustix::io::read(fd.as_fd(), &mut byte).unwrap(), 1);
}

#[test]
fn only_the_last_clone_is_given_away() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let (raw, ours) = (fd.raw(), identity(fd.raw()));
    let clone = fd.clone();
    let fd = fd.into_owned().expect_err("there is a clone");
    drop(clone);
    // An operation holds a reference, too.
    let mut read = driver.read(&fd, vec![0; 1], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    let fd = fd.into_owned().expect_err("a read is under way");
    rustix::io::write(&write, b"x").unwrap();
    finish(&driver, &mut read).0.unwrap();
    drop(read);
    let owned = fd.into_owned().expect("it is no longer in use");
    assert_eq!((owned.as_raw_fd(), &identity(raw)), (raw, &ours));
    // The driver does not close it, neither now nor at its end.
    driver.turn(Wait::Poll).unwrap();
    drop(driver);
    assert_eq!(identity(raw), ours);
    let mut reader = std::fs::File::from(owned);
    std::fs::File::from(write).write_all(b"more").unwrap();
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "more");
}

#[test]
fn what_is_being_closed_is_not_given_away() {
    let driver = driver();
    let (fd, _write) = pipe(&driver);
    let clone = fd.clone();
    let mut close = driver.close(fd);
    let clone = clone.into_owned().expect_err("it is being closed");
    drop(clone);
    finish(&driver, &mut close).unwrap();
}

#[test]
fn the_size_comes_with_the_kind() {
    let dir = TempDir::new();
    let path = dir.path().join("file");
    std::fs::write(&path, [0; 1234]).unwrap();
    let driver = driver();
    let file = driver.adopt(std::fs::File::open(&path).unwrap().into());
    assert_eq!((file.first_size(), file.kind()), (Some(1234), FileKind::Bounded));
    let folder = driver.adopt(std::fs::File::open(dir.path()).unwrap().into());
    assert_eq!((folder.first_size(), folder.kind()), (None, FileKind::Bounded));
    let (pipe, _write) = pipe(&driver);
    assert_eq!((pipe.first_size(), pipe.kind()), (None, FileKind::Waiting));
}
