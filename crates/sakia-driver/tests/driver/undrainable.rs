//! The end of a driver whose operations do not end: it is bounded, and their memory is leaked, not freed.

use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, PollEvents, Wait};
use sakia_ring::{CqeFlags, Opcode};

use crate::hosts::rigged;
use crate::scripted::{Cancels, FILE, PIPE, scripted, write_to};
use crate::support::{
    Buf, DropCounter, Reuse, counting_waker, errno, finish, identity, panic_of, poll_once,
    poll_with, write_all,
};

#[test]
fn is_bounded_and_leaks_what_is_in_flight() {
    for limit in [Duration::ZERO, Duration::from_millis(3), Duration::from_secs(5)] {
        let (driver, stage) = scripted(16, 32);
        stage.state().cancels = Cancels::Fail;
        let handle = driver.handle().clone();
        let (pipe, file) = (stage.open(&driver, PIPE), stage.open(&driver, FILE));
        let counter = DropCounter::new();
        let (waker, wakes) = counting_waker();
        let mut stuck: Vec<_> =
            (0..5).map(|_| driver.read(&pipe, Buf::new(8, &counter), CURRENT_POSITION)).collect();
        for read in &mut stuck {
            assert!(poll_with(read, &waker).is_pending());
        }
        let dropped = driver.read(&file, Buf::new(8, &counter), 0);
        driver.turn(Wait::Poll).unwrap();
        drop(dropped);
        let entries = stage.in_flight(Opcode::READ);
        let before = stage.state().now;

        let drained = driver.shutdown(limit);
        assert_eq!(drained.leaked, 6);
        let spent = stage.state().now - before;
        assert!(spent >= limit && spent <= limit + Duration::from_millis(1), "{spent:?}");
        assert_eq!((counter.dropped(), handle.counters().leaked), (0, 6));
        assert_eq!(wakes.get(), 5, "each waiter must be woken");
        for read in &mut stuck {
            assert!(read.try_take().is_none());
            let message = panic_of(|| poll_once(read));
            assert!(message.contains("driver was dropped"), "{message}");
        }
        for read in &mut stuck {
            read.cancel();
            read.set_token(1);
        }
        drop(stuck);
        drop((pipe, file));
        assert_eq!(counter.dropped(), 0);
        assert_eq!(stage.state().closed, [0; 0], "closed under an operation in flight");
        // The kernel writes to the memory long after.
        let reuse = Reuse::take(20, 8);
        drop(handle);
        entries.iter().for_each(|sqe| write_to(sqe, b"too late"));
        reuse.assert_untouched();
    }
}

#[test]
fn delivers_the_other_results() {
    let (driver, stage) = scripted(16, 32);
    stage.state().cancels = Cancels::Fail;
    let handle = driver.handle().clone();
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let read = || driver.read(&fd, Buf::new(8, &counter), 0);
    let (mut done, mut ready, mut stuck) = (read(), read(), read());
    driver.turn(Wait::Poll).unwrap();
    stage.complete_read(b"12345678");
    driver.turn(Wait::Poll).unwrap();
    stage.complete_read(b"ready");
    let mut queued = driver.nop();
    assert_eq!(driver.shutdown(Duration::from_millis(50)).leaked, 1);
    assert_eq!(done.try_take().unwrap().0.unwrap(), 8);
    let (result, buf) = ready.try_take().unwrap();
    assert_eq!((result.unwrap(), &buf.bytes()[..5]), (5, &b"ready"[..]));
    queued.try_take().expect("it was submitted with the rest").unwrap();
    assert!(stuck.try_take().is_none());
    assert_eq!(errno(handle.nop().try_take().unwrap()), Errno::CANCELED);
    drop(buf);
    assert_eq!(counter.live(), 1);
}

#[test]
fn ends_closes_that_wait_for_what_is_given_up() {
    let (driver, stage) = scripted(16, 32);
    stage.state().cancels = Cancels::Fail;
    let (stuck, shared) = (stage.open(&driver, PIPE), stage.open(&driver, PIPE));
    let clone = shared.clone();
    let raw = shared.raw();
    let counter = DropCounter::new();
    let read = driver.read(&stuck, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    let mut closes = [driver.close(stuck), driver.close(shared)];
    assert_eq!(driver.shutdown(Duration::from_millis(50)).leaked, 1);
    for close in &mut closes {
        assert_eq!(errno(close.try_take().expect("it must not wait for ever")), Errno::BUSY);
    }
    assert_eq!(stage.state().closed, [0; 0], "closed under an operation in flight");
    drop(clone);
    assert_eq!(stage.state().closed, [raw], "its last user was not an operation that was given up");
    drop(read);
    assert_eq!(counter.dropped(), 0);
}

#[test]
fn ends_at_once_when_the_backend_fails_for_good() {
    let (driver, stage) = scripted(16, 32);
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let mut read = driver.read(&fd, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    stage.state().failing = Some(Errno::BADR);
    let _nop = driver.nop();
    assert_eq!(errno(driver.turn(Wait::Poll)), Errno::BADR);
    stage.state().failing = None;
    assert_eq!(errno(driver.turn(Wait::Poll)), Errno::BADR, "it is for good");
    assert_eq!(driver.shutdown(Duration::from_secs(3600)).leaked, 2);
    assert!(read.try_take().is_none());
    assert_eq!(counter.dropped(), 0);
}

#[test]
fn is_bounded_when_the_kernel_never_has_room() {
    for failure in [Errno::INTR, Errno::AGAIN, Errno::BUSY] {
        let (driver, stage) = scripted(64, 128);
        let counter = DropCounter::new();
        let fd = stage.open(&driver, PIPE);
        // The driver learns that everything is ready at once; then nothing succeeds any more.
        for _ in 0..5 {
            let nops: Vec<_> = (0..40).map(|_| driver.nop()).collect();
            driver.turn(Wait::Poll).unwrap();
            drop(nops);
        }
        let read = driver.read(&fd, Buf::new(8, &counter), 0);
        let _nops: Vec<_> = (0..40).map(|_| driver.nop()).collect();
        stage.state().failing = Some(failure);
        for wait in [Wait::Poll, Wait::For(Duration::from_millis(1)), Wait::Forever] {
            let enters = stage.state().enters;
            assert_eq!(driver.turn(wait).unwrap(), 0);
            assert!(stage.state().enters - enters <= 4, "the turn enters again and again");
        }
        if failure == Errno::INTR {
            // No time passes in a call that a signal ends, so on this clock the end would never come.
            stage.state().failing = Some(Errno::AGAIN);
        }
        assert_eq!(driver.shutdown(Duration::from_millis(5)).leaked, 41);
        assert_eq!(counter.dropped(), 0);
        drop(read);
    }
}

#[test]
fn stray_completions_do_not_shorten_it() {
    let (driver, stage) = scripted(16, 32);
    stage.state().cancels = Cancels::Work;
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let reads: Vec<_> = (0..5).map(|_| driver.read(&fd, Buf::new(8, &counter), 0)).collect();
    driver.turn(Wait::Poll).unwrap();
    for user_data in [1, 2, u64::MAX, 1 << 40] {
        stage.post(user_data, 0, CqeFlags(0));
    }
    drop(reads);
    assert_eq!(driver.shutdown(Duration::from_secs(1)).leaked, 0);
    counter.assert_each_dropped_once();
}

#[test]
fn on_the_real_kernel() {
    let (driver, rig) = rigged(8, 64);
    let handle = driver.handle().clone();
    let (read_end, write) = rustix::pipe::pipe().unwrap();
    let fd = driver.adopt(read_end);
    let (raw, ours) = (fd.raw(), identity(fd.raw()));
    let counter = DropCounter::new();
    let (waker, wakes) = counting_waker();
    let mut stuck: Vec<_> =
        (0..4).map(|_| driver.read(&fd, Buf::new(4096, &counter), CURRENT_POSITION)).collect();
    for read in &mut stuck {
        assert!(poll_with(read, &waker).is_pending());
    }
    let dropped = driver.read(&fd, Buf::new(4096, &counter), CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    let mut poll = driver.poll(&fd, PollEvents::WRITABLE);
    drop(dropped);
    drop(fd);
    rig.swallows_cancels.set(true);
    // A request that is swallowed looks like one that came too late: the handle keeps waiting.
    poll.cancel();
    driver.turn(Wait::Poll).unwrap();
    assert!(poll.try_take().is_none());

    assert_eq!(driver.shutdown(Duration::from_millis(50)).leaked, 6);
    assert_eq!((counter.dropped(), wakes.get()), (0, 4));
    assert_eq!(identity(raw), ours, "closed under an operation in flight");
    let reuse = Reuse::take(64, 4096);
    write_all(&write, &[1; 8192]);
    for read in &mut stuck {
        let message = panic_of(|| poll_once(read));
        assert!(message.contains("driver was dropped"), "{message}");
    }
    drop(stuck);
    reuse.assert_untouched();
    assert_eq!((counter.dropped(), handle.counters().leaked), (0, 6));

    // Without the swallowed requests all operations would have ended.
    let (driver, _rig) = rigged(8, 64);
    let (read_end, _write) = rustix::pipe::pipe().unwrap();
    let fd = driver.adopt(read_end);
    let mut read = driver.read(&fd, vec![0; 8], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    read.cancel();
    assert_eq!(errno(finish(&driver, &mut read).0), Errno::CANCELED);
}
