//! Queues of every size.

use std::time::Duration;

use sakia_ring::{Ring, Sqe};

use crate::support::{complete, enter, push, push_nops, reap_all, user_data};

#[test]
fn one_and_two_entries_are_enough() {
    for entries in [1, 2] {
        let mut ring = Ring::builder().sq_entries(entries).cq_entries(entries).build().unwrap();
        assert_eq!(ring.sq_entries(), entries);
        assert!(ring.cq_entries() >= entries);
        for round in 0..100 {
            let expected: Vec<u64> = (0..u64::from(entries)).map(|i| round * 10 + i).collect();
            push_nops(&mut ring, expected.iter().copied());
            assert_eq!(ring.sq_space(), 0);
            assert_eq!(push(&mut ring, Sqe::nop()), None);
            assert_eq!(user_data(&complete(&mut ring, entries as usize)), expected);
        }
    }
}

#[test]
fn a_full_submission_queue_says_so_and_goes_on_after_a_submit() {
    let mut ring = Ring::builder().sq_entries(8).build().unwrap();
    push_nops(&mut ring, 0..8);
    assert_eq!(push(&mut ring, Sqe::nop().user_data(99)), None);
    assert_eq!((ring.sq_pending(), ring.sq_space()), (8, 0));
    assert_eq!(ring.submit().unwrap(), 8);
    assert_eq!((ring.sq_pending(), ring.sq_space()), (0, 8));
    push_nops(&mut ring, [8]);
    let completions = complete(&mut ring, 9);
    assert_eq!(user_data(&completions), (0..9).collect::<Vec<_>>());
}

#[test]
fn huge_wishes_are_clamped() {
    let mut ring = Ring::builder().sq_entries(u32::MAX).cq_entries(u32::MAX).build().unwrap();
    let report = ring.report();
    assert!(report.sq_entries <= 32_768 && report.cq_entries <= 65_536);
    if report.steps.is_empty() {
        assert_eq!((report.sq_entries, report.cq_entries), (32_768, 65_536));
    }
    assert_eq!(ring.sq_entries(), ring.report().sq_entries);
    let count = u64::from(ring.sq_entries());
    push_nops(&mut ring, 0..count);
    let completions = complete(&mut ring, count as usize);
    assert_eq!(user_data(&completions), (0..count).collect::<Vec<_>>());
}

#[test]
fn no_entries_are_one_entry() {
    let ring = Ring::builder().sq_entries(0).cq_entries(0).build().unwrap();
    assert_eq!(ring.sq_entries(), 1);
}

#[test]
fn a_completion_queue_is_never_smaller_than_the_submission_queue() {
    let ring = Ring::builder().sq_entries(64).cq_entries(1).build().unwrap();
    assert!(ring.cq_entries() >= 64);
}

#[test]
fn an_entry_not_yet_submitted_can_be_made_a_no_op() {
    let mut ring = Ring::builder().sq_entries(4).build().unwrap();
    for _ in 0..3 {
        // This entry would fail.
        let bad = Sqe::poll_add(-1, 1).user_data(5);
        let first = push(&mut ring, bad).unwrap();
        let second = push(&mut ring, bad.user_data(6)).unwrap();
        assert!(!ring.make_nop(first, 6), "another entry's user_data");
        assert!(ring.make_nop(first, 5));
        let completions = complete(&mut ring, 2);
        assert_eq!((completions[0].user_data, completions[0].res), (5, 0));
        assert_eq!(completions[1].res, -libc::EBADF);
        assert!(!ring.make_nop(second, 6), "too late");
        // Another entry with the same `user_data` uses the place now.
        push_nops(&mut ring, [6, 6, 6]);
        assert!(!ring.make_nop(second, 6), "too late, even so");
        complete(&mut ring, 3);
    }
}

#[test]
fn reaping_into_less_room_leaves_the_rest() {
    let mut ring = Ring::builder().sq_entries(8).build().unwrap();
    push_nops(&mut ring, 0..8);
    enter(&mut ring, 8, Some(Duration::ZERO));
    assert_eq!(ring.reap(&mut []), 0);
    assert_eq!(ring.cq_ready(), 8);
    let mut three = [Default::default(); 3];
    assert_eq!(ring.reap(&mut three), 3);
    assert_eq!(user_data(&three), [0, 1, 2]);
    assert_eq!(user_data(&reap_all(&mut ring)), [3, 4, 5, 6, 7]);
    assert_eq!(ring.reap(&mut three), 0);
}
