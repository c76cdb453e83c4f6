//! Vectored reads and writes.

use std::fs::{self, File};

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, Wait};

use crate::support::{Buf, DropCounter, TempDir, UNTOUCHED, content, driver, errno, finish, pipe};

/// The maximum number of buffers that the kernel takes at a time.
const BUFFERS_MAX: usize = 1024;

#[test]
fn reads_into_any_number_of_buffers() {
    let folder = TempDir::new();
    let driver = driver();
    let fd = driver.adopt(File::open(folder.file("file", 1 << 16)).unwrap().into());
    for count in [0, 1, 2, 1023, 1024, 1025, 1500] {
        let mut read = driver.read_vectored(&fd, vec![vec![UNTOUCHED; 3]; count], 5);
        let (result, bufs) = finish(&driver, &mut read);
        let used = count.min(BUFFERS_MAX);
        if count == 0 {
            assert_eq!(errno(result), Errno::INVAL, "no room, no read");
            continue;
        }
        assert_eq!((result.unwrap(), bufs.len()), (used * 3, count));
        let read: Vec<u8> = bufs[..used].concat();
        assert!(read.iter().enumerate().all(|(at, &byte)| byte == content(5 + at)), "{count}");
        assert!(bufs[used..].iter().flatten().all(|&byte| byte == UNTOUCHED));
    }
}

#[test]
fn writes_from_any_number_of_buffers() {
    let folder = TempDir::new();
    let driver = driver();
    for count in [0, 1, 2, 1024, 1500] {
        let path = folder.join("file");
        let fd = driver.adopt(File::create(&path).unwrap().into());
        let bufs: Vec<Vec<u8>> = (0..count).map(|number| vec![number as u8; number % 4]).collect();
        let mut write = driver.write_vectored(&fd, bufs.clone(), 0);
        let (result, back) = finish(&driver, &mut write);
        let expected = bufs[..count.min(BUFFERS_MAX)].concat();
        assert_eq!((result.unwrap(), back), (expected.len(), bufs));
        assert_eq!(fs::read(&path).unwrap(), expected);
    }
}

#[test]
fn all_buffers_come_back_on_error_and_stay_when_dropped() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let counter = DropCounter::new();
    let bufs = || (0..10).map(|_| Buf::new(100, &counter)).collect::<Vec<_>>();
    let mut canceled = driver.read_vectored(&fd, bufs(), CURRENT_POSITION);
    let dropped = driver.read_vectored(&fd, bufs(), CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    canceled.cancel();
    drop(dropped);
    assert_eq!(counter.dropped(), 0);
    let (result, back) = finish(&driver, &mut canceled);
    assert_eq!((errno(result), back.len()), (Errno::CANCELED, 10));
    drop(back);
    crate::support::drain(&driver);
    counter.assert_each_dropped_once();

    let read_end = driver.adopt(write);
    let (result, back) =
        finish(&driver, &mut driver.read_vectored(&read_end, bufs(), CURRENT_POSITION));
    assert_eq!((errno(result), back.len()), (Errno::BADF, 10));
}
