//! Waiting threads: each is woken, and none waits for ever.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use sakia_bench_support::aio::{Buf, CallKind, Request, Scheduler};
use sakia_bench_support::blocked::ThreadId;

use crate::{POLLIN, TempFile, aio, errno, event, pattern, raise};

/// Completions left after a batch are reaped too, without another request.
#[test]
fn completions_after_the_first_ones_are_not_lost() {
    let events: Vec<_> = (0..3).map(|_| event()).collect();
    let scheduler = aio!(Scheduler::builder().start());
    let tickets: Vec<_> =
        events.iter().map(|event| scheduler.submit(Request::poll(event, POLLIN))).collect();
    for (event, ticket) in events.iter().zip(tickets) {
        raise(event);
        assert_eq!(ticket.wait().0.unwrap(), POLLIN.into());
    }
}

#[test]
fn errors_reach_who_waits_for_them() {
    let file = TempFile::new(b"x");
    let read_only = Arc::new(std::fs::File::open(file.path()).unwrap().into());
    let scheduler = aio!(Scheduler::builder().start());
    let (result, buf) = scheduler.write_at(&read_only, Buf::from(&b"mine"[..]), 0);
    assert_eq!((errno(result), &buf[..]), (libc::EBADF, &b"mine"[..]));
    assert_eq!(scheduler.read_at(&read_only, buf, 0).0.unwrap(), 1);
}

/// A stop ends the thread in every state of the requests, and a second stop has no effect.
#[test]
fn stop_ends_the_thread_whatever_is_in_flight() {
    let file = TempFile::new(&pattern(10));
    let fd = file.open();
    for _ in 0..3 {
        let (never, scheduler) = (event(), aio!(Scheduler::builder().room(1).start()));
        // In flight, in the backlog, or still in the queue.
        let polls: Vec<_> =
            (0..5).map(|_| scheduler.submit(Request::poll(&never, POLLIN))).collect();
        let read = scheduler.submit(Request::read(&fd, Buf::zeroed(10), 0));
        scheduler.stop();
        scheduler.stop();
        for poll in polls {
            assert_eq!(errno(poll.wait().0), libc::ECANCELED);
        }
        let (result, memory) = read.wait();
        assert_eq!((result.unwrap(), &memory.unwrap()[..]), (10, &pattern(10)[..]));
        let (result, buf) = scheduler.read_at(&fd, Buf::from(&b"mine"[..]), 0);
        assert_eq!((errno(result), &buf[..]), (libc::ECANCELED, &b"mine"[..]));
        assert_eq!((Arc::strong_count(&fd), Arc::strong_count(&never)), (1, 1));
    }
}

/// The bytes of a read are visible to the waiting thread when it continues.
#[test]
fn bytes_are_there_when_the_answer_is() {
    let file = TempFile::new(&pattern(64 << 10));
    let fd = file.open();
    let scheduler = aio!(Scheduler::builder().start());
    thread::scope(|scope| {
        for first in 0..8usize {
            let (scheduler, fd) = (&scheduler, &fd);
            scope.spawn(move || {
                let mut buf = Buf::zeroed(1000);
                for round in 0..200 {
                    let offset = (first * 977 + round * 61) % (63 << 10);
                    buf.fill(255);
                    let (result, back) = scheduler.read_at(fd, buf, offset as u64);
                    assert_eq!(result.unwrap(), 1000);
                    let expected = (offset..offset + 1000).map(|index| (index % 251) as u8);
                    assert!(back.iter().copied().eq(expected), "{first} {round}");
                    buf = back;
                }
            });
        }
    });
    let statistics = scheduler.statistics();
    assert_eq!((statistics.submitted, statistics.live), (1600, 0));
    assert!(statistics.submits <= 1600 && statistics.batch_max >= 1, "{statistics:?}");
}

#[test]
fn who_waits_sleeps_and_so_does_the_thread() {
    let (never, scheduler) = (event(), aio!(Scheduler::builder().start()));
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let (scheduler, never) = (&scheduler, &never);
        let waiter = scope.spawn(move || {
            sender.send(ThreadId::current()).unwrap();
            scheduler.run(Request::poll(never, POLLIN)).0
        });
        let id = receiver.recv().unwrap();
        let is_asleep = || id.state().is_ok_and(|state| state == 'S');
        while scheduler.statistics().submitted == 0 || !is_asleep() {
            thread::sleep(Duration::from_millis(1));
        }
        // A thread that polled in a loop would sleep again and again, or never.
        let before = scheduler.statistics().sleeps;
        thread::sleep(Duration::from_millis(20));
        let after = scheduler.statistics().sleeps;
        raise(never);
        assert!(waiter.join().unwrap().is_ok());
        assert!(after <= before + 2, "{before} to {after}");
    });
}

/// Requests that queue up while the thread is busy become one submission. Here a read of an empty pipe
/// keeps the thread busy.
#[test]
fn requests_that_queued_are_one_submission() {
    const BATCH: usize = 5;
    let file = TempFile::new(&pattern(1000));
    let fd = file.open();
    let scheduler = aio!(Scheduler::builder().trace(true).start());
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let held = scheduler.submit(Request::read(&Arc::new(reader), Buf::zeroed(1), 0));
    let read = |index| scheduler.submit(Request::read(&fd, Buf::zeroed(1), index as u64));
    let tickets: Vec<_> = (0..BATCH).map(read).collect();
    rustix::io::write(&writer, b"x").unwrap();
    assert_eq!(held.wait().0.unwrap(), 1);
    for (index, ticket) in tickets.into_iter().enumerate() {
        let (result, memory) = ticket.wait();
        assert_eq!((result.unwrap(), usize::from(memory.unwrap()[0])), (1, index));
    }
    let statistics = scheduler.statistics();
    // The thread took the read of the pipe alone, or with others that came before it was awake.
    assert!((1..=2).contains(&statistics.submits), "{statistics:?}");
    assert_eq!(statistics.submitted, BATCH as u64 + 1);
    let calls = scheduler.stop();
    let of = |kind| calls.iter().filter(move |call| call.kind == kind);
    assert_eq!(of(CallKind::Setup).count(), 1);
    assert_eq!(of(CallKind::Submit).count() as u64, statistics.submits);
    let most = of(CallKind::Submit).map(|call| call.count).max();
    assert_eq!(most, Some(statistics.batch_max));
    assert_eq!(of(CallKind::GetEvents).map(|call| call.count).sum::<u64>(), BATCH as u64 + 1);
    assert!(scheduler.stop().is_empty(), "calls are reported once");
}

/// No submission exceeds the limit of a batch.
#[test]
fn batch_has_its_most() {
    let file = TempFile::new(&pattern(1000));
    let fd = file.open();
    let scheduler = aio!(Scheduler::builder().batch_max(2).start());
    let read = |index| scheduler.submit(Request::read(&fd, Buf::zeroed(1), index));
    let tickets: Vec<_> = (0..7).map(read).collect();
    assert!(tickets.into_iter().all(|ticket| ticket.wait().0.is_ok()));
    let statistics = scheduler.statistics();
    assert_eq!(statistics.submitted, 7);
    assert!(statistics.batch_max <= 2 && statistics.submits >= 4, "{statistics:?}");
}

/// Taking requests, submitting and reaping do not starve each other.
#[test]
fn flood_of_requests_does_not_keep_a_completion_from_being_reaped() {
    let file = TempFile::new(&pattern(1000));
    let (fd, event) = (file.open(), event());
    let scheduler = aio!(Scheduler::builder().batch_max(1).start());
    let poll = scheduler.submit(Request::poll(&event, POLLIN));
    thread::scope(|scope| {
        let (stop, is_stopped) = mpsc::channel::<()>();
        let (scheduler, fd) = (&scheduler, &fd);
        let flood = scope.spawn(move || {
            let mut tickets = std::collections::VecDeque::new();
            while is_stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                tickets.push_back(scheduler.submit(Request::read(fd, Buf::zeroed(100), 0)));
                // The queue is never empty.
                if tickets.len() > 50 {
                    assert_eq!(tickets.pop_front().unwrap().wait().0.unwrap(), 100);
                }
            }
            tickets.into_iter().for_each(|ticket| drop(ticket.wait()));
        });
        raise(&event);
        assert!(poll.wait().0.is_ok());
        drop(stop);
        flood.join().unwrap();
    });
}

#[test]
fn requests_go_on_while_others_never_end() {
    let file = TempFile::new(&pattern(1000));
    let (fd, never) = (file.open(), event());
    let scheduler = aio!(Scheduler::builder().room(4).start());
    let polls: Vec<_> = (0..3).map(|_| scheduler.submit(Request::poll(&never, POLLIN))).collect();
    for _ in 0..50 {
        assert_eq!(scheduler.read_at(&fd, Buf::zeroed(10), 0).0.unwrap(), 10);
    }
    assert!(polls.iter().all(|poll| !poll.is_done()));
}

#[test]
fn ticket_that_is_dropped_forgets_the_answer_alone() {
    let file = TempFile::new(b"");
    let fd = file.open();
    let scheduler = aio!(Scheduler::builder().start());
    drop(scheduler.submit(Request::write(&fd, Buf::from(&b"done"[..]), 0)));
    scheduler.stop();
    assert_eq!(std::fs::read(file.path()).unwrap(), b"done");
    assert_eq!(Arc::strong_count(&fd), 1);
}
