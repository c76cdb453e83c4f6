//! A request to cancel, for each operation and at each moment: the operation ends once, with success or with
//! `ECANCELED`, and its memory comes back.

use std::fs::{File, OpenOptions};

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, Op, Operation, PollEvents, Wait};

use crate::support::{
    Buf, DropCounter, TempDir, assert_unread, drain, driver, finish, pipe, sized,
};

/// The number of moments: at once, after the submission, after the completion, and twice.
const MOMENTS: u32 = 4;

/// Starts an operation for each moment and cancels it then. Returns the results.
fn cancel_each<O: Operation>(
    driver: &sakia_driver::Driver,
    start: impl Fn() -> Op<O>,
) -> Vec<O::Output> {
    let at = |moment: u32| {
        let mut op = start();
        if moment == 0 || moment == 3 {
            op.cancel();
        }
        if moment > 0 {
            driver.turn(Wait::Poll).unwrap();
        }
        if moment == 2 && driver.in_flight() == 1 {
            op.cancel();
            drain(driver);
        }
        op.cancel();
        finish(driver, &mut op)
    };
    let outputs = (0..MOMENTS).map(at).collect();
    drain(driver);
    assert_eq!(driver.live_operations(), 0);
    outputs
}

#[track_caller]
fn assert_ok_or_canceled<T>(result: std::io::Result<T>) {
    if let Err(error) = result {
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
    }
}

#[test]
fn operations_that_end_by_themselves() {
    let folder = TempDir::new();
    let path = folder.file("file", 8192);
    let driver = driver();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let fd = driver.adopt(file.into());
    let counter = DropCounter::new();
    let buf = || Buf::new(4096, &counter);
    cancel_each(&driver, || driver.nop()).into_iter().for_each(assert_ok_or_canceled);
    let read = cancel_each(&driver, || driver.read(&fd, buf(), 0));
    let write = cancel_each(&driver, || driver.write(&fd, buf(), 4096));
    let vectors = cancel_each(&driver, || driver.read_vectored(&fd, vec![buf(), buf()], 0));
    read.into_iter().chain(write).for_each(|(result, _)| assert_ok_or_canceled(result));
    vectors.into_iter().for_each(|(result, _)| assert_ok_or_canceled(result));
    counter.assert_each_dropped_once();
    cancel_each(&driver, || driver.fsync(&fd, true)).into_iter().for_each(assert_ok_or_canceled);
    cancel_each(&driver, || driver.statx_fd(&fd)).into_iter().for_each(assert_ok_or_canceled);
    let name = || std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let flags = cancel_each(&driver, || driver.write_with(&fd, buf(), 0, 2));
    flags.into_iter().for_each(|(result, _)| assert_ok_or_canceled(result));
    cancel_each(&driver, || driver.truncate(&fd, 8192)).into_iter().for_each(assert_ok_or_canceled);
    cancel_each(&driver, || driver.advise(&fd, 0, 0, 0))
        .into_iter()
        .for_each(assert_ok_or_canceled);
    let allocated = cancel_each(&driver, || driver.fallocate(&fd, 1, 0, 8192));
    allocated.into_iter().for_each(assert_ok_or_canceled);
    // A file that was opened in time is closed with the next turn.
    let how = sakia_driver::OpenHow::default();
    let opened = cancel_each(&driver, || driver.openat2(None, name(), how));
    opened.into_iter().for_each(assert_ok_or_canceled);
    let opened = cancel_each(&driver, || driver.open(None, name(), 0, 0));
    opened.into_iter().for_each(assert_ok_or_canceled);
    drain(&driver);
}

#[test]
fn operations_on_names() {
    let folder = TempDir::new();
    let driver = driver();
    let name = |name: &str| {
        std::ffi::CString::new(folder.join(name).as_os_str().as_encoded_bytes()).unwrap()
    };
    // A repetition fails with `again` if an earlier one was done.
    let assert_done = |results: Vec<std::io::Result<()>>, again: Errno| {
        for error in results.into_iter().filter_map(Result::err) {
            let errno = Errno::from_io_error(&error).unwrap();
            assert!(errno == Errno::CANCELED || errno == again, "{errno}");
        }
    };
    let (a, b, c) = (|| name("a"), || name("b"), || name("c"));
    assert_done(cancel_each(&driver, || driver.mkdir(None, a(), 0o755)), Errno::EXIST);
    assert_done(cancel_each(&driver, || driver.symlink(a(), None, b())), Errno::EXIST);
    // Each of them may have been canceled in time: make the names that the next operations need.
    let _ = rustix::fs::symlink(a(), b());
    assert_done(cancel_each(&driver, || driver.link(None, b(), None, c(), 0)), Errno::EXIST);
    let _ = rustix::fs::unlink(b());
    let _ = rustix::fs::symlink(a(), c());
    assert_done(cancel_each(&driver, || driver.rename(None, c(), None, b(), 0)), Errno::NOENT);
    let _ = rustix::fs::symlink(a(), b());
    assert_done(cancel_each(&driver, || driver.unlink(None, b(), 0)), Errno::NOENT);
}

#[test]
fn operations_that_wait() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    rustix::io::ioctl_fionbio(&write, true).unwrap();
    while rustix::io::write(&write, &[0; 4096]).is_ok() {}
    let full = driver.adopt(write);
    let (empty, _write) = pipe(&driver);
    let counter = DropCounter::new();
    let buf = || Buf::new(4096, &counter);
    let read = cancel_each(&driver, || driver.read(&empty, buf(), CURRENT_POSITION));
    let vectors =
        cancel_each(&driver, || driver.read_vectored(&empty, vec![buf(), buf()], CURRENT_POSITION));
    let polls = cancel_each(&driver, || driver.poll(&empty, PollEvents::READABLE));
    let is_canceled = |error: std::io::Error| {
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
    };
    read.into_iter().for_each(|(result, _)| is_canceled(result.unwrap_err()));
    vectors.into_iter().for_each(|(result, _)| is_canceled(result.unwrap_err()));
    polls.into_iter().for_each(|result| is_canceled(result.unwrap_err()));
    // A write to a non-blocking descriptor may also fail with `EAGAIN`.
    for (result, _) in cancel_each(&driver, || driver.write(&full, buf(), CURRENT_POSITION)) {
        let errno = Errno::from_io_error(&result.unwrap_err()).unwrap();
        assert!(matches!(errno, Errno::CANCELED | Errno::AGAIN), "{errno}");
    }
    counter.assert_each_dropped_once();
    drop(fd);
}

#[test]
fn operations_that_wait_for_room() {
    let folder = TempDir::new();
    let driver = sized(2, 4);
    let fd = driver.adopt(File::open(folder.file("file", 8192)).unwrap().into());
    let counter = DropCounter::new();
    let mut reads: Vec<_> = (0..100).map(|_| driver.read(&fd, Buf::new(64, &counter), 0)).collect();
    assert!(driver.counters().backlogged > 90);
    reads.iter_mut().for_each(Op::cancel);
    for read in &mut reads[10..] {
        let (result, _) = read.try_take().expect("it ends at once");
        assert_eq!(crate::support::errno(result), Errno::CANCELED);
    }
    drain(&driver);
    drop(reads);
    counter.assert_each_dropped_once();
    assert_eq!(driver.live_operations(), 0);
}

#[test]
fn a_close_is_done_all_the_same() {
    let driver = driver();
    for submitted in [false, true] {
        let (fd, write) = pipe(&driver);
        let clone = fd.clone();
        let mut close = driver.close(fd);
        close.cancel();
        if submitted {
            driver.turn(Wait::Poll).unwrap();
        }
        drop(clone);
        close.cancel();
        finish(&driver, &mut close).unwrap();
        assert_unread(&write);
    }
}
