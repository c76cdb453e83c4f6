//! The moments at which operations complete: routes, rounds, order, overflow, the clock.

use std::io;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_ring::{Cqe, Sqe, sqe_flags};

use super::super::{Fault, Routes, Sim, Target};
use super::{Lendable, Loop, err, read};
use crate::backend::Backend;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn inline_operations_complete_in_the_submit() {
    let mut ring = Loop::inline();
    ring.push(1, Sqe::nop());
    assert_eq!(ring.sim.sq_pending(), 1);
    assert_eq!(ring.sim.cq_ready(), 0);
    ring.sim.submit().unwrap();
    assert_eq!(ring.sim.sq_pending(), 0);
    assert_eq!(ring.sim.cq_ready(), 1);
    assert_eq!(ring.reap(), [(1, 0)]);
}

#[test]
fn deferred_operations_need_an_enter() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    ring.push(1, Sqe::nop());
    for _ in 0..3 {
        assert_eq!(ring.submit(), []);
        assert!(ring.sim.needs_enter());
    }
    let entered = ring.sim.enter(0, None, None).unwrap();
    assert_eq!((entered.consumed, entered.timed_out), (0, false));
    assert_eq!(ring.reap(), [(1, 0)]);
    assert!(!ring.sim.needs_enter());
}

#[test]
fn workers_take_their_time_and_then_need_an_enter() {
    let mut ring = Loop::routed(Routes::WORKER);
    ring.push(1, Sqe::nop());
    assert_eq!(ring.submit(), []);
    ring.handle.advance(SECOND);
    assert_eq!(ring.submit(), []);
    assert!(ring.sim.needs_enter());
    assert_eq!(ring.turn(), [(1, 0)]);
}

#[test]
fn an_entry_that_asks_for_a_worker_gets_one() {
    let mut ring = Loop::inline();
    let (read_end, write_end) = ring.handle.pipe();
    let buffer = Lendable::zeroed(1);
    ring.push(1, Sqe::nop().flags(sqe_flags::ASYNC));
    ring.push(2, read(read_end, &buffer, 0).flags(sqe_flags::ASYNC));
    assert_eq!(ring.submit(), []);
    assert_eq!(ring.enter(1), [(1, 0)]);
    ring.sim.nap(SECOND);
    assert_eq!(ring.turn(), [], "nothing to read yet");
    ring.handle.write_pipe(write_end, b"a").unwrap();
    assert_eq!(ring.turn(), [(2, 1)]);
}

/// Returns a loop with 100 no-ops that are ready.
fn hundred_ready() -> Loop {
    let builder = Sim::builder(1).routes(Routes::DEFERRED).entries(100, 200);
    let mut ring = Loop::new(builder);
    for user_data in 0..100 {
        ring.push(user_data, Sqe::nop());
    }
    assert_eq!(ring.submit(), []);
    ring
}

#[test]
fn an_enter_finishes_20_or_as_many_as_it_waits_for() {
    let mut ring = hundred_ready();
    for (min_complete, count) in [(0, 20), (1, 20), (20, 20), (25, 25)] {
        ring.sim.enter(min_complete, None, None).unwrap();
        assert_eq!(ring.reap().len(), count);
        assert!(ring.sim.needs_enter());
    }
    let entered = ring.sim.enter(256, Some(Duration::ZERO), None).unwrap();
    assert!(entered.timed_out);
    assert_eq!(ring.reap().len(), 15);
    assert!(!ring.sim.needs_enter());
}

#[test]
fn ready_operations_finish_in_an_order_that_the_seed_decides() {
    let order = |seed, reorders| {
        let builder = Sim::builder(seed).entries(8, 8).reorders(reorders);
        let mut ring = Loop::new(builder.routes(Routes::DEFERRED));
        for user_data in 0..8 {
            ring.push(user_data, Sqe::nop());
        }
        let order = ring.enter(8);
        assert_eq!(order.len(), 8);
        order
    };
    let orders: Vec<_> = (0..10).map(|seed| order(seed, true)).collect();
    assert!(orders.iter().any(|order| *order != orders[0]));
    assert!(orders.iter().any(|order| !order.is_sorted()));
    assert!((0..10).all(|seed| order(seed, false).is_sorted()));
    assert_eq!(order(3, true), orders[3]);
}

#[test]
fn a_mix_takes_every_route() {
    let mut ring = Loop::new(Sim::builder(1).entries(64, 64));
    for user_data in 0..64 {
        ring.push(user_data, Sqe::nop());
    }
    let inline = ring.submit().len();
    let mut deferred = 0;
    while ring.sim.needs_enter() {
        ring.sim.enter(0, None, None).unwrap();
        deferred += ring.reap().len();
    }
    let rest = 64 - inline - deferred;
    let worker = ring.enter(rest as u32).len();
    assert_eq!(worker, rest);
    assert!(inline > 5 && deferred > 5 && worker > 5);
}

#[test]
fn an_overflow_is_kept_in_order_and_moved_by_an_enter() {
    let mut ring = Loop::new(Sim::builder(1).routes(Routes::INLINE).entries(8, 8));
    for user_data in 0..8 {
        ring.push(user_data, Sqe::nop());
    }
    ring.sim.submit().unwrap();
    for user_data in 8..12 {
        ring.push(user_data, Sqe::nop());
    }
    ring.sim.submit().unwrap();
    assert!(ring.sim.is_overflowing() && ring.sim.needs_enter());
    let mut two = [Cqe::default(); 2];
    assert_eq!(ring.sim.reap(&mut two), 2);
    assert_eq!(ring.sim.cq_ready(), 6);
    ring.sim.enter(8, Some(Duration::ZERO), None).unwrap();
    assert_eq!(ring.sim.cq_ready(), 8);
    assert!(ring.sim.is_overflowing());
    let mut seen = ring.reap();
    seen.extend(ring.turn());
    let expected: Vec<_> = (2..12).map(|user_data| (user_data, 0)).collect();
    assert_eq!(seen, expected);
    assert!(!ring.sim.is_overflowing() && !ring.sim.needs_enter());
}

#[test]
fn older_kernels_refuse_entries_while_they_overflow() {
    let builder = Sim::builder(1).routes(Routes::INLINE).entries(1, 1);
    let mut ring = Loop::new(builder.busy_on_overflow(true));
    for user_data in 0..2 {
        ring.push(user_data, Sqe::nop());
        ring.sim.submit().unwrap();
    }
    ring.push(2, Sqe::nop());
    for result in [ring.sim.submit(), ring.sim.enter(1, None, None).map(|_| ())] {
        let errno = result.unwrap_err().raw_os_error();
        assert_eq!(errno, Some(Errno::BUSY.raw_os_error()));
    }
    assert_eq!(ring.sim.sq_pending(), 1);
    let seen = [ring.reap(), ring.enter(1), ring.enter(1)].concat();
    assert_eq!(seen, [(0, 0), (1, 0), (2, 0)]);
}

#[test]
fn a_full_submission_queue_takes_nothing() {
    let mut sim = Sim::builder(1).entries(2, 4).build();
    let features = sim.features();
    assert_eq!((features.sq_entries, features.cq_entries), (2, 4));
    // SAFETY: a no-op names no memory.
    let pushed = [(); 3].map(|()| unsafe { sim.push(Sqe::nop()) }.is_some());
    assert_eq!(pushed, [true, true, false]);
}

#[test]
fn the_clock_passes_with_waits_naps_and_calls_only() {
    let cost = Duration::from_micros(3);
    let builder = Sim::builder(1).routes(Routes::INLINE).enter_cost(cost);
    let mut ring = Loop::new(builder);
    assert_eq!(ring.sim.now(), Duration::ZERO);
    ring.sim.submit().unwrap();
    assert_eq!(ring.sim.now(), cost);
    ring.sim.enter(0, Some(SECOND), None).unwrap();
    assert_eq!(ring.sim.now(), 2 * cost, "nothing to wait for");
    ring.sim.nap(SECOND);
    ring.handle.advance(SECOND);
    assert_eq!(ring.handle.now(), 2 * cost + 2 * SECOND);
    let entered = ring.sim.enter(1, Some(SECOND), None).unwrap();
    assert!(entered.timed_out);
    assert_eq!(ring.sim.now(), 3 * cost + 3 * SECOND);
}

#[test]
fn a_wait_ends_at_the_next_event_or_at_its_timeout() {
    let builder = Sim::builder(1).routes(Routes::INLINE);
    let mut ring = Loop::new(builder.enter_cost(Duration::ZERO));
    ring.handle.script(Target::any(), Fault::Delay(5 * SECOND));
    ring.handle.script(Target::any(), Fault::Delay(3 * SECOND));
    ring.push(1, Sqe::nop());
    ring.push(2, Sqe::nop());
    let entered = ring.sim.enter(1, Some(2 * SECOND), None).unwrap();
    assert_eq!((entered.consumed, entered.timed_out), (2, true));
    assert_eq!(ring.sim.now(), 2 * SECOND);
    let entered = ring.sim.enter(1, Some(2 * SECOND), None).unwrap();
    assert!(!entered.timed_out);
    assert_eq!((ring.sim.now(), ring.reap()), (3 * SECOND, vec![(2, 0)]));
    assert_eq!(ring.enter(1), [(1, 0)]);
    assert_eq!(ring.sim.now(), 5 * SECOND);
    let endless = ring.sim.enter(1, Some(Duration::MAX), None).unwrap_err();
    assert_eq!(endless.kind(), io::ErrorKind::Deadlock);
}

#[test]
fn waiting_for_what_can_never_happen_is_an_error_that_lists_what_is_under_way() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "abc");
    let fd = ring.open(c"f", OFlags::RDONLY);
    let (read_end, write_end) = ring.handle.pipe();
    let buffers = [Lendable::zeroed(1), Lendable::zeroed(1)];
    ring.handle.script(Target::user_data(2), Fault::Stuck);
    ring.push(1, read(read_end, &buffers[0], 0));
    ring.push(2, read(fd, &buffers[1], 0));
    let error = ring.sim.enter(1, None, None).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Deadlock);
    let message = error.to_string();
    for part in ["READ 0x1 Armed", "READ 0x2 Stuck"] {
        assert!(message.contains(part), "{message}");
    }
    // The ring still works.
    ring.handle.write_pipe(write_end, b"a").unwrap();
    assert_eq!(ring.enter(1), [(1, 1)]);
}

#[test]
fn a_wait_for_more_than_the_queue_holds_ends_when_it_is_full() {
    let mut ring = Loop::new(Sim::builder(1).routes(Routes::DEFERRED).entries(2, 2));
    for user_data in 0..4 {
        ring.push(user_data, Sqe::nop());
        ring.sim.submit().unwrap();
    }
    assert_eq!(ring.enter(100).len(), 2);
    assert_eq!(ring.enter(2).len(), 2);
}

#[test]
fn effects_happen_when_the_operation_does() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    let path = Lendable::new(b"f\0");
    let flags = (OFlags::WRONLY | OFlags::CREATE).bits();
    ring.push(1, Sqe::openat(sakia_ring::AT_FDCWD, path.ptr(), flags, 0));
    assert_eq!(ring.submit(), []);
    assert_eq!(ring.handle.contents("f"), None);
    assert_eq!(ring.handle.open_descriptors(), 0);
    assert_eq!(ring.enter(1), [(1, 3)]);
    let bytes = Lendable::new(b"abc");
    ring.push(2, super::write(3, &bytes, 0));
    ring.push(3, Sqe::close(9));
    assert_eq!(ring.submit(), []);
    assert_eq!(ring.handle.contents("f").unwrap(), b"");
    assert_eq!(ring.turn(), [(2, 3), (3, err(Errno::BADF))]);
    assert_eq!(ring.handle.contents("f").unwrap(), b"abc");
}
