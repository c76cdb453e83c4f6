//! Panics in users' code that the driver calls: wakers, drops of buffers, disposal.

use std::ffi::CString;
use std::future::Future;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Context;
use std::time::Duration;

use sakia_driver::{CURRENT_POSITION, call::Call};
use sakia_driver::{
    Class, Completion, Delivered, Driver, Handle, IoBuf, IoBufMut, Op, OpKind, Operation, Wait,
};
use sakia_ring::{Opcode, Sqe};
use sakia_testkit::drop_probe::DropProbe;

use crate::scripted::{Cancels, MORE, PIPE, scripted};
use crate::support::{
    Buf, DropCounter, Hooks, counting_waker, drain, driver, finish, panic_of, panicking, pipe,
    poll_with, waker, write_all,
};

/// Takes turns until nothing is in flight, catching panics. Returns the number of panics.
fn drain_catching(driver: &Driver) -> u32 {
    let mut panics = 0;
    for _ in 0..10_000 {
        match catch_unwind(AssertUnwindSafe(|| driver.turn(Wait::Poll))) {
            Ok(Ok(0)) if driver.in_flight() == 0 => return panics,
            Ok(result) => drop(result.unwrap()),
            Err(_) => panics += 1,
        }
    }
    panic!("{} still in flight", driver.in_flight());
}

fn assert_usable(driver: &Driver) {
    let mut nops: Vec<_> = (0..100).map(|_| driver.nop()).collect();
    for nop in &mut nops {
        finish(driver, nop).unwrap();
    }
    assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
}

#[test]
fn in_wake() {
    let driver = driver();
    let (good, wakes) = counting_waker();
    let bad = || waker(Hooks { on_wake: panicking("wake"), ..Hooks::default() });
    let mut nops: Vec<_> = (0..30).map(|_| driver.nop()).collect();
    for (number, nop) in nops.iter_mut().enumerate() {
        let waker = if number % 3 == 0 { bad() } else { good.clone() };
        assert!(poll_with(nop, &waker).is_pending());
    }
    assert_eq!(drain_catching(&driver), 10, "each panic is the caller's");
    assert_eq!(wakes.get(), 20, "other tasks were forgotten");
    for nop in &mut nops {
        nop.try_take().expect("done, whatever its waker did").unwrap();
    }
    assert_usable(&driver);
}

#[test]
fn in_wake_of_one_of_many_that_wait_for_their_turn() {
    let driver = driver();
    let (near, _far) = UnixStream::pair().unwrap();
    let connection = driver.connection(driver.adopt(near.into()));
    let (good, wakes) = counting_waker();
    let bad = || waker(Hooks { on_wake: panicking("wake"), ..Hooks::default() });
    // More bytes than there is room for, so that the send stays in flight.
    let mut in_flight = Box::pin(connection.send_vectored(vec![vec![1; 1 << 20]; 2]));
    let mut sends: Vec<_> = (0..3).map(|_| Box::pin(connection.send(vec![1]))).collect();
    assert!(in_flight.as_mut().poll(&mut Context::from_waker(&good)).is_pending());
    for (send, waker) in sends.iter_mut().zip([&bad(), &good, &bad()]) {
        assert!(send.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    drop(in_flight);
    assert_eq!(drain_catching(&driver), 1, "the first panic is the caller's");
    assert_eq!(wakes.get(), 1, "other tasks were forgotten");
    drop(sends);
    drop(connection);
    assert_usable(&driver);
}

/// A cancellation by one task may end an operation for which another task waits. The other task's waker is
/// called in the next turn, in which its panic ends nothing else.
#[test]
fn in_wake_of_what_another_task_ends() {
    let (driver, stage) = crate::scripted::scripted(2, 4);
    let fd = stage.open(&driver, crate::scripted::FILE);
    let counter = DropCounter::new();
    let pushed: Vec<_> = (0..3).map(|_| driver.read(&fd, Buf::new(8, &counter), 0)).collect();
    let bad = waker(Hooks { on_wake: panicking("wake"), ..Hooks::default() });
    let mut waiting = driver.read(&fd, Buf::new(8, &counter), 0);
    assert!(poll_with(&mut waiting, &bad).is_pending());
    waiting.cancel();
    assert!(driver.wants_turn(), "the task would sleep for ever");
    assert_eq!(panic_of(|| driver.turn(Wait::Poll)), "wake");
    assert_eq!(waiting.try_take().unwrap().0.unwrap_err().raw_os_error(), Some(125));
    drop(pushed);
}

#[test]
fn in_drop() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let counter = DropCounter::new();
    let bad = || waker(Hooks { on_drop: panicking("drop"), ..Hooks::default() });
    let read = || driver.read(&fd, Buf::new(1, &counter), CURRENT_POSITION);
    let polled = |op: &mut Op<_>| {
        let waker = bad();
        assert!(poll_with(op, &waker).is_pending());
        std::mem::forget(waker); // its drop is not part of this test
    };

    let mut dropped = read();
    polled(&mut dropped);
    assert_eq!(panic_of(|| drop(dropped)), "drop");

    let mut tokened = read();
    polled(&mut tokened);
    assert_eq!(panic_of(|| tokened.set_token(1)), "drop");

    let mut replaced = read();
    polled(&mut replaced);
    let (good, wakes) = counting_waker();
    assert_eq!(panic_of(|| poll_with(&mut replaced, &good)), "drop");

    driver.turn(Wait::Poll).unwrap();
    write_all(&write, b"xxx");
    drain(&driver);
    assert_eq!((driver.next_done(), wakes.get()), (Some(1), 1));
    tokened.try_take().unwrap().0.unwrap();
    replaced.try_take().unwrap().0.unwrap();
    counter.assert_each_dropped_once();
    assert_usable(&driver);
}

#[test]
fn in_drop_of_an_operation_that_waits_for_room() {
    let (driver, stage) = crate::scripted::scripted(2, 4);
    let fd = stage.open(&driver, crate::scripted::FILE);
    let counter = DropCounter::new();
    let pushed: Vec<_> = (0..3).map(|_| driver.read(&fd, Buf::new(8, &counter), 0)).collect();
    let bad = waker(Hooks { on_drop: panicking("drop"), ..Hooks::default() });
    let mut waiting = driver.read(&fd, Buf::new(8, &counter), 0);
    assert!(poll_with(&mut waiting, &bad).is_pending());
    std::mem::forget(bad);
    assert_eq!(panic_of(|| drop(waiting)), "drop");
    assert_eq!((counter.dropped(), driver.live_operations()), (1, 3), "its slot is lost");
    drop(pushed);
}

#[test]
fn in_clone() {
    let driver = driver();
    let bad = waker(Hooks { on_clone: panicking("clone"), ..Hooks::default() });
    let mut nop = driver.nop();
    assert_eq!(panic_of(|| poll_with(&mut nop, &bad)), "clone");
    let (good, wakes) = counting_waker();
    assert!(poll_with(&mut nop, &good).is_pending());
    drain(&driver);
    assert_eq!(wakes.get(), 1);
    nop.try_take().unwrap().unwrap();
    assert_usable(&driver);
}

/// A buffer whose drop panics.
struct Explosive(Vec<u8>, #[expect(dead_code, reason = "its drop reports")] DropProbe);

impl Drop for Explosive {
    fn drop(&mut self) {
        panicking("buffer")();
    }
}

// SAFETY: as for the vector.
unsafe impl IoBuf for Explosive {
    fn stable_ptr(&self) -> *const u8 {
        self.0.stable_ptr()
    }
    fn bytes_len(&self) -> usize {
        self.0.bytes_len()
    }
}

// SAFETY: as for the vector.
unsafe impl IoBufMut for Explosive {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.0.stable_mut_ptr()
    }
}

#[test]
fn in_the_drop_of_a_buffer() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let counter = DropCounter::new();
    let read = || driver.read(&fd, Explosive(vec![0; 1], counter.probe()), CURRENT_POSITION);

    let (late, revoked, done) = (read(), read(), read());
    drop(revoked); // before it is submitted
    assert_eq!(panic_of(|| driver.turn(Wait::Poll)), "buffer");
    write_all(&write, b"xx");
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(panic_of(|| drop(late)), "buffer");
    assert_eq!(panic_of(|| drop(done)), "buffer");
    let in_flight = read();
    driver.turn(Wait::Poll).unwrap();
    drop(in_flight);
    assert_eq!(drain_catching(&driver), 1);
    counter.assert_each_dropped_once();
    assert_usable(&driver);
}

/// A no-op whose disposal panics.
struct Unwilling(#[expect(dead_code, reason = "its drop reports")] DropProbe);

// SAFETY: the entry names no memory and no descriptor.
unsafe impl Operation for Unwilling {
    type Output = ();
    const KIND: OpKind = OpKind::Nop;

    fn class(&self) -> Class {
        Class::Bounded
    }

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::nop())
    }

    fn call(&mut self) -> Call {
        Call::Nop
    }

    fn complete(self, _: Completion) {}

    fn dispose(self, _: Completion) {
        panicking("dispose")();
    }
}

#[test]
fn in_disposal() {
    let driver = driver();
    let counter = DropCounter::new();
    for _ in 0..10 {
        drop(driver.start(Unwilling(counter.probe())));
    }
    let (good, wakes) = counting_waker();
    let mut nop = driver.nop();
    assert!(poll_with(&mut nop, &good).is_pending());
    assert_eq!(drain_catching(&driver), 10);
    assert_eq!(wakes.get(), 1);
    nop.try_take().unwrap().unwrap();
    counter.assert_each_dropped_once();
    assert_usable(&driver);
}

/// An operation that goes on, and panics at each of its completions.
struct Bursting(#[expect(dead_code, reason = "its drop reports")] DropProbe);

// SAFETY: the entry names no memory, and its descriptor is a number without meaning.
unsafe impl Operation for Bursting {
    type Output = ();
    const KIND: OpKind = OpKind::Nop;

    fn class(&self) -> Class {
        Class::Bounded
    }

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::fsync(PIPE, false))
    }

    fn call(&mut self) -> Call {
        Call::Nop
    }

    fn deliver(&self, _: Completion) -> Delivered {
        panicking("deliver")();
        Delivered::default()
    }

    fn complete(self, _: Completion) {}
}

/// Completions after one that panics are not lost, nor are those of later turns.
#[test]
fn in_the_middle_of_completions() {
    let (driver, stage) = scripted(16, 32);
    let fd = stage.open(&driver, PIPE);
    let (counter, bufs) = (DropCounter::new(), DropCounter::new());
    let bursting = driver.start(Bursting(counter.probe()));
    driver.turn(Wait::Poll).unwrap();
    let entry = stage.in_flight(Opcode::FSYNC)[0];
    for _ in 0..2 {
        let mut read = driver.read(&fd, Buf::new(8, &bufs), 0);
        driver.turn(Wait::Poll).unwrap();
        stage.post(entry.user_data, 0, MORE);
        stage.complete_read(b"behind");
        stage.post(entry.user_data, 0, MORE);
        assert_eq!(panic_of(|| driver.turn(Wait::Poll)), "deliver");
        assert_eq!(read.try_take().expect("its completion has come").0.unwrap(), 6);
    }
    // The end of the driver delivers a last completion.
    stage.state().cancels = Cancels::Work;
    drop(bursting);
    stage.post(entry.user_data, 0, MORE);
    let before = stage.state().now;
    assert_eq!(panic_of(|| driver.shutdown(Duration::from_secs(3600))), "deliver");
    assert!(stage.state().now - before < Duration::from_secs(1), "the shutdown waits in vain");
    counter.assert_each_dropped_once();
    bufs.assert_each_dropped_once();
}

#[test]
fn during_the_end() {
    let driver = driver();
    let handle: Handle = driver.handle().clone();
    let (fd, _write) = pipe(&driver);
    let counter = DropCounter::new();
    let (good, wakes) = counting_waker();
    let bad = waker(Hooks { on_wake: panicking("wake"), ..Hooks::default() });
    let mut reads: Vec<_> =
        (0..10).map(|_| driver.read(&fd, Buf::new(1, &counter), CURRENT_POSITION)).collect();
    for (number, read) in reads.iter_mut().enumerate() {
        let waker = if number % 2 == 0 { &bad } else { &good };
        assert!(poll_with(read, waker).is_pending());
    }
    driver.turn(Wait::Poll).unwrap();
    let unwilling = DropCounter::new();
    drop(driver.start(Unwilling(unwilling.probe())));
    let opened = driver.open(None, CString::from(c"/proc/self/comm"), 0, 0);
    let message = panic_of(|| drop(driver));
    assert!(message == "wake" || message == "dispose", "{message}");
    assert_eq!(wakes.get(), 5, "other tasks were forgotten");
    assert_eq!((handle.in_flight(), handle.counters().leaked), (0, 0));
    for read in &mut reads {
        read.try_take().expect("canceled").0.unwrap_err();
    }
    drop(fd);
    counter.assert_each_dropped_once();
    unwilling.assert_each_dropped_once();
    drop((opened, reads));
    assert_eq!(handle.live_operations(), 0);
}

#[test]
fn of_the_thread_that_owns_the_driver() {
    let counter = DropCounter::new();
    let joined = std::thread::spawn(move || {
        let driver = driver();
        let (fd, _write) = pipe(&driver);
        let bad = waker(Hooks { on_wake: panicking("wake"), ..Hooks::default() });
        let mut read = driver.read(&fd, Buf::new(1, &counter), CURRENT_POSITION);
        assert!(poll_with(&mut read, &bad).is_pending());
        driver.turn(Wait::Poll).unwrap();
        std::panic::resume_unwind(Box::new("the task"));
    })
    .join();
    assert_eq!(*joined.unwrap_err().downcast::<&str>().unwrap(), "the task");
    counter.assert_each_dropped_once();
}
