//! The outcomes of a cancel.

use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Opcode, Sqe, sqe_flags};

use super::super::{Fault, FaultKind, Routes, Sim, Target};
use super::{Lendable, Loop, SEEDS, err, read};
use crate::backend::Backend;

const CANCEL_ALL: u32 = 1;
const CANCEL_FD: u32 = 2;
const CANCEL_ANY: u32 = 4;
const CANCELED: i32 = -125;
const ALREADY: i32 = -114;
const NOENT: i32 = -2;

fn cancel_fd(fd: i32, flags: u32) -> Sqe {
    Sqe::new(Opcode::ASYNC_CANCEL, fd, 0, 0, 0).op_flags(CANCEL_FD | flags)
}

/// Returns a loop with a read in flight, number 1, on an empty pipe, and the pipe's ends.
fn waiting_read(buffer: &Lendable) -> (Loop, i32, i32) {
    let mut ring = Loop::inline();
    let (read_end, write_end) = ring.handle.pipe();
    ring.push(1, read(read_end, buffer, 0));
    assert_eq!(ring.turn(), []);
    (ring, read_end, write_end)
}

#[test]
fn the_results_are_the_kernels() {
    assert_eq!(CANCELED, err(Errno::CANCELED));
    assert_eq!(ALREADY, err(Errno::ALREADY));
    assert_eq!(NOENT, err(Errno::NOENT));
    assert_eq!(Sqe::cancel_all().op_flags, CANCEL_ALL | CANCEL_ANY);
}

#[test]
fn what_waits_is_canceled() {
    let buffer = Lendable::zeroed(4);
    let (mut ring, read_end, write_end) = waiting_read(&buffer);
    ring.push(2, Sqe::cancel(1));
    assert_eq!(ring.submit(), [(2, 0)], "the operation itself needs an enter");
    assert_eq!(ring.handle.in_flight(), 1);
    assert_eq!(ring.turn(), [(1, CANCELED)]);
    ring.push(3, Sqe::cancel(1));
    assert_eq!(ring.turn(), [(3, NOENT)]);
    ring.handle.write_pipe(write_end, b"kept").unwrap();
    assert_eq!(ring.handle.read_pipe(read_end, 4).unwrap(), b"kept");
}

#[test]
fn what_is_unknown_or_over_is_not_found() {
    let mut ring = Loop::inline();
    ring.push(1, Sqe::nop());
    ring.push(2, Sqe::cancel(1));
    assert_eq!(ring.submit(), [(1, 0), (2, NOENT)]);
    assert_eq!(ring.run(Sqe::cancel(77)), NOENT);
}

#[test]
fn a_ready_file_operation_ends_by_itself() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    ring.push(1, Sqe::nop());
    ring.push(2, Sqe::cancel(1));
    // Newest first would find it canceled; oldest first finds that it has ended.
    assert_eq!(ring.enter(2), [(1, 0), (2, NOENT)]);
}

#[test]
fn a_ready_pipe_operation_ends_although_the_bytes_are_gone() {
    let mut seen = [false; 3];
    for seed in 0..SEEDS {
        let buffer = Lendable::zeroed(4);
        let builder = Sim::builder(seed).routes(Routes::INLINE);
        let mut ring = Loop::new(builder.reorders(false));
        let (read_end, write_end) = ring.handle.pipe();
        ring.push(1, read(read_end, &buffer, 0));
        assert_eq!(ring.turn(), []);
        ring.handle.write_pipe(write_end, b"ab").unwrap();
        let is_taken = seed % 2 == 0;
        if is_taken {
            ring.handle.read_pipe(read_end, 2).unwrap();
        }
        ring.push(2, Sqe::cancel(1));
        let end = if is_taken { CANCELED } else { 2 };
        let outcomes = [
            vec![(2, 0), (1, CANCELED)],
            vec![(2, ALREADY), (1, 2)],
            vec![(2, ALREADY), (1, CANCELED)],
        ];
        let outcome = ring.turn();
        let index = outcomes.iter().position(|known| *known == outcome).unwrap();
        assert!(index == 0 || outcome[1].1 == end, "{outcome:?}");
        seen[index] = true;
    }
    assert_eq!(seen, [true; 3]);
}

#[test]
fn a_worker_may_have_begun_or_not() {
    let mut outcomes = Vec::new();
    for seed in 0..SEEDS {
        let mut ring = Loop::new(Sim::builder(seed).routes(Routes::INLINE));
        ring.handle.create_file("f", "abc");
        let fd = ring.open(c"f", rustix::fs::OFlags::RDONLY);
        let buffer = Lendable::zeroed(3);
        ring.push(1, read(fd, &buffer, 0).flags(sqe_flags::ASYNC));
        assert_eq!(ring.submit(), []);
        ring.push(2, Sqe::cancel(1));
        let said = ring.submit();
        let ended = ring.enter(1);
        assert_eq!((said.len(), said[0].0), (1, 2));
        assert_eq!((ended.len(), ended[0].0), (1, 1));
        outcomes.push((said[0].1, ended[0].1));
    }
    for outcome in [(0, CANCELED), (ALREADY, 3)] {
        assert!(outcomes.contains(&outcome), "{outcomes:?}");
    }
    // The worker may have finished when the cancel comes.
    let known = [(0, CANCELED), (ALREADY, 3), (NOENT, 3)];
    assert!(outcomes.iter().all(|outcome| known.contains(outcome)), "{outcomes:?}");
}

#[test]
fn all_of_a_descriptor_are_counted() {
    let buffers: Vec<_> = (0..3).map(|_| Lendable::zeroed(1)).collect();
    let mut ring = Loop::inline();
    let (first, _first_writer) = ring.handle.pipe();
    let (second, _second_writer) = ring.handle.pipe();
    for (user_data, fd, buffer) in [(1, first, 0), (2, second, 1), (3, first, 2)] {
        ring.push(user_data, read(fd, &buffers[buffer], 0));
    }
    ring.push(4, cancel_fd(first, CANCEL_ALL));
    ring.push(5, cancel_fd(first, CANCEL_ALL));
    ring.push(6, cancel_fd(99, CANCEL_ALL));
    let expected = [(4, 2), (5, 0), (6, err(Errno::BADF)), (1, CANCELED), (3, CANCELED)];
    assert_eq!(ring.turn(), expected);
    assert_eq!(ring.run(cancel_fd(first, CANCEL_ALL)), 0);
    assert_eq!(ring.run(cancel_fd(first, 0)), NOENT);
    ring.push(7, cancel_fd(second, 0));
    assert_eq!(ring.turn(), [(7, 0), (2, CANCELED)]);
}

#[test]
fn any_cancels_everything_that_waits() {
    let buffers: Vec<_> = (0..3).map(|_| Lendable::zeroed(1)).collect();
    let mut ring = Loop::inline();
    for (user_data, buffer) in (1..).zip(&buffers) {
        let (read_end, _) = ring.handle.pipe();
        ring.push(user_data, read(read_end, buffer, 0));
    }
    ring.push(4, Sqe::cancel_all());
    assert_eq!(ring.turn(), [(4, 3), (1, CANCELED), (2, CANCELED), (3, CANCELED)]);
    assert_eq!(ring.run(Sqe::cancel_all()), 0);
    let contradiction = Sqe::cancel_all().op_flags(CANCEL_FD | CANCEL_ANY);
    assert_eq!(ring.run(contradiction), err(Errno::INVAL));
}

#[test]
fn too_late_means_not_found_and_a_full_result() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "abc");
    let fd = ring.open(c"f", rustix::fs::OFlags::RDONLY);
    let buffer = Lendable::zeroed(3);
    ring.handle.script(Target::user_data(1), Fault::Delay(Duration::from_millis(1)));
    ring.handle.script(Target::opcode(Opcode::ASYNC_CANCEL), Fault::CancelTooLate);
    ring.push(1, read(fd, &buffer, 0));
    ring.push(2, Sqe::cancel(1));
    assert_eq!(ring.enter(2), [(2, NOENT), (1, 3)]);
    assert_eq!(buffer.copy(), b"abc");
    assert_eq!(ring.handle.injected(FaultKind::CancelTooLate), 1);
}

#[test]
fn too_late_does_not_keep_alive_what_would_never_end() {
    let buffer = Lendable::zeroed(4);
    let (mut ring, ..) = waiting_read(&buffer);
    ring.handle.script(Target::any(), Fault::CancelTooLate);
    ring.push(2, Sqe::cancel(1));
    assert_eq!(ring.turn(), [(2, 0), (1, CANCELED)]);
    assert_eq!(ring.handle.injected(FaultKind::CancelTooLate), 0);
}

#[test]
fn already_means_that_the_operation_ends_on_its_own_terms() {
    let buffer = Lendable::zeroed(4);
    let (mut ring, ..) = waiting_read(&buffer);
    ring.handle.script(Target::any(), Fault::CancelAlready);
    ring.push(2, Sqe::cancel(1));
    assert_eq!(ring.turn(), [(2, ALREADY), (1, CANCELED)]);

    let mut ring = Loop::inline();
    ring.handle.script(Target::user_data(1), Fault::Delay(Duration::from_millis(1)));
    ring.handle.script(Target::user_data(2), Fault::CancelAlready);
    ring.push(1, Sqe::nop());
    ring.push(2, Sqe::cancel(1));
    assert_eq!(ring.enter(2), [(2, ALREADY), (1, 0)]);
    assert_eq!(ring.handle.injected(FaultKind::CancelAlready), 1);
}

#[test]
fn what_is_stuck_ignores_a_cancel() {
    let buffer = Lendable::zeroed(4);
    let mut ring = Loop::inline();
    let (read_end, write_end) = ring.handle.pipe();
    ring.handle.script(Target::user_data(1), Fault::Stuck);
    ring.push(1, read(read_end, &buffer, 0));
    ring.push(2, Sqe::cancel(1));
    assert_eq!(ring.turn(), [(2, ALREADY)]);
    ring.handle.write_pipe(write_end, b"abcd").unwrap();
    ring.handle.close(write_end).unwrap();
    ring.push(3, Sqe::cancel_all());
    assert_eq!(ring.turn(), [(3, 1)]);
    ring.sim.nap(Duration::from_secs(3600));
    assert_eq!(ring.turn(), []);
    assert_eq!(ring.handle.in_flight(), 1);
    assert_eq!(ring.handle.injected(FaultKind::Stuck), 1);
}
