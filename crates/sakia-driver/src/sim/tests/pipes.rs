//! Pipes: waiting, waking, ends that go away, polls.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::Sqe;

use super::super::kernel::poll;
use super::super::{Routes, Sim};
use super::{Lendable, Loop, SEEDS, err, read, write};
use crate::backend::{Backend, Calls, FileKind};

/// `RWF_NOWAIT`.
const NOWAIT: u32 = 8;

fn small_pipes(routes: Routes) -> Loop {
    let builder = Sim::builder(1).routes(routes).reorders(false);
    Loop::new(builder.pipe_bytes(4))
}

#[test]
fn a_read_waits_for_bytes_and_is_finished_by_an_enter() {
    let mut ring = Loop::inline();
    let (read_end, write_end) = ring.handle.pipe();
    // SAFETY: a number of the simulated kernel.
    assert_eq!(unsafe { ring.handle.facts(read_end, None) }.kind, FileKind::Waiting);
    let buffer = Lendable::zeroed(8);
    ring.push(1, read(read_end, &buffer, 0));
    assert_eq!(ring.turn(), []);
    assert!(!ring.sim.needs_enter());
    assert_eq!(ring.handle.write_pipe(write_end, b"abc").unwrap(), 3);
    assert!(ring.sim.needs_enter());
    assert_eq!(ring.submit(), [], "a submit finishes nothing that waited");
    assert_eq!(ring.turn(), [(1, 3)]);
    assert_eq!(&buffer.copy()[..3], b"abc");
    assert_eq!(ring.handle.in_flight(), 0);
}

#[test]
fn a_read_ends_with_0_when_the_last_writer_goes() {
    let mut ring = Loop::inline();
    let (read_end, write_end) = ring.handle.pipe();
    let buffer = Lendable::zeroed(8);
    ring.handle.write_pipe(write_end, b"ab").unwrap();
    assert_eq!(ring.run(read(read_end, &buffer, 0)), 2);
    ring.push(1, read(read_end, &buffer, 0));
    assert_eq!(ring.turn(), []);
    assert_eq!(ring.run(Sqe::nop()), 0);
    ring.push(2, Sqe::close(write_end));
    assert_eq!(ring.enter(2), [(2, 0), (1, 0)]);
    assert_eq!(ring.run(read(read_end, &buffer, 0)), 0);
}

#[test]
fn a_write_waits_for_room_and_may_be_short() {
    let mut ring = small_pipes(Routes::INLINE);
    let (read_end, write_end) = ring.handle.pipe();
    let (six, three) = (Lendable::new(b"abcdef"), Lendable::new(b"xyz"));
    assert_eq!(ring.run(write(write_end, &six, 0)), 4, "too long to be whole");
    ring.push(1, write(write_end, &three, 0));
    assert_eq!(ring.turn(), []);
    assert_eq!(ring.handle.read_pipe(read_end, 2).unwrap(), b"ab");
    assert_eq!(ring.turn(), [], "short writes are whole");
    assert_eq!(ring.handle.read_pipe(read_end, 1).unwrap(), b"c");
    assert_eq!(ring.turn(), [(1, 3)]);
    assert_eq!(ring.handle.read_pipe(read_end, 9).unwrap(), b"dxyz");
}

#[test]
fn a_write_fails_with_epipe_when_the_last_reader_goes() {
    let mut ring = small_pipes(Routes::INLINE);
    let (read_end, write_end) = ring.handle.pipe();
    let four = Lendable::new(b"abcd");
    assert_eq!(ring.run(write(write_end, &four, 0)), 4);
    ring.push(1, write(write_end, &four, 0));
    assert_eq!(ring.turn(), []);
    ring.handle.close(read_end).unwrap();
    assert_eq!(ring.turn(), [(1, err(Errno::PIPE))]);
    assert_eq!(ring.run(write(write_end, &four, 0)), err(Errno::PIPE));
    assert_eq!(ring.run(Sqe::write(write_end, four.ptr(), 0, 0)), 0);
}

#[test]
fn a_waiting_read_keeps_its_end_open_and_gets_what_is_written_later() {
    let mut ring = Loop::inline();
    let (read_end, write_end) = ring.handle.pipe();
    let buffer = Lendable::zeroed(4);
    ring.push(1, read(read_end, &buffer, 0));
    assert_eq!(ring.turn(), []);
    ring.handle.close(read_end).unwrap();
    ring.handle.write_pipe(write_end, b"late").unwrap();
    assert_eq!(ring.turn(), [(1, 4)]);
    assert_eq!(buffer.copy(), b"late");
    let error = ring.handle.write_pipe(write_end, b"more").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn of_two_readers_one_gets_the_bytes_and_the_other_waits_on() {
    let mut ring = Loop::inline();
    let (read_end, write_end) = ring.handle.pipe();
    let (a, b) = (Lendable::zeroed(4), Lendable::zeroed(4));
    ring.push(1, read(read_end, &a, 0));
    ring.push(2, read(read_end, &b, 0));
    assert_eq!(ring.turn(), []);
    ring.handle.write_pipe(write_end, b"1").unwrap();
    assert_eq!(ring.turn(), [(1, 1)]);
    assert_eq!(ring.handle.in_flight(), 1);
    ring.handle.write_pipe(write_end, b"2").unwrap();
    assert_eq!(ring.turn(), [(2, 1)]);
}

#[test]
fn both_ends_may_be_the_drivers() {
    for seed in 0..SEEDS {
        let mut ring = Loop::new(Sim::builder(seed));
        let (read_end, write_end) = ring.handle.pipe();
        let (from, to) = (Lendable::new(b"abc"), Lendable::zeroed(3));
        ring.push(1, read(read_end, &to, 0));
        ring.push(2, write(write_end, &from, 0));
        let mut completions = ring.enter(2);
        completions.sort_unstable();
        assert_eq!(completions, [(1, 3), (2, 3)]);
        assert_eq!(to.copy(), b"abc");
    }
}

#[test]
fn nowait_is_eagain_instead_of_waiting() {
    let mut ring = small_pipes(Routes::INLINE);
    let (read_end, write_end) = ring.handle.pipe();
    let four = Lendable::new(b"abcd");
    let again = err(Errno::AGAIN);
    assert_eq!(ring.run(read(read_end, &four, 0).op_flags(NOWAIT)), again);
    assert_eq!(ring.run(write(write_end, &four, 0).op_flags(NOWAIT)), 4);
    assert_eq!(ring.run(write(write_end, &four, 0).op_flags(NOWAIT)), again);
    assert_eq!(ring.run(read(read_end, &four, 0).op_flags(NOWAIT)), 4);
}

#[test]
fn transfers_go_one_way() {
    let mut ring = Loop::inline();
    let (read_end, write_end) = ring.handle.pipe();
    let buffer = Lendable::zeroed(1);
    assert_eq!(ring.run(read(write_end, &buffer, 0)), err(Errno::BADF));
    assert_eq!(ring.run(write(read_end, &buffer, 0)), err(Errno::BADF));
    assert!(ring.handle.write_pipe(read_end, b"a").is_err());
    assert!(ring.handle.read_pipe(write_end, 1).is_err());
    let error = ring.handle.read_pipe(read_end, 1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn poll_completes_with_what_became_ready() {
    let mut ring = small_pipes(Routes::INLINE);
    let (read_end, write_end) = ring.handle.pipe();
    let readable = u32::from(poll::IN);
    ring.push(1, Sqe::poll_add(read_end, readable));
    ring.push(2, Sqe::poll_add(write_end, u32::from(poll::OUT)));
    assert_eq!(ring.turn(), [(2, i32::from(poll::OUT))]);
    ring.handle.write_pipe(write_end, b"a").unwrap();
    assert_eq!(ring.turn(), [(1, i32::from(poll::IN))]);

    // The data may be gone when the poll is finished; then the poll waits again.
    ring.handle.read_pipe(read_end, 1).unwrap();
    ring.push(3, Sqe::poll_add(read_end, readable));
    assert_eq!(ring.turn(), []);
    ring.handle.write_pipe(write_end, b"a").unwrap();
    ring.handle.read_pipe(read_end, 1).unwrap();
    assert_eq!(ring.turn(), []);
    ring.handle.close(write_end).unwrap();
    assert_eq!(ring.turn(), [(3, i32::from(poll::HUP))]);

    ring.handle.create_file("f", "");
    let fd = ring.open(c"f", rustix::fs::OFlags::RDONLY);
    let both = poll::IN | poll::OUT;
    assert_eq!(ring.run(Sqe::poll_add(fd, u32::from(both))), i32::from(both));
    assert_eq!(ring.run(Sqe::poll_add(99, readable)), err(Errno::BADF));
    let mut multishot = Sqe::poll_add(fd, readable);
    multishot.len = 1;
    assert_eq!(ring.run(multishot), err(Errno::INVAL));
}

#[test]
fn bytes_may_come_when_time_has_passed() {
    let mut ring = Loop::inline();
    let (read_end, write_end) = ring.handle.pipe();
    let buffer = Lendable::zeroed(4);
    let delay = Duration::from_millis(5);
    ring.handle.write_pipe_after(delay, write_end, b"ab");
    ring.push(1, read(read_end, &buffer, 0));
    assert_eq!(ring.enter(1), [(1, 2)]);
    assert_eq!(ring.sim.now(), delay);
}
