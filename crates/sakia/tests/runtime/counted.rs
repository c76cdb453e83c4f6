//! Counts: wakes and results that must not be lost, and costs.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use sakia::inspect::{Warning, Warnings};
use sakia::io::pipe;
use sakia::{Runtime, block_on, spawn, yield_now};
use sakia_driver::Bypass;

#[test]
fn a_million_wakes_from_another_thread_arrive() {
    const WAKES: u64 = 1_000_000;
    let posted = Arc::new(AtomicU64::new(0));
    let (wakers, to_thread) = mpsc::channel::<Waker>();
    let sending = thread::spawn({
        let posted = Arc::clone(&posted);
        move || {
            let waker = to_thread.recv().unwrap();
            for _ in 0..WAKES {
                posted.fetch_add(1, Ordering::Release);
                waker.wake_by_ref();
            }
        }
    });
    let polls = block_on(async move {
        let task = spawn(async move {
            let mut polls = 0u64;
            poll_fn(|cx| {
                if polls == 0 {
                    wakers.send(cx.waker().clone()).unwrap();
                }
                polls += 1;
                // If the last wake were lost, this would wait for ever.
                let is_done = posted.load(Ordering::Acquire) == WAKES;
                if is_done { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            polls
        });
        task.await.unwrap()
    });
    sending.join().unwrap();
    assert!(polls >= 2);
}

#[test]
fn two_threads_wake_each_other_in_turn() {
    let (to_task, from_thread) = async_channel::bounded(1);
    let (to_thread, from_task) = async_channel::bounded(1);
    let other = thread::spawn(move || {
        while let Ok(number) = from_task.recv_blocking() {
            to_task.send_blocking(number + 1).unwrap();
        }
    });
    let last = block_on(async move {
        let mut number = 0u32;
        for _ in 0..2_000 {
            to_thread.send(number).await.unwrap();
            number = from_thread.recv().await.unwrap();
        }
        number
    });
    other.join().unwrap();
    assert_eq!(last, 2_000);
}

/// A thread that loses its processor may need more enters: a round ends after 50 us if most operations in
/// flight are not submitted. So at least one of the tries must need exactly one enter.
#[test]
fn what_one_turn_starts_leaves_with_one_enter() {
    const OPERATIONS: u64 = 8;
    const TRIES: u32 = 100;
    let runtime = Runtime::new().unwrap();
    let enters_of_a_turn = || {
        let (sender, receiver) = async_channel::unbounded();
        let pipes = runtime
            .block_on(async { (0..OPERATIONS).map(|_| pipe().unwrap()).collect::<Vec<_>>() });
        for (reader, mut writer) in pipes {
            let sender = sender.clone();
            let task = async move {
                writer.write("x").await.0.unwrap();
                // A drop would close them, which is an operation, too.
                sender.send((reader, writer)).await.unwrap();
            };
            runtime.spawn(task).detach();
        }
        let before = runtime.counters();
        while receiver.len() < OPERATIONS as usize {
            runtime.run_once(Duration::from_millis(10)).unwrap();
        }
        let after = runtime.counters();
        assert!(after.started - before.started >= OPERATIONS);
        // Waits for the closes of the pipes, so that the next turn does not count them.
        drop(receiver);
        while runtime.in_flight() > 0 {
            runtime.run_once(Duration::from_millis(10)).unwrap();
        }
        after.enters - before.enters
    };
    let enters: Vec<u64> = (0..TRIES).map(|_| enters_of_a_turn()).collect();
    if runtime.choice().name() == "uring" {
        assert!(enters.contains(&1), "{enters:?}");
    }
}

#[test]
fn an_operation_in_flight_keeps_the_runtime_at_it() {
    let (sender, receiver) = mpsc::channel();
    let runtime = Runtime::new().unwrap();
    let (mut reader, writer) = runtime.block_on(async { pipe().unwrap() });
    let other = thread::spawn(move || receiver.recv().unwrap());
    let text = runtime.block_on(async move {
        // Until the write only the read is in flight.
        spawn(async move {
            let mut writer = writer;
            yield_now().await;
            sender.send(()).unwrap();
            writer.write_all("late").await.0.unwrap();
        })
        .detach();
        let (result, text) = reader.read_to_end(Vec::new()).await;
        result.unwrap();
        text
    });
    other.join().unwrap();
    assert_eq!(text, b"late");
}

#[test]
fn a_runtime_with_nothing_to_do_returns() {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {});
    assert!(!runtime.run_once(Duration::ZERO).unwrap());
    assert_eq!((runtime.live_tasks(), runtime.counters().waits), (0, 0));
}

#[test]
fn a_thread_that_looks_for_work_does_not_sleep() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let runtime = Runtime::builder().spin(Duration::from_secs(3_600)).build().unwrap();
    let (started, begun) = mpsc::channel();
    let other = thread::spawn(move || {
        begun.recv().unwrap();
        std::io::Write::write_all(&mut { writer }, b"x").unwrap();
    });
    runtime.block_on(async {
        // The thread has a timer, a completion, and a wake by another thread.
        sakia::time::sleep(Duration::from_millis(1)).await;
        let mut near = sakia::io::PipeReader::from_fd(reader.try_clone().unwrap().into());
        let read = spawn(async move { near.read(vec![0; 1]).await.0 });
        yield_now().await;
        started.send(()).unwrap();
        assert_eq!(read.await.unwrap().unwrap(), 1);
        let (to_task, from_thread) = async_channel::bounded(1);
        let sender = thread::spawn(move || to_task.send_blocking(7));
        assert_eq!(from_thread.recv().await, Ok(7));
        sender.join().unwrap().unwrap();
    });
    other.join().unwrap();
    assert_eq!(runtime.counters().waits, 0);
    assert_eq!(std::io::Read::read(&mut reader, &mut [0; 1]).unwrap(), 0);
}

#[test]
fn operations_of_the_future_of_block_on_send_its_thread_no_wakes() {
    const ROUNDS: u64 = 100;
    let runtime = Runtime::builder().bypass(Bypass::Never).build().unwrap();
    let before = runtime.counters();
    runtime.block_on(async {
        let (mut reader, mut writer) = pipe().unwrap();
        for _ in 0..ROUNDS {
            writer.write("x").await.0.unwrap();
            assert_eq!(reader.read(vec![0; 1]).await.0.unwrap(), 1);
        }
    });
    let after = runtime.counters();
    assert!(after.started - before.started >= 2 * ROUNDS);
    assert_eq!(after.remote_wakes - before.remote_wakes, 0);
    if runtime.choice().name() == "uring" {
        let enters = after.enters - before.enters;
        assert!(enters < 2 * ROUNDS + 10, "{enters} enters for {ROUNDS} writes and reads");
    }
}

/// A turn gives its warnings after its tasks and before the driver's sleep.
#[test]
fn a_wake_between_the_tasks_and_the_sleep_is_not_lost() {
    const POLLS: u32 = 100;
    let waiting: Arc<Mutex<Option<Waker>>> = Arc::default();
    let told = Arc::clone(&waiting);
    let warnings = Warnings::callback(move |warning: &Warning| {
        assert!(matches!(warning, Warning::Turn { .. }));
        if let Some(waker) = told.lock().unwrap().take() {
            waker.wake();
        }
    });
    let warnings = warnings.turn(Duration::ZERO);
    let runtime = Runtime::builder().warnings(warnings).build().unwrap();
    let mut polls = 0;
    runtime.block_on(poll_fn(|cx| {
        polls += 1;
        *waiting.lock().unwrap() = Some(cx.waker().clone());
        if polls < POLLS { Poll::Pending } else { Poll::Ready(()) }
    }));
    assert!(polls >= POLLS);
}

#[test]
fn a_runtime_within_another_wakes_the_outer_future() {
    let (outer, inner) = (Runtime::new().unwrap(), Rc::new(Runtime::new().unwrap()));
    outer.block_on(async {
        for number in 0..100 {
            let (sender, receiver) = async_channel::bounded(1);
            let inner = Rc::clone(&inner);
            let task = spawn(async move {
                inner.block_on_nested(async {
                    yield_now().await;
                    sender.send(number).await.unwrap();
                });
                // The call returns as if the runtime slept, for a foreign loop.
                inner.run_once(Duration::ZERO).unwrap();
            });
            assert_eq!(receiver.recv().await, Ok(number));
            task.await.unwrap();
        }
    });
}

#[test]
fn a_future_is_woken_by_a_task_that_has_run_its_runtime() {
    let runtime = Rc::new(Runtime::new().unwrap());
    let within = Rc::clone(&runtime);
    runtime.block_on(async {
        for number in 0..100 {
            let (sender, receiver) = async_channel::bounded(1);
            let runtime = Rc::clone(&within);
            let task = spawn(async move {
                // From here on the thread counts as asleep until its next sleep has ended.
                runtime.run_once(Duration::ZERO).unwrap();
                sender.send(number).await.unwrap();
            });
            assert_eq!(receiver.recv().await, Ok(number));
            task.await.unwrap();
        }
    });
}
