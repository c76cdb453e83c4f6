//! Blocking code that runs, or waits to run, when its runtime ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use sakia::blocking::{Pool, shared};
use sakia::inspect::inspector;
use sakia::time::{sleep, timeout};
use sakia::{
    Engine, Runtime, block_on, block_on_nested, spawn, spawn_blocking, spawn_on, yield_now,
};

use crate::files::TempDir;

/// Long enough for an end that does not wait to be over before.
const WHILE: Duration = Duration::from_millis(50);

/// Counts closures that have ended.
#[derive(Clone, Default)]
struct Ended(Arc<AtomicUsize>);

impl Ended {
    /// Returns a closure that counts after a while.
    fn later(&self) -> impl FnOnce() + Send + use<> {
        let this = self.clone();
        move || {
            thread::sleep(WHILE);
            this.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[track_caller]
    fn assert_all(&self, count: usize) {
        assert_eq!(self.0.load(Ordering::SeqCst), count);
    }
}

#[test]
fn a_call_without_a_runtime_finishes_it() {
    let ended = Ended::default();
    block_on(async { spawn_blocking(ended.later()).detach() });
    ended.assert_all(1);
    // Given up, not only let go.
    block_on(async {
        let mut given_up = spawn_blocking(ended.later());
        let poll = poll_fn(|cx| Poll::Ready(Pin::new(&mut given_up).poll(cx)));
        assert!(poll.await.is_pending());
    });
    ended.assert_all(2);
}

#[test]
fn a_runtime_that_is_made_late_finishes_what_began_before_and_after() {
    let ended = Ended::default();
    block_on(async {
        spawn_blocking(ended.later()).detach();
        sleep(Duration::ZERO).await;
        spawn_blocking(ended.later()).detach();
        let its = ended.clone();
        spawn(async move { spawn_blocking(its.later()).await }).detach();
        yield_now().await;
    });
    ended.assert_all(3);
}

#[test]
fn each_thread_of_a_runtime_finishes_it() {
    let ended = Ended::default();
    let runtime = Runtime::builder().threads(3).build().unwrap();
    runtime.block_on(async {
        for thread in 0..3 {
            let its = ended.clone();
            let start = move || async move { drop(spawn_blocking(its.later())) };
            spawn_on(thread, start).await.unwrap();
        }
    });
    assert_eq!(runtime.inspect().closures, 3);
    assert!(runtime.inspect().to_string().contains("have not ended: 3\n"), "{}", runtime.inspect());
    drop(runtime);
    ended.assert_all(3);
}

/// A destructor runs when a task is dropped at the end, on the other thread, too.
#[test]
fn what_destructors_start_is_finished() {
    struct Starts(Ended);

    impl Drop for Starts {
        fn drop(&mut self) {
            spawn_blocking(self.0.later()).detach();
        }
    }

    let ended = Ended::default();
    let runtime = Runtime::builder().threads(2).build().unwrap();
    for thread in 0..2 {
        let starts = Starts(ended.clone());
        runtime.block_on(async {
            let waits = move || async move {
                let _starts = starts;
                std::future::pending::<()>().await;
            };
            spawn_on(thread, waits).detach();
            let poll = || async { yield_now().await };
            spawn_on(thread, poll).await.unwrap();
        });
    }
    drop(runtime);
    ended.assert_all(2);
}

#[test]
fn what_a_closure_starts_is_finished() {
    let ended = Ended::default();
    block_on(async {
        let its = ended.clone();
        let nested = move || {
            thread::sleep(WHILE);
            let again = its.clone();
            spawn_blocking(move || {
                again.later()();
                spawn_blocking(again.later()).detach();
            })
            .detach();
        };
        spawn_blocking(nested).detach();
    });
    ended.assert_all(2);
}

#[test]
fn an_inner_call_waits_for_its_own_only() {
    let ended = Ended::default();
    let (sender, receiver) = mpsc::channel::<()>();
    block_on(async {
        let its = ended.clone();
        let outer = spawn_blocking(move || {
            receiver.recv().unwrap_err();
            its.later()();
        });
        block_on_nested(async { spawn_blocking(ended.later()).detach() });
        ended.assert_all(1);
        drop((sender, outer));
    });
    ended.assert_all(2);
}

/// The result of a closure whose handle is gone has a destructor that takes its time.
#[test]
fn the_result_is_destroyed_before_the_end() {
    struct Slow(Ended);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.later()();
        }
    }

    let ended = Ended::default();
    let slow = Slow(ended.clone());
    block_on(async { spawn_blocking(move || slow).detach() });
    ended.assert_all(1);
}

#[test]
fn an_end_by_a_panic_finishes_it() {
    let ended = Ended::default();
    let panics = async {
        spawn_blocking(ended.later()).detach();
        panic!("as meant");
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block_on::<_>(panics)));
    outcome.unwrap_err();
    ended.assert_all(1);
}

#[test]
fn closures_of_an_engine_are_those_of_the_caller() {
    let ended = Ended::default();
    let engine = Engine::new().unwrap();
    block_on(async {
        let (its, (report, began)) = (ended.later(), mpsc::channel());
        let begins = move || {
            report.send(()).unwrap();
            its();
            Ok(())
        };
        let request = engine.spawn_blocking(begins).submit();
        began.recv().unwrap();
        drop(request); // does not wait, but has begun
    });
    ended.assert_all(1);
}

/// The closure waits for what only the end of the tasks, or of their operations, gives it.
#[test]
fn it_may_wait_for_the_end_of_tasks_and_descriptors() {
    for threads in 1..=2 {
        let runtime = Runtime::builder().threads(threads).build().unwrap();
        let (sender, receiver) = mpsc::channel::<()>();
        let (reader, writer) = std::io::pipe().unwrap();
        let (report, reported) = mpsc::channel();
        let (written, is_written) = async_channel::bounded(1);
        runtime.block_on(async {
            let start = move || async move {
                let _sender = sender;
                let mut writer = sakia::io::PipeWriter::from_fd(writer.into());
                writer.write("x").await.0.unwrap();
                written.send(()).await.unwrap();
                std::future::pending::<()>().await;
            };
            spawn_on(threads - 1, start).detach();
            spawn_blocking(move || {
                let all = std::io::read_to_string(reader).unwrap();
                report.send((receiver.recv().is_err(), all)).unwrap();
            })
            .detach();
            is_written.recv().await.unwrap();
        });
        drop(runtime);
        assert_eq!(reported.try_recv().unwrap(), (true, "x".to_owned()));
    }
}

/// Almost as many closures as there may be threads meet: other tests use the pool, too.
#[test]
fn many_closures_wait_for_each_other() {
    const COUNT: usize = 450;
    let barrier = Arc::new(Barrier::new(COUNT));
    block_on(async {
        let meet = || {
            let barrier = Arc::clone(&barrier);
            spawn_blocking(move || usize::from(barrier.wait().is_leader()))
        };
        let all: Vec<_> = (0..COUNT).map(|_| meet()).collect();
        let mut leaders = 0;
        for one in all {
            leaders += one.await.unwrap();
        }
        assert_eq!(leaders, 1);
    });
}

#[test]
fn a_timeout_limits_the_wait() {
    for limit in [Duration::ZERO, Duration::from_millis(2)] {
        let runtime = Runtime::builder().blocking_timeout(limit).build().unwrap();
        let (sender, receiver) = mpsc::channel::<()>();
        let (report, reported) = mpsc::channel();
        runtime.block_on(async {
            spawn_blocking(move || report.send(receiver.recv().is_err()).unwrap()).detach();
        });
        drop(runtime);
        assert!(reported.try_recv().is_err(), "the closure still waits");
        drop(sender);
        assert!(reported.recv().unwrap(), "it goes on");
    }
    // A timeout that is not reached.
    let ended = Ended::default();
    let longest = Duration::MAX;
    let runtime = Runtime::builder().blocking_timeout(longest).build().unwrap();
    runtime.block_on(async { spawn_blocking(ended.later()).detach() });
    drop(runtime);
    ended.assert_all(1);
}

/// These tests would hang.
#[test]
fn nothing_waits_for_work_on_a_pool_itself_nor_for_work_that_never_begins() {
    let pool = Pool::builder().threads(1).queue(1).build();
    let (sender, receiver) = mpsc::channel::<()>();
    let receiver = Arc::new(std::sync::Mutex::new(receiver));
    let blocked = || {
        let receiver = Arc::clone(&receiver);
        move || receiver.lock().unwrap().recv().is_err()
    };
    block_on(async {
        shared().spawn(blocked()).detach();
        pool.spawn(blocked()).detach();
        assert!(shared().try_spawn(blocked()).is_ok());
        sleep(Duration::from_millis(1)).await;
        assert_eq!(inspector().inspect().closures, 0);
    });
    drop(sender);
}

/// Lookups, which servers may never answer, are Sakia's own.
#[test]
fn nothing_waits_for_lookups() {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let mut lookup = pin!(sakia::net::lookup_host("localhost:80"));
        // Under way, or over already.
        let found = poll_fn(|cx| {
            let poll = lookup.as_mut().poll(cx);
            assert_eq!(runtime.inspect().closures, 0);
            poll
        });
        assert!(found.await.is_ok());
        // Nor for the open of a FIFO.
        let directory = TempDir::new();
        let fifo = directory.join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        let engine = Engine::new().unwrap();
        timeout(Duration::from_millis(1), engine.open(&fifo)).await.unwrap_err();
        assert_eq!(runtime.inspect().closures, 0);
        // Gives the thread back.
        std::fs::File::options().read(true).write(true).open(&fifo).unwrap();
    });
}
