//! Each kind of fault, by script and by chance.

use std::collections::BTreeSet;
use std::io;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_ring::{Opcode, Sqe};

use super::super::{EnterFault, Fault, FaultKind, Routes, Sim, Target};
use super::{Lendable, Loop, SEEDS, err, read, write};
use crate::backend::Backend;

#[track_caller]
fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn a_partial_submit_consumes_fewer_and_does_not_wait() {
    let mut ring = Loop::inline();
    for user_data in 0..3 {
        ring.push(user_data, Sqe::nop());
    }
    ring.handle.script_enter(0, EnterFault::Partial(1));
    ring.handle.script_enter(1, EnterFault::Partial(0));
    let entered = ring.sim.enter(3, None, None).unwrap();
    assert_eq!((entered.consumed, entered.timed_out), (1, false));
    assert_eq!(ring.sim.sq_pending(), 2);
    assert_eq!(errno(ring.sim.submit()), Errno::AGAIN.raw_os_error());
    assert_eq!(ring.sim.sq_pending(), 2);
    assert_eq!(ring.enter(3).len(), 3);
    assert_eq!(ring.handle.injected(FaultKind::PartialSubmit), 2);
}

#[test]
fn an_enter_fails_before_or_after_it_consumed() {
    let mut ring = Loop::inline();
    ring.push(1, Sqe::nop());
    ring.push(2, Sqe::nop());
    let faults = [
        (Errno::INTR, FaultKind::EnterInterrupted),
        (Errno::AGAIN, FaultKind::EnterAgain),
        (Errno::BUSY, FaultKind::EnterBusy),
        (Errno::BADR, FaultKind::EnterFailed),
    ];
    for (expected, kind) in faults {
        let expected = expected.raw_os_error();
        ring.handle.script_enter(0, EnterFault::Errno(expected));
        assert_eq!(errno(ring.sim.enter(1, None, None)), expected);
        assert_eq!(ring.handle.injected(kind), 1);
        assert_eq!(ring.sim.sq_pending(), 2);
    }
    let again = Errno::AGAIN.raw_os_error();
    ring.handle.script_enter(0, EnterFault::ErrnoAfter(1, again));
    assert_eq!(errno(ring.sim.submit()), again);
    assert_eq!(ring.sim.sq_pending(), 1);
    assert_eq!(ring.enter(2), [(1, 0), (2, 0)]);
    assert_eq!(ring.handle.scripted(), 0);
}

#[test]
fn a_short_queue_overflows_early_but_not_for_whoever_waits() {
    let mut ring = Loop::inline();
    for user_data in 0..4 {
        ring.push(user_data, Sqe::nop());
    }
    ring.handle.script_enter(0, EnterFault::ShortCq(1));
    ring.sim.submit().unwrap();
    assert_eq!(ring.sim.cq_ready(), 1);
    assert!(ring.sim.is_overflowing());
    ring.handle.script_enter(0, EnterFault::ShortCq(0));
    ring.sim.enter(2, None, None).unwrap();
    assert_eq!(ring.sim.cq_ready(), 2);
    assert_eq!(ring.reap(), [(0, 0), (1, 0)]);
    assert_eq!(ring.enter(2), [(2, 0), (3, 0)]);
    assert_eq!(ring.handle.injected(FaultKind::ShortCq), 2);
}

#[test]
fn transfers_are_cut_short() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "abcdef");
    let fd = ring.open(c"f", OFlags::RDWR);
    let (read_end, write_end) = ring.handle.pipe();
    let four = Lendable::new(b"wxyz");
    for _ in 0..4 {
        ring.handle.script(Target::any(), Fault::Short(3));
    }
    assert_eq!(ring.run(write(fd, &four, 1)), 3);
    assert_eq!(ring.handle.contents("f").unwrap(), b"awxyef");
    assert_eq!(ring.run(write(write_end, &four, 0)), 3);
    assert_eq!(ring.run(read(read_end, &four, 0)), 3);
    assert_eq!(four.copy(), b"wxyz");
    assert_eq!(ring.handle.injected(FaultKind::ShortTransfer), 3);
    assert_eq!(ring.run(read(fd, &four, 4)), 2, "the end comes before");
    assert_eq!(ring.handle.injected(FaultKind::ShortTransfer), 3);
    ring.handle.script(Target::any(), Fault::Short(0));
    assert_eq!(ring.run(read(fd, &four, 0)), 1, "0 would be the end");
}

#[test]
fn operations_fail_without_effect() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "abc");
    let fd = ring.open(c"f", OFlags::RDWR);
    let buffer = Lendable::new(b"xyz");
    let io = Errno::IO.raw_os_error();
    ring.handle.script(Target::opcode(Opcode::WRITE).skip(1), Fault::Errno(io));
    ring.handle.script(Target::opcode(Opcode::OPENAT), Fault::Errno(io));
    ring.handle.script(Target::opcode(Opcode::READ), Fault::Restart);
    assert_eq!(ring.run(write(fd, &buffer, 0)), 3);
    assert_eq!(ring.run(write(fd, &buffer, 3)), -io);
    assert_eq!(ring.handle.contents("f").unwrap(), b"xyz");
    assert_eq!(ring.open(c"new", OFlags::WRONLY | OFlags::CREATE), -io);
    assert_eq!(ring.handle.contents("new"), None);
    assert_eq!(ring.handle.open_descriptors(), 1);
    assert_eq!(ring.run(read(fd, &buffer, 0)), -512);
    assert_eq!(ring.handle.injected(FaultKind::Errno), 2);
    assert_eq!(ring.handle.injected(FaultKind::Restart), 1);
}

#[test]
fn a_failing_close_closes() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "");
    let fd = ring.open(c"f", OFlags::RDONLY);
    ring.handle.script(Target::opcode(Opcode::CLOSE), Fault::Errno(5));
    assert_eq!(ring.run(Sqe::close(fd)), -5);
    assert!(!ring.handle.is_open(fd));
}

#[test]
fn a_waiting_operation_can_fail_too() {
    let mut ring = Loop::inline();
    let (read_end, _write_end) = ring.handle.pipe();
    let buffer = Lendable::zeroed(1);
    ring.handle.script(Target::any(), Fault::Errno(12));
    assert_eq!(ring.run(read(read_end, &buffer, 0)), -12);
}

#[test]
fn a_duplicate_comes_later_and_touches_nothing() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "abc");
    let fd = ring.open(c"f", OFlags::RDONLY);
    let buffer = Lendable::zeroed(3);
    ring.handle.script(Target::user_data(1), Fault::Duplicate);
    ring.push(1, read(fd, &buffer, 0));
    assert_eq!(ring.submit(), [(1, 3)]);
    assert_eq!(ring.handle.in_flight(), 0);
    drop(buffer);
    assert_eq!(ring.enter(1), [(1, 3)]);
    assert_eq!(ring.handle.injected(FaultKind::Duplicate), 1);
}

#[test]
fn a_duplicate_is_withheld_while_an_operation_has_that_name() {
    let mut ring = Loop::inline();
    let (read_end, write_end) = ring.handle.pipe();
    let buffer = Lendable::zeroed(1);
    ring.handle.script(Target::user_data(1), Fault::Duplicate);
    ring.push(1, Sqe::nop());
    assert_eq!(ring.submit(), [(1, 0)]);
    ring.push(1, read(read_end, &buffer, 0));
    ring.sim.submit().unwrap();
    ring.sim.nap(std::time::Duration::from_secs(1));
    assert_eq!(ring.turn(), []);
    ring.handle.write_pipe(write_end, b"a").unwrap();
    assert_eq!(ring.turn(), [(1, 1)]);
}

#[test]
fn a_stale_completion_has_an_unknown_name() {
    for seed in 0..SEEDS {
        let mut ring = Loop::new(Sim::builder(seed).routes(Routes::INLINE));
        ring.handle.script(Target::any(), Fault::Stale);
        ring.push(1, Sqe::nop());
        assert_eq!(ring.submit(), [(1, 0)]);
        let stale = ring.enter(1);
        assert_eq!(stale.len(), 1);
        assert_ne!(stale[0].0, 1);
        assert_eq!(ring.handle.injected(FaultKind::Stale), 1);
    }
}

#[test]
fn a_held_completion_waits_in_the_overflow_list_with_all_after_it() {
    let mut ring = Loop::inline();
    ring.handle.script(Target::user_data(2), Fault::Held);
    for user_data in 1..=3 {
        ring.push(user_data, Sqe::nop());
    }
    assert_eq!(ring.submit(), [(1, 0)]);
    assert!(ring.sim.is_overflowing() && ring.sim.needs_enter());
    assert_eq!(ring.handle.in_flight(), 0);
    assert_eq!(ring.turn(), [(2, 0), (3, 0)]);
    assert!(!ring.sim.is_overflowing());
    assert_eq!(ring.handle.injected(FaultKind::Held), 1);
}

#[test]
fn whoever_waits_gets_held_completions() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    ring.handle.script(Target::any(), Fault::Held);
    ring.push(1, Sqe::nop());
    assert_eq!(ring.enter(1), [(1, 0)]);
}

#[test]
fn chance_brings_every_fault_and_loses_nothing() {
    let mut ring = Loop::new(Sim::builder(7).entries(4, 4).chaos(1 << 13));
    ring.handle.create_file("f", "abcdef");
    let (mut fd, mut next) = (err(Errno::IO), 1000);
    let buffer = Lendable::zeroed(6);
    let rounds = if cfg!(miri) { 20 } else { 150 };
    for round in 0..rounds {
        let wanted: Vec<u64> = (next..next + 3).collect();
        next += 3;
        if fd < 0 {
            let path = Lendable::new(b"f\0");
            let open = Sqe::openat(sakia_ring::AT_FDCWD, path.ptr(), 2, 0);
            let mut last = settle(&mut ring, &[(next, open)]);
            fd = last.pop().unwrap();
            next += 1;
            continue;
        }
        let end = if round % 20 == 19 { Sqe::close(fd) } else { Sqe::cancel(wanted[0]) };
        let entries = [
            (wanted[0], read(fd, &buffer, 0)),
            (wanted[1], Sqe::fsync(fd, false)),
            (wanted[2], end),
        ];
        settle(&mut ring, &entries);
        if end.opcode == Opcode::CLOSE {
            assert!(!ring.handle.is_open(fd));
            fd = -1;
        }
    }
    assert_eq!(ring.handle.in_flight(), 0);
    if cfg!(miri) {
        return; // too few rounds for every fault
    }
    for &kind in FaultKind::ALL {
        let count = ring.handle.injected(kind);
        match kind {
            FaultKind::Stuck | FaultKind::EnterFailed => assert_eq!(count, 0),
            // No plain calls are made here.
            FaultKind::PlainBlocks | FaultKind::PlainEnd | FaultKind::PlainStall => {
                assert_eq!(count, 0);
            }
            // There are no multishot operations here.
            FaultKind::NoBuffers | FaultKind::MultishotEnded => assert_eq!(count, 0),
            kind if FaultKind::NETWORK.contains(&kind) => assert_eq!(count, 0),
            // Chaos excludes the errors of file servers.
            kind if FaultKind::SERVER.contains(&kind) => assert_eq!(count, 0),
            _ => assert!(count > 0, "{kind:?} never happened"),
        }
    }
}

/// Runs entries until each has completed, regardless of the results of enters. Returns the results of the
/// last turn in the order of the entries.
fn settle(ring: &mut Loop, entries: &[(u64, Sqe)]) -> Vec<i32> {
    for &(user_data, sqe) in entries {
        ring.push(user_data, sqe);
    }
    let mut results = vec![None; entries.len()];
    let known: BTreeSet<u64> = entries.iter().map(|&(user_data, _)| user_data).collect();
    for _ in 0..10_000 {
        match ring.sim.enter(1, None, None) {
            Ok(_) => {}
            Err(error) => assert!(
                [Errno::INTR, Errno::AGAIN, Errno::BUSY]
                    .map(|errno| Some(errno.raw_os_error()))
                    .contains(&error.raw_os_error()),
                "{error}"
            ),
        }
        for (user_data, res) in ring.reap() {
            if known.contains(&user_data) {
                let index = entries.iter().position(|entry| entry.0 == user_data).unwrap();
                results[index].get_or_insert(res);
            }
        }
        if let Some(results) = results.iter().copied().collect() {
            return results;
        }
    }
    panic!("the entries do not complete");
}
