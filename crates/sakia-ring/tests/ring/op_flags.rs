//! Flags of entries, injected results, and restricted rings.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Opcode, Restriction, Ring, Sqe, sqe_flags};

use crate::support::{complete, enter, errno_of, push, push_nops, reap_all, skip};

fn ring() -> Ring {
    Ring::builder().sq_entries(16).build().unwrap()
}

fn results(ring: &mut Ring, count: usize) -> Vec<(u64, i32)> {
    let mut results: Vec<_> =
        complete(ring, count).iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
    results.sort_unstable();
    results
}

/// Returns whether a no-op can complete with a chosen result.
fn can_inject(ring: &mut Ring) -> bool {
    push(ring, Sqe::nop_with_result(7)).unwrap();
    complete(ring, 1)[0].res == 7
}

#[test]
fn a_no_op_completes_with_an_injected_result() {
    let mut ring = ring();
    if !can_inject(&mut ring) {
        skip!("no injection of results (kernel 6.10)");
    }
    for result in [0, 1, i32::MAX, -libc::EIO, -libc::ECANCELED] {
        push(&mut ring, Sqe::nop_with_result(result).user_data(3)).unwrap();
        let completion = complete(&mut ring, 1)[0];
        assert_eq!((completion.user_data, completion.res), (3, result));
        match completion.result() {
            Ok(count) => assert_eq!(count as i32, result),
            Err(error) => assert_eq!(error.raw_os_error(), Some(-result)),
        }
    }
}

#[test]
fn a_failure_ends_a_chain_and_not_a_hard_one() {
    let mut ring = ring();
    if !can_inject(&mut ring) {
        skip!("no injection of results (kernel 6.10)");
    }
    let chain = |ring: &mut Ring, flag| {
        let fails = Sqe::nop_with_result(-libc::EIO);
        push(ring, Sqe::nop().user_data(1).flags(flag)).unwrap();
        push(ring, fails.user_data(2).flags(flag)).unwrap();
        push(ring, Sqe::nop().user_data(3).flags(flag)).unwrap();
        push(ring, Sqe::nop().user_data(4)).unwrap();
        push(ring, Sqe::nop().user_data(5)).unwrap(); // not part of the chain
        results(ring, 5)
    };
    let canceled = -libc::ECANCELED;
    assert_eq!(
        chain(&mut ring, sqe_flags::LINK),
        [(1, 0), (2, -libc::EIO), (3, canceled), (4, canceled), (5, 0)]
    );
    assert_eq!(
        chain(&mut ring, sqe_flags::HARDLINK),
        [(1, 0), (2, -libc::EIO), (3, 0), (4, 0), (5, 0)]
    );
}

#[test]
fn async_entries_complete() {
    let mut ring = ring();
    for id in 0..8 {
        push(&mut ring, Sqe::nop().user_data(id).flags(sqe_flags::ASYNC)).unwrap();
    }
    let expected: Vec<_> = (0..8).map(|id| (id, 0)).collect();
    assert_eq!(results(&mut ring, 8), expected);
}

#[test]
fn drained_entries_come_after_all_before_them() {
    let mut ring = ring();
    for id in 0..4 {
        push(&mut ring, Sqe::nop().user_data(id).flags(sqe_flags::ASYNC)).unwrap();
    }
    push(&mut ring, Sqe::nop().user_data(4).flags(sqe_flags::DRAIN)).unwrap();
    let completions = complete(&mut ring, 5);
    assert_eq!(completions[4].user_data, 4);
}

#[test]
fn success_can_be_silent() {
    let mut ring = ring();
    let silent = sqe_flags::CQE_SKIP_SUCCESS;
    push(&mut ring, Sqe::nop().user_data(1).flags(silent)).unwrap();
    push(&mut ring, Sqe::poll_add(-1, 1).user_data(2).flags(silent)).unwrap();
    push_nops(&mut ring, [3]);
    assert_eq!(results(&mut ring, 2), [(2, -libc::EBADF), (3, 0)]);
    enter(&mut ring, 1, Some(Duration::ZERO));
    assert!(reap_all(&mut ring).is_empty());
}

/// One malformed entry does not stop the rest of a submit.
#[test]
fn every_entry_is_submitted_past_a_bad_one() {
    let mut ring = ring();
    push_nops(&mut ring, [1]);
    let mut bad = Sqe::nop().user_data(2);
    bad.op_flags = u32::MAX;
    push(&mut ring, bad).unwrap();
    push_nops(&mut ring, [3]);
    assert_eq!(ring.submit().unwrap(), 3);
    let results = results(&mut ring, 3);
    assert_eq!((results[0], results[2]), ((1, 0), (3, 0)));
    assert_eq!(ring.sq_dropped(), 0);
}

const REGISTER_PROBE: u8 = 8;

#[test]
fn a_restricted_ring_does_what_it_was_allowed_and_no_more() {
    let mut ring = Ring::builder()
        .restrict([Restriction::Opcode(Opcode::NOP), Restriction::Register(REGISTER_PROBE)])
        .restrict([Restriction::FlagsAllowed(sqe_flags::ASYNC)])
        .build()
        .unwrap();
    let (read, _write) = rustix::pipe::pipe().unwrap();
    push(&mut ring, Sqe::nop().user_data(1)).unwrap();
    push(&mut ring, Sqe::nop().user_data(2).flags(sqe_flags::ASYNC)).unwrap();
    let poll = Sqe::poll_add(read.as_raw_fd(), 1);
    push(&mut ring, poll.user_data(3)).unwrap();
    push(&mut ring, Sqe::nop().user_data(4).flags(sqe_flags::DRAIN)).unwrap();
    let denied = -libc::EACCES;
    assert_eq!(results(&mut ring, 4), [(1, 0), (2, 0), (3, denied), (4, denied)]);

    assert!(ring.probe().is_ok());
    let error = ring.register_files(&[read.as_fd()]).unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::ACCESS));
    let report = ring.report();
    assert!(!report.registered_fd);
    assert_eq!(report.steps.len(), 1, "{:?}", report.steps);
    assert_eq!(report.steps[0].errno, libc::EACCES);
}
