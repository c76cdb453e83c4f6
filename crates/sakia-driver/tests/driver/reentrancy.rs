//! Wakers, buffers and disposers that call into the driver that calls them.

use std::cell::Cell;
use std::rc::Rc;

use sakia_driver::{CURRENT_POSITION, Driver, Handle, IoBuf, IoBufMut, Op, Wait};

use crate::support::{
    Buf, DropCounter, Hooks, Place, assert_unread, counted, counting_waker, drain, driver, pipe,
    place, poll_with, turn_until, waker, write_all,
};

#[test]
fn a_waker_starts_operations() {
    let driver = driver();
    let handle = driver.handle().clone();
    let started: Place<Vec<Op<sakia_driver::Nop>>> = place();
    started.replace(Some(Vec::new()));
    let woken = Rc::new(Cell::new(0));
    let again: Place<Box<dyn Fn()>> = place();
    let on_wake = {
        let (started, woken, again) = (Rc::clone(&started), Rc::clone(&woken), Rc::clone(&again));
        Box::new(move || {
            woken.set(woken.get() + 1);
            if woken.get() < 50 {
                let mut nop = handle.nop();
                again.borrow().as_ref().unwrap()();
                nop.set_token(1000 + woken.get());
                started.borrow_mut().as_mut().unwrap().push(nop);
            }
        })
    };
    let waker = waker(Hooks { on_wake, ..Hooks::default() });
    let (handle, next) = (driver.handle().clone(), waker.clone());
    let pending: Place<Op<sakia_driver::Nop>> = place();
    let kept = Rc::clone(&pending);
    again.replace(Some(Box::new(move || {
        let mut nop = handle.nop();
        assert!(poll_with(&mut nop, &next).is_pending());
        let previous = kept.borrow_mut().replace(nop);
        drop(previous);
    })));
    again.borrow().as_ref().unwrap()();
    turn_until(&driver, || woken.get() == 50);
    drain(&driver);
    let mut done = 0;
    while driver.next_done().is_some() {
        done += 1;
    }
    assert_eq!(done, 49);
    for mut nop in started.take().unwrap() {
        nop.try_take().unwrap().unwrap();
    }
    again.take();
    pending.take();
    assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
}

#[test]
fn a_waker_drops_handles_and_descriptors() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let (other, other_write) = pipe(&driver);
    let counter = DropCounter::new();
    let victims: Place<Vec<_>> = place();
    let reads =
        (0..10).map(|_| driver.read(&other, Buf::new(1, &counter), CURRENT_POSITION)).collect();
    victims.replace(Some(reads));
    let last: Place<_> = place();
    last.replace(Some(other));
    let on_wake = {
        let (victims, last) = (Rc::clone(&victims), Rc::clone(&last));
        Box::new(move || {
            drop(victims.take());
            drop(last.take());
        })
    };
    let mut read = driver.read(&fd, vec![0; 1], CURRENT_POSITION);
    assert!(poll_with(&mut read, &waker(Hooks { on_wake, ..Hooks::default() })).is_pending());
    driver.turn(Wait::Poll).unwrap();
    write_all(&write, b"x");
    turn_until(&driver, || victims.borrow().is_none());
    drain(&driver);
    driver.turn(Wait::Poll).unwrap();
    counter.assert_each_dropped_once();
    assert_unread(&other_write);
}

#[test]
fn a_waker_takes_a_turn() {
    let driver = Rc::new(driver());
    let turns = Rc::new(Cell::new(0));
    let on_wake = || {
        let (driver, turns) = (Rc::downgrade(&driver), Rc::clone(&turns));
        Box::new(move || {
            let Some(driver) = driver.upgrade() else { return };
            turns.set(turns.get() + 1);
            driver.turn(Wait::Poll).unwrap();
        })
    };
    let mut nops: Vec<_> = (0..20).map(|_| driver.nop()).collect();
    for nop in &mut nops {
        let waker = waker(Hooks { on_wake: on_wake(), ..Hooks::default() });
        assert!(poll_with(nop, &waker).is_pending());
    }
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(turns.get(), 20);
    for nop in &mut nops {
        nop.try_take().unwrap().unwrap();
    }
    assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
}

#[test]
fn a_turn_says_that_it_is_awake_after_its_sleep_and_before_it_wakes() {
    let driver = driver();
    let (waker, wakes) = counting_waker();
    let (reader, writer) = pipe(&driver);
    let mut read = driver.read(&reader, vec![0; 1], CURRENT_POSITION);
    assert!(poll_with(&mut read, &waker).is_pending());
    driver.turn(Wait::Poll).unwrap();
    write_all(&writer, b"x");
    let mut seen = Vec::new();
    while seen.last() != Some(&1) {
        let see = || {
            assert_eq!(wakes.get(), 0, "its wakers are called later");
            seen.push(driver.counters().finished);
        };
        driver.turn_then(Wait::Forever, see).unwrap();
    }
    assert_eq!(wakes.get(), 1);
    assert_eq!(read.try_take().unwrap().0.unwrap(), 1);
    // A turn without work and without a sleep calls the function, too.
    driver.turn_then(Wait::Poll, || seen.push(7)).unwrap();
    assert_eq!(seen.last(), Some(&7));
}

#[test]
fn a_wakers_drop_and_clone_use_the_driver() {
    let driver = driver();
    let uses = Rc::new(Cell::new(0));
    let nop = || {
        let (handle, uses) = (driver.handle().clone(), Rc::clone(&uses));
        Box::new(move || {
            uses.set(uses.get() + 1);
            drop(handle.nop());
            handle.counters();
        })
    };
    let hooks = || waker(Hooks { on_clone: nop(), on_wake: nop(), on_drop: nop() });
    let mut first = driver.nop();
    assert!(poll_with(&mut first, &hooks()).is_pending()); // a clone and a drop
    assert!(poll_with(&mut first, &hooks()).is_pending()); // another drop: the replaced one
    let mut second = driver.nop();
    assert!(poll_with(&mut second, &hooks()).is_pending());
    drop(second);
    drain(&driver);
    drain(&driver);
    assert_eq!(uses.get(), 9);
    first.try_take().unwrap().unwrap();
    assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
}

#[test]
fn a_waker_finishes_its_own_operation_while_it_is_cloned() {
    // The operation completes between the clone and the registration of the waker.
    let driver = Rc::new(driver());
    let clones = Rc::new(Cell::new(0));
    let on_clone = {
        let (driver, count) = (Rc::downgrade(&driver), counted(&clones));
        Box::new(move || {
            count();
            driver.upgrade().unwrap().turn(Wait::Poll).unwrap();
        })
    };
    let mut nop = driver.nop();
    let waker = waker(Hooks { on_clone, ..Hooks::default() });
    assert!(poll_with(&mut nop, &waker).is_ready());
    assert_eq!(clones.get(), 1);
}

/// A buffer whose drop starts an operation and ends another.
struct Lively {
    bytes: Vec<u8>,
    handle: Handle,
    drops: Rc<Cell<u32>>,
    victim: Option<Op<sakia_driver::Nop>>,
}

impl Drop for Lively {
    fn drop(&mut self) {
        drop(self.handle.nop());
        drop(self.victim.take());
        self.drops.set(self.drops.get() + 1);
    }
}

// SAFETY: as for the vector, which nothing else here touches.
unsafe impl IoBuf for Lively {
    fn stable_ptr(&self) -> *const u8 {
        self.bytes.stable_ptr()
    }
    fn bytes_len(&self) -> usize {
        self.bytes.bytes_len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Lively {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.stable_mut_ptr()
    }
}

#[test]
fn a_buffers_drop_uses_the_driver() {
    let drops = Rc::new(Cell::new(0));
    let buf = |driver: &Driver| Lively {
        bytes: vec![0; 1],
        handle: driver.handle().clone(),
        drops: Rc::clone(&drops),
        victim: Some(driver.nop()),
    };
    let driver = driver();
    let handle = driver.handle().clone();
    let (fd, write) = pipe(&driver);
    let waiting = driver.read(&fd, buf(&driver), CURRENT_POSITION);
    drop(driver.read(&fd, buf(&driver), CURRENT_POSITION)); // revoked
    let done = driver.read(&fd, buf(&driver), CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    write_all(&write, b"xx");
    drop(waiting);
    drain(&driver);
    drain(&driver);
    drop(done);
    drain(&driver);
    assert_eq!(drops.get(), 3);
    // The same at the end of the driver, when no new operations are accepted.
    let kept = driver.read(&fd, buf(&driver), CURRENT_POSITION);
    drop(driver.read(&fd, buf(&driver), CURRENT_POSITION));
    driver.turn(Wait::Poll).unwrap();
    drop(driver.read(&fd, buf(&driver), CURRENT_POSITION));
    drop(driver);
    assert_eq!(drops.get(), 5);
    drop(kept);
    assert_eq!(drops.get(), 6);
    assert_eq!((handle.in_flight(), handle.live_operations()), (0, 0));
}
