//! A handle dropped in each state of its operation: the buffer is dropped once, and not before the
//! last completion.

use std::ffi::CString;

use sakia_driver::{CURRENT_POSITION, PollEvents, Wait};
use sakia_ring::{CqeFlags, Opcode};

use crate::scripted::{Cancels, FILE, MORE, PIPE, scripted, write_to};
use crate::support::{
    Buf, DropCounter, Reuse, TempDir, counting_waker, drain, driver, finish, identity, pipe,
    poll_once, poll_with, turn_until, write_all,
};

#[test]
fn in_the_backlog() {
    let (driver, stage) = scripted(2, 4);
    let fd = stage.open(&driver, FILE);
    let counter = DropCounter::new();
    let mut pushed: Vec<_> = (0..3).map(|_| driver.read(&fd, Buf::new(8, &counter), 0)).collect();
    let mut waiting: Vec<_> = (0..3).map(|_| driver.read(&fd, Buf::new(8, &counter), 0)).collect();
    assert_eq!(driver.counters().backlogged, 3);
    drop(waiting.remove(1)); // the middle of the list
    assert_eq!(counter.dropped(), 1, "no entry names it");
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.in_flight(Opcode::READ).len(), 3);
    for _ in 0..5 {
        stage.complete_read(b"12345678");
        driver.turn(Wait::Poll).unwrap();
        driver.turn(Wait::Poll).unwrap();
    }
    for read in pushed.iter_mut().chain(&mut waiting) {
        assert_eq!(read.try_take().unwrap().0.unwrap(), 8);
    }
    counter.assert_each_dropped_once();
    assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
}

#[test]
fn queued_and_not_submitted() {
    let (driver, stage) = scripted(8, 16);
    let counter = DropCounter::new();
    for raw in [FILE, PIPE] {
        let fd = stage.open(&driver, raw);
        drop(driver.read(&fd, Buf::new(8, &counter), 0));
        let pending: Vec<_> = stage.state().pending.iter().map(|sqe| sqe.opcode).collect();
        assert_eq!(pending, [Opcode::NOP], "the entry is taken back in place");
        assert_eq!(counter.live(), 1, "dropped before its completion");
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(counter.live(), 0);
    }
    counter.assert_each_dropped_once();
    let counters = driver.counters();
    assert_eq!((counters.revoked, counters.orphaned, counters.cancels), (2, 2, 0));
}

#[test]
fn in_flight_and_bounded() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, FILE);
    let counter = DropCounter::new();
    let read = driver.read(&fd, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    drop(read);
    for _ in 0..3 {
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(counter.dropped(), 0);
    }
    assert_eq!(driver.counters().cancels, 0, "it ends by itself");
    stage.complete_read(b"late");
    driver.turn(Wait::Poll).unwrap();
    counter.assert_each_dropped_once();
    assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
}

#[test]
fn in_flight_and_waiting() {
    // The completions of the read and of its request to cancel come in either order, and the read may have
    // succeeded before.
    for (cancel_first, res) in [(true, -125), (false, -125), (true, 4), (false, 4), (true, -4)] {
        let (driver, stage) = scripted(8, 16);
        let fd = stage.open(&driver, PIPE);
        let counter = DropCounter::new();
        let read = driver.read(&fd, Buf::new(8, &counter), 0);
        driver.turn(Wait::Poll).unwrap();
        drop(read);
        driver.turn(Wait::Poll).unwrap();
        let target = stage.in_flight(Opcode::READ)[0];
        assert_eq!(stage.in_flight(Opcode::ASYNC_CANCEL)[0].addr, target.user_data);
        if cancel_first {
            stage.complete(Opcode::ASYNC_CANCEL, 0);
            driver.turn(Wait::Poll).unwrap();
            assert_eq!(counter.dropped(), 0, "the completion of the request frees no memory");
            write_to(&target, b"late");
            stage.complete(Opcode::READ, res);
            driver.turn(Wait::Poll).unwrap();
        } else {
            stage.complete(Opcode::READ, res);
            driver.turn(Wait::Poll).unwrap();
            counter.assert_each_dropped_once();
            stage.complete(Opcode::ASYNC_CANCEL, -2);
            driver.turn(Wait::Poll).unwrap();
        }
        counter.assert_each_dropped_once();
        assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
        assert_eq!((driver.counters().cancels, driver.counters().stale), (1, 0));
    }
}

#[test]
fn with_more_completions_announced() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let mut kept = driver.read(&fd, Buf::new(8, &counter), 0);
    let dropped = driver.read(&fd, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    drop(dropped);
    for sqe in stage.in_flight(Opcode::READ) {
        stage.post(sqe.user_data, 4, MORE);
        stage.post(sqe.user_data, 4, MORE);
    }
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(counter.dropped(), 0, "the kernel is not done with it");
    assert!(kept.try_take().is_none());
    stage.complete(Opcode::READ, 6);
    stage.complete(Opcode::READ, 6);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(kept.try_take().unwrap().0.unwrap(), 6);
    counter.assert_each_dropped_once();
}

#[test]
fn listed_to_be_canceled() {
    // The completion queue leaves room for a single request to cancel.
    let (driver, stage) = scripted(4, 8);
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let reads: Vec<_> = (0..4).map(|_| driver.read(&fd, Buf::new(8, &counter), 0)).collect();
    driver.turn(Wait::Poll).unwrap();
    drop(reads);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.in_flight(Opcode::ASYNC_CANCEL).len(), 1);
    // One of the others ends while its request still waits for room.
    let [_, second, ..] = stage.in_flight(Opcode::READ)[..] else { panic!("four reads") };
    stage.state().in_flight.retain(|sqe| sqe.user_data != second.user_data);
    stage.post(second.user_data, 3, CqeFlags(0));
    driver.turn(Wait::Poll).unwrap();
    assert_eq!((counter.dropped(), driver.counters().cancels), (1, 1));
    // The other reads end one by one, and none is forgotten.
    for canceled in 1..=3 {
        stage.complete(Opcode::ASYNC_CANCEL, 0);
        stage.complete(Opcode::READ, -125);
        driver.turn(Wait::Poll).unwrap();
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(counter.dropped(), 1 + canceled);
    }
    counter.assert_each_dropped_once();
    assert_eq!((driver.in_flight(), driver.counters().cancels), (0, 3));
}

#[test]
fn with_the_request_to_cancel_sent_by_its_handle() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let mut read = driver.read(&fd, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    read.cancel();
    read.cancel();
    driver.turn(Wait::Poll).unwrap();
    read.cancel();
    drop(read);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(driver.counters().cancels, 1, "one request is enough");
    stage.complete(Opcode::ASYNC_CANCEL, 0);
    stage.complete(Opcode::READ, -125);
    assert_eq!(counter.dropped(), 0);
    driver.turn(Wait::Poll).unwrap();
    counter.assert_each_dropped_once();
}

#[test]
fn canceled_and_dropped_before_it_was_submitted() {
    let (driver, stage) = scripted(8, 16);
    stage.state().cancels = Cancels::Work;
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let mut read = driver.read(&fd, Buf::new(8, &counter), 0);
    read.cancel();
    drop(read);
    assert_eq!(counter.dropped(), 0);
    drain(&driver);
    counter.assert_each_dropped_once();
    assert_eq!(driver.live_operations(), 0);
}

#[test]
fn done() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let read = driver.read(&fd, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    stage.complete_read(b"12345678");
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(counter.dropped(), 0, "the result may still be taken");
    drop(read);
    counter.assert_each_dropped_once();
    assert_eq!(driver.live_operations(), 0);
}

#[test]
fn taken() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let mut read = driver.read(&fd, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    stage.complete_read(b"12345678");
    driver.turn(Wait::Poll).unwrap();
    let (result, buf) = read.try_take().unwrap();
    assert_eq!((result.unwrap(), buf.bytes()), (8, &b"12345678"[..]));
    assert!(read.try_take().is_none());
    read.cancel();
    read.set_token(3);
    drop(read);
    assert_eq!(counter.dropped(), 0);
    drop(buf);
    counter.assert_each_dropped_once();
    assert_eq!(driver.next_done(), None);
}

#[test]
fn with_its_waker() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let (waker, wakes) = counting_waker();
    let mut read = driver.read(&fd, vec![0; 8], CURRENT_POSITION);
    assert!(poll_with(&mut read, &waker).is_pending());
    driver.turn(Wait::Poll).unwrap();
    drop(read);
    write_all(&write, b"12345678");
    drain(&driver);
    assert_eq!(wakes.get(), 0, "no task waits");
}

#[test]
fn an_open_taken_back_closes_nothing() {
    // An entry taken back completes as a no-op does, with 0: no descriptor.
    let (driver, stage) = scripted(8, 16);
    let mut open = driver.open(None, CString::from(c"x"), 0, 0);
    assert!(poll_once(&mut open).is_pending());
    drop(open);
    for _ in 0..3 {
        driver.turn(Wait::Poll).unwrap();
    }
    drop(driver);
    assert_eq!(stage.state().closed, [0; 0]);
}

#[test]
fn a_close_taken_back_closes() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, FILE);
    let mut close = driver.close(fd);
    assert!(poll_once(&mut close).is_pending());
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(finish(&driver, &mut close).ok(), Some(()));

    let fd = stage.open(&driver, FILE + 1);
    drop(fd); // queues a close of its own
    let fd = stage.open(&driver, FILE + 2);
    drop(driver.close(fd));
    drain(&driver);
    let mut closed = stage.state().closed.clone();
    closed.sort_unstable();
    assert_eq!(closed, [FILE, FILE + 1, FILE + 2]);
}

#[test]
fn a_late_descriptor_is_closed() {
    let (driver, stage) = scripted(8, 16);
    let open = driver.open(None, CString::from(c"x"), 0, 0);
    driver.turn(Wait::Poll).unwrap();
    drop(open);
    stage.complete(Opcode::OPENAT, FILE);
    drain(&driver);
    assert_eq!(stage.state().closed, [FILE]);
    // The same for an open that is done and not taken.
    let open = driver.open(None, CString::from(c"x"), 0, 0);
    driver.turn(Wait::Poll).unwrap();
    stage.complete(Opcode::OPENAT, FILE);
    driver.turn(Wait::Poll).unwrap();
    drop(open);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.state().closed, [FILE, FILE]);
}

#[test]
fn a_late_descriptor_of_the_real_kernel_is_closed() {
    let folder = TempDir::new();
    let path = folder.file("late", 1);
    let name = CString::new(path.clone().into_os_string().into_encoded_bytes()).unwrap();
    let driver = driver();
    let is_open = || (0..4096).any(|raw| identity(raw).as_deref() == Some(&*path));
    let mut open = driver.open(None, name.clone(), 0, 0);
    let fd = finish(&driver, &mut open).unwrap();
    assert!(is_open());
    drop(fd);
    for _ in 0..20 {
        let open = driver.open(None, name.clone(), 0, 0);
        driver.turn(Wait::Poll).unwrap();
        drop(open);
    }
    turn_until(&driver, || driver.in_flight() == 0 && driver.live_operations() == 0);
    assert!(!is_open());
}

#[test]
fn data_of_a_late_read_goes_nowhere_else() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let counter = DropCounter::new();
    for _ in 0..100 {
        let read = driver.read(&fd, Buf::new(4096, &counter), CURRENT_POSITION);
        let poll = driver.poll(&fd, PollEvents::READABLE);
        driver.turn(Wait::Poll).unwrap();
        drop((read, poll));
        assert_eq!(counter.live(), 1, "dropped in flight");
        let reuse = Reuse::take(4, 4096);
        write_all(&write, b"x");
        drain(&driver);
        reuse.assert_untouched();
        assert_eq!(counter.live(), 0);
        // The read got the byte, or was canceled before.
        let mut rest = driver.read(&fd, vec![0; 8], CURRENT_POSITION);
        driver.turn(Wait::Poll).unwrap();
        if rest.try_take().is_none() {
            rest.cancel();
            finish(&driver, &mut rest).0.unwrap_err();
        }
    }
    counter.assert_each_dropped_once();
}
