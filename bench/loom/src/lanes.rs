//! The lanes of threads: each job that is admitted is performed or taken back, never both, by no more
//! threads than there may be.
//!
//! A job that nobody performs shows as a deadlock: whoever waits for its outcome waits for ever.

use super::model;

/// What is to be done: to be counted.
mod job {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) struct Opcode;

    #[derive(Clone, Copy, Debug)]
    pub(super) struct Errno;

    impl Errno {
        pub(super) const AGAIN: Self = Self;

        pub(super) fn from_io_error(_: &std::io::Error) -> Option<Self> {
            None
        }
    }

    pub(super) fn failed(_: Errno) -> i32 {
        -1
    }

    #[derive(Debug)]
    pub(super) struct Job {
        pub(super) user_data: u64,
        pub(super) opcode: Opcode,
        pub(super) work: Work,
    }

    /// Jobs that are performed now, and those that were.
    #[derive(Debug, Default)]
    pub(super) struct Count {
        pub(super) done: AtomicU32,
    }

    #[derive(Debug)]
    pub(super) struct Work(pub(super) Arc<Count>);

    impl Work {
        pub(super) fn run(self) -> Outcome {
            self.0.done.fetch_add(1, Ordering::Relaxed);
            Outcome::Done(0)
        }
    }

    #[derive(Debug)]
    #[allow(dead_code)] // the code under test makes and moves them
    pub(super) enum Outcome {
        Done(i32),
        Elastic(Work),
    }
}

/// Where outcomes go.
mod inbox {
    use loom::sync::Notify;

    use super::job::Outcome;

    #[derive(Debug)]
    pub(super) struct Inbox(pub(super) Notify);

    impl Inbox {
        pub(super) fn deliver(&self, _: u64, _: Outcome) {
            self.0.notify();
        }
    }
}

/// Threads and the time in loom's terms.
mod thread {
    use std::io;
    use std::time::Duration;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Instant;

    impl Instant {
        pub(crate) fn now() -> Self {
            Self
        }

        pub(crate) fn elapsed(&self) -> Duration {
            Duration::ZERO
        }

        pub(crate) fn checked_add(self, _: Duration) -> Option<Self> {
            Some(self)
        }

        pub(crate) fn saturating_duration_since(self, _: Self) -> Duration {
            Duration::ZERO
        }
    }

    pub(super) struct Builder;

    impl Builder {
        pub(super) fn new() -> Self {
            Self
        }

        pub(super) fn name(self, _: String) -> Self {
            self
        }

        pub(super) fn stack_size(self, _: usize) -> Self {
            self
        }

        pub(super) fn spawn(self, run: impl FnOnce() + 'static) -> io::Result<()> {
            loom::thread::spawn(run);
            Ok(())
        }
    }

    pub(super) fn with_lane_mask<T>(run: impl FnOnce() -> T) -> T {
        run()
    }
}

/// The code under test and what is checked of it.
macro_rules! checked {
    ($name:ident) => {
        mod $name {
            #[allow(dead_code)] // each check uses a part of it
            mod lanes {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));

                impl Pool {
                    /// The time of idle threads is over.
                    pub(super) fn end_time(&self) {
                        let _state = self.shared.lock();
                        self.shared.changed.iter().for_each(Condvar::end_time);
                    }
                }
            }

            use std::sync::Arc;
            use std::sync::atomic::Ordering;
            use std::time::Duration;

            use self::inbox::Inbox;
            use self::job::{Count, Job, Opcode, Work};
            use self::lanes::{Lane, Limits, Pool};
            use super::{inbox, job, model, thread};

            fn pool() -> (Pool, Arc<Inbox>) {
                let inbox = Arc::new(Inbox(loom::sync::Notify::new()));
                let idle = Duration::from_secs(1);
                let limits = Limits { threads_max: [1, 1], idle, stuck_after: None };
                (Pool::new(limits, Arc::clone(&inbox)), inbox)
            }

            fn push(pool: &Pool, ticket: u64, count: &Arc<Count>) {
                let work = Work(Arc::clone(count));
                let job = Job { user_data: ticket, opcode: Opcode, work };
                pool.push(Lane::Bounded, [(ticket, job)]);
                assert!(pool.statistics(Lane::Bounded).threads <= 1, "more threads than may be");
            }

            fn wait(inbox: &Inbox, count: &Count, done: u32) {
                while count.done.load(Ordering::Relaxed) < done {
                    inbox.0.wait();
                }
            }

            /// One job after the other, and then two at a time, on one thread.
            #[allow(dead_code)]
            pub(super) fn performs() {
                model(|| {
                    let ((pool, inbox), count) = (pool(), Arc::new(Count::default()));
                    push(&pool, 1, &count);
                    wait(&inbox, &count, 1);
                    push(&pool, 2, &count);
                    push(&pool, 3, &count);
                    wait(&inbox, &count, 3);
                    pool.close();
                });
            }

            /// The time of an idle thread is over while a job is pushed.
            #[allow(dead_code)]
            pub(super) fn idles() {
                model(|| {
                    let ((pool, inbox), count) = (pool(), Arc::new(Count::default()));
                    let pool = Arc::new(pool);
                    push(&pool, 1, &count);
                    let clock = Arc::clone(&pool);
                    loom::thread::spawn(move || clock.end_time());
                    wait(&inbox, &count, 1);
                    push(&pool, 2, &count);
                    wait(&inbox, &count, 2);
                    pool.close();
                });
            }

            /// A job is taken back while a thread takes it.
            #[allow(dead_code)]
            pub(super) fn cancels() {
                model(|| {
                    let ((pool, inbox), count) = (pool(), Arc::new(Count::default()));
                    push(&pool, 1, &count);
                    let is_taken_back = pool.cancel(1);
                    if !is_taken_back {
                        wait(&inbox, &count, 1);
                    }
                    pool.close();
                    // The other jobs are the proof that the thread had its time.
                    let is_done = count.done.load(Ordering::Relaxed) > 0;
                    assert!(!(is_taken_back && is_done), "both taken back and performed");
                });
            }
        }
    };
}

checked!(lanes);
checked!(lanes_without_bound);
checked!(lanes_end_on_job);
checked!(lanes_cancel_running);
checked!(lanes_idle_not_told);

#[test]
fn each_job_is_performed_by_the_one_thread() {
    lanes::performs();
}

#[test]
fn a_job_that_comes_when_a_threads_time_is_over_is_performed() {
    lanes::idles();
}

#[test]
fn a_job_is_taken_back_or_performed() {
    lanes::cancels();
}

#[test]
#[should_panic(expected = "more threads than may be")]
fn without_its_bound_a_lane_has_too_many_threads() {
    lanes_without_bound::performs();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_thread_that_ends_without_a_look_leaves_a_job() {
    lanes_end_on_job::idles();
}

#[test]
#[should_panic(expected = "both taken back and performed")]
fn a_job_that_runs_must_not_be_taken_back() {
    lanes_cancel_running::cancels();
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_idle_thread_that_is_not_told_leaves_a_job() {
    lanes_idle_not_told::performs();
}
