//! A forked child with its parent's driver: a clear error, inert drops, and a driver of its own.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use sakia_driver::{CURRENT_POSITION, Wait};

use crate::children;
use crate::support::{
    Buf, DropCounter, TempDir, content, driver, finish, identity, pipe, poll_once, turn_until,
    write_all,
};

#[test]
fn finds_the_driver_inert() {
    children::run("fork");
}

#[test]
fn may_take_and_drop_results_that_were_there() {
    children::run("fork_with_done_operations");
}

/// Forks; the child runs `child` and exits. Panics if `child` panicked.
fn in_child(child: impl FnOnce()) {
    // SAFETY: this process has one thread (`children::scene` checks), so the child has all of it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        let ended_well = catch_unwind(AssertUnwindSafe(child)).is_ok();
        // SAFETY: ends the child at once, without the exit handlers that the parent has registered.
        unsafe { libc::_exit(if ended_well { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: writes one integer.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child failed");
}

fn names_fork<T: std::fmt::Debug>(result: io::Result<T>) {
    let message = result.unwrap_err().to_string();
    assert!(message.contains("forked child"), "{message}");
}

pub fn scene() {
    let counter = DropCounter::new();
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let (idle, idle_write) = pipe(&driver);
    let (idle_raw, idle_identity) = (idle.raw(), identity(idle.raw()));
    let mut in_flight = driver.read(&fd, Buf::new(5, &counter), CURRENT_POSITION);
    let mut dropped = driver.read(&fd, Buf::new(5, &counter), CURRENT_POSITION);
    assert!(poll_once(&mut in_flight).is_pending());
    assert!(poll_once(&mut dropped).is_pending());
    driver.turn(Wait::Poll).unwrap();
    let mut queued = driver.read(&fd, Buf::new(5, &counter), CURRENT_POSITION);
    let enters = driver.counters().enters;

    // The child takes everything out of its copy; the parent's stays.
    let mut everything = Some((driver, in_flight, dropped, queued, fd, idle));
    in_child(|| {
        let (driver, mut in_flight, dropped, queued, fd, idle) = everything.take().unwrap();
        for wait in [Wait::Poll, Wait::For(Duration::from_millis(1)), Wait::Forever] {
            let error = driver.turn(wait).unwrap_err();
            assert!(error.to_string().contains("forked child"), "{error}");
        }
        let mut late = driver.nop();
        names_fork(late.try_take().expect("refused at once"));
        let mut late = driver.read(&fd, Buf::new(5, &counter), CURRENT_POSITION);
        names_fork(late.try_take().expect("refused at once").0);
        driver.register_arena(1, 4096).unwrap_err();
        let polled = catch_unwind(AssertUnwindSafe(|| poll_once(&mut in_flight)));
        let message = polled.map(drop).unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("before a fork"), "{message}");
        in_flight.cancel();
        let before = counter.dropped();
        drop(dropped);
        drop(queued);
        assert_eq!(counter.dropped(), before, "memory of the parent's operations was dropped");

        assert_eq!(identity(idle_raw), idle_identity);
        drop(idle);
        assert_eq!(identity(idle_raw), None, "the child's copy stays open");
        let handle = driver.handle().clone();
        let (other, other_write) = rustix::pipe::pipe().unwrap();
        assert!(driver.shutdown(Duration::from_secs(3600)).leaked >= 3);
        drop(in_flight);
        drop(fd);
        drop(handle);
        assert_eq!(counter.dropped(), before);
        drop((other, other_write));

        let own = crate::support::driver();
        let (fd, write) = pipe(&own);
        let mut read = own.read(&fd, vec![0; 4], CURRENT_POSITION);
        own.turn(Wait::Poll).unwrap();
        write_all(&write, b"mine");
        assert_eq!(finish(&own, &mut read).1, b"mine");
    });

    let (driver, mut in_flight, dropped, second, fd, idle) = everything.take().unwrap();
    queued = second;
    assert_eq!(driver.counters().enters, enters);
    assert_eq!(counter.dropped(), 0);
    assert_eq!(identity(idle_raw), idle_identity);
    drop(dropped);
    driver.turn(Wait::Poll).unwrap();
    turn_until(&driver, || driver.in_flight() == 2);
    write_all(&write, b"firstother");
    let mut texts = [&mut in_flight, &mut queued].map(|read| {
        let (result, buf) = finish(&driver, read);
        assert_eq!(result.unwrap(), 5);
        buf.bytes().to_vec()
    });
    texts.sort();
    assert_eq!(texts, [b"first", b"other"]);
    write_all(&idle_write, b"x");
    let mut read = driver.read(&idle, vec![0; 4], CURRENT_POSITION);
    assert_eq!(finish(&driver, &mut read).0.unwrap(), 1);
    drop(fd);
    assert_eq!(driver.shutdown(Duration::from_secs(10)).leaked, 0);
}

pub fn scene_with_done_operations() {
    let folder = TempDir::new();
    let counter = DropCounter::new();
    let driver = driver();
    let fd = driver.adopt(File::open(folder.file("file", 4096)).unwrap().into());
    let mut reads: Vec<_> = (0..4).map(|_| driver.read(&fd, Buf::new(64, &counter), 0)).collect();
    turn_until(&driver, || driver.in_flight() == 0);
    in_child(|| {
        let (result, buf) = reads[0].try_take().expect("done before the fork");
        assert_eq!(result.unwrap(), 64);
        assert_eq!(buf.bytes()[63], content(63));
        drop(buf);
        drop(std::mem::take(&mut reads));
        counter.assert_each_dropped_once();
    });
    assert_eq!(counter.dropped(), 0);
    for read in &mut reads {
        assert_eq!(read.try_take().unwrap().0.unwrap(), 64);
    }
    let mut again = driver.read(&fd, vec![0; 8], 0);
    assert_eq!(finish(&driver, &mut again).0.unwrap(), 8);
}
