//! Memory: used late, until the completion is posted and for ever without one.

use rustix::fs::OFlags;
use sakia_ring::Sqe;

use super::super::{Fault, Routes, SCRIBBLE, Sim, Target};
use super::{Lendable, Loop, read, write};
use crate::backend::Backend;

#[test]
fn a_buffer_is_filled_when_the_read_happens() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    ring.handle.create_file("f", "old");
    let fd = ring.open(c"f", OFlags::RDONLY);
    let buffer = Lendable::zeroed(3);
    ring.push(1, read(fd, &buffer, 0));
    assert_eq!(ring.submit(), []);
    assert_eq!(buffer.copy(), b"\0\0\0");
    ring.handle.create_file("f", "new");
    assert_eq!(ring.enter(1), [(1, 3)]);
    assert_eq!(buffer.copy(), b"new");
}

#[test]
fn a_buffer_is_read_when_the_write_happens() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    let fd = ring.open(c"f", OFlags::WRONLY | OFlags::CREATE);
    let buffer = Lendable::new(b"old");
    ring.push(1, write(fd, &buffer, 0));
    assert_eq!(ring.submit(), []);
    // SAFETY: no driver may do this; it shows when the bytes are read. Three bytes are there, and no other
    // code is running.
    unsafe { buffer.ptr().copy_from_nonoverlapping(b"new".as_ptr(), 3) };
    assert_eq!(ring.enter(1), [(1, 3)]);
    assert_eq!(ring.handle.contents("f").unwrap(), b"new");
}

#[test]
fn late_writes_scribble_over_what_is_still_lent_and_nothing_else() {
    let builder = Sim::builder(1).routes(Routes::INLINE).late_writes(u16::MAX);
    let mut ring = Loop::new(builder);
    let (read_end, write_end) = ring.handle.pipe();
    let buffer = Lendable::zeroed(4);
    ring.push(1, read(read_end, &buffer, 0));
    assert_eq!(ring.submit(), []);
    assert_eq!(buffer.copy(), [0; 4]);
    assert_eq!(ring.submit(), []);
    assert_eq!(buffer.copy(), [SCRIBBLE; 4]);
    ring.handle.write_pipe(write_end, b"data").unwrap();
    assert_eq!(ring.turn(), [(1, 4)]);
    assert_eq!(buffer.copy(), b"data");
    ring.sim.submit().unwrap();
    assert_eq!(buffer.copy(), b"data", "given back with the completion");
}

#[test]
fn memory_is_the_drivers_once_the_completion_can_be_reaped() {
    let builder = Sim::builder(1).routes(Routes::INLINE).late_writes(u16::MAX);
    let mut ring = Loop::new(builder.entries(1, 1));
    ring.handle.create_file("f", "abc");
    let fd = ring.open(c"f", OFlags::RDONLY);
    let buffers = [Lendable::zeroed(3), Lendable::zeroed(3)];
    for (user_data, buffer) in (1..).zip(&buffers) {
        ring.push(user_data, read(fd, buffer, 0));
        ring.sim.submit().unwrap();
    }
    assert!(ring.sim.is_overflowing());
    drop(buffers);
    ring.sim.submit().unwrap();
    assert_eq!(ring.handle.run_late(), 0);
    assert_eq!([ring.reap(), ring.turn()].concat(), [(1, 3), (2, 3)]);
}

#[test]
fn a_dropped_ring_goes_on_using_what_it_holds() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    ring.handle.create_file("f", "abc");
    let fd = ring.open(c"f", OFlags::RDWR);
    let (read_end, _write_end) = ring.handle.pipe();
    let [waiting, ready, stuck, written, pending, revoked] = [(); 6].map(|()| Lendable::zeroed(2));
    ring.handle.script(Target::user_data(3), Fault::Stuck);
    ring.push(1, read(read_end, &waiting, 0));
    ring.push(2, read(fd, &ready, 0));
    ring.push(3, read(fd, &stuck, 0));
    ring.push(4, write(fd, &written, 0));
    ring.sim.submit().unwrap();
    ring.push(5, read(fd, &pending, 0));
    // SAFETY: the entry is made a nop before the buffer is freed.
    let position = unsafe { ring.sim.push(read(fd, &revoked, 0).user_data(6)) }.unwrap();
    assert!(ring.sim.make_nop(position, 6));
    drop(revoked);

    let handle = ring.handle.clone();
    drop(ring);
    assert_eq!(handle.in_flight(), 4);
    assert_eq!(handle.run_late(), 5);
    for buffer in [&waiting, &ready, &stuck, &pending] {
        assert_eq!(buffer.copy(), [SCRIBBLE; 2]);
    }
    assert_eq!(written.copy(), [0; 2]);
    assert_eq!(handle.contents("f").unwrap(), b"abc", "nothing happens any more");
}

#[test]
fn a_kernel_that_holds_nothing_uses_nothing() {
    let mut ring = Loop::inline();
    assert_eq!(ring.run(Sqe::nop()), 0);
    let handle = ring.handle.clone();
    drop(ring);
    assert_eq!(handle.run_late(), 0);
}
