//! The inbox of the backend on epoll: the backend never sleeps past a result or a wake, and keeps none at
//! the end.
//!
//! A missed result shows as a deadlock: the backend sleeps, and no thread is left to wake it.

use super::model;

/// The result of a job, as a stub.
mod job {
    use std::sync::Arc;

    /// Each holder has a share of the reference count.
    #[derive(Debug)]
    pub(super) struct Outcome(#[expect(dead_code, reason = "it is counted")] pub(super) Arc<()>);
}

/// The eventfd in an epoll set: an edge is kept until it ends a sleep.
mod event {
    use loom::sync::Notify;

    #[derive(Debug)]
    pub(super) struct Errno;

    #[derive(Debug)]
    pub(super) struct OwnedFd(pub(super) Notify);

    pub(super) fn eventfd() -> Result<OwnedFd, Errno> {
        Ok(OwnedFd(Notify::new()))
    }

    pub(super) fn write(event: &OwnedFd, _: &[u8; 8]) -> Result<usize, Errno> {
        event.0.notify();
        Ok(8)
    }
}

/// The code under test and its checks.
macro_rules! checked {
    ($name:ident) => {
        mod $name {
            #[allow(dead_code)] // each check uses a part of it
            mod inbox {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
            }

            use std::sync::Arc;

            use loom::thread;
            use sakia_ring::Process;

            use self::inbox::Inbox;
            use self::job::Outcome;
            use super::{event, job, model};

            fn new() -> Arc<Inbox> {
                Arc::new(Inbox::new(Process::current()).expect("there is always an eventfd"))
            }

            /// Sleeps until it has received `count` results, and a wake if one is wanted.
            fn receive(inbox: &Inbox, count: usize, mut wants_wake: bool) {
                let mut results = Vec::new();
                loop {
                    wants_wake &= !inbox.receive(&mut results);
                    if results.len() == count && !wants_wake {
                        return;
                    }
                    if inbox.park() {
                        inbox.event().0.wait();
                    }
                }
            }

            /// Several threads send a result each.
            #[allow(dead_code)]
            pub(super) fn results(senders: u64) {
                model(move || {
                    let inbox = new();
                    for ticket in 0..senders {
                        let inbox = Arc::clone(&inbox);
                        thread::spawn(move || inbox.deliver(ticket, Outcome(Arc::new(()))));
                    }
                    receive(&inbox, senders as usize, false);
                });
            }

            /// One thread sends a result and another wakes the backend.
            #[allow(dead_code)]
            pub(super) fn wakes() {
                model(|| {
                    let inbox = new();
                    let (sender, waker) = (Arc::clone(&inbox), Arc::clone(&inbox));
                    thread::spawn(move || sender.deliver(1, Outcome(Arc::new(()))));
                    thread::spawn(move || waker.wake());
                    receive(&inbox, 1, true);
                });
            }

            /// A foreign loop, which never parks, begins to watch while a thread sends a result.
            #[allow(dead_code)]
            pub(super) fn watches() {
                model(|| {
                    let inbox = new();
                    let sender = Arc::clone(&inbox);
                    thread::spawn(move || sender.deliver(1, Outcome(Arc::new(()))));
                    inbox.watch();
                    let mut results = Vec::new();
                    while results.is_empty() {
                        inbox.event().0.wait();
                        inbox.receive(&mut results);
                    }
                });
            }

            /// A thread sends a result while the backend closes; the result is dropped.
            #[allow(dead_code)]
            pub(super) fn closes() {
                model(|| {
                    let (inbox, outcome) = (new(), Arc::new(()));
                    let (sender, its) = (Arc::clone(&inbox), Arc::clone(&outcome));
                    let sender = thread::spawn(move || sender.deliver(1, Outcome(its)));
                    inbox.close();
                    sender.join().expect("the sender does not panic");
                    assert_eq!(Arc::strong_count(&outcome), 1, "a result is kept");
                });
            }
        }
    };
}

checked!(inbox);
checked!(inbox_not_woken);
checked!(inbox_sleeps_on_news);
checked!(inbox_loop_not_told);
checked!(inbox_present_ignored);
checked!(inbox_late_result_kept);
checked!(inbox_mark_kept_back);

#[test]
fn a_result_ends_the_sleep() {
    inbox::results(1);
}

#[test]
fn results_of_two_threads_arrive() {
    inbox::results(2);
}

#[test]
fn a_wake_ends_the_sleep_and_so_does_a_result() {
    inbox::wakes();
}

#[test]
fn a_foreign_loop_is_told_of_what_is_there_and_of_what_comes() {
    inbox::watches();
}

#[test]
fn a_result_that_comes_at_the_end_is_dropped() {
    inbox::closes();
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_write_the_sleep_goes_on() {
    inbox_not_woken::results(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_look_before_the_sleep_a_result_is_missed() {
    inbox_sleeps_on_news::results(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_foreign_loop_that_is_not_told_misses_what_comes() {
    inbox_loop_not_told::watches();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_foreign_loop_that_begins_late_misses_what_is_there() {
    inbox_present_ignored::watches();
}

#[test]
#[should_panic(expected = "a result is kept")]
fn without_a_look_at_the_end_a_result_is_kept() {
    inbox_late_result_kept::closes();
}

/// The check of the results and the mark must be one step.
#[test]
#[should_panic(expected = "deadlock")]
fn a_mark_that_is_set_after_the_look_comes_too_late() {
    inbox_mark_kept_back::results(1);
}
