//! Buffers whose pages become inaccessible when they are freed: a late access always faults.

use sakia_driver::{CURRENT_POSITION, IoBuf, IoBufMut, Wait};
use sakia_testkit::page_guard::{GuardedBuffer, is_accessible};

use crate::hosts::rigged;
use crate::support::{drain, driver, finish, pipe, write_all};

struct Guarded(GuardedBuffer);

// SAFETY: the pages do not move with the value, which is their only owner.
unsafe impl IoBuf for Guarded {
    fn stable_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
    fn bytes_len(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Guarded {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

fn guarded() -> (Guarded, *const u8) {
    let buf = Guarded(GuardedBuffer::new(10_000));
    let start = buf.stable_ptr();
    (buf, start)
}

#[test]
fn pages_of_a_dropped_read_stay_until_its_completion() {
    let driver = driver();
    let (fd, _write) = pipe(&driver);
    let (buf, start) = guarded();
    let read = driver.read(&fd, buf, CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    drop(read);
    assert!(is_accessible(start), "the kernel holds freed pages");
    drain(&driver);
    assert!(!is_accessible(start), "the pages are no longer needed");
}

#[test]
fn pages_of_a_dropped_read_take_what_comes_late() {
    // Requests to cancel are lost here, so that the data arrives at a read whose handle was dropped.
    let (driver, rig) = rigged(8, 64);
    rig.swallows_cancels.set(true);
    let (read_end, write) = rustix::pipe::pipe().unwrap();
    let fd = driver.adopt(read_end);
    let (buf, start) = guarded();
    let read = driver.read(&fd, buf, CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    drop(read);
    driver.turn(Wait::Poll).unwrap();
    assert!(is_accessible(start));
    write_all(&write, &[7; 10_000]);
    assert!(is_accessible(start));
    drain(&driver);
    assert!(!is_accessible(start));
    // The read took the data, so its pages were still there: after an `EFAULT` the data would still be in the
    // pipe.
    drop(write);
    let mut rest = driver.read(&fd, vec![0; 64], CURRENT_POSITION);
    assert_eq!(finish(&driver, &mut rest).0.unwrap(), 0);
}

#[test]
fn pages_outlive_the_driver_where_a_handle_owns_the_result() {
    let driver = driver();
    let (fd, _write) = pipe(&driver);
    let (buf, start) = guarded();
    let read = driver.read(&fd, buf, CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    drop(driver);
    assert!(is_accessible(start));
    drop(read);
    assert!(!is_accessible(start));
}
