//! Results that the kernel gives to everything, instead of performing it: each errno is the errno of an
//! error, counts are no larger than what was asked for, and memory comes back once.

use std::ffi::CString;
use std::fs::File;

use rustix::io::Errno;
use sakia_driver::{Driver, Operation, PollEvents, Uring};

use crate::hosts::{Rig, Rigged, rigged};
use crate::support::{Buf, DropCounter, TempDir, content, finish, skip};

type Rigs = (Driver<Uring<Rigged>>, std::rc::Rc<Rig>);

/// A rigged driver. `None` where the kernel's no-op takes no results (before 6.10).
fn injecting() -> Option<Rigs> {
    let (driver, rig) = rigged(8, 16);
    rig.injects.set(Some(-77));
    let result = finish(&driver, &mut driver.nop());
    rig.injects.set(None);
    result.is_err_and(|error| error.raw_os_error() == Some(77)).then_some((driver, rig))
}

/// What the errno of an error must be: restart codes stand for an interruption.
fn expected(errno: i32) -> Option<i32> {
    Some(if (512..=516).contains(&errno) { Errno::INTR.raw_os_error() } else { errno })
}

#[track_caller]
fn assert_errno<T>(result: std::io::Result<T>, errno: i32, what: &str) {
    let Err(error) = result else { panic!("{what}: -{errno} is no error") };
    assert_eq!(error.raw_os_error(), expected(errno), "{what}");
}

#[test]
fn negative_results_are_errors() {
    let Some((driver, rig)) = injecting() else { skip!("no injected results") };
    let folder = TempDir::new();
    let file = driver
        .adopt(File::options().read(true).write(true).open(folder.file("f", 100)).unwrap().into());
    let (read_end, _write) = rustix::pipe::pipe().unwrap();
    let read_end = driver.adopt(read_end);
    let path = CString::new("/").unwrap();
    let counter = DropCounter::new();
    let buf = || Buf::filled(1, 100, &counter);
    for errno in (1..=530).chain([1000, 4094, 4095]) {
        rig.injects.set(Some(-errno));
        assert_errno(end(&driver, driver.read(&file, buf(), 0)).0, errno, "read");
        assert_errno(end(&driver, driver.read(&read_end, buf(), 0)).0, errno, "read of a pipe");
        assert_errno(end(&driver, driver.write(&file, buf(), 0)).0, errno, "write");
        let parts = vec![buf(), buf()];
        assert_errno(end(&driver, driver.read_vectored(&file, parts, 0)).0, errno, "parts");
        assert_errno(end(&driver, driver.fsync(&file, true)), errno, "fsync");
        assert_errno(end(&driver, driver.poll(&read_end, PollEvents::READABLE)), errno, "poll");
        assert_errno(end(&driver, driver.statx(None, path.clone(), 0)), errno, "statx");
        assert_errno(end(&driver, driver.open(None, path.clone(), 0, 0)), errno, "open");
        assert_errno(end(&driver, driver.mkdir(None, path.clone(), 0)), errno, "mkdir");
    }
    counter.assert_each_dropped_once();
    // Nothing of that was done, and all can be done now.
    rig.injects.set(None);
    let (result, bytes) = end(&driver, driver.read(&file, buf(), 0));
    assert_eq!(result.unwrap(), 100);
    assert!(bytes.bytes().iter().enumerate().all(|(at, &byte)| byte == content(at)));
    drop(bytes);
    counter.assert_each_dropped_once();
    let counters = driver.counters();
    assert_eq!((counters.stale, counters.leaked, driver.live_operations()), (0, 0, 0));
}

#[test]
fn counts_are_no_larger_than_what_was_asked_for() {
    let Some((driver, rig)) = injecting() else { skip!("no injected results") };
    let folder = TempDir::new();
    let file = driver.adopt(File::open(folder.file("f", 100)).unwrap().into());
    for count in [0, 1, 99, 100, 101, 5000, i32::MAX] {
        rig.injects.set(Some(count));
        let at_most = (count as usize).min(100);
        let (result, bytes) = end(&driver, driver.read(&file, vec![7; 100], 0));
        assert_eq!((result.unwrap(), bytes.len()), (at_most, 100));
        let (result, _) = end(&driver, driver.write(&file, vec![7; 100], 0));
        assert_eq!(result.unwrap(), at_most);
        let (result, _) = end(&driver, driver.read_vectored(&file, vec![vec![7; 50]; 2], 0));
        assert_eq!(result.unwrap(), at_most);
    }
}

fn end<O: Operation>(
    driver: &Driver<Uring<Rigged>>,
    mut op: sakia_driver::Op<O, Uring<Rigged>>,
) -> O::Output {
    finish(driver, &mut op)
}
