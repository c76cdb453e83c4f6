//! Contexts of a scheduler: reused, with new ones added when all are full.

use sakia_bench_support::aio::{Buf, Growth, Request, Scheduler};

use crate::{POLLIN, TempFile, aio, event, pattern, raise};

/// A smaller size is requested only after a refusal, down to the minimum; after a grant the next is larger.
#[test]
fn refusal_asks_for_less_and_grant_for_more() {
    let mut growth = Growth::new(Growth::FIRST);
    growth.granted();
    assert_eq!(growth.next(), 2 * Growth::FIRST);
    assert!(growth.refused());
    assert_eq!(growth.next(), 2 * Growth::FIRST / 10 * 9);
}

#[test]
fn one_context_serves_all_that_come_one_after_the_other() {
    let file = TempFile::new(&pattern(100));
    let fd = file.open();
    let scheduler = aio!(Scheduler::builder().room(1).start());
    let mut buf = Buf::zeroed(10);
    for offset in 0..90 {
        let (result, back) = scheduler.read_at(&fd, buf, offset);
        assert_eq!(result.unwrap(), 10);
        assert_eq!(back[..], pattern(100)[offset as usize..][..10]);
        buf = back;
    }
    let statistics = scheduler.statistics();
    assert_eq!((statistics.contexts, statistics.submitted, statistics.live), (1, 90, 0));
}

#[test]
fn full_contexts_are_joined_by_larger_ones() {
    let events: Vec<_> = (0..7).map(|_| event()).collect();
    let scheduler = aio!(Scheduler::builder().room(1).start());
    let tickets: Vec<_> =
        events.iter().map(|event| scheduler.submit(Request::poll(event, POLLIN))).collect();
    for (event, ticket) in events.iter().zip(tickets).rev() {
        raise(event);
        assert_eq!(ticket.wait().0.unwrap(), POLLIN.into());
    }
    // 1 + 2 + 4 = 7.
    assert_eq!(scheduler.statistics().contexts, 3);
    assert_eq!(scheduler.statistics().refusals, 0);
}
