//! Tasks: spawning, joining, ending, waking.

use std::future::pending;
use std::rc::Rc;
use std::thread;

use sakia::{Runtime, block_on, spawn, spawn_on, yield_now};

#[test]
fn results_come_back_through_handles() {
    let runtime = Runtime::new().unwrap();
    let sum: u64 = runtime.block_on(async {
        let start = |number| {
            spawn(async move {
                yield_now().await;
                number
            })
        };
        let handles: Vec<_> = (0..1000).map(start).collect();
        let mut sum = 0;
        for handle in handles {
            sum += handle.await.unwrap();
        }
        sum
    });
    assert_eq!(sum, 499_500);
    assert_eq!(runtime.live_tasks(), 0);
}

#[test]
fn a_panic_ends_its_task_only() {
    block_on(async {
        let error = spawn(async { panic!("a reason") }).await.unwrap_err();
        assert!(error.is_panic());
        assert_eq!(error.to_string(), "the task panicked: a reason");
    });
}

#[test]
fn an_aborted_task_is_canceled() {
    block_on(async {
        let handle = spawn(pending::<()>());
        handle.abort();
        assert!(handle.await.unwrap_err().is_canceled());
    });
}

#[test]
fn tasks_end_with_their_runtime() {
    let held = Rc::new(());
    let runtime = Runtime::new().unwrap();
    let kept = Rc::clone(&held);
    runtime
        .spawn(async move {
            pending::<()>().await;
            drop(kept)
        })
        .detach();
    runtime.block_on(yield_now());
    assert_eq!(Rc::strong_count(&held), 2);
    drop(runtime);
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn wakes_from_another_thread_arrive() {
    const COUNT: u64 = 100_000;
    let runtime = Runtime::new().unwrap();
    let (sender, receiver) = async_channel::bounded(16);
    let sending = thread::spawn(move || {
        for number in 0..COUNT {
            sender.send_blocking(number).unwrap();
        }
    });
    let sum: u64 = runtime.block_on(async move {
        let mut sum = 0;
        while let Ok(number) = receiver.recv().await {
            sum += number;
        }
        sum
    });
    sending.join().unwrap();
    assert_eq!(sum, COUNT * (COUNT - 1) / 2);
}

#[test]
fn tasks_run_on_the_thread_they_are_started_on() {
    let runtime = Runtime::builder().threads(3).build().unwrap();
    runtime.block_on(async {
        for number in 0..3 {
            // The value, which is not `Send`, is created on that thread.
            let task = spawn_on(number, move || async move {
                let name = Rc::new(thread::current().name().map(String::from));
                yield_now().await;
                name.as_deref().map(String::from)
            });
            let name = task.await.unwrap();
            if number > 0 {
                assert_eq!(name, Some(format!("sakia-{number}")));
            }
        }
    });
}

/// A value whose destructor panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a destructor");
    }
}

#[test]
fn a_destructor_that_panics_ends_its_task_only() {
    let runtime = Runtime::new().unwrap();
    let start = |is_polled: bool| {
        let bomb = Bomb;
        let task = runtime.spawn(async move {
            pending::<()>().await;
            drop(bomb);
        });
        if is_polled {
            runtime.block_on(yield_now());
        }
        task
    };
    // The future is dropped by an abort, with the runtime after a wait, and before its first poll.
    let aborted = start(true);
    aborted.abort();
    assert!(runtime.block_on(aborted).unwrap_err().is_canceled());
    start(true).detach();
    start(false).detach();
    drop(runtime);
    block_on(yield_now());
}
