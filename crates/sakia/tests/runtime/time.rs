//! Timers and their clocks.
//!
//! No test asserts on real time: clocks are virtual, or counters are checked.

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn, ready};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sakia::time::{Instant, Sleep, now, sleep, sleep_until, timeout};
use sakia::{Runtime, spawn, spawn_on, yield_now};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn virtual_runtime() -> Runtime {
    Runtime::builder().virtual_time(true).build().expect("this machine has a backend")
}

/// A waker that counts its calls.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Returns a waiting timer of a runtime, to be used outside of it.
fn start_timer(runtime: &Runtime, duration: Duration) -> Sleep {
    let mut timer = None;
    runtime.block_on(async {
        let started = timer.insert(sleep(duration));
        assert!(poll_with(started, Waker::noop()).is_pending());
    });
    timer.expect("it was started")
}

/// Awaits a future, and asserts that it takes exactly this virtual time.
async fn expect_elapsed<F: Future>(expected: Duration, future: F) -> F::Output {
    let begin = now();
    let output = future.await;
    assert_eq!(begin.elapsed(), expected);
    output
}

#[test]
fn timers_fire_in_order_and_equal_ones_as_they_were_set() {
    let runtime = virtual_runtime();
    let order = Rc::new(RefCell::new(Vec::new()));
    runtime.block_on(async {
        let start = |(number, millis): (usize, u64)| {
            let order = Rc::clone(&order);
            spawn(async move {
                sleep(Duration::from_millis(millis)).await;
                order.borrow_mut().push(number);
            })
        };
        let tasks = [70, 5, 5000, 5, 0, 70, 64, 5].into_iter().enumerate().map(start);
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
    assert_eq!(*order.borrow(), [4, 1, 3, 7, 6, 0, 5, 2]);
}

#[test]
fn virtual_hours_cost_no_wait() {
    let runtime = virtual_runtime();
    runtime.block_on(async {
        expect_elapsed(100 * HOUR, async {
            for _ in 0..100 {
                expect_elapsed(HOUR, sleep(HOUR)).await;
            }
        })
        .await;
        expect_elapsed(24 * 365 * 100 * HOUR, sleep(24 * 365 * 100 * HOUR)).await;
    });
    assert_eq!(runtime.counters().waits, 0);
}

#[test]
fn virtual_time_needs_a_single_thread() {
    let refused = Runtime::builder().virtual_time(true).threads(2).build();
    assert_eq!(refused.err().map(|error| error.kind()), Some(io::ErrorKind::InvalidInput));
}

#[cfg(feature = "sim")]
#[test]
fn the_simulated_kernels_time_is_the_timers_time() {
    let sim = sakia_driver::sim::Sim::new(7);
    let kernel = sim.handle();
    let runtime = Runtime::builder().build_simulated(sim).unwrap();
    let before = kernel.now();
    runtime.block_on(async {
        let short = spawn(sleep(10 * MS));
        sleep(HOUR).await;
        assert!(short.is_finished());
        let begin = now();
        assert!(timeout(10 * SECOND, pending::<()>()).await.is_err());
        assert!(begin.elapsed() >= 10 * SECOND);
    });
    let passed = kernel.now() - before;
    assert!(passed >= HOUR + 10 * SECOND, "{passed:?}");
    assert!(passed < HOUR + 11 * SECOND, "{passed:?}"); // virtual, so not a matter of speed
}

#[cfg(feature = "sim")]
#[test]
fn timers_are_never_early_whatever_the_kernel_does() {
    for seed in 0..50 {
        let sim = sakia_driver::sim::Sim::builder(seed).entries(2, 4).chaos(1 << 13).build();
        let runtime = Runtime::builder().build_simulated(sim).unwrap();
        runtime.block_on(async {
            let begin = now();
            for task in [7_u32, 3, 9, 3000, 80, 3].map(|millis| {
                spawn(async move {
                    sleep_until(begin + millis * MS).await;
                    (begin + millis * MS, now())
                })
            }) {
                let (deadline, end) = task.await.unwrap();
                assert!(end >= deadline, "seed {seed}: {end:?} is before {deadline:?}");
            }
        });
    }
}

#[test]
fn an_idle_runtime_waits_once_for_its_timer() {
    let runtime = Runtime::new().unwrap();
    let before = runtime.counters().enters;
    runtime.block_on(async {
        let begin = now();
        sleep(SECOND / 3).await;
        assert!(begin.elapsed() >= SECOND / 3);
    });
    let enters = runtime.counters().enters - before;
    assert!((1..=3).contains(&enters), "{enters} enters");
}

#[test]
fn a_dropped_timer_does_not_wake_the_thread() {
    let runtime = Runtime::new().unwrap();
    let before = runtime.counters().enters;
    runtime.block_on(async {
        let mut dropped: Vec<_> = (1..100).map(|millis| sleep(millis * MS)).collect();
        for sleep in &mut dropped {
            let _ = poll_with(sleep, Waker::noop()); // over already, if the machine is slow
        }
        drop(dropped);
        sleep(200 * MS).await;
    });
    let enters = runtime.counters().enters - before;
    assert!((1..=3).contains(&enters), "{enters} enters");
}

#[test]
fn timers_fire_while_tasks_always_yield() {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let busy: Vec<_> = (0..100)
            .map(|_| {
                spawn(async {
                    loop {
                        yield_now().await;
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            sleep(5 * MS).await;
        }
        spawn(sleep(5 * MS)).await.unwrap();
        assert!(busy.iter().all(|task| !task.is_finished()));
        busy.iter().for_each(sakia::JoinHandle::abort);
    });
}

#[test]
fn each_thread_has_its_timers_and_all_have_one_clock() {
    let runtime = Runtime::builder().threads(3).build().unwrap();
    runtime.block_on(async {
        let begin = now();
        let start = move |number| {
            spawn_on(number, move || async move {
                assert!(now() >= begin, "thread {number} is behind");
                sleep(3 * MS).await;
                now()
            })
        };
        for task in [0, 1, 2].map(start) {
            let end: Instant = task.await.unwrap();
            assert!(end - begin >= 3 * MS && end <= now());
        }
    });
}

#[test]
fn a_timer_can_be_dropped_in_every_state() {
    virtual_runtime().block_on(async {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        drop(sleep(MS)); // never polled
        let mut waiting = sleep(MS);
        assert!(poll_with(&mut waiting, &waker).is_pending());
        assert_eq!(Arc::strong_count(&count), 3);
        drop(waiting);
        assert_eq!(Arc::strong_count(&count), 2); // the waker went with it
        sleep(2 * MS).await;
        assert_eq!(count.get(), 0);

        let mut fired = sleep(MS);
        assert!(poll_with(&mut fired, &waker).is_pending());
        sleep(2 * MS).await;
        assert_eq!(count.get(), 1);
        assert!(!fired.is_elapsed()); // not polled yet
        drop(fired);

        let mut over = sleep(MS);
        (&mut over).await;
        assert!(over.is_elapsed());
        assert!(poll_with(&mut over, &waker).is_ready());
        drop(over);
        assert_eq!((count.get(), Arc::strong_count(&count)), (1, 2));
    });
}

#[test]
fn a_waker_may_drop_timers() {
    /// Drops another timer when its own fires.
    struct DropOther(std::sync::Mutex<Option<send_wrapper::SendWrapper<Sleep>>>);
    impl Wake for DropOther {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().take();
        }
    }
    virtual_runtime().block_on(async {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut other = sleep(MS);
        let killer = Arc::new(DropOther(std::sync::Mutex::new(None)));
        let mut first = sleep(MS);
        assert!(poll_with(&mut first, &Waker::from(Arc::clone(&killer))).is_pending());
        assert!(poll_with(&mut other, &waker).is_pending());
        *killer.0.lock().unwrap() = Some(send_wrapper::SendWrapper::new(other));
        sleep(2 * MS).await;
        assert!(killer.0.lock().unwrap().is_none());
        assert_eq!(count.get(), 0); // it was due, but did not live to see it
    });
}

#[test]
fn a_timer_outlives_its_runtime_harmlessly() {
    let runtime = virtual_runtime();
    let mut left = start_timer(&runtime, HOUR);
    drop(runtime);
    // On another runtime the timer starts again with the same deadline.
    virtual_runtime().block_on(async { expect_elapsed(HOUR, &mut left).await });
    assert!(left.is_elapsed());
}

#[test]
fn the_task_that_polled_last_is_woken() {
    virtual_runtime().block_on(async {
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let mut timer = sleep(MS);
        assert!(poll_with(&mut timer, &Waker::from(Arc::clone(&first))).is_pending());
        assert!(poll_with(&mut timer, &Waker::from(Arc::clone(&second))).is_pending());
        sleep(MS).await;
        assert_eq!((first.get(), second.get()), (0, 1));

        // The same with tasks: one begins to wait, and another continues.
        let mut timer = sleep(MS);
        let is_pending =
            poll_fn(|cx| Poll::Ready(Pin::new(&mut timer).poll(cx).is_pending())).await;
        assert!(is_pending);
        expect_elapsed(MS, spawn(timer)).await.unwrap();
    });
}

#[test]
fn a_reset_timer_keeps_to_its_new_deadline() {
    virtual_runtime().block_on(async {
        let begin = now();
        let mut timer = sleep(10 * MS);
        timer.reset(begin + 20 * MS); // before the first poll
        expect_elapsed(20 * MS, &mut timer).await;
        timer.reset(begin + 50 * MS); // after the end
        assert!(!timer.is_elapsed());
        assert!(poll_with(&mut timer, Waker::noop()).is_pending());
        timer.reset(begin + 100 * MS); // later, while it waits
        assert_eq!(timer.deadline(), begin + 100 * MS);
        assert!(timeout(60 * MS, &mut timer).await.is_err());
        timer.reset(begin + 90 * MS); // earlier, while it waits
        expect_elapsed(10 * MS, &mut timer).await;

        timer.reset(begin + 100 * MS);
        assert!(poll_with(&mut timer, Waker::noop()).is_pending());
        timer.reset(begin); // into the past
        expect_elapsed(Duration::ZERO, &mut timer).await;

        // The task is woken at the new deadline without a poll in between.
        let mut timer = Box::pin(sleep(10 * MS));
        let count = Arc::new(Count::default());
        assert!(poll_with(&mut timer, &Waker::from(Arc::clone(&count))).is_pending());
        timer.reset(now() + 30 * MS);
        sleep(20 * MS).await;
        assert_eq!(count.get(), 0);
        sleep(10 * MS).await;
        assert_eq!(count.get(), 1);
    });
}

#[test]
fn a_sleep_of_no_time_is_over_at_once_and_an_endless_one_never() {
    virtual_runtime().block_on(async {
        assert!(poll_with(&mut sleep(Duration::ZERO), Waker::noop()).is_ready());
        assert!(poll_with(&mut sleep_until(now()), Waker::noop()).is_ready());
        let mut endless = sleep(Duration::MAX);
        assert!(timeout(100 * 24 * 365 * HOUR, &mut endless).await.is_err());
        endless.reset(now() + MS);
        expect_elapsed(MS, endless).await;
    });
}

#[test]
fn a_lost_timeout_drops_its_future() {
    virtual_runtime().block_on(async {
        let held = Rc::new(());
        let kept = Rc::clone(&held);
        let lost = timeout(MS, async move {
            sleep(2 * MS).await;
            drop(kept);
        });
        let error = expect_elapsed(MS, lost).await.unwrap_err();
        assert_eq!(Rc::strong_count(&held), 1); // dropped with the timeout
        assert_eq!(error.to_string(), "time is up");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);

        assert_eq!(timeout(Duration::ZERO, ready(1)).await, Ok(1));
        assert!(timeout(Duration::ZERO, pending::<()>()).await.is_err());
        let nested = timeout(5 * MS, timeout(3 * MS, pending::<()>()));
        assert!(expect_elapsed(3 * MS, nested).await.unwrap().is_err());
        assert_eq!(timeout(MS, ready(3)).into_inner().await, 3);
    });
}

#[test]
fn instants_are_counted_with() {
    virtual_runtime().block_on(async {
        let begin = Instant::now();
        let later = begin + SECOND;
        assert_eq!((later - begin, begin - later), (SECOND, Duration::ZERO));
        assert_eq!(begin.checked_duration_since(later), None);
        assert_eq!(later.checked_sub(2 * SECOND), None);
        assert_eq!(begin.checked_add(Duration::MAX).and_then(|at| at.checked_add(MS)), None);
        let mut moved = later;
        moved += SECOND;
        moved -= 2 * SECOND;
        assert_eq!(moved, begin);
    });
}

#[test]
#[should_panic = "this needs a runtime"]
fn a_sleep_needs_a_runtime() {
    drop(sleep(MS));
}

#[test]
#[should_panic = "this needs a runtime"]
fn a_waiting_sleep_needs_its_runtime() {
    let runtime = virtual_runtime();
    let mut timer = start_timer(&runtime, MS);
    let _ = poll_with(&mut timer, Waker::noop());
}
