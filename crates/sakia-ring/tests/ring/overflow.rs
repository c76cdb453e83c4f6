//! A completion queue that is too small loses no completion.

use std::time::Duration;

use sakia_ring::{Ring, Sqe};

use crate::support::{Random, complete, enter, push, push_nops, reap_all, user_data};

#[test]
fn forty_completions_pass_through_eight_places_in_order() {
    let mut ring = Ring::builder().sq_entries(8).cq_entries(8).build().unwrap();
    assert_eq!(ring.cq_entries(), 8);
    assert!(!ring.is_overflowing());
    for batch in 0..5 {
        push_nops(&mut ring, batch * 8..batch * 8 + 8);
        assert_eq!(ring.submit().unwrap(), 8);
    }
    assert_eq!(ring.cq_ready(), 8);
    assert!(ring.is_overflowing() && ring.needs_enter());

    let mut seen = Vec::new();
    while seen.len() < 40 {
        seen.extend(user_data(&reap_all(&mut ring)));
        ring.enter(0, Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
    assert!(!ring.is_overflowing());
    assert_eq!((ring.cq_lost(), ring.cq_ready()), (0, 0));
}

#[test]
fn entering_without_room_is_no_error_and_loses_nothing() {
    let mut ring = Ring::builder().sq_entries(4).cq_entries(4).build().unwrap();
    for batch in 0..4 {
        push_nops(&mut ring, batch * 4..batch * 4 + 4);
        ring.submit().unwrap();
    }
    for _ in 0..3 {
        // Fewer completions are requested than are ready, so the enter does not block.
        enter(&mut ring, 4, Some(Duration::ZERO));
        assert!(ring.is_overflowing());
    }
    let completions = complete(&mut ring, 16);
    assert_eq!(user_data(&completions), (0..16).collect::<Vec<_>>());
}

/// Waiting operations overflow the queue when they all end at once.
#[test]
fn canceled_polls_overflow_without_loss() {
    let (read, _write) = rustix::pipe::pipe().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&read);
    let mut ring = Ring::builder().sq_entries(8).cq_entries(8).build().unwrap();
    for id in 0..100 {
        push(&mut ring, Sqe::poll_add(fd, 1).user_data(id)).unwrap();
        if ring.sq_space() == 0 {
            ring.submit().unwrap();
        }
    }
    push(&mut ring, Sqe::cancel_all().user_data(1000)).unwrap();
    let completions = complete(&mut ring, 101);
    let mut ids = user_data(&completions);
    ids.sort_unstable();
    ids.pop();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
    assert_eq!(ring.cq_lost(), 0);
}

#[test]
fn random_reaping_keeps_count_and_order() {
    let mut random = Random::new(3);
    let mut ring = Ring::builder().sq_entries(8).cq_entries(8).build().unwrap();
    let (mut pushed, mut reaped) = (0u64, 0u64);
    let mut overflows = 0;
    for _ in 0..2000 {
        let count = random.below(u64::from(ring.sq_space()) + 1);
        push_nops(&mut ring, pushed..pushed + count);
        pushed += count;
        match random.below(3) {
            0 => drop(ring.submit().unwrap()),
            1 => drop(ring.enter(0, Some(Duration::ZERO)).unwrap()),
            _ => {}
        }
        overflows += u32::from(ring.is_overflowing());
        let mut out = [Default::default(); 8];
        let room = random.below(9) as usize;
        let room = room.saturating_sub(random.below(6) as usize);
        let count = ring.reap(&mut out[..room]);
        for cqe in &out[..count] {
            assert_eq!(cqe.user_data, reaped);
            reaped += 1;
        }
    }
    complete(&mut ring, (pushed - reaped) as usize);
    assert_eq!(ring.cq_lost(), 0);
    assert!(overflows > 100, "the test has lost its subject: {overflows}");
}
