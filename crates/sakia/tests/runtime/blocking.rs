//! Blocking code on threads of a pool.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use sakia::blocking::{Pool, Statistics, statistics};
use sakia::{BlockingHandle, Runtime, block_on, spawn, spawn_blocking, yield_now};

/// The time after which a test fails that waits for an event.
const PATIENCE: Duration = Duration::from_secs(20);

fn wait_for(pool: &Pool, what: impl Fn(Statistics) -> bool) {
    let begin = Instant::now();
    while !what(pool.statistics()) {
        assert!(begin.elapsed() < PATIENCE, "{pool:?}");
        thread::yield_now();
    }
}

/// Returns a pool of one thread, which is busy until the sender is used or dropped.
fn busy_pool(queue: usize) -> (Pool, mpsc::Sender<()>, BlockingHandle<()>) {
    let pool = Pool::builder().threads(1).queue(queue).build();
    let (sender, receiver) = mpsc::channel();
    let (report, began) = mpsc::channel();
    let busy = pool.spawn(move || {
        report.send(()).unwrap();
        receiver.recv().unwrap_or(()); // until the other end is dropped
    });
    began.recv().unwrap();
    (pool, sender, busy)
}

#[test]
fn results_come_back_and_tasks_go_on_meanwhile() {
    block_on(async {
        let (sender, receiver) = mpsc::channel();
        let blocked = spawn_blocking(move || receiver.recv().unwrap());
        spawn(async move { sender.send(7).unwrap() }).await.unwrap();
        assert_eq!(blocked.await.unwrap(), 7);
        assert!(statistics().completed >= 1);
    });
}

#[test]
fn a_panic_is_contained() {
    let pool = Pool::builder().threads(1).build();
    block_on(async {
        let error = pool.spawn(|| panic!("a reason")).await.unwrap_err();
        assert_eq!(error.to_string(), "the task panicked: a reason");
        assert_eq!(pool.spawn(|| 1).await.unwrap(), 1);
    });
    let statistics = pool.statistics();
    assert_eq!((statistics.completed, statistics.panicked, statistics.threads_max), (2, 1, 1));
}

#[test]
fn threads_are_started_up_to_the_cap() {
    const CAP: usize = 4;
    let pool = Pool::builder().threads(CAP).build();
    assert_eq!(pool.statistics().threads, 0);
    let barrier = Arc::new(Barrier::new(CAP));
    block_on(async {
        // The work ends only when this number of threads runs it at the same time.
        let meet = || {
            let barrier = Arc::clone(&barrier);
            pool.spawn(move || barrier.wait().is_leader())
        };
        let handles: Vec<_> = (0..CAP * 5).map(|_| meet()).collect();
        for handle in handles {
            handle.await.unwrap();
        }
    });
    let statistics = pool.statistics();
    assert_eq!((statistics.threads_max, statistics.completed), (CAP, 20));
}

#[test]
fn idle_threads_end() {
    let pool = Pool::builder().threads(3).idle(Duration::ZERO).build();
    for _ in 0..10 {
        assert_eq!(block_on(pool.spawn(|| 1)).unwrap(), 1);
        wait_for(&pool, |statistics| statistics.threads == 0);
    }
    assert_eq!(pool.statistics().idle, 0);
}

/// A thread stops waiting for work just when there is work again.
#[test]
fn work_that_comes_when_threads_end_is_done() {
    let pool = Pool::builder().threads(1).idle(Duration::ZERO).build();
    for number in 0..4_000 {
        // The work is pushed before or after the thread stops waiting.
        (0..number % 1_000).for_each(|_| std::hint::spin_loop());
        assert_eq!(block_on_here(pool.spawn(move || number)).unwrap(), number);
    }
    assert_eq!((pool.statistics().completed, pool.statistics().threads_max), (4_000, 1));
}

/// Polls the handle in a loop, so that the next work is pushed as soon as this is done.
fn block_on_here<T>(mut handle: BlockingHandle<T>) -> Result<T, sakia::JoinError> {
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(outcome) = Pin::new(&mut handle).poll(&mut cx) {
            return outcome;
        }
        thread::yield_now();
    }
}

#[test]
fn a_full_queue_holds_work_back() {
    let (pool, gate, busy) = busy_pool(2);
    block_on(async {
        let queued: Vec<_> = (0..2).map(|_| pool.spawn(|| 0)).collect();
        assert!(pool.try_spawn(|| 0).is_err());
        let held: Vec<_> = (0..100).map(|number| spawn(pool.spawn(move || number))).collect();
        yield_now().await;
        assert_eq!(pool.statistics().queued, 2);
        drop(gate);
        busy.await.unwrap();
        for (number, handle) in (0..).zip(held) {
            assert_eq!(handle.await.unwrap().unwrap(), number);
        }
        for handle in queued {
            handle.await.unwrap();
        }
    });
    let statistics = pool.statistics();
    assert_eq!((statistics.queued_max, statistics.completed), (2, 103));
}

#[test]
fn dropped_handles_let_work_go_on() {
    let ran = Arc::new(AtomicUsize::new(0));
    let (pool, gate, _busy) = busy_pool(1);
    let count = || {
        let ran = Arc::clone(&ran);
        move || {
            ran.fetch_add(1, Ordering::SeqCst);
        }
    };
    pool.spawn(count()).detach(); // queued
    pool.spawn(count()).detach(); // held, never polled
    block_on(async {
        let mut held = pool.spawn(count()); // held, and polled
        std::future::poll_fn(|cx| {
            assert!(std::pin::Pin::new(&mut held).poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        drop(held);
    });
    assert_eq!(pool.statistics().queued, 3);
    drop(gate);
    wait_for(&pool, |statistics| statistics.completed == 4);
    assert_eq!(ran.load(Ordering::SeqCst), 3);
}

#[test]
fn aborted_work_never_runs() {
    let (pool, gate, busy) = busy_pool(1);
    let held_value = Arc::new(());
    let work = || {
        let value = Arc::clone(&held_value);
        move || panic!("aborted work ran, with {value:?}")
    };
    let queued = pool.spawn(work());
    let held = pool.spawn(work());
    queued.abort();
    held.abort();
    assert!(queued.is_finished() && held.is_finished());
    block_on(async {
        assert!(queued.await.unwrap_err().is_canceled());
        assert!(held.await.unwrap_err().is_canceled());
        drop(gate);
        busy.await.unwrap();
        pool.spawn(|| ()).await.unwrap();
    });
    assert_eq!(Arc::strong_count(&held_value), 1);
    assert_eq!((pool.statistics().completed, pool.statistics().panicked), (2, 0));
}

#[test]
fn work_aborted_while_it_runs_goes_on() {
    let (pool, gate, busy) = busy_pool(1);
    busy.abort();
    assert!(block_on(busy).unwrap_err().is_canceled());
    drop(gate);
    wait_for(&pool, |statistics| statistics.completed == 1);
}

#[test]
fn a_dropped_pool_finishes_what_was_queued() {
    let (pool, gate, busy) = busy_pool(1);
    let queued = pool.spawn(|| 1);
    let held = pool.spawn(|| 2);
    drop(pool);
    drop(gate);
    block_on(async {
        busy.await.unwrap();
        assert_eq!((queued.await.unwrap(), held.await.unwrap()), (1, 2));
    });
}

#[test]
fn handles_may_outlive_their_runtime() {
    let (pool, gate, busy) = busy_pool(1);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        spawn(busy).detach();
        spawn(pool.spawn(|| ())).detach();
        spawn(pool.spawn(|| ())).detach();
        yield_now().await;
    });
    drop(runtime);
    drop(gate);
    wait_for(&pool, |statistics| statistics.completed == 3);
}
