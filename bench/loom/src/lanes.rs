//! The lanes of threads: each admitted job is either performed or canceled, within the limit of threads.
//!
//! A job that is never performed shows as a deadlock, since the test waits for its outcome forever.

use super::model;

/// The work of a job, which is counted.
mod job {
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) struct OpKind;

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

    /// A copy of the driver's `decide::Lane`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Lane {
        Bounded = 0,
        Elastic = 1,
    }

    impl Lane {
        pub(super) const ALL: [Self; 2] = [Self::Bounded, Self::Elastic];
    }

    /// The number of performed jobs, and the event that blocked jobs wait for.
    #[derive(Debug)]
    pub(super) struct Count {
        pub(super) done: AtomicU32,
        /// Wakes the blocked jobs.
        pub(super) met: loom::sync::Notify,
    }

    impl Count {
        /// Returns a count with static lifetime, since jobs are copied.
        pub(super) fn new() -> &'static Self {
            let met = loom::sync::Notify::new();
            Box::leak(Box::new(Self { done: AtomicU32::new(0), met }))
        }
    }

    #[derive(Clone, Copy, Debug)]
    pub(super) enum Work {
        Count(&'static Count),
        /// Blocks until a `Meet` job is performed.
        Wait(&'static Count),
        Meet(&'static Count),
    }

    impl Work {
        pub(super) fn run(self) -> Outcome {
            let count = match self {
                Self::Count(count) => count,
                Self::Wait(count) => {
                    count.met.wait();
                    count
                }
                Self::Meet(count) => {
                    count.met.notify();
                    count
                }
            };
            count.done.fetch_add(1, Ordering::Relaxed);
            Outcome::Done(0)
        }

        /// Required by the code under test.
        pub(super) fn is_close(&self) -> bool {
            false
        }
    }

    #[derive(Debug)]
    #[allow(dead_code)] // the code under test makes and moves them
    pub(super) enum Outcome {
        Done(i32),
        Elastic,
    }
}

/// The receiver of outcomes.
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

/// Threads and time in loom's terms.
mod thread {
    use std::cell::Cell;
    use std::io;
    use std::num::NonZeroUsize;
    use std::time::Duration;

    thread_local! {
        /// The number of threads that can still be started. Loom runs a model's threads on one system thread.
        pub(super) static SUPPLY: Cell<u32> = const { Cell::new(0) };
    }

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

    pub(super) fn start_thread(
        _: &str,
        _: Option<NonZeroUsize>,
        main: Box<dyn FnOnce() + Send>,
    ) -> io::Result<()> {
        let left = SUPPLY.get().checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
        SUPPLY.set(left);
        loom::thread::spawn(main);
        Ok(())
    }

    pub(super) fn without_signals<T>(run: impl FnOnce() -> T) -> T {
        run()
    }
}

/// The code under test and its checks.
macro_rules! checked {
    ($name:ident, $pool:ident, $lanes:ident) => {
        mod $name {
            #[allow(dead_code)] // each check uses a part of it
            mod pool {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($pool), ".rs"));

                impl<W: Worker> Pool<W> {
                    /// Expires the idle time of all threads.
                    pub(super) fn end_time(&self) {
                        let _state = self.lock();
                        self.shared.changed.iter().for_each(Condvar::end_time);
                    }
                }
            }

            #[allow(dead_code)] // each check uses a part of it
            mod lanes {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($lanes), ".rs"));

                impl Pool {
                    pub(super) fn end_time(&self) {
                        self.threads.end_time();
                    }
                }
            }

            use std::sync::Arc;
            use std::sync::atomic::Ordering;
            use std::time::Duration;

            use self::inbox::Inbox;
            use self::job::{Count, Lane, OpKind, Work};
            use self::lanes::{Job, Limits, Pool};
            use super::{inbox, job, model, thread};

            fn pool() -> (Pool, Arc<Inbox>) {
                pool_of(1, u32::MAX)
            }

            /// Returns a pool with this limit of threads, of which only `supply` can be started.
            fn pool_of(threads_max: u32, supply: u32) -> (Pool, Arc<Inbox>) {
                thread::SUPPLY.set(supply);
                let inbox = Arc::new(Inbox(loom::sync::Notify::new()));
                let idle = Duration::from_secs(1);
                let limits = Limits { threads_max: [threads_max; 2], idle };
                (Pool::new(limits, Arc::clone(&inbox)), inbox)
            }

            fn job(ticket: u64, work: Work) -> (u64, Job) {
                (ticket, Job { user_data: ticket, kind: OpKind, work })
            }

            fn push(pool: &Pool, ticket: u64, count: &'static Count) {
                pool.push(Lane::Bounded, [job(ticket, Work::Count(count))]);
                let its = pool.statistics(Lane::Bounded);
                assert!(its.threads <= its.threads_max, "more threads than may be");
            }

            fn wait(inbox: &Inbox, count: &Count, done: u32) {
                while count.done.load(Ordering::Relaxed) < done {
                    inbox.0.wait();
                }
            }

            /// Pushes one job, then two more, with a limit of one thread.
            #[allow(dead_code)]
            pub(super) fn performs() {
                model(|| {
                    let ((pool, inbox), count) = (pool(), Count::new());
                    push(&pool, 1, count);
                    wait(&inbox, count, 1);
                    push(&pool, 2, count);
                    push(&pool, 3, count);
                    wait(&inbox, count, 3);
                    pool.close();
                });
            }

            /// Expires the idle time of a thread while a job is pushed.
            #[allow(dead_code)]
            pub(super) fn idles() {
                model(|| {
                    let ((pool, inbox), count) = (pool(), Count::new());
                    let pool = Arc::new(pool);
                    push(&pool, 1, count);
                    let clock = Arc::clone(&pool);
                    loom::thread::spawn(move || clock.end_time());
                    wait(&inbox, count, 1);
                    push(&pool, 2, count);
                    wait(&inbox, count, 2);
                    pool.close();
                });
            }

            /// Pushes a job that blocks until another one is performed, which is pushed with it or after it.
            #[allow(dead_code)]
            pub(super) fn blocks(together: bool) {
                model(move || {
                    let ((pool, inbox), count) = (pool_of(2, 2), Count::new());
                    let waits = job(1, Work::Wait(count));
                    let meets = job(2, Work::Meet(count));
                    if together {
                        pool.push(Lane::Bounded, [waits, meets]);
                    } else {
                        pool.push(Lane::Bounded, [waits]);
                        pool.push(Lane::Bounded, [meets]);
                    }
                    wait(&inbox, count, 2);
                    pool.close();
                });
            }

            /// Two threads push while the only thread that can be started becomes idle, and a start fails.
            #[allow(dead_code)]
            pub(super) fn misses() {
                model(|| {
                    let ((pool, inbox), count) = (pool_of(2, 1), Count::new());
                    let pool = Arc::new(pool);
                    push(&pool, 1, count);
                    let (other, its) = (Arc::clone(&pool), count);
                    loom::thread::spawn(move || push(&other, 2, its));
                    push(&pool, 3, count);
                    wait(&inbox, count, 3);
                    pool.close();
                });
            }

            /// Cancels a job while a thread takes it.
            #[allow(dead_code)]
            pub(super) fn cancels() {
                model(|| {
                    let ((pool, inbox), count) = (pool(), Count::new());
                    push(&pool, 1, count);
                    let is_taken_back = pool.cancel(1);
                    if !is_taken_back {
                        wait(&inbox, count, 1);
                    }
                    pool.close();
                    // A closed pool still performs admitted jobs, so a job that was not taken back is done
                    // here.
                    let is_done = count.done.load(Ordering::Relaxed) > 0;
                    assert!(!(is_taken_back && is_done), "both taken back and performed");
                });
            }
        }
    };
}

checked!(faithful, pool, lanes);
checked!(without_bound, pool_without_bound, lanes);
checked!(ends_on_job, pool_ends_on_job, lanes);
checked!(idle_not_told, pool_idle_not_told, lanes);
checked!(hands_nothing_on, pool_hands_nothing_on, lanes);
checked!(start_missed, pool_start_missed, lanes);
checked!(cancel_running, pool, lanes_cancel_running);

#[test]
fn each_job_is_performed_by_the_one_thread() {
    faithful::performs();
}

#[test]
fn a_job_that_comes_when_a_threads_time_is_over_is_performed() {
    faithful::idles();
}

#[test]
fn a_job_is_taken_back_or_performed() {
    faithful::cancels();
}

#[test]
fn a_job_that_blocks_keeps_no_other_waiting() {
    faithful::blocks(true);
    faithful::blocks(false);
}

#[test]
fn a_job_is_performed_although_a_start_failed() {
    faithful::misses();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_thread_that_hands_nothing_on_leaves_a_job() {
    hands_nothing_on::blocks(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_failed_start_that_tells_nobody_leaves_a_job() {
    start_missed::misses();
}

#[test]
#[should_panic(expected = "more threads than may be")]
fn without_its_bound_a_lane_has_too_many_threads() {
    without_bound::performs();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_thread_that_ends_without_a_look_leaves_a_job() {
    ends_on_job::idles();
}

#[test]
#[should_panic(expected = "both taken back and performed")]
fn a_job_that_runs_must_not_be_taken_back() {
    cancel_running::cancels();
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_idle_thread_that_is_not_told_leaves_a_job() {
    idle_not_told::performs();
}
