//! Tasks that compute for long and never wait: events are noticed between two of their polls. The tests
//! count polls, not time: on a busy machine there are fewer.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use sakia::fs::File;
use sakia::io::PipeReader;
use sakia::signal::{SignalKind, signal};
use sakia::time::sleep;
use sakia::{Runtime, block_on, for_each_concurrent, spawn, yield_now};

/// A signal that no other test of this program uses.
const KIND: SignalKind = SignalKind::from_raw(23); // SIGURG
/// The time of a long poll.
const WORK: Duration = Duration::from_millis(4);
/// The maximum number of polls until an event is noticed: one until the wait has begun, one during which
/// the event happens, and one in which epoll learns that these polls are long.
const POLLS_MAX: u32 = 3;

fn work(duration: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < duration {
        std::hint::spin_loop();
    }
}

/// Tasks that compute for long at each poll, and count their polls.
struct Busy {
    polls: Rc<Cell<u32>>,
    is_over: Rc<Cell<bool>>,
}

impl Busy {
    fn start(count: u32) -> Self {
        Self::working(count, WORK)
    }

    fn working(count: u32, duration: Duration) -> Self {
        let busy = Self { polls: Rc::default(), is_over: Rc::default() };
        for _ in 0..count {
            let (polls, is_over) = (Rc::clone(&busy.polls), Rc::clone(&busy.is_over));
            spawn(async move {
                while !is_over.get() {
                    work(duration);
                    polls.set(polls.get() + 1);
                    yield_now().await;
                }
            });
        }
        busy
    }

    /// Starts tasks that read cached data, compute for long after each read, and count their reads. On most
    /// file systems they wait for nothing else.
    async fn reading(count: u32) -> Self {
        let busy = Self { polls: Rc::default(), is_over: Rc::default() };
        let file = Rc::new(File::open("/proc/self/exe").await.unwrap());
        let (result, _) = file.read_at(vec![0; 16], 0).await;
        result.unwrap();
        for _ in 0..count {
            let (reads, is_over) = (Rc::clone(&busy.polls), Rc::clone(&busy.is_over));
            let file = Rc::clone(&file);
            spawn(async move {
                while !is_over.get() {
                    let (result, _) = file.read_at(vec![0; 16], 0).await;
                    assert_eq!(result.unwrap(), 16);
                    work(WORK);
                    reads.set(reads.get() + 1);
                }
            })
            .detach();
        }
        sleep(Duration::from_millis(1)).await; // by then it is known that they take long
        busy
    }

    /// Asserts that few polls have passed since `count`.
    #[track_caller]
    fn assert_soon(&self, count: u32) {
        let polls = self.polls.get() - count;
        assert!(polls <= POLLS_MAX, "heard after {polls} polls");
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.is_over.set(true);
    }
}

#[test]
fn a_timer_is_heard() {
    block_on(async {
        let busy = Busy::start(20);
        for _ in 0..5 {
            let polls = busy.polls.get();
            sleep(Duration::from_millis(1)).await;
            busy.assert_soon(polls);
        }
    });
}

#[test]
fn a_timer_is_heard_among_many_polls_that_are_neither_short_nor_long() {
    block_on(async {
        // There are ten polls in the millisecond by which a timer may be late.
        let busy = Busy::working(100, Duration::from_micros(100));
        for _ in 0..5 {
            let polls = busy.polls.get();
            sleep(Duration::from_millis(1)).await;
            let polls = busy.polls.get() - polls;
            assert!(polls <= 20 + POLLS_MAX, "heard after {polls} polls");
        }
    });
}

#[test]
fn a_pipe_is_heard() {
    block_on(async {
        let busy = Busy::start(20);
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut reader = PipeReader::from_fd(OwnedFd::from(reader));
        for _ in 0..5 {
            writer.write_all(b"x").unwrap();
            let polls = busy.polls.get();
            assert_eq!(reader.read(vec![0; 1]).await.0.unwrap(), 1);
            busy.assert_soon(polls);
        }
    });
}

#[test]
fn a_signal_is_heard() {
    block_on(async {
        let mut signals = signal(KIND).unwrap();
        let busy = Busy::start(20);
        for _ in 0..3 {
            let polls = busy.polls.get();
            signal_hook::low_level::raise(KIND.as_raw()).unwrap();
            signals.recv().await.unwrap();
            busy.assert_soon(polls);
        }
    });
}

#[test]
fn another_thread_is_heard() {
    block_on(async {
        let busy = Busy::start(20);
        for _ in 0..3 {
            let (is_set, waker) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
            let (flag, to_wake) = (Arc::clone(&is_set), Arc::clone(&waker));
            let polls = Rc::new(Cell::new(0));
            let (seen, all) = (Rc::clone(&polls), Rc::clone(&busy.polls));
            // On the runtime's thread, between two of these polls: another thread wakes, and the polls so
            // far are recorded.
            let waking = spawn(async move {
                let sender = thread::spawn(move || {
                    flag.store(true, Ordering::SeqCst);
                    let waker: Option<Waker> = to_wake.lock().unwrap().take();
                    waker.map(Waker::wake)
                });
                sender.join().unwrap();
                seen.set(all.get());
            });
            poll_fn(|cx| {
                *waker.lock().unwrap() = Some(cx.waker().clone());
                if is_set.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            busy.assert_soon(polls.get());
            waking.await.unwrap();
        }
    });
}

#[test]
fn a_timer_is_heard_when_polls_become_long() {
    let runtime = Runtime::new().unwrap();
    let is_ring = runtime.choice().name() == "uring";
    runtime.block_on(async {
        // The polls are short for a part of the time, and then long.
        let long_polls = Rc::new(Cell::new(0));
        let is_over = Rc::new(Cell::new(false));
        let begin = Instant::now();
        let work_from = Duration::from_millis(10);
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let (long_polls, is_over) = (Rc::clone(&long_polls), Rc::clone(&is_over));
                spawn(async move {
                    while !is_over.get() {
                        if begin.elapsed() >= work_from {
                            work(WORK);
                            long_polls.set(long_polls.get() + 1);
                        }
                        yield_now().await;
                    }
                })
            })
            .collect();
        sleep(work_from + WORK * 2).await;
        is_over.set(true);
        // On epoll up to 32 polls may pass between two readings of the clock.
        let most = if is_ring { 2 + POLLS_MAX } else { 2 + 32 };
        assert!(long_polls.get() <= most, "heard after {} long polls", long_polls.get());
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn children_of_one_task_do_not_keep_others_waiting() {
    block_on(async {
        let polls = Rc::new(Cell::new(0));
        let count = Rc::clone(&polls);
        let parent = spawn(async move {
            for_each_concurrent(100, 0..100, async |_| {
                work(WORK);
                count.set(count.get() + 1);
                yield_now().await;
            })
            .await;
        });
        while !parent.is_finished() {
            let begin = polls.get();
            sleep(Duration::from_millis(1)).await;
            assert!(polls.get() - begin <= POLLS_MAX, "heard after {} polls", polls.get() - begin);
        }
    });
}

#[test]
fn a_timer_is_heard_between_reads_that_are_done_at_once() {
    for count in [1, 3, 20] {
        block_on(async {
            let busy = Busy::reading(count).await;
            for _ in 0..5 {
                let reads = busy.polls.get();
                sleep(Duration::from_millis(1)).await;
                busy.assert_soon(reads);
            }
        });
    }
}

#[test]
fn a_pipe_is_heard_between_reads_that_are_done_at_once() {
    block_on(async {
        let busy = Busy::reading(5).await;
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut reader = PipeReader::from_fd(OwnedFd::from(reader));
        for _ in 0..5 {
            writer.write_all(b"x").unwrap();
            let reads = busy.polls.get();
            assert_eq!(reader.read(vec![0; 1]).await.0.unwrap(), 1);
            busy.assert_soon(reads);
        }
    });
}
