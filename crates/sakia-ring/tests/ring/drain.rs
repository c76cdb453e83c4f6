//! Deferred work: the operations that one enter finishes, and the ring's signal for more.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use sakia_ring::{Builder, Ring, Sqe};

use crate::hosts::Rigged;
use crate::support::{complete, push, reap_all, skip, user_data};

const COUNT: u32 = 100;
/// The number of operations that the kernel finishes in an enter with a smaller `min_complete`.
const CAP: u32 = 20;

/// Returns a ring with 100 polls that have become ready and are not finished.
fn with_ready_work() -> (Rigged, Ring<Rigged>, (OwnedFd, OwnedFd)) {
    let host = Rigged::new();
    let mut ring = Builder::with_host(host.clone()).sq_entries(128).build().unwrap();
    let pipe = rustix::pipe::pipe().unwrap();
    for id in 0..u64::from(COUNT) {
        let sqe = Sqe::poll_add(pipe.0.as_raw_fd(), libc::POLLIN as u32);
        push(&mut ring, sqe.user_data(id)).unwrap();
    }
    assert_eq!(ring.submit().unwrap(), COUNT);
    assert!(!ring.needs_enter());
    rustix::io::write(&pipe.1, b"x").unwrap();
    assert_eq!(ring.cq_ready(), 0, "nothing completes before an enter");
    assert!(ring.needs_enter());
    host.0.enters.set(0);
    (host, ring, pipe)
}

fn assert_all_there(mut ids: Vec<u64>) {
    ids.sort_unstable();
    assert_eq!(ids, (0..u64::from(COUNT)).collect::<Vec<_>>());
}

#[test]
fn a_submit_finishes_nothing() {
    let (_host, mut ring, _pipe) = with_ready_work();
    ring.submit().unwrap();
    assert_eq!(ring.cq_ready(), 0);
    assert!(ring.needs_enter());
    complete(&mut ring, COUNT as usize);
}

#[test]
fn a_large_min_complete_with_no_time_drains_in_one_enter() {
    let (host, mut ring, _pipe) = with_ready_work();
    let entered = ring.enter(COUNT, Some(Duration::ZERO)).unwrap();
    assert!(!entered.timed_out);
    assert_eq!((host.0.enters.get(), ring.cq_ready()), (1, COUNT));
    assert!(!ring.needs_enter());
    assert_all_there(user_data(&reap_all(&mut ring)));
}

/// A `min_complete` above the number of ready operations does not make the enter block.
#[test]
fn a_larger_min_complete_than_there_is_does_not_block() {
    let (host, mut ring, _pipe) = with_ready_work();
    ring.enter(COUNT + 50, Some(Duration::ZERO)).unwrap();
    assert_eq!((host.0.enters.get(), ring.cq_ready()), (1, COUNT));
    reap_all(&mut ring);
}

#[test]
fn a_small_min_complete_drains_twenty_at_a_time() {
    let (host, mut ring, _pipe) = with_ready_work();
    let mut ids = Vec::new();
    for enter in 1..=COUNT / CAP {
        ring.enter(1, Some(Duration::ZERO)).unwrap();
        if enter == 1 && ring.cq_ready() == COUNT {
            skip!("this kernel finishes any number per enter (before 6.13)");
        }
        assert_eq!((host.0.enters.get(), ring.cq_ready()), (enter, CAP));
        assert_eq!(ring.needs_enter(), enter < COUNT / CAP);
        ids.extend(user_data(&reap_all(&mut ring)));
    }
    assert_all_there(ids);
}
