//! `block_on` within a runtime.

use std::rc::Rc;
use std::time::Duration;

use sakia::time::sleep;
use sakia::{Runtime, block_on, block_on_nested, spawn, spawn_blocking, spawn_on, yield_now};

/// Asserts that the task's panic says what to do instead.
async fn assert_refused(task: sakia::JoinHandle<()>) {
    let message = task.await.expect_err("it panicked").to_string();
    for word in ["`.await`", "`spawn_blocking`", "`block_on_nested`"] {
        assert!(message.contains(word), "{message}");
    }
}

/// A call that waited for the outer runtime would wait for ever; each of these panics instead, whether its
/// future waits or not, and leaves the outer runtime as it was.
#[test]
fn a_task_that_would_wait_for_its_own_runtime_panics() {
    let runtime = Rc::new(Runtime::builder().threads(2).build().unwrap());
    let other = Rc::new(Runtime::new().unwrap());
    for round in 0..3 {
        let (within, elsewhere) = (Rc::clone(&runtime), Rc::clone(&other));
        runtime.block_on(async {
            let outer = spawn(async { sleep(Duration::from_millis(1)).await });
            assert_refused(spawn(async { drop(block_on(outer)) })).await;
            assert_refused(spawn(async { block_on(async {}) })).await;
            assert_refused(spawn(async move { within.block_on(async {}) })).await;
            assert_refused(spawn(async move { elsewhere.block_on(yield_now()) })).await;
            assert_refused(spawn_on(1, || async { block_on(async {}) })).await;
            assert_eq!(spawn(async { 7 }).await.unwrap(), 7);
        });
        // Neither runtime counts as entered, and both go on.
        assert_eq!(other.block_on(async { round }), round);
        assert_eq!(block_on(async { round }), round);
    }
}

#[test]
fn a_thread_without_a_runtime_may_block() {
    let value = block_on(async {
        let handle = spawn_blocking(|| block_on(async { spawn(async { 1 }).await.unwrap() }));
        let thread = std::thread::spawn(|| block_on(async { 2 }));
        handle.await.unwrap() + thread.join().unwrap()
    });
    assert_eq!(value, 3);
}

#[test]
fn nesting_by_name_runs_the_inner_future() {
    let outer = Runtime::new().unwrap();
    let value = outer.block_on(async {
        let outer_task = spawn(async { 1 });
        let inner = block_on_nested(async {
            sleep(Duration::from_millis(1)).await;
            // The refusal holds within the inner runtime, too.
            assert_refused(spawn(async { block_on(async {}) })).await;
            block_on_nested(async { spawn(async { 2 }).await.unwrap() })
        });
        inner + outer_task.await.unwrap()
    });
    assert_eq!(value, 3);
}

/// A foreign loop enters the runtime for each turn.
#[test]
fn turns_of_a_foreign_loop_refuse_as_well() {
    let runtime = Runtime::new().unwrap();
    let task = runtime.spawn(async { block_on(async {}) });
    while !task.is_finished() {
        runtime.run_once(Duration::from_secs(1)).unwrap();
    }
    runtime.block_on(assert_refused(task));
}
