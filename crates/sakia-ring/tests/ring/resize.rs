//! Resizing the queues of a ring with work in flight.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Builder, Host, Ring, Sqe};

use crate::hosts::Rigged;
use crate::support::{
    Random, assert_works, complete, enter, errno_of, push, push_nops, reap_all, skip, user_data,
};

fn ring(sq_entries: u32, cq_entries: u32) -> Ring {
    Ring::builder().sq_entries(sq_entries).cq_entries(cq_entries).build().unwrap()
}

/// Returns whether the kernel can resize (6.13).
fn can_resize() -> bool {
    match ring(4, 8).resize(4, 16) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(errno_of(&error), Some(Errno::INVAL), "{error}");
            false
        }
    }
}

macro_rules! require_resize {
    () => {
        if !can_resize() {
            skip!("queues cannot be resized (kernel 6.13)");
        }
    };
}

fn assert_sizes<H: Host>(ring: &Ring<H>, sq_entries: u32, cq_entries: u32) {
    assert_eq!((ring.sq_entries(), ring.cq_entries()), (sq_entries, cq_entries));
    let report = ring.report();
    assert_eq!((report.sq_entries, report.cq_entries), (sq_entries, cq_entries));
    assert_eq!(ring.sq_space(), sq_entries);
}

#[test]
fn the_completion_queue_grows_with_operations_in_flight_and_completions_waiting() {
    require_resize!();
    let mut ring = ring(8, 16);
    // Make both queues wrap.
    for _ in 0..13 {
        push_nops(&mut ring, 0..3);
        complete(&mut ring, 3);
    }
    let (read, write) = rustix::pipe::pipe().unwrap();
    for id in 100..105 {
        push(&mut ring, Sqe::poll_add(read.as_raw_fd(), 1).user_data(id)).unwrap();
    }
    ring.submit().unwrap();
    for half in [0..8, 8..16] {
        push_nops(&mut ring, half);
        ring.enter(0, None).unwrap();
    }
    assert_eq!(ring.cq_ready(), 16);

    ring.resize(8, 64).unwrap();
    assert_sizes(&ring, 8, 64);
    assert_eq!(ring.cq_ready(), 16);
    for id in (16..64).step_by(8) {
        push_nops(&mut ring, id..id + 8);
        ring.submit().unwrap();
    }
    assert_eq!(ring.cq_ready(), 64);
    assert!(!ring.is_overflowing());
    assert_eq!(user_data(&reap_all(&mut ring)), (0..64).collect::<Vec<_>>());
    rustix::io::write(&write, b"x").unwrap();
    let mut polls = user_data(&complete(&mut ring, 5));
    polls.sort_unstable();
    assert_eq!(polls, [100, 101, 102, 103, 104]);
    assert_works(&mut ring);
}

/// The kernel does not report the new position of the array, so such a ring refuses to resize.
#[test]
fn a_ring_with_the_array_keeps_its_sizes() {
    let builder = Ring::builder().sq_entries(8).cq_entries(16);
    let mut ring = builder.sq_array(true).build().unwrap();
    let error = ring.resize(8, 64).unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::OPNOTSUPP));
    assert_sizes(&ring, 8, 16);
    assert_works(&mut ring);
}

#[test]
fn an_overflowing_queue_grows_and_loses_nothing() {
    require_resize!();
    let mut ring = ring(8, 8);
    for id in (0..40).step_by(8) {
        push_nops(&mut ring, id..id + 8);
        ring.submit().unwrap();
    }
    assert!(ring.is_overflowing());
    ring.resize(8, 64).unwrap();
    assert!(ring.is_overflowing(), "the overflow flag is kept");
    enter(&mut ring, 40, Some(Duration::ZERO));
    assert_eq!(ring.cq_ready(), 40);
    assert!(!ring.is_overflowing());
    assert_eq!(user_data(&reap_all(&mut ring)), (0..40).collect::<Vec<_>>());
    assert_eq!(ring.cq_lost(), 0);
}

#[test]
fn work_that_became_ready_before_is_finished_after() {
    require_resize!();
    let mut ring = ring(8, 8);
    let (read, write) = rustix::pipe::pipe().unwrap();
    for id in 0..8 {
        push(&mut ring, Sqe::poll_add(read.as_raw_fd(), 1).user_data(id)).unwrap();
    }
    ring.submit().unwrap();
    rustix::io::write(&write, b"x").unwrap();
    assert!(ring.needs_enter());
    ring.resize(8, 16).unwrap();
    assert!(ring.needs_enter());
    assert_eq!(complete(&mut ring, 8).len(), 8);
}

#[test]
fn pending_entries_refuse_it() {
    require_resize!();
    let mut ring = ring(8, 16);
    push_nops(&mut ring, [1]);
    let error = ring.resize(8, 64).unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::BUSY));
    assert_eq!(ring.cq_entries(), 16);
    assert_eq!(user_data(&complete(&mut ring, 1)), [1]);
    ring.resize(8, 64).unwrap();
}

#[test]
fn a_queue_too_small_for_what_waits_changes_nothing() {
    require_resize!();
    let mut ring = ring(8, 32);
    for id in (0..32).step_by(8) {
        push_nops(&mut ring, id..id + 8);
        ring.submit().unwrap();
    }
    let error = ring.resize(8, 16).unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::OVERFLOW));
    assert_sizes(&ring, 8, 32);
    assert_eq!(user_data(&reap_all(&mut ring)), (0..32).collect::<Vec<_>>());
    assert_works(&mut ring);
    ring.resize(8, 16).unwrap();
    assert_sizes(&ring, 8, 16);
    assert_works(&mut ring);
}

#[test]
fn the_same_sizes_are_no_change() {
    let mut ring = ring(8, 32);
    ring.resize(7, 31).unwrap(); // rounded up
    assert_sizes(&ring, 8, 32);
    assert_works(&mut ring);
}

#[test]
fn a_kernel_that_refuses_leaves_the_ring_as_it_was() {
    const RESIZE: u32 = 33;
    let host = Rigged::new().refuse_register(|op| (op == RESIZE).then_some(Errno::INVAL));
    let mut ring = Builder::with_host(host.clone()).build().unwrap();
    push_nops(&mut ring, [1]);
    ring.submit().unwrap();
    let error = ring.resize(16, 8192).unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::INVAL));
    assert_sizes(&ring, 256, 4096);
    assert_eq!(user_data(&complete(&mut ring, 1)), [1]);
    drop(ring);
    assert_eq!(host.0.live_maps.get(), 0);
}

/// The kernel has released the old queues, and the new ones cannot be mapped: the ring is lost, and its calls
/// return an error that tells why.
#[test]
fn new_queues_that_cannot_be_mapped_end_the_ring_in_order() {
    require_resize!();
    for failing_map in [2, 3] {
        let host =
            Rigged::new().refuse_map(move |map| (map == failing_map).then_some(Errno::NOMEM));
        let mut ring = Builder::with_host(host.clone()).build().unwrap();
        let error = ring.resize(16, 8192).unwrap_err();
        assert_eq!(errno_of(&error), Some(Errno::NOMEM));
        assert_eq!(push(&mut ring, Sqe::nop()), None);
        assert_eq!(ring.cq_ready(), 0);
        let error = ring.enter(0, None).unwrap_err().to_string();
        assert!(error.contains("could not be mapped"), "{error}");
        assert!(ring.resize(16, 4096).is_err());
        assert!(ring.is_owned_by_process());
        drop(ring);
        assert_eq!(host.0.live_maps.get(), 0, "a map was left behind");
    }
    // Its place among the thread's 16 registered rings is free again.
    let rings: Vec<Ring> = (0..16).map(|_| ring(1, 1)).collect();
    assert!(rings.iter().all(|ring| ring.report().registered_fd), "a place was left taken");
}

#[test]
fn old_maps_are_ended() {
    require_resize!();
    let host = Rigged::new();
    let mut ring = Builder::with_host(host.clone()).build().unwrap();
    for size in [8192, 4096, 65_536, 256] {
        ring.resize(256, size).unwrap();
        assert_eq!(host.0.live_maps.get(), 2);
        assert_works(&mut ring);
    }
    drop(ring);
    assert_eq!(host.0.live_maps.get(), 0);
}

/// Any sequence of pushes, submits, reaps and resizes keeps the number and the order of completions.
#[test]
fn random_resizes_keep_count_and_order() {
    require_resize!();
    let resizes = Rc::new(Cell::new(0));
    for seed in 1..=20 {
        let mut random = Random::new(seed);
        let mut ring = ring(4, 8);
        let (mut pushed, mut reaped) = (0u64, 0u64);
        for _ in 0..500 {
            match random.below(5) {
                0 | 1 => {
                    let count = random.below(u64::from(ring.sq_space()) + 1);
                    push_nops(&mut ring, pushed..pushed + count);
                    pushed += count;
                }
                2 => drop(ring.enter(0, None).unwrap()),
                3 => {
                    let mut out = vec![Default::default(); random.below(20) as usize];
                    let count = ring.reap(&mut out);
                    for cqe in &out[..count] {
                        assert_eq!(cqe.user_data, reaped, "seed {seed}");
                        reaped += 1;
                    }
                }
                _ => {
                    let sq_entries = 1 << random.below(6);
                    let cq_entries = sq_entries << random.below(4);
                    let before = (ring.sq_entries(), ring.cq_entries());
                    match ring.resize(sq_entries, cq_entries) {
                        Ok(()) => resizes.set(resizes.get() + 1),
                        Err(error) => {
                            let errno = errno_of(&error);
                            let known = [Some(Errno::BUSY), Some(Errno::OVERFLOW)];
                            assert!(known.contains(&errno), "seed {seed}: {error}");
                            assert_eq!((ring.sq_entries(), ring.cq_entries()), before);
                        }
                    }
                }
            }
        }
        let rest = complete(&mut ring, (pushed - reaped) as usize);
        assert_eq!(user_data(&rest), (reaped..pushed).collect::<Vec<_>>());
        assert_eq!((ring.cq_lost(), ring.sq_dropped()), (0, 0));
    }
    assert!(resizes.get() > 200, "the test has lost its subject");
}
