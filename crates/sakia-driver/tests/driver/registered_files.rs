//! Files that the driver registers with the ring after many transfers: users do not notice.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, Driver, Fd, Uring, Wait};

use crate::support::{TempDir, assert_unread, content, driver, finish, identity, pipe, turn_until};

/// A number of transfers after which a file is certainly registered.
const MANY: usize = 100;
/// A number above all descriptors in this program's tests, and within every limit on them.
const NUMBER_MIN: i32 = 900;

/// Reads `count` single bytes of a file, from its beginning on.
fn read_bytes(driver: &Driver, fd: &Fd, count: usize) {
    for offset in 0..count {
        let (result, buf) = finish(driver, &mut driver.read(fd, vec![0; 1], offset as u64));
        assert_eq!((result.unwrap(), buf[0]), (1, content(offset)), "at {offset}");
    }
}

fn registered(driver: &Driver) -> u64 {
    driver.counters().registered_files
}

#[test]
fn it_is_the_busy_ones_and_they_are_used_as_before() {
    let (driver, dir) = (driver(), TempDir::new());
    let path = dir.file("busy", MANY);
    let (quiet, busy) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    let (quiet, busy) = (driver.adopt(quiet.into()), driver.adopt(busy.into()));
    read_bytes(&driver, &quiet, 10);
    assert_eq!(registered(&driver), 0);
    read_bytes(&driver, &busy, MANY);
    assert_eq!(registered(&driver), 1);
    read_bytes(&driver, &busy, MANY);
    assert_eq!(registered(&driver), 1, "once is enough");
    // Vectored reads work, too.
    let (result, bufs) =
        finish(&driver, &mut driver.read_vectored(&busy, vec![vec![0; 2], vec![0; 3]], 5));
    assert_eq!(result.unwrap(), 5);
    assert_eq!(bufs.concat(), (5..10).map(content).collect::<Vec<u8>>());
    // The end of the file is found, and a write to a read-only descriptor fails.
    let (result, _) = finish(&driver, &mut driver.read(&busy, vec![0; 1], MANY as u64));
    assert_eq!(result.unwrap(), 0);
    let (result, _) = finish(&driver, &mut driver.write(&busy, vec![0; 1], 0));
    assert_eq!(crate::support::errno(result), Errno::BADF);
}

#[test]
fn after_as_many_transfers_as_are_set() {
    let dir = TempDir::new();
    let path = dir.file("busy", MANY);
    for transfers in [1, 3, 64] {
        let mut ring = Uring::new().unwrap();
        ring.register_files_after(transfers);
        let driver = Driver::new(ring);
        for _ in 0..2 {
            let before = registered(&driver);
            let fd = driver.adopt(File::open(&path).unwrap().into());
            read_bytes(&driver, &fd, usize::from(transfers) - 1);
            assert_eq!(registered(&driver), before, "{transfers}");
            read_bytes(&driver, &fd, 1);
            assert_eq!(registered(&driver), before + 1, "{transfers}");
        }
    }
}

#[test]
fn the_next_file_of_the_same_number_is_another() {
    let (driver, dir) = (driver(), TempDir::new());
    let path = dir.file("first", MANY);
    let other = dir.join("second");
    std::fs::write(&other, b"second").unwrap();
    // A number above those of other tests, which get the lowest ones: it is used again each time.
    let open = |path| {
        let file = File::open(path).unwrap();
        driver.adopt(rustix::io::fcntl_dupfd_cloexec(&file, NUMBER_MIN).unwrap())
    };
    let number = {
        let fd = open(&path);
        fd.raw()
    };
    turn_until(&driver, || identity(number).is_none());
    for _ in 0..50 {
        let fd = open(&path);
        assert_eq!(fd.raw(), number);
        let before = registered(&driver);
        read_bytes(&driver, &fd, MANY);
        assert_eq!(registered(&driver), before + 1);
        drop(fd);
        turn_until(&driver, || identity(number).is_none());
        let fd = open(&other);
        assert_eq!(fd.raw(), number);
        let (result, buf) = finish(&driver, &mut driver.read(&fd, vec![0; 6], 0));
        assert_eq!((result.unwrap(), &buf[..]), (6, &b"second"[..]));
        drop(fd);
        turn_until(&driver, || identity(number).is_none());
    }
}

#[test]
fn a_closed_one_is_let_go_of() {
    let (driver, dir) = (driver(), TempDir::new());
    let path = dir.file("locked", MANY);
    let rival = File::open(&path).unwrap();
    for explicit in [false, true] {
        let file = File::open(&path).unwrap();
        // The lock belongs to the open file: it ends with the last reference, including the ring's.
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let (raw, fd) = (file.as_raw_fd(), driver.adopt(file.into()));
        read_bytes(&driver, &fd, MANY);
        let ours = identity(raw);
        assert_eq!(flock(&rival, FlockOperation::NonBlockingLockExclusive), Err(Errno::AGAIN));
        if explicit {
            finish(&driver, &mut driver.close(fd)).unwrap();
        } else {
            drop(fd);
            turn_until(&driver, || identity(raw) != ours);
        }
        flock(&rival, FlockOperation::NonBlockingLockExclusive).unwrap();
        flock(&rival, FlockOperation::Unlock).unwrap();
    }
    assert_eq!(registered(&driver), 2);
}

#[test]
fn one_given_away_is_the_new_owners_alone() {
    let (driver, dir) = (driver(), TempDir::new());
    let path = dir.file("given", MANY);
    let file = File::open(&path).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    let fd = driver.adopt(file.into());
    read_bytes(&driver, &fd, MANY);
    assert_eq!(registered(&driver), 1);
    let mut file = File::from(fd.into_owned().expect("it is not in use"));
    file.seek(SeekFrom::Start(3)).unwrap();
    let mut byte = [0];
    file.read_exact(&mut byte).unwrap();
    assert_eq!(byte[0], content(3));
    drop(file);
    let rival = File::open(&path).unwrap();
    flock(&rival, FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn there_are_more_busy_ones_than_places() {
    let (driver, dir) = (driver(), TempDir::new());
    let path = dir.file("many", MANY);
    let open = || driver.adopt(File::open(&path).unwrap().into());
    let fds: Vec<Fd> = (0..70).map(|_| open()).collect();
    for fd in &fds {
        read_bytes(&driver, fd, MANY);
    }
    let places = registered(&driver);
    assert!((1..70).contains(&places), "{places}");
    // A closed file leaves its place to others.
    drop(fds);
    driver.turn(Wait::Poll).unwrap();
    let fd = open();
    read_bytes(&driver, &fd, MANY);
    assert_eq!(registered(&driver), places + 1);
}

#[test]
fn a_pipe_ends_when_its_registered_end_is_closed() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    for _ in 0..MANY {
        rustix::io::write(&write, b"x").unwrap();
        assert_eq!(
            finish(&driver, &mut driver.read(&fd, vec![0; 1], CURRENT_POSITION)).0.unwrap(),
            1
        );
    }
    assert_eq!(registered(&driver), 1);
    finish(&driver, &mut driver.close(fd)).unwrap();
    assert_unread(&write);
}
