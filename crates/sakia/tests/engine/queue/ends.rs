//! The ends of queues, files, engines and processes.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use sakia::engine::queue::{FileHandle, Full, Request, Submitted, Value};
use sakia::{Builder, Engine};
use sakia_driver::{Loop, Wait};
use sakia_testkit::available;
use sakia_testkit::forked;
use sakia_testkit::fuse::{Fuse, Opcode, Rule, pattern};

use super::{endless, errno, next, outcome, pipe};
use crate::support::{Folder, engine, on_each_backend, with_remote_mounts};

on_each_backend! {
    a_stop_ends_all_and_outcomes_can_be_taken
    a_stop_lists_the_tokens_that_leaked
    the_last_clone_gives_up_what_is_under_way
    a_batch_that_is_sent_after_the_stop_comes_back
    submitters_beyond_the_bound_get_their_requests_back
    a_close_cancels_on_queues_and_loops
    the_engine_stops_after_the_requests_of_queues
    a_forked_child_gets_errors_and_makes_its_own
    a_number_that_is_reused_is_another_file
}

fn a_stop_ends_all_and_outcomes_can_be_taken(builder: &Builder) {
    let engine = engine(builder);
    let queue = engine.queue().unwrap();
    let (pipe, _writer) = pipe();
    let mut batch = queue.batch();
    for token in 0..100 {
        let _ = batch.add(endless(&pipe), token).unwrap();
    }
    batch.submit();
    let end = queue.stop(Duration::MAX);
    assert!(end.leaked.is_empty());
    let refused = outcome(&queue, queue.submit(endless(&pipe), 100).unwrap());
    let mut outcomes = vec![refused];
    assert_eq!((queue.under_way(), queue.take(usize::MAX, &mut outcomes)), (100, 100));
    outcomes.sort_by_key(|outcome| outcome.token);
    for (token, outcome) in (0..).zip(outcomes) {
        assert_eq!((outcome.token, errno(&outcome.result)), (token, Some(libc::ECANCELED)));
        assert_eq!(outcome.into_vec().unwrap(), [0; 8]);
    }
    assert_eq!((queue.under_way(), engine.statistics().live), (0, 0));
    // Another queue of the engine goes on.
    let other = engine.queue().unwrap();
    let done = outcome(&other, other.submit(Request::Nop, 1).unwrap());
    assert!(done.result.is_ok());
    assert!(queue.stop(Duration::ZERO).leaked.is_empty(), "a second time");
}

fn a_stop_lists_the_tokens_that_leaked(builder: &Builder) {
    let engine = engine(builder);
    let queue = engine.queue().unwrap();
    let _mounts = with_remote_mounts();
    let fuse = available!(Fuse::builder().file("a", pattern(5000)).mount());
    let file = FileHandle::new(std::fs::File::open(fuse.join("a")).unwrap());
    let gate = fuse.hold(Rule::on(Opcode::READ));
    let _ = queue.submit(Request::read(&file, vec![0; 5000].into(), 0), u64::MAX).unwrap();
    let (pipe, _writer) = pipe();
    let _ = queue.submit(endless(&pipe), 5).unwrap();
    gate.wait_held(1);
    assert_eq!(queue.stop(Duration::from_millis(50)).leaked, [u64::MAX]);
    let ended = next(&queue);
    assert_eq!((ended.token, errno(&ended.result)), (5, Some(libc::ECANCELED)));
    gate.open();
    // It ends unheard of.
    engine.stop_and_wait();
    assert_eq!((queue.under_way(), queue.take(9, &mut Vec::new())), (0, 0));
}

fn the_last_clone_gives_up_what_is_under_way(builder: &Builder) {
    let engine = engine(builder);
    let (queue, other) = (engine.queue().unwrap(), engine.queue().unwrap());
    let (reader, _writer) = std::io::pipe().unwrap();
    let owner = Arc::new(OwnedFd::from(reader));
    let pipe = FileHandle::lent(Arc::clone(&owner));
    for queue in [&queue, &queue.clone(), &other] {
        let _ = queue.submit(endless(&pipe), 1).unwrap();
    }
    let _ = queue.submit(Request::Nop, 2).unwrap();
    drop(queue);
    let done = outcome(&other, other.submit(Request::Nop, 3).unwrap());
    assert_eq!(done.token, 3, "that of the other queue is under way");
    assert!(other.stop(Duration::MAX).leaked.is_empty());
    assert_eq!(next(&other).token, 1);
    // The file is given back with the last request.
    drop((pipe, other));
    engine.stop_and_wait();
    while Arc::strong_count(&owner) > 1 {
        thread::yield_now();
    }
}

fn a_batch_that_is_sent_after_the_stop_comes_back(builder: &Builder) {
    let engine = engine(builder);
    let queue = engine.queue().unwrap();
    let mut batch = queue.batch();
    let (pipe, _writer) = pipe();
    let Submitted::UnderWay(ticket) = batch.add(endless(&pipe), 1).unwrap() else { panic!() };
    let Submitted::UnderWay(other) = batch.add(endless(&pipe), 2).unwrap() else { panic!() };
    queue.cancel(ticket);
    assert!(queue.stop(Duration::MAX).leaked.is_empty(), "they were not sent");
    queue.cancel(other);
    batch.submit();
    for token in [1, 2] {
        let outcome = next(&queue);
        assert_eq!((outcome.token, errno(&outcome.result)), (token, Some(libc::ECANCELED)));
        assert!(outcome.into_vec().is_some());
    }
    assert_eq!((queue.under_way(), engine.statistics().live), (0, 0));
    queue.cancel(ticket); // names nothing
}

fn submitters_beyond_the_bound_get_their_requests_back(builder: &Builder) {
    let queue = engine(builder).queue().unwrap();
    queue.set_under_way_max(10);
    let submit = || {
        let accepted = (0..20).filter(|&token| match queue.submit(Request::Nop, token) {
            Ok(submitted) => matches!(submitted, Submitted::UnderWay(_)),
            Err(Full(Request::Nop)) => false,
            Err(Full(request)) => panic!("{request:?}"),
        });
        accepted.count()
    };
    // No thread takes any.
    let accepted: usize = thread::scope(|scope| {
        let submitters: Vec<_> = (0..4).map(|_| scope.spawn(submit)).collect();
        submitters.into_iter().map(|submitter| submitter.join().unwrap()).sum()
    });
    assert_eq!((accepted, queue.under_way()), (10, 10));
    let mut outcomes = Vec::new();
    while outcomes.len() < 10 {
        queue.wait(None).unwrap();
        queue.take(3, &mut outcomes);
    }
    assert_eq!(submit(), 10);
}

/// Files that a queue and a loop use at the same time: each request is answered, and the file closed once.
fn a_close_cancels_on_queues_and_loops(builder: &Builder) {
    let engine = engine(&builder.clone().threads(2));
    let queue = engine.queue().unwrap();
    let mut ring = Loop::new().unwrap();
    for round in 0..50 {
        let (pipe, mut writer) = pipe();
        for token in 0..4 {
            let _ = queue.submit(endless(&pipe), token).unwrap();
        }
        ring.submit(endless(&pipe), 9).unwrap();
        let close = Request::Close { file: pipe.clone() };
        match round % 2 {
            0 => drop(queue.submit(close, 7).unwrap()),
            _ => drop(ring.submit(close, 7).unwrap()),
        }
        let (mut answered, mut on_loop) = (Vec::new(), Vec::new());
        let of_queue = 4 + usize::from(round % 2 == 0);
        while answered.len() < of_queue || on_loop.len() < 6 - of_queue {
            ring.wait(Wait::For(Duration::from_millis(1))).unwrap();
            on_loop.extend(std::iter::from_fn(|| ring.take()));
            queue.take(9, &mut answered);
        }
        for outcome in answered.iter().chain(&on_loop) {
            let errno = errno(&outcome.result);
            match outcome.token {
                7 => assert_eq!(errno, None),
                // Another thread of the engine may come too late with it.
                _ => assert!(matches!(errno, Some(libc::ECANCELED | libc::EBADF)), "{outcome:?}"),
            }
        }
        let late = outcome(&queue, queue.submit(endless(&pipe), 1).unwrap());
        assert_eq!(errno(&late.result), Some(libc::EBADF));
        // A child of another test may hold a copy of the reader for a moment.
        while writer.write(b"x").is_ok() {
            thread::yield_now();
        }
    }
    assert_eq!((queue.under_way(), ring.under_way()), (0, 0));
}

fn the_engine_stops_after_the_requests_of_queues(builder: &Builder) {
    let engine = engine(builder);
    let queue = engine.queue().unwrap();
    let (pipe, mut writer) = pipe();
    let _ = queue.submit(endless(&pipe), 1).unwrap();
    assert_eq!(engine.statistics().live, 1);
    thread::scope(|scope| {
        let stopper = scope.spawn(|| engine.stop_and_wait());
        let probe = || outcome(&queue, queue.submit(Request::Nop, 2).unwrap());
        while errno(&probe().result) != Some(libc::ECANCELED) {}
        assert!(!stopper.is_finished());
        writer.write_all(b"abc").unwrap();
        let read = next(&queue);
        assert_eq!((read.token, read.result.unwrap()), (1, 3));
    });
}

fn a_forked_child_gets_errors_and_makes_its_own(builder: &Builder) {
    let engine = engine(builder);
    let queue = engine.queue().unwrap();
    let (pipe, mut writer) = pipe();
    let _ = queue.submit(endless(&pipe), 1).unwrap();
    let Submitted::UnderWay(ticket) = queue.submit(endless(&pipe), 2).unwrap() else { panic!() };
    let event = queue.pollable().unwrap();
    let mut batch = queue.batch();
    let _ = batch.add(Request::Nop, 3).unwrap();
    let (waker, result) = (queue.waker(), {
        let (engine, queue) = (&engine, queue.clone());
        forked::run(move || {
            let refused = outcome(&queue, queue.submit(Request::Nop, 9).unwrap());
            assert!(refused.result.unwrap_err().to_string().contains("forked"));
            assert!(queue.wait(None).unwrap_err().to_string().contains("forked"));
            assert!(queue.pollable().is_err() && engine.queue().is_err());
            queue.cancel(ticket);
            queue.waker().wake();
            assert_eq!((queue.take(9, &mut Vec::new()), queue.under_way()), (0, 0));
            assert!(queue.stop(Duration::MAX).leaked.is_empty());
            drop(queue);
            let own = Engine::new().unwrap().queue().unwrap();
            assert_eq!(outcome(&own, own.submit(Request::Nop, 4).unwrap()).token, 4);
        })
    });
    assert_eq!(result, Ok(()));
    drop((waker, event));
    batch.submit();
    assert_eq!(next(&queue).token, 3);
    writer.write_all(b"12345678").unwrap();
    assert_eq!(next(&queue).result.unwrap(), 8);
}

/// 65 transfers, by when facts of the file are known; then the number is another file, and then a pipe.
fn a_number_that_is_reused_is_another_file(builder: &Builder) {
    let folder = Folder::new();
    let queue = engine(builder).queue().unwrap();
    /// Numbers that no other test has.
    static OWN_NUMBER: AtomicI32 = AtomicI32::new(700);
    let number = OWN_NUMBER.fetch_add(10, Ordering::Relaxed);
    for (round, name) in ["a", "b"].into_iter().enumerate() {
        let path = folder.file(name, name.repeat(100));
        let file = std::fs::File::open(path).unwrap();
        let file = FileHandle::new(rustix::io::fcntl_dupfd_cloexec(file, number).unwrap());
        assert_eq!(file.raw(), number, "the number is reused");
        for token in 0..65 {
            let buffers = vec![vec![0; 4].into()];
            let read = match token % 2 {
                0 => Request::read(&file, vec![0; 4].into(), token),
                _ => Request::ReadVectored { file: (&file).into(), buffers, offset: 0, flags: 0 },
            };
            let done = outcome(&queue, queue.submit(read, token).unwrap());
            assert_eq!(done.result.unwrap(), 4);
            let bytes = match done.value {
                Value::Buffer(buffer) => buffer.into_vec().unwrap(),
                Value::Buffers(mut buffers) => buffers.pop().unwrap().into_vec().unwrap(),
                value => panic!("{value:?}"),
            };
            assert_eq!(bytes, name.repeat(4).as_bytes(), "round {round}");
        }
        let close = outcome(&queue, queue.submit(Request::Close { file }, 99).unwrap());
        close.result.unwrap();
    }
}
