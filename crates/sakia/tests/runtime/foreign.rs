//! A runtime in a foreign event loop, which polls its descriptor.

use std::cell::Cell;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sakia::io::PipeReader;
use sakia::{Runtime, yield_now};

/// The time after which a test fails that waits for an event.
const PATIENCE: Duration = Duration::from_secs(20);

/// A foreign event loop.
struct Foreign {
    runtime: Runtime,
    pollable: OwnedFd,
}

impl Foreign {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let pollable = runtime.pollable().unwrap();
        Self { runtime, pollable }
    }

    fn is_readable(&self, patience: Duration) -> bool {
        let mut fds = [PollFd::new(&self.pollable, PollFlags::IN)];
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
        poll(&mut fds, Some(&timeout)).unwrap() == 1
    }

    /// Takes turns until there is no more work.
    fn turn(&self) {
        while self.runtime.run_once(Duration::ZERO).unwrap() {}
    }

    /// Takes turns until the descriptor is not readable. It may be readable once more for an event that the
    /// last turn has already handled.
    fn settle(&self) {
        for _ in 0..10 {
            self.turn();
            if !self.is_readable(Duration::ZERO) {
                return;
            }
        }
        panic!("readable all the time, for nothing");
    }

    /// Takes a turn whenever the descriptor is readable, until `is_done`.
    fn run_until(&self, mut is_done: impl FnMut() -> bool) {
        while !is_done() {
            assert!(self.is_readable(PATIENCE), "nobody told the loop");
            self.turn();
        }
    }
}

/// Spawns a task that reads this number of bytes, one by one. Returns the number of bytes read so far.
fn count_bytes(foreign: &Foreign, reader: io::PipeReader, bytes: usize) -> Rc<Cell<usize>> {
    let got = Rc::new(Cell::new(0));
    let counted = Rc::clone(&got);
    let task = foreign.runtime.spawn(async move {
        // The first read begins in the task's second poll.
        yield_now().await;
        let mut reader = PipeReader::from_fd(reader.into());
        for _ in 0..bytes {
            let (result, _) = reader.read(vec![0; 1]).await;
            assert_eq!(result.unwrap(), 1);
            counted.set(counted.get() + 1);
        }
    });
    task.detach();
    got
}

#[test]
fn what_comes_is_told_and_then_no_more() {
    const ROUNDS: usize = 100;
    let foreign = Foreign::new();
    let (reader, mut writer) = io::pipe().unwrap();
    let got = count_bytes(&foreign, reader, ROUNDS);
    for round in 1..=ROUNDS {
        foreign.settle();
        writer.write_all(b"x").unwrap();
        foreign.run_until(|| got.get() == round);
    }
    foreign.settle();
}

#[test]
fn what_other_threads_wake_is_told() {
    let foreign = Foreign::new();
    let (sender, receiver) = async_channel::bounded(1);
    let got = Rc::new(Cell::new(0));
    let last = Rc::clone(&got);
    let task = foreign.runtime.spawn(async move {
        while let Ok(number) = receiver.recv().await {
            last.set(number);
        }
    });
    for number in 1..=100 {
        foreign.settle();
        let sender = sender.clone();
        let thread = thread::spawn(move || sender.send_blocking(number).unwrap());
        foreign.run_until(|| got.get() == number);
        thread.join().unwrap();
    }
    drop(sender);
    foreign.run_until(|| task.is_finished());
}

#[test]
fn what_a_turn_starts_is_not_kept_back() {
    let foreign = Foreign::new();
    for _ in 0..10 {
        foreign.settle();
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"x").unwrap();
        let got = count_bytes(&foreign, reader, 1);
        foreign.turn();
        foreign.run_until(|| got.get() == 1);
    }
}

/// Events during a task's poll are delivered before the next task runs, in any batch of a turn.
#[test]
fn what_comes_while_a_task_works_is_heard_after_it() {
    const BYTES: u32 = 20;
    let foreign = Foreign::new();
    let (reader, mut writer) = io::pipe().unwrap();
    let (polls, written) = (Rc::new(Cell::new(0_u32)), Rc::new(Cell::new(None)));
    let read = Rc::new(Cell::new(0));
    let (all, number, count) = (Rc::clone(&polls), Rc::clone(&written), Rc::clone(&read));
    let reading = foreign.runtime.spawn(async move {
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
    let working = foreign.runtime.spawn(async move {
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
        foreign.runtime.run_once(Duration::ZERO).unwrap();
    }
    foreign.run_until(|| reading.is_finished());
    foreign.runtime.block_on(reading).unwrap();
}
