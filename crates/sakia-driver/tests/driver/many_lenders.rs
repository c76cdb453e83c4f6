//! Descriptors that are lent to drivers, which keep them open and do not close them.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use sakia_driver::{CURRENT_POSITION, Wait};

use crate::support::{TempDir, content, driver, finish, identity, pipe_ends, turn_until};

/// A number of reads after which a file is certainly registered with the ring.
const MANY: usize = 100;

fn open(path: &Path) -> Arc<OwnedFd> {
    Arc::new(File::open(path).unwrap().into())
}

#[test]
fn drivers_of_several_threads_use_the_same_one() {
    let dir = TempDir::new();
    let file = open(&dir.file("x", 4 * MANY));
    let threads: Vec<_> = (0..4)
        .map(|part| {
            let file = Arc::clone(&file);
            thread::spawn(move || {
                let driver = driver();
                let fd = driver.lend(file);
                for offset in part * MANY..(part + 1) * MANY {
                    let mut read = driver.read(&fd, vec![0; 1], offset as u64);
                    let (result, buf) = finish(&driver, &mut read);
                    assert_eq!((result.unwrap(), buf[0]), (1, content(offset)));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(Arc::strong_count(&file), 1);
}

#[test]
fn an_operation_keeps_it_open_and_then_nobody_does() {
    let driver = driver();
    let (read, write) = pipe_ends();
    let (raw, ours) = (read.as_raw_fd(), identity(read.as_raw_fd()));
    let fd = driver.lend(Arc::new(read));
    let mut reading = driver.read(&fd, vec![0; 1], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    drop(fd);
    assert_eq!(identity(raw), ours);
    rustix::io::write(&write, b"x").unwrap();
    assert_eq!(finish(&driver, &mut reading).0.unwrap(), 1);
    drop(reading);
    turn_until(&driver, || identity(raw) != ours);
}

#[test]
fn lent_twice_it_is_the_same_one_and_afterwards_another() {
    let (driver, dir) = (driver(), TempDir::new());
    let file = open(&dir.file("x", 8));
    let (first, second) = (driver.lend(Arc::clone(&file)), driver.lend(Arc::clone(&file)));
    assert_eq!((first.raw(), Arc::strong_count(&file)), (second.raw(), 2));
    drop((first, second));
    assert_eq!(Arc::strong_count(&file), 1);
    let again = driver.lend(Arc::clone(&file));
    assert_eq!(finish(&driver, &mut driver.read(&again, vec![0; 9], 0)).0.unwrap(), 8);
}

#[test]
fn closing_it_waits_and_leaves_it_open() {
    let driver = driver();
    let (read, write) = pipe_ends();
    let (read, ours) = (Arc::new(read), identity(write.as_raw_fd()));
    let fd = driver.lend(Arc::clone(&read));
    let mut reading = driver.read(&fd, vec![0; 1], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    let mut close = driver.close(fd);
    let result = finish(&driver, &mut reading).0;
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    drop(reading);
    finish(&driver, &mut close).unwrap();
    assert_eq!((Arc::strong_count(&read), identity(read.as_raw_fd())), (1, ours));
    // The end of the driver does not close it, either.
    let fd = driver.lend(Arc::clone(&read));
    let fd = fd.into_owned().expect_err("the lender has it");
    drop(driver);
    drop(fd);
    rustix::io::write(&write, b"x").unwrap();
    assert_eq!(rustix::io::read(&read, &mut [0; 1]).unwrap(), 1);
}

#[test]
fn the_next_file_of_the_same_number_is_another() {
    let (driver, dir) = (driver(), TempDir::new());
    let (first, second) = (dir.file("first", MANY), dir.join("second"));
    std::fs::write(&second, b"second").unwrap();
    let mut is_same = false;
    // Other tests open files meanwhile, so it may take a few rounds until the number is used again.
    for _ in 0..50 {
        let fd = driver.lend(open(&first));
        let raw = fd.raw();
        for offset in 0..MANY {
            let mut read = driver.read(&fd, vec![0; 1], offset as u64);
            assert_eq!(finish(&driver, &mut read).1[0], content(offset));
        }
        drop(fd);
        let fd = driver.lend(open(&second));
        let (result, buf) = finish(&driver, &mut driver.read(&fd, vec![0; 6], 0));
        assert_eq!((result.unwrap(), &buf[..]), (6, &b"second"[..]));
        is_same |= fd.raw() == raw;
    }
    assert!(is_same, "no number was used again");
}
