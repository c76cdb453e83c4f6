//! Handles, operations and descriptors that outlive their driver, dropped in any order.

use std::rc::Rc;

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, Driver, Handle, Nop, Op, Wait};

use crate::scripted::{PIPE, Scripted, Stage, scripted};
use crate::support::{
    Buf, DropCounter, Hooks, Place, driver, errno, pipe, place, poll_once, poll_with, waker,
};

/// Makes a driver whose memory can be watched: when it is freed, the returned reference is the last one.
fn watched() -> (Driver, Stage, Rc<()>) {
    let (driver, stage) = scripted(8, 16);
    let watch = driver.with_backend(|backend: &Scripted| Rc::clone(&backend.life)).unwrap();
    (driver, stage, watch)
}

fn is_there(watch: &Rc<()>) -> bool {
    Rc::strong_count(watch) > 1
}

#[test]
fn the_memory_goes_with_the_driver_when_nothing_uses_it() {
    let (driver, _stage, watch) = watched();
    let mut nop = driver.nop();
    driver.turn(Wait::Poll).unwrap();
    nop.try_take().unwrap().unwrap();
    drop(driver.nop());
    assert!(is_there(&watch));
    drop(driver);
    assert!(!is_there(&watch));
    assert!(nop.try_take().is_none());
    nop.cancel();
}

#[test]
fn the_memory_stays_for_results_that_were_not_taken() {
    let (driver, stage, watch) = watched();
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let mut reads: Vec<_> = (0..3).map(|_| driver.read(&fd, Buf::new(8, &counter), 0)).collect();
    driver.turn(Wait::Poll).unwrap();
    for _ in 0..3 {
        stage.complete_read(b"12345678");
    }
    drop(fd);
    drop(driver);
    assert!(is_there(&watch));
    assert_eq!(reads[0].try_take().unwrap().0.unwrap(), 8);
    drop(reads.pop());
    assert!(is_there(&watch));
    drop(reads);
    counter.assert_each_dropped_once();
    assert!(!is_there(&watch));
    assert_eq!(stage.state().closed, [PIPE]);
}

#[test]
fn the_memory_stays_for_operations_that_are_started_in_vain() {
    let (driver, _stage, watch) = watched();
    let handle = driver.handle().clone();
    drop(driver);
    assert!(is_there(&watch));
    let (mut taken, dropped) = (handle.nop(), handle.nop());
    drop(handle);
    assert!(is_there(&watch), "operations refer to freed memory");
    assert_eq!(errno(taken.try_take().unwrap()), Errno::CANCELED);
    assert!(is_there(&watch), "an operation refers to freed memory");
    drop(dropped);
    assert!(!is_there(&watch));
}

#[test]
fn the_memory_stays_for_operations_that_are_started_during_the_end() {
    let (driver, stage, watch) = watched();
    let handle = driver.handle().clone();
    let late: Place<Op<Nop>> = place();
    let (kept, weak) = (Rc::clone(&late), handle.clone());
    let hooks = Hooks {
        on_wake: Box::new(move || drop(kept.borrow_mut().replace(weak.nop()))),
        ..Hooks::default()
    };
    let fd = stage.open(&driver, PIPE);
    stage.state().cancels = crate::scripted::Cancels::Work;
    let mut read = driver.read(&fd, vec![0; 8], 0);
    assert!(poll_with(&mut read, &waker(hooks)).is_pending());
    driver.turn(Wait::Poll).unwrap();
    drop((handle, fd));
    drop(driver);
    assert_eq!(errno(read.try_take().unwrap().0), Errno::CANCELED);
    assert!(is_there(&watch), "an operation refers to freed memory");
    let mut late = late.take().unwrap();
    assert_eq!(errno(late.try_take().unwrap()), Errno::CANCELED);
    drop(read);
    assert!(!is_there(&watch));
}

#[test]
fn the_memory_stays_for_a_close_that_waits() {
    let (driver, stage, watch) = watched();
    let fd = stage.open(&driver, PIPE);
    let clone = fd.clone();
    let handle = driver.handle().clone();
    drop(driver);
    let mut close = handle.close(fd);
    drop(handle);
    assert!(poll_once(&mut close).is_pending());
    drop(clone);
    assert!(is_there(&watch));
    close.try_take().unwrap().unwrap();
    assert!(!is_there(&watch));
    assert_eq!(stage.state().closed, [PIPE]);
}

#[test]
fn everything_new_is_refused() {
    let driver = driver();
    let (fd, _write) = pipe(&driver);
    let handle = driver.handle().clone();
    assert_eq!(driver.shutdown(std::time::Duration::from_secs(1)).leaked, 0);
    let counter = DropCounter::new();
    let mut read = handle.read(&fd, Buf::new(8, &counter), CURRENT_POSITION);
    let mut open = handle.open(None, c"/proc/self/comm".into(), 0, 0);
    let mut statx = handle.statx(None, c"/".into(), 0);
    let mut fsync = handle.fsync(&fd, false);
    assert_eq!(errno(read.try_take().unwrap().0), Errno::CANCELED);
    assert_eq!(errno(open.try_take().unwrap()), Errno::CANCELED);
    assert_eq!(errno(statx.try_take().unwrap()), Errno::CANCELED);
    assert_eq!(errno(fsync.try_take().unwrap()), Errno::CANCELED);
    assert_eq!(errno(handle.register_arena(1, 4096).map(|_| ())), Errno::CANCELED);
    counter.assert_each_dropped_once();
    assert_eq!(handle.counters().pushed, 0);
}

#[test]
fn on_the_real_kernel_in_every_order() {
    type Parts = (Option<Driver>, Option<Handle>, Vec<Op<Nop>>);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let driver = driver();
        let handle = driver.handle().clone();
        let mut nops: Vec<_> = (0..10).map(|_| driver.nop()).collect();
        driver.turn(Wait::Poll).unwrap();
        nops.extend((0..10).map(|_| driver.nop()));
        let mut parts: Parts = (Some(driver), Some(handle), nops);
        for part in order {
            match part {
                0 => parts.0 = None,
                1 => parts.1 = None,
                _ => parts.2.clear(),
            }
            let late = parts.1.as_ref().map(Handle::nop);
            parts.2.extend(late);
        }
        for nop in &mut parts.2 {
            nop.try_take();
        }
    }
}
