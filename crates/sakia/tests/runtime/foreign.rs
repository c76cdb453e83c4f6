//! A runtime in a foreign event loop: events while its tasks work. `models::foreign` compares all that such a
//! loop is told.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, Write};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sakia::io::PipeReader;
use sakia::time::sleep;
use sakia::{Runtime, yield_now};
use sakia_testkit::settings::patience;

/// Events during a task's poll are delivered before the next task runs, in any batch of a turn.
#[test]
fn what_comes_while_a_task_works_is_heard_after_it() {
    const BYTES: u32 = 20;
    let runtime = Runtime::new().unwrap();
    // From here on a foreign loop is told.
    let _pollable = runtime.pollable().unwrap();
    let (reader, mut writer) = io::pipe().unwrap();
    let (polls, written) = (Rc::new(Cell::new(0_u32)), Rc::new(Cell::new(None)));
    let read = Rc::new(Cell::new(0));
    let (all, number, count) = (Rc::clone(&polls), Rc::clone(&written), Rc::clone(&read));
    let reading = runtime.spawn(async move {
        let mut reader = PipeReader::from_fd(reader.into());
        for _ in 0..BYTES {
            let (result, _) = reader.read(vec![0; 1]).await;
            assert_eq!(result.unwrap(), 1);
            // The working task is polled before this one at most once.
            let later = all.get() - number.take().expect("written");
            assert!(later <= 1, "{later} polls later");
            count.set(count.get() + 1);
        }
    });
    let working = runtime.spawn(async move {
        while read.get() < BYTES {
            polls.set(polls.get() + 1);
            // Polls with odd and with even numbers are used.
            if written.get().is_none() && polls.get() % 7 > 3 {
                writer.write_all(b"x").unwrap();
                written.set(Some(polls.get()));
            }
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(1) {}
            yield_now().await;
        }
    });
    while !working.is_finished() {
        runtime.run_once(Duration::ZERO).unwrap();
    }
    runtime.block_on(reading).unwrap();
}

/// `block_on` leaves the thread to the foreign loop again.
#[test]
fn a_wake_after_block_on_makes_the_descriptor_readable() {
    let runtime = Runtime::new().unwrap();
    let pollable = runtime.pollable().unwrap();
    let is_readable = |limit: Duration| {
        let limit = Timespec::try_from(limit).unwrap();
        poll(&mut [PollFd::new(&pollable, PollFlags::IN)], Some(&limit)).unwrap() > 0
    };
    let waker = Rc::new(Cell::new(None::<Waker>));
    let stored = Rc::clone(&waker);
    let waiting = runtime.spawn(async move {
        poll_fn::<(), _>(|cx| {
            stored.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    });
    while is_readable(Duration::ZERO) {
        runtime.run_once(Duration::ZERO).unwrap();
    }
    let waker = runtime.block_on(async {
        sleep(Duration::from_millis(1)).await;
        waker.take().expect("the task has run")
    });
    thread::spawn(move || waker.wake()).join().unwrap();
    assert!(is_readable(patience()));
    waiting.abort();
}
